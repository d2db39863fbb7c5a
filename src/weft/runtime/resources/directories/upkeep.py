"""Removes snapshots so that their bytes are gone, packs what is kept, checks it, and hands it to another store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from weft.kernel.errors import Damaged, InvalidInput, LimitExceeded, NotFound, WeftError
from weft.runtime.resources.directories.comparing import (
    NOTHING,
    Comparison,
    EntryDifference,
    StoredFolder,
    load_snapshot,
)
from weft.runtime.resources.directories.git_objects import OBJECTS_CACHE, is_all_kept
from weft.runtime.resources.directories.known_files import KnownFiles
from weft.runtime.resources.directories.model import SnapshotLimit
from weft.runtime.resources.directories.objects import BLOB, MOST_OBJECT_BYTES, TREE, ObjectReader
from weft.runtime.resources.directories.taking import BESIDE
from weft.runtime.resources.directories.trees import FOLDER_MODE, TreeEntry, parse_tree
from weft.runtime.sandbox.git_program import Git, ended_well

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
            entries = Comparison(reader, NOTHING, folder, limit).differences()
        except WeftError as error:
            return [str(error)]
        problems += _manifest_problems(folder, entries)
    problems += _problems_beside(git, folder)
    files = [one for one in entries if one.new is not None and not one.new.is_folder]
    return problems + [f"{os.fsdecode(path)!r}: {why}" for path, why in _unreadable(git, files, most)]


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


def _unreadable(git: Git, files: list[EntryDifference], most: int) -> Iterator[tuple[bytes, str]]:
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
                entries = Comparison(reader, whole, folder, limit).differences()
            except WeftError as error:
                yield snapshot, [str(error)]
                continue
        files = [one for one in entries if one.new is not None and one.new.id and one.new.id not in good]
        bad = dict(_unreadable(git, files, MOST_OBJECT_BYTES))
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
