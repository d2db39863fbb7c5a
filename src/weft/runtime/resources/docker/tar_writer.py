"""Writes entries as one tar archive: always the same bytes for the same entries.

POSIX headers; an extended header stands before an entry only for what does not fit into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from weft.kernel.errors import ArchiveRefused
from weft.runtime.resources.docker.archive_entries import ArchiveEntry, ArchiveEntryKind, shown
from weft.runtime.resources.docker.tar_reader import BLOCK

CHUNK = 1024 * 1024
_LONGEST_NAME = 100


def archive_chunks(entries: Iterable[ArchiveEntry], source: BinaryIO) -> Iterator[bytes]:
    """The archive of these entries, whose bytes are read from `source` at their offsets."""
    for entry in entries:
        yield _headers(entry)
        if entry.size:
            yield from _contents(entry, source)
    yield bytes(2 * BLOCK)


def _contents(entry: ArchiveEntry, source: BinaryIO) -> Iterator[bytes]:
    source.seek(entry.offset)
    missing = entry.size
    while missing:
        chunk = source.read(min(CHUNK, missing))
        if not chunk:
            raise ArchiveRefused(f"it ends within {shown(entry.path)}")
        missing -= len(chunk)
        yield chunk
    yield bytes(-entry.size % BLOCK)


def _headers(entry: ArchiveEntry) -> bytes:
    name = entry.path or b"."
    if entry.kind is ArchiveEntryKind.FOLDER:
        name += b"/"
    records: dict[bytes, bytes] = {}
    if len(name) > _LONGEST_NAME:
        records[b"path"] = name
    if len(entry.target) > _LONGEST_NAME:
        records[b"linkpath"] = entry.target
    for key, number, digits in ((b"uid", entry.uid, 7), (b"gid", entry.gid, 7), (b"size", entry.size, 11)):
        if number >= 8**digits:
            records[key] = b"%d" % number
    if entry.modified_ns % 10**9 or not 0 <= entry.modified_ns < 8**11 * 10**9:
        records[b"mtime"] = _seconds(entry.modified_ns)
    for attribute, value in entry.attributes:
        records[b"SCHILY.xattr." + attribute] = value
    header = _header(
        name,
        entry.kind.value,
        (
            (entry.mode, 8),
            (0 if b"uid" in records else entry.uid, 8),
            (0 if b"gid" in records else entry.gid, 8),
            (0 if b"size" in records else entry.size, 12),
            (0 if b"mtime" in records else entry.modified_ns // 10**9, 12),
        ),
        entry.target,
    )
    return _extended(records) + header if records else header


def _seconds(nanoseconds: int) -> bytes:
    whole, rest = divmod(abs(nanoseconds), 10**9)
    text = f"{'-' if nanoseconds < 0 else ''}{whole}"
    return (f"{text}.{rest:09d}".rstrip("0") if rest else text).encode()


def _extended(records: dict[bytes, bytes]) -> bytes:
    data = b"".join(_record(key, records[key]) for key in sorted(records))
    header = _header(b"PaxHeaders", b"x", ((0o644, 8), (0, 8), (0, 8), (len(data), 12), (0, 12)), b"")
    return header + data + bytes(-len(data) % BLOCK)


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE` and a line's end, where the length counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _header(name: bytes, kind: bytes, numbers: tuple[tuple[int, int], ...], target: bytes) -> bytes:
    fields = b"".join(b"%0*o\0" % (width - 1, number) for number, width in numbers)
    before = name[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0") + fields
    after = kind + target[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0") + b"ustar\x0000" + bytes(64)
    after += b"%07o\0%07o\0" % (0, 0) + bytes(155 + 12)
    total = sum(before) + sum(after) + 8 * 0x20
    return before + b"%06o\0 " % total + after
