"""A store of files: snapshots of folders, as trees of a git repository that belongs to Weft alone.

Removed snapshots are gone with their bytes; what is kept is packed, checked, and handed to another
store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import Damaged, InvalidInput, LimitExceeded, NotFound, StoreFailed, WeftError
from weft.runtime.folder_snapshots.folder_scan import BESIDE, FolderTaking, KeptApart, SeenFolder, open_real_folder
from weft.runtime.folder_snapshots.git_objects import OBJECTS_CACHE, is_all_kept
from weft.runtime.folder_snapshots.known_files import KnownFiles, Table
from weft.runtime.folder_snapshots.snapshot_changes import (
    NOTHING,
    EntryDifference,
    FolderRestoring,
    SnapshotComparison,
    StoredFolder,
    changed_paths,
    chosen,
    entry_at,
    load_snapshot,
    merge_snapshots,
)
from weft.runtime.folder_snapshots.snapshot_objects import (
    BLOB,
    DEFAULT_LIMIT,
    FOLDER_MODE,
    MOST_OBJECT_BYTES,
    TREE,
    ChangedPath,
    CopiedSnapshots,
    FolderMerge,
    FolderRestore,
    FolderSnapshot,
    LeftPath,
    ObjectReader,
    ObjectWriter,
    SnapshotLimit,
    TreeEntry,
    is_kept_name,
    locked,
    parse_tree,
)
from weft.runtime.folder_snapshots.whole_folders import GitChange, IsWithheld, WholeFolders
from weft.runtime.opened_folders import Identity
from weft.runtime.sandbox.git_repositories import GitFolder
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.sandbox.own_git import (
    CONFIGURATION,
    HEAD,
    Git,
    ended_well,
    ensure_merges,
    find_git,
    is_object_id,
    opened_repository,
)
from weft.store.private_files import make_folder

# --- Removes snapshots so that their bytes are gone, packs what is kept, checks it, and hands it to another store.

SNAPSHOTS = "refs/snapshots"
_MOST_PACKS = 20
_CHUNK_BYTES = 1024 * 1024


def kept_snapshots(git: Git) -> set[str]:
    lines = git.run("for-each-ref", "--format=%(refname)", SNAPSHOTS).decode().split()
    return {line.rpartition("/")[2] for line in lines}


def clear_remains(git: Git, scratch: Path) -> None:
    """Locks and files that killed processes left. Nobody else uses the store now."""
    for lock in ((git.folder / "refs").rglob("*.lock"), git.folder.glob("*.lock"), git.folder.glob("packed-refs.new")):
        for path in list(lock):
            path.unlink(missing_ok=True)
    for path in scratch.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_snapshots(git: Git, caches: Path, unkept: Collection[str]) -> None:
    """The references to them, what was seen of their folders, and every object that only they have."""
    for place in caches.iterdir():
        if not place.name.endswith(OBJECTS_CACHE) and not _goes_on(KnownFiles(place), unkept):
            shutil.rmtree(place, ignore_errors=True)
    lines = "".join(f"delete {SNAPSHOTS}/{snapshot}\n" for snapshot in sorted(unkept))
    git.run("update-ref", "--stdin", stdin=lines.encode())
    git.run("pack-refs", "--all")
    git.run("repack", "-a", "-d", "-q")
    git.run("prune", "--expire=now")
    for place in caches.glob(f"*{OBJECTS_CACHE}"):
        if not is_all_kept(git, place):
            shutil.rmtree(place, ignore_errors=True)


def _goes_on(known: KnownFiles, unkept: Collection[str]) -> bool:
    """Whether what was seen of a folder holds when these snapshots are removed. It is noted before they are."""
    head = known.load()
    if head is None:
        return False
    if head.snapshot not in unkept:
        return True
    if not head.whole or head.whole in unkept:
        return False
    head.is_part_alone = True
    known.save(head)
    return True


def pack_objects(git: Git) -> None:
    """Objects that are files of their own become one pack; many packs become one. Nothing is removed."""
    git.run("repack", "-d", "-q")
    if len(list((git.folder / "objects" / "pack").glob("*.pack"))) > _MOST_PACKS:
        git.run("repack", "-a", "-d", "-k", "-q")
    git.run("pack-refs", "--all")


def found_problems(git: Git, snapshot: str, limit: SnapshotLimit, most: int = MOST_OBJECT_BYTES) -> list[str]:
    """What is wrong with a stored snapshot, after reading all of it; nothing, if it is whole."""
    problems: list[str] = []
    with ObjectReader(git) as reader:
        try:
            folder = load_snapshot(reader, snapshot)
            entries = SnapshotComparison(reader, NOTHING, folder, limit).differences()
        except WeftError as error:
            return [str(error)]
        problems += _manifest_problems(folder, entries)
    problems += _problems_beside(git, folder)
    files = [one for one in entries if one.new is not None and not one.new.is_folder]
    return problems + [f"{os.fsdecode(path)!r}: {why}" for path, why in _unreadable_files(git, files, most)]


def _problems_beside(git: Git, folder: StoredFolder, good: set[bytes] | None = None) -> list[str]:
    """What is wrong with what a whole snapshot has beside the files. What is `good` is not read, and what turns out to
    be is added."""
    known = set[bytes]() if good is None else good
    waiting = [TreeEntry(BESIDE, FOLDER_MODE, folder.beside)] if folder.beside else []
    with ObjectReader(git) as reader:
        while waiting:
            entry = waiting.pop()
            if entry.id in known:
                continue
            try:
                data = reader.read(TREE if entry.is_folder else BLOB, entry.id)
                waiting += parse_tree(data, entry.id.hex()) if entry.is_folder else []
            except WeftError as error:
                return [f"what lies beside the files: {error}"]
            known.add(entry.id)
    return []


def _unreadable_files(git: Git, files: list[EntryDifference], most: int) -> Iterator[tuple[bytes, str]]:
    """After an object that cannot be read, the rest is read by another process."""
    position = 0
    while position < len(files):
        with ObjectReader(git) as reader:
            try:
                rest = [one.new.id for one in files[position:] if one.new is not None]
                for _ in reader.read_all(BLOB, rest, most):
                    position += 1
            except (Damaged, LimitExceeded, NotFound) as error:
                yield files[position].path, str(error)
                position += 1


def damaged_snapshots(git: Git, snapshots: Iterable[str], limit: SnapshotLimit) -> Iterator[tuple[str, list[str]]]:
    """Those of which something is missing or not what it was, each with what is wrong. What the last whole one had is
    not read again, so snapshots of one folder are best given in their order."""
    whole, good = NOTHING, set[bytes]()
    for snapshot in snapshots:
        with ObjectReader(git) as reader:
            try:
                folder = load_snapshot(reader, snapshot)
                entries = SnapshotComparison(reader, whole, folder, limit).differences()
            except WeftError as error:
                yield snapshot, [str(error)]
                continue
        files = [one for one in entries if one.new is not None and one.new.id and one.new.id not in good]
        bad = dict(_unreadable_files(git, files, MOST_OBJECT_BYTES))
        good.update(one.new.id for one in files if one.new is not None and one.path not in bad)
        beside = _problems_beside(git, folder, good)
        if bad or beside:
            yield snapshot, [*(f"{os.fsdecode(path)!r}: {why}" for path, why in bad.items()), *beside]
        else:
            whole = folder


def copy_snapshots(source: Git, target: Git, snapshots: Collection[str], known: Collection[str]) -> None:
    """Store all that these snapshots hold in another store, without what it has with those that it knows. Raises
    StoreFailed where one of them is not whole."""
    lines = "".join([*(f"{snapshot}\n" for snapshot in snapshots), *(f"^{snapshot}\n" for snapshot in known)])
    with (
        source.start("pack-objects", "--stdout", "--revs", "-q") as packing,
        target.start("index-pack", "--stdin") as storing,
    ):
        packing.write(lines.encode())
        packing.close_input()
        while data := packing.read_some():
            storing.write(data)
        ended_well(packing, "pack-objects")
        ended_well(storing, "index-pack")
    target.run("rev-list", "--objects", "--quiet", "--stdin", stdin=lines.encode())


def _manifest_problems(folder: StoredFolder, entries: list[EntryDifference]) -> list[str]:
    kinds = {one.path: one.new.is_folder for one in entries if one.new is not None}
    strays = [path for path in folder.manifest.files if kinds.get(path) is not False]
    strays += [path for path in folder.manifest.folders if path and kinds.get(path) is not True]
    return [f"the manifest names {os.fsdecode(path)!r}, which is not there" for path in strays]


def send_snapshot(git: Git, snapshot: str, file: BinaryIO) -> None:
    with git.start("pack-objects", "--stdout", "--revs", "-q") as process:
        process.write(f"{snapshot}\n".encode())
        process.close_input()
        while data := process.read_some():
            file.write(data)
        ended_well(process, "pack-objects")


def receive_snapshot(git: Git, snapshot: str, file: BinaryIO, limit: SnapshotLimit) -> None:
    """Raises InvalidInput where the bytes do not give the whole of this snapshot."""
    with git.start("index-pack", "--stdin", f"--max-input-size={limit.total_bytes}") as process:
        while data := file.read(_CHUNK_BYTES):
            process.write(data)
        ended_well(process, "index-pack")
    problems = found_problems(git, snapshot, limit, limit.file_bytes)
    with ObjectReader(git) as reader:
        is_whole = not problems and bool(load_snapshot(reader, snapshot).beside)
    if is_whole:  # a stranger gives files, and nothing of a repository
        problems = ["it has more than files"]
    if problems:
        raise InvalidInput(f"this is not the snapshot {snapshot}: {problems[0]}", "ask for it again")


# --- A store of files: snapshots of folders, as trees of a git repository that belongs to Weft alone.

_FOLDERS = ("objects/info", "objects/pack", "refs/heads", "refs/snapshots")
_INNER_PARTS = {"info": frozenset(("refs",)), "objects/info": frozenset(("packs",))}
_LINKLESS = ("config", "objects", "objects/info", "objects/pack", "refs", "refs/snapshots", "packed-refs")
_PARTS = frozenset(("HEAD", "config", "objects", "refs", "info", "packed-refs", "packed-refs.lock", "packed-refs.new"))


class FileStore:
    """A store in a folder of its own, which is made for its owner alone when it is first used."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        random: RandomBytes = system_random,
        git: str | None = None,
        path_folders: str = "",
        apart: Callable[[], Iterable[Path]] = tuple,
        hidden: Callable[[Path], HiddenFiles] | None = None,
    ) -> None:
        """`path_folders` are more folders in which git may lie, as PATH names them. `apart` gives files and folders
        that are in no snapshot, wherever they lie; `hidden` tells what commands do not see of a folder: `KeptApart`."""
        self._path, self._random = path.absolute(), random
        self._path_folders, self._program = path_folders, git
        self._list_apart, self._hidden_in = apart, hidden
        self._clock = clock or SystemClock()
        self._repository = self._path / "git"
        self._is_made_whole = False

    @property
    def path(self) -> Path:
        return self._path

    def snapshot(
        self, folder: Path, *, limit: SnapshotLimit = DEFAULT_LIMIT, is_resolved: bool = False
    ) -> FolderSnapshot:
        """Keep the state of a folder. Raises LimitExceeded where it holds more than the limit lets it. A path that
        `is_resolved` leads through no link: one that came in its way since is not followed."""
        with self._opened_folder(folder, is_resolved=is_resolved) as (place, root, git, known):
            return self._take_folder(place, root, git, known, limit).snapshot

    def restore(
        self,
        snapshot: str,
        folder: Path,
        *,
        only: Collection[str] | None = None,
        limit: SnapshotLimit = DEFAULT_LIMIT,
        is_resolved: bool = False,
    ) -> FolderRestore:
        """Make a folder equal to a snapshot, with its mode, or make the folder. `only` names files and folders in it;
        all, if None.

        What the folder ignores, or is in no snapshot for another reason, is neither written nor removed. A snapshot of
        the folder is taken first.
        """
        paths = None if only is None else {_checked_path(path) for path in only}
        with self._using_store() as git, ObjectReader(git) as reader:
            target = load_snapshot(reader, _checked_id(snapshot))
        _make_missing(folder)
        with (
            self._opened_folder(folder, is_resolved=is_resolved) as (place, root, git, known),
            ObjectReader(git) as reader,
        ):
            seen, table = self._take_with_files(place, root, git, known, limit)
            before = load_snapshot(reader, seen.snapshot.id)
            differences = chosen(SnapshotComparison(reader, before, target, limit).differences(), paths)
            folders = {one.path: one for one in seen.head.folders}
            restoring = FolderRestoring(root, reader, folders, table, self._random)
            restoring.run(differences)
            if paths is None:
                restoring.set_top_mode(target.manifest.folder_mode(b""))
        return FolderRestore(
            before=seen.snapshot.id,
            written=restoring.written,
            deleted=restoring.deleted,
            left=tuple(LeftPath(os.fsdecode(path), why) for path, why in sorted(restoring.left.items())),
        )

    def snapshot_whole(
        self,
        folder: Path,
        git_folders: Callable[[Path], Sequence[GitFolder]],
        is_withheld: IsWithheld,
        *,
        limit: SnapshotLimit = DEFAULT_LIMIT,
        is_resolved: bool = False,
    ) -> FolderSnapshot:
        """Keep also what commands can change beside the files: git's folders, and ignored files that are not too large;
        the others are among those that were skipped. Raises a WeftError where something of git's cannot be kept."""
        with self._opened_folder(folder, is_resolved=is_resolved) as (place, root, git, known):
            seen = self._take_folder(place, root, git, known, limit)
            whole, skipped = self._whole_folders(git, place).take(place, root, seen, git_folders(place), is_withheld)
            self._keep_snapshots(git, [whole])
            if seen.head.whole != whole:
                seen.head.whole = whole
                known.save(seen.head)
        taken = seen.snapshot
        return replace(taken, id=whole, skipped=(*taken.skipped, *sorted(skipped, key=lambda one: one.path)))

    def restore_whole(
        self,
        snapshot: str,
        folder: Path,
        git_folders: Callable[[Path], Sequence[GitFolder]],
        *,
        limit: SnapshotLimit = DEFAULT_LIMIT,
        is_resolved: bool = False,
    ) -> FolderRestore:
        """Make a folder equal to a whole snapshot, in place, with all that it has beside. Rules of what is ignored that
        came since keep nothing as it is. A snapshot of the files is taken first."""
        _checked_id(snapshot)
        _make_missing(folder)
        with self._opened_folder(folder, is_resolved=is_resolved) as (place, root, git, known):
            seen, table = self._take_with_files(place, root, git, known, limit)
            done = self._whole_folders(git, place).restore(place, root, snapshot, seen, table, git_folders)
        left = tuple(LeftPath(path, why) for path, why in sorted(done.left.items()))
        return FolderRestore(before=seen.snapshot.id, written=done.written, deleted=done.deleted, left=left)

    def git_changes(
        self, snapshot: str, folder: Path, git_folders: Callable[[Path], Sequence[GitFolder]]
    ) -> list[GitChange]:
        """What of git's in a folder is not what a whole snapshot has. The folder stays as it is."""
        with self._opened_folder(folder, is_resolved=True) as (place, _, git, _known):
            return self._whole_folders(git, place).git_changes(place, _checked_id(snapshot), git_folders)

    def changed_programs(self, snapshot: str, folder: Path, is_withheld: IsWithheld) -> list[str]:
        """The paths of files that some program runs by itself and that were not there, or not the same, when a whole
        snapshot of a folder was taken; also those that the folder ignores."""
        with self._opened_folder(folder, is_resolved=True) as (place, root, git, _known):
            return self._whole_folders(git, place).changed_programs(root, _checked_id(snapshot), is_withheld)

    def _kept_apart(self, place: Path) -> KeptApart:
        identities = frozenset(_identities_of((self._path, *self._list_apart())))
        return KeptApart(identities, None if self._hidden_in is None else self._hidden_in(place))

    def _whole_folders(self, git: Git, place: Path) -> WholeFolders:
        apart = self._kept_apart(place)
        return WholeFolders(
            git, self._git_program(), self._scratch_path, self._caches_path, self._clock, self._random, apart
        )

    def changes(self, old: str | None, new: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> list[ChangedPath]:
        """The paths that differ between two snapshots, sorted; all that the new one holds, if there is no old one."""
        with self._using_store() as git, ObjectReader(git) as reader:
            one = NOTHING if old is None else load_snapshot(reader, _checked_id(old))
            two = load_snapshot(reader, _checked_id(new))
            return list(changed_paths(SnapshotComparison(reader, one, two, limit).differences()))

    def text_diff(self, change: ChangedPath) -> list[str] | None:
        """The lines that differ, with three around them, as a unified diff from its first `@@` on; None for bytes that
        are no text."""
        with self._using_store() as git, ObjectWriter(git, self._scratch_path) as writer:
            empty = writer.add(BLOB, b"").hex()
            writer.finish()
            ids = [_checked_id(content or empty) for content in (change.old_content, change.new_content)]
            words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--unified=3", *ids)
            answer = git.run(*words)
        start = answer.find(b"\n@@ ")
        if start < 0:
            return None if b"\nBinary files " in answer else []
        return answer[start + 1 :].decode(errors="replace").removesuffix("\n").split("\n")

    def read(self, snapshot: str, path: str, *, most: int = DEFAULT_LIMIT.file_bytes) -> bytes:
        """The bytes of a file in a snapshot, or where a link leads. Raises NotFound."""
        with self._using_store() as git, ObjectReader(git) as reader:
            folder = load_snapshot(reader, _checked_id(snapshot))
            entry = entry_at(reader, folder.files, _checked_path(path))
            if entry is None or entry.is_folder:
                raise NotFound("file of the snapshot", path, "list what the snapshot holds")
            return reader.read(BLOB, entry.id, most)

    def merge(self, base: str, ours: str, theirs: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> FolderMerge:
        """Bring two snapshots together that came from one: into a merged one, or to a list of conflicts."""
        ensure_merges(self._git_program())
        with self._using_store() as git, ObjectReader(git) as reader, ObjectWriter(git, self._scratch_path) as writer:
            one, two, three = (load_snapshot(reader, _checked_id(snapshot)) for snapshot in (base, ours, theirs))
            merge = merge_snapshots(git, reader, writer, one, two, three, limit)
            writer.finish()
            if merge.id is not None:
                self._keep_snapshots(git, [merge.id])
        return merge

    def ids(self) -> set[str]:
        """All snapshots that are kept."""
        with self._using_store() as git:
            return kept_snapshots(git)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nothing is removed meanwhile: whoever takes a snapshot holds the store until its id is recorded."""
        with self._using_store():
            yield

    def prune(self, keep: Callable[[], Collection[str]]) -> int:
        """Remove all snapshots but these, with every byte that only they have; how many were removed.

        `keep` is called when nobody else uses the store any longer.
        """
        with self._alone_in_store() as git:
            clear_remains(git, self._scratch_path)
            unkept = kept_snapshots(git) - set(keep())
            remove_snapshots(git, self._caches_path, unkept)
        return len(unkept)

    def remove(self, unwanted: Callable[[], Collection[str]]) -> int:
        """Remove these snapshots, with every byte that only they have; how many were there.

        `unwanted` is called when nobody else uses the store any longer.
        """
        with self._alone_in_store() as git:
            clear_remains(git, self._scratch_path)
            gone = kept_snapshots(git) & set(unwanted())
            remove_snapshots(git, self._caches_path, gone)
        return len(gone)

    def pack(self) -> None:
        """Let what is kept take less room. Nothing is removed but what killed processes left."""
        with self._alone_in_store() as git:
            clear_remains(git, self._scratch_path)
            pack_objects(git)

    def verify(self, snapshot: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> list[str]:
        """What is wrong with a stored snapshot, in sentences; nothing, if all of it is as it was stored."""
        with self._using_store() as git:
            return found_problems(git, _checked_id(snapshot), limit)

    def damaged(
        self, snapshots: Iterable[str], *, limit: SnapshotLimit = DEFAULT_LIMIT
    ) -> Iterator[tuple[str, list[str]]]:
        """Of many snapshots those that are not whole, and what is wrong with each; every byte is read once."""
        with self._using_store() as git:
            yield from damaged_snapshots(git, map(_checked_id, snapshots), limit)

    def has(self, snapshot: str) -> bool:
        """Whether a snapshot is kept here."""
        return self.is_made and snapshot in self.ids()

    @property
    def is_made(self) -> bool:
        """Whether anything was ever kept here."""
        return self._repository.is_dir()

    def copy_to(self, other: FileStore) -> CopiedSnapshots:
        """Have another store keep every snapshot of this one, too. Those that are not whole are left out and named.
        What is stored comes before what refers to it, so one that is cut short leaves no half of a snapshot."""
        if not self.is_made:
            return CopiedSnapshots()
        with self._using_store() as git:
            ours = kept_snapshots(git)
            known = other.ids() & ours if other.is_made else set()
            new, damaged = sorted(ours - known), list[str]()
            if not new:
                return CopiedSnapshots()
            with other._using_store() as target:
                try:
                    copy_snapshots(git, target, new, known)
                except StoreFailed:
                    damaged = [snapshot for snapshot, _ in damaged_snapshots(git, new, DEFAULT_LIMIT)]
                    if not damaged:
                        raise
                    new = [snapshot for snapshot in new if snapshot not in damaged]
                    copy_snapshots(git, target, new, known)
                other._keep_snapshots(target, new)
        return CopiedSnapshots(copied=len(new), damaged=tuple(damaged))

    def send(self, snapshot: str, file: BinaryIO) -> None:
        """Write all that a snapshot holds to a file, as a pack of git's."""
        with self._using_store() as git, ObjectReader(git) as reader:
            load_snapshot(reader, _checked_id(snapshot))
            send_snapshot(git, snapshot, file)

    def receive(self, snapshot: str, file: BinaryIO, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> None:
        """Take in and keep what `send` wrote, from whomever. Raises InvalidInput where it is not this snapshot."""
        with self._using_store() as git:
            receive_snapshot(git, _checked_id(snapshot), file, limit)
            self._keep_snapshots(git, [snapshot])

    def _take_folder(self, place: Path, root: int, git: Git, known: KnownFiles, limit: SnapshotLimit) -> SeenFolder:
        taking = FolderTaking(git, known, self._scratch_path, self._clock, limit, self._kept_apart(place))
        return taking.take(place, root, lambda snapshot: self._keep_snapshots(git, [snapshot]))

    def _take_with_files(
        self, place: Path, root: int, git: Git, known: KnownFiles, limit: SnapshotLimit
    ) -> tuple[SeenFolder, Table]:
        """Also what was seen of every file. What a damaged cache does not tell is looked for again."""
        seen = self._take_folder(place, root, git, known, limit)
        table = known.load_table(seen.head)
        if table is None:
            known.forget()
            seen = self._take_folder(place, root, git, known, limit)
            table = known.load_table(seen.head)
        return seen, table or {}

    @property
    def _scratch_path(self) -> Path:
        return self._path / "scratch"

    @contextmanager
    def _opened_folder(self, folder: Path, *, is_resolved: bool) -> Iterator[tuple[Path, int, Git, KnownFiles]]:
        """A folder that nobody else looks through or restores meanwhile."""
        place = folder if is_resolved else _real_folder(folder)
        if place == self._path.resolve() or self._path.resolve() in place.parents:
            raise InvalidInput(f"{place} is a part of the store of files", "name a folder outside of it")
        with self._using_store() as git, ExitStack() as stack:
            known = KnownFiles(self._caches_path / hashlib.sha256(os.fsencode(place)).hexdigest()[:32])
            make_folder(known.place)
            lock = stack.enter_context(locked(known.place / "lock", self._clock))
            with _raising_store_failed(place):
                root = open_real_folder(place)
                stack.callback(os.close, root)
                yield place, root, git.holding(lock), known

    @property
    def _caches_path(self) -> Path:
        return self._path / "folders"

    @contextmanager
    def _alone_in_store(self) -> Iterator[Git]:
        """The store, while nobody else uses it."""
        self._ensure_made()
        with _raising_store_failed(self._path), locked(self._path / "lock", self._clock) as lock:
            self._ensure_ours()
            with opened_repository(self._git_program(), self._repository, (lock,)) as git:
                yield git

    @contextmanager
    def _using_store(self) -> Iterator[Git]:
        """The store, from which nothing is removed meanwhile."""
        self._ensure_made()
        with ExitStack() as stack:
            with _raising_store_failed(self._path):
                lock = stack.enter_context(locked(self._path / "lock", self._clock, shared=True))
                self._ensure_ours()
                git = stack.enter_context(opened_repository(self._git_program(), self._repository, (lock,)))
            yield git

    def _git_program(self) -> str:
        if self._program is None:
            self._program = find_git(path=self._path_folders)
        return self._program

    def _ensure_made(self) -> None:
        """Made whole or not at all: what a process that died left of it is made anew."""
        if self._is_made_whole:
            return
        self._git_program()  # without git nothing is made
        parts = (self._repository, self._scratch_path, self._caches_path)
        with _raising_store_failed(self._path), ExitStack() as stack:
            is_whole = all(part.is_dir() for part in parts)  # then nobody is waited for
            make_folder(self._path)
            stack.enter_context(locked(self._path / "lock", self._clock, shared=is_whole))
            if not self._repository.exists():
                aside = self._path / "git.partial"
                shutil.rmtree(aside, ignore_errors=True)
                for name in _FOLDERS:
                    (aside / name).mkdir(parents=True)
                aside.chmod(0o700)
                (aside / "HEAD").write_bytes(HEAD)
                (aside / "config").write_bytes(CONFIGURATION)
                aside.rename(self._repository)
            make_folder(self._scratch_path)
            make_folder(self._caches_path)
        self._is_made_whole = True

    def _ensure_ours(self) -> None:
        """Raises Damaged where something lies in the repository that Weft did not put there: looked at before each use.

        Git does not read it from there. But whoever was here can have changed snapshots too, and another git, started
        by a person in this folder, would obey it.
        """
        strangers = sorted(set(os.listdir(self._repository)) - _PARTS)
        for inner, names in _INNER_PARTS.items():
            with suppress(FileNotFoundError):
                strangers += [f"{inner}/{name}" for name in sorted(set(os.listdir(self._repository / inner)) - names)]
        strangers += [name for name in ("", *_LINKLESS) if (self._repository / name).is_symlink()]
        if (self._repository / "config").read_bytes() != CONFIGURATION:
            strangers.append("config")
        if strangers:
            raise Damaged(
                f"{self._repository} is not as Weft made it: {', '.join(filter(None, strangers)) or 'a link'}",
                "take the store from a backup, or remove what does not belong there",
            )

    def _keep_snapshots(self, git: Git, snapshots: Collection[str]) -> None:
        """Refer to them, so that they are kept. A lock that git left when it was killed is nobody's any longer."""
        with locked(self._path / "refs.lock", self._clock) as lock:
            for snapshot in snapshots:
                (self._repository / SNAPSHOTS / f"{snapshot}.lock").unlink(missing_ok=True)
            lines = "".join(f"update {SNAPSHOTS}/{snapshot} {snapshot}\n" for snapshot in snapshots)
            git.holding(lock).run("update-ref", "--stdin", stdin=lines.encode())


def _identities_of(paths: Iterable[Path]) -> Iterator[Identity]:
    for path in paths:
        with suppress(FileNotFoundError):  # gone since it was listed
            status = path.lstat()
            yield status.st_dev, status.st_ino


def _checked_id(snapshot: str) -> str:
    if not is_object_id(snapshot):
        raise InvalidInput(f"{snapshot!r} is not the id of a snapshot", "name the 64 letters of one")
    return snapshot


def _checked_path(path: str) -> bytes:
    """A path in a folder as bytes. Raises InvalidInput for one that leads elsewhere."""
    encoded = os.fsencode(path.rstrip("/"))
    if not all(map(is_kept_name, encoded.split(b"/"))):
        raise InvalidInput(f"{path!r} is not a path in a snapshot", "name it from the folder on, without `.` and `..`")
    return encoded


def _real_folder(folder: Path) -> Path:
    try:
        place = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidInput(f"{folder} cannot be opened: {error}", "name a folder that exists") from None
    if not place.is_dir():
        raise InvalidInput(f"{folder} is not a folder", "name a folder")
    return place


def _make_missing(folder: Path) -> None:
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}", "name a folder in one that exists") from None


@contextmanager
def _raising_store_failed(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{error.filename or place}: {error.strerror}") from None
