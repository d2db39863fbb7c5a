"""Views of resources equal a naive replay of the events, for random sequences of verbs, on both engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft
from tests.conftest import NewPostgresLedger
from tests.ledger.histories import grow, problems
from tests.sizes import PROVING, chance, sized
from weft.kernel import ledger_events as kinds
from weft.kernel.enums import ResourceCapability, ResourceKind, VolumeMode
from weft.kernel.errors import AmbiguousName, InvalidInput, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import ResourceScope
from weft.ledger.api import Ledger, NewResource, NewSnapshot, PlannedResource, Resource, ResourceFailure, ResourceLog
from weft.programs import Programs

pytestmark = [pytest.mark.prove] if PROVING else []
TREE = NewSnapshot(method="git_tree", external_kind="git", external_id="4b825dc6")
FAILED = ResourceFailure("disk_full", "no room")
REFUSALS = (NotApplicable, NotFound, InvalidInput, AmbiguousName, NotAllowed)
ENGINES = ["sqlite", "postgresql"]


class Replay:
    """What the events say, one after the other, kept in dictionaries."""

    def __init__(self, ledger: Ledger) -> None:
        self.owners: dict[str, tuple[str, str] | None] = {}
        self.uses: dict[str, dict[tuple[str, str, str], str]] = {}
        self.handles: dict[str, set[str]] = {}
        self.parts: dict[str, set[str]] = {}
        self.liveness: dict[str, str] = {}
        self.snapshots: dict[str, dict[str, tuple[str, str | None, bool]]] = {}
        self.restores: dict[str, tuple[str, str | None, str | None]] = {}
        for change in ledger.changes():
            handler = getattr(self, f"_{type(change.event).__name__}", None)
            if handler is not None:
                handler(change.event)

    def _ResourceDeclared(self, event: kinds.ResourceDeclared) -> None:  # noqa: N802
        id = event.stream.partition(":")[2]
        if id not in self.owners:
            self.owners[id], self.uses[id], self.handles[id], self.parts[id] = None, {}, set(), set()
            self.snapshots[id], self.liveness[id] = {}, "unknown"

    def _ResourceOwned(self, event: kinds.ResourceOwned) -> None:  # noqa: N802
        self.owners[event.resource_ref] = None if event.owner is None else owner(event.owner)

    def _ResourceAttached(self, event: kinds.ResourceAttached) -> None:  # noqa: N802
        self.uses[event.resource_ref]["attached", *attached(event)] = event.mode.value

    def _ResourceDetached(self, event: kinds.ResourceDetached) -> None:  # noqa: N802
        self.uses[event.resource_ref].pop(("attached", *attached(event)), None)

    def _ResourceMounted(self, event: kinds.ResourceMounted) -> None:  # noqa: N802
        self.uses[event.resource_ref]["mounted", *mounted(event)] = event.mode.value

    def _ResourceUnmounted(self, event: kinds.ResourceUnmounted) -> None:  # noqa: N802
        self.uses[event.resource_ref].pop(("mounted", *mounted(event)), None)

    def _HandleOpened(self, event: kinds.HandleOpened) -> None:  # noqa: N802
        self.handles[event.resource_ref].add(event.handle)

    def _HandleClosed(self, event: kinds.HandleClosed) -> None:  # noqa: N802
        self.handles[event.resource_ref].discard(event.handle)

    def _SubresourceAdded(self, event: kinds.SubresourceAdded) -> None:  # noqa: N802
        self.parts[event.resource_ref].add(event.part_ref)

    def _SubresourceRemoved(self, event: kinds.SubresourceRemoved) -> None:  # noqa: N802
        self.parts[event.resource_ref].discard(event.part_ref)

    def _ResourceLivenessProbe(self, event: kinds.ResourceLivenessProbe) -> None:  # noqa: N802
        self.liveness[event.resource_ref] = event.status.value

    def _SnapshotRequested(self, event: kinds.SnapshotRequested) -> None:  # noqa: N802
        run = None if event.run is UNSET else event.run
        self.snapshots[event.resource_ref].setdefault(event.snapshot_ref, ("requested", run, False))

    def _SnapshotCreated(self, event: kinds.SnapshotCreated) -> None:  # noqa: N802
        known = self.snapshots[event.resource_ref]
        state, run, _ = known.get(event.snapshot_ref, ("requested", None, False))
        if state == "requested":
            run = run if event.run is UNSET else event.run
            is_ok = event.outcome == "ok"
            known[event.snapshot_ref] = (event.outcome.value, run, is_ok and event.restorable is not False)

    def _SnapshotDiscarded(self, event: kinds.SnapshotDiscarded) -> None:  # noqa: N802
        known = self.snapshots[event.resource_ref]
        known[event.snapshot_ref] = ("discarded", known[event.snapshot_ref][1], False)

    def _RestoreRequested(self, event: kinds.RestoreRequested) -> None:  # noqa: N802
        assert event.restore is not UNSET
        new = None if event.new_resource_ref is UNSET else event.new_resource_ref
        self.restores[event.restore] = (event.snapshot_ref, new, None)

    def _RestoreAttempted(self, event: kinds.RestoreAttempted) -> None:  # noqa: N802
        assert event.restore is not UNSET
        snapshot, new, outcome = self.restores[event.restore]
        self.restores[event.restore] = (snapshot, new, outcome or event.outcome.value)


def owner(scope: ResourceScope) -> tuple[str, str]:
    words = (("session", scope.session), ("agent", scope.agent), ("run", scope.run))
    return next((kind, id) for kind, id in words if id is not UNSET)


def attached(event: kinds.ResourceAttached | kinds.ResourceDetached) -> tuple[str, str]:
    if event.run is not UNSET:
        return "run", event.run
    if event.session is not UNSET:
        return "session", event.session
    return "agent", event.actor if event.agent is UNSET else event.agent


def mounted(event: kinds.ResourceMounted | kinds.ResourceUnmounted) -> tuple[str, str]:
    if event.container is not UNSET:
        return "container", event.container
    assert event.run is not UNSET
    return "run", event.run


class Player:
    """Plays random verbs on a few resources; those that are refused leave nothing."""

    def __init__(self, ledger: Ledger, chosen: random.Random) -> None:
        self.ledger, self.chosen, self.log = ledger, chosen, ResourceLog(ledger)
        self.sessions = ["main", "other"]
        for session in self.sessions:
            grow(ledger, session, "one", "two")
        Programs(ledger).create("human", "ada", {"permissions": ["session:read", "resource:*"]})
        self.turns = [ledger.resolve(session) for session in self.sessions]
        self.resources: list[str] = []
        self.snapshots: list[str] = []
        self.restores: list[str] = []
        self.played = 0

    def play(self, steps: int) -> None:
        self.declare()
        for _ in range(steps):
            verb = self.chosen.choice(VERBS)
            try:
                verb(self)
            except REFUSALS:
                continue
            self.played += 1

    def any(self, names: list[str]) -> str:
        return self.chosen.choice(names) if names else "none"

    def declare(self) -> None:
        able = tuple(one for one in ResourceCapability if self.chosen.random() < 0.8)
        name = f"r{len(self.resources)}"
        session = self.chosen.choice([*self.sessions, None])
        new = NewResource(name=name, kind=ResourceKind.DIRECTORY, place=f"/{name}", capabilities=able, session=session)
        self.resources.append(self.log.declare(new).id)

    def user(self) -> dict[str, str]:
        return self.chosen.choice([{}, {"session": self.any(self.sessions)}, {"run": self.any(self.turns)}])

    def attach(self) -> None:
        mode = self.chosen.choice(["ro", "rw"])
        self.ledger.resources.attach(self.any(self.resources), mode=mode, **self.user())

    def attach_to_another(self) -> None:
        self.ledger.acting_as("ada").resources.attach(self.any(self.resources), mode="ro")

    def detach(self) -> None:
        self.ledger.resources.detach(self.any(self.resources), **self.user())

    def migrate(self) -> None:
        self.ledger.resources.migrate(self.any(self.resources), session=self.any(self.sessions))

    def take_over(self) -> None:
        self.log.take_over(self.any(self.resources), self.any(self.sessions))

    def discard(self) -> None:
        if self.chosen.random() < 0.3:
            self.ledger.resources.discard(self.any(self.resources))

    def mount(self) -> None:
        self.log.mount(self.any(self.resources), "/x", mode=self.chosen.choice(["ro", "rw"]), **self.seen_by())

    def unmount(self) -> None:
        self.log.unmount(self.any(self.resources), **self.seen_by())

    def seen_by(self) -> dict[str, str]:
        return self.chosen.choice([{"run": self.any(self.turns)}, {"container": self.any(self.resources)}])

    def open_handle(self) -> None:
        self.log.open_handle(self.any(self.resources), "docker", self.chosen.choice("abc"))

    def close_handle(self) -> None:
        resource = self.ledger.resources.get(self.any(self.resources))
        self.log.close_handle(resource.id, self.any([one.id for one in resource.handles]))

    def part(self) -> None:
        one, two = self.any(self.resources), self.any(self.resources)
        if self.chosen.random() < 0.5:
            self.log.remove_part(one, two)
        else:
            self.log.add_part(one, two, role="volume")

    def probe(self) -> None:
        self.log.record_probe(self.any(self.resources), self.chosen.choice(["alive", "dead", "unknown"]))

    def run(self) -> str | None:
        return self.chosen.choice([None, *self.turns])

    def request_snapshot(self) -> None:
        self.snapshots.append(self.log.request_snapshot(self.any(self.resources), run=self.run()))

    def record_snapshot(self) -> None:
        taken: NewSnapshot | ResourceFailure = TREE if self.chosen.random() < 0.7 else FAILED
        is_before = self.chosen.random() < 0.2
        wish = self.any(self.snapshots) if self.chosen.random() < 0.6 else None
        done = self.log.record_snapshot(
            self.any(self.resources), taken, snapshot=wish, run=self.run(), is_before=is_before
        )
        self.snapshots.append(done.id)

    def discard_snapshot(self) -> None:
        if self.chosen.random() < 0.3:
            self.log.discard_snapshot(self.any(self.snapshots))

    def request_restore(self) -> None:
        place = self.chosen.choice([None, f"/copy{len(self.restores)}"])
        session = self.chosen.choice([None, *self.sessions])
        self.restores.append(self.log.request_restore(self.any(self.snapshots), place=place, session=session).id)

    def record_restore(self) -> None:
        new = NewResource(name="copy", kind=ResourceKind.DIRECTORY, place="/copy", capabilities=(), is_made=True)
        outcome = self.chosen.choice(["ok", "ok", "error", "unsupported"])
        done = self.log.record_restore(self.any(self.restores), outcome, new=new, compensation="x")
        if done.outcome == "ok" and done.new_resource is not None and done.new_resource not in self.resources:
            self.resources.append(done.new_resource)

    def fork(self) -> None:
        resources = self.chosen.sample(self.resources, min(2, len(self.resources)))
        modes = list(VolumeMode)
        plan = [
            PlannedResource(
                resource=one,
                mode=self.chosen.choice(modes),
                is_kept_by_fork=self.chosen.random() < 0.5,
                snapshot=self.any(self.snapshots),
                place=f"/fork{len(self.sessions)}",
            )
            for one in resources
        ]
        label = f"fork{len(self.sessions)}"
        self.restores += self.log.fork("main", plan, label=label).restores
        self.sessions.append(label)


VERBS: list[Callable[[Player], None]] = [
    value
    for name, value in vars(Player).items()
    if not name.startswith("_") and name not in "play any user seen_by run"
]


def seen(resource: Resource) -> tuple[Any, ...]:
    uses = {(use.way, use.user.kind, use.user.id): use.mode.value for use in resource.uses}
    parts, handles = {part.resource for part in resource.parts}, {handle.id for handle in resource.handles}
    mine = None if resource.owner is None else (resource.owner.kind, resource.owner.id)
    return mine, uses, handles, parts, resource.liveness.value


def assert_equal(ledger: Ledger, player: Player) -> None:
    replay, log = Replay(ledger), ResourceLog(ledger)
    resources = ledger.resources.list(include_discarded=True)
    assert {one.id for one in resources} == set(replay.owners)
    for one in resources:
        id = one.id
        naive = (replay.owners[id], replay.uses[id], replay.handles[id], replay.parts[id], replay.liveness[id])
        assert seen(one) == naive
        snapshots = ledger.resources.snapshots(id, limit=1000)
        told = {taken.id: (taken.state.value, taken.run, taken.restorable) for taken in snapshots}
        assert told == replay.snapshots[id]
        if one.owner is None:
            assert (one.uses, one.handles) == ((), ()), "what is discarded is used by nobody"
    restores = [log.restore(id) for id in player.restores]
    assert {one.id: (one.snapshot, one.new_resource, one.outcome) for one in restores} == replay.restores
    open_snapshots, open_restores = log.pending()
    every = {id: state for known in replay.snapshots.values() for id, (state, _, _) in known.items()}
    assert {one.id for one in open_snapshots} == {id for id, state in every.items() if state == "requested"}
    assert {one.id for one in open_restores} == {id for id, (_, _, end) in replay.restores.items() if end is None}


@pytest.mark.parametrize("engine", ENGINES)
def test_views_of_resources_equal_a_naive_replay(
    engine: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    for seed in range(sized(test=2, prove=60)):
        place = tmp_path / f"{seed}.db" if engine == "sqlite" else new_postgres_ledger()
        with weft.open(place) as ledger:
            player = Player(ledger, chance("resources", engine, seed))
            for _ in range(3):
                player.play(sized(test=40, prove=80))
                assert_equal(ledger, player)
            assert player.played > 30
            ledger.upkeep.catch_up()
            assert problems(ledger) == []
            ledger.upkeep.rebuild()
            assert_equal(ledger, player)
