"""What an import brought, as a table, as notes and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.sizes import size_text
from weft.surfaces.cli.turn_lines import counted

if TYPE_CHECKING:
    from weft.exchange.importers.port import Problem
    from weft.exchange.importing.run import ImportSummary, OriginTotals

HEADER = ("origin", "files", "unchanged", "sessions", "turns", "known", "replaced", "records", "size")
SPARE = ("records", "size", "replaced", "unchanged")
PROBLEMS_SHOWN = 10
FEW = 3


def answer(call: Call, summary: ImportSummary, dry_run: bool) -> None:
    if call.json:
        call.document({**_shape(summary), "dry_run": dry_run})
        return
    if summary.origins:
        terminal = call.screen.terminal
        rows = [_row(origin, totals, terminal) for origin, totals in sorted(summary.origins.items())]
        call.screen.table(rows, HEADER, numbers=HEADER[1:], spare=SPARE)
    for note in _notes(summary):
        call.note(note)
    _tell_problems(call, summary.problems)
    if (end := _end(summary)) is not None and not dry_run:
        call.note(end)


def _end(summary: ImportSummary) -> str | None:
    """What came of it, where the numbers do not say it by themselves."""
    if any(totals.counts.turns for totals in summary.origins.values()):
        return "look at them with `weft sessions`, `weft log --graph` and `weft usage`"
    if summary.problems:
        return None
    return "nothing new" if summary.origins else "no sessions were found"


def _shape(summary: ImportSummary) -> dict[str, Any]:
    return {
        "origins": {origin: to_json(totals) for origin, totals in sorted(summary.origins.items())},
        "unrecognised_files": summary.unrecognised,
        "problems": [to_json(problem) for problem in summary.problems],
    }


def _row(origin: str, totals: OriginTotals, terminal: bool) -> tuple[Span | str, ...]:
    """For people; in a pipe, where rows are read by programs, whole numbers and bytes."""
    counts = totals.counts
    numbers = (totals.files, totals.unchanged, counts.sessions, counts.turns, counts.known, counts.superseded)
    if not terminal:
        return (origin, *map(str, (*numbers, totals.records, totals.bytes)))
    return (Span(origin, "label"), *(f"{n:,}" for n in (*numbers, totals.records)), size_text(totals.bytes))


def _notes(summary: ImportSummary) -> Iterator[str]:
    unknown: dict[str, int] = {}
    for totals in summary.origins.values():
        for kind, count in totals.unknown.items():
            unknown[kind] = unknown.get(kind, 0) + count
    if unknown:
        most = sorted(unknown.items(), key=lambda pair: -pair[1])[:5]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in most)
        yield f"{counted(sum(unknown.values()), 'record')} of kinds not known here, kept verbatim: {kinds}"
    if waiting := sum(totals.counts.open_turns for totals in summary.origins.values()):
        yield f"{counted(waiting, 'turn')} still being written: provisional until an import finds them closed"
    if erased := sum(totals.counts.erased for totals in summary.origins.values()):
        yield f"{counted(erased, 'turn')} passed over: erased here, so not brought back"
    if summary.unrecognised:
        few = len(summary.unrecognised) <= FEW
        named = f": {', '.join(summary.unrecognised)}" if few else "; --json lists them"
        yield f"{counted(len(summary.unrecognised), 'file')} of no known format passed over{named}"


def _tell_problems(call: Call, problems: Sequence[Problem]) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        where = problem.source if problem.line is None else f"{problem.source}:{problem.line}"
        call.note(Span(where, "warn"), f": {problem.what}")
    if len(problems) > PROBLEMS_SHOWN:
        call.note(f"… {counted(len(problems) - PROBLEMS_SHOWN, 'more problem')}; --json lists all")
