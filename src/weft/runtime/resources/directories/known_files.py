"""What was seen of a folder when its last snapshot was taken: so that the next one reads only what has changed.

Three files, written one after the other: an index in the form of git's own, which git compares with the folder faster
than anything else would; a table of the files of each folder; and a head, which names the two others and is put in
place last. Whoever dies in between leaves the old three in force. All of it is a cache: without it everything is read.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.runtime.resources.directories.model import SkipReason, SnapshotLimit
from weft.runtime.resources.directories.trees import FILE_MODE, LINK_MODE, PROGRAM_MODE, joined
from weft.store.private_files import aside_of, new_file, open_aside

FORM = 1
_DIGEST_BYTES = 32
_TICK_NS = 20_000_000
"""Times of files move in steps; none is longer than this where they have fractions of a second."""
_COARSE_TICK_NS = 2_100_000_000
_SECOND_NS = 1_000_000_000
Stamp = tuple[int, int, int, int, int]
"""Mode, size, number, time of the last change of the bytes, time of the last change of anything."""


def stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def folder_stamp_of(status: os.stat_result) -> Stamp:
    """The size of a folder says nothing, and differs between file systems."""
    return (status.st_mode, 0, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def is_settled(stamp: Stamp, looked_ns: int) -> bool:
    """Whether any change after the moment of looking gives another stamp."""
    tick = _TICK_NS if stamp[4] % _SECOND_NS else _COARSE_TICK_NS
    return stamp[4] < looked_ns - tick


UNSETTLED: Stamp = (0, 0, 0, 0, 0)
"""Equal to the stamp of no file."""


class FileRecord(Struct, array_like=True, gc=False, frozen=True):
    """What was seen of one file: its stamp, its mode and the id of its bytes."""

    name: bytes
    stamp: Stamp
    is_settled: bool
    """Whether the same stamp means the same bytes."""
    owner: int
    group: int
    id: bytes
    mode: int
    """The mode and the kind, as the file has them."""

    @property
    def tree_mode(self) -> int:
        if (self.mode & 0o170000) == LINK_MODE:
            return LINK_MODE
        return PROGRAM_MODE if self.mode & 0o100 else FILE_MODE


class SkippedRecord(Struct, array_like=True, gc=False, frozen=True):
    name: bytes
    why: SkipReason
    stamp: Stamp


class FolderRecord(Struct, array_like=True):
    """One folder, without its files."""

    path: bytes
    stamp: Stamp
    """UNSETTLED if it may have changed while it was read."""
    mode: int
    folders: list[bytes] = []
    ignored: list[bytes] = []
    """Names; those of folders end in a slash."""
    skipped: list[SkippedRecord] = []
    ignore_file: Stamp | None = None
    is_repository: bool = False
    is_unreadable: bool = False
    tree: bytes = b""
    """The id of its tree; empty where it holds no file."""
    files: int = 0
    size: int = 0
    modes: dict[int, int] = {}
    """How many files have each mode."""
    leftovers: list[bytes] = []
    """Names of files that a restore left when it was cut short."""


class OuterFile(Struct, array_like=True, frozen=True):
    """A file with rules of what is ignored that lies outside of the folder."""

    path: bytes
    stamp: Stamp | None


class KnownHead(Struct, kw_only=True):
    """The folders of such a cache, and the names of its other two files."""

    form: int = FORM
    snapshot: str
    whole: str = ""
    """The last whole snapshot that has this one in it."""
    is_part_alone: bool = False
    """Whether this one was removed since: the whole one has all of it but the tree that it is."""
    limit: SnapshotLimit
    index: str
    """The name of the index file, and of the table below."""
    indexed_ns: int
    table: str
    outer: list[OuterFile] = []
    fresh: list[bytes] = []
    """Paths of files that changed in the second in which the index was made: it does not tell a later change."""
    loose: list[bytes] = []
    """Paths of files that the index does not have as they are."""
    folders: list[FolderRecord]


Table = dict[bytes, bytes]
"""The files of each folder, encoded."""
_decode_head = msgspec.msgpack.Decoder(KnownHead).decode
_decode_table = msgspec.msgpack.Decoder(Table).decode
_decode_files = msgspec.msgpack.Decoder(list[FileRecord]).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_files(files: Iterable[FileRecord]) -> bytes:
    return _encode(list(files))


def decode_files(data: bytes | None) -> dict[bytes, FileRecord]:
    return {} if data is None else {record.name: record for record in _decode_files(data)}


class KnownFiles:
    """The cache of one folder, in a folder of the store. Its lock is held by whoever uses it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def load(self) -> KnownHead | None:
        """None where there is none, or none that this program can use."""
        data = self._read("head")
        try:
            head = None if data is None else _decode_head(data)
        except msgspec.DecodeError:
            return None
        return head if head is not None and head.form == FORM and self.index_of(head).exists() else None

    def load_table(self, head: KnownHead) -> Table | None:
        data = self._read(head.table)
        try:
            return None if data is None else _decode_table(data)
        except msgspec.DecodeError:
            return None

    def index_of(self, head: KnownHead) -> Path:
        return self.place / head.index

    def write_index(self, data: bytes) -> str:
        """Its name. Its time is 0, for which git takes no file to be newer and reads none."""
        name = f"index-{hashlib.sha256(data).hexdigest()[:32]}"
        path = self.place / name
        with new_file(path) as file:
            file.write(data)
        os.utime(path, (0, 0))
        return name

    def write_table(self, table: Table) -> str:
        data = _encode(table)
        name = f"table-{hashlib.sha256(data).hexdigest()[:32]}"
        self._write(name, data)
        return name

    def save(self, head: KnownHead) -> None:
        self._write("head", _encode(head))
        for path in self.place.glob("*-*"):
            if path.name not in (head.index, head.table):
                with suppress(FileNotFoundError):
                    path.unlink()

    def forget(self) -> None:
        with suppress(FileNotFoundError):
            (self.place / "head").unlink()

    def _read(self, name: str) -> bytes | None:
        try:
            data = (self.place / name).read_bytes()
        except FileNotFoundError:
            return None
        body = data[_DIGEST_BYTES:]
        return body if hashlib.sha256(body).digest() == data[:_DIGEST_BYTES] else None

    def _write(self, name: str, data: bytes) -> None:
        """Not synced: what a loss of power leaves of it is known by its digest, and not used."""
        aside = aside_of(self.place / name)
        with open_aside(aside) as file:
            file.write(hashlib.sha256(data).digest())
            file.write(data)
        aside.rename(self.place / name)


_ENTRY = struct.Struct(">10I32sH").pack
_HEAD = struct.Struct(">4sII").pack
_WORD = 0xFFFFFFFF


def index_bytes(files: Iterable[tuple[bytes, FileRecord]], device: int) -> bytes:
    """An index of git's second version, of paths in the order of their bytes."""
    entries = [_index_entry(path, record, device & _WORD) for path, record in files]
    data = b"".join((_HEAD(b"DIRC", 2, len(entries)), *entries))
    return data + hashlib.sha256(data).digest()


def _index_entry(path: bytes, record: FileRecord, device: int) -> bytes:
    _, size, number, changed, altered = record.stamp
    altered_s, altered_ns = divmod(altered, _SECOND_NS)
    changed_s, changed_ns = divmod(changed, _SECOND_NS)
    entry = _ENTRY(
        altered_s & _WORD,
        altered_ns,
        changed_s & _WORD,
        changed_ns,
        device,
        number & _WORD,
        record.tree_mode,
        record.owner & _WORD,
        record.group & _WORD,
        size & _WORD,
        record.id,
        min(len(path), 0xFFF),
    )
    return entry + path + bytes(8 - (len(entry) + len(path)) % 8)


def all_files(folders: Iterable[FolderRecord], table: Table) -> list[tuple[bytes, FileRecord]]:
    """Every file with its path, in the order of an index."""
    files = [
        (joined(folder.path, name), record)
        for folder in folders
        for name, record in decode_files(table.get(folder.path)).items()
    ]
    files.sort(key=lambda pair: pair[0])
    return files
