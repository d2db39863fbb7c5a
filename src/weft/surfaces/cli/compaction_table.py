"""The compactions of a thread side by side: a column for each, a row for each figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import dollar_text
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.runtime.assembly.compaction import ComparedCompaction

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
    call.screen.table(_rows(newest), ["", *(short(one.compaction.turn_id) for one in newest)])
    for one in newest:
        for words, terms in (("kept", one.survived), ("lost", one.lost)):
            call.screen.show(*_term_line(one, words, terms))


def _rows(compared: Sequence[ComparedCompaction]) -> list[list[Span | str]]:
    rows: list[list[Span | str]] = []
    for title, cells in (
        ("turn", [Span(short(one.compaction.turn_id), "id") for one in compared]),
        ("in effect", [Span("yes", "good") if one.in_effect else "" for one in compared]),
        ("strategy", [one.strategy + (", extract" if one.is_extract else "") for one in compared]),
        ("trigger", [one.compaction.trigger or "" for one in compared]),
        ("model", [one.compaction.model for one in compared]),
        ("turns summarised", [_count(one.compaction.turns_summarized) for one in compared]),
        ("turns kept", [_count(one.kept_turns) for one in compared]),
        ("terms kept", [f"{len(one.survived)} of {len(one.survived) + len(one.lost)}" for one in compared]),
        ("tokens before", [_count(one.compaction.tokens_before) for one in compared]),
        ("tokens after", [_count(one.compaction.tokens_after) for one in compared]),
        ("summary tokens", [_count(one.compaction.summary_tokens) for one in compared]),
        ("tokens sent", [_count(one.compaction.summarization_input_tokens) for one in compared]),
        ("tokens received", [_count(one.compaction.summarization_output_tokens) for one in compared]),
        ("cost", ["?" if one.cost_micro_usd is None else dollar_text(one.cost_micro_usd) for one in compared]),
        ("took", [_seconds(one.compaction.duration_ms) for one in compared]),
    ):
        rows.append([Span(title, "dim"), *cells])
    return rows


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _seconds(ms: int | None) -> str:
    return "?" if ms is None else f"{ms / 1000:,.1f} s"


def _term_line(one: ComparedCompaction, words: str, terms: Sequence[str]) -> Line:
    more = f" and {len(terms) - MOST_TERMS} more" if len(terms) > MOST_TERMS else ""
    listed = ", ".join(terms[:MOST_TERMS]) if terms else "nothing"
    return [Span(short(one.compaction.turn_id), "id"), Span(f" {words}: ", "dim"), listed, more]
