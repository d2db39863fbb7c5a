"""What was seen of a folder when its last snapshot was taken, and what the folder ignores.

The next snapshot reads only what has changed. What is ignored is decided by git.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.kernel.errors import LimitExceeded, StoreFailed
from weft.runtime.folder_snapshots.snapshot_objects import (
    FILE_MODE,
    LINK_MODE,
    PROGRAM_MODE,
    SkipReason,
    SnapshotLimit,
    joined,
)
from weft.runtime.opened_folders import READ_FLAGS
from weft.runtime.sandbox.own_git import Git
from weft.store.private_files import aside_of, new_file, open_aside

# --- What was seen of a folder when its last snapshot was taken: so that the next one reads only what has changed.

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
    hidden: list[int] = []
    """The numbers of the files that commands did not see."""
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
        data = self._read_checked("head")
        try:
            head = None if data is None else _decode_head(data)
        except msgspec.DecodeError:
            return None
        return head if head is not None and head.form == FORM and self.index_of(head).exists() else None

    def load_table(self, head: KnownHead) -> Table | None:
        data = self._read_checked(head.table)
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
        self._write_checked(name, data)
        return name

    def save(self, head: KnownHead) -> None:
        self._write_checked("head", _encode(head))
        for path in self.place.glob("*-*"):
            if path.name not in (head.index, head.table):
                with suppress(FileNotFoundError):
                    path.unlink()

    def forget(self) -> None:
        with suppress(FileNotFoundError):
            (self.place / "head").unlink()

    def _read_checked(self, name: str) -> bytes | None:
        try:
            data = (self.place / name).read_bytes()
        except FileNotFoundError:
            return None
        body = data[_DIGEST_BYTES:]
        return body if hashlib.sha256(body).digest() == data[:_DIGEST_BYTES] else None

    def _write_checked(self, name: str, data: bytes) -> None:
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


# --- What a folder ignores, decided by git.

IGNORE_FILE = b".gitignore"
REPOSITORY = b".git"
_MOST_RULE_BYTES = 4 * 1024 * 1024
_MOST_ANSWER_BYTES = 64 * 1024
_GIT_FILE_BYTES = 8192
ANSWER_SECONDS, MOST_SECONDS = 30.0, 60.0
"""For the names of one folder, and of all folders together: some rules take endless time to compare with some names."""


class OuterRules:
    """Where rules lie outside of a folder: above it in its repository, and in the repository's own list."""

    def __init__(self, folder: Path) -> None:
        self.above: tuple[bytes, ...] = ()
        """The names of the folders from the top of the repository to the folder."""
        self._top, self._exclude = _repository_of(folder)
        if self._top is not None:
            self.above = tuple(os.fsencode(part) for part in folder.relative_to(self._top).parts)

    @property
    def files(self) -> list[OuterFile]:
        """All of them, also where none is yet, with what tells whether they changed."""
        paths = [self._exclude] if self._exclude else []
        if self._top is not None:
            paths += [folder / os.fsdecode(IGNORE_FILE) for folder in self._folders_above()]
        return [OuterFile(os.fsencode(path), _stamp_of_path(path)) for path in paths]

    def exclude_rules(self) -> bytes | None:
        return None if self._exclude is None else _read_rules(os.fsencode(self._exclude))

    def rules_above(self) -> list[tuple[bytes, bytes]]:
        """The path below the top of each folder above that has rules, and the rules."""
        rules = []
        for depth, folder in enumerate(self._folders_above()):
            text = _read_rules(os.fsencode(folder / os.fsdecode(IGNORE_FILE)))
            if text is not None:
                rules.append((b"/".join(self.above[:depth]), text))
        return rules

    def _folders_above(self) -> list[Path]:
        if self._top is None:
            return []
        parts = [os.fsdecode(name) for name in self.above]
        return [self._top.joinpath(*parts[:depth]) for depth in range(len(parts))]


def _repository_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The top of the repository that a folder lies in, and its own list of what is ignored."""
    for place in (folder, *folder.parents):
        mark = place / os.fsdecode(REPOSITORY)
        try:
            status = mark.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            return place, mark / "info" / "exclude"
        if stat.S_ISREG(status.st_mode):
            return place, _linked_exclude(mark)
    return None, None


def _linked_exclude(mark: Path) -> Path | None:
    """Of a submodule or a second working tree, whose repository lies elsewhere."""
    text = _read_rules(os.fsencode(mark), _GIT_FILE_BYTES) or b""
    if not text.startswith(b"gitdir: ") or b"\0" in text:
        return None
    repository = mark.parent / os.fsdecode(text.removeprefix(b"gitdir: ").rstrip(b"\n"))
    common = _read_rules(os.fsencode(repository / "commondir"), _GIT_FILE_BYTES)
    if common and b"\0" not in common:
        repository = repository / os.fsdecode(common.rstrip(b"\n"))
    return repository / "info" / "exclude"


def _stamp_of_path(path: Path) -> tuple[int, int, int, int, int] | None:
    try:
        return stamp_of(path.lstat())
    except OSError:
        return None


def _read_rules(path: bytes, most: int = _MOST_RULE_BYTES, folder: int | None = None) -> bytes | None:
    """The bytes of a file of rules; None where there is no file that can be read."""
    try:
        descriptor = os.open(path, READ_FLAGS, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            text = file.read(most + 1)
        except OSError:  # it can be opened and not read: rules that git could not read either
            return None
    if len(text) > most:
        raise LimitExceeded(f"the bytes of {os.fsdecode(path)!r}", len(text), most, "shorten the rules in it")
    return text


class IgnoreRules:
    """Answers what is ignored, as long as one snapshot is taken."""

    def __init__(self, git: Git, scratch: Path, outer: OuterRules) -> None:
        self._git, self._scratch = git, scratch
        self._above = b"/".join(outer.above)
        self._exclude = _effective_rules(outer.exclude_rules())
        self._rules = {folder: rules for folder, text in outer.rules_above() if (rules := _effective_rules(text))}
        self._has_outer = bool(self._exclude or self._rules)
        self._ruled: set[bytes] = set()
        """Folders with rules, as paths in the folder that is looked through."""
        self._files: _RuleTree | None = None
        self._folders: _RuleTree | None = None

    def __enter__(self) -> IgnoreRules:
        return self

    def __exit__(self, *_: object) -> None:
        for tree in (self._files, self._folders):
            if tree is not None:
                tree.close()

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """A folder was opened, whose rules count from now on for it and what is below it."""
        rules = _effective_rules(_read_rules(IGNORE_FILE, folder=folder)) if has_rules else None
        if rules:
            self._ruled.add(path)
            inner = joined(self._above, path) if path else self._above
            self._rules[inner] = rules
            for tree in (self._files, self._folders):
                if tree is not None:
                    tree.add(inner, rules)

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        """Those of the names in a folder that are ignored; each with whether it is a folder."""
        if not names or not (self._has_outer or any(folder in self._ruled for folder in _self_and_above(path))):
            return set()
        if self._files is None or self._folders is None:
            self._files = _RuleTree(self._git, self._scratch, self._exclude, self._rules, of_folders=False)
            self._folders = _RuleTree(self._git, self._scratch, self._exclude, self._rules, of_folders=True)
        place = joined(self._above, path) if path else self._above
        files = self._files.ignored(place, [name for name, is_folder in names if not is_folder])
        return files | self._folders.ignored(place, [name for name, is_folder in names if is_folder])


class _RuleTree:
    """Rules in empty folders, and a git that is asked about names there.

    None of the names is there, and git takes what is not there for no folder. Where it is asked about folders alone, a
    rule for folders alone is therefore written as one for everything.
    """

    def __init__(
        self, git: Git, scratch: Path, exclude: bytes | None, rules: dict[bytes, bytes], *, of_folders: bool
    ) -> None:
        self._of_folders, self._spent = of_folders, 0.0
        self._top = os.fsencode(tempfile.mkdtemp(prefix="rules-", dir=scratch))
        self._write_rules(self._top + b"/exclude", exclude or b"")
        os.mkdir(self._top + b"/top")
        for folder, text in rules.items():
            self.add(folder, text)
        self._process = git.start(
            *("check-ignore", "--stdin", "-z", "--no-index", "--verbose", "--non-matching"),
            work_tree=os.fsdecode(self._top + b"/top"),
            seconds=ANSWER_SECONDS,
            settings=[f"core.excludesFile={os.fsdecode(self._top)}/exclude"],
        )

    def close(self) -> None:
        self._process.__exit__(None, None, None)
        shutil.rmtree(self._top, ignore_errors=True)

    def add(self, folder: bytes, rules: bytes) -> None:
        place = b"/".join(filter(None, (self._top, b"top", folder)))
        os.makedirs(place, exist_ok=True)
        self._write_rules(place + b"/" + IGNORE_FILE, rules)

    def ignored(self, folder: bytes, names: list[bytes]) -> set[bytes]:
        began = time.monotonic()
        try:
            if self._spent > MOST_SECONDS:
                raise StoreFailed(f"it has taken more than {MOST_SECONDS:g} seconds for the folders before")
            return self._ignored_among(folder, names)
        except StoreFailed as error:
            raise StoreFailed(
                f"git cannot tell what the folder {os.fsdecode(folder)!r} ignores: {error}",
                "look for rules with many stars in .gitignore files, and simplify them",
            ) from None
        finally:
            self._spent += time.monotonic() - began

    def _ignored_among(self, folder: bytes, names: list[bytes]) -> set[bytes]:
        paths = [b"./" + joined(folder, name) for name in names]  # a colon in front would be a sign of git's
        self._process.write(b"".join(path + b"\0" for path in paths))
        found = set()
        for name in names:
            _, _, pattern, _ = (self._process.read_until(b"\0", _MOST_ANSWER_BYTES) for _ in range(4))
            if pattern and not pattern.startswith(b"!"):
                found.add(name)
        return found

    def _write_rules(self, path: bytes, rules: bytes) -> None:
        with open(path, "wb") as file:
            file.write(_for_folders(rules) if self._of_folders else rules)


def _effective_rules(rules: bytes | None) -> bytes | None:
    """None where there is no rule among the lines."""
    if rules is None or all(not line.strip() or line.startswith(b"#") for line in rules.splitlines()):
        return None
    return rules


def _for_folders(rules: bytes) -> bytes:
    """The same rules for names that are all those of folders: without the slash at the end that asks for one."""
    return b"\n".join(map(_rule_for_folders, rules.split(b"\n")))


def _rule_for_folders(line: bytes) -> bytes:
    rule = line.removesuffix(b"\r")
    bare = rule.rstrip(b" ")
    if len(bare) < len(rule) and bare.endswith(b"\\"):  # the space after a backslash belongs to the name
        return line
    if not bare.endswith(b"/") or bare.startswith(b"#"):
        return line
    bare = bare[:-1]
    return bare[:-1] + b"\\ " if bare.endswith(b" ") else bare


def _self_and_above(path: bytes) -> Iterable[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]
    yield b""
