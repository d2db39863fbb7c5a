"""What a snapshot of a folder is made of, and what a store of files is asked for and answers.

Tree objects name files, modes and ids as bytes that git hashes; a manifest holds what git does not
keep. Objects go into and out of the store through git, under locks between processes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import BinaryIO, NamedTuple

from msgspec import Struct

from weft.kernel.clock import Clock
from weft.kernel.errors import Damaged, InUse, LimitExceeded, NotFound
from weft.runtime.sandbox.own_git import Git, ended_well
from weft.store.private_files import PRIVATE_FILE

# --- What a file store is asked for and answers: snapshots, changes between them, what a restore did, what a merge
# gave.

MIB = 1024 * 1024
GIB = 1024 * MIB


def readable_path(path: str) -> str:
    """A path as text that every JSON can hold: bytes that are not UTF-8 stand in it as `\\xff`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class SnapshotLimit(Struct, frozen=True, kw_only=True):
    """How much of a folder is kept. A file that is larger is left out and listed; a folder that has more is refused."""

    file_bytes: int = 64 * MIB
    total_bytes: int = 8 * GIB
    files: int = 1_000_000
    """Files, links and folders, together."""


DEFAULT_LIMIT = SnapshotLimit()


class SkipReason(StrEnum):
    """Why something in a folder is in no snapshot, though no rule ignores it."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    SPECIAL = "special"
    """A socket, a pipe or a device."""
    PATH_TOO_LONG = "path_too_long"
    IGNORED = "ignored"
    """The folder ignores it, and it is too large to be kept beside the rest."""
    HIDDEN = "hidden"
    """Commands do not see it, though its name does not say so: a copy of it elsewhere would be seen."""


class SkippedPath(Struct, frozen=True):
    """Something in a folder that is in no snapshot of it."""

    path: str
    why: SkipReason


class FolderSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a folder at one moment. The id stands for everything in it: the same state has the same id."""

    id: str
    files: int
    """Files and links."""
    size_bytes: int
    skipped: tuple[SkippedPath, ...] = ()


class CopiedSnapshots(Struct, frozen=True, kw_only=True):
    """What one store took over from another."""

    copied: int = 0
    damaged: tuple[str, ...] = ()
    """Those that were left out, since they are not whole."""


class EntryKind(StrEnum):
    """A file, a program (a file that its owner may execute), a link or a folder."""

    FILE = "file"
    PROGRAM = "program"
    """A file that its owner may execute."""
    LINK = "link"
    FOLDER = "folder"


class ChangeStatus(StrEnum):
    """Added, deleted, other bytes, another mode, or another kind."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    """Other bytes, and perhaps another mode."""
    MODE = "mode"
    """The same bytes with another mode."""
    KIND = "kind"
    """A file became a link, a folder or a program, or the other way round."""


class ChangedPath(Struct, frozen=True, kw_only=True):
    """One path that differs between two snapshots. Folders are listed where they hold no files, or changed modes."""

    path: str
    status: ChangeStatus
    old_kind: EntryKind | None = None
    new_kind: EntryKind | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    old_content: str | None = None
    """The id of the old bytes."""
    new_content: str | None = None


class LeftPath(Struct, frozen=True):
    """A path that a restore did not make equal to the snapshot, and why."""

    path: str
    why: str


class FolderRestore(Struct, frozen=True, kw_only=True):
    """What a restore did. `before` is the snapshot of the folder as it was: restoring that one takes it back."""

    before: str
    written: int
    deleted: int
    left: tuple[LeftPath, ...] = ()


class MergeConflict(Struct, frozen=True):
    """A path that both sides changed, and how."""

    path: str
    why: str


class FolderMerge(Struct, frozen=True, kw_only=True):
    """The merged snapshot, or what stands in the way of one."""

    id: str | None
    conflicts: tuple[MergeConflict, ...] = ()


# --- Tree objects: names, modes and ids of what a folder holds, as bytes that git hashes, packs and merges.

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
            raise _bad_tree(where, "it is cut off")
        mode = _MODES.get(data[position:space])
        if mode is None:
            raise _bad_tree(where, f"an entry of the mode {data[position:space]!r}")
        stored = data[space + 1 : end]
        name = folder_name(stored)
        order = stored + b"/" if mode == FOLDER_MODE else stored
        if not is_kept_name(name) or stored_name(name) != stored:
            raise _bad_tree(where, f"an entry named {stored!r}")
        if order <= previous or name in names:
            raise _bad_tree(where, f"{stored!r} is there twice, or in the wrong place")
        names.add(name)
        previous, position = order, end + 1 + ID_BYTES
        entries.append(TreeEntry(name, mode, data[end + 1 : position]))
    return entries


def _bad_tree(where: str, what: str) -> Damaged:
    return Damaged(f"the stored folder {where} is not one that Weft wrote: {what}", "do not use this snapshot")


def joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


# --- The manifest of a snapshot: what git does not keep.

MANIFEST_FORM = b"weft folder 1\n"
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
        return b"".join((MANIFEST_FORM, usual, *(head + path + b"\0" for path, head in sorted(records))))


def usual_mode(counts: dict[int, int], otherwise: int) -> int:
    """The most frequent one, the smaller of two that are as frequent."""
    return min(counts, key=lambda mode: (-counts[mode], mode), default=otherwise)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Raises Damaged for anything that `encoded` would not give."""
    head, _, rest = data.removeprefix(MANIFEST_FORM).partition(b"\n")
    usual = [_octal_mode(word, where) for word in head.split(b" ")]
    if not data.startswith(MANIFEST_FORM) or len(usual) != 3 or (rest and not rest.endswith(b"\0")):
        raise _bad_manifest(where, "its head or its end is missing")
    manifest = Manifest(usual_file=usual[0], usual_program=usual[1], usual_folder=usual[2])
    empty, repositories = set(), set()
    for kind, mode, path in _manifest_records(rest, where):
        if kind == _FILE:
            manifest.files[path] = mode
        elif kind == _FOLDER:
            manifest.folders[path] = mode
        elif kind == _EMPTY:
            empty.add(path)
        elif kind == _REPOSITORY:
            repositories.add(path)
        else:
            raise _bad_manifest(where, f"a record of the kind {kind!r}")
    manifest.empty, manifest.repositories = frozenset(empty), frozenset(repositories)
    if manifest.encoded() != data:
        raise _bad_manifest(where, "its records are doubled, or in the wrong order")
    return manifest


def _manifest_records(rest: bytes, where: str) -> Iterator[tuple[bytes, int, bytes]]:
    for record in rest.split(b"\0")[:-1]:
        kind, _, more = record.partition(b" ")
        mode, _, path = more.partition(b" ")
        if len(path) > LONGEST_PATH_BYTES or not all(map(is_kept_name, path.split(b"/") if path else ())):
            raise _bad_manifest(where, f"the path {path[:80]!r}")
        yield kind, _octal_mode(mode, where), path


def _octal_mode(word: bytes, where: str) -> int:
    if not 0 < len(word) <= 3 or word.strip(b"01234567"):
        raise _bad_manifest(where, f"the mode {word[:80]!r}")
    return int(word, 8)


def _bad_manifest(where: str, what: str) -> Damaged:
    return Damaged(f"the manifest of {where} is not one that Weft wrote: {what}", "do not use this snapshot")


def ancestors(path: bytes) -> Iterable[bytes]:
    """The folders above a path, the nearest first; without the folder itself."""
    while (cut := path.rfind(b"/")) > 0:
        path = path[:cut]
        yield path


# --- Objects into and out of the store, through git.

BLOB, TREE = b"blob", b"tree"
_KINDS = {b"commit": 1, TREE: 2, BLOB: 3}
_PACK_HEAD_BYTES = 12
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_OBJECTS = 5000
_MOST_LOOSE_OBJECTS = 100
_CHUNK_BYTES = 1024 * 1024
_AHEAD = 256
"""So many objects are asked for before the first of them is read."""
_DAMAGED = "copy the store from a backup; other snapshots may be whole"
MOST_OBJECT_BYTES = 1024 * 1024 * 1024


class ObjectWriter:
    """Takes objects and stores those that the store does not have, once `finish` is called."""

    def __init__(self, git: Git, scratch: Path) -> None:
        self._git, self._scratch = git, scratch
        self._pending: dict[bytes, tuple[bytes, bytes]] = {}
        self._pending_bytes = 0
        self._sent: set[bytes] = set()
        self._spool: BinaryIO | None = None

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spool:
            self._spool.close()

    def add(self, kind: bytes, data: bytes) -> bytes:
        """The id that it has in the store."""
        name = object_id(kind, data)
        if name not in self._pending and name not in self._sent:
            self._pending[name] = kind, data
            self._pending_bytes += len(data)
            if self._pending_bytes > _BATCH_BYTES or len(self._pending) > _BATCH_OBJECTS:
                self._flush_pending()
        return name

    def finish(self) -> None:
        """Returns once everything that was added is in the store, also after a loss of power."""
        self._flush_pending()
        if not self._sent or self._spool is None:
            return
        is_small = len(self._sent) <= _MOST_LOOSE_OBJECTS
        words = ("unpack-objects", "-q") if is_small else ("index-pack", "--stdin")
        with self._git.start(*words) as process:
            for chunk in self._pack_bytes():
                process.write(chunk)
            ended_well(process, words[0])
        self._sent.clear()
        self._spool.close()
        self._spool = None

    def _flush_pending(self) -> None:
        if not self._pending:
            return
        if self._spool is None:
            self._spool = TemporaryFile(dir=self._scratch)  # noqa: SIM115 - closed by __exit__
            self._spool.write(bytes(_PACK_HEAD_BYTES))
        is_small = not self._sent and len(self._pending) <= _MOST_LOOSE_OBJECTS
        missing = list(self._pending) if is_small else self._missing_objects(list(self._pending))
        for name in missing:
            kind, data = self._pending[name]
            self._spool.write(_object_head(_KINDS[kind], len(data)))
            self._spool.write(_compress_object(data))
        self._sent.update(missing)
        self._pending.clear()
        self._pending_bytes = 0

    def _missing_objects(self, names: list[bytes]) -> list[bytes]:
        with self._git.start("cat-file", "--batch-check", "--buffer") as process:
            process.write(b"".join(name.hex().encode() + b"\n" for name in names))
            answer = ended_well(process, "cat-file")[1]
        lines = answer.split(b"\n")
        return [name for name, line in zip(names, lines, strict=False) if line.endswith(b" missing")]

    def _pack_bytes(self) -> Iterator[bytes]:
        assert self._spool
        self._spool.flush()
        self._spool.seek(0)
        self._spool.write(b"PACK" + (2).to_bytes(4, "big") + len(self._sent).to_bytes(4, "big"))
        self._spool.seek(0)
        digest = hashlib.sha256()
        while chunk := self._spool.read(_CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
        yield digest.digest()


def _object_head(kind: int, size: int) -> bytes:
    head = bytearray()
    byte, size = kind << 4 | size & 15, size >> 4
    while size:
        head.append(byte | 128)
        byte, size = size & 127, size >> 7
    head.append(byte)
    return bytes(head)


def _compress_object(data: bytes) -> bytes:
    """A small window for small objects: making a large one would take longer than filling it."""
    return zlib.compress(data, 1, wbits=15 if len(data) > 8192 else 13)


class ObjectReader:
    """Reads objects by their ids, any number of them with one git process. What is not what it was is Damaged."""

    def __init__(self, git: Git) -> None:
        self._process = git.start("cat-file", "--batch")

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def read(self, kind: bytes, name: bytes, most: int = MOST_OBJECT_BYTES) -> bytes:
        self._ask_for_object(name)
        return self._read_answer(kind, name, most)

    def read_all(self, kind: bytes, names: Iterable[bytes], most: int = MOST_OBJECT_BYTES) -> Iterator[bytes]:
        """Each of them in turn; several are asked for before the first is taken."""
        asked: deque[bytes] = deque()
        for name in names:
            self._ask_for_object(name)
            asked.append(name)
            if len(asked) > _AHEAD:
                yield self._read_answer(kind, asked.popleft(), most)
        while asked:
            yield self._read_answer(kind, asked.popleft(), most)

    def _ask_for_object(self, name: bytes) -> None:
        self._process.write(name.hex().encode() + b"\n")

    def _read_answer(self, kind: bytes, name: bytes, most: int) -> bytes:
        head = self._process.read_until(b"\n", 4096).split(b" ")
        if head[-1] == b"missing":
            raise NotFound("stored object", name.hex(), "the snapshot was removed, or its store is not whole")
        size = int(head[2])
        if head[1] != kind:
            raise Damaged(f"object {name.hex()} is a {head[1].decode()}, not a {kind.decode()}", _DAMAGED)
        if size > most:
            raise LimitExceeded(f"the bytes of object {name.hex()}", size, most)
        data = self._process.read(size + 1)[:-1]
        if object_id(kind, data) != name:
            raise Damaged(f"object {name.hex()} holds other bytes than were stored", _DAMAGED)
        return data


# --- Locks between processes: files that are locked as long as somebody who has them open lives.

WAIT_SECONDS = 600.0
_LONGEST_PAUSE_SECONDS = 0.1


@contextmanager
def locked(path: Path, clock: Clock, *, shared: bool = False, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Hold the lock, alone or with others that share it; its descriptor, for processes that shall hold it too."""
    lock = _open_lock(path)
    try:
        _wait_for(lock, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, clock, wait_seconds)
        yield lock
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    """For reading where nothing can be written, such as on a disk that is mounted so."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return os.open(path, flags | os.O_RDONLY)


def _wait_for(lock: int, path: Path, operation: int, clock: Clock, wait_seconds: float) -> None:
    deadline, pause = clock.monotonic() + wait_seconds, 0.001
    while True:
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                raise InUse(str(path.parent)) from None
            clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return
