"""`weft broker`, which answers the messages of every session until it is stopped;
`weft retry`, which tries a failed turn again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.command_line import Call, NobodyToAsk, ask, is_person_there
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.work.broker_call import BrokerAccess, deliver, note_untold, with_broker
from weft.verbs.answers import BrokerReady

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import ToolCall
    from weft.runtime.broker.broker import Broker


# --- `weft broker`: a process that answers messages until it is stopped.

CAPACITY_TURNS = 64
LISTED_APPROVALS = 10_000


@weft_command("broker")
@click.option(
    "--capacity",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=CAPACITY_TURNS,
    help=f"At most N turns at a time. Default: {CAPACITY_TURNS}.",
)
def broker_command(call: Call, capacity: int) -> None:
    """Serve the messages of every session until stopped.

    Any number of brokers may serve one ledger, on PostgreSQL from several machines: each session is one broker's at a
    time. What a broker leaves unfinished, however it ends, another one goes on with.

    SIGTERM or Ctrl-C lets it finish the turns that run and begin no more; a second one leaves them to other brokers.

    One line says that it is ready.
    """
    call.ensure_owner("broker")
    with_broker(call, lambda access: _serve(call, access, capacity))


async def _serve(call: Call, access: BrokerAccess, capacity: int) -> None:
    from weft.ledger.api import Runs
    from weft.runtime.broker.broker import Broker

    crossing = access.mirror.crossing

    def note_error(name: str, error: Exception) -> None:
        call.note(Span(f"{name}: {error}", "warn"))

    prepare = partial(access.acting.background_jobs, note_error, partial(note_untold, call))
    jobs = await crossing.run(prepare)
    broker = Broker(
        access.ledger,
        crossing,
        access.planner,
        capacity=capacity,
        is_streamed=True,
        background=jobs,
        on_left=partial(note_error, "turns"),
    )
    waiting = await crossing.run(Runs(access.ledger).waiting)
    approvals = await crossing.run(lambda: access.ledger.approvals.list(limit=LISTED_APPROVALS))
    serving = asyncio.ensure_future(broker.serve())
    stop = _Stop(call, broker, serving)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.signalled)
    try:
        _show_ready(call, access, capacity, len(waiting))
        if approvals:
            verb = "waits" if len(approvals) == 1 else "wait"
            call.note(f"{counted(len(approvals), 'tool call')} {verb} for a person: `weft approvals` lists what waits")
        with suppress(asyncio.CancelledError):  # a second signal
            await serving
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    call.note("stopped")


class _Stop:
    """What signals do: the first one drains the broker, the second one ends it."""

    def __init__(self, call: Call, broker: Broker, serving: asyncio.Future[None]) -> None:
        self._call, self._broker, self._serving = call, broker, serving
        self._is_draining = False

    def signalled(self) -> None:
        if self._is_draining:
            self._serving.cancel()
            return
        self._is_draining = True
        self._broker.drain()
        self._call.note("finishing the turns that run; once more leaves them to other brokers")


def _show_ready(call: Call, access: BrokerAccess, capacity: int, waiting: int) -> None:
    ready = BrokerReady(ready=True, pid=os.getpid(), replica=access.ledger.replica, capacity=capacity, waiting=waiting)
    call.answer(ready, [f"ready: process {ready.pid}, {_waiting(waiting)}"])
    sys.stdout.flush()


def _waiting(sessions: int) -> str:
    return "nothing waits" if not sessions else f"{counted(sessions, 'session')} to serve"


# --- `weft retry`: a failed turn is tried again.

ARGUMENT_CHARACTERS = 80


@weft_command("retry")
@arguments.rev("turn")
@click.option(
    "--afresh", is_flag=True, help="Start where the failed turn started, without its results: its effects repeat."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before effects are repeated.")
@click.option("--no-wait", is_flag=True, help="Leave it in the inbox; a broker answers it.")
@arguments.key_option
def retry_command(call: Call, turn: str, afresh: bool, yes: bool, no_wait: bool, key: str | None) -> None:
    """Try a failed turn again.

    What it was asked is sent once more, and answered by a child of the failed turn: the model sees what its tools gave.
    With --afresh the new turn begins where the failed one began; the tool calls that it may repeat are listed first.
    Where something else was said since, it goes on in a fork.
    """
    with call.reading() as ledger:
        failed = ledger.turn(turn)
        calls = _calls_that_ran(ledger, failed.id) if afresh and failed.status == "failed" else []
    if calls:
        _confirm(call, calls, yes)
    deliver(call, lambda ledger: ledger.inbox.retry(failed.id, afresh=afresh, key=key), is_awaited=not no_wait)


def _calls_that_ran(ledger: Ledger, turn: str) -> list[ToolCall]:
    """The tool calls that ran, or may have run."""
    return [call for call in ledger.tool_calls(turn) if call.status != "denied"]


def _confirm(call: Call, calls: list[ToolCall], yes: bool) -> None:
    for tool_call in calls:
        arguments_text = str(tool_call.arguments)[:ARGUMENT_CHARACTERS]
        call.note(Span(f"{tool_call.name} ", "tool"), f"{arguments_text}  ", Span(tool_call.status, "dim"))
    if yes:
        return
    if not is_person_there(call):
        raise NobodyToAsk(f"{counted(len(calls), 'tool call')} may run again", "--yes does so without asking")
    ask(f"run {counted(len(calls), 'tool call')} again?")
