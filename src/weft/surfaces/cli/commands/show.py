"""`weft show`: one turn with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import UNSET

from weft.kernel.events import UnknownEvent
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.model import Compaction, Message, ToolCall, Turn
from weft.ledger.runs import Recorded
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.plain_text import safe_lines
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.transcript import Transcript, in_order
from weft.surfaces.cli.turn_lines import decoration, flag
from weft.surfaces.cli.zones import local_time

if TYPE_CHECKING:
    from weft.ledger.ledger import Ledger


@weft_command("show")
@arguments.rev()
@click.option("--full", is_flag=True, help="Fold nothing: whole results, arguments and thinking.")
def command(call: Call, rev: str, full: bool) -> None:
    """Show one turn: messages, tool calls, usage.

    Long results and thinking are folded to a few lines. Where REV is an event inside a turn, the turn is shown up to
    it.
    """
    with call.reading() as ledger:
        point = ledger.point(rev)
        turn, events = ledger.turn(point.turn_id), ledger.events(point.turn_id)
        at = None if point.number is None else _At(point.number, len(events), events[point.number - 1])
        recorded = any(isinstance(found.event, CompactionRecorded) for found in events[: point.number])
        compaction = ledger.compaction(turn.id) if recorded else None
        items = in_order(ledger, point.event_id or turn.id)
        if call.json:
            call.document(_shape(turn, at, items, compaction))
            return
        session = _session_label(ledger, turn)
        lines = _lines(turn, at, session, Reader(ledger), compaction)
        transcript = Transcript(full=full, columns=call.screen.columns)
        call.screen.page([*lines, *transcript.lines(items)])


class _At(NamedTuple):
    """An event inside the turn that is shown: which one, and of how many."""

    number: int
    of: int
    found: Recorded

    @property
    def kind(self) -> str:
        event = self.found.event
        return event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)


def _shape(
    turn: Turn, at: _At | None, items: list[Message | ToolCall], compaction: Compaction | None
) -> dict[str, Any]:
    from weft.surfaces.cli.shapes import to_json

    return {
        **to_json(turn),
        "event": at and {"id": at.found.id, "kind": at.kind, "number": at.number, "of": at.of},
        "messages": to_json([item for item in items if isinstance(item, Message)]),
        "tool_calls": to_json([item for item in items if isinstance(item, ToolCall)]),
        "compaction": to_json(compaction),
    }


def _session_label(ledger: Ledger, turn: Turn) -> str | None:
    return None if turn.session_id is None else ledger.session(turn.session_id).label


def _lines(
    turn: Turn, at: _At | None, session: str | None, reader: Reader, compaction: Compaction | None
) -> Iterator[Line]:
    yield [Span(f"turn {turn.id}", "id"), *decoration(reader.places(turn.id)), *flag(turn)]
    if at is not None:
        yield [Span("Event:   ", "dim"), f"{at.found.id}, {at.kind}, {at.number} of {at.of}; the turn up to it"]
    for name, value in _facts(turn, session):
        if value:
            yield [Span(f"{name + ':':9}", "dim"), value]
    if turn.error is not None:
        code = f"{turn.error_code}: " if turn.error_code not in (None, "error") else ""
        yield [Span("Error:   ", "dim"), Span(code + turn.error, "bad")]
    yield []
    if compaction is not None:
        yield from _summary(compaction)


def _facts(turn: Turn, session: str | None) -> Iterator[tuple[str, str]]:
    yield "Digest", turn.digest
    yield "Parent", turn.parent_id or "none: the root of its tree"
    yield "Session", f"{session}, depth {turn.depth}" if session else f"none, depth {turn.depth}"
    yield "Date", local_time(turn.started_at)
    yield "Agent", turn.persona_id
    yield "Model", " ".join(filter(None, (turn.model, turn.provider and f"({turn.provider})")))
    yield "Usage", _usage(turn)
    yield "Folder", turn.workspace_path or ""
    yield "Cut off", turn.interruption_reason or ""
    yield "Context", f"after compaction {short(turn.compaction_id)}" if turn.compaction_id else ""


def _usage(turn: Turn) -> str:
    counts = [(name.removesuffix("_tokens"), getattr(turn.usage, name)) for name in turn.usage.__struct_fields__]
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts if count not in (UNSET, None))


def _summary(compaction: Compaction) -> Iterator[Line]:
    kept = f"; kept from {short(compaction.first_kept)} on" if compaction.first_kept else ""
    about = f" of {compaction.turns_summarized} turns, through {short(compaction.summarized_through)}{kept}"
    yield [Span("summary", "warn"), about]
    yield from (["  ", line] for line in safe_lines(compaction.summary))
