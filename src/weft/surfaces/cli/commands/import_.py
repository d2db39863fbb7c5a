"""`weft import`: the sessions that other tools left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.ambient import SystemClock
from weft.kernel.errors import LedgerMissing
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.import_progress import import_progress
from weft.surfaces.cli.locating import find_ledger, named_ledger, user_ledger
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.turn_lines import counted
from weft.surfaces.cli.zones import LocalZone

if TYPE_CHECKING:
    from weft.exchange.importers.port import Importer, Problem
    from weft.exchange.importers.servers import Address
    from weft.exchange.importing import ImportSummary, OriginTotals
    from weft.ledger.ledger import Ledger

HEADER = ("origin", "files", "unchanged", "sessions", "turns", "known", "replaced", "records", "size")
SPARE = ("records", "size", "replaced", "unchanged")
PROBLEMS_SHOWN = 10
FEW = 3


def _formats(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from weft.exchange.importers.plugins import importer_names

    return [name for name in importer_names() if name.startswith(begun)]


@weft_command("import")
@click.argument("path", nargs=-1, type=click.Path())
@click.option(
    "--format",
    "only",
    metavar="NAME",
    shell_complete=_formats,
    help="Take every file as this tool's, instead of recognising it.",
)
@click.option("--since", metavar="WHEN", help="Only files changed since: yesterday, '2 weeks ago', 2026-11-01.")
@click.option("--dry-run", is_flag=True, help="Read everything, write nothing, and say what there is.")
@click.option("--remap", is_flag=True, help="Read again what an older version of an importer has read.")
def command(call: Call, path: tuple[str, ...], only: str | None, since: str | None, dry_run: bool, remap: bool) -> int:
    """Bring in the sessions that other tools left behind.

    PATH is a file, a folder, an archive (.zip, .zst), or the address of a PostgreSQL database that holds checkpoints of
    LangGraph (postgresql://...); without one, the usual places of every tool are searched.
    Formats are recognised by what is in a file. What was imported before is passed over, copies of a session are kept
    once, and a file that has grown brings only what is new; so an import that was cut short is simply run again. A dry
    run does not look into the ledger: what was imported before counts like the rest.
    """
    from weft.exchange.importers.plugins import load_importers
    from weft.exchange.importing import Importing, ImportSummary
    from weft.ledger.moments import parse_moment

    importers, clock = load_importers(only), SystemClock()
    paths = _named(path) if path else _usual(importers)
    if not paths:
        call.note("nothing found in the usual places; name a file or a folder: `weft import PATH`")
        if call.json:
            _answer(call, ImportSummary(), dry_run)
        return 0
    after = None if since is None else parse_moment(since, clock.now_ms(), LocalZone())
    with _ledger(call, dry_run) as ledger, import_progress(call) as progress:
        importing = Importing(
            ledger,
            importers,
            clock,
            since=after,
            remap=remap,
            force=only is not None and bool(path),
            progress=progress,
        )
        summary = importing.run(paths)
    _answer(call, summary, dry_run)
    return 1 if summary.problems else 0


def _named(paths: Sequence[str]) -> list[Path | Address]:
    from weft.exchange.importers.servers import Address

    found = [Address(path) if Address.is_one(path) else Path(path).expanduser().absolute() for path in paths]
    for path in found:
        if isinstance(path, Path) and not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found


def _usual(importers: Sequence[Importer]) -> list[Path | Address]:
    """Where the tools keep their sessions by themselves, as far as it exists."""
    home = Path.home()
    places = [place.path for importer in importers for place in importer.places(home, os.environ)]
    return [path for path in dict.fromkeys(places) if path.exists()]


@contextmanager
def _ledger(call: Call, dry_run: bool) -> Iterator[Ledger | None]:
    """The ledger there is; where there is none, the user's own is made."""
    if dry_run:
        yield None
        return
    try:
        found = find_ledger(call.ledger)
    except LedgerMissing:
        found = str(user_ledger())
    if named_ledger(call.ledger) is None and not Path(found).exists():
        Path(found).parent.mkdir(parents=True, exist_ok=True)
        call.note("made your ledger at ", Span(found, "heading"))
        with call.making(found) as ledger:
            yield ledger
        return
    with call.writing() as ledger:
        yield ledger


def _answer(call: Call, summary: ImportSummary, dry_run: bool) -> None:
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
    return (Span(origin, "label"), *(f"{n:,}" for n in (*numbers, totals.records)), _size(totals.bytes))


def _size(count: int) -> str:
    """`12.3 MB`, as file managers say it."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"


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
        yield f"{counted(waiting, 'turn')} still being written; import again when the session has ended"
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
