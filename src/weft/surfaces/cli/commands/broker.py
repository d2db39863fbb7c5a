"""`weft broker`: a process that answers messages until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.broker_call import BrokerAccess, with_broker
from weft.surfaces.cli.broker_jobs import background_jobs
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.wire.broker import BrokerReady

if TYPE_CHECKING:
    from weft.runtime.broker.broker import Broker

CAPACITY_TURNS = 64
LISTED_APPROVALS = 10_000


@weft_command("broker")
@click.option(
    "--capacity",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=CAPACITY_TURNS,
    help=f"So many turns at a time ({CAPACITY_TURNS} by default).",
)
def command(call: Call, capacity: int) -> None:
    """Serve the messages of every session until stopped.

    Any number of brokers may serve one ledger, on PostgreSQL from several machines: each session is one broker's at a
    time. What a broker leaves unfinished, however it ends, another one goes on with.

    SIGTERM or Ctrl-C lets it finish the turns that run and begin no more; a second one leaves them to other brokers.
    """
    call.ensure_owner("broker")
    with_broker(call, lambda access: _serve(call, access, capacity))


async def _serve(call: Call, access: BrokerAccess, capacity: int) -> None:
    from weft.ledger.api import Runs
    from weft.runtime.broker.broker import Broker

    crossing = access.mirror.crossing
    jobs = background_jobs(call, access)
    broker = Broker(access.ledger, crossing, access.planner, capacity=capacity, is_streamed=True, background=jobs)
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
