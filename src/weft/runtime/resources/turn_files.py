"""The files of turns: brought back, compared, undone with the conversation, merged, or forked.

A fork of a conversation and of what it works with is a plan: proposed, changed by people, and
carried out. Files that nobody kept are put together from what a session tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.file_reconstruction import Reconstruction, reconstruct, write_reconstruction
from weft.kernel.enums import ResourceKind, RestoreOutcome, SnapshotState, VolumeMode
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound, WeftError, quoted
from weft.ledger.api import (
    Lease,
    Ledger,
    NewResource,
    NewSnapshot,
    PlannedResource,
    Resource,
    ResourceLog,
    ResourceRestore,
    Snapshot,
    UndoneMove,
)
from weft.ledger.model import Turn
from weft.runtime.folder_snapshots.snapshot_objects import (
    ChangedPath,
    ChangeStatus,
    FolderMerge,
    SkipReason,
    readable_path,
)
from weft.runtime.folder_snapshots.whole_folders import GitChange
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import RESTORED_AS_NEW, Drivers, proposed_mode
from weft.runtime.resources.local_drivers import (
    DIRECTORY_CAPABILITIES,
    MOST_SKIPPED,
    TREE_METHOD,
    TREE_REFERENCE,
    WHOLE_METHOD,
    DirectoryDriver,
    new_folder,
    tree_of,
)

# --- The files of turns: brought back, compared, undone with the conversation, and merged.

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


class UndoneHead(Struct, frozen=True, kw_only=True):
    """A head that went back, or forth again, and its files with it."""

    session: str
    before: str | None
    head: str | None
    restores: tuple[ResourceRestore, ...]
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
        return self._choose_snapshot(self._ledger.resources.snapshots_of_turn(rev), rev, resource)

    def _choose_snapshot(self, snapshots: list[Snapshot], rev: str, resource: str | None) -> Snapshot:
        wanted = None if resource is None else self._ledger.resources.get(resource).id
        trees = [one for one in snapshots if one.external_kind == TREE_REFERENCE and wanted in (None, one.resource)]
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

    def places_of_turn(self, turn: str) -> tuple[str, ...]:
        """The directories that a turn may have changed."""
        tried = (one for one in self._controller.log.tried_in(turn) if self._is_ours(one))
        return self.places_of(*tried)

    def places_of(self, *snapshots: Snapshot) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._place_of(one).place for one in snapshots))

    def git_changes_since(self, turns: Sequence[str]) -> list[GitChange]:
        """What git's folders say now that they did not say before the first of these turns changed a directory, where
        what they were like was kept: commands ran there that nobody was asked about."""
        return [
            change
            for snapshot in self._beginnings(turns)
            for change in self._driver.git_changes(snapshot, self._place_of(snapshot).place)
        ]

    def changed_programs_since(self, turns: Sequence[str]) -> list[tuple[str, str]]:
        """The files that some program runs by itself and that are not what they were before the first of these turns
        changed a directory, each as that directory and the path in it; also those that it ignores. Known where
        commands ran that nobody was asked about."""
        return [
            (place, readable_path(path))
            for snapshot in self._beginnings(turns)
            for place in (self._place_of(snapshot).place,)
            for path in self._driver.changed_programs(snapshot, place)
        ]

    def _beginnings(self, turns: Sequence[str]) -> list[Snapshot]:
        """What each directory was like before the first of these turns that changed it."""
        beginnings: dict[str, Snapshot] = {}
        for turn in turns:
            for one in self._ledger.resources.snapshots_before_turn(turn):
                if one.run == turn and self._is_ours(one) and _is_restorable(one):
                    beginnings.setdefault(one.resource, one)
        for snapshot in beginnings.values():
            self._controller.ensure_kept(snapshot)
        return list(beginnings.values())

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
                return CheckedOut(snapshot=snapshot, place=place.place, notes=self._restore_notes(snapshot), kept=kept)
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

    def _restore_notes(self, snapshot: Snapshot) -> tuple[str, ...]:
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
            raise NotApplicable(
                f"nothing of session {standing.label!r} was undone since its head last moved",
                "name the session that was undone",
            )
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

    def undo(self, session: str, *, force: bool = False, keeps_files: bool = False) -> UndoneHead:
        """Take back the last turn, and what it did to files. What they are now is kept, so that `redo` brings both
        back. With `keeps_files` they stay as they are; else NotApplicable is raised where what they were is not
        known."""
        return self._carried_out(self.plan_undo(session, keeps_files=keeps_files), force=force)

    def redo(self, session: str, *, force: bool = False) -> UndoneHead:
        """Take the last undo back that was not taken back yet."""
        return self._carried_out(self.plan_redo(session), force=force)

    def _carried_out(self, plan: UndoPlan, *, force: bool) -> UndoneHead:
        for snapshot in plan.wanted:
            self._controller.ensure_kept(snapshot)
        places = self._own_places(plan, force=force)
        with self._controller.working(*(place.id for place in places), in_place=True) as leases:
            return self._carry_out_undo(plan, places, leases)

    def _carry_out_undo(self, plan: UndoPlan, places: Sequence[Resource], leases: Sequence[Lease]) -> UndoneHead:
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
        return UndoneHead(
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

    def apply_merge(self, merged: MergedFiles, turn: str) -> ResourceRestore:
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
            new = NewSnapshot(method=TREE_METHOD, external_kind=TREE_REFERENCE, external_id=merged.merge.id)
            kept = self._controller.log.record_snapshot(merged.resource.id, new, run=turn)
            return self._controller.restore(kept)


def _is_tree(snapshot: Snapshot) -> bool:
    return snapshot.external_kind == TREE_REFERENCE


def _is_restorable(snapshot: Snapshot) -> bool:
    """Whether a directory can be made equal to it: not to what was only put together from what a session tells."""
    return _is_tree(snapshot) and snapshot.restorable


# --- Files of turns that were put together from what a session tells, where nobody kept them: in a new folder, or
# recorded as a snapshot that says that it is inferred, and what is missing.


def check_out_reconstruction(ledger: Ledger, rev: str, to: str) -> Reconstruction:
    """What a session tells of the files after a turn, in a new folder. Raises NotApplicable where it tells of none."""
    ledger.trust.ensure("write files")
    found = reconstruct(ledger, rev)
    _ensure_any(found)
    write_reconstruction(found, new_folder(to))
    return found


def record_reconstruction(ledger: Ledger, driver: DirectoryDriver, found: Reconstruction) -> Snapshot:
    """Record it as a snapshot of the workspace after its turn, which cannot be restored over it."""
    ledger.trust.ensure("keep files")
    _ensure_any(found)
    assert found.workspace is not None  # else no path would lie in it
    log = ResourceLog(ledger)
    with TemporaryDirectory(prefix="weft-reconstruction-") as made, driver.files.hold():
        folder = Path(made) / "files"
        write_reconstruction(found, folder)
        taken = driver.take(folder)
        new = replace(
            taken, is_inferred=True, restorable=False, skipped=[*(taken.skipped or ()), *_missing_files(found)]
        )
        resource = _workspace_of(log, ledger, driver.machine, found.workspace, found.turn)
        return log.record_snapshot(resource, new, run=found.turn)


def _ensure_any(found: Reconstruction) -> None:
    if not found.files:
        why = f": {found.gaps[0].why}" if found.gaps else ""
        raise NotApplicable(f"no file of {found.turn} is known whole{why}", "its edits are shown with the turn")


def _workspace_of(log: ResourceLog, ledger: Ledger, machine: str | None, place: str, turn: str) -> str:
    """The resource at the workspace, which need not be on this machine, though what was put together is kept here; its
    owner stays who it is."""
    known = log.find_at(ResourceKind.DIRECTORY.value, place, machine)
    if known is not None:
        return known.id
    session = ledger.turn(turn).session_id
    new = NewResource(
        name=Path(place).name or "/",
        kind=ResourceKind.DIRECTORY,
        place=place,
        capabilities=DIRECTORY_CAPABILITIES,
        session=session,
        machine=machine,
    )
    return log.declare(new).id


def _missing_files(found: Reconstruction) -> list[dict[str, Any]]:
    gaps: list[dict[str, Any]] = [{"path": gap.path or "", "why": gap.why.value} for gap in found.gaps]
    if len(gaps) > MOST_SKIPPED:
        gaps = [*gaps[:MOST_SKIPPED], {"more": len(gaps) - MOST_SKIPPED}]
    return gaps


# --- A fork of a conversation and of what it works with: a plan is proposed, changed by people, and carried out.

FORK, ORIGIN = "fork", "origin"


class PlanLine(Struct, frozen=True, kw_only=True):
    """What a fork is to do with one resource, and why that is proposed."""

    resource: Resource
    mode: VolumeMode
    why: str
    snapshot: Snapshot | None = None
    """What the copy is made of; None: a snapshot is taken when the plan is carried out."""
    place: str | None = None
    """Where the copy goes."""
    is_kept_by_fork: bool = False
    changed_since: int = 0
    """So many paths are no longer what they were at that turn: the copy has what they were."""


class WrittenLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a plan in a file."""

    resource: str
    mode: VolumeMode
    kept_by: str = ORIGIN
    place: str | None = None


class ShownLine(Struct, frozen=True):
    """A line of a plan as it is shown: of what it tells, what decides."""

    resource_id: str
    mode: VolumeMode
    kept_by: str | None = None
    snapshot_id: str | None = None
    place: str | None = None


class ShownPlan(Struct, frozen=True):
    """A plan as it is shown."""

    resources: list[ShownLine]


class ForkedResources(Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    session: str
    """The id of the new session."""
    lines: tuple[PlanLine, ...]
    restores: tuple[ResourceRestore, ...]
    not_removed: tuple[str, ...] = ()
    """Why things that Weft made and nobody owns any more are still there, for people."""

    @property
    def failures(self) -> tuple[ResourceRestore, ...]:
        return tuple(one for one in self.restores if one.outcome is not RestoreOutcome.OK)


class ForkPlanner:
    """Plans forks of one ledger, and carries them out."""

    def __init__(self, ledger: Ledger, drivers: Drivers) -> None:
        self._ledger, self._drivers = ledger, drivers
        self._controller = ResourceController(ledger, drivers)

    def propose(self, rev: str, label: str) -> list[PlanLine]:
        """A line for each resource of the session, as it was at a turn, or event inside one, that a fork begins at."""
        point = self._ledger.point(rev)
        snapshots = self._ledger.resources.snapshots_of_turn(point.turn_id)
        kept = {one.resource: one for one in snapshots}
        session = point.session or self._ledger.turn(point.turn_id).session_id
        owned = [] if session is None else self._ledger.resources.list(session=session)
        nearest = [one.resource for one in snapshots if one.run == snapshots[0].run]
        others = [self._ledger.resources.get(id) for id in nearest if id not in {one.id for one in owned}]
        is_head = session is not None and self._ledger.session(session).head == point.turn_id
        resources = [one for one in (*owned, *others) if one.is_own and one.owner is not None]
        return [self._line(one, kept.get(one.id), label, is_present=is_head) for one in resources]

    def _line(self, resource: Resource, kept: Snapshot | None, label: str, *, is_present: bool) -> PlanLine:
        if not self._drivers.is_here(resource):
            why = "it is on another machine: it stays where it is"
            return PlanLine(resource=resource, mode=VolumeMode.KEEP, why=why)
        if proposed_mode(resource) is not VolumeMode.SNAPSHOT or not self._drivers.has(resource.kind):
            why = "it cannot be copied" if self._drivers.has(resource.kind) else "nothing here can copy it"
            return PlanLine(resource=resource, mode=VolumeMode.KEEP, why=f"{why}: it stays where it is")
        if kept is None and not is_present:
            why = "what it was like at that turn is not known: it stays where it is"
            return PlanLine(resource=resource, mode=VolumeMode.KEEP, why=why)
        place = self._drivers.of(resource.kind).new_place(resource, label)
        why = "a copy of what it was like at that turn" if kept is not None else "a copy of what it is like now"
        if resource.kind in RESTORED_AS_NEW:
            why += ", always as a new one: it cannot be restored in place"
        line = PlanLine(resource=resource, mode=VolumeMode.SNAPSHOT, snapshot=kept, place=place, why=why)
        return replace(line, changed_since=self._changed_since(resource, kept)) if is_present and kept else line

    def _changed_since(self, resource: Resource, kept: Snapshot) -> int:
        """How many paths of a directory that is there differ from what was kept of it; nothing is recorded."""
        driver = self._drivers.of(resource.kind)
        if not isinstance(driver, DirectoryDriver) or not Path(resource.place).is_dir():
            return 0
        self._ledger.trust.ensure("look at files")
        with driver.files.hold():
            return len(driver.files.changes(tree_of(kept), driver.take_present(resource.place).external_id))

    def changed(self, lines: Sequence[PlanLine], mode: VolumeMode | None, folder: str | None) -> list[PlanLine]:
        """The plan with one decision for all, and with the folder in which a directory is copied. Raises NotApplicable
        where a copy is asked for that cannot be made."""
        made = [line if mode is None else self._line_with_mode(line, mode) for line in lines]
        if folder is None:
            return made
        copies = [line for line in made if _is_copied_directory(line)]
        if len(copies) != 1:
            raise NotApplicable(f"{len(copies)} directories would be copied, not one", "say where each goes in a plan")
        place = self._controller.absolute_place(copies[0].resource, folder)
        return [replace(line, place=place) if line is copies[0] else line for line in made]

    def _line_with_mode(self, line: PlanLine, mode: VolumeMode, *, by_fork: bool = False) -> PlanLine:
        if mode is not VolumeMode.SNAPSHOT:
            return replace(line, mode=mode, snapshot=None, place=None, is_kept_by_fork=by_fork, why="as you said")
        if line.mode is VolumeMode.SNAPSHOT:
            return replace(line, why="as you said")
        raise NotApplicable(f"unsupported: {line.resource.name!r} cannot be copied ({line.why})", "keep or discard it")

    def read(self, lines: Sequence[PlanLine], written: bytes, label: str) -> list[PlanLine]:
        """A plan that a person wrote as JSON: a list of resources by name or id, each with its mode; or one as it is
        shown of a fork with this label. Those that it does not name stay as they are proposed."""
        by_id = {line.resource.id: line for line in lines}
        decided: set[str] = set()
        for decision, snapshot in _written_decisions(written, label):
            id = self._ledger.resources.get(decision.resource).id
            if id not in by_id:
                raise InvalidInput(f"{decision.resource!r} is no resource of this session", "leave it out of the plan")
            if id in decided:
                raise InvalidInput(f"the plan names {quoted(decision.resource)} twice", "decide about each once")
            decided.add(id)
            if decision.kept_by not in (FORK, ORIGIN):
                raise InvalidInput(f"kept_by is {quoted(decision.kept_by)}", f"write {FORK!r} or {ORIGIN!r}")
            line = self._line_with_mode(by_id[id], decision.mode, by_fork=decision.kept_by == FORK)
            if snapshot is not None and (line.snapshot is None or line.snapshot.id != snapshot):
                raise NotApplicable(f"the plan copies another snapshot of {line.resource.name!r}", "show the plan anew")
            by_id[id] = line if decision.place is None else replace(line, place=decision.place)
        return list(by_id.values())

    def carry_out(
        self, rev: str, label: str, lines: Sequence[PlanLine], *, persona: str | None = None
    ) -> ForkedResources:
        """Raises NotApplicable, before anything else was done, where a snapshot that is needed cannot be taken."""
        self._ledger.trust.ensure("fork resources")
        ready = [self._with_snapshot(line) for line in self._with_places(lines)]
        left = {line.resource.id: self._begin_removal(line) for line in ready if line.mode is VolumeMode.DISCARD}
        removed = [line.resource for line in ready if left.get(line.resource.id, "") is None]
        planned = [_planned_resource(line, left.get(line.resource.id)) for line in ready]
        try:
            fork = self._controller.log.fork(rev, planned, label=label, persona=persona)
        except WeftError:
            for resource in removed:
                self._controller.removals.cancel(resource)
            raise
        not_removed = [why for resource in removed if (why := self._finish_removal(resource)) is not None]
        restores = [self._controller.finish_restore(id) for id in fork.restores]
        return ForkedResources(
            session=fork.session, lines=tuple(ready), restores=tuple(restores), not_removed=tuple(not_removed)
        )

    def _begin_removal(self, line: PlanLine) -> str | None:
        """Why what Weft made is left where it is; empty: it did not make it; None: it is removed after the fork."""
        return self._controller.removals.begin(line.resource) if line.resource.is_made else ""

    def _finish_removal(self, resource: Resource) -> str | None:
        """Why it is still there, if it is: it is tried again when what is wanted is next carried out."""
        try:
            self._controller.removals.finish(resource)
        except WeftError as error:
            return str(error)
        return None

    def _with_places(self, lines: Sequence[PlanLine]) -> list[PlanLine]:
        """Raises InvalidInput where two copies would go to one place."""
        made = [
            line
            if line.place is None
            else replace(line, place=self._controller.absolute_place(line.resource, line.place))
            for line in lines
        ]
        places = [line.place for line in made if line.place is not None]
        if len(set(places)) != len(places):
            raise InvalidInput("two copies of the plan would go to one place", "give each its own")
        return made

    def _with_snapshot(self, line: PlanLine) -> PlanLine:
        if line.mode is not VolumeMode.SNAPSHOT:
            return line
        if line.snapshot is not None:
            self._controller.ensure_kept(line.snapshot)
            return line
        taken = self._controller.snapshot(line.resource)
        if taken.state is not SnapshotState.OK:
            raise NotApplicable(f"no snapshot of {line.resource.name!r} could be taken: {taken.error}", "keep it")
        return replace(line, snapshot=taken)


def _written_decisions(written: bytes, label: str) -> Iterator[tuple[WrittenLine, str | None]]:
    """What a plan decides, each with the snapshot that it says is copied, if it says so."""
    try:
        if not written.lstrip().startswith(b"{"):
            yield from ((line, None) for line in msgspec.json.decode(written, type=list[WrittenLine]))
            return
        shown = msgspec.json.decode(written, type=ShownPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the plan cannot be read: {error}", 'write [{"resource": …, "mode": …}, …]') from None
    for line in shown.resources:
        kept_by = FORK if line.mode is VolumeMode.KEEP and line.kept_by == label else ORIGIN
        yield WrittenLine(line.resource_id, line.mode, kept_by, line.place), line.snapshot_id


def _is_copied_directory(line: PlanLine) -> bool:
    return line.mode is VolumeMode.SNAPSHOT and line.resource.kind is ResourceKind.DIRECTORY


def _planned_resource(line: PlanLine, why_left: str | None) -> PlannedResource:
    return PlannedResource(
        resource=line.resource.id,
        mode=line.mode,
        is_kept_by_fork=line.is_kept_by_fork,
        snapshot=None if line.snapshot is None else line.snapshot.id,
        place=line.place,
        why_left=why_left or None,
    )
