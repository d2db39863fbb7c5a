"""A file's edits as the ledger knows them, the newest first."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from weft.exchange.edits.blame import Blame, blame, last_text
from weft.exchange.edits.edits import FileEdit, edits_of, lines_of
from weft.kernel.enums import FileKind
from weft.ledger.api import Ledger, WantedPath
from weft.ledger.model import ToolCall, Turn


class TurnEdit(Struct, frozen=True):
    """What one call of a turn did to the file."""

    turn: Turn
    call: ToolCall
    edit: FileEdit


class FileBlame(Struct, frozen=True):
    """A text and who wrote its lines."""

    lines: list[str]
    blame: Blame[TurnEdit]


def edits_to(ledger: Ledger, path: str) -> Iterator[TurnEdit]:
    """The edits of turns that noted to have written this file, the newest first."""
    wanted = WantedPath(path)
    turns = dict.fromkeys(touch.turn_id for touch in ledger.files(path) if touch.kind == FileKind.WRITTEN)
    for turn_id in turns:
        turn = ledger.turn(turn_id)
        for call in reversed(ledger.tool_calls(turn_id)):
            if call.outcome not in (None, "ok"):
                continue
            for edit in reversed(edits_of(call.arguments, call.metadata)):
                if edit.path is not None and wanted.fits(edit.path, turn.workspace_path):
                    yield TurnEdit(turn, call, edit)


def blame_file(ledger: Ledger, path: str, text: str | None) -> FileBlame | None:
    """Who wrote the lines of a text, or of what the recorded edits leave where none is given; None where they leave
    nothing that is known as a whole."""
    edits = list(edits_to(ledger, path))
    if text is None:
        text = last_text(each.edit for each in reversed(edits))
    if text is None:
        return None
    return FileBlame(lines_of(text), blame(text, ((each, each.edit) for each in edits)))
