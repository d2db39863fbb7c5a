"""Takes a snapshot of a folder: looks through it, stores what is new, and names the whole by one id.

The id is that of a tree with two entries: `files`, the tree of the folder, and `manifest`, what git does not keep of
it. All objects are stored first, then a reference makes the snapshot one that is kept, and only then is written down
what was seen. A process that dies on the way leaves objects that nobody refers to; removing snapshots removes them.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from weft.kernel.clock import Clock
from weft.kernel.errors import StoreFailed
from weft.runtime.resources.directories.ignore_rules import IgnoreRules, OuterRules
from weft.runtime.resources.directories.known_files import (
    FolderRecord,
    KnownFiles,
    KnownHead,
    OuterFile,
    Table,
    all_files,
    decode_files,
    index_bytes,
)
from weft.runtime.resources.directories.manifest import PERMISSIONS, Manifest, ancestors, usual_mode
from weft.runtime.resources.directories.model import FolderSnapshot, SkippedPath, SkipReason, SnapshotLimit
from weft.runtime.resources.directories.objects import BLOB, TREE, ObjectReader, ObjectWriter
from weft.runtime.resources.directories.scan import BlobWriter, RulesChanged, Scan, changed_folders
from weft.runtime.resources.directories.trees import FILE_MODE, FOLDER_MODE, TreeEntry, joined, parse_tree, tree_bytes
from weft.runtime.sandbox.git_program import Git
from weft.runtime.tools.beneath import Identity

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
        self, git: Git, known: KnownFiles, scratch: Path, clock: Clock, limit: SnapshotLimit, apart: frozenset[Identity]
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
        if head is not None and head.limit == self._limit and head.outer == outer_files:
            try:
                changed = changed_folders(root, self._git, self._known, head, os.fspath(folder))
            except (RulesChanged, StoreFailed):  # also a damaged index is no reason not to look
                changed = None
        if head is not None and changed is not None and not changed:
            self._settle(head, started_ns)
            if head.is_part_alone:
                self._store_again(head, keep)
            return SeenFolder(snapshot=_summary(head), head=head)
        try:
            scan, snapshot = self._look(root, outer, head, changed)
        except RulesChanged:
            scan, snapshot = self._look(root, outer, head, None)
        keep(snapshot)
        head = self._write_down(scan, snapshot, outer_files, head, started_ns, os.fstat(root).st_dev)
        return SeenFolder(snapshot=_summary(head), head=head)

    def _look(
        self, root: int, outer: OuterRules, head: KnownHead | None, changed: set[bytes] | None
    ) -> tuple[Scan, str]:
        table = self._known.load_table(head) if head is not None else None
        with (
            ObjectWriter(self._git, self._scratch) as writer,
            IgnoreRules(self._git, self._scratch, outer) as rules,
        ):
            scan = Scan(root, rules, writer, self._clock, self._limit, self._apart)
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
        scan: Scan,
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

    def _settle(self, head: KnownHead, started_ns: int) -> None:
        """Everything is as it was, in a later second than the index was made in: from now on the index tells all."""
        if head.fresh and started_ns - _TICK_NS >= head.indexed_ns + 2 * _SECOND_NS:
            head.fresh = []
            self._known.save(head)


def stored_scan(scan: Scan, writer: BlobWriter) -> str:
    """The id of the snapshot of what was seen. It is stored once the writer has finished."""
    _write_trees(scan, writer)
    return write_snapshot(writer, scan.folders[b""].tree, _manifest(scan.folders, scan.table))


def _write_trees(scan: Scan, writer: BlobWriter) -> None:
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


def _manifest(folders: dict[bytes, FolderRecord], table: Table) -> Manifest:
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


def _summary(head: KnownHead) -> FolderSnapshot:
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
