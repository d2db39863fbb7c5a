"""What an importer makes of a file, walked and checked."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from weft.exchange.importers.port import HEAD_BYTES, Importer, Report, Source
from weft.exchange.importers.transcript import NativeCall, NativeMessage, NativeSession, NativeTurn
from weft.exchange.testing import assert_accounted, assert_well_formed


class Read(Struct):
    """A transcript, walked."""

    session: NativeSession
    turns: list[NativeTurn]
    raw: bytes | None


def source_of(path: Path) -> Source:
    data = path.read_bytes()
    return Source(path=path, name=str(path), size=len(data), head=data[:HEAD_BYTES])


def read(importer: Importer, path: Path) -> tuple[list[Read], Report]:
    """Everything in a file; every record is counted and every transcript well formed, whatever the file holds."""
    report = Report(str(path))
    found = [Read(each.session, list(each.turns), each.raw) for each in importer.read(source_of(path), report)]
    assert_accounted(report)
    for each in found:
        assert_well_formed(each.turns)
        for number, turn in enumerate(each.turns):
            if turn.compaction is not None:
                places = (turn.compaction.through, turn.compaction.first_kept)
                assert all(place is None or place < number for place in places)
    return found, report


def said(turn: NativeTurn) -> list[NativeMessage]:
    return [item for item in turn.items if isinstance(item, NativeMessage)]


def called(turn: NativeTurn) -> list[NativeCall]:
    return [item for item in turn.items if isinstance(item, NativeCall)]


def words(message: NativeMessage) -> list[str]:
    """The texts of a message, thoughts among them."""
    return [str(getattr(part, "text", "")) for part in message.parts if hasattr(part, "text")]
