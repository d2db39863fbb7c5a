"""`weft send`: a message to a session, an agent or a turn, and its answer; `weft retry`, which sends again what a
failed turn was asked; `weft broker`, which answers the messages of every session until it is stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.command_line import Call, NobodyToAsk, ask, is_person_there
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import complete_programs, ensure_toolset, message_text, override_options
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.work.broker_call import BrokerAccess, deliver, note_untold, with_broker
from weft.surfaces.plain_text import safe
from weft.verbs.answers import BrokerReady

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Ledger
    from weft.ledger.model import ToolCall
    from weft.runtime.broker.broker import Broker


# --- `weft send`: a message to a session, an agent or a turn.

DEFAULT_SESSION = "main"
MODES = ("followup", "collect", "interrupt", "steer")


@weft_command("send")
@click.argument("text")
@arguments.session_option("To this session, made if there is none. Default: main.")
@click.option(
    "--agent",
    "persona",
    cls=arguments.RenamedOption,
    old=("--persona",),
    metavar="AGENT",
    shell_complete=complete_programs("agent"),
    help="To this agent: where it works, else its main session.",
)
@click.option("--thread", metavar="REV", shell_complete=complete_labels, help="After this turn, in a fork if need be.")
@click.option("--smart", is_flag=True, help="To the thread that the text belongs to; else to --session.")
@click.option("--no-wait", is_flag=True, help="Leave it in the inbox; a broker answers it.")
@click.option(
    "--queue", type=click.Choice(MODES), default="followup", help="How it waits where a turn runs. Default: followup."
)
@click.option("--priority", metavar="N", type=int, default=0, help="Higher ones are answered first. Default: 0.")
@override_options
@click.option("--attach", metavar="FILE", type=click.Path(), multiple=True, help="A text file or an image.")
@click.option(
    "--in",
    "workspace",
    cls=arguments.RenamedOption,
    old=("--workspace",),
    metavar="DIR",
    type=click.Path(),
    help="Sent from there. Default: as the session is configured; else its copy by a fork; else as the turn before;"
    " else here, if trusted.",
)
@arguments.key_option
def send_command(
    call: Call,
    text: str,
    session: str | None,
    persona: str | None,
    thread: str | None,
    smart: bool,
    no_wait: bool,
    queue: str,
    priority: int,
    attach: tuple[str, ...],
    workspace: str | None,
    key: str | None,
    **options: Any,
) -> None:
    """Send a message to a session, an agent or a turn; show the answer.

    TEXT is read from standard input where it is -. It is written to an inbox before anything is asked: if this process
    dies, any broker goes on. With --session and --agent a session is made for that agent.

    Exit codes: 0 answered; 8 the turn failed outside, such as at the model; 4 it was refused, a denied tool call ended
    it, or somebody else cut it short; 130 Ctrl-C. While a person is asked it waits. `weft help exit-codes` has all.

    Without a target it goes to the session main. On a terminal the answer is shown as it comes. Who answers is what
    `weft config` shows; where no layer names a model, the one that answered last in the session, or one whose key is
    here. Without any the message fails, and the error names the commands that give it one: the embedded model answers
    only where it is named. A line tells what comes before the message in its session, and requests to people that wait
    there are shown. docs/agents.md#the-way-of-a-message tells the way of a message.

    With --no-wait, 0 says that it waits. A failed turn stands in the log with its error; the last line on standard
    error, again of the error under --json, is the command that tries it once more: `weft retry TURN`. After Ctrl-C a
    message that no turn had yet was taken back, else its turn was cut short; a line says which, and which commands go
    on. While a person is asked a line on standard error, also under --quiet, names the tool call and the commands that
    answer it. `weft retry` and `weft inbox --again` end likewise.

    \b
    weft send "What did we decide?"
    weft send --session plans --agent ada "Begin" --no-wait
    weft send --thread main~2 "What if we had not?"
    """
    from weft.surfaces.cli.trust import workspace_of
    from weft.surfaces.cli.work.broker_call import message_with

    if (thread and (session or smart)) or (smart and persona):
        raise click.UsageError("name one target: --session, --agent, --thread or --smart")
    words = _words_of(text)
    overrides = _overrides(options)
    folder = None if workspace is None else workspace_of(workspace)
    route = _smart_route(call, words, session) if smart else None
    target = _target(session, thread, route, has_persona=persona is not None)

    def admit(ledger: Ledger) -> Admission:
        ensure_toolset(ledger, options["toolset"])
        if target.is_default:
            from weft.surfaces.cli.trust import ensure_own_session

            ensure_own_session(ledger, DEFAULT_SESSION, "name it to continue it: --session main")
        place = _folder_for(call, ledger, target, persona, folder)
        _offer_folder(call, ledger, target.session, place)
        admission = ledger.inbox.admit(
            message_with(words, attach, place),
            persona=persona,
            mode=queue,
            priority=priority,
            overrides=overrides,
            route=route,
            key=key,
            session=target.session,
            turn=target.turn,
        )
        _note_where_it_works(call, ledger, admission, None if target.session or target.turn else persona)
        return admission

    deliver(call, admit, is_awaited=not no_wait, route=route, names_session=session is not None)


def _folder_for(call: Call, ledger: Ledger, target: _Target, persona: str | None, named: str | None) -> str | None:
    """The folder that the message is sent from; where it is another one than before, a line says so."""
    from weft.ledger.api import Runs
    from weft.surfaces.cli.trust import note_other_folder, workspace_for

    label = target.session or (None if persona is None or target.turn else Runs(ledger).session_of_agent(persona))
    if named is None:
        return workspace_for(ledger, label, target.turn, call.note)
    note_other_folder(ledger, label, target.turn, named, call.note)
    return named


def _note_where_it_works(call: Call, ledger: Ledger, admission: Admission, agent: str | None) -> None:
    """Where a message to an agent went to the session of its task, say so, and how its main session is reached."""
    session = None if agent is None else ledger.session(admission.session_id)
    if agent is None or session is None or session.task_description is None:
        return
    main = shell_word(f"{agent}:main")
    call.note(
        "in session ", Span(session.label, "label"), f": {agent} works there; `--session {main}` is its main session"
    )


def _words_of(text: str) -> str:
    from weft.kernel.errors import InvalidInput

    words = message_text(text) or ""
    if not words.strip():
        raise InvalidInput("the message is empty", "give a text, or pipe one in with -")
    return words


def _offer_folder(call: Call, ledger: Ledger, session: str | None, folder: str | None) -> None:
    """Where the rules of the folder changed, ask about them. Where a fork kept it with the other branch, ask whether it
    is to be migrated: else agents of this session change nothing in it."""
    if not is_person_there(call):  # nobody can be asked: what asks is not loaded either
        return
    from weft.surfaces.cli.trust import turn_folder
    from weft.surfaces.cli.trust_commands import ask_about_rules

    ask_about_rules(call, folder or turn_folder(ledger, session))
    if session is None or folder is None:
        return
    from weft.kernel.errors import NotFound
    from weft.ledger.api import ResourceLog
    from weft.surfaces.cli.trust import is_granted

    try:
        resources = ResourceLog(ledger).kept_from(session)
    except NotFound:
        return  # a session that begins with the message
    for resource in resources:
        owner = "" if resource.owner is None else resource.owner.name or resource.owner.id
        question = f"a fork kept {safe(resource.place)} with {safe(owner)}: migrate it to {safe(session)}?"
        if resource.place == os.path.realpath(folder) and is_granted(question):
            ledger.resources.migrate(resource.id, session=session)


def _overrides(options: dict[str, Any]) -> dict[str, Any] | None:
    """What stands with the message of these options. Where none is given, nothing is loaded that knows them."""
    if not any(options.values()):
        return None
    from weft.runtime.assembly.configuration_layers import parse_overrides

    return parse_overrides(**options).record()


class _Target(Struct, frozen=True):
    """Where the message goes; neither of them where an agent is named."""

    session: str | None = None
    turn: str | None = None
    is_default: bool = False


def _target(session: str | None, thread: str | None, route: dict[str, Any] | None, *, has_persona: bool) -> _Target:
    if route is not None:
        smart = route["smart"]
        label = smart["session"] or (smart["fallback"] if smart["turn"] is None else None)
        return _Target(session=label) if label else _Target(turn=smart["turn"])
    if session is None and thread is None and not has_persona:
        return _Target(DEFAULT_SESSION, is_default=True)
    return _Target(session, thread)


def _smart_route(call: Call, text: str, fallback: str | None) -> dict[str, Any]:
    """The choice as it stands with the message. Raises NotApplicable where no thread is sure enough."""
    from weft.kernel.clock import SystemClock
    from weft.kernel.errors import NotApplicable
    from weft.runtime.invoke.message_routes import choose_route
    from weft.surfaces.cli.reading.search import nearest_turns
    from weft.surfaces.wire.forms import form

    with call.reading() as ledger:
        cosines = nearest_turns(call, ledger, text)
        related = ledger.related_turns(text, also=tuple(cosines))
        choice = choose_route(related, cosines, now_ms=SystemClock().now_ms(), fallback=fallback)
    if choice.turn is None and choice.fallback is None:
        raise NotApplicable(
            f"no thread is sure enough: {'; '.join(choice.reasons)}", "name one: --session SESSION, or --thread REV"
        )
    where = choice.fallback if choice.turn is None else choice.session or f"a fork at {choice.turn}"
    call.note(f"to {where}, confidence {choice.confidence:.2f}: {'; '.join(choice.reasons)}")
    return {"smart": form(choice)}


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

    crossing, broker = access.mirror.crossing, await full_broker(call, access, capacity)
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


async def full_broker(call: Call, access: BrokerAccess, capacity: int) -> Broker:
    """A broker of every session, with all that it does beside answering."""
    from weft.runtime.broker.broker import Broker

    def note_error(name: str, error: Exception) -> None:
        call.note(Span(f"{name}: {error}", "warn"))

    prepare = partial(access.acting.background_jobs, note_error, partial(note_untold, call))
    return Broker(
        access.ledger,
        access.mirror.crossing,
        access.planner,
        capacity=capacity,
        is_streamed=True,
        background=await access.mirror.crossing.run(prepare),
        on_left=partial(note_error, "turns"),
    )


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
