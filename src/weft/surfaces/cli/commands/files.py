"""`weft files`: every turn that touched a file."""

from __future__ import annotations

import click

from weft.kernel.enums import FileKind
from weft.ledger.api import Touch
from weft.surfaces.cli.arguments import as_wanted
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import NO_DATE, local_time

HEADER = ("turn", "when", "kind", "lines", "session", "file")
SPARE = ("session",)
STYLES = {"written": "good", "read": "", "referenced": "dim", "attached": "dim"}


@weft_command("files")
@click.argument("path")
@click.option("--kind", type=click.Choice([kind.value for kind in FileKind]), help="Only notes of this kind.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N notes.")
def command(call: Call, path: str, kind: str | None, limit: int | None) -> None:
    """List the turns that read or wrote a file.

    The newest first. PATH is a whole path, or the end of one: `parser.py` and `src/parser.py` are found in every
    checkout, `./src/parser.py` in this folder alone.
    """
    with call.reading() as ledger:
        touches = [touch for touch in ledger.files(as_wanted(path)) if kind in (None, touch.kind)]
        shown = touches[:limit]
        if call.json:
            call.documents(shown)
            return
        reader = Reader(ledger)
        if shown:
            call.screen.table([_row(touch, reader) for touch in shown], HEADER, spare=SPARE)
    if not touches:
        call.note(f"no turn is known to have touched {path}; `weft import` notes the files of other tools' sessions")
    elif len(shown) < len(touches):
        call.note(f"{len(touches) - len(shown):,} more: -n N lists more")


def _row(touch: Touch, reader: Reader) -> tuple[Span | str, ...]:
    session = reader.session(touch.session_id)
    lines = "" if touch.line_start is None else f"{touch.line_start}-{touch.line_end or ''}".rstrip("-")
    return (
        Span(short(touch.turn_id), "id"),
        local_time(touch.touched_at) if touch.time_known else NO_DATE,
        Span(touch.kind, STYLES.get(touch.kind, "")),
        lines,
        Span(reader.short_label(session) if session else "", "label"),
        touch.full_path,
    )
