"""The files of turns: brought back, compared, undone with the conversation, and merged.

What a turn's files were is the last snapshot of a working directory that was taken in it, or in the nearest turn before
it that has one. Whatever is overwritten is kept first.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from weft.kernel.enums import RestoreOutcome, SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.ledger.api import REDO, Ledger, NewSnapshot, Resource, Restore, Snapshot, kept_by_undo, undo_reason
from weft.ledger.model import HeadMove, Turn
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.directories import ChangedPath, FolderMerge
from weft.runtime.resources.directories.model import readable_path
from weft.runtime.resources.directory_driver import METHOD, REFERENCE, DirectoryDriver, new_folder, tree_of
from weft.runtime.resources.drivers import Drivers

NOT_KNOWN = "they are kept where Weft runs a turn with a workspace, or follows another tool with its files"


class CheckedOut(Struct, frozen=True, kw_only=True):
    """Files that were brought back."""

    snapshot: Snapshot
    place: str
    notes: tuple[str, ...] = ()
    """What could not be made equal."""


class Undone(Struct, frozen=True, kw_only=True):
    """A head that went back, or forth again, and its files with it."""

    session: str
    before: str | None
    head: str | None
    restores: tuple[Restore, ...]


class MergedFiles(Struct, frozen=True, kw_only=True):
    """What a merge of files gave: the merged snapshot, or what stands in the way."""

    resource: Resource
    base: str
    ours: str
    theirs: str
    merge: FolderMerge


class TurnFiles:
    """The files of the turns of one ledger."""

    def __init__(self, ledger: Ledger, driver: DirectoryDriver) -> None:
        self._ledger, self._driver = ledger, driver
        self._controller = ResourceController(ledger, Drivers(driver))

    # --- which ------------------------------------------------------------------------------------------------------

    def snapshot_of(self, rev: str, resource: str | None = None) -> Snapshot:
        """What the working directory was like after a turn. Raises NotApplicable where that is not known, or where
        there were several and none is named."""
        return self._chosen(self._ledger.resources.snapshots_of_turn(rev), rev, resource)

    def _chosen(self, snapshots: list[Snapshot], rev: str, resource: str | None) -> Snapshot:
        wanted = None if resource is None else self._ledger.resources.get(resource).id
        trees = [one for one in snapshots if one.external_kind == REFERENCE and wanted in (None, one.resource)]
        if not trees:
            raise NotApplicable(f"no files are known of {rev}", NOT_KNOWN)
        if len(trees) > 1:
            names = ", ".join(self._ledger.resources.get(one.resource).name for one in trees)
            raise NotApplicable(f"{rev} worked in several directories: {names}", "name one of them")
        return trees[0]

    def changes(self, old: Snapshot | None, new: Snapshot) -> list[ChangedPath]:
        """The paths that differ; all that there are, where nothing was before."""
        return self._driver.files.changes(None if old is None else tree_of(old), tree_of(new))

    def text_diff(self, change: ChangedPath) -> list[str] | None:
        return self._driver.files.text_diff(change)

    def keep(self, resource: Resource) -> Snapshot:
        """A snapshot of a directory as it is now. Raises NotApplicable where none can be taken."""
        return self._keep_present(resource)

    # --- brought back -----------------------------------------------------------------------------------------------

    def check_out(self, rev: str, to: str | None = None, *, resource: str | None = None) -> CheckedOut:
        """The files of a turn in a new folder, or without one over the directory itself, which is kept first."""
        snapshot = self.snapshot_of(rev, resource)
        if to is None:
            place = self._ledger.resources.get(snapshot.resource)
            session = self._ledger.turn(self._ledger.resolve(rev)).session_id
            self._ensure_owned(place, "" if session is None else self._ledger.session(session).label, force=False)
            self._keep_present(place)
            return CheckedOut(snapshot=snapshot, place=place.place, notes=self._restored(snapshot))
        self._ledger.trust.ensure("write files")
        folder = new_folder(to)
        if folder.exists() and any(folder.iterdir()):
            raise NotApplicable(f"{folder} exists and is not empty", "name a new folder")
        done = self._driver.files.restore(tree_of(snapshot), folder)
        notes = tuple(f"{readable_path(one.path)}: {one.why}" for one in done.left)
        return CheckedOut(snapshot=snapshot, place=str(folder), notes=notes)

    def copy_into(self, snapshot: Snapshot, folder: Path) -> None:
        """The files of a snapshot in an empty folder, for somebody who throws them away afterwards."""
        self._ledger.trust.ensure("write files")
        self._driver.files.restore(tree_of(snapshot), folder)

    def _keep_present(self, resource: Resource, run: str | None = None) -> Snapshot:
        """Raises NotApplicable where the directory as it is cannot be kept: nothing is overwritten then."""
        taken = self._controller.snapshot(resource, run=run)
        if taken.state is not SnapshotState.OK:
            raise NotApplicable(f"{resource.place} as it is now cannot be kept: {taken.error}", "mend that first")
        return taken

    def _restored(self, snapshot: Snapshot) -> tuple[str, ...]:
        done = self._controller.restore(snapshot)
        if done.outcome is not RestoreOutcome.OK:
            raise NotApplicable(f"the files could not be restored: {done.error or 'somebody works on them'}")
        return self._controller.notes.get(done.id, ())

    def pack(self) -> None:
        """Let what is kept take less room."""
        self._driver.files.pack()

    # --- undone -----------------------------------------------------------------------------------------------------

    def undo(self, session: str, *, force: bool = False) -> Undone:
        """The head goes back by one turn, and the directory to what it was before that turn changed it. What it is now
        is kept, so that `redo` brings both back."""
        standing = self._ledger.session(session)
        if standing.head is None:
            raise NotApplicable(f"session {standing.label!r} has no turn to undo")
        turn = self._ledger.turn(standing.head)
        before = [one for one in self._ledger.resources.snapshots_before_turn(turn.id) if _is_restorable(one)]
        after = self._changed_in(turn)
        unknown = sorted(after - {one.resource for one in before})
        if unknown:
            name = self._ledger.resources.get(unknown[0]).name
            raise NotApplicable(f"what {name!r} was like before that turn is not known", "move the head alone")
        wanted = [one for one in before if one.resource in after]
        kept = self._kept_present(standing.label, wanted, force=force)
        return self._moved(standing.label, standing.head, turn.parent_id, undo_reason(kept), wanted)

    def _changed_in(self, turn: Turn) -> set[str]:
        """The directories that were kept in a turn."""
        kept = self._ledger.resources.snapshots_of_turn(turn.id)
        return {one.resource for one in kept if one.run == turn.id and _is_restorable(one)}

    def redo(self, session: str, *, force: bool = False) -> Undone:
        """Take the last undo back: head and files are again what they were before it."""
        standing = self._ledger.session(session)
        moves = self._ledger.reflog(session, limit=2)
        kept = kept_by_undo(moves[0].reason) if len(moves) > 1 else None
        if kept is None:
            raise NotApplicable(f"the last move of session {standing.label!r} was no undo")
        wanted = [self._ledger.resources.snapshot(id) for id in kept]
        self._kept_present(standing.label, wanted, force=force)
        return self._moved(standing.label, standing.head, _turn_of(moves[1]), REDO, wanted)

    def _kept_present(self, label: str, wanted: list[Snapshot], *, force: bool) -> list[str]:
        """Snapshots of the directories as they are now, which are about to be what `wanted` says."""
        resources = [self._ledger.resources.get(one.resource) for one in wanted]
        for resource in resources:
            self._ensure_owned(resource, label, force=force)
        return [self._keep_present(resource).id for resource in resources]

    def _moved(self, label: str, head: str | None, to: str | None, reason: str, snapshots: list[Snapshot]) -> Undone:
        ids = [one.id for one in snapshots]
        wishes = self._controller.log.move_with_files(label, expected=head, to=to, reason=reason, snapshots=ids)
        restores = tuple(self._controller.finish_restore(id) for id in wishes)
        return Undone(session=label, before=head, head=to, restores=restores)

    def _ensure_owned(self, resource: Resource, label: str, *, force: bool) -> None:
        """Nobody's work but the session's own is overwritten."""
        owner = resource.owner
        if not resource.is_own or owner is None:
            raise NotApplicable(f"directory {resource.place} is no longer the session's", "check the files out beside")
        if owner.kind == "session" and owner.name != label and not force:
            raise NotApplicable(
                f"session {owner.name!r} works in {resource.place} now", "check the files out beside, or insist"
            )

    # --- merged -----------------------------------------------------------------------------------------------------

    def merge(self, branch: str, into: str) -> MergedFiles:
        """What git's three-way merge makes of the files of two sessions; nothing is written to a directory. Raises
        NotApplicable where the session that gets them has no directory of its own."""
        tips = [self._ledger.resolve(name) for name in (branch, into)]
        ancestor = self._ledger.tree.common_ancestor(*tips)
        if ancestor is None:
            raise NotApplicable(f"{branch!r} and {into!r} have no turn in common", "copy what you need by hand")
        base, target = self.snapshot_of(ancestor), self._directory_of(into)
        if target is None:
            raise NotApplicable(f"session {into!r} works in no directory of its own", "check the branch out beside")
        source = self._directory_of(branch)
        theirs = self.snapshot_of(tips[0]) if source is None else self._keep_present(source)
        ours = self._keep_present(target)
        merge = self._driver.files.merge(tree_of(base), tree_of(ours), tree_of(theirs))
        return MergedFiles(resource=target, base=base.id, ours=ours.id, theirs=theirs.id, merge=merge)

    def _directory_of(self, name: str) -> Resource | None:
        """The one directory that a session owns and that is there."""
        try:
            session = self._ledger.session(name)
        except NotFound:
            return None  # a turn
        owned = self._ledger.resources.list(session=session.label, kind="directory")
        present = [one for one in owned if one.is_own and Path(one.place).is_dir()]
        return present[0] if len(present) == 1 else None

    def apply_merge(self, merged: MergedFiles, turn: str) -> Restore:
        """Write merged files to the directory of the session that they were merged into, as the files of a turn of
        it. Raises NotApplicable where the directory has changed since."""
        if merged.merge.id is None:
            raise NotApplicable("the files were not merged: there are conflicts", "settle them first")
        present, ours = self._keep_present(merged.resource), self._ledger.resources.snapshot(merged.ours)
        if present.external_id != ours.external_id:
            raise NotApplicable(f"{merged.resource.place} has changed since the files were merged", "merge again")
        new = NewSnapshot(method=METHOD, external_kind=REFERENCE, external_id=merged.merge.id)
        kept = self._controller.log.record_snapshot(merged.resource.id, new, run=turn)
        return self._controller.restore(kept)


def _is_tree(snapshot: Snapshot) -> bool:
    return snapshot.external_kind == REFERENCE


def _is_restorable(snapshot: Snapshot) -> bool:
    """Whether a directory can be made equal to it: not to what was only put together from what a session tells."""
    return _is_tree(snapshot) and snapshot.restorable


def _turn_of(move: HeadMove) -> str:
    if move.turn_id is None:
        raise InvalidInput("the session stood at no turn before", "move its head yourself")
    return move.turn_id
