"""A fork of a conversation and of what it works with: a plan is proposed, changed by people, and carried out.

Snapshots that are missing are taken first. Then the session, who owns what and which copies are wanted are recorded as
one fact, and the copies are made. A copy that cannot be made is undone and recorded; both sessions can be used either
way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import ResourceKind, RestoreOutcome, SnapshotState, VolumeMode
from weft.kernel.errors import InvalidInput, NotApplicable, WeftError, quoted
from weft.ledger.api import Ledger, PlannedResource, Resource, Restore, Snapshot
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.directory_driver import DirectoryDriver, tree_of
from weft.runtime.resources.drivers import RESTORED_AS_NEW, Drivers, proposed_mode

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
    restores: tuple[Restore, ...]
    not_removed: tuple[str, ...] = ()
    """Why things that Weft made and nobody owns any more are still there, for people."""

    @property
    def failures(self) -> tuple[Restore, ...]:
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
        made = [line if mode is None else self._decided(line, mode) for line in lines]
        if folder is None:
            return made
        copies = [line for line in made if _is_copied_directory(line)]
        if len(copies) != 1:
            raise NotApplicable(f"{len(copies)} directories would be copied, not one", "say where each goes in a plan")
        place = self._controller.absolute_place(copies[0].resource, folder)
        return [replace(line, place=place) if line is copies[0] else line for line in made]

    def _decided(self, line: PlanLine, mode: VolumeMode, *, by_fork: bool = False) -> PlanLine:
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
        for decision, snapshot in _decisions(written, label):
            id = self._ledger.resources.get(decision.resource).id
            if id not in by_id:
                raise InvalidInput(f"{decision.resource!r} is no resource of this session", "leave it out of the plan")
            if id in decided:
                raise InvalidInput(f"the plan names {quoted(decision.resource)} twice", "decide about each once")
            decided.add(id)
            if decision.kept_by not in (FORK, ORIGIN):
                raise InvalidInput(f"kept_by is {quoted(decision.kept_by)}", f"write {FORK!r} or {ORIGIN!r}")
            line = self._decided(by_id[id], decision.mode, by_fork=decision.kept_by == FORK)
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
        planned = [_planned(line, left.get(line.resource.id)) for line in ready]
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


def _decisions(written: bytes, label: str) -> Iterator[tuple[WrittenLine, str | None]]:
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


def _planned(line: PlanLine, why_left: str | None) -> PlannedResource:
    return PlannedResource(
        resource=line.resource.id,
        mode=line.mode,
        is_kept_by_fork=line.is_kept_by_fork,
        snapshot=None if line.snapshot is None else line.snapshot.id,
        place=line.place,
        why_left=why_left or None,
    )
