"""The files of turns: brought back, compared, undone with the conversation, and merged.

What a turn's files were is the last snapshot of a working directory that was taken in it, or in the nearest turn before
it that has one. Whatever is overwritten is kept first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from weft.kernel.enums import ResourceKind, RestoreOutcome, SnapshotState
from weft.kernel.errors import Action, NotApplicable, NotFound
from weft.ledger.api import Lease, Ledger, NewSnapshot, Resource, Restore, Snapshot, UndoneMove
from weft.ledger.model import Turn
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.directories import ChangedPath, ChangeStatus, FolderMerge
from weft.runtime.resources.directories.git_changes import GitChange
from weft.runtime.resources.directories.model import SkipReason, readable_path
from weft.runtime.resources.directory_driver import (
    METHOD,
    REFERENCE,
    WHOLE_METHOD,
    DirectoryDriver,
    new_folder,
    tree_of,
)
from weft.runtime.resources.drivers import Drivers

NOT_KNOWN = "they are kept where Weft runs a turn with a workspace, or follows another tool with its files"


class CheckedOut(Struct, frozen=True, kw_only=True):
    """Files that were brought back."""

    snapshot: Snapshot
    place: str
    notes: tuple[str, ...] = ()
    """What could not be made equal."""
    kept: Snapshot | None = None
    """What was there before; None where nothing was overwritten."""


class UndoPlan(Struct, frozen=True, kw_only=True):
    """What an undo or a redo is to do: where the head goes, and what the directories are to be like."""

    session: str
    before: str | None
    head: str | None
    wanted: tuple[Snapshot, ...]
    takes_back: UndoneMove | None = None
    """The undo that a redo takes back."""


class DirectoryChanges(Struct, frozen=True, kw_only=True):
    """How many paths of a directory an undo changes, removes, and brings back."""

    place: str
    changed: int
    removed: int
    restored: int
    is_whole: bool = False
    """Whether git's folders and ignored files are given back, too."""


class Undone(Struct, frozen=True, kw_only=True):
    """A head that went back, or forth again, and its files with it."""

    session: str
    before: str | None
    head: str | None
    restores: tuple[Restore, ...]
    changes: tuple[DirectoryChanges, ...] = ()
    """One for each restore."""
    left: tuple[str, ...] = ()
    """What could not be made equal."""


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
        self._drivers = Drivers(driver, machine=driver.machine, folder=driver.files.path.parent)
        self._controller = ResourceController(ledger, self._drivers)

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
        nearest = [one for one in trees if one.run == trees[0].run]  # a turn works where the last one did
        if len(nearest) > 1:
            names = ", ".join(self._ledger.resources.get(one.resource).name for one in nearest)
            raise NotApplicable(f"{rev} worked in several directories: {names}", "name one of them")
        self._drivers.ensure_here(self._ledger.resources.get(trees[0].resource))
        return trees[0]

    def changes(self, old: Snapshot | None, new: Snapshot) -> list[ChangedPath]:
        """The paths that differ; all that there are, where nothing was before."""
        for snapshot in (new,) if old is None else (old, new):
            self._controller.ensure_kept(snapshot)
        return self._driver.files.changes(None if old is None else tree_of(old), tree_of(new))

    def changes_of_turn(self, turn: str) -> list[ChangedPath]:
        """The paths that a turn changed, as far as it is known what its directories were like before and after."""
        tried = [one for one in self._controller.log.tried_in(turn) if self._is_ours(one) and _is_restorable(one)]
        before = {one.resource: one for one in self._ledger.resources.snapshots_before_turn(turn)}
        after = {one.resource: one for one in tried if one.state is SnapshotState.OK and not one.is_before}
        pairs = [(before.get(resource), snapshot) for resource, snapshot in after.items()]
        known = [(old, new) for old, new in pairs if old is not None and _is_restorable(old)]
        return [change for old, new in known for change in self.changes(old, new)]

    def git_changes_since(self, turns: Sequence[str]) -> list[GitChange]:
        """What git's folders say now that they did not say before the first of these turns changed a directory, where
        what they were like was kept: commands ran there that nobody was asked about."""
        beginnings: dict[str, Snapshot] = {}
        for turn in turns:
            for one in self._ledger.resources.snapshots_before_turn(turn):
                if one.run == turn and self._is_ours(one) and _is_restorable(one):
                    beginnings.setdefault(one.resource, one)
        changes = []
        for snapshot in beginnings.values():
            self._controller.ensure_kept(snapshot)
            changes += self._driver.git_changes(snapshot, self._place_of(snapshot).place)
        return changes

    def not_kept_before(self, turn: str) -> list[str]:
        """What of its directories is not given back by an undo of a turn whose commands nobody was asked about: what
        they ignore or is too large, and what could not be read."""
        before = (one for one in self._ledger.resources.snapshots_before_turn(turn) if one.run == turn)
        skipped = [path for one in before if one.method == WHOLE_METHOD for path in one.skipped or ()]
        told = [path for path in skipped if path.get("why") != SkipReason.SPECIAL]
        return [str(path.get("path", f"{path.get('more')} more")) for path in told]

    def changes_of_merge(self, merged: MergedFiles) -> list[ChangedPath]:
        """The paths of the directory that a merge changes; none where there are conflicts."""
        if merged.merge.id is None:
            return []
        return self._driver.files.changes(tree_of(self._ledger.resources.snapshot(merged.ours)), merged.merge.id)

    def text_diff(self, change: ChangedPath) -> list[str] | None:
        return self._driver.files.text_diff(change)

    def changes_of_checkout(self, snapshot: Snapshot) -> list[ChangedPath]:
        """The paths that differ between a directory as it is now and a snapshot of it."""
        self._ledger.trust.ensure("take a snapshot")
        present = self._driver.take_present(self._ledger.resources.get(snapshot.resource).place)
        return self._driver.files.changes(present.external_id, tree_of(snapshot))

    # --- brought back -----------------------------------------------------------------------------------------------

    def check_out(self, rev: str, to: str | None = None, *, resource: str | None = None) -> CheckedOut:
        """The files of a turn in a new folder, or without one over the directory itself, which is kept first."""
        snapshot = self.snapshot_of(rev, resource)
        self._controller.ensure_kept(snapshot)
        if to is None:
            place = self._ledger.resources.get(snapshot.resource)
            session = self._ledger.turn(self._ledger.resolve(rev)).session_id
            self._ensure_owned(place, "" if session is None else self._ledger.session(session).label, rev, force=False)
            with self._controller.working(place.id, in_place=True):
                kept = self._controller.keep_present(place)
                return CheckedOut(snapshot=snapshot, place=place.place, notes=self._restored(snapshot), kept=kept)
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
        self._controller.ensure_kept(snapshot)
        self._driver.files.restore(tree_of(snapshot), folder)

    def _restored(self, snapshot: Snapshot) -> tuple[str, ...]:
        done = self._controller.restore(snapshot)
        if done.outcome is not RestoreOutcome.OK:
            raise NotApplicable(f"the files could not be restored: {done.error or 'somebody works on them'}")
        return self._controller.notes.get(done.id, ())

    def pack(self) -> None:
        """Let what is kept take less room."""
        self._driver.files.pack()

    # --- undone -----------------------------------------------------------------------------------------------------

    def plan_undo(self, session: str, *, keeps_files: bool = False) -> UndoPlan:
        """What `undo` would do: the head goes back by one turn, and the directory to what it was before that turn
        changed it; with `keeps_files` the head alone. Raises NotApplicable where what it was is not known."""
        standing = self._ledger.session(session)
        if standing.head is None:
            raise NotApplicable(f"session {standing.label!r} has no turn to undo")
        turn = self._ledger.turn(standing.head)
        wanted = () if keeps_files else self._beginnings_of(turn, standing.label)
        return UndoPlan(session=standing.label, before=turn.id, head=turn.parent_id, wanted=wanted)

    def _beginnings_of(self, turn: Turn, label: str) -> tuple[Snapshot, ...]:
        """What the directories were like before a turn that may have changed them. Raises NotApplicable where that is
        not known of one: its snapshot failed, was thrown away, or there never was one."""
        tried = [one for one in self._controller.log.tried_in(turn.id) if not one.is_inferred and self._is_ours(one)]
        before = {one.resource: one for one in self._ledger.resources.snapshots_before_turn(turn.id)}
        for resource in sorted({one.resource for one in tried}):
            own = [one for one in tried if one.resource == resource and one.is_before]
            lost = next((one for one in own if one.state is not SnapshotState.OK), None)
            known = before.get(resource)
            if lost is not None or known is None or not _is_restorable(known):
                why = "nobody kept it" if lost is None else lost.error or f"it is {lost.state.value}"
                name = self._ledger.resources.get(resource).name
                raise NotApplicable(
                    f"what {name!r} was like before that turn is not known: {why}",
                    Action.UNDO_WITHOUT_FILES.of(session=label),
                )
        return tuple(before[resource] for resource in dict.fromkeys(one.resource for one in tried))

    def _is_ours(self, snapshot: Snapshot) -> bool:
        """Whether it is one of a directory that this ledger declared."""
        resource = self._ledger.resources.get(snapshot.resource)
        return resource.is_own and resource.kind is ResourceKind.DIRECTORY

    def plan_redo(self, session: str) -> UndoPlan:
        """What `redo` would do: head and files are again what they were before the last undo that was not taken back.
        Raises NotApplicable where another move or a turn came since."""
        standing = self._ledger.session(session)
        undone = self._controller.log.last_undone(standing.id)
        if undone is None:
            raise NotApplicable(f"nothing of session {standing.label!r} was undone since its head last moved otherwise")
        wanted = tuple(self._ledger.resources.snapshot(id) for id in undone.kept)
        return UndoPlan(
            session=standing.label, before=standing.head, head=undone.turn, wanted=wanted, takes_back=undone
        )

    def present_changes(self, plan: UndoPlan, *, force: bool = False) -> tuple[DirectoryChanges, ...]:
        """What would become of the directories as they are now; nothing is recorded. Only directories are looked at
        that the undo would change."""
        self._ledger.trust.ensure("look at files")
        places = self._own_places(plan, force=force)
        with self._driver.files.hold():
            return tuple(
                self._directory_changes(one, self._driver.take_present(place.place).external_id)
                for one, place in zip(plan.wanted, places, strict=True)
            )

    def _directory_changes(self, wanted: Snapshot, present: str) -> DirectoryChanges:
        statuses = [change.status for change in self._driver.files.changes(present, tree_of(wanted))]
        removed, restored = statuses.count(ChangeStatus.DELETED), statuses.count(ChangeStatus.ADDED)
        return DirectoryChanges(
            place=self._place_of(wanted).place,
            changed=len(statuses) - removed - restored,
            removed=removed,
            restored=restored,
            is_whole=wanted.method == WHOLE_METHOD,
        )

    def _place_of(self, snapshot: Snapshot) -> Resource:
        return self._ledger.resources.get(snapshot.resource)

    def undo(self, session: str, *, force: bool = False, keeps_files: bool = False) -> Undone:
        """Take back the last turn, and what it did to files. What they are now is kept, so that `redo` brings both
        back. With `keeps_files` they stay as they are; else NotApplicable is raised where what they were is not
        known."""
        return self._carried_out(self.plan_undo(session, keeps_files=keeps_files), force=force)

    def redo(self, session: str, *, force: bool = False) -> Undone:
        """Take the last undo back that was not taken back yet."""
        return self._carried_out(self.plan_redo(session), force=force)

    def _carried_out(self, plan: UndoPlan, *, force: bool) -> Undone:
        for snapshot in plan.wanted:
            self._controller.ensure_kept(snapshot)
        places = self._own_places(plan, force=force)
        with self._controller.working(*(place.id for place in places), in_place=True) as leases:
            return self._overwritten(plan, places, leases)

    def _overwritten(self, plan: UndoPlan, places: Sequence[Resource], leases: Sequence[Lease]) -> Undone:
        """Carry a plan out while nobody else works in the directories, until they are what it says."""
        present = [self._kept_present(*pair) for pair in zip(places, plan.wanted, strict=True)]
        changes = [self._directory_changes(*pair) for pair in zip(plan.wanted, map(tree_of, present), strict=True)]
        kept, log = [one.id for one in present], self._controller.log
        if plan.takes_back is not None:
            wishes = log.redo(plan.session, plan.takes_back, kept=kept, held=leases)
        else:
            assert plan.before is not None, "an undo takes a turn back"
            wanted = [one.id for one in plan.wanted]
            wishes = log.undo(
                plan.session, expected=plan.before, to=plan.head, kept=kept, snapshots=wanted, held=leases
            )
        restores = tuple(self._controller.finish_restore(id) for id in wishes)
        return Undone(
            session=plan.session,
            before=plan.before,
            head=plan.head,
            restores=restores,
            changes=tuple(changes),
            left=tuple(note for one in restores for note in self._controller.notes.get(one.id, ())),
        )

    def _kept_present(self, place: Resource, wanted: Snapshot) -> Snapshot:
        """With git's folders where they are given back; a command may have made them so that they cannot be kept, and
        that is no reason to leave them so: a redo then brings back files alone."""
        if wanted.method == WHOLE_METHOD:
            self._driver.open_up(place.place)
            with suppress(NotApplicable):
                return self._controller.keep_present(place, method=WHOLE_METHOD)
        return self._controller.keep_present(place)

    def _own_places(self, plan: UndoPlan, *, force: bool) -> list[Resource]:
        """The directories that a plan changes, each of which is here and the session's."""
        places = [self._place_of(one) for one in plan.wanted]
        for place in places:
            self._drivers.ensure_here(place)
            self._ensure_owned(place, plan.session, plan.head, force=force)
        return places

    def _ensure_owned(self, resource: Resource, label: str, rev: str | None, *, force: bool) -> None:
        """Nobody's work but the session's own is overwritten. `rev` has the files that were to be brought back."""
        advice = Action.RESET_HEAD_ALONE.of(session=label) if rev is None else Action.CHECK_OUT_BESIDE.of(rev=rev)
        owner = resource.owner
        if not resource.is_own or owner is None:
            raise NotApplicable(f"directory {resource.place} is no longer the session's", advice)
        if owner.kind == "session" and owner.name != label and not force:
            raise NotApplicable(f"session {owner.name!r} works in {resource.place} now", advice)

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
            raise NotApplicable(
                f"session {into!r} works in no directory of its own", Action.CHECK_OUT_BESIDE.of(rev=branch)
            )
        source = self._directory_of(branch)
        theirs = self.snapshot_of(tips[0]) if source is None else self._controller.keep_present(source)
        for snapshot in (base, theirs):
            self._controller.ensure_kept(snapshot)
        ours = self._controller.keep_present(target)
        merge = self._driver.files.merge(tree_of(base), tree_of(ours), tree_of(theirs))
        return MergedFiles(resource=target, base=base.id, ours=ours.id, theirs=theirs.id, merge=merge)

    def _directory_of(self, name: str) -> Resource | None:
        """The one directory that a session owns and that is there."""
        try:
            session = self._ledger.session(name)
        except NotFound:
            return None  # a turn
        owned = self._ledger.resources.list(session=session.label, kind="directory")
        here = [one for one in owned if one.is_own and self._drivers.is_here(one)]
        present = [one for one in here if Path(one.place).is_dir()]
        return present[0] if len(present) == 1 else None

    def apply_merge(self, merged: MergedFiles, turn: str) -> Restore:
        """Write merged files to the directory of the session that they were merged into, as the files of a turn of
        it. Raises NotApplicable where the directory has changed since."""
        if merged.merge.id is None:
            raise NotApplicable("the files were not merged: there are conflicts", "settle them first")
        with self._controller.working(merged.resource.id, in_place=True):
            present, ours = self._controller.keep_present(merged.resource), self._ledger.resources.snapshot(merged.ours)
            if present.external_id != ours.external_id:
                raise NotApplicable(f"{merged.resource.place} has changed since the files were merged", "merge again")
            if not self._driver.files.has(merged.merge.id):
                raise NotApplicable("the merged files were removed meanwhile", "merge again")
            new = NewSnapshot(method=METHOD, external_kind=REFERENCE, external_id=merged.merge.id)
            kept = self._controller.log.record_snapshot(merged.resource.id, new, run=turn)
            return self._controller.restore(kept)


def _is_tree(snapshot: Snapshot) -> bool:
    return snapshot.external_kind == REFERENCE


def _is_restorable(snapshot: Snapshot) -> bool:
    """Whether a directory can be made equal to it: not to what was only put together from what a session tells."""
    return _is_tree(snapshot) and snapshot.restorable
