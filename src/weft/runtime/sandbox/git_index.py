"""Reads the names in an index of git's, and says whether a person's git may use them.

Git trusts the names in its index: `git checkout -- .` writes the file of each, `git commit -a` reads it. No command of
git's puts a name there that leads out of the files of the repository, but a program that writes the index itself can:
`../.bashrc` is then written in the home folder, and `.git/hooks/post-checkout` is run.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

INDEX = "index"
SHARED_INDEX = "sharedindex."
"""What the names of files begin with to which an index adds."""
MOST_BYTES = 256 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SIGNATURE = b"DIRC"
_VERSIONS = (2, 3, 4)
_HEADER_BYTES = 12
_STATUS_BYTES = 40
_MODE_AT = 24
_LONG_NAME = 0xFFF
_EXTENDED = 0x4000
_KNOWN_EXTENDED = 0x6000
_FOLDER_MODE = 0o040000
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Letters that macOS leaves out of names."""
_REPOSITORY = re.compile(r"\.git|git~1")


class UnreadableIndex(Exception):
    """Git may stop with an error there, or read something else than this reader."""


def is_index_name(name: str) -> bool:
    """Whether git reads a file of this name as an index, or as what one adds to."""
    return name == INDEX or name.startswith(SHARED_INDEX)


def is_usable_index(folder: int, name: str, hash_bytes: int) -> bool:
    """Whether it is an index whose names all lie among the files of the repository, and none in git's own folder."""
    try:
        with open(os.open(name, _READ, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                return False
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return False
    try:
        names = read_index_names(data, hash_bytes, is_base=name != INDEX)
        return len(data) <= MOST_BYTES and all(map(is_inner_name, names))
    except UnreadableIndex:
        return False


def is_inner_name(name: bytes) -> bool:
    """Whether a name leads to a file of the repository, in each file system that git knows."""
    return all(_is_inner_part(part) for part in name.split(b"/"))


def _is_inner_part(part: bytes) -> bool:
    if part in (b"", b".", b".."):
        return False
    if b"git" not in part.lower() and part.isascii():  # as nearly all
        return True
    text = _IGNORED.sub("", part.decode("utf-8", "surrogateescape")).casefold()
    # Windows takes a backslash for a slash, and leaves out blanks, full stops and the name of a stream at the end
    parts = (piece.partition(":")[0].rstrip(" .") for piece in text.split("\\"))
    return not any(_REPOSITORY.fullmatch(piece) for piece in parts)


def read_index_names(data: bytes, hash_bytes: int, *, is_base: bool = False) -> Iterator[bytes]:
    """The name of each entry. Raises UnreadableIndex where the file is not as git writes it."""
    version = int.from_bytes(data[4:8], "big")
    if data[:4] != _SIGNATURE or version not in _VERSIONS or len(data) < _HEADER_BYTES + hash_bytes:
        raise UnreadableIndex
    end = len(data) - hash_bytes
    position, before, has_nameless = _HEADER_BYTES, b"", False
    starts, has_table = set[int](), b"IEOT" in data
    for _ in range(int.from_bytes(data[8:12], "big")):
        start = position
        name, position, mode, is_whole = _read_entry(data, position, end, (version, hash_bytes, before))
        before = name
        if has_table and is_whole:
            starts.add(start)
        if mode == _FOLDER_MODE and name.endswith(b"/"):  # a folder of which no file is checked out
            name = name[:-1]
        if name:
            yield name
        else:  # it takes the place of an entry of the base, and has its name
            has_nameless = True
    extensions = dict(_read_extensions(data, position, end))
    # by these two, git with several threads reads entries from other places than one after the other
    last = data[end - 12 - hash_bytes : end - hash_bytes]
    if last[:4] == b"EOIE" and int.from_bytes(last[8:12], "big") != position:
        raise UnreadableIndex
    blocks = extensions.get(b"IEOT", b"")
    if not starts.issuperset(int.from_bytes(blocks[at : at + 4], "big") for at in range(4, len(blocks), 8)):
        raise UnreadableIndex
    if has_nameless and (is_base or b"link" not in extensions):
        raise UnreadableIndex


def _read_entry(data: bytes, start: int, end: int, form: tuple[int, int, bytes]) -> tuple[bytes, int, int, bool]:
    """Its name, where it ends, its mode, and whether the name is written whole, not as a change of the one before."""
    version, hash_bytes, before = form
    position = start + _STATUS_BYTES + hash_bytes
    if position + 2 > end:
        raise UnreadableIndex
    mode = int.from_bytes(data[start + _MODE_AT : start + _MODE_AT + 4], "big")
    flags = int.from_bytes(data[position : position + 2], "big")
    position += 2
    if flags & _EXTENDED:
        extended = int.from_bytes(data[position : position + 2], "big")
        position += 2
        if version < 3 or extended & ~_KNOWN_EXTENDED:
            raise UnreadableIndex
    beginning = b""
    if version == 4:
        removed, position = _read_number(data, position, end)
        if removed > len(before):
            raise UnreadableIndex
        beginning = before[: len(before) - removed]
    last = data.find(b"\0", position, end)
    if last < 0:
        raise UnreadableIndex
    name = beginning + data[position:last]
    length = flags & _LONG_NAME
    if length != min(len(name), _LONG_NAME):  # git follows the length, and this reader the zero byte
        raise UnreadableIndex
    if version == 4:
        return name, last + 1, mode, not beginning
    size = (last - start + 8) & ~7
    return name, start + size, mode, True


def _read_number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """As git writes the numbers of packs: each further byte counts one more."""
    value = -1
    while position < end and value < MOST_BYTES:
        byte = data[position]
        position += 1
        value = (value + 1) << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, position
    raise UnreadableIndex


def _read_extensions(data: bytes, position: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """What follows the entries. Raises UnreadableIndex where there are two of one name."""
    names = set[bytes]()
    while position + 8 <= end:
        name, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "big")
        if name in names:
            raise UnreadableIndex
        names.add(name)
        yield name, data[position + 8 : position + 8 + size]
        position += 8 + size


def hash_bytes_of(object_format: str) -> int:
    """How long the names of objects are."""
    return 32 if object_format == "sha256" else 20
