"""A store of files: snapshots of folders, as trees of a git repository that belongs to Weft alone.

Nobody else's repository is opened. One lock is shared by all that add to the store and held alone by what removes from
it; one lock for each folder lets one process at a time look through it or restore it. Git inherits them, so they hold
until the last of both is gone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import Damaged, InvalidInput, StoreFailed
from weft.runtime.resources.directories.comparing import (
    Comparison,
    EntryDifference,
    load_snapshot,
    told_changes,
)
from weft.runtime.resources.directories.git import Git, find_git, is_object_id
from weft.runtime.resources.directories.known_files import KnownFiles
from weft.runtime.resources.directories.locks import locked
from weft.runtime.resources.directories.model import (
    DEFAULT_LIMIT,
    ChangedPath,
    FolderRestore,
    FolderSnapshot,
    LeftPath,
    SnapshotLimit,
)
from weft.runtime.resources.directories.objects import ObjectReader
from weft.runtime.resources.directories.restoring import FolderRestoring, chosen
from weft.runtime.resources.directories.taking import FolderTaking, SeenFolder
from weft.runtime.resources.directories.trees import is_kept_name
from weft.runtime.tools.beneath import READ_FOLDER_FLAGS
from weft.store.atomic_files import make_folder

_CONFIG = b"""[core]
\trepositoryformatversion = 1
\tfilemode = true
\tbare = true
[extensions]
\tobjectformat = sha256
"""
_PARTS = frozenset(("HEAD", "config", "objects", "refs", "info", "packed-refs", "packed-refs.lock", "packed-refs.new"))
_SNAPSHOTS = "refs/snapshots"


class FileStore:
    """A store in a folder of its own, which is made for its owner alone when it is first used."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        random: RandomBytes = system_random,
        git: str | None = None,
    ) -> None:
        self._path, self._random, self._program = path.absolute(), random, git
        self._clock = clock or SystemClock()
        self._repository = self._path / "git"
        self._is_checked = False

    def snapshot(self, folder: Path, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> FolderSnapshot:
        """Keep the state of a folder. Raises LimitExceeded where it holds more than the limit lets it."""
        with self._opened(folder) as (place, root, git, known):
            return self._take(place, root, git, known, limit).snapshot

    def restore(
        self, snapshot: str, folder: Path, *, only: Collection[str] | None = None, limit: SnapshotLimit = DEFAULT_LIMIT
    ) -> FolderRestore:
        """Make a folder equal to a snapshot, or make the folder. `only` names files and folders in it; all, if None.

        What the folder ignores, or is in no snapshot for another reason, is neither written nor removed. A snapshot of
        the folder is taken first.
        """
        paths = None if only is None else {_checked_path(path) for path in only}
        with self._using() as git, ObjectReader(git) as reader:
            target = load_snapshot(reader, _checked_id(snapshot))
        is_new = _make_missing(folder)
        with self._opened(folder) as (place, root, git, known), ObjectReader(git) as reader:
            seen = self._take(place, root, git, known, limit)
            before = load_snapshot(reader, seen.snapshot.id)
            differences = chosen(Comparison(reader, before, target, limit).differences(), paths)
            folders = {one.path: one for one in seen.head.folders}
            restoring = FolderRestoring(root, reader, folders, known.load_table(seen.head) or {}, self._random)
            restoring.run(differences)
            if is_new and paths is None:
                os.fchmod(root, target.manifest.folder_mode(b""))
        return FolderRestore(
            before=seen.snapshot.id,
            written=restoring.written,
            deleted=restoring.deleted,
            left=tuple(LeftPath(os.fsdecode(path), why) for path, why in sorted(restoring.left.items())),
        )

    def changes(self, old: str, new: str, *, limit: SnapshotLimit = DEFAULT_LIMIT) -> list[ChangedPath]:
        """The paths that differ between two snapshots, sorted."""
        with self._using() as git, ObjectReader(git) as reader:
            return list(told_changes(self._differences(reader, old, new, limit)))

    def _differences(self, reader: ObjectReader, old: str, new: str, limit: SnapshotLimit) -> list[EntryDifference]:
        one, two = (load_snapshot(reader, _checked_id(snapshot)) for snapshot in (old, new))
        return Comparison(reader, one, two, limit).differences()

    def _take(self, place: Path, root: int, git: Git, known: KnownFiles, limit: SnapshotLimit) -> SeenFolder:
        identity = self._path.stat()
        apart = frozenset(((identity.st_dev, identity.st_ino),))
        taking = FolderTaking(git, known, self._scratch, self._clock, limit, apart)
        return taking.take(place, root, lambda snapshot: self._keep(git, [snapshot]))

    @property
    def _scratch(self) -> Path:
        return self._path / "scratch"

    @contextmanager
    def _opened(self, folder: Path) -> Iterator[tuple[Path, int, Git, KnownFiles]]:
        """A folder that nobody else looks through or restores meanwhile."""
        place = _real_folder(folder)
        if place == self._path.resolve() or self._path.resolve() in place.parents:
            raise InvalidInput(f"{place} is a part of the store of files", "name a folder outside of it")
        with self._using() as git, ExitStack() as stack:
            known = KnownFiles(self._path / "folders" / hashlib.sha256(os.fsencode(place)).hexdigest()[:32])
            make_folder(known.place)
            lock = stack.enter_context(locked(known.place / "lock", self._clock))
            root = os.open(place, READ_FOLDER_FLAGS)
            stack.callback(os.close, root)
            with _told(place):
                yield place, root, git.holding(lock), known

    @contextmanager
    def _using(self) -> Iterator[Git]:
        """The store, from which nothing is removed meanwhile."""
        self._ensure_made()
        with locked(self._path / "lock", self._clock, shared=True) as lock:
            yield Git(self._git_program(), self._repository, (lock,))

    def _git_program(self) -> str:
        if self._program is None:
            self._program = find_git()
        return self._program

    def _ensure_made(self) -> None:
        """Made whole or not at all: what a process that died left of it is made anew."""
        if self._is_checked:
            return
        program = self._git_program()
        make_folder(self._path)
        with _told(self._path), locked(self._path / "lock", self._clock) as lock:
            if not self._repository.exists():
                aside = self._path / "git.partial"
                shutil.rmtree(aside, ignore_errors=True)
                make_folder(aside)
                git = Git(program, aside, (lock,))
                git.run("init", "--quiet", "--bare", "--object-format=sha256", "--template=", str(aside))
                (aside / "config").write_bytes(_CONFIG)
                aside.rename(self._repository)
            make_folder(self._scratch)
            make_folder(self._path / "folders")
            self._ensure_ours()
        self._is_checked = True

    def _ensure_ours(self) -> None:
        """Git obeys what stands in a repository. Raises Damaged where something does that Weft did not put there."""
        strangers = sorted(set(os.listdir(self._repository)) - _PARTS)
        if (self._repository / "objects" / "info" / "alternates").exists():
            strangers.append("objects/info/alternates")
        if self._repository.is_symlink() or (self._repository / "config").read_bytes() != _CONFIG:
            strangers.append("config")
        if strangers:
            raise Damaged(
                f"{self._repository} is not as Weft made it: {', '.join(strangers)}",
                "take the store from a backup, or remove what does not belong there",
            )

    def _keep(self, git: Git, snapshots: Collection[str]) -> None:
        """Refer to them, so that they are kept. A lock that git left when it was killed is nobody's any longer."""
        with locked(self._path / "refs.lock", self._clock) as lock:
            for snapshot in snapshots:
                (self._repository / _SNAPSHOTS / f"{snapshot}.lock").unlink(missing_ok=True)
            lines = "".join(f"update {_SNAPSHOTS}/{snapshot} {snapshot}\n" for snapshot in snapshots)
            git.holding(lock).run("update-ref", "--stdin", stdin=lines.encode())


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


def _make_missing(folder: Path) -> bool:
    """Whether it was made."""
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}", "name a folder in one that exists") from None
    return True


@contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{error.filename or place}: {error.strerror}") from None
