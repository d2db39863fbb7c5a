"""Tree objects: names, modes and ids of what a folder holds, as bytes that git hashes, packs and merges.

Names that mean something to git, such as `.gitattributes`, `.GIT` or `git~1`, are stored with a `=` before them, and so
are names that begin with `=`. Thus git neither obeys nor refuses any of them. `.git` itself and the folder of a ledger
are never stored. A tree may come from a stranger: whatever has no single form is refused when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from weft.kernel.errors import Damaged

FOLDER_MODE, FILE_MODE, PROGRAM_MODE, LINK_MODE = 0o40000, 0o100644, 0o100755, 0o120000
_MODES = {b"40000": FOLDER_MODE, b"100644": FILE_MODE, b"100755": PROGRAM_MODE, b"120000": LINK_MODE}
_MODE_TEXTS = {mode: text for text, mode in _MODES.items()}
ID_BYTES = 32
LONGEST_NAME_BYTES = 255
LONGEST_PATH_BYTES = 3072
NEVER_KEPT = frozenset((b".git", b".weft"))
"""Names of folders and files that are neither stored nor touched, at any depth."""
_MARK = b"="
_NOT_ASCII = bytes(range(128, 256))


class TreeEntry(NamedTuple):
    """One name of a stored folder, with its mode and the id of what it holds."""

    name: bytes
    mode: int
    id: bytes

    @property
    def is_folder(self) -> bool:
        return self.mode == FOLDER_MODE


def object_id(kind: bytes, data: bytes) -> bytes:
    return hashlib.sha256(b"%s %d\0" % (kind, len(data)) + data).digest()


def stored_name(name: bytes) -> bytes:
    """The name in a tree object of something with this name in a folder."""
    plain = name.translate(None, _NOT_ASCII).lower()
    return _MARK + name if plain.startswith((b".git", b"git~", _MARK)) else name


def folder_name(stored: bytes) -> bytes:
    """The name in the folder of something that has this name in a tree object."""
    return stored.removeprefix(_MARK)


def is_kept_name(name: bytes) -> bool:
    """Whether a file or folder may have this name in a snapshot."""
    return (
        0 < len(name) <= LONGEST_NAME_BYTES
        and name not in (b".", b"..")
        and b"/" not in name
        and b"\0" not in name
        and name not in NEVER_KEPT
    )


def tree_bytes(entries: Iterable[TreeEntry]) -> bytes:
    """Of entries with the names that they have in the folder, in any order."""
    stored = [(stored_name(entry.name), entry) for entry in entries]
    stored.sort(key=lambda pair: pair[0] + b"/" if pair[1].is_folder else pair[0])
    return b"".join(b"%s %s\0%s" % (_MODE_TEXTS[entry.mode], name, entry.id) for name, entry in stored)


def parse_tree(data: bytes, where: str) -> list[TreeEntry]:
    """The entries, with the names that they have in a folder. Raises Damaged for what Weft would not have written."""
    entries: list[TreeEntry] = []
    position, previous = 0, b""
    names: set[bytes] = set()
    while position < len(data):
        space = data.find(b" ", position, position + 8)
        end = data.find(b"\0", space, space + LONGEST_NAME_BYTES + 3) if space > 0 else -1
        if end < 0 or end + 1 + ID_BYTES > len(data):
            raise _bad(where, "it is cut off")
        mode = _MODES.get(data[position:space])
        if mode is None:
            raise _bad(where, f"an entry of the mode {data[position:space]!r}")
        stored = data[space + 1 : end]
        name = folder_name(stored)
        order = stored + b"/" if mode == FOLDER_MODE else stored
        if not is_kept_name(name) or stored_name(name) != stored:
            raise _bad(where, f"an entry named {stored!r}")
        if order <= previous or name in names:
            raise _bad(where, f"{stored!r} is there twice, or in the wrong place")
        names.add(name)
        previous, position = order, end + 1 + ID_BYTES
        entries.append(TreeEntry(name, mode, data[end + 1 : position]))
    return entries


def _bad(where: str, what: str) -> Damaged:
    return Damaged(f"the stored folder {where} is not one that Weft wrote: {what}", "do not use this snapshot")


def joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
