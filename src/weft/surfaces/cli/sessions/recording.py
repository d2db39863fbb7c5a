"""What people record by hand: `weft record`, from JSON that is read strictly or from
options, `compact`, with the compactions of a thread side by side, and `substitute`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import is_ulid
from weft.kernel.contents import decode_utf8
from weft.kernel.enums import CompactionTrigger, MessageRole
from weft.kernel.errors import InvalidInput, InvalidJson, quoted
from weft.kernel.events import Receipt
from weft.ledger.arguments import as_messages
from weft.ledger.dialects import split_turns
from weft.ledger.model import NewError, RecordedTurn
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import STANDARD, key_option, read_input, read_named_file
from weft.surfaces.cli.command_line import Call, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import complete_programs, with_invocations
from weft.surfaces.cli.progress import dollar_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.trust import ensure_own_session
from weft.surfaces.cli.turn_lists import short

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.assembly.compaction import ComparedCompaction


# --- `weft record`: one turn, durable when the command returns.

SHORTEST_NAME = 6
DEFAULT_SESSION = "main"
NO_TURN = "no turn was given: pipe it as JSON, name a FILE, or use --query and --response"


@weft_command("record")
@click.argument("file", required=False, type=click.Path())
@arguments.session_option("The session to record in; made if it does not exist. Default: main.")
@click.option("--query", metavar="TEXT", help="Text of the prompt.")
@click.option("--response", metavar="TEXT", help="Text of the response.")
@click.option("--model", metavar="NAME", help="Model that answered.")
@key_option
def record_command(call: Call, file: str | None, **options: str | None) -> None:
    """Record a turn, from JSON or from options.

    The turn is a JSON object with the fields of `Ledger.record_turn` (session, query, response, model, usage,
    tool_calls and more), read from FILE or from standard input. Messages, tool calls and usage of OpenAI's and
    Anthropic's APIs are taken as they come; a conversation in `messages` (what `weft export --format openai` and
    `--format anthropic` write) becomes a turn for each prompt, all or none. With --query or --response nothing is read
    unless FILE is given. Options win over the object's fields. With --key the same turn is recorded once, for 30 days;
    another turn with that key is refused.

    Its other fields are provider, system, params, tools_spec, finish_reason, error (a failed turn), parent, expected,
    agent (or persona), role, reason, toolset, tools_available, permissions_granted, permissions_used, thinking_config,
    effective_config, workspace, source_event_id, wait, key and messages. With messages, system, parent and expected are
    said of the first turn, usage and how it ended of the last. With --key, parent and expected are whole ids. When the
    command returns, the turn is durable. docs/python.md#record-what-an-api-answered shows what is taken as it comes.
    """
    turn = _turn_fields(file, {name: value for name, value in options.items() if value is not None})
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
        call.answer(recorded, *_recorded_lines(recorded, recorded.receipt))


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


def _turn_fields(file: str | None, options: dict[str, str]) -> dict[str, Any]:
    is_in_options = file is None and ("query" in options or "response" in options)
    if is_in_options:
        return {**options}
    data = read_input(file, NO_TURN)
    if file in (None, STANDARD) and not data.strip():
        raise click.UsageError(NO_TURN)
    return {**read_turn(data).given(), **options}


def _recorded_lines(recorded: RecordedTurn, receipt: Receipt) -> list[Line]:
    where = (
        f"{recorded.session} at depth {recorded.depth}" if recorded.session else f"no session, depth {recorded.depth}"
    )
    return [
        [Span("turn     ", "dim"), Span(recorded.id, "id")],
        [Span("session  ", "dim"), where],
        [Span("digest   ", "dim"), recorded.digest],
        [Span("receipt  ", "dim"), f"{receipt.replica} {receipt.n} {receipt.log}"],
    ]


# --- A turn as JSON: the fields of `Ledger.record_turn`, or the messages of a conversation; read strictly.


class TurnInput(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said about a turn. A field that is not given is not passed on."""

    session: str | UnsetType | None = UNSET
    parent: str | UnsetType | None = UNSET
    expected: str | UnsetType | None = UNSET
    query: Any = UNSET
    response: Any = UNSET
    system: Any = UNSET
    messages: Any = UNSET
    model: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    params: Any = UNSET
    usage: Any = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    tools_spec: Any = UNSET
    finish_reason: str | UnsetType | None = UNSET
    error: str | NewError | UnsetType | None = UNSET
    permissions_granted: Any = UNSET
    permissions_used: Any = UNSET
    agent: str | UnsetType = UNSET
    persona: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reason: str | UnsetType | None = UNSET
    toolset: str | UnsetType | None = UNSET
    tools_available: list[str] | UnsetType | None = UNSET
    thinking_config: Any = UNSET
    effective_config: Any = UNSET
    workspace: str | UnsetType | None = UNSET
    source_event_id: str | UnsetType | None = UNSET
    wait: float | UnsetType = UNSET
    key: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not UNSET}


def read_turn(data: bytes) -> TurnInput:
    """One JSON object, or a list of messages. Duplicate keys, NaN and bytes that are not UTF-8 are refused, as they
    have no single meaning."""
    value = strict_json(data, "the turn")
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {"messages": value}
    try:
        return msgspec.convert(value, TurnInput)
    except msgspec.ValidationError as error:
        from difflib import get_close_matches

        fields = TurnInput.__struct_fields__
        unknown = next((name for name in value if name not in fields), None) if isinstance(value, dict) else None
        if unknown is not None and (near := get_close_matches(unknown, fields, 1)):
            raise InvalidInput(f"a turn has no field {quoted(unknown)}", f"did you mean {near[0]!r}?") from error
        raise InvalidInput(
            f"the turn: {error}", f"a turn is a JSON object with some of: {', '.join(fields)}"
        ) from error


_OF_THE_FIRST = frozenset({"system", "parent", "expected"})
_OF_THE_LAST = frozenset({"usage", "finish_reason", "error", "tool_calls", "permissions_used", "source_event_id"})


def turns_in(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns to record: one, or those of the conversation that `messages` hold, one for each prompt. Where a turn
    goes is said of the first, how it ended of the last, and the rest of all of them."""
    if "messages" not in fields:
        return [fields]
    if both := sorted({"query", "response"} & fields.keys()):
        raise InvalidInput(f"messages and {both[0]} are both given", "give one of them")
    turns = split_turns(as_messages(fields["messages"], MessageRole.USER, "messages"))
    if not turns:
        raise InvalidInput("messages is empty", "give at least one message")
    shared = {name: value for name, value in fields.items() if name not in {"messages", *_OF_THE_FIRST, *_OF_THE_LAST}}
    dicts = [{**shared, "query": turn.query, "response": turn.response} for turn in turns]
    dicts[0] |= {name: fields[name] for name in _OF_THE_FIRST & fields.keys()}
    dicts[-1] |= {name: fields[name] for name in _OF_THE_LAST & fields.keys()}
    for number, turn in enumerate(dicts[:-1] if fields.get("key") is not None else (), 1):
        turn["key"] = f"{fields['key']}#{number}"
    return dicts


def strict_json(data: bytes, what: str) -> Any:
    text = decode_utf8(data, what)
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidJson(error.msg, len(text[: error.pos].encode("utf-8", "surrogatepass"))) from error
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply", "flatten it, or record the inner part as text") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{what}: {error}") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidJson(f"the key {twice!r} stands twice in one object")
    return value


def _no_constant(name: str) -> Any:
    raise InvalidJson(f"{name} has no JSON form")


# --- `weft compact`: a summary that stands for a session's past.


@weft_command("compact")
@arguments.session(default="main")
@click.option("--summary", metavar="TEXT", help="The summary; else it is read from standard input.")
@click.option("--through", metavar="REV", help="The last turn that the summary stands for. Default: the head.")
@click.option("--first-kept", metavar="REV", help="The first turn that stays in the context in full.")
@click.option("--strategy", metavar="NAME", help="Have it made: summary, sliding_window, selective, or a package's.")
@click.option("--focus", metavar="TEXT", help="Have it made with a model: what its summary must tell above all.")
@click.option("--keep", metavar="N", type=click.IntRange(min=0), help="Have it made: the last N turns are kept.")
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=complete_programs("model"),
    help="The model that writes the summary; beside a summary of your own, who wrote it.",
)
@click.option("--list", "listed", is_flag=True, help="Show the compactions of the thread side by side.")
@click.option("--use", metavar="REV", help="Switch to this compaction of the thread instead of recording one.")
@click.option("--undo", "back", is_flag=True, help="Switch to no compaction: the whole history is seen again.")
def compact_command(
    call: Call,
    session: str,
    summary: str | None,
    through: str | None,
    first_kept: str | None,
    strategy: str | None,
    focus: str | None,
    keep: int | None,
    model: str | None,
    listed: bool,
    use: str | None,
    back: bool,
) -> None:
    """Summarise a session's past, or switch between summaries.

    A compaction is a turn of its own: nothing is lost, the next turns see the summary instead of what lies before it.
    With --strategy, --focus or --keep it is made here, by the session's model or --model; else the summary is yours.

    docs/branches.md#context-and-compaction has the details.
    """
    by_hand = summary is not None or through is not None or first_kept is not None
    is_made = strategy is not None or focus is not None or keep is not None
    if [by_hand or is_made, listed, use is not None, back].count(True) > 1:
        raise click.UsageError("--list, --use and --undo stand alone")
    if by_hand and is_made:
        raise click.UsageError("--summary, --through and --first-kept are for a summary of your own")
    if listed:
        show_compactions(call, session)
    elif use is not None or back:
        with call.writing() as ledger:
            _choose(call, ledger, session, use)
    elif is_made:
        make_compaction(call, session, strategy, focus, keep, model)
    else:
        _record(call, session, _text(summary), through, first_kept, model)


def _record(
    call: Call, session: str, text: str, through: str | None, first_kept: str | None, model: str | None
) -> None:
    with call.writing() as ledger:
        compaction = ledger.compactions.record(
            summary=text,
            session=ledger.session(session).label,
            model=model or "unknown",
            through=None if through is None else ledger.resolve(through),
            first_kept=None if first_kept is None else ledger.resolve(first_kept),
            trigger=CompactionTrigger.MANUAL,
        )
    call.answer(compaction, [Span(str(compaction.session), "label"), " compacted by turn ", Span(compaction.id, "id")])
    call.note(undo("compact", str(compaction.session), "--undo"))


def make_compaction(
    call: Call,
    session: str,
    strategy: str | None,
    focus: str | None = None,
    keep: int | None = None,
    model: str | None = None,
    *,
    has_default_model: bool = False,
) -> None:
    """Have a compaction made and say what it took. With `has_default_model` the model that `weft chat` would choose
    writes the summary where the session has none."""
    from weft.runtime.invoke.handlers import compact_session

    with call.reading() as ledger:
        opened = ledger.session(session)
    compaction = with_invocations(
        call,
        call.actor,
        lambda shop: compact_session(shop, opened.id, strategy=strategy, model=model, focus=focus, keep=keep),
        has_default_model=has_default_model,
    )
    figures = f", {compaction.tokens_before:,} tokens before, {compaction.tokens_after:,} after"
    call.answer(
        compaction, [Span(opened.label, "label"), " compacted by turn ", Span(compaction.turn_id, "id"), figures]
    )
    if isinstance(compaction.metadata, dict) and "fallback" in compaction.metadata:
        call.note(f"the model failed, so the summary is an extract: {compaction.metadata['fallback']['reason']}")
    call.note(undo("compact", opened.label, "--undo"))


def _choose(call: Call, ledger: Ledger, session: str, use: str | None) -> None:
    chosen = None if use is None else ledger.resolve(use)
    ledger.compactions.choose(session, chosen)
    opened = ledger.session(session)
    context = " sees its whole history" if chosen is None else f" goes by compaction {short(chosen)}"
    call.answer(opened, [Span(opened.label, "label"), context])


def _text(summary: str | None) -> str:
    if summary is None:
        data = read_input(None, "no summary was given: pipe it in, use --summary, or have one made with --strategy")
        summary = decode_utf8(data, "the summary")
    if not summary.strip():
        raise InvalidInput("the summary is empty", "say what the agent must still know: --summary TEXT, or pipe it in")
    return summary


# --- The compactions of a thread side by side: a column for each, a row for each figure.

MOST_COLUMNS, MOST_TERMS = 5, 8


def show_compactions(call: Call, session: str) -> None:
    from weft.ledger.api import shipped_prices
    from weft.runtime.assembly.compaction import compare_compactions

    with call.reading() as ledger:
        compared = compare_compactions(ledger, ledger.session(session).label, shipped_prices())
    if call.json:
        call.documents(compared)
        return
    if not compared:
        call.note("there is no compaction on this thread; `weft compact --strategy summary` makes one")
        return
    newest = compared[-MOST_COLUMNS:]
    if len(newest) < len(compared):
        call.note(f"the newest {len(newest)} of {len(compared)}; --json tells all of them")
    call.screen.table(_rows(newest), ["", *(short(column.compaction.turn_id) for column in newest)])
    for column in newest:
        for words, terms in (("kept", column.survived), ("lost", column.lost)):
            call.screen.show(*_term_line(column, words, terms))


def _rows(compared: Sequence[ComparedCompaction]) -> list[list[Span | str]]:
    rows: list[list[Span | str]] = []
    for title, cells in (
        ("turn", [Span(short(column.compaction.turn_id), "id") for column in compared]),
        ("in effect", [Span("yes", "good") if column.in_effect else "" for column in compared]),
        ("strategy", [column.strategy + (", extract" if column.is_extract else "") for column in compared]),
        ("trigger", [column.compaction.trigger or "" for column in compared]),
        ("model", [column.compaction.model for column in compared]),
        ("turns summarised", [_count(column.compaction.turns_summarized) for column in compared]),
        ("turns kept", [_count(column.kept_turns) for column in compared]),
        ("terms kept", [f"{len(column.survived)} of {len(column.survived) + len(column.lost)}" for column in compared]),
        ("tokens before", [_count(column.compaction.tokens_before) for column in compared]),
        ("tokens after", [_count(column.compaction.tokens_after) for column in compared]),
        ("summary tokens", [_count(column.compaction.summary_tokens) for column in compared]),
        ("tokens sent", [_count(column.compaction.summarization_input_tokens) for column in compared]),
        ("tokens received", [_count(column.compaction.summarization_output_tokens) for column in compared]),
        ("cost", ["?" if column.cost_micro_usd is None else dollar_text(column.cost_micro_usd) for column in compared]),
        ("took", [_seconds(column.compaction.duration_ms) for column in compared]),
    ):
        rows.append([Span(title, "dim"), *cells])
    return rows


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _seconds(ms: int | None) -> str:
    return "?" if ms is None else f"{ms / 1000:,.1f} s"


def _term_line(compared: ComparedCompaction, words: str, terms: Sequence[str]) -> Line:
    more = f" and {len(terms) - MOST_TERMS} more" if len(terms) > MOST_TERMS else ""
    listed = ", ".join(terms[:MOST_TERMS]) if terms else "nothing"
    return [Span(short(compared.compaction.turn_id), "id"), Span(f" {words}: ", "dim"), listed, more]


# --- `weft substitute`: a message or a tool's result is shown with other words.

DIGITS = 12


@weft_command("substitute")
@arguments.rev("event")
@click.option("--with", "words", metavar="TEXT|@FILE|-", help="What is shown instead; - is standard input.")
@click.option("--with-event", metavar="EVENT", help="Show what another event of the same kind says.")
@click.option("--undo", is_flag=True, help="Show what was recorded again.")
@click.option("--reason", metavar="TEXT", help="Why; it stands beside the words.")
def substitute_command(
    call: Call, event: str, words: str | None, with_event: str | None, undo: bool, reason: str | None
) -> None:
    """Substitute what is shown of a message or a tool's result.

    EVENT is the beginning of an event's id, the id of a message or of a tool call, or a turn, for its answer. From now
    on contexts, exports, search and `weft show` have the other words, marked as such, and the next request of a session
    sends them. What was recorded stays: the turn keeps its digest, and --original of show, context and export shows it.

    `weft show --json` tells the ids. Requests that were made before still tell what they were sent. The last
    substitution of an event counts. What another ledger substituted counts for its own turns; for others, --with-event
    takes it over.

    \b
    weft substitute main --with "It is 42." --reason "the answer was off by one"
    weft substitute 3f9c2ab --with @corrected.md
    weft substitute main --undo
    """
    if sum((words is not None, with_event is not None, undo)) != 1:
        raise click.UsageError("say what is shown instead: one of --with, --with-event and --undo")
    text = None if words is None else _words(words)
    with call.writing() as ledger:
        if text is not None:
            note = ledger.substitute(event, text, reason=reason)
        else:
            note = ledger.substitute(event, with_event=event if undo else with_event, reason=reason)
    original, replacement = (Span(id[:DIGITS], "id") for id in (note.original, note.replacement))
    line: Line = ["event ", original, " is shown as ", replacement]
    call.answer(
        note, line if note.replacement != note.original else ["event ", original, " is shown as it was recorded"]
    )


def _words(words: str) -> str:
    if words == STANDARD:
        data = read_input(None, "--with - reads standard input: pipe the words in")
    elif words.startswith("@"):
        data = read_named_file(words[1:])
    else:
        return words
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"what {words} gives is not UTF-8") from None
