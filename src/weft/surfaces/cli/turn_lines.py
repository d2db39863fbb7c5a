"""A turn as people read it in lists: one line, or a short entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from weft.kernel.enums import TurnStatus, TurnType
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.graph import Glyphs
from weft.surfaces.cli.history import Reader, quoted_title, short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import NO_TIME, local_time
from weft.surfaces.plain_text import cut, safe, width

if TYPE_CHECKING:
    from weft.kernel.events import Usage
    from weft.ledger.model import Turn

INDENT = "    "
UNKNOWN = "unknown"
_DATED = re.compile(r"-20\d{6}$")
STATE_STYLES = {"normal": "", "compaction": "warn", "failed": "bad", "interrupted": "warn", "open": "good"}
STATE_WORDS = {"compaction": "compaction", "failed": "failed", "interrupted": "interrupted", "open": "being recorded"}


def state_of(turn: Turn) -> str:
    """What sets a turn apart from one that was simply completed."""
    if turn.turn_type == TurnType.COMPACTION:
        return "compaction"
    if turn.status == TurnStatus.FAILED:
        return "failed"
    if turn.interruption_reason is not None:
        return "interrupted"
    return "normal" if turn.status == TurnStatus.COMPLETED else "open"


def mark(turn: Turn, glyphs: Glyphs) -> Span:
    state = state_of(turn)
    return Span(glyphs.turn[state], STATE_STYLES[state] or "id")


def decoration(labels: list[str]) -> Line:
    """The sessions that stand here, as git shows its branches."""
    if not labels:
        return []
    names = [span for label in labels for span in (", ", Span(label, "label"))]
    return [" (", *names[1:], ")"]


def flag(turn: Turn) -> Line:
    state = state_of(turn)
    flags: Line = [Span(f" [{STATE_WORDS[state]}]", STATE_STYLES[state])] if state in STATE_WORDS else []
    return flags if turn.substitutions is UNSET else [*flags, Span(" [substituted]", "warn")]


def one_line(turn: Turn, reader: Reader, columns: int) -> Line:
    """Id, sessions, state and subject, cut to the width there is."""
    lead = [Span(short(turn.id), "id"), *decoration(reader.places(turn.id)), *flag(turn)]
    beside = _beside(turn)
    room = columns - line_width(lead) - 1
    subject = cut(safe(reader.subject(turn)), max(20, room - len(beside)))
    shown = [*lead, f" {subject}"] if subject else lead
    return [*shown, Span(beside, "dim")] if beside and width(subject) + len(beside) <= room else shown


def _beside(turn: Turn) -> str:
    """Of a turn that another tool made: its model, and how many calls it took."""
    if turn.origin is None:
        return ""
    model = "" if turn.model in (None, UNKNOWN) else _DATED.sub("", safe(str(turn.model)))
    calls = counted(turn.tool_call_count, "call") if turn.tool_call_count else ""
    words = ", ".join(filter(None, (model, calls)))
    return f"  [{words}]" if words else ""


def crossing(older: Turn, reader: Reader, columns: int) -> Line:
    """Between the root of one chain and the turn of another that it goes on from."""
    session = reader.session(older.session_id)
    where = f"session {reader.short_label(session)}{quoted_title(session.title)}" if session else "another chain"
    return [Span(cut(safe(f"(goes on from {where})"), max(20, columns)), "dim")]


def line_width(line: Line) -> int:
    return sum(width(safe(span if isinstance(span, str) else span.text)) for span in line)


def entry(turn: Turn, reader: Reader, columns: int) -> Iterator[Line]:
    """A turn as `weft log` shows it."""
    yield [Span(f"turn {turn.id}", "id"), *decoration(reader.places(turn.id)), *flag(turn)]
    yield ["Date:  ", local_time(turn.started_at) if turn.time_known else NO_TIME]
    yield ["Agent: ", ", ".join(facts_of(turn))]
    if principals := reader.on_behalf_of(turn):
        yield ["For:   ", safe(" for ".join(principals))]
    if sources := reader.sources(turn):
        yield ["From:  ", ", ".join(sources)]
    if turn.error is not None:
        yield ["Error: ", Span(cut(safe(turn.error), max(20, columns - 7)), "bad")]
    if turn.status == TurnStatus.FAILED and turn.origin is None:
        yield ["Again: ", f"weft retry {shell_word(short(turn.id))}"]
    yield []
    yield [INDENT, cut(safe(reader.subject(turn)) or "(no text)", max(20, columns - len(INDENT)))]


def facts_of(turn: Turn) -> list[str]:
    """Who answered, and what it took."""
    facts = [turn.persona_id]
    if turn.model not in (None, UNKNOWN):
        facts.append(str(turn.model))
    if turn.tool_call_count:
        facts.append(counted(turn.tool_call_count, "tool call"))
    if tokens := total_of(turn.usage):
        facts.append(counted(tokens, "token"))
    return facts


def total_of(usage: Usage) -> int:
    return usage.total_tokens if isinstance(usage.total_tokens, int) else 0
