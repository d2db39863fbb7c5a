"""The manifest of a snapshot: what git does not keep. Empty folders, full modes, and where other repositories lie.

The most frequent mode of files, of programs and of folders stands in its first lines; only what has another mode is
listed. Records are sorted by path and end in a zero byte, so that the same folder has the same manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from weft.kernel.errors import Damaged
from weft.runtime.resources.directories.trees import LONGEST_PATH_BYTES, is_kept_name

FORM = b"weft folder 1\n"
PERMISSIONS = 0o777
"""The bits that are kept: setuid, setgid and the sticky bit are not."""
_EMPTY, _FILE, _FOLDER, _REPOSITORY = b"e", b"f", b"d", b"r"


class Manifest(Struct, kw_only=True):
    """Modes by path, where they are not the usual one of their kind. The path of the folder itself is empty."""

    usual_file: int = 0o644
    usual_program: int = 0o755
    usual_folder: int = 0o755
    files: dict[bytes, int] = {}
    folders: dict[bytes, int] = {}
    empty: frozenset[bytes] = frozenset()
    """Folders without a file in them or below them."""
    repositories: frozenset[bytes] = frozenset()
    """Folders that were repositories of their own, the outermost included."""

    def file_mode(self, path: bytes, *, is_program: bool) -> int:
        return self.files.get(path, self.usual_program if is_program else self.usual_file)

    def folder_mode(self, path: bytes) -> int:
        return self.folders.get(path, self.usual_folder)

    def encoded(self) -> bytes:
        usual = b"%o %o %o\n" % (self.usual_file, self.usual_program, self.usual_folder)
        records = [(path, b"%s %o " % (_FILE, mode)) for path, mode in self.files.items()]
        records += [(path, b"%s %o " % (_FOLDER, mode)) for path, mode in self.folders.items()]
        records += [(path, _EMPTY + b" 0 ") for path in self.empty]
        records += [(path, _REPOSITORY + b" 0 ") for path in self.repositories]
        return b"".join((FORM, usual, *(head + path + b"\0" for path, head in sorted(records))))


def usual_mode(counts: dict[int, int], otherwise: int) -> int:
    """The most frequent one, the smaller of two that are as frequent."""
    return min(counts, key=lambda mode: (-counts[mode], mode), default=otherwise)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises Damaged for anything that `encoded` would not give."""
    head, _, rest = data.removeprefix(FORM).partition(b"\n")
    usual = [_mode(word, where) for word in head.split(b" ")]
    if not data.startswith(FORM) or len(usual) != 3 or (rest and not rest.endswith(b"\0")):
        raise _bad(where, "its head or its end is missing")
    manifest = Manifest(usual_file=usual[0], usual_program=usual[1], usual_folder=usual[2])
    empty, repositories = set(), set()
    for kind, mode, path in _records(rest, where):
        if kind == _FILE:
            manifest.files[path] = mode
        elif kind == _FOLDER:
            manifest.folders[path] = mode
        elif kind == _EMPTY:
            empty.add(path)
        elif kind == _REPOSITORY:
            repositories.add(path)
        else:
            raise _bad(where, f"a record of the kind {kind!r}")
    manifest.empty, manifest.repositories = frozenset(empty), frozenset(repositories)
    if manifest.encoded() != data:
        raise _bad(where, "its records are doubled, or in the wrong order")
    return manifest


def _records(rest: bytes, where: str) -> Iterator[tuple[bytes, int, bytes]]:
    for record in rest.split(b"\0")[:-1]:
        kind, _, more = record.partition(b" ")
        mode, _, path = more.partition(b" ")
        if len(path) > LONGEST_PATH_BYTES or not all(map(is_kept_name, path.split(b"/") if path else ())):
            raise _bad(where, f"the path {path[:80]!r}")
        yield kind, _mode(mode, where), path


def _mode(word: bytes, where: str) -> int:
    if not 0 < len(word) <= 3 or word.strip(b"01234567"):
        raise _bad(where, f"the mode {word[:80]!r}")
    return int(word, 8)


def _bad(where: str, what: str) -> Damaged:
    return Damaged(f"the manifest of {where} is not one that Weft wrote: {what}", "do not use this snapshot")


def ancestors(path: bytes) -> Iterable[bytes]:
    """The folders above a path, the nearest first; without the folder itself."""
    while (cut := path.rfind(b"/")) > 0:
        path = path[:cut]
        yield path
