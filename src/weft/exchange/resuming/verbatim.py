"""The records that a tool wrote itself, taken from what was kept of its files when they were imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import BinaryIO

from weft.exchange.importers.port import HEAD_BYTES, Importer, Report, Source
from weft.exchange.importers.records.jsonl import record_at, sample
from weft.exchange.resuming.dialogue import Records
from weft.ledger.api import Ledger
from weft.ledger.imports import ImportWriter, SourceRange
from weft.ledger.model import Turn


def verbatim_records(
    ledger: Ledger, importer: Importer, writer: ImportWriter, turns: Iterable[Turn]
) -> dict[str, Records]:
    """The records of those turns that are of this origin, as far as their sources are still whole."""
    wanted: dict[str, set[str]] = {}
    for turn in turns:
        if turn.origin == importer.origin and turn.session_id is not None:
            wanted.setdefault(turn.session_id, set()).add(turn.id)
    found: dict[str, Records] = {}
    with TemporaryDirectory(prefix="weft-") as folder:
        for session, ids in wanted.items():
            for number, (name, data) in enumerate(_files(ledger.imports.kept_sources(session))):
                path = Path(folder, str(len(found)), str(number), PurePath(name).name or "source")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                found |= _records(importer, writer, as_source(path), ids - found.keys())
                path.unlink()
    return found


def as_source(path: Path) -> Source:
    return Source(path=path, name=str(path), size=path.stat().st_size, head=sample(path, HEAD_BYTES))


def _files(stretches: Iterable[SourceRange]) -> Iterator[tuple[str, bytes]]:
    """Every file that is kept without a gap, as it was when it was last read, and as it was before it was rewritten."""
    open_files: dict[str | None, bytearray | None] = {}
    for stretch in stretches:
        data = open_files.get(stretch.file)
        if stretch.start == 0:
            if data:
                yield str(stretch.file), bytes(data)
            data = bytearray()
        is_whole = data is not None and stretch.start == len(data) and not stretch.erased
        open_files[stretch.file] = data + stretch.data if is_whole and data is not None else None
    for file, rest in open_files.items():
        if rest:
            yield str(file), bytes(rest)


def _records(importer: Importer, writer: ImportWriter, source: Source, wanted: set[str]) -> dict[str, Records]:
    found: dict[str, Records] = {}
    if not wanted:
        return found
    with source.path.open("rb") as file:
        for transcript in importer.read(source, Report(source.name)):
            for turn, id in writer.identify(transcript.turns):
                if id in wanted and id not in found and turn.places:
                    records = _read(file, turn.places)
                    if records is not None:
                        found[id] = records
    return found


def _read(file: BinaryIO, places: Iterable[tuple[int, int]]) -> Records | None:
    try:
        return [record_at(file, start, end) for start, end in places]
    except (ValueError, RecursionError):
        return None
