"""Reads tar archives that may come from a stranger. Nothing is unpacked: what comes out is a list of entries.

Taken are the headers of POSIX (ustar and pax) and GNU's long names. Refused are devices, sparse files, headers for all
entries, several parts, compressed archives, unknown records, sums that do not fit, and anything but zeros after the
end. What is read is written anew by `tar_writer` before an engine sees it, so no other reader can see other entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

from weft.kernel.errors import ArchiveRefused, LimitExceeded
from weft.runtime.resources.docker.archive_entries import (
    ArchiveEntry,
    ArchiveEntryKind,
    ArchiveRules,
    checked_entries,
    checked_path,
    shown,
)

BLOCK = 512
_EMPTY_BLOCK = bytes(BLOCK)
_MAGICS = (b"ustar\x0000", b"ustar  \0")
_PAX_HEADER, _LONG_NAME, _LONG_TARGET = b"x", b"L", b"K"
_REFUSED_TYPES = {
    b"3": "is a device",
    b"4": "is a device",
    b"g": "is a header for all entries",
    b"S": "is a sparse file",
    b"M": "goes on from another archive",
    b"V": "names a part of an archive",
}
_ATTRIBUTE = b"SCHILY.xattr."
_PASSED_OVER = (b"atime", b"ctime", b"uname", b"gname", b"comment", b"hdrcharset")
_CHARACTER_SETS = (b"BINARY", b"ISO-IR 10646 2000 UTF-8")
"""Names are bytes here, whichever of the two an archive says."""
_TAKEN = (b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime")
_RECORD_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")
_OCTAL = re.compile(rb"[0-7]*\Z")
_INTEGER = re.compile(r"[0-9]{1,19}\Z")
_SECONDS = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{0,18}))?\Z")


class _Extras(Struct):
    """What the extended headers before an entry say of it."""

    records: dict[bytes, bytes] = {}
    name: bytes | None = None
    target: bytes | None = None
    header_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.header_bytes


def read_archive(file: BinaryIO, rules: ArchiveRules) -> tuple[ArchiveEntry, ...]:
    """All entries of an archive, in their one order."""
    size = file.seek(0, os.SEEK_END)
    if size > rules.archive_bytes:
        raise LimitExceeded("the bytes of the archive", size, rules.archive_bytes)
    return checked_entries(_entries(file, size, rules), rules)


def _entries(file: BinaryIO, size: int, rules: ArchiveRules) -> Iterator[ArchiveEntry]:
    offset, count, extras = 0, 0, _Extras()
    while True:
        header = _read(file, offset, BLOCK, size)
        offset += BLOCK
        if header == _EMPTY_BLOCK:
            if not extras.is_empty:
                raise ArchiveRefused("an extended header has no entry after it")
            _check_end(file, offset, size)
            return
        kind, length = _checked_header(header)
        if kind in (_PAX_HEADER, _LONG_NAME, _LONG_TARGET):
            extras.header_bytes += BLOCK + length
            if extras.header_bytes > rules.header_bytes:
                raise LimitExceeded("the bytes of the headers of one entry", extras.header_bytes, rules.header_bytes)
            _take_extra(extras, kind, _read(file, offset, length, size))
        else:
            count += 1
            if count > rules.entries:
                raise LimitExceeded("the entries of the archive", count, rules.entries)
            entry = _entry(header, kind, length, extras, offset, rules)
            length, extras = entry.size, _Extras()
            if offset + length > size:
                raise ArchiveRefused(f"it ends within {shown(entry.path)}")
            yield entry
        offset += -(-length // BLOCK) * BLOCK


def _read(file: BinaryIO, offset: int, length: int, size: int) -> bytes:
    if offset + length > size:
        raise ArchiveRefused("it is cut off" if offset else "it is no tar archive")
    file.seek(offset)
    return file.read(length)


def _check_end(file: BinaryIO, offset: int, size: int) -> None:
    """After the first block of zeros there is at least another one, and nothing else."""
    if offset + BLOCK > size:
        raise ArchiveRefused("it is cut off")
    file.seek(offset)
    while chunk := file.read(1024 * BLOCK):
        if chunk.count(0) != len(chunk):
            raise ArchiveRefused("something follows its end")


def _checked_header(header: bytes) -> tuple[bytes, int]:
    """The type of a header whose sum fits, and the length of what follows it."""
    if header[257:265] not in _MAGICS:
        raise ArchiveRefused("it is no tar archive, or of an old form that is not read")
    counted = sum(header) - sum(header[148:156]) + 8 * 0x20
    if _number(header[148:156], "sum") != counted:
        raise ArchiveRefused("the sum of a header does not fit")
    kind = header[156:157].replace(b"\0", b"0")
    if kind in _REFUSED_TYPES:
        raise ArchiveRefused(f"{shown(_text(header[:100]))} {_REFUSED_TYPES[kind]}")
    return kind, _number(header[124:136], "size")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not _OCTAL.match(digits):
        raise ArchiveRefused(f"the {what} of a header is no number that can be")
    return int(digits or b"0", 8)


def _take_extra(extras: _Extras, kind: bytes, data: bytes) -> None:
    if kind == _PAX_HEADER:
        if extras.records:
            raise ArchiveRefused("an entry has two extended headers")
        extras.records = dict(_records(data))
    elif kind == _LONG_NAME and extras.name is None:
        extras.name = data.rstrip(b"\0")
    elif kind == _LONG_TARGET and extras.target is None:
        extras.target = data.rstrip(b"\0")
    else:
        raise ArchiveRefused("an entry has two long names")


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records of an extended header: `LENGTH KEY=VALUE`, each ended by a line's end."""
    keys: set[bytes] = set()
    at = 0
    while at < len(data):
        begin = _RECORD_LENGTH.match(data, at)
        end = at + int(begin[1]) if begin else 0
        if begin is None or end > len(data) or end <= begin.end() or data[end - 1] != 0x0A:
            raise ArchiveRefused("an extended header is malformed")
        key, separator, value = data[begin.end() : end - 1].partition(b"=")
        if not separator or not key or key in keys or b"\0" in key:
            raise ArchiveRefused(f"an extended header is malformed, or says twice what {shown(key)} is")
        _check_key(key)
        if key == b"hdrcharset" and value not in _CHARACTER_SETS:
            raise ArchiveRefused(f"its names are in the character set {shown(value)}, which is not read")
        keys.add(key)
        if key not in _PASSED_OVER:
            yield key, value
        at = end


def _check_key(key: bytes) -> None:
    if key.startswith(b"GNU.sparse."):
        raise ArchiveRefused("it holds a sparse file")
    is_attribute = key.startswith(_ATTRIBUTE) and len(key) > len(_ATTRIBUTE)
    if key not in _TAKEN and key not in _PASSED_OVER and not is_attribute:
        raise ArchiveRefused(f"an extended header says {shown(key)}, which is not read")


def _entry(
    header: bytes, type_byte: bytes, length: int, extras: _Extras, offset: int, rules: ArchiveRules
) -> ArchiveEntry:
    name = _chosen_name(extras.name, extras.records.get(b"path"), _header_name(header))
    try:
        kind = ArchiveEntryKind(type_byte)
    except ValueError:
        raise ArchiveRefused(f"{shown(name)} is of the unknown type {shown(type_byte)}") from None
    path = checked_path(name, rules)
    if name.endswith(b"/") and kind is not ArchiveEntryKind.FOLDER:
        raise ArchiveRefused(f"{shown(name)} is named like a folder and is none")
    target = _chosen_name(extras.target, extras.records.get(b"linkpath"), _text(header[157:257]))
    size = _decimal(extras.records, b"size", length)
    if size and kind is not ArchiveEntryKind.FILE:
        raise ArchiveRefused(f"{shown(name)} has bytes and is no file")
    return ArchiveEntry(
        path=path,
        kind=kind,
        mode=_number(header[100:108], "mode") & 0o7777,
        uid=_identity(_decimal(extras.records, b"uid", _number(header[108:116], "owner"))),
        gid=_identity(_decimal(extras.records, b"gid", _number(header[116:124], "group"))),
        modified_ns=_modified_ns(extras.records.get(b"mtime"), header[136:148]),
        size=size,
        offset=offset,
        target=_checked_target(kind, target, rules),
        attributes=_attributes(extras.records),
    )


def _attributes(records: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(sorted((key[len(_ATTRIBUTE) :], records[key]) for key in records if key.startswith(_ATTRIBUTE)))


def _chosen_name(long: bytes | None, record: bytes | None, field: bytes) -> bytes:
    if long is not None and record is not None:
        raise ArchiveRefused("an entry has two long names")
    return next(value for value in (long, record, field) if value is not None)


def _header_name(header: bytes) -> bytes:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:265] == _MAGICS[0] else b""
    return prefix + b"/" + name if prefix else name


def _checked_target(kind: ArchiveEntryKind, target: bytes, rules: ArchiveRules) -> bytes:
    if kind is ArchiveEntryKind.HARD_LINK:
        return checked_path(target, rules)
    if kind is not ArchiveEntryKind.SYMBOLIC_LINK:
        return b""
    if not target or b"\0" in target:
        raise ArchiveRefused(f"a link leads nowhere: {shown(target)}")
    if len(target) > rules.path_bytes:
        raise LimitExceeded("the bytes of a link in the archive", len(target), rules.path_bytes)
    return target


def _decimal(records: dict[bytes, bytes], key: bytes, otherwise: int) -> int:
    if key not in records:
        return otherwise
    text = records[key].decode("ascii", "replace")
    if not _INTEGER.match(text):
        raise ArchiveRefused(f"an extended header says that {key.decode()} is {shown(records[key])}")
    return int(text)


def _identity(number: int) -> int:
    if number >= 2**32 - 1:
        raise ArchiveRefused(f"no user or group has the number {number}")
    return number


def _modified_ns(record: bytes | None, field: bytes) -> int:
    if record is None:
        return _number(field, "time") * 10**9
    found = _SECONDS.match(record.decode("ascii", "replace"))
    if found is None:
        raise ArchiveRefused(f"an extended header says that mtime is {shown(record)}")
    nanoseconds = int(found[2]) * 10**9 + int((found[3] or "")[:9].ljust(9, "0"))
    return -nanoseconds if found[1] else nanoseconds
