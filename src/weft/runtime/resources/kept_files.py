"""What a ledger keeps of its resources, in a folder beside it: trees, copies of files, archives.

Where the files of a snapshot are that this ledger only knows of is told as well.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from msgspec import Struct

from weft.exchange.sync.commands import remotes
from weft.kernel.errors import Damaged, FilesElsewhere, StoreFailed
from weft.ledger.api import KeptReference, Ledger, ResourceLog, Snapshot
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.resources import local_drivers
from weft.runtime.resources.docker_drivers import ARCHIVE
from weft.store.private_files import make_folder, new_file, open_aside, put_in_place

# --- What a ledger keeps of its resources, in a folder beside it: trees of directories, copies of files, archives.

TREES, COPIES, ARCHIVES = "trees", "copies", "archives"
_LEFT_OUT = "left-out"
_MOST_ORIGIN_BYTES = 4096
_CHUNK_BYTES = 1024 * 1024
_COPY_NAME, _ARCHIVE_NAME = re.compile(r"([0-9a-f]{64})\.[0-7]{1,4}"), re.compile(r"([0-9a-f]{64})\.tar")
_NAMES = {COPIES: _COPY_NAME, ARCHIVES: _ARCHIVE_NAME}


class CarriedFiles(Struct, frozen=True, kw_only=True):
    """What was brought from one folder to another."""

    snapshots: int = 0
    """Of directories."""
    files: int = 0
    """Copies of files, and archives."""
    damaged: tuple[str, ...] = ()
    """How what was left out is called, since it is not whole."""


class FileProblem(Struct, frozen=True):
    """That what a snapshot holds is missing, or not what it was."""

    reference: KeptReference
    why: str


class KeptFiles:
    """The folder of one ledger. Nothing is made by looking at it."""

    def __init__(self, folder: Path, *, path_folders: str = "") -> None:
        """`path_folders` are more folders in which git may lie, as PATH names them."""
        self.folder = folder
        self.trees = FileStore(folder / TREES, path_folders=path_folders)

    @property
    def is_there(self) -> bool:
        return self.trees.is_made or any(True for kind in _NAMES for _ in self._files_of_kind(kind))

    def hold(self) -> AbstractContextManager[None]:
        """No tree is removed meanwhile."""
        return self.trees.hold() if self.trees.is_made else nullcontext()

    def copy_to(self, other: KeptFiles) -> CarriedFiles:
        """Add all that the other folder lacks. What is not whole here is left out and named."""
        trees = self.trees.copy_to(other.trees)
        files, damaged = 0, list(trees.damaged)
        for kind in _NAMES:
            for path in self._files_of_kind(kind):
                if (other.folder / kind / path.name).exists():
                    continue
                try:
                    files += _copy_file(path, other.folder / kind / path.name)
                except Damaged:
                    damaged.append(path.name)
        if other.origin is not None:
            (other.folder / _LEFT_OUT).unlink()
        return CarriedFiles(snapshots=trees.copied, files=files, damaged=tuple(damaged))

    def leave_out(self, origin: str) -> None:
        """Note that the files were left where they are, beside the ledger at `origin`."""
        make_folder(self.folder)
        with new_file(self.folder / _LEFT_OUT) as file:
            file.write(origin.encode()[:_MOST_ORIGIN_BYTES])

    @property
    def origin(self) -> str | None:
        """The ledger beside which the files lie that were left out of this copy of it."""
        try:
            with (self.folder / _LEFT_OUT).open("rb") as file:
                return file.read(_MOST_ORIGIN_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None

    def absent(self, references: Iterable[KeptReference]) -> list[KeptReference]:
        """Those of which nothing is here. What lies in a container engine is not looked for."""
        trees = self.trees.ids() if self.trees.is_made else set()
        return [one for one in references if not self._has_reference(one, trees)]

    def _has_reference(self, reference: KeptReference, trees: set[str]) -> bool:
        if reference.kind == local_drivers.TREE_REFERENCE:
            return reference.id in trees
        path = self._path_of(reference)
        return path is None or path.is_file()

    def problems(self, references: Iterable[KeptReference]) -> Iterator[FileProblem]:
        """What is missing, or not what it was. Every byte is read once."""
        wanted = list(references)
        absent = self.absent(wanted)
        yield from (FileProblem(one, "it is not in the store of files") for one in absent)
        missing = {(one.kind, one.id) for one in absent}
        present = {(one.kind, one.id): one for one in wanted if (one.kind, one.id) not in missing}
        trees = {id: one for (kind, id), one in present.items() if kind == local_drivers.TREE_REFERENCE}
        if trees:
            for id, why in self.trees.damaged(trees):
                yield FileProblem(trees[id], "; ".join(why[:3]) + (" and more" if len(why) > 3 else ""))
        for one in present.values():
            path = self._path_of(one)
            if path is not None and _file_digest(path) != path.name[:64]:
                yield FileProblem(one, f"{path} holds other bytes than were kept")

    def unused(self, references: Iterable[KeptReference]) -> list[str]:
        """What is kept here and named by none of these: what somebody left who died before it was recorded, or after it
        was to be thrown away."""
        used, trees = self._names_of(references)
        names = [name for name in (self.trees.ids() if self.trees.is_made else ()) if name not in trees]
        return names + [path.name for kind in _NAMES for path in self._files_of_kind(kind) if path not in used]

    def remove_unused(self, references: Callable[[], Sequence[KeptReference]]) -> int:
        """Remove all that none of these name, with every byte that only it has; how much that was. They are asked for
        when nobody else uses the trees."""
        removed = 0
        if self.trees.is_made:
            removed += self.trees.prune(lambda: self._names_of(references())[1])
        used, _ = self._names_of(references())
        for path in [path for kind in _NAMES for path in self._files_of_kind(kind) if path not in used]:
            path.unlink(missing_ok=True)
            removed += 1
        return removed

    def unfinished(self) -> int:
        """How many restores to a new place, and removals, were begun and not ended."""
        return sum(len(list((self.folder / kind / "restoring").glob("*.json"))) for kind in (TREES, COPIES))

    def size_bytes(self) -> int:
        """How much room all of it takes."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def _names_of(self, references: Iterable[KeptReference]) -> tuple[set[Path], set[str]]:
        listed = list(references)
        paths = {path for one in listed if (path := self._path_of(one)) is not None}
        return paths, {one.id for one in listed if one.kind == local_drivers.TREE_REFERENCE}

    def _path_of(self, reference: KeptReference) -> Path | None:
        """Of what is kept as a file of its own; None for all else, also for what no file is called like."""
        if reference.kind == local_drivers.COPY_REFERENCE:
            name = reference.id.replace(":", ".", 1)
            return self.folder / COPIES / name if _COPY_NAME.fullmatch(name) else None
        name = f"{reference.id}.tar"
        is_archive = reference.kind == ARCHIVE and _ARCHIVE_NAME.fullmatch(name)
        return self.folder / ARCHIVES / name if is_archive else None

    def _files_of_kind(self, kind: str) -> Iterator[Path]:
        """The files of one kind that are whole: what is being written is called otherwise."""
        try:
            names = sorted(os.listdir(self.folder / kind))
        except FileNotFoundError:
            return
        for name in names:
            path = self.folder / kind / name
            if _NAMES[kind].fullmatch(name) and path.is_file() and not path.is_symlink():
                yield path


def _copy_file(path: Path, target: Path) -> int:
    """How many files were copied: none, where it is removed meanwhile. Raises Damaged."""
    aside, hashed = target.with_name(f"{target.name}.partial"), hashlib.sha256()
    try:
        make_folder(target.parent)
        with path.open("rb") as source, open_aside(aside) as copy:
            while chunk := source.read(_CHUNK_BYTES):
                hashed.update(chunk)
                copy.write(chunk)
        if hashed.hexdigest() != path.name[:64]:
            raise Damaged(f"{path} holds other bytes than were kept", "take it from a backup")
        put_in_place(aside, target)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreFailed(f"{error.filename or target}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # an error that is on its way says more; the next attempt removes it
            aside.unlink()
    return 1


def _file_digest(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()


# --- Says where the files of a snapshot are that this ledger only knows of.

_THERE = "check them out there, or copy that ledger with its files"


def files_elsewhere(ledger: Ledger, kept: Path | None, snapshot: Snapshot) -> FilesElsewhere:
    """The error for a snapshot whose files are not here. `kept` is the folder in which this ledger's own lie."""
    origin = None if kept is None else KeptFiles(kept).origin
    if origin is not None:
        return FilesElsewhere(snapshot.id, f"they were left out of this copy of {origin}", _THERE)
    replica = ResourceLog(ledger).replica_of(snapshot.resource)
    if replica is None:
        return FilesElsewhere(
            snapshot.id,
            "the folder of kept files beside this ledger does not have them",
            "bring that folder back from a backup",
        )
    return FilesElsewhere(snapshot.id, f"{_ledger_of(ledger, replica)} has them", _THERE)


def _ledger_of(ledger: Ledger, replica: str) -> str:
    """Another ledger as its remote, for whoever may know those; else by the end of its replica id."""
    for remote in remotes(ledger) if ledger.authority.is_unlimited else ():
        if ledger.trust.pinned_replica(remote.address) == replica:
            return f"the ledger at {remote.address} (remote {remote.name})"
    return f"the ledger …{replica[-8:]}"
