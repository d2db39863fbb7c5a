"""`weft record`: one turn, durable when the command returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.kernel.clock import is_ulid
from weft.kernel.errors import InvalidInput
from weft.kernel.events import Receipt
from weft.ledger.model import RecordedTurn
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import STANDARD, key_option, read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import ensure_own_session
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_input import read_turn, turns_in

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

SHORTEST_NAME = 6
DEFAULT_SESSION = "main"
NO_TURN = "no turn was given: pipe it as JSON, name a FILE, or use --query and --response"


@weft_command("record")
@click.argument("file", required=False, type=click.Path())
@arguments.session_option("The session to record in; made if it does not exist. Default: main.")
@click.option("--query", metavar="TEXT", help="What was asked.")
@click.option("--response", metavar="TEXT", help="What was answered.")
@click.option("--model", metavar="NAME", help="Who answered.")
@key_option
def command(call: Call, file: str | None, **options: str | None) -> None:
    """Record a turn, from JSON or from options.

    The turn is a JSON object with the fields of `Ledger.record_turn` (session, query, response, model, usage,
    tool_calls and more), read from FILE or from standard input. Messages, tool calls and usage of OpenAI's and
    Anthropic's APIs are taken as they come; a conversation in `messages` (what `weft export --as openai` and `--as
    anthropic` write) becomes a turn for each prompt, all or none. With --query or --response nothing is read unless
    FILE is given. Options win over the object's fields. With --key the same turn is recorded once, for 30 days; another
    turn with that key is refused.
    """
    turn = _fields(file, {name: value for name, value in options.items() if value is not None})
    is_default = not {"session", "parent"} & turn.keys()
    with call.writing() as ledger:
        if is_default:
            ensure_own_session(ledger, DEFAULT_SESSION, "name it, or another one, with --session")
            turn["session"] = DEFAULT_SESSION
        for pin in ("parent", "expected"):
            if isinstance(turn.get(pin), str):
                turn[pin] = _resolved(ledger, pin, turn[pin], turn.get("key"))
        patience = {"wait": turn.pop("wait")} if "wait" in turn else {}
        turns = ledger.record_turns(turns_in(turn), **patience)
        recorded = turns[-1]
        if len(turns) > 1 and not call.quiet:
            call.note(f"{len(turns)} turns were recorded, one for each prompt")
        if recorded.session and turns[0].depth == 1:
            _warn_of_a_short_name(call, ledger, recorded.session)
    if call.quiet and not call.json:
        call.screen.show(recorded.id)
    else:
        call.answer(recorded, *_lines(recorded, recorded.receipt))


def _resolved(ledger: Ledger, pin: str, name: str, key: str | None) -> str:
    """A turn's id. With a retry key the name is one already: any other may mean another turn when it is sent again."""
    if key is not None and not is_ulid(name):
        raise InvalidInput(f"{pin} is {name!r:.80}, with a retry key", "name the turn by its whole id")
    return ledger.resolve(name)


def _warn_of_a_short_name(call: Call, ledger: Ledger, label: str) -> None:
    """Elsewhere the beginning of a label names a session; here it has just made another one."""
    if call.quiet or call.json or len(label) < SHORTEST_NAME:
        return
    longer = [session.label for session in ledger.sessions() if session.label.startswith(label)]
    if other := next((longer_label for longer_label in sorted(longer) if longer_label != label), None):
        call.note(f"{label} is a session of its own; to record in {other}, give its whole label")


def _fields(file: str | None, options: dict[str, str]) -> dict[str, Any]:
    is_in_options = file is None and ("query" in options or "response" in options)
    if is_in_options:
        return {**options}
    data = read_input(file, NO_TURN)
    if file in (None, STANDARD) and not data.strip():
        raise click.UsageError(NO_TURN)
    return {**read_turn(data).given(), **options}


def _lines(recorded: RecordedTurn, receipt: Receipt) -> list[Line]:
    where = (
        f"{recorded.session} at depth {recorded.depth}" if recorded.session else f"no session, depth {recorded.depth}"
    )
    return [
        [Span("turn     ", "dim"), Span(recorded.id, "id")],
        [Span("session  ", "dim"), where],
        [Span("digest   ", "dim"), recorded.digest],
        [Span("receipt  ", "dim"), f"{receipt.replica} {receipt.n} {receipt.log}"],
    ]
