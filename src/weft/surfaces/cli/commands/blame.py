"""`weft blame`: which turn last wrote each line of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from weft.exchange.file_blame import FileBlame, TurnEdit, blame_file
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.arguments import path_error
from weft.surfaces.cli.arguments import as_wanted
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import NO_DATE, local_time
from weft.surfaces.plain_text import cut, pad, safe
from weft.surfaces.wire.sessions import BlamedLine

NOT_KNOWN = "?"
LABEL_COLUMNS = 16
DAY = len("2026-11-15")


@weft_command("blame")
@click.argument("path")
@click.option("--recorded", is_flag=True, help="What the recorded edits leave, not what the file holds now.")
def command(call: Call, path: str, recorded: bool) -> None:
    """Show which turn last wrote each line of a file.

    The lines are those of the file as it is now; where it is not here, those that the recorded edits leave. A line
    that nobody is known to have written, because it is older or was changed by other means, is marked with `?`.
    """
    wanted = as_wanted(path)
    text = None if recorded else _text(Path(os.path.expanduser(path)))
    with call.reading() as ledger:
        blamed = blame_file(ledger, wanted, text)
        if blamed is None:
            raise NotFound("recorded text of", path, "the file is not here, and its edits alone do not tell it whole")
        if call.json:
            call.documents(_line_form(number, line, edit) for number, line, edit in _numbered(blamed))
        else:
            call.screen.page(_lines(blamed, Reader(ledger)))
    _notes(call, path, blamed)


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise path_error(path, error) from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text", "blame works on lines of text") from None


def _numbered(blamed: FileBlame) -> Iterator[tuple[int, str, TurnEdit | None]]:
    for number, (line, edit) in enumerate(zip(blamed.lines, blamed.blame.lines, strict=True), 1):
        yield number, line, edit


def _line_form(number: int, line: str, edit: TurnEdit | None) -> BlamedLine:
    if edit is None:
        return BlamedLine(line=number, text=line)
    turn = edit.turn
    return BlamedLine(
        line=number,
        text=line,
        turn_id=turn.id,
        call_id=edit.call.id,
        session_id=turn.session_id,
        started_at=turn.started_at,
        time_known=turn.time_known,
        model=turn.model,
    )


def _lines(blamed: FileBlame, reader: Reader) -> Iterator[Line]:
    labels = {edit.turn.id: _label(edit, reader) for edit in blamed.blame.lines if edit is not None}
    wide = max((len(label) for label in labels.values()), default=0)
    digits = len(str(len(blamed.lines)))
    for number, line, edit in _numbered(blamed):
        if edit is None:
            who: Line = [pad(NOT_KNOWN, 8 + 2 + wide + 2 + DAY)]
        else:
            day = local_time(edit.turn.started_at)[:DAY] if edit.turn.time_known else pad(NO_DATE, DAY)
            who = [Span(short(edit.turn.id), "id"), "  ", Span(pad(labels[edit.turn.id], wide), "label"), "  ", day]
        yield [*who, Span(f"  {number:>{digits}}  ", "dim"), line.expandtabs(4)]


def _label(edit: TurnEdit, reader: Reader) -> str:
    session = reader.session(edit.turn.session_id)
    return cut(safe(reader.short_label(session)), LABEL_COLUMNS) if session else ""


def _notes(call: Call, path: str, blamed: FileBlame) -> None:
    unknown = sum(edit is None for edit in blamed.blame.lines)
    if unknown:
        call.note(f"{counted(unknown, 'line')} of {path}: no turn is known to have written them")
    turns = dict.fromkeys(short(edit.turn.id) for edit in blamed.blame.unplaced)
    if turns:
        call.note(f"edits of {', '.join(turns)} are not found any more: something that is not recorded came after")
