"""Takes a snapshot of a folder: looks through it, stores what is new, names the whole by one id."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from weft.kernel.clock import Clock
from weft.kernel.errors import LimitExceeded, StoreFailed
from weft.runtime.folder_snapshots.known_files import (
    IGNORE_FILE,
    REPOSITORY,
    UNSETTLED,
    FileRecord,
    FolderRecord,
    IgnoreRules,
    KnownFiles,
    KnownHead,
    OuterFile,
    OuterRules,
    SkippedRecord,
    Table,
    all_files,
    decode_files,
    encode_files,
    folder_stamp_of,
    index_bytes,
    is_settled,
    stamp_of,
)
from weft.runtime.folder_snapshots.snapshot_objects import (
    BLOB,
    FILE_MODE,
    FOLDER_MODE,
    LONGEST_PATH_BYTES,
    NEVER_KEPT,
    PERMISSIONS,
    TREE,
    FolderSnapshot,
    Manifest,
    ObjectReader,
    ObjectWriter,
    SkippedPath,
    SkipReason,
    SnapshotLimit,
    TreeEntry,
    ancestors,
    is_kept_name,
    joined,
    parse_tree,
    tree_bytes,
    usual_mode,
)
from weft.runtime.opened_folders import READ_FLAGS, READ_FOLDER_FLAGS, Identity, open_beneath
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.sandbox.own_git import Git, ended_well

# --- Looks through a folder for what a snapshot holds, and reads what is new or has changed.

LEFTOVER = b".weft-restoring-"
"""With this begin the names of files that a restore makes and renames. One that is left over belongs to nobody."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_READING_TRIES = 3
_CHUNK_BYTES = 1024 * 1024
_SPENT = "let the folder ignore what need not be kept, or raise the limit"


class RulesChanged(Exception):
    """Rules of what is ignored are new or others: everything is looked through again."""


def folder_parts(path: bytes) -> list[str]:
    return os.fsdecode(path).split("/") if path else []


def open_folder_at(root: int, path: bytes) -> int:
    return open_beneath(root, folder_parts(path), READ_FOLDER_FLAGS)


def open_real_folder(place: Path) -> int:
    """A folder at a path that leads through no link. Raises OSError where it does by now."""
    top = os.open("/", READ_FOLDER_FLAGS)
    try:
        return open_beneath(top, place.parts[1:], READ_FOLDER_FLAGS)
    finally:
        os.close(top)


class KeptApart(Struct, frozen=True):
    """What of a folder is in no snapshot, whatever its rules say."""

    identities: frozenset[Identity] = frozenset()
    """Files and folders, wherever they lie."""
    hidden: HiddenFiles | None = None
    """What commands do not see of it. A file that was hidden under another name is known by its number alone, and a
    copy of it would be seen; one whose name hides it is hidden in every copy, too."""

    @property
    def numbers(self) -> list[int]:
        """Of the files that commands do not see."""
        return [] if self.hidden is None else sorted(self.hidden.numbers)

    def has(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino) in self.identities

    def hides(self, path: bytes, status: os.stat_result) -> bool:
        """Whether commands do not see a file of the folder, and its name does not say so."""
        if self.hidden is None or not stat.S_ISREG(status.st_mode) or status.st_ino not in self.hidden.numbers:
            return False
        return not self.hidden.is_hidden_by_name(os.fsdecode(path))


class BlobWriter(Protocol):
    """Takes objects, and gives the ids that they have in the store."""

    def add(self, kind: bytes, data: bytes) -> bytes: ...


class FolderRules(Protocol):
    """What of a folder counts as ignored."""

    def enter(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """A folder was opened, whose own rules may count from now on."""

    def ignored(self, path: bytes, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        """Those of the names in a folder that are ignored; each with whether it is a folder."""


def changed_folders(root: int, git: Git, known: KnownFiles, head: KnownHead, work_tree: str) -> set[bytes]:
    """The known folders in which something differs from what is known. Raises RulesChanged."""
    words = ("diff-files", "--name-only", "-z", "--ignore-submodules=all")  # git would run in a submodule's folder
    with git.start(*words, work_tree=work_tree, index=known.index_of(head)) as process:
        changed = {folder.path for folder in head.folders if _has_changed(root, folder)}
        names = ended_well(process, "diff-files")[1].split(b"\0")[:-1]
    suspects: dict[bytes, set[bytes]] = {}
    for path in (*names, *head.fresh, *head.loose):
        above, _, name = path.rpartition(b"/")
        suspects.setdefault(above, set()).add(name)
    table = known.load_table(head) if suspects else {}
    paths = {folder.path for folder in head.folders}
    for above in suspects.keys() & paths - changed:
        files = decode_files((table or {}).get(above))
        if not all(_is_known(root, above, name, files.get(name)) for name in suspects[above]):
            changed.add(above)
    return changed


def _is_known(root: int, folder: bytes, name: bytes, record: FileRecord | None) -> bool:
    stamp = _stamp_at(root, joined(folder, name))
    return stamp is None if record is None else record.is_settled and record.stamp == stamp


def _has_changed(root: int, folder: FolderRecord) -> bool:
    if folder.stamp == UNSETTLED:
        return True
    if _stamp_at(root, folder.path or b".", is_folder=True) != folder.stamp:
        return True
    if folder.ignore_file is not None and _stamp_at(root, joined(folder.path, IGNORE_FILE)) != folder.ignore_file:
        raise RulesChanged
    return any(_stamp_at(root, joined(folder.path, one.name)) != one.stamp for one in folder.skipped)


def _stamp_at(root: int, path: bytes, *, is_folder: bool = False) -> object:
    try:
        status = os.stat(path, dir_fd=root, follow_symlinks=False)
    except OSError:
        return None
    return folder_stamp_of(status) if is_folder else stamp_of(status)


class FolderScan:
    """One look through a folder. Afterwards `folders` and `table` say what is in it, and the writer has the bytes."""

    def __init__(
        self,
        root: int,
        rules: FolderRules,
        writer: BlobWriter,
        clock: Clock,
        limit: SnapshotLimit,
        apart: KeptApart,
    ) -> None:
        self._root, self._rules, self._writer = root, rules, writer
        self.clock, self.limit, self._apart = clock, limit, apart
        self.folders: dict[bytes, FolderRecord] = {}
        self.table: Table = {}
        self.touched: set[bytes] = set()
        """Folders whose record is new."""
        self.changed_files: set[bytes] = set()
        """Paths of files that are new or changed, and of those that are gone."""
        self._entered: set[bytes] = set()
        self._names: dict[bytes, set[bytes]] = {}
        self._files = self._size = 0
        self.is_full = True
        """Whether what was decided before about names counts for nothing."""

    def look_again(self, folders: Iterable[FolderRecord], table: Table, changed: set[bytes]) -> None:
        """Start from what is known, and list only the changed folders."""
        self.is_full = False
        self.folders = {folder.path: folder for folder in folders}
        self.table = table
        self._scan_waiting(sorted(changed, reverse=True))

    def look_at_all(self, table: Table) -> None:
        """List every folder; files whose stamp is in the table are not read again."""
        self.table = table
        self._scan_waiting([b""])
        for path in self.table.keys() - self.folders.keys():
            del self.table[path]

    def _scan_waiting(self, waiting: list[bytes]) -> None:
        """Folders with the shortest paths come first: what is below one that is gone is gone, too."""
        gone: list[bytes] = []
        while waiting:
            path = waiting.pop()
            old = self.folders.get(path)
            if path and not self._is_listed(path):
                continue
            folder = self._list_folder(path, old)
            if folder is None:
                gone.append(path)
                continue
            names = self._names[path] = set(folder.folders)
            if old is not None:
                gone += [joined(path, name) for name in old.folders if name not in names]
            self.folders[path] = folder
            self.touched.add(path)
            waiting += [inner for name in folder.folders if (inner := joined(path, name)) not in self.folders]
            self._ensure_room(folder)
        self._drop_folders(gone)

    def _is_listed(self, path: bytes) -> bool:
        """Whether the folder above still holds it."""
        above, _, name = path.rpartition(b"/")
        parent = self.folders.get(above)
        if parent is not None and above not in self._names:
            self._names[above] = set(parent.folders)
        return parent is not None and name in self._names[above]

    def _drop_folders(self, gone: list[bytes]) -> None:
        """Folders that are no longer there, and all that is below them."""
        if not gone:
            return
        for path in gone:
            above, _, name = path.rpartition(b"/")
            parent = self.folders.get(above)
            if parent is not None and name in self._names.get(above, ()):  # it vanished after it was listed
                parent.folders.remove(name)
                parent.stamp = UNSETTLED
        dropped = set(gone)
        for path in list(self.folders):
            if path in dropped or not dropped.isdisjoint(ancestors(path)):
                del self.folders[path]
                self.table.pop(path, None)
                self.touched.discard(path)

    def _ensure_room(self, folder: FolderRecord) -> None:
        """A folder with too much in it is not read to its end."""
        self._files += folder.files + 1
        self._size += folder.size
        self._ensure_within_limits(self._files, self._size)

    def ensure_limit(self) -> None:
        """Raises LimitExceeded where the folder holds more than is kept."""
        records = self.folders.values()
        self._ensure_within_limits(sum(folder.files + 1 for folder in records), sum(folder.size for folder in records))

    def _ensure_within_limits(self, files: int, size: int) -> None:
        if files > self.limit.files:
            raise LimitExceeded("the files and folders in the folder", files, self.limit.files, _SPENT)
        if size > self.limit.total_bytes:
            raise LimitExceeded("the bytes in the folder", size, self.limit.total_bytes, _SPENT)

    def _list_folder(self, path: bytes, old: FolderRecord | None) -> FolderRecord | None:
        """A folder as it is now; None where there is none any longer."""
        looked_ns = self.clock.now_ms() * 1_000_000
        try:
            descriptor = open_folder_at(self._root, path)
        except PermissionError:
            return self._unreadable_folder(path)
        except OSError as error:
            if error.errno in _GONE and path:
                return None
            raise
        try:
            return _FolderListing(self, descriptor, path, old, looked_ns).record()
        finally:
            os.close(descriptor)

    def _unreadable_folder(self, path: bytes) -> FolderRecord | None:
        try:
            status = os.stat(path or b".", dir_fd=self._root, follow_symlinks=False)
        except OSError:
            return None
        self.table.pop(path, None)
        stamp = folder_stamp_of(status)
        return FolderRecord(path=path, stamp=stamp, mode=status.st_mode & PERMISSIONS, is_unreadable=True)

    def enter_rules(self, folder: int, path: bytes, *, has_rules: bool) -> None:
        """Have the rules of a folder, and of those above it, count."""
        above = path
        while above:
            above = above.rpartition(b"/")[0]
            parent = self.folders.get(above)
            if parent is not None and parent.ignore_file is not None and above not in self._entered:
                self._entered.add(above)
                descriptor = open_folder_at(self._root, above)
                try:
                    self._rules.enter(descriptor, above, has_rules=True)
                finally:
                    os.close(descriptor)
        if path not in self._entered:
            self._entered.add(path)
            self._rules.enter(folder, path, has_rules=has_rules)

    def is_apart(self, status: os.stat_result) -> bool:
        return self._apart.has(status)

    def is_hidden(self, path: bytes, status: os.stat_result) -> bool:
        return self._apart.hides(path, status)

    def ignored(self, path: bytes, names: list[tuple[bytes, bool]]) -> set[bytes]:
        return self._rules.ignored(path, names)

    def stored(self, data: bytes) -> bytes:
        return self._writer.add(BLOB, data)


class _FolderListing:
    """One folder, opened, while its names are looked at."""

    def __init__(self, scan: FolderScan, folder: int, path: bytes, old: FolderRecord | None, looked_ns: int) -> None:
        self._scan, self._folder, self._path, self._old, self._looked_ns = scan, folder, path, old, looked_ns
        self._known = decode_files(scan.table.get(path))
        self._skipped: list[SkippedRecord] = []
        self._files: list[FileRecord] = []
        self._leftovers: list[bytes] = []
        self._is_settled = True
        self._most = scan.limit.file_bytes

    def record(self) -> FolderRecord:
        status = os.fstat(self._folder)
        stamp = folder_stamp_of(status)
        entries, is_repository = self._list_entries()
        rules = entries.get(IGNORE_FILE)
        ignore_file = None if rules is None or stat.S_ISDIR(rules.st_mode) else stamp_of(rules)
        if self._old is not None and not self._scan.is_full and self._old.ignore_file != ignore_file:
            raise RulesChanged
        self._scan.enter_rules(self._folder, self._path, has_rules=ignore_file is not None)
        ignored = self._ignored_names(entries)
        folders = []
        for name, one in entries.items():
            is_folder = stat.S_ISDIR(one.st_mode)
            if (name + b"/" if is_folder else name) in ignored:
                continue
            if len(self._path) + 1 + len(name) > LONGEST_PATH_BYTES:
                self._skip_file(name, SkipReason.PATH_TOO_LONG, one)
            elif is_folder:
                folders.append(name)
            else:
                self._keep(name, one)
        self._note_changes()
        self._scan.table[self._path] = encode_files(self._files)
        settled = self._is_settled and is_settled(stamp, self._looked_ns)
        return FolderRecord(
            path=self._path,
            stamp=stamp if settled else UNSETTLED,
            mode=status.st_mode & PERMISSIONS,
            folders=folders,
            ignored=sorted(ignored),
            skipped=self._skipped,
            ignore_file=ignore_file,
            is_repository=is_repository,
            files=len(self._files),
            size=sum(record.stamp[1] for record in self._files),
            modes=dict(Counter(record.mode for record in self._files if not stat.S_ISLNK(record.mode))),
            leftovers=self._leftovers,
        )

    def _note_changes(self) -> None:
        files = {record.name: record for record in self._files}
        for name in self._known.keys() | files.keys():
            if self._known.get(name) is not files.get(name):
                self._scan.changed_files.add(joined(self._path, name))

    def _list_entries(self) -> tuple[dict[bytes, os.stat_result], bool]:
        """What lies in the folder, sorted by name, without what is never kept."""
        with os.scandir(self._folder) as listing:
            names = sorted(os.fsencode(entry.name) for entry in listing)
        entries = {}
        for name in names:
            if not is_kept_name(name) or self._is_another_name(name):
                continue
            try:
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            except OSError:  # gone since it was listed
                self._is_settled = False
                continue
            if name.startswith(LEFTOVER) and not stat.S_ISDIR(status.st_mode):
                self._leftovers.append(name)
            elif not self._scan.is_apart(status):
                entries[name] = status
        return entries, REPOSITORY in names

    def _is_another_name(self, name: bytes) -> bool:
        """Whether it is one of what is never kept, on a file system that does not tell small letters from large."""
        small = name.lower()
        if small not in NEVER_KEPT:
            return False
        one, other = (_stamp_at(self._folder, each) for each in (name, small))
        return one == other

    def _ignored_names(self, entries: dict[bytes, os.stat_result]) -> set[bytes]:
        """Those that are ignored, with a slash after folders. What was decided before stands while the rules do."""
        decided: dict[bytes, bool] = {}
        if self._old is not None and not self._scan.is_full:
            decided.update((name, True) for name in self._old.ignored)
            decided.update((name + b"/", False) for name in self._old.folders)
            decided.update((name, False) for name in self._known)
        marked = {name + b"/" if stat.S_ISDIR(one.st_mode) else name: name for name, one in entries.items()}
        asked = [(name, mark.endswith(b"/")) for mark, name in marked.items() if mark not in decided]
        found = self._scan.ignored(self._path, asked)
        return {mark for mark, name in marked.items() if decided.get(mark, name in found)}

    def _skip_file(self, name: bytes, why: SkipReason, status: os.stat_result) -> None:
        self._skipped.append(SkippedRecord(name, why, stamp_of(status)))

    def _keep(self, name: bytes, status: os.stat_result) -> None:
        known = self._known.get(name)
        size = status.st_size
        if self._scan.is_hidden(joined(self._path, name), status):
            self._skip_file(name, SkipReason.HIDDEN, status)
        elif known is not None and known.is_settled and known.stamp == stamp_of(status) and size <= self._most:
            self._files.append(known)
        elif stat.S_ISLNK(status.st_mode):
            self._keep_link(name, status)
        elif not stat.S_ISREG(status.st_mode):
            self._skip_file(name, SkipReason.SPECIAL, status)
        elif size > self._most:
            self._skip_file(name, SkipReason.TOO_LARGE, status)
        else:
            self._keep_file(name, status)

    def _keep_link(self, name: bytes, status: os.stat_result) -> None:
        looked_ns = self._scan.clock.now_ms() * 1_000_000
        try:
            target = os.readlink(name, dir_fd=self._folder)
        except OSError:  # replaced or gone since it was looked at: the next snapshot sees what came of it
            self._is_settled = False
            return
        self._add_file(name, status, target, looked_ns)

    def _keep_file(self, name: bytes, status: os.stat_result) -> None:
        try:
            descriptor = os.open(name, READ_FLAGS, dir_fd=self._folder)
        except OSError as error:
            if error.errno in _GONE:
                self._is_settled = False
                return
            self._skip_file(name, SkipReason.UNREADABLE, status)
            return
        try:
            self._keep_opened(name, descriptor)
        finally:
            os.close(descriptor)

    def _keep_opened(self, name: bytes, descriptor: int) -> None:
        """What changes while it is read is read again; what changes all the time is kept as it was read, unsettled."""
        for attempt in range(_READING_TRIES):
            looked_ns = self._scan.clock.now_ms() * 1_000_000
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                self._is_settled = False
                return
            try:
                data = _read_content(descriptor, before.st_size, self._most)
            except OSError:
                self._skip_file(name, SkipReason.UNREADABLE, before)
                return
            if len(data) > self._most:
                self._skip_file(name, SkipReason.TOO_LARGE, before)
                return
            if stamp_of(os.fstat(descriptor)) == stamp_of(before):
                self._add_file(name, before, data, looked_ns)
                return
            if attempt == _READING_TRIES - 1:
                self._add_file(name, before, data, 0)

    def _add_file(self, name: bytes, status: os.stat_result, data: bytes, looked_ns: int) -> None:
        stamp = stamp_of(status)
        settled = is_settled(stamp, looked_ns)
        self._is_settled &= settled
        mode = stat.S_IFMT(status.st_mode) | status.st_mode & PERMISSIONS
        owner, group, name_in_store = status.st_uid, status.st_gid, self._scan.stored(data)
        self._files.append(FileRecord(name, stamp, settled, owner, group, name_in_store, mode))


def _read_content(descriptor: int, expected: int, most: int) -> bytes:
    """All bytes of a file, or one more than are kept."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    pieces, size = [], 0
    while size <= most and (piece := os.read(descriptor, min(max(expected - size, 0) + 1, _CHUNK_BYTES))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


# --- Takes a snapshot of a folder: looks through it, stores what is new, and names the whole by one id.

FILES, MANIFEST = b"files", b"manifest"
BESIDE = b"beside"
"""The third entry, of a whole snapshot: see `whole_folders`."""
_MOST_LOOSE_FILES = 500
"""With more files that the index does not cover, it is written anew."""
_SECOND_NS = 1_000_000_000
_TICK_NS = 20_000_000


class SeenFolder(Struct, frozen=True, kw_only=True):
    """A snapshot, with what was seen for it."""

    snapshot: FolderSnapshot
    head: KnownHead


class FolderTaking:
    """Takes the snapshot of one folder, whose lock the caller holds."""

    def __init__(
        self, git: Git, known: KnownFiles, scratch: Path, clock: Clock, limit: SnapshotLimit, apart: KeptApart
    ) -> None:
        self._git, self._known, self._scratch, self._clock = git, known, scratch, clock
        self._limit, self._apart = limit, apart

    def take(self, folder: Path, root: int, keep: Callable[[str], None]) -> SeenFolder:
        """`root` is the folder, opened, and `folder` its path without links. `keep` refers to a stored snapshot."""
        outer = OuterRules(folder)
        outer_files = outer.files
        started_ns = self._clock.now_ms() * 1_000_000
        head = self._known.load()
        changed: set[bytes] | None = None
        is_same = head is not None and (head.limit, head.outer) == (self._limit, outer_files)
        if head is not None and is_same and head.hidden == self._apart.numbers:
            try:
                changed = changed_folders(root, self._git, self._known, head, os.fspath(folder))
            except (RulesChanged, StoreFailed):  # also a damaged index is no reason not to look
                changed = None
        if head is not None and changed is not None and not changed:
            self._settle_head(head, started_ns)
            if head.is_part_alone:
                self._store_again(head, keep)
            return SeenFolder(snapshot=_folder_snapshot(head), head=head)
        try:
            scan, snapshot = self._scan_folder(root, outer, head, changed)
        except RulesChanged:
            scan, snapshot = self._scan_folder(root, outer, head, None)
        keep(snapshot)
        head = self._write_down(scan, snapshot, outer_files, head, started_ns, os.fstat(root).st_dev)
        return SeenFolder(snapshot=_folder_snapshot(head), head=head)

    def _scan_folder(
        self, root: int, outer: OuterRules, head: KnownHead | None, changed: set[bytes] | None
    ) -> tuple[FolderScan, str]:
        table = self._known.load_table(head) if head is not None else None
        with (
            ObjectWriter(self._git, self._scratch) as writer,
            IgnoreRules(self._git, self._scratch, outer) as rules,
        ):
            scan = FolderScan(root, rules, writer, self._clock, self._limit, self._apart)
            if head is None or changed is None or table is None:
                scan.look_at_all(table or {})
            else:
                scan.look_again(head.folders, table, changed)
            scan.ensure_limit()
            snapshot = stored_scan(scan, writer)
            writer.finish()
        return scan, snapshot

    def _write_down(
        self,
        scan: FolderScan,
        snapshot: str,
        outer: list[OuterFile],
        old: KnownHead | None,
        started_ns: int,
        device: int,
    ) -> KnownHead:
        index, indexed_ns, fresh, loose = None, started_ns, [], []
        if old is not None and not scan.is_full:
            index, indexed_ns, fresh = old.index, old.indexed_ns, old.fresh
            loose = sorted({*old.loose, *scan.changed_files})
        if index is None or len(loose) > _MOST_LOOSE_FILES:
            files = all_files(scan.folders.values(), scan.table)
            indexed_ns = started_ns
            index = self._known.write_index(index_bytes(files, device))
            second_ns = (started_ns - _TICK_NS) // _SECOND_NS * _SECOND_NS
            fresh = [path for path, record in files if not record.is_settled or record.stamp[4] >= second_ns]
            loose = []
        head = KnownHead(
            snapshot=snapshot,
            limit=self._limit,
            index=index,
            indexed_ns=indexed_ns,
            table=self._known.write_table(scan.table),
            outer=outer,
            hidden=self._apart.numbers,
            fresh=fresh,
            loose=loose,
            folders=list(scan.folders.values()),
        )
        self._known.save(head)
        return head

    def _store_again(self, head: KnownHead, keep: Callable[[str], None]) -> None:
        """The tree of a snapshot that was removed while the whole one stayed, which has all that is in it."""
        with ObjectReader(self._git) as reader, ObjectWriter(self._git, self._scratch) as writer:
            entries = parse_tree(reader.read(TREE, bytes.fromhex(head.whole)), head.whole)
            writer.add(TREE, tree_bytes(entry for entry in entries if entry.name != BESIDE))
            writer.finish()
        keep(head.snapshot)
        head.is_part_alone = False
        self._known.save(head)

    def _settle_head(self, head: KnownHead, started_ns: int) -> None:
        """Everything is as it was, in a later second than the index was made in: from now on the index tells all."""
        if head.fresh and started_ns - _TICK_NS >= head.indexed_ns + 2 * _SECOND_NS:
            head.fresh = []
            self._known.save(head)


def stored_scan(scan: FolderScan, writer: BlobWriter) -> str:
    """The id of the snapshot of what was seen. It is stored once the writer has finished."""
    _write_trees(scan, writer)
    return write_snapshot(writer, scan.folders[b""].tree, _manifest_of(scan.folders, scan.table))


def _write_trees(scan: FolderScan, writer: BlobWriter) -> None:
    """New trees of the folders that were listed and of those above them, the deepest first."""
    paths = set(scan.touched)
    for path in scan.touched:
        paths.update(ancestors(path))
    paths.add(b"")
    for path in sorted(paths, key=lambda one: one.count(b"/") + bool(one), reverse=True):
        folder = scan.folders[path]
        entries = [
            TreeEntry(record.name, record.tree_mode, record.id)
            for record in decode_files(scan.table.get(path)).values()
        ]
        for name in folder.folders:
            tree = scan.folders[joined(path, name)].tree
            if tree:
                entries.append(TreeEntry(name, FOLDER_MODE, tree))
        folder.tree = writer.add(TREE, tree_bytes(entries)) if entries else b""


def _manifest_of(folders: dict[bytes, FolderRecord], table: Table) -> Manifest:
    files: Counter[int] = Counter()
    programs: Counter[int] = Counter()
    for folder in folders.values():
        for mode, count in folder.modes.items():
            (programs if mode & 0o100 else files)[mode & PERMISSIONS] += count
    manifest = Manifest(
        usual_file=usual_mode(files, 0o644),
        usual_program=usual_mode(programs, 0o755),
        usual_folder=usual_mode(Counter(folder.mode for path, folder in folders.items() if path), 0o755),
        empty=frozenset(path for path, folder in folders.items() if path and not folder.tree),
        repositories=frozenset(path for path, folder in folders.items() if folder.is_repository),
    )
    usual = {manifest.usual_file, manifest.usual_program}
    for path, folder in folders.items():
        if folder.mode != manifest.usual_folder:
            manifest.folders[path] = folder.mode
        if {mode & PERMISSIONS for mode in folder.modes} <= usual:
            continue
        for record in decode_files(table.get(path)).values():
            mode = record.mode & PERMISSIONS
            if not stat.S_ISLNK(record.mode) and mode not in usual:
                manifest.files[joined(path, record.name)] = mode
    return manifest


def write_snapshot(writer: BlobWriter, files: bytes, manifest: Manifest) -> str:
    """The id of the tree that is the snapshot. It is stored once the writer has finished."""
    entries = [TreeEntry(MANIFEST, FILE_MODE, writer.add(BLOB, manifest.encoded()))]
    if files:
        entries.append(TreeEntry(FILES, FOLDER_MODE, files))
    return writer.add(TREE, tree_bytes(entries)).hex()


def _folder_snapshot(head: KnownHead) -> FolderSnapshot:
    skipped = []
    for folder in head.folders:
        if folder.is_unreadable:
            skipped.append(SkippedPath(os.fsdecode(folder.path) or ".", SkipReason.UNREADABLE))
        skipped += [SkippedPath(os.fsdecode(joined(folder.path, one.name)), one.why) for one in folder.skipped]
    return FolderSnapshot(
        id=head.snapshot,
        files=sum(folder.files for folder in head.folders),
        size_bytes=sum(folder.size for folder in head.folders),
        skipped=tuple(sorted(skipped, key=lambda one: one.path)),
    )
