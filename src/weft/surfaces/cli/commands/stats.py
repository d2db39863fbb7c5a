"""`weft stats`: how much there is."""

from __future__ import annotations

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.progress import progress
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.reports import LedgerFigures


@weft_command("stats")
def command(call: Call) -> None:
    """Show how big the ledger is, and of what.

    Versions of a turn that another one superseded are counted by themselves, and their messages, calls and tokens not
    at all. The total of tokens adds up turns; `weft usage` counts a response once that several of them contain. What
    was worked on is told by `weft story`.
    """
    with call.reading() as ledger, progress(call, "stats", by_itself=True):
        figures = LedgerFigures(path=ledger.path, file_bytes=ledger.upkeep.disk_bytes(), counts=ledger.upkeep.stats())
    if call.json:
        call.document(figures)
    else:
        readable = call.screen.terminal
        rows = [
            (name.replace("_", " ") if readable else name, _text(value, readable))
            for name, value in form(figures).items()
        ]
        call.screen.table(rows, ("what", "value"))


def _text(value: object, readable: bool) -> str:
    """A figure, for people with its thousands set apart."""
    if isinstance(value, dict):
        return ", ".join(f"{_text(count, readable)} {name}" for name, count in value.items()) or "none"
    return f"{value:,}" if readable and isinstance(value, int) else str(value)
