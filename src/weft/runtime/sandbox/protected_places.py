"""What no sandboxed process sees or changes, wherever it lies: ledgers with what is kept beside them, keys, decisions.

Whatever starts a sandboxed process is given a `ProtectedPlaces`; no field has a default, so that nobody leaves it out
by accident. Beside the places that are named, every folder `.weft` of the workspace is hidden, and files of secrets.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed, quoted
from weft.runtime.sandbox.mounts import Mount, MountKind, cover, is_beneath
from weft.runtime.sandbox.secret_files import SecretFiles
from weft.runtime.sandbox.workspace_search import FETCHED_FOLDERS, LEDGER_FOLDER, HiddenEntry
from weft.store.private_files import PRIVATE_FOLDER, open_private

BESIDE_LEDGERS = (
    "-wal", "-shm", "-journal", "-lock", "-head", "-near-", "-import.", "-files", ".replaced-", ".schema-",
)  # fmt: skip
"""How the names of what lies beside a ledger go on after its own; docs/state.md lists them."""
_MADE_FILES = ("-wal", "-shm", "-journal", "-lock", "-head", "-import.lock")
_REPLACED = ("-near-", "-import.json", "-import.log", ".replaced-", ".schema-")
_MADE_FOLDER = "-files"
"""Made, empty, beside a ledger that lies open in a workspace: over what is not there nothing can be mounted, and what a
command made by such a name would be believed. SQLite would take a journal or a log for its own. Empty ones say nothing
to it, nor to Weft."""
_NO_ROOM_TO_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)
MOST_COVERS = 1500
"""Bubblewrap takes 9,000 words, of which a cover needs five."""
_OTHER_DESCRIPTORS = 256
"""A process needs one for each file that is covered, and these beside."""
_MOST_GATHERED = 20
"""So many folders are hidden whole instead."""


class ProtectedPlaces(Struct, frozen=True, kw_only=True):
    """What is hidden from every sandboxed process."""

    ledgers: tuple[Path, ...]
    """Files of databases. What is kept beside one is hidden with it."""
    folders: tuple[Path, ...]
    """Keys, decisions, configuration, what is kept of resources; also those that do not exist yet."""
    others: Callable[[], Collection[str]] = tuple
    """The real paths of further ledgers that the person trusts, as they are when something is started. They are hidden
    as those are that are named."""
    secrets: SecretFiles = SecretFiles()
    """Files of the workspace that are hidden from commands, though not from other tools."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return (*self.ledgers, *self.folders)

    @property
    def withheld(self) -> tuple[Path, ...]:
        """What tools for files neither read nor write: also the further ledgers, as they are now."""
        return (*self.paths, *map(Path, self.others()))

    def covers(self, mounts: Iterable[Mount]) -> list[Mount]:
        """What hides these places wherever one of the mounts shows them."""
        binds = [mount for mount in mounts if mount.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)]
        sources = [(os.path.realpath(bind.source), bind) for bind in binds]
        folders = [place for folder in self.folders for place in _real_places(folder)]
        self.ensure_outside(source for source, _ in sources)
        return list(self._covers(sources, folders))

    def ensure_outside(self, paths: Iterable[str | Path]) -> None:
        """Raises InvalidInput for a path that lies in one of these places: it is no workspace, and is not shown."""
        folders = [place for folder in self.folders for place in _real_places(folder)]
        for path in paths:
            for folder in folders:
                if is_beneath(os.path.realpath(path), folder):
                    raise InvalidInput(
                        f"{path} lies in {folder}, which no command in the sandbox may see", "name another folder"
                    )

    def open_ledgers(self, folder: str) -> list[str]:
        """The ledgers that lie in a folder and in no `.weft`: beside those a command could make files."""
        ledgers = dict.fromkeys((*map(os.path.realpath, self.ledgers), *self.others()))
        return [ledger for ledger in ledgers if _is_open_ledger(ledger, folder)]

    @property
    def replaced_beginnings(self) -> tuple[str, ...]:
        """How the paths begin of files beside ledgers that Weft itself replaces, and believes nothing of."""
        return tuple(ledger + ending for ledger in self._all_ledgers for ending in _REPLACED)

    @property
    def _all_ledgers(self) -> tuple[str, ...]:
        named = [place for ledger in self.ledgers for place in _real_places(ledger)]
        return tuple(dict.fromkeys((*named, *self.others())))

    def _covers(self, sources: Sequence[tuple[str, Mount]], folders: Sequence[str]) -> Iterator[Mount]:
        for ledger in self._all_ledgers:
            if any(is_beneath(ledger, source) for source, _ in sources):
                if any(bind.kind is MountKind.WRITABLE and _is_open_ledger(ledger, source) for source, bind in sources):
                    _make_missing(ledger)
                for file in ledger_files(Path(ledger)):
                    yield from _covers_of(str(file), sources)
        for folder in folders:
            yield from _covers_of(folder, sources)


def few_entries(entries: Sequence[HiddenEntry], others: int) -> tuple[HiddenEntry, ...]:
    """What of a workspace is covered so that no more mounts are needed than bubblewrap makes; `others` are needed
    beside. Where it would be more, folders that hold many such entries are hidden whole. Raises InvalidInput where
    that does not help."""
    few, largest = list(entries), ""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_any = descriptors == resource.RLIM_INFINITY
    most = MOST_COVERS if has_any else max(0, min(MOST_COVERS, descriptors - _OTHER_DESCRIPTORS))
    for _ in range(_MOST_GATHERED):
        if _mounts_for(few) + others <= most:
            return tuple(few)
        beneath = Counter(folder for entry in few for folder in _folders_on_way(entry.path))
        largest, count = max(beneath.items(), key=lambda pair: (pair[1], len(pair[0])), default=("", 0))
        if count < 2:
            break
        few = [entry for entry in few if not is_beneath(entry.path, largest)]
        few.append(HiddenEntry(path=largest, number=0, is_folder=True, is_pinned=True, is_gathered=True))
    where = f", some of them in {quoted(largest, 200)}" if largest else ""
    raise InvalidInput(
        f"the workspace holds more than {most} files and folders that must be hidden{where}",
        "remove what a program made there, or make a folder with fewer of them the workspace",
    )


def _mounts_for(entries: Sequence[HiddenEntry]) -> int:
    """Covers, and folders that are held in their place."""
    pinned = {folder for entry in entries if entry.is_pinned for folder in _folders_on_way(entry.path)}
    return len(entries) + len(pinned)


def _folders_on_way(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _covers_of(place: str, sources: Sequence[tuple[str, Mount]]) -> Iterator[Mount]:
    """Covers of one place of the machine, at each place inside at which it would be seen."""
    for source, bind in sources:
        if not is_beneath(place, source) or os.path.islink(place):
            continue
        inside = os.path.normpath(os.path.join(bind.place, os.path.relpath(place, source)))
        if os.path.lexists(place):
            yield cover(inside, is_folder=os.path.isdir(place))
        elif bind.kind is MountKind.WRITABLE and LEDGER_FOLDER not in Path(place).parts:
            os.makedirs(place, 0o700)  # else the command could make it, and what it wrote there would be believed
            yield cover(inside, is_folder=True)


def _is_open_ledger(ledger: str, folder: str) -> bool:
    """Whether a ledger lies in a folder so that no cover of a `.weft` hides it: one in a folder that tools fill is not
    looked for."""
    if not is_beneath(ledger, folder) or not stat.S_ISREG(_mode_of(ledger)):
        return False
    parts = Path(os.path.relpath(ledger, folder)).parts
    return LEDGER_FOLDER not in parts or not FETCHED_FOLDERS.isdisjoint(parts)


def _mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _make_missing(ledger: str) -> None:
    try:
        for name in _MADE_FILES:
            with suppress(FileExistsError):
                os.close(open_private(Path(ledger + name)))
        with suppress(FileExistsError):
            os.mkdir(ledger + _MADE_FOLDER, PRIVATE_FOLDER)
    except OSError as error:
        if error.errno not in _NO_ROOM_TO_WRITE:  # where this process cannot write, no command can
            raise StoreFailed(
                f"what lies beside the ledger {ledger} cannot be hidden: {error.strerror}", "make room there"
            ) from None


def ledger_files(ledger: Path) -> Iterator[Path]:
    """The file of a ledger, and what lies beside it, as far as it is there."""
    try:
        names = os.listdir(ledger.parent)
    except OSError:  # it is gone, or cannot be read, neither by a command
        return
    beside = tuple(ledger.name + ending for ending in BESIDE_LEDGERS)
    yield from (ledger.with_name(name) for name in sorted(names) if name == ledger.name or name.startswith(beside))


def _real_places(path: Path) -> tuple[str, ...]:
    """The path with the links on its way resolved; where it is a link itself, also what that leads to."""
    return tuple(dict.fromkeys((str(path.parent.resolve() / path.name), os.path.realpath(path))))
