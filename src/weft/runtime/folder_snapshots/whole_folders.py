"""What a command can change of a workspace beside its files: git's references, logs, `HEAD` and index with all objects
that they lead to, and files that the workspace ignores. A whole snapshot has that, too.

It is the tree of the snapshot with a third entry, `beside`:

    beside/git/N/place      where a folder of git's lies, from the workspace on
    beside/git/N/state      what is in it, as a snapshot of its own
    beside/objects/N/…      of each repository: `place`, `listing`, and its packs, in `packs`
    beside/ignored          a snapshot of the ignored files that are kept
    beside/programs         what the files were like that some program runs by itself

What a command cannot write is not in it: configuration, hooks, what leads git elsewhere. Objects are given back first,
then files, then what refers to objects. Rules of what is ignored are given back before the other files: a command may
have changed them, and what they say now counts for nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec
from msgspec import Struct

from weft.kernel.clock import Clock, RandomBytes
from weft.kernel.errors import Unsupported
from weft.kernel.permission_subjects import self_running
from weft.runtime.folder_snapshots.folder_scan import (
    BESIDE,
    BlobWriter,
    FolderRules,
    FolderScan,
    KeptApart,
    SeenFolder,
    open_folder_at,
    open_real_folder,
    stored_scan,
)
from weft.runtime.folder_snapshots.git_objects import OBJECTS_CACHE, GitObjects, open_up_folder
from weft.runtime.folder_snapshots.known_files import IGNORE_FILE, FolderRecord, IgnoreRules, OuterRules, Table
from weft.runtime.folder_snapshots.snapshot_changes import (
    NOTHING,
    EntryDifference,
    FolderRestoring,
    SnapshotComparison,
    StoredEntry,
    StoredFolder,
    load_snapshot,
)
from weft.runtime.folder_snapshots.snapshot_objects import (
    BLOB,
    FILE_MODE,
    FOLDER_MODE,
    MIB,
    TREE,
    ObjectReader,
    ObjectWriter,
    SkippedPath,
    SkipReason,
    SnapshotLimit,
    TreeEntry,
    ancestors,
    joined,
    parse_tree,
    readable_path,
    tree_bytes,
)
from weft.runtime.opened_folders import READ_FOLDER_FLAGS, open_beneath
from weft.runtime.sandbox.git_repositories import GitFolder
from weft.runtime.sandbox.hidden_places import FETCHED_FOLDERS, LEDGER_FOLDER
from weft.runtime.sandbox.own_git import Git, ended_well, opened_repository

# --- The files of a workspace that some program runs by itself, whatever it ignores: what they were like when a
# whole snapshot was taken, and which are others now. Rules of what is ignored decide what is kept as files. A command
# writes such rules, and `.vscode` and `.envrc` are ignored in many projects. So these files are listed by themselves.

_NOT_ENTERED = frozenset(os.fsencode(name) for name in (*FETCHED_FOLDERS, LEDGER_FOLDER)) - {b".hg", b".svn"}
_MOST_FOLDERS = 200_000
_MOST_READ_BYTES = 4 * MIB
_CHUNK_BYTES = MIB


def self_running_files(root: int, is_withheld: Callable[[str], bool]) -> dict[str, str]:
    """By path, what each is like. Of files of secrets no hash is kept, and of large ones none is made: then it is told
    by what no command can set, as the time of its last change. Raises Unsupported where there is too much to look
    through."""
    return {path: _likeness(root, path, is_withheld(path)) for path in self_running(_paths(root))}


def listing_bytes(files: Mapping[str, str]) -> bytes:
    pairs = sorted((os.fsencode(path).hex(), likeness) for path, likeness in files.items())
    return msgspec.json.encode(pairs)


def read_listing(data: bytes) -> dict[str, str]:
    pairs = msgspec.json.decode(data, type=list[tuple[str, str]])
    return {os.fsdecode(bytes.fromhex(path)): likeness for path, likeness in pairs}


def changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Those that are there and were not, or were others."""
    return sorted(path for path, likeness in new.items() if old.get(path) != likeness)


def _paths(root: int) -> Iterator[str]:
    """Of files and links, but for those in folders that tools fill. A folder that cannot be listed has none: no program
    of the person finds any either."""
    waiting, count = deque([b""]), 0
    while waiting:
        count += 1
        if count > _MOST_FOLDERS:
            raise Unsupported(f"what runs by itself cannot be looked for in more than {_MOST_FOLDERS} folders")
        path = waiting.popleft()
        try:
            folder = open_folder_at(root, path)
        except OSError:
            continue
        try:
            with os.scandir(folder) as listed:
                entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in listed]
        except OSError:
            continue
        finally:
            os.close(folder)
        for name, is_folder in entries:
            if not is_folder:
                yield os.fsdecode(joined(path, name))
            elif name not in _NOT_ENTERED:
                waiting.append(joined(path, name))


def _likeness(root: int, path: str, is_withheld: bool) -> str:
    *above, name = os.fsencode(path).split(b"/")
    try:
        folder = open_folder_at(root, b"/".join(above))
    except OSError:
        return "gone"
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return f"link {os.readlink(name, dir_fd=folder).hex()}"
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_READ_BYTES and not is_withheld:
            return f"file {status.st_mode & 0o111:o} {_hash(folder, name)}"
        return f"inode {status.st_ino} {status.st_ctime_ns} {status.st_size}"
    except OSError as error:
        return f"not read {error.errno}"
    finally:
        os.close(folder)


def _hash(folder: int, name: bytes) -> str:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        hash, room = hashlib.sha256(), _MOST_READ_BYTES + 1
        while room > 0 and (chunk := os.read(file, min(_CHUNK_BYTES, room))):
            hash.update(chunk)
            room -= len(chunk)
        return hash.hexdigest()
    finally:
        os.close(file)


GIT, OBJECTS, IGNORED, PROGRAMS = b"git", b"objects", b"ignored", b"programs"
PLACE, STATE, PACKS, LISTING = b"place", b"state", b"packs", b"listing"
LARGE_FILES = "lfs"
STATE_LIMIT = SnapshotLimit(file_bytes=256 * MIB, total_bytes=512 * MIB, files=200_000)
"""For one folder of git's, without objects."""
IGNORED_LIMIT = SnapshotLimit(file_bytes=16 * MIB, total_bytes=64 * MIB, files=5_000)
"""For all ignored files together."""
_MOST_IGNORED_FILES = 1_000
"""In one ignored folder."""
_MOST_IGNORED_BYTES = 16 * MIB
_PRESENT_LIMIT = SnapshotLimit(file_bytes=256 * MIB, total_bytes=2**50, files=2**31)
"""For what is there when it is made what it was: a command may have added much."""
_MOVED = "the repository is not where it was"
_UNWRITABLE = frozenset(b"objects config config.worktree hooks info modules worktrees gitdir lfs".split())
"""Names in a folder of git's that a command cannot write, or that are kept otherwise; the large files of LFS are not
kept, and are named."""
_HIDDEN_ENDINGS = (b".lock", b".pid", b".ipc")
_COMMONDIR = b"commondir"
_ID = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-f])")
_INDEX_SIGN = b"DIRC"
_MOST_INDEX_BYTES = 256 * MIB
_MOST_PLACE_BYTES = 8192
_MOST_NAME_BYTES = 200
"""Of a name that something is moved aside under, before what is added to it."""

Entries = dict[bytes, StoredEntry]
"""What a snapshot has, by path."""
IsWithheld = Callable[[str], bool]
"""Whether an ignored file is not to be kept, by its path in the workspace."""


def _never_stop(_: str) -> bool:
    return False


class GitRules:
    """In a folder of git's: what is not kept as a file."""

    def __init__(self, parts: frozenset[bytes] | None) -> None:
        self._parts = parts

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """A file of rules says nothing here."""

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        gone = {name for name, is_folder in names if not is_folder and name.endswith(_HIDDEN_ENDINGS)}
        if path:
            is_shared_log = self._parts is not None and path == b"logs"  # of the main working tree
            return gone | ({b"HEAD"} if is_shared_log else set())
        if self._parts is not None:
            return gone | {name for name, _ in names if name not in self._parts}
        return gone | {name for name, _ in names if name in _UNWRITABLE or name.startswith(_COMMONDIR)}


class ChosenRules:
    """Of a workspace, these paths with what is in them and the folders above them, but what is withheld."""

    def __init__(self, chosen: Iterable[bytes], is_withheld: IsWithheld) -> None:
        self._chosen, self._is_withheld = frozenset(chosen), is_withheld
        self._above = {path[:cut] for path in self._chosen for cut in range(len(path)) if path[cut : cut + 1] == b"/"}

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """What is ignored is known."""

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        return {name for name, is_folder in names if not self._is_kept(joined(path, name), is_folder=is_folder)}

    def _is_kept(self, path: bytes, *, is_folder: bool) -> bool:
        if is_folder and path in self._above:
            return True
        return self.has(path) and (is_folder or not self._is_withheld(os.fsdecode(path)))

    def has(self, path: bytes) -> bool:
        """Whether it is one of these or lies in one."""
        while path:
            if path in self._chosen:
                return True
            path = path.rpartition(b"/")[0]
        return False


class NeededRules:
    """The rules of a workspace, but for what a snapshot has: that is ignored by no rule."""

    def __init__(self, rules: FolderRules, paths: Iterable[bytes]) -> None:
        self._rules = rules
        self._paths = set(paths)

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        self._rules.enter(folder, path, has_rules=has_rules)

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        return {name for name in self._rules.ignored(path, names) if joined(path, name) not in self._paths}


class TipWriter:
    """Stores files, and notes every id of a git object in them."""

    def __init__(self, writer: ObjectWriter, index_ids: Callable[[bytes], Iterable[str]]) -> None:
        self._writer, self._index_ids = writer, index_ids
        self.tips: set[str] = set()

    def add(self, kind: bytes, data: bytes) -> bytes:
        if kind == BLOB and data.startswith(_INDEX_SIGN):
            self.tips.update(self._index_ids(data))
        elif kind == BLOB:
            self.tips.update(id.decode() for id in _ID.findall(data))
        return self._writer.add(kind, data)


class RestoredWhole(Struct):
    """What a restore did."""

    written: int = 0
    deleted: int = 0
    left: dict[str, str] = {}


class WholeFolders:
    """Whole snapshots in one store. `git` is that store's, and `program` the one that it runs."""

    def __init__(
        self,
        git: Git,
        program: str,
        scratch: Path,
        caches: Path,
        clock: Clock,
        random: RandomBytes,
        apart: KeptApart,
    ) -> None:
        self._git, self._program, self._scratch, self._caches = git, program, scratch, caches
        self._clock, self._random, self._apart = clock, random, apart

    # --- kept -------------------------------------------------------------------------------------------------------

    def take(
        self, place: Path, root: int, seen: SeenFolder, git_folders: Sequence[GitFolder], is_withheld: IsWithheld
    ) -> tuple[str, list[SkippedPath]]:
        """The id of the whole snapshot, of which `seen` is the part that every snapshot has, and which ignored files
        are not in it. Raises a WeftError where something of git's cannot be kept."""
        with ObjectWriter(self._git, self._scratch) as writer:
            states, objects = self._keep_git(place, git_folders, writer)
            ignored, skipped = self._keep_ignored(root, seen, writer, is_withheld)
            large = (f"{os.path.relpath(folder.place, place)}/{LARGE_FILES}/" for folder in git_folders)
            skipped += [SkippedPath(path, SkipReason.TOO_LARGE) for path in large if os.path.lexists(place / path)]
            parts = ((GIT, states), (OBJECTS, objects), (IGNORED, ignored))
            listing = writer.add(BLOB, listing_bytes(self_running_files(root, is_withheld)))
            folders = [TreeEntry(name, FOLDER_MODE, id) for name, id in parts if id]
            beside = writer.add(TREE, tree_bytes([*folders, TreeEntry(PROGRAMS, FILE_MODE, listing)]))
            with ObjectReader(self._git) as reader:
                entries = _read_tree(reader, bytes.fromhex(seen.snapshot.id))
            whole = writer.add(TREE, tree_bytes([*entries, TreeEntry(BESIDE, FOLDER_MODE, beside)]))
            writer.finish()
        return whole.hex(), skipped

    def _keep_git(self, place: Path, folders: Sequence[GitFolder], writer: ObjectWriter) -> tuple[bytes, bytes]:
        """The trees of the states and of the objects; empty where there is no repository."""
        states, tips = [], dict[str, set[str]]()
        for folder in folders:
            tip_writer = TipWriter(writer, partial(self._index_ids, folder))
            states.append([_place_entry(writer, place, folder.place), self._keep_state(folder, tip_writer)])
            tips.setdefault(folder.objects, set()).update(tip_writer.tips)
        stores = []
        for folder in {folder.objects: folder for folder in folders}.values():
            kept = self._objects_of(folder).keep(self._git, writer, tips[folder.objects])
            packs = writer.add(TREE, _numbered_tree(FILE_MODE, kept.packs)) if kept.packs else b""
            entries = [_place_entry(writer, place, folder.objects), TreeEntry(LISTING, FILE_MODE, kept.listing)]
            stores.append([*entries, *([TreeEntry(PACKS, FOLDER_MODE, packs)] if packs else [])])
        if not states:
            return b"", b""
        state_trees = [writer.add(TREE, tree_bytes(entries)) for entries in states]
        store_trees = [writer.add(TREE, tree_bytes(entries)) for entries in stores]
        return (
            writer.add(TREE, _numbered_tree(FOLDER_MODE, state_trees)),
            writer.add(TREE, _numbered_tree(FOLDER_MODE, store_trees)),
        )

    def _keep_state(self, folder: GitFolder, writer: BlobWriter) -> TreeEntry:
        with _opened_folder(folder.place) as root:
            scan = FolderScan(root, GitRules(folder.parts), writer, self._clock, STATE_LIMIT, self._apart)
            scan.look_at_all({})
        scan.ensure_limit()
        for record in scan.folders.values():
            lost = [one for one in record.skipped if one.why is not SkipReason.SPECIAL]
            if lost or record.is_unreadable:
                path = joined(record.path, lost[0].name) if lost else record.path
                raise Unsupported(
                    f"{os.fsdecode(path)!r} in {folder.place} cannot be kept: it is too large or unreadable"
                )
        return TreeEntry(STATE, FOLDER_MODE, bytes.fromhex(stored_scan(scan, writer)))

    def _objects_of(self, folder: GitFolder) -> GitObjects:
        name = hashlib.sha256(os.fsencode(folder.objects)).hexdigest()[:32]
        return GitObjects(self._program, folder, self._scratch, self._caches / f"{name}{OBJECTS_CACHE}", self._clock)

    def _index_ids(self, folder: GitFolder, data: bytes) -> set[str]:
        """What an index names."""
        return {line.split(b" ", 2)[1].decode() for line in self._staged_entries(folder, data).split(b"\0")[:-1]}

    def _staged_entries(self, folder: GitFolder, data: bytes) -> bytes:
        """The entries of an index, without what git notes of files beside them."""
        repository = Path(folder.objects)
        with (
            NamedTemporaryFile(dir=self._scratch) as index,
            opened_repository(self._program, repository, object_format=folder.object_format) as git,
        ):
            index.write(data)
            index.flush()
            with git.start("ls-files", "--stage", "-z", index=Path(index.name)) as process:
                return ended_well(process, "ls-files", _MOST_INDEX_BYTES)[1]

    def _keep_ignored(
        self, root: int, seen: SeenFolder, writer: ObjectWriter, is_withheld: IsWithheld
    ) -> tuple[bytes, list[SkippedPath]]:
        chosen, skipped = _kept_ignored(root, seen, is_withheld)
        if not chosen:
            return b"", skipped
        scan = FolderScan(root, ChosenRules(chosen, is_withheld), writer, self._clock, _PRESENT_LIMIT, self._apart)
        scan.look_at_all({})
        return bytes.fromhex(stored_scan(scan, writer)), skipped

    # --- compared ---------------------------------------------------------------------------------------------------

    def git_changes(
        self, place: Path, snapshot: str, find_folders: Callable[[Path], Sequence[GitFolder]]
    ) -> list[GitChange]:
        """What of git's is not what a whole snapshot has. Nothing of it is changed."""
        with ObjectReader(self._git) as reader:
            target = load_snapshot(reader, snapshot)
            parts = {entry.name: entry.id for entry in _read_tree(reader, target.beside)} if target.beside else {}
            kept = [
                {one.name: one.id for one in _read_tree(reader, id)} for id in _numbered_ids(reader, parts.get(GIT))
            ]
            states = {_stored_place(place, reader, entries): entries[STATE] for entries in kept}
        folders = {folder.place: folder for folder in find_folders(place)}
        changes: list[GitChange] = []
        for lies in sorted(states.keys() | folders.keys()):
            name = os.path.relpath(lies, place)
            if lies in states and lies in folders:
                changes += self._state_changes(name, folders[lies], states[lies].hex())
            else:
                old, new = ("", None) if lies in states else (None, "")
                changes.append(GitChange(repository=name, what="the repository", old=old, new=new))
        return changes

    def _state_changes(self, name: str, folder: GitFolder, state: str) -> Iterator[GitChange]:
        with _opened_folder(folder.place) as root, ObjectWriter(self._git, self._scratch) as writer:
            scan = FolderScan(root, GitRules(folder.parts), writer, self._clock, STATE_LIMIT, self._apart)
            scan.look_at_all({})
            present = stored_scan(scan, writer)
            writer.finish()
        old, new = _snapshot_entries(self._git, state), _snapshot_entries(self._git, present)
        with ObjectReader(self._git) as reader:
            yield from reference_changes(name, load_references(reader, old), load_references(reader, new))
            indexes = [reader.read(BLOB, one[INDEX].id) if INDEX in one else b"" for one in (old, new)]
        if len(set(indexes)) > 1 and len({self._staged_entries(folder, one) if one else b"" for one in indexes}) > 1:
            yield GitChange(repository=name, what=INDEX.decode(), old="", new="")

    def changed_programs(self, root: int, snapshot: str, is_withheld: IsWithheld) -> list[str]:
        """The paths of files that some program runs by itself and that were not there, or not the same, when a whole
        snapshot was taken."""
        with ObjectReader(self._git) as reader:
            target = load_snapshot(reader, snapshot)
            parts = {entry.name: entry.id for entry in _read_tree(reader, target.beside)} if target.beside else {}
            if PROGRAMS not in parts:
                return []
            listing = reader.read(BLOB, parts[PROGRAMS])
        return changed_files(read_listing(listing), self_running_files(root, is_withheld))

    # --- given back -------------------------------------------------------------------------------------------------

    def restore(
        self,
        place: Path,
        root: int,
        snapshot: str,
        seen: SeenFolder,
        table: Table,
        find_folders: Callable[[Path], Sequence[GitFolder]],
    ) -> RestoredWhole:
        """Make all of it what it was. `seen` and `table` are what there is of the files."""
        with ObjectReader(self._git) as reader:
            target = load_snapshot(reader, snapshot)
            parts = {entry.name: entry.id for entry in _read_tree(reader, target.beside)} if target.beside else {}
            for id in _numbered_ids(reader, parts.get(GIT)):
                entries = {entry.name: entry.id for entry in _read_tree(reader, id)}
                _open_up_way(place, _stored_place(place, reader, entries))
            git_folders, done = find_folders(place), RestoredWhole()
            for id in _numbered_ids(reader, parts.get(OBJECTS)):
                self._give_objects_back(place, reader, id, git_folders, done)
        self._restore_files(place, root, target, parts.get(IGNORED), (seen, table), done)
        with ObjectReader(self._git) as reader:
            for id in _numbered_ids(reader, parts.get(GIT)):
                self._restore_state(place, reader, id, git_folders, done)
        return done

    def _give_objects_back(
        self, place: Path, reader: ObjectReader, id: bytes, folders: Sequence[GitFolder], done: RestoredWhole
    ) -> None:
        entries = {entry.name: entry.id for entry in _read_tree(reader, id)}
        lies = _stored_place(place, reader, entries)
        folder = next((folder for folder in folders if folder.objects == lies), None)
        if folder is None:
            done.left[lies] = _MOVED
            return
        packs = _numbered_ids(reader, entries.get(PACKS))
        try:
            self._objects_of(folder).give_back(reader, packs, entries[LISTING], self._random)
        except OSError as error:
            done.left[lies] = f"its objects could not be given back: {error.strerror}"

    def _restore_state(
        self, place: Path, reader: ObjectReader, id: bytes, folders: Sequence[GitFolder], done: RestoredWhole
    ) -> None:
        entries = {entry.name: entry.id for entry in _read_tree(reader, id)}
        lies = _stored_place(place, reader, entries)
        folder = next((folder for folder in folders if folder.place == lies), None)
        if folder is None:
            done.left[lies] = _MOVED
            return
        with _opened_folder(folder.place) as root:
            scan, present = self._scan_folder(root, GitRules(folder.parts), {}, _PRESENT_LIMIT)
            target = _snapshot_entries(self._git, entries[STATE].hex())
            restoring = self._restore_differences(root, scan, present, target, done, prefix=f"{lies}/")
            restoring.set_top_mode(load_snapshot(reader, entries[STATE].hex()).manifest.folder_mode(b""))

    def _restore_files(
        self,
        place: Path,
        root: int,
        stored: StoredFolder,
        ignored: bytes | None,
        there: tuple[SeenFolder, Table],
        done: RestoredWhole,
    ) -> None:
        """First the rules of what is ignored, then everything else by them."""
        target, (seen, table) = _snapshot_entries(self._git, stored.id), there
        if ignored is not None:
            of_ignored = _snapshot_entries(self._git, ignored.hex())
            self._keep_unkept(root, seen, of_ignored.keys() - target.keys(), of_ignored, done)
            target = {**of_ignored, **target}
        for is_rule_pass in (True, False):
            with IgnoreRules(self._git, self._scratch, OuterRules(place)) as rules:
                scan, present = self._scan_folder(root, NeededRules(rules, target), table, _PRESENT_LIMIT)
            if not is_rule_pass:
                restoring = self._restore_differences(root, scan, present, target, done)
                restoring.set_top_mode(stored.manifest.folder_mode(b""))
                return
            rule_files = [path for path in target.keys() | present.keys() if path.rpartition(b"/")[2] == IGNORE_FILE]
            if all(target.get(path) == present.get(path) for path in rule_files):
                continue
            needed = {above for path in rule_files if path in target for above in ancestors(path)}
            chosen = {*rule_files, *(path for path in needed if path not in present)}
            self._restore_differences(root, scan, _entries_at(present, chosen), _entries_at(target, chosen), done)

    def _keep_unkept(
        self, root: int, seen: SeenFolder, paths: Collection[bytes], target: Entries, done: RestoredWhole
    ) -> None:
        """Ignored files that differ, in something that has become too large to be kept before they are replaced: they
        get another name, or nothing could bring them back."""
        _, skipped = _kept_ignored(root, seen, _never_stop)
        left_out = ChosenRules((os.fsencode(one.path).rstrip(b"/") for one in skipped), _never_stop)
        unkept = [path for path in paths if left_out.has(path)]
        if not unkept:
            return
        with ObjectWriter(self._git, self._scratch) as writer:
            scan = FolderScan(root, ChosenRules(unkept, _never_stop), writer, self._clock, _PRESENT_LIMIT, self._apart)
            scan.look_at_all({})
            present = stored_scan(scan, writer)
            writer.finish()
        for path, entry in _snapshot_entries(self._git, present).items():
            if path in unkept and entry != target[path] and not entry.is_folder:
                done.left[os.fsdecode(path)] = self._rename_aside(root, path)

    def _rename_aside(self, root: int, path: bytes) -> str:
        above, _, name = path.rpartition(b"/")
        aside = name[:_MOST_NAME_BYTES] + b"." + self._random(8).hex().encode()
        folder = open_folder_at(root, above)
        try:
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        return f"what stood in its place is {os.fsdecode(aside)!r} now"

    def _scan_folder(
        self, root: int, rules: FolderRules, table: Table, limit: SnapshotLimit
    ) -> tuple[FolderScan, Entries]:
        """What is there now. A command may have made folders so that their owner cannot read them."""
        with ObjectWriter(self._git, self._scratch) as writer:
            scan = FolderScan(root, rules, writer, self._clock, limit, self._apart)
            scan.look_at_all(dict(table))
            while _open_up_all(root, scan.folders.values()):
                scan = FolderScan(root, rules, writer, self._clock, limit, self._apart)
                scan.look_at_all(dict(table))
            present = stored_scan(scan, writer)
            writer.finish()
        return scan, _snapshot_entries(self._git, present)

    def _move_aside(self, root: int, scan: FolderScan, target: Entries, done: RestoredWhole, prefix: str) -> None:
        """What no snapshot takes and that stands where something is to be given back gets another name: a command put
        it there. A pipe, a socket or a device goes."""
        needed = _with_folders(target)
        for record in scan.folders.values():
            for skipped in record.skipped:
                path = joined(record.path, skipped.name)
                if path not in needed:
                    continue
                folder = open_folder_at(root, record.path)
                try:
                    if skipped.why is SkipReason.SPECIAL:
                        os.unlink(skipped.name, dir_fd=folder)
                        continue
                    aside = skipped.name[:_MOST_NAME_BYTES] + b"." + self._random(8).hex().encode()
                    os.rename(skipped.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
                    why = f"what stood in its place is {os.fsdecode(aside)!r} now"
                    done.left[prefix + os.fsdecode(path)] = why
                except OSError as error:
                    done.left[prefix + os.fsdecode(path)] = error.strerror or "something is in its place"
                finally:
                    os.close(folder)

    def _restore_differences(
        self, root: int, scan: FolderScan, present: Entries, target: Entries, done: RestoredWhole, prefix: str = ""
    ) -> FolderRestoring:
        differences = [
            EntryDifference(path, present.get(path), target.get(path))
            for path in sorted(present.keys() | target.keys(), key=lambda path: path.split(b"/"))
            if present.get(path) != target.get(path)
        ]
        self._move_aside(root, scan, target, done, prefix)
        with ObjectReader(self._git) as reader:
            restoring = FolderRestoring(root, reader, scan.folders, scan.table, self._random)
            restoring.run(differences)
        done.written += restoring.written
        done.deleted += restoring.deleted
        done.left.update((prefix + os.fsdecode(path), why) for path, why in restoring.left.items())
        return restoring


def _kept_ignored(root: int, seen: SeenFolder, is_withheld: IsWithheld) -> tuple[list[bytes], list[SkippedPath]]:
    """The smallest first, as many as are kept, and the others."""
    sizes, skipped = list[tuple[int, int, bytes]](), list[SkippedPath]()
    for record in seen.head.folders:
        for name in record.ignored:
            path = joined(record.path, name.rstrip(b"/"))
            size = _measure_path(root, path)
            if size is None:
                skipped.append(SkippedPath(os.fsdecode(joined(record.path, name)), SkipReason.IGNORED))
            elif name.endswith(b"/") or not is_withheld(os.fsdecode(path)):
                sizes.append((*size, path))
    chosen, room, files = list[bytes](), IGNORED_LIMIT.total_bytes, IGNORED_LIMIT.files
    for size_bytes, count, path in sorted(sizes):
        if size_bytes > room or count > files:
            skipped.append(SkippedPath(os.fsdecode(path), SkipReason.IGNORED))
            continue
        room, files = room - size_bytes, files - count
        chosen.append(path)
    return chosen, skipped


def _with_folders(paths: Iterable[bytes]) -> set[bytes]:
    """Paths, and those of the folders above them."""
    return {place for path in paths for place in (path, *ancestors(path))}


def _read_tree(reader: ObjectReader, id: bytes) -> list[TreeEntry]:
    return parse_tree(reader.read(TREE, id), id.hex())


def _numbered_tree(mode: int, ids: Sequence[bytes]) -> bytes:
    return tree_bytes(TreeEntry(b"%06d" % number, mode, id) for number, id in enumerate(ids))


def _numbered_ids(reader: ObjectReader, tree: bytes | None) -> list[bytes]:
    return [] if tree is None else [entry.id for entry in _read_tree(reader, tree)]


def _place_entry(writer: ObjectWriter, workspace: Path, place: str) -> TreeEntry:
    return TreeEntry(PLACE, FILE_MODE, writer.add(BLOB, os.fsencode(os.path.relpath(place, workspace))))


def _stored_place(workspace: Path, reader: ObjectReader, entries: dict[bytes, bytes]) -> str:
    path = reader.read(BLOB, entries[PLACE], _MOST_PLACE_BYTES)
    return os.path.normpath(os.path.join(workspace, os.fsdecode(path)))


def _snapshot_entries(git: Git, snapshot: str) -> Entries:
    """All that a snapshot has, by path. Trees that were stored a moment ago are found by a new reader."""
    with ObjectReader(git) as reader:
        stored = load_snapshot(reader, snapshot)
        differences = SnapshotComparison(reader, NOTHING, stored, _PRESENT_LIMIT).differences()
    return {one.path: one.new for one in differences if one.new is not None}


def _entries_at(entries: Entries, paths: Collection[bytes]) -> Entries:
    return {path: entry for path, entry in entries.items() if path in paths}


def _measure_path(root: int, path: bytes) -> tuple[int, int] | None:
    """How many bytes and files there are at a path; None where that is more than is kept of one ignored path, or where
    it cannot be read."""
    size = files = 0
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            status = os.stat(here, dir_fd=root, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                folder = open_folder_at(root, here)
                try:
                    waiting += [joined(here, os.fsencode(name)) for name in os.listdir(folder)]
                finally:
                    os.close(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        size += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        files += 1
        if size > _MOST_IGNORED_BYTES or files + len(waiting) > _MOST_IGNORED_FILES:
            return None
    return size, files


def _open_up_way(workspace: Path, lies: str) -> None:
    """Have the owner look into a folder of git's and those of the workspace on its way."""
    folder = Path(lies)
    above = [parent for parent in folder.parents if workspace in parent.parents]
    for place in (*reversed(above), folder):
        with suppress(OSError):  # it is gone, or a link
            parent = open_real_folder(place.parent)
            try:
                open_up_folder(parent, place.name)
            finally:
                os.close(parent)


def _open_up_all(root: int, folders: Iterable[FolderRecord]) -> bool:
    """Open every folder that could not be read; whether that changed anything."""
    opened = [_open_up(root, folder.path) for folder in folders if folder.is_unreadable]
    return any(opened)


def _open_up(root: int, path: bytes) -> bool:
    """Have the owner of a folder read and change it; whether that changed anything. Its mode is set at the end."""
    *above, name = os.fsdecode(path).split("/")
    with suppress(OSError):
        parent = open_beneath(root, above, READ_FOLDER_FLAGS)
        try:
            return open_up_folder(parent, name)
        finally:
            os.close(parent)
    return False


@contextmanager
def _opened_folder(place: str) -> Iterator[int]:
    root = open_real_folder(Path(place))
    try:
        yield root
    finally:
        os.close(root)


# --- What changed in git's folders since a whole snapshot: where `HEAD` stands, references, and what is staged.

HEAD, PACKED, REFERENCES, INDEX = b"HEAD", b"packed-refs", b"refs/", b"index"
_SYMBOLIC = b"ref: "
_KINDS = (("refs/heads/", "branch "), ("refs/tags/", "tag "), ("refs/remotes/", "remote branch "))
_SHORT_DIGITS = 8


class GitChange(Struct, frozen=True, kw_only=True):
    """Something of a repository that differs. `repository` is the path of git's folder, from the workspace on; `what`
    names a reference, `HEAD`, the index or the repository itself. `old` and `new` are where it stood and stands, as far
    as that has words; None: it was not there, or is not."""

    repository: str
    what: str
    old: str | None
    new: str | None

    @property
    def words(self) -> str:
        """In one line: `.git: branch main 0f3c21aa -> 9b1d4e07`."""
        if self.old is None:
            outcome = f"is new{f' ({self.new})' if self.new else ''}"
        elif self.new is None:
            outcome = f"is gone{f' ({self.old})' if self.old else ''}"
        else:
            outcome = f"{self.old} -> {self.new}" if self.old or self.new else "changed"
        return readable_path(f"{self.repository}: {self.what} {outcome}")


def reference_changes(repository: str, old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> Iterator[GitChange]:
    """`HEAD` first, then by name."""
    for name in sorted(old.keys() | new.keys(), key=lambda name: (name != HEAD, name)):
        if old.get(name) != new.get(name):
            yield GitChange(
                repository=repository,
                what=_entry_name(name),
                old=_stands_at(old.get(name)),
                new=_stands_at(new.get(name)),
            )


def load_references(reader: ObjectReader, entries: Mapping[bytes, StoredEntry]) -> dict[bytes, bytes]:
    """Where `HEAD` and each reference of a folder of git's stand. One with a file of its own does not stand where the
    packed ones say."""
    references: dict[bytes, bytes] = {}
    if PACKED in entries and not entries[PACKED].is_folder:
        for line in reader.read(BLOB, entries[PACKED].id).splitlines():
            id, _, name = line.partition(b" ")
            if name and not line.startswith((b"#", b"^")):
                references[name] = id
    for path, entry in entries.items():
        if not entry.is_folder and (path == HEAD or path.startswith(REFERENCES)):
            references[path] = reader.read(BLOB, entry.id).strip()
    return references


def _entry_name(name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return next((kind + text.removeprefix(prefix) for prefix, kind in _KINDS if text.startswith(prefix)), text)


def _stands_at(value: bytes | None) -> str | None:
    if value is None:
        return None
    if value.startswith(_SYMBOLIC):
        return _entry_name(value.removeprefix(_SYMBOLIC).strip())
    return value.decode("utf-8", "surrogateescape")[:_SHORT_DIGITS]
