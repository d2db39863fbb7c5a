"""A fork of a conversation and of what it works with: a plan is proposed, changed by people, and carried out.

Snapshots that are missing are taken first. Then the session, who owns what and which copies are wanted are recorded as
one fact, and the copies are made. A copy that cannot be made is undone and recorded; both sessions can be used either
way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import ResourceKind, RestoreOutcome, SnapshotState, VolumeMode
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api import Ledger, PlannedResource, Resource, Restore, Snapshot
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers, proposed_mode

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


class WrittenLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a plan in a file."""

    resource: str
    mode: VolumeMode
    kept_by: str = ORIGIN
    place: str | None = None


class ForkedResources(Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    session: str
    """The id of the new session."""
    lines: tuple[PlanLine, ...]
    restores: tuple[Restore, ...]

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
        kept = {one.resource: one for one in self._ledger.resources.snapshots_of_turn(point.turn_id)}
        session = point.session or self._ledger.turn(point.turn_id).session_id
        owned = [] if session is None else self._ledger.resources.list(session=session)
        others = [self._ledger.resources.get(id) for id in kept if id not in {one.id for one in owned}]
        is_head = session is not None and self._ledger.session(session).head == point.turn_id
        resources = [one for one in (*owned, *others) if one.is_own and one.owner is not None]
        return [self._line(one, kept.get(one.id), label, is_present=is_head) for one in resources]

    def _line(self, resource: Resource, kept: Snapshot | None, label: str, *, is_present: bool) -> PlanLine:
        if proposed_mode(resource) is not VolumeMode.SNAPSHOT or not self._drivers.has(resource.kind):
            why = "it cannot be copied" if self._drivers.has(resource.kind) else "nothing here can copy it"
            return PlanLine(resource=resource, mode=VolumeMode.KEEP, why=f"{why}: it stays where it is")
        if kept is None and not is_present:
            why = "what it was like at that turn is not known: it stays where it is"
            return PlanLine(resource=resource, mode=VolumeMode.KEEP, why=why)
        place = self._drivers.of(resource.kind).new_place(resource, label)
        why = "a copy of what it was like at that turn" if kept is not None else "a copy of what it is like now"
        return PlanLine(resource=resource, mode=VolumeMode.SNAPSHOT, snapshot=kept, place=place, why=why)

    def changed(self, lines: Sequence[PlanLine], mode: VolumeMode | None, folder: str | None) -> list[PlanLine]:
        """The plan with one decision for all, and with the folder in which a directory is copied. Raises NotApplicable
        where a copy is asked for that cannot be made."""
        made = [line if mode is None else self._decided(line, mode) for line in lines]
        if folder is None:
            return made
        copies = [line for line in made if _is_copied_directory(line)]
        if len(copies) != 1:
            raise NotApplicable(f"{len(copies)} directories would be copied, not one", "say where each goes in a plan")
        return [replace(line, place=folder) if line is copies[0] else line for line in made]

    def _decided(self, line: PlanLine, mode: VolumeMode, *, by_fork: bool = False) -> PlanLine:
        if mode is not VolumeMode.SNAPSHOT:
            return replace(line, mode=mode, snapshot=None, place=None, is_kept_by_fork=by_fork, why="as you said")
        if line.mode is VolumeMode.SNAPSHOT:
            return replace(line, why="as you said")
        raise NotApplicable(f"unsupported: {line.resource.name!r} cannot be copied ({line.why})", "keep or discard it")

    def read(self, lines: Sequence[PlanLine], written: bytes) -> list[PlanLine]:
        """A plan that a person wrote as JSON: a list of resources by name or id, each with its mode. Those that it does
        not name stay as they are proposed."""
        try:
            decisions = msgspec.json.decode(written, type=list[WrittenLine])
        except msgspec.DecodeError as error:
            raise InvalidInput(f"the plan cannot be read: {error}", 'write [{"resource": …, "mode": …}, …]') from None
        by_id = {line.resource.id: line for line in lines}
        for decision in decisions:
            id = self._ledger.resources.get(decision.resource).id
            if id not in by_id:
                raise InvalidInput(f"{decision.resource!r} is no resource of this session", "leave it out of the plan")
            if decision.kept_by not in (FORK, ORIGIN):
                raise InvalidInput(f"kept_by is {decision.kept_by!r:.80}", f"write {FORK!r} or {ORIGIN!r}")
            line = self._decided(by_id[id], decision.mode, by_fork=decision.kept_by == FORK)
            by_id[id] = line if decision.place is None else replace(line, place=decision.place)
        return list(by_id.values())

    def carry_out(
        self, rev: str, label: str, lines: Sequence[PlanLine], *, persona: str | None = None
    ) -> ForkedResources:
        """Raises NotApplicable, before anything else was done, where a snapshot that is needed cannot be taken."""
        self._ledger.trust.ensure("fork resources")
        ready = [self._with_snapshot(line) for line in self._with_places(lines)]
        fork = self._controller.log.fork(rev, [_planned(line) for line in ready], label=label, persona=persona)
        restores = [self._controller.finish_restore(id) for id in fork.restores]
        return ForkedResources(session=fork.session, lines=tuple(ready), restores=tuple(restores))

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
        if line.mode is not VolumeMode.SNAPSHOT or line.snapshot is not None:
            return line
        taken = self._controller.snapshot(line.resource)
        if taken.state is not SnapshotState.OK:
            raise NotApplicable(f"no snapshot of {line.resource.name!r} could be taken: {taken.error}", "keep it")
        return replace(line, snapshot=taken)


def plan_json(lines: Sequence[PlanLine]) -> list[Mapping[str, Any]]:
    """A plan as people write it."""
    return [
        {
            "resource": line.resource.id,
            "mode": line.mode.value,
            **({"kept_by": FORK if line.is_kept_by_fork else ORIGIN} if line.mode is VolumeMode.KEEP else {}),
            **({"place": line.place} if line.place is not None else {}),
        }
        for line in lines
    ]


def _is_copied_directory(line: PlanLine) -> bool:
    return line.mode is VolumeMode.SNAPSHOT and line.resource.kind is ResourceKind.DIRECTORY


def _planned(line: PlanLine) -> PlannedResource:
    return PlannedResource(
        resource=line.resource.id,
        mode=line.mode,
        is_kept_by_fork=line.is_kept_by_fork,
        snapshot=None if line.snapshot is None else line.snapshot.id,
        place=line.place,
    )
