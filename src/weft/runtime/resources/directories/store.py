"""A store of files: snapshots of folders, as trees of a git repository that belongs to Weft alone.

Nobody else's repository is opened. One lock is shared by all that add to the store and held alone by what removes from
it; one lock for each folder lets one process at a time look through it or restore it. Git inherits them, so they hold
until the last of both is gone.
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
from weft.kernel.errors import Damaged, InvalidInput, NotFound, StoreFailed
from weft.runtime.resources.directories.comparing import (
    NOTHING,
    Comparison,
    changed_paths,
    entry_at,
    load_snapshot,
)
from weft.runtime.resources.directories.git_changes import GitChange
from weft.runtime.resources.directories.known_files import KnownFiles, Table
from weft.runtime.resources.directories.locks import locked
from weft.runtime.resources.directories.merging import merge_snapshots
from weft.runtime.resources.directories.model import (
    DEFAULT_LIMIT,
    ChangedPath,
    CopiedSnapshots,
    FolderMerge,
    FolderRestore,
    FolderSnapshot,
    LeftPath,
    SnapshotLimit,
)
from weft.runtime.resources.directories.objects import BLOB, ObjectReader, ObjectWriter
from weft.runtime.resources.directories.restoring import FolderRestoring, chosen
from weft.runtime.resources.directories.scan import open_real_folder
from weft.runtime.resources.directories.taking import FolderTaking, SeenFolder
from weft.runtime.resources.directories.trees import is_kept_name
from weft.runtime.resources.directories.upkeep import (
    SNAPSHOTS,
    clear_remains,
    copy_snapshots,
    damaged_snapshots,
    found_problems,
    kept_snapshots,
    pack_objects,
    receive_snapshot,
    remove_snapshots,
    send_snapshot,
)
from weft.runtime.resources.directories.whole_folders import IsWithheld, WholeFolders
from weft.runtime.sandbox.git_program import (
    CONFIGURATION,
    HEAD,
    Git,
    ensure_merges,
    find_git,
    is_object_id,
    opened_repository,
)
from weft.runtime.sandbox.git_repositories import GitFolder
from weft.runtime.tools.beneath import Identity
from weft.store.private_files import make_folder

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
    ) -> None:
        """`path_folders` are more folders in which git may lie, as PATH names them. `apart` gives files and folders
        that are in no snapshot, wherever they lie."""
        self._path, self._random = path.absolute(), random
        self._path_folders, self._program = path_folders, git
        self._list_apart = apart
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
        with self._opened(folder, is_resolved=is_resolved) as (place, root, git, known):
            return self._take(place, root, git, known, limit).snapshot

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
        with self._using() as git, ObjectReader(git) as reader:
            target = load_snapshot(reader, _checked_id(snapshot))
        _make_missing(folder)
        with self._opened(folder, is_resolved=is_resolved) as (place, root, git, known), ObjectReader(git) as reader:
            seen, table = self._take_with_files(place, root, git, known, limit)
            before = load_snapshot(reader, seen.snapshot.id)
            differences = chosen(Comparison(reader, before, target, limit).differences(), paths)
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
        with self._opened(folder, is_resolved=is_resolved) as (place, root, git, known):
            seen = self._take(place, root, git, known, limit)
            whole, skipped = self._whole_folders(git).take(place, root, seen, git_folders(place), is_withheld)
            self._keep(git, [whole])
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
        with self._opened(folder, is_resolved=is_resolved) as (place, root, git, known):
            seen, table = self._take_with_files(place, root, git, known, limit)
            done = self._whole_folders(git).restore(place, root, snapshot, seen, table, git_folders)
        left = tuple(LeftPath(path, why) for path, why in sorted(done.left.items()))
        return FolderRestore(before=seen.snapshot.id, written=done.written, deleted=done.deleted, left=left)

    def git_changes(
        self, snapshot: str, folder: Path, git_folders: Callable[[Path], Sequence[GitFolder]]
    ) -> list[GitChange]:
        """What of git's in a folder is not what a whole snapshot has. The folder stays as it is."""
        with self._opened(folder, is_resolved=True) as (place, _, git, _known):
            return self._whole_folders(git).git_changes(place, _checked_id(snapshot), git_folders)

    def _whole_folders(self, git: Git) -> WholeFolders:
        apart = frozenset(_identities((self._path, *self._list_apart())))
        return WholeFolders(git, self._git_program(), self._scratch, self._caches, self._clock, self._random, apart)

    def changes(self, old: str | None, new: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> list[ChangedPath]:
        """The paths that differ between two snapshots, sorted; all that the new one holds, if there is no old one."""
        with self._using() as git, ObjectReader(git) as reader:
            one = NOTHING if old is None else load_snapshot(reader, _checked_id(old))
            two = load_snapshot(reader, _checked_id(new))
            return list(changed_paths(Comparison(reader, one, two, limit).differences()))

    def text_diff(self, change: ChangedPath) -> list[str] | None:
        """The lines that differ, with three around them, as a unified diff from its first `@@` on; None for bytes that
        are no text."""
        with self._using() as git, ObjectWriter(git, self._scratch) as writer:
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
        with self._using() as git, ObjectReader(git) as reader:
            folder = load_snapshot(reader, _checked_id(snapshot))
            entry = entry_at(reader, folder.files, _checked_path(path))
            if entry is None or entry.is_folder:
                raise NotFound("file of the snapshot", path, "list what the snapshot holds")
            return reader.read(BLOB, entry.id, most)

    def merge(self, base: str, ours: str, theirs: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> FolderMerge:
        """Bring two snapshots together that came from one: into a merged one, or to a list of conflicts."""
        ensure_merges(self._git_program())
        with self._using() as git, ObjectReader(git) as reader, ObjectWriter(git, self._scratch) as writer:
            one, two, three = (load_snapshot(reader, _checked_id(snapshot)) for snapshot in (base, ours, theirs))
            merge = merge_snapshots(git, reader, writer, one, two, three, limit)
            writer.finish()
            if merge.id is not None:
                self._keep(git, [merge.id])
        return merge

    def ids(self) -> set[str]:
        """All snapshots that are kept."""
        with self._using() as git:
            return kept_snapshots(git)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nothing is removed meanwhile: whoever takes a snapshot holds the store until its id is recorded."""
        with self._using():
            yield

    def prune(self, keep: Callable[[], Collection[str]]) -> int:
        """Remove all snapshots but these, with every byte that only they have; how many were removed.

        `keep` is called when nobody else uses the store any longer.
        """
        with self._alone() as git:
            clear_remains(git, self._scratch)
            unkept = kept_snapshots(git) - set(keep())
            remove_snapshots(git, self._caches, unkept)
        return len(unkept)

    def remove(self, unwanted: Callable[[], Collection[str]]) -> int:
        """Remove these snapshots, with every byte that only they have; how many were there.

        `unwanted` is called when nobody else uses the store any longer.
        """
        with self._alone() as git:
            clear_remains(git, self._scratch)
            gone = kept_snapshots(git) & set(unwanted())
            remove_snapshots(git, self._caches, gone)
        return len(gone)

    def pack(self) -> None:
        """Let what is kept take less room. Nothing is removed but what killed processes left."""
        with self._alone() as git:
            clear_remains(git, self._scratch)
            pack_objects(git)

    def verify(self, snapshot: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> list[str]:
        """What is wrong with a stored snapshot, in sentences; nothing, if all of it is as it was stored."""
        with self._using() as git:
            return found_problems(git, _checked_id(snapshot), limit)

    def damaged(
        self, snapshots: Iterable[str], *, limit: SnapshotLimit = DEFAULT_LIMIT
    ) -> Iterator[tuple[str, list[str]]]:
        """Of many snapshots those that are not whole, and what is wrong with each; every byte is read once."""
        with self._using() as git:
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
        with self._using() as git:
            ours = kept_snapshots(git)
            known = other.ids() & ours if other.is_made else set()
            new, damaged = sorted(ours - known), list[str]()
            if not new:
                return CopiedSnapshots()
            with other._using() as target:
                try:
                    copy_snapshots(git, target, new, known)
                except StoreFailed:
                    damaged = [snapshot for snapshot, _ in damaged_snapshots(git, new, DEFAULT_LIMIT)]
                    if not damaged:
                        raise
                    new = [snapshot for snapshot in new if snapshot not in damaged]
                    copy_snapshots(git, target, new, known)
                other._keep(target, new)
        return CopiedSnapshots(copied=len(new), damaged=tuple(damaged))

    def send(self, snapshot: str, file: BinaryIO) -> None:
        """Write all that a snapshot holds to a file, as a pack of git's."""
        with self._using() as git, ObjectReader(git) as reader:
            load_snapshot(reader, _checked_id(snapshot))
            send_snapshot(git, snapshot, file)

    def receive(self, snapshot: str, file: BinaryIO, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> None:
        """Take in and keep what `send` wrote, from whomever. Raises InvalidInput where it is not this snapshot."""
        with self._using() as git:
            receive_snapshot(git, _checked_id(snapshot), file, limit)
            self._keep(git, [snapshot])

    def _take(self, place: Path, root: int, git: Git, known: KnownFiles, limit: SnapshotLimit) -> SeenFolder:
        apart = frozenset(_identities((self._path, *self._list_apart())))
        taking = FolderTaking(git, known, self._scratch, self._clock, limit, apart)
        return taking.take(place, root, lambda snapshot: self._keep(git, [snapshot]))

    def _take_with_files(
        self, place: Path, root: int, git: Git, known: KnownFiles, limit: SnapshotLimit
    ) -> tuple[SeenFolder, Table]:
        """Also what was seen of every file. What a damaged cache does not tell is looked for again."""
        seen = self._take(place, root, git, known, limit)
        table = known.load_table(seen.head)
        if table is None:
            known.forget()
            seen = self._take(place, root, git, known, limit)
            table = known.load_table(seen.head)
        return seen, table or {}

    @property
    def _scratch(self) -> Path:
        return self._path / "scratch"

    @contextmanager
    def _opened(self, folder: Path, *, is_resolved: bool) -> Iterator[tuple[Path, int, Git, KnownFiles]]:
        """A folder that nobody else looks through or restores meanwhile."""
        place = folder if is_resolved else _real_folder(folder)
        if place == self._path.resolve() or self._path.resolve() in place.parents:
            raise InvalidInput(f"{place} is a part of the store of files", "name a folder outside of it")
        with self._using() as git, ExitStack() as stack:
            known = KnownFiles(self._caches / hashlib.sha256(os.fsencode(place)).hexdigest()[:32])
            make_folder(known.place)
            lock = stack.enter_context(locked(known.place / "lock", self._clock))
            with _raising_store_failed(place):
                root = open_real_folder(place)
                stack.callback(os.close, root)
                yield place, root, git.holding(lock), known

    @property
    def _caches(self) -> Path:
        return self._path / "folders"

    @contextmanager
    def _alone(self) -> Iterator[Git]:
        """The store, while nobody else uses it."""
        self._ensure_made()
        with _raising_store_failed(self._path), locked(self._path / "lock", self._clock) as lock:
            self._ensure_ours()
            with opened_repository(self._git_program(), self._repository, (lock,)) as git:
                yield git

    @contextmanager
    def _using(self) -> Iterator[Git]:
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
        parts = (self._repository, self._scratch, self._caches)
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
            make_folder(self._scratch)
            make_folder(self._caches)
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

    def _keep(self, git: Git, snapshots: Collection[str]) -> None:
        """Refer to them, so that they are kept. A lock that git left when it was killed is nobody's any longer."""
        with locked(self._path / "refs.lock", self._clock) as lock:
            for snapshot in snapshots:
                (self._repository / SNAPSHOTS / f"{snapshot}.lock").unlink(missing_ok=True)
            lines = "".join(f"update {SNAPSHOTS}/{snapshot} {snapshot}\n" for snapshot in snapshots)
            git.holding(lock).run("update-ref", "--stdin", stdin=lines.encode())


def _identities(paths: Iterable[Path]) -> Iterator[Identity]:
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
