"""`weft show`: one turn with everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import UNSET

from weft.kernel.enums import CompactionTrigger
from weft.kernel.events import UnknownEvent
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.api import Provenance, StoredEvent
from weft.ledger.model import Compaction, FileNote, Message, ToolCall, Turn
from weft.ledger.read.session_list import in_one_line, meaningful_title
from weft.surfaces.cli import arguments, provisional
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest, require_named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.rendering.results import as_json
from weft.surfaces.cli.rendering.transcript import Transcript, in_order
from weft.surfaces.cli.screen import LEAST_ROOM, Line, Screen, Span
from weft.surfaces.cli.times import NO_TIME, local_time
from weft.surfaces.cli.turn_lines import decoration, flag
from weft.surfaces.plain_text import safe, safe_lines, wrapped, wrapped_line

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.imports import ProvisionalTurn
    from weft.surfaces.wire.sessions import ShownTurn

RULES = 8
NAME_COLUMNS = 9


@weft_command("show")
@arguments.rev(required=False)
@click.option("--full", is_flag=True, help="Fold nothing: whole results, arguments and thinking.")
@arguments.original_option
def command(call: Call, rev: str | None, full: bool, original: bool) -> None:
    """Show one turn: messages, tool calls, usage.

    Without REV it is where the latest session stands. Long results and thinking are folded to a few lines. Where REV is
    an event inside a turn, the turn is shown up to it. What another tool is still writing after it is shown below, as
    provisional.
    """
    with call.reading() as ledger:
        name = (require_named_or_latest if call.json else named_or_latest)(call, ledger, rev)
        if name is not None:
            show_turn(call, ledger.originals() if original else ledger, name, full)


def show_turn(call: Call, ledger: Ledger, rev: str, full: bool) -> None:
    """One turn of a ledger."""
    tails = provisional.tails_after(ledger, rev)
    if provisional.is_only_provisional(ledger, rev):
        _show_tails(call, tails, full)
        return
    point = ledger.point(rev)
    turn, events = ledger.turn(point.turn_id), ledger.events(point.turn_id)
    at = None if point.number is None else _At(point.number, len(events), events[point.number - 1])
    recorded = any(isinstance(recorded_event.event, CompactionRecorded) for recorded_event in events[: point.number])
    compaction = ledger.compactions.get(turn.id) if recorded else None
    items = in_order(ledger, point.event_id or turn.id)
    principals, merged = ledger.listing().on_behalf_of([turn.id]).get(turn.id, ()), ledger.merges.provenance(turn.id)
    if call.json:
        call.document(_turn_form(turn, at, items, compaction, merged, tails, principals))
        return
    models = sorted({item.model for item in items if isinstance(item, Message) and item.model})
    reader = Reader(ledger)
    folder = turn.workspace_path or ""
    project = ledger.listing().projects([folder])[folder]
    header = _Header(turn, at, reader, merged, models, principals, project)
    transcript = Transcript(
        full=full,
        columns=call.screen.columns,
        unicode=call.screen.unicode,
        workspace=turn.workspace_path,
        labels=reader.short_labels,
        wraps=call.screen.terminal,
    )
    files = noted_files(ledger, items)
    below = provisional.page(tails, full=full)
    call.screen.page([*header.lines(compaction, call.screen), *transcript.lines(items, files), *below])


def _show_tails(call: Call, tails: list[ProvisionalTurn], full: bool) -> None:
    """Of a session of which nothing has come to an end yet."""
    if call.json:
        from weft.surfaces.wire.sessions import UnfinishedTurn

        call.document(UnfinishedTurn(turn=tails[0]))
    else:
        call.screen.page(list(provisional.page(tails, full=full))[1:])


class _At(NamedTuple):
    """An event inside the turn that is shown: which one, and of how many."""

    number: int
    of: int
    found: StoredEvent

    @property
    def kind(self) -> str:
        event = self.found.event
        return event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)


def _turn_form(
    turn: Turn,
    at: _At | None,
    items: list[Message | ToolCall],
    compaction: Compaction | None,
    merged: list[Provenance],
    tails: list[ProvisionalTurn],
    principals: Sequence[str],
) -> ShownTurn:
    from weft.surfaces.wire.sessions import ShownEvent, ShownTurn, UnfinishedTurn

    return ShownTurn(
        turn=turn,
        event=at and ShownEvent(id=at.found.id, kind=at.kind, number=at.number, of=at.of),
        messages=[item for item in items if isinstance(item, Message)],
        tool_calls=[item for item in items if isinstance(item, ToolCall)],
        compaction=compaction,
        provenance=merged,
        provisional=[UnfinishedTurn(turn=tail) for tail in tails],
        on_behalf_of=principals or UNSET,
    )


class _Header:
    """What stands above a turn's messages."""

    def __init__(
        self,
        turn: Turn,
        at: _At | None,
        reader: Reader,
        merged: list[Provenance],
        models: list[str],
        principals: tuple[str, ...],
        project: str,
    ) -> None:
        self._project = project
        self._turn, self._at, self._reader, self._merged, self._models = turn, at, reader, merged, models
        self._principals = principals
        self._session = reader.session(turn.session_id)

    def lines(self, compaction: Compaction | None, screen: Screen) -> Iterator[Line]:
        turn = self._turn
        yield [Span(f"turn {turn.id}", "id"), *decoration(self._reader.places(turn.id)), *flag(turn)]
        if (at := self._at) is not None:
            yield [Span("Event:   ", "dim"), f"{at.found.id}, {at.kind}, {at.number} of {at.of}; the turn up to it"]
        for name, value in (*self._facts(), *merges(turn.id, self._merged)):
            if value:
                yield from _fact(name, Span(value), screen)
        if turn.error is not None:
            code = f"{turn.error_code}: " if turn.error_code not in (None, "error") else ""
            yield from _fact("Error", Span(code + turn.error, "bad"), screen)
        yield []
        if compaction is not None:
            yield from _summary(compaction, screen)

    def _facts(self) -> Iterator[tuple[str, str]]:
        turn, session = self._turn, self._session
        yield "Digest", turn.digest
        yield "Parent", turn.parent_id or "none: the root of its tree"
        yield "Session", f"{session.label if session else 'none'}, depth {turn.depth}"
        title = meaningful_title(session.title) if session else None
        yield "Title", title or ""
        yield "Task", in_one_line(session.task_description or "") if session and title is None else ""
        yield "Date", local_time(turn.started_at) if turn.time_known else NO_TIME
        yield "Agent", ", ".join(filter(None, (turn.persona_id, session.agent if session else None)))
        yield "For", " for ".join(self._principals)
        yield "Origin", " ".join(filter(None, (turn.origin, turn.version)))
        yield "Model", self._model()
        yield "Usage", _usage(turn)
        yield "Project", self._project if turn.origin else ""
        yield "Folder", turn.workspace_path or ""
        yield "Branch", turn.git_branch or ""
        yield "Allowed", permissions_text(turn.permissions_granted) if turn.origin else ""
        yield "Cut off", turn.interruption_reason or ""
        yield "Context", f"after compaction {short(turn.compaction_id)}" if turn.compaction_id else ""

    def _model(self) -> str:
        turn = self._turn
        named = " ".join(filter(None, (turn.model, turn.provider and f"({turn.provider})")))
        others = [model for model in self._models if model != turn.model]
        return ", ".join(filter(None, (named, *others)))


def merges(turn: str, merged: list[Provenance]) -> Iterator[tuple[str, str]]:
    """Where a turn was picked or summed up from, and where it went."""
    for source in merged:
        left = f", which left at {short(source.left_id)}" if source.left_id else ""
        if source.turn_id == turn:
            picked = source.why == "cherry_pick"
            yield (
                "From",
                f"turn {short(source.source_id)}" if picked else f"the branch to {short(source.source_id)}{left}",
            )
        else:
            yield "Into", f"turn {short(source.turn_id)}{'' if source.why == 'cherry_pick' else ', as a summary'}"


def permissions_text(granted: Any) -> str:
    """What the agent was allowed, in a few words where the origin has them."""
    if isinstance(granted, dict):
        words = [f"{name}{word}" for key, name in _MODES.items() if (word := _mode(granted.get(key)))]
        return ", ".join(words) or as_json(granted)
    if isinstance(granted, list) and all(isinstance(rule, dict) and "permission" in rule for rule in granted):
        rules = list(dict.fromkeys(f"{rule['permission']} {rule.get('action', '')}".strip() for rule in granted))
        return ", ".join([*rules[:RULES], *(["…"] if len(rules) > RULES else [])])
    return "" if granted is None else as_json(granted)


_MODES = {"mode": "", "approval_policy": "asks a person: ", "sandbox_policy": "sandbox: "}


def _mode(value: Any) -> str:
    word = value.get("type") or value.get("mode") if isinstance(value, dict) else value
    return word if isinstance(word, str) else ""


def noted_files(ledger: Ledger, items: list[Message | ToolCall]) -> dict[str, list[FileNote]]:
    """The files of each message that no call of the turn tells of by itself."""
    called_with = " ".join(as_json(item.arguments) for item in items if isinstance(item, ToolCall))
    notes = ledger.listing().files([item.id for item in items if isinstance(item, Message)])
    return {message: [file for file in files if file.path not in called_with] for message, files in notes.items()}


_USAGE = {
    "input": "input",
    "cached_input": "cache read",
    "cache_write": "cache write",
    "cache_write_1h": "of these for an hour",
    "output": "output",
    "reasoning": "of these reasoning",
    "total": "total",
}


def _usage(turn: Turn) -> str:
    """Parts of another part stand behind it."""
    counts = [(words, getattr(turn.usage, f"{name}_tokens")) for name, words in _USAGE.items()]
    return ", ".join(f"{words} {count:,}" for words, count in counts if count not in (UNSET, None))


TRIGGERS: dict[str | None, str] = {
    CompactionTrigger.CONTEXT_LIMIT: "when the context was nearly full",
    CompactionTrigger.MANUAL: "by hand",
    CompactionTrigger.PERIODIC: "on schedule",
    CompactionTrigger.OVERFLOW_RECOVERY: "after the context was too long",
}


def _fact(name: str, value: Span, screen: Screen) -> Iterator[Line]:
    """A name and its value; on a terminal a long value goes on below its beginning."""
    room = max(LEAST_ROOM, screen.columns - NAME_COLUMNS)
    lines = wrapped_line(safe(value.text), room, breaks_words=False) if screen.terminal else [value.text]
    for number, line in enumerate(lines):
        lead = f"{name}:" if number == 0 else ""
        yield [Span(f"{lead:{NAME_COLUMNS}}", "dim"), Span(line, value.style)]


def _summary(compaction: Compaction, screen: Screen) -> Iterator[Line]:
    first_kept = f"; kept from {short(compaction.first_kept)} on" if compaction.first_kept else ""
    count = compaction.turns_summarized
    turns = "" if count is None else f" of {counted(count, 'turn')},"
    trigger = f"; made {TRIGGERS[compaction.trigger]}" if compaction.trigger in TRIGGERS else ""
    about = f"{turns} through {short(compaction.summarized_through)}{first_kept}{trigger}"
    yield [Span("summary", "warn"), about]
    if not compaction.summary:
        yield ["  ", Span("its text was not kept by the tool that made it", "dim")]
    lines = safe_lines(compaction.summary)
    shown = wrapped("\n".join(lines), max(LEAST_ROOM, screen.columns - 2)) if screen.terminal and lines else lines
    yield from (["  ", line] for line in shown)
