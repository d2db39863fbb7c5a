"""Tar archives that may come from a stranger: read, written, and kept by their SHA-256.

Nothing is unpacked: what comes out is a list of entries, and rules tell which ones are taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import ArchiveRefused, Damaged, InUse, InvalidInput, LimitExceeded, StoreFailed
from weft.kernel.foreign_input import GIB, MIB
from weft.runtime.ledger_port import ensure_held

# --- What a tar archive may hold: the entries, and the rules that tell which ones are taken.

SET_ID_BITS = 0o6000
LINKS_FOLLOWED = 40
"""As many as the kernel follows before it calls a path a loop."""


class ArchiveEntryKind(Enum):
    """The types of a tar header that are taken; all others are refused."""

    FILE = b"0"
    HARD_LINK = b"1"
    SYMBOLIC_LINK = b"2"
    FOLDER = b"5"
    PIPE = b"6"


class ArchiveEntry(Struct, frozen=True, kw_only=True):
    """One file, folder, link or pipe of an archive."""

    path: bytes
    """From the top of the archive, without a slash at either end; empty is the top itself."""
    kind: ArchiveEntryKind
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    modified_ns: int = 0
    size: int = 0
    offset: int = 0
    """Of its bytes within the archive."""
    target: bytes = b""
    """Of a hard link: the path of another entry; of a symbolic link: whatever it says."""
    attributes: tuple[tuple[bytes, bytes], ...] = ()
    """Extended attributes, by name."""


class ArchiveRules(Struct, frozen=True, kw_only=True):
    """How large an archive may be, and whether it may hold what is a danger in a stranger's."""

    archive_bytes: int = 64 * GIB
    entries: int = 1_000_000
    path_bytes: int = 4096
    depth: int = 512
    header_bytes: int = 1 * MIB
    """Of the extended headers of one entry."""
    may_omit_folders: bool = False
    """An entry may lie in folders that the archive does not name."""
    may_link_out: bool = False
    """Symbolic links that lead out of the archive: kept as they are, never followed."""
    may_raise_privileges: bool = False
    """Set-user-id and set-group-id bits, and attributes other than the user's own."""


OWN_ARCHIVE = ArchiveRules(may_link_out=True, may_raise_privileges=True)
"""For what an engine of the user packs itself: a volume is kept as it is."""
FOREIGN_ARCHIVE = ArchiveRules()
IMAGE_ARCHIVE = ArchiveRules(may_omit_folders=True)
"""For images as an engine saves them."""


def shown(path: bytes) -> str:
    """A path as an error tells it."""
    text = ascii(path.decode("utf-8", "surrogateescape"))
    return text if len(text) <= 120 else f"{text[:117]}…'"


def checked_path(name: bytes, rules: ArchiveRules) -> bytes:
    """The path that a name of an archive stands for, from its top."""
    if not name or b"\0" in name:
        raise ArchiveRefused(f"an entry has no name, or one with a zero byte: {shown(name)}")
    if len(name) > rules.path_bytes:
        raise LimitExceeded("the bytes of a name in the archive", len(name), rules.path_bytes)
    if name.startswith(b"/"):
        raise ArchiveRefused(f"{shown(name)} is an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ArchiveRefused(f"{shown(name)} leads upwards")
    if len(parts) > rules.depth:
        raise LimitExceeded("the depth of a folder in the archive", len(parts), rules.depth)
    return b"/".join(parts)


def checked_entries(entries: Iterable[ArchiveEntry], rules: ArchiveRules) -> tuple[ArchiveEntry, ...]:
    """All entries in their one order, or ArchiveRefused."""
    by_path: dict[bytes, ArchiveEntry] = {}
    for entry in entries:
        if entry.path in by_path:
            raise ArchiveRefused(f"{shown(entry.path)} is in it twice")
        if entry.kind is ArchiveEntryKind.HARD_LINK:
            _check_hard_link(entry, by_path)
        by_path[entry.path] = entry
        _check_privileges(entry, rules)
    for entry in by_path.values():
        _check_place(entry, by_path, rules)
        if entry.kind is ArchiveEntryKind.SYMBOLIC_LINK and not rules.may_link_out and leads_out(entry, by_path):
            raise ArchiveRefused(f"the link {shown(entry.path)} leads out of the archive, to {shown(entry.target)}")
    return _in_archive_order(by_path)


def _check_hard_link(entry: ArchiveEntry, before: Mapping[bytes, ArchiveEntry]) -> None:
    other = before.get(entry.target)
    if other is None or other.kind is ArchiveEntryKind.FOLDER:
        raise ArchiveRefused(f"the hard link {shown(entry.path)} leads to no file before it: {shown(entry.target)}")


def _check_privileges(entry: ArchiveEntry, rules: ArchiveRules) -> None:
    if rules.may_raise_privileges:
        return
    if entry.mode & SET_ID_BITS and entry.kind is not ArchiveEntryKind.FOLDER:
        raise ArchiveRefused(f"{shown(entry.path)} would run with the rights of its owner or group")
    if foreign := [name for name, _ in entry.attributes if not name.startswith(b"user.")]:
        raise ArchiveRefused(f"{shown(entry.path)} has the attribute {shown(foreign[0])}")


def _check_place(entry: ArchiveEntry, by_path: Mapping[bytes, ArchiveEntry], rules: ArchiveRules) -> None:
    if not entry.path and entry.kind is not ArchiveEntryKind.FOLDER:
        raise ArchiveRefused("its top is no folder")
    folder = entry.path.rpartition(b"/")[0]
    while folder:
        parent = by_path.get(folder)
        if parent is not None:
            if parent.kind is not ArchiveEntryKind.FOLDER:
                raise ArchiveRefused(f"{shown(entry.path)} lies below {shown(folder)}, which is no folder")
            return  # which is judged by itself
        if not rules.may_omit_folders:
            raise ArchiveRefused(f"the folder of {shown(entry.path)} is not in it")
        folder = folder.rpartition(b"/")[0]


def leads_out(link: ArchiveEntry, by_path: Mapping[bytes, ArchiveEntry]) -> bool:
    """Whether a symbolic link leads out of the archive, by itself or over other links in it."""
    place = link.path.split(b"/")[:-1]
    ahead = [link.target]
    followed = 0
    while ahead:
        first, _, rest = ahead.pop().partition(b"/")
        if rest:
            ahead.append(rest.lstrip(b"/") or b".")
        if first == b"":
            return True
        if first == b"..":
            if not place:
                return True
            place.pop()
        elif first != b".":
            place.append(first)
            entry = by_path.get(b"/".join(place))
            if entry is not None and entry.kind is ArchiveEntryKind.SYMBOLIC_LINK:
                followed += 1
                if followed > LINKS_FOLLOWED:
                    return True
                place.pop()
                ahead.append(entry.target)
    return False


def _in_archive_order(by_path: dict[bytes, ArchiveEntry]) -> tuple[ArchiveEntry, ...]:
    """Folders before what is in them, names by their bytes, and of the names of one file the first has its bytes. The
    others have its owner, mode and time too: an engine sets them again at each name."""
    order = sorted(by_path, key=lambda path: path.split(b"/") if path else [])
    first_name: dict[bytes, bytes] = {}
    entries = []
    for path in order:
        entry = by_path[path]
        origin = entry
        while origin.kind is ArchiveEntryKind.HARD_LINK:
            origin = by_path[origin.target]
        first = first_name.setdefault(origin.path, path)
        if first != path:
            entries.append(
                replace(origin, path=path, kind=ArchiveEntryKind.HARD_LINK, target=first, size=0, attributes=())
            )
        else:
            entries.append(replace(origin, path=path))
    return tuple(entries)


# --- Reads tar archives that may come from a stranger.

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
    return checked_entries(_read_entries(file, size, rules), rules)


def _read_entries(file: BinaryIO, size: int, rules: ArchiveRules) -> Iterator[ArchiveEntry]:
    offset, count, extras = 0, 0, _Extras()
    while True:
        header = _read_exactly(file, offset, BLOCK, size)
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
            _take_extra(extras, kind, _read_exactly(file, offset, length, size))
        else:
            count += 1
            if count > rules.entries:
                raise LimitExceeded("the entries of the archive", count, rules.entries)
            entry = _archive_entry(header, kind, length, extras, offset, rules)
            length, extras = entry.size, _Extras()
            if offset + length > size:
                raise ArchiveRefused(f"it ends within {shown(entry.path)}")
            yield entry
        offset += -(-length // BLOCK) * BLOCK


def _read_exactly(file: BinaryIO, offset: int, length: int, size: int) -> bytes:
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
    if _number_field(header[148:156], "sum") != counted:
        raise ArchiveRefused("the sum of a header does not fit")
    kind = header[156:157].replace(b"\0", b"0")
    if kind in _REFUSED_TYPES:
        raise ArchiveRefused(f"{shown(_until_nul(header[:100]))} {_REFUSED_TYPES[kind]}")
    return kind, _number_field(header[124:136], "size")


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number_field(field: bytes, what: str) -> int:
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
        extras.records = dict(_extended_records(data))
    elif kind == _LONG_NAME and extras.name is None:
        extras.name = data.rstrip(b"\0")
    elif kind == _LONG_TARGET and extras.target is None:
        extras.target = data.rstrip(b"\0")
    else:
        raise ArchiveRefused("an entry has two long names")


def _extended_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
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


def _archive_entry(
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
    target = _chosen_name(extras.target, extras.records.get(b"linkpath"), _until_nul(header[157:257]))
    size = _decimal_record(extras.records, b"size", length)
    if size and kind is not ArchiveEntryKind.FILE:
        raise ArchiveRefused(f"{shown(name)} has bytes and is no file")
    return ArchiveEntry(
        path=path,
        kind=kind,
        mode=_number_field(header[100:108], "mode") & 0o7777,
        uid=_checked_identity(_decimal_record(extras.records, b"uid", _number_field(header[108:116], "owner"))),
        gid=_checked_identity(_decimal_record(extras.records, b"gid", _number_field(header[116:124], "group"))),
        modified_ns=_modified_ns(extras.records.get(b"mtime"), header[136:148]),
        size=size,
        offset=offset,
        target=_checked_target(kind, target, rules),
        attributes=_extended_attributes(extras.records),
    )


def _extended_attributes(records: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(sorted((key[len(_ATTRIBUTE) :], records[key]) for key in records if key.startswith(_ATTRIBUTE)))


def _chosen_name(long: bytes | None, record: bytes | None, field: bytes) -> bytes:
    if long is not None and record is not None:
        raise ArchiveRefused("an entry has two long names")
    return next(value for value in (long, record, field) if value is not None)


def _header_name(header: bytes) -> bytes:
    name = _until_nul(header[:100])
    prefix = _until_nul(header[345:500]) if header[257:265] == _MAGICS[0] else b""
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


def _decimal_record(records: dict[bytes, bytes], key: bytes, otherwise: int) -> int:
    if key not in records:
        return otherwise
    text = records[key].decode("ascii", "replace")
    if not _INTEGER.match(text):
        raise ArchiveRefused(f"an extended header says that {key.decode()} is {shown(records[key])}")
    return int(text)


def _checked_identity(number: int) -> int:
    if number >= 2**32 - 1:
        raise ArchiveRefused(f"no user or group has the number {number}")
    return number


def _modified_ns(record: bytes | None, field: bytes) -> int:
    if record is None:
        return _number_field(field, "time") * 10**9
    found = _SECONDS.match(record.decode("ascii", "replace"))
    if found is None:
        raise ArchiveRefused(f"an extended header says that mtime is {shown(record)}")
    nanoseconds = int(found[2]) * 10**9 + int((found[3] or "")[:9].ljust(9, "0"))
    return -nanoseconds if found[1] else nanoseconds


# --- Writes entries as one tar archive: always the same bytes for the same entries.

CHUNK = 1024 * 1024
_LONGEST_NAME = 100


def archive_chunks(entries: Iterable[ArchiveEntry], source: BinaryIO) -> Iterator[bytes]:
    """The archive of these entries, whose bytes are read from `source` at their offsets."""
    for entry in entries:
        yield _entry_headers(entry)
        if entry.size:
            yield from _padded_contents(entry, source)
    yield bytes(2 * BLOCK)


def _padded_contents(entry: ArchiveEntry, source: BinaryIO) -> Iterator[bytes]:
    source.seek(entry.offset)
    missing = entry.size
    while missing:
        chunk = source.read(min(CHUNK, missing))
        if not chunk:
            raise ArchiveRefused(f"it ends within {shown(entry.path)}")
        missing -= len(chunk)
        yield chunk
    yield bytes(-entry.size % BLOCK)


def _entry_headers(entry: ArchiveEntry) -> bytes:
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
        records[b"mtime"] = _decimal_seconds(entry.modified_ns)
    for attribute, value in entry.attributes:
        records[b"SCHILY.xattr." + attribute] = value
    header = _plain_header(
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
    return _extended_header(records) + header if records else header


def _decimal_seconds(nanoseconds: int) -> bytes:
    whole, rest = divmod(abs(nanoseconds), 10**9)
    text = f"{'-' if nanoseconds < 0 else ''}{whole}"
    return (f"{text}.{rest:09d}".rstrip("0") if rest else text).encode()


def _extended_header(records: dict[bytes, bytes]) -> bytes:
    data = b"".join(_extended_record(key, records[key]) for key in sorted(records))
    header = _plain_header(b"PaxHeaders", b"x", ((0o644, 8), (0, 8), (0, 8), (len(data), 12), (0, 12)), b"")
    return header + data + bytes(-len(data) % BLOCK)


def _extended_record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE` and a line's end, where the length counts itself."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _plain_header(name: bytes, kind: bytes, numbers: tuple[tuple[int, int], ...], target: bytes) -> bytes:
    fields = b"".join(b"%0*o\0" % (width - 1, number) for number, width in numbers)
    before = name[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0") + fields
    after = kind + target[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0") + b"ustar\x0000" + bytes(64)
    after += b"%07o\0%07o\0" % (0, 0) + bytes(155 + 12)
    total = sum(before) + sum(after) + 8 * 0x20
    return before + b"%06o\0 " % total + after


# --- A folder of archives, each named by the SHA-256 of its bytes.

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_INCOMING = "incoming-"
_SMALLER_HINT = "leave out what is large, or allow more"


class StoredArchive(Struct, frozen=True, kw_only=True):
    digest: str
    size_bytes: int
    entries: int


class ArchiveStore:
    """Opened by its folder, which is made, for its owner alone, when the first archive comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, key: str, chunks: Iterable[bytes], rules: ArchiveRules) -> StoredArchive:
        """Stores the archive that `chunks` are; the same files give the same name. `key` names the operation: two at
        once under one key are refused."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.remove_incoming()
            with self._incoming_file(key, "raw") as raw, self._incoming_file(key, "tar") as tar:
                _write_limited(raw, chunks, rules.archive_bytes)
                entries = read_archive(raw, rules)
                digest, size = _write_hashed(tar, archive_chunks(entries, raw))
                os.replace(tar.name, self._archive_path(digest))
                self._sync_folder()
        except OSError as error:
            raise StoreFailed(f"{self.folder}: the archive could not be stored ({error.strerror})") from error
        return StoredArchive(digest=digest, size_bytes=size, entries=len(entries))

    @contextmanager
    def opened(self, digest: str, rules: ArchiveRules) -> Iterator[tuple[tuple[ArchiveEntry, ...], BinaryIO]]:
        """The entries of a stored archive, judged again, and the file in which their bytes are."""
        with self._opened_file(digest) as file:
            hashed = _file_digest(file)
            if hashed != digest:
                raise Damaged(f"the archive {digest} in {self.folder} is damaged: its bytes give {hashed}")
            yield read_archive(file, rules), file

    def has(self, digest: str) -> bool:
        return self._archive_path(digest).is_file()

    def digests(self) -> frozenset[str]:
        return frozenset(path.stem for path in self.folder.glob("*.tar") if _DIGEST.match(path.stem))

    def remove(self, digest: str) -> bool:
        """Whether it was there."""
        try:
            self._archive_path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_incoming(self) -> int:
        """Removes what crashed operations left, and says how many files that were. What is being written now stays."""
        count = 0
        for path in self.folder.glob(f"{_INCOMING}*"):
            with suppress(FileNotFoundError), open(path, "rb", opener=_open_plain_file) as file:
                if _try_lock(file):
                    path.unlink()
                    count += 1
        return count

    def _opened_file(self, digest: str) -> BinaryIO:
        try:
            return open(self._archive_path(digest), "rb", opener=_open_plain_file)
        except FileNotFoundError:
            raise Damaged(f"there is no archive {digest} in {self.folder}") from None
        except OSError as error:
            raise StoreFailed(f"{self.folder}: the archive {digest} cannot be read ({error.strerror})") from error

    def _archive_path(self, digest: str) -> Path:
        if not _DIGEST.match(digest):
            raise InvalidInput(f"{digest!r} is no SHA-256 of an archive")
        return self.folder / f"{digest}.tar"

    @contextmanager
    def _incoming_file(self, key: str, suffix: str) -> Iterator[BinaryIO]:
        """A file of this process alone. One that another took for left over, and removed, is made again."""
        path = self.folder / f"{_INCOMING}{hashlib.sha256(key.encode()).hexdigest()[:32]}.{suffix}"
        while True:
            with open(path, "w+b", opener=_open_own_file) as file:
                if not _try_lock(file):
                    raise InUse(str(path), "another process, which stores the same archive")
                if not os.fstat(file.fileno()).st_nlink:
                    continue
                file.truncate()
                try:
                    yield file
                finally:
                    if path.exists():
                        path.unlink()
                return

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_limited(file: BinaryIO, chunks: Iterable[bytes], limit: int) -> None:
    size = 0
    for chunk in chunks:
        ensure_held()
        size += len(chunk)
        if size > limit:
            raise LimitExceeded("the bytes of the archive", size, limit, _SMALLER_HINT)
        file.write(chunk)
    file.flush()


def _write_hashed(file: BinaryIO, chunks: Iterable[bytes]) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
        file.write(chunk)
    file.flush()
    os.fsync(file.fileno())
    return hashed.hexdigest(), size


def _file_digest(file: BinaryIO) -> str:
    hashed = hashlib.sha256()
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
    return hashed.hexdigest()


def _open_plain_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_own_file(path: str, flags: int) -> int:
    """Does not empty it: another process may hold it."""
    return os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
