"""Reading a file with an importer, for tests: everything walked, every record counted, every rule checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.port import Importer, NativeCall, NativeMessage, NativeSession, NativeTurn, Report
from weft.exchange.importers.testing import as_source, assert_accounted, assert_well_formed
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


class Read(Struct):
    """A transcript, walked."""

    session: NativeSession
    turns: list[NativeTurn]
    raw: bytes | None = None


def read(importer: Importer, path: Path, *, quiet: bool = True) -> tuple[list[Read], Report]:
    """Every session of a file, with the rules that hold for all of them, whatever the file holds."""
    report = Report(str(path))
    source = as_source(path, quiet=quiet)
    found = [Read(each.session, list(each.turns), each.raw) for each in importer.read(source, report)]
    assert_accounted(report)
    for each in found:
        assert each.session.id
        assert_well_formed(each.turns)
        for number, turn in enumerate(each.turns):
            told = turn.compaction
            assert told is None or all(at is None or at < number for at in (told.through, told.first_kept))
    return found, report


def read_one(importer: Importer, path: Path) -> Read:
    """The one session of a file that is whole."""
    (found,), report = read(importer, path)
    assert report.damaged == 0, report.problems
    return found


def said(turn: NativeTurn) -> list[NativeMessage]:
    return [item for item in turn.items if isinstance(item, NativeMessage)]


def called(turn: NativeTurn) -> list[NativeCall]:
    return [item for item in turn.items if isinstance(item, NativeCall)]


def texts(message: NativeMessage) -> list[str]:
    """The texts of a message, thoughts among them."""
    return [str(part.text) for part in message.parts if isinstance(part, TextPart | ReasoningPart)]


def texts_of(turn: NativeTurn) -> list[str]:
    return [text for message in said(turn) for text in texts(message)]


def words(message: NativeMessage) -> list[Any]:
    """What a message says, and how: texts, thoughts in brackets, images by their address."""
    found: list[Any] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            found.append(part.text)
        elif isinstance(part, ReasoningPart):
            found.append([part.text])
        elif isinstance(part, ImagePart):
            found.append(part.url)
    return found


def spoken(turn: NativeTurn) -> list[tuple[str, Any]]:
    """Roles and words of a turn, in order."""
    return [(message.role.value, words(message)) for message in said(turn)]


def shape(turns: list[NativeTurn]) -> list[tuple[str, int | None]]:
    return [(turn.key, turn.parent) for turn in turns]
