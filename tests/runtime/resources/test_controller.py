"""The controller and the drivers of files and addresses: wishes are carried out once, whatever dies in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import grow, problems
from tests.runtime.broker.crash_driver import Doom, DoomedCrossing
from weft.kernel.enums import ResourceKind, ResourceLiveness, SnapshotState, SubresourcePart
from weft.kernel.errors import EngineUnreachable, InvalidInput, NotApplicable, OutsideError, StoreFailed, Unsupported
from weft.ledger.api import Lease, Ledger, NewSnapshot, Resource, Snapshot
from weft.runtime.resources.controller import BUSY_MS, LEFT_MS, Reconciled, ResourceController, ResourceJob
from weft.runtime.resources.drivers import (
    ClaimKind,
    DescribedPart,
    Drivers,
    PlaceClaim,
    PlaceDescription,
    RestoredPlace,
)
from weft.runtime.resources.local_drivers import FileDriver, UriDriver


class FailingDriver(FileDriver):
    """Fails at a restore after it has begun."""

    undone = 0

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        raise StoreFailed("no room")

    def undo_restore(self, place: str, key: str) -> str | None:
        self.undone += 1
        return "removed it"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with weft.open(tmp_path / "ledger.db") as opened:
        grow(opened, "main", "one")
        yield opened
        opened.upkeep.catch_up()
        assert problems(opened) == []


@pytest.fixture
def files(tmp_path: Path) -> FileDriver:
    return FileDriver(tmp_path / "copies")


@pytest.fixture
def controller(ledger: Ledger, files: FileDriver) -> ResourceController:
    return ResourceController(ledger, Drivers(files, UriDriver()))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_bytes(b"first\x00\xff")
    path.chmod(0o640)
    return path


def test_a_file_is_kept_changed_and_brought_back(controller: ResourceController, files: FileDriver, note: Path) -> None:
    resource = controller.add(files, str(note), session="main")
    taken = controller.snapshot(resource)
    assert (taken.state, taken.method, taken.size_bytes) == (SnapshotState.OK, "fs_copy", 7)
    note.write_bytes(b"second")
    note.chmod(0o600)
    assert controller.restore(taken).outcome == "ok"
    assert note.read_bytes() == b"first\x00\xff"
    assert note.stat().st_mode & 0o777 == 0o640


def test_what_another_snapshot_has_is_not_thrown_away(
    ledger: Ledger, controller: ResourceController, files: FileDriver, note: Path
) -> None:
    resource = controller.add(files, str(note), session="main")
    first = controller.snapshot(resource)
    note.chmod(0o600)
    other, same = controller.snapshot(resource), controller.snapshot(resource, run=ledger.resolve("main"))
    controller.forget([first, other], "asked for")
    assert controller.restore(same).outcome == "ok"
    with pytest.raises(NotApplicable, match="nothing to restore"):
        controller.restore(first)
    controller.forget([same], "asked for")
    assert list(files._copies.glob("*.6*")) == [], "no bytes are left of it"


def test_a_copy_beside_is_a_resource_of_its_own(
    ledger: Ledger, controller: ResourceController, files: FileDriver, note: Path
) -> None:
    taken = controller.snapshot(controller.add(files, str(note), session="main"))
    ledger.fork("main", label="alt")
    place = files.new_place(ledger.resources.get("note.txt"), "alt")
    done = controller.restore(taken, place=place, session="alt")
    assert done.outcome == "ok"
    (copy,) = ledger.resources.list(session="alt")
    assert (copy.id, copy.place, copy.is_made, Path(copy.place).read_bytes()) == (
        done.new_resource,
        place,
        True,
        b"first\x00\xff",
    )
    controller.discard(copy)
    assert not Path(place).exists()
    controller.discard(ledger.resources.get("note.txt"))
    assert note.exists(), "what Weft did not make stays"


def test_a_wish_is_carried_out_on_the_machine_that_has_the_place(ledger: Ledger, tmp_path: Path, note: Path) -> None:
    here, there = (
        ResourceController(ledger, Drivers(FileDriver(tmp_path / machine), UriDriver(), machine=machine * 26))
        for machine in "01"
    )
    resource = here.add(here.drivers.of(ResourceKind.FILE), str(note), session="main")
    assert resource.machine == "0" * 26
    first = here.snapshot(resource)
    here.log.request_snapshot(resource.id)
    here.log.request_restore(first.id)
    here.log.request_restore(first.id, place=str(tmp_path / "copy.txt"))
    assert there.pending() == ([], [])
    assert there.reconcile() == Reconciled()
    for act in (there.probe, there.snapshot):
        with pytest.raises(NotApplicable, match=r"the file .*note\.txt is on another machine"):
            act(resource)
    with pytest.raises(NotApplicable, match="on another machine"):
        there.restore(first, place=str(tmp_path / "other.txt"))
    assert there.forget([first], "asked for") == [first]
    assert there.add(there.drivers.of(ResourceKind.FILE), str(note)).id != resource.id, "the same path of another one"
    uri = here.add(here.drivers.of(ResourceKind.URI), "x:y")
    assert uri.machine is None
    there.probe(uri)
    done = here.reconcile()
    assert [one.outcome for one in done.restores] == ["ok", "ok"]
    assert [one.state for one in done.snapshots] == [SnapshotState.OK]
    (copy,) = [one for one in ledger.resources.list(session="main") if one.is_made]
    assert copy.machine == "0" * 26
    with pytest.raises(NotApplicable, match="on another machine"):
        there.discard(copy)


class BoxDriver(UriDriver):
    """Something with parts, as a container has them."""

    kind = ResourceKind.DOCKER_CONTAINER
    parts: tuple[DescribedPart, ...] = ()
    liveness = ResourceLiveness.ALIVE

    def describe(self, place: str) -> PlaceDescription:
        return PlaceDescription(name="box", place=place, capabilities=(), parts=self.parts)

    def probe(self, place: str) -> ResourceLiveness:
        return self.liveness


def test_parts_are_what_is_found_of_them(ledger: Ledger) -> None:
    box = BoxDriver()
    controller = ResourceController(ledger, Drivers(box))
    data, more = (
        DescribedPart(
            name=name,
            kind=ResourceKind.DOCKER_VOLUME,
            place=f"docker:volume/{name}",
            part=SubresourcePart.VOLUME,
            capabilities=(),
            mount=f"/{name}",
        )
        for name in ("data", "more")
    )
    box.parts = (data, more)
    added = controller.add(box, "docker:container/box", session="main")

    def seen() -> dict[str, list[str | None]]:
        parts = [ledger.resources.get(one.resource) for one in ledger.resources.get(added.id).parts]
        return {part.name: [use.mount for use in part.uses] for part in parts}

    assert seen() == {"data": ["/data"], "more": ["/more"]}
    box.parts = (data,)
    controller.probe(ledger.resources.get(added.id))
    assert seen() == {"data": ["/data"]}
    assert ledger.resources.get("more").uses == (), "what is no part any more is not seen from it"
    box.liveness = ResourceLiveness.DEAD
    controller.probe(ledger.resources.get(added.id))
    assert seen() == {"data": []}
    box.liveness, box.parts = ResourceLiveness.ALIVE, (data, more)
    assert controller.add(box, "docker:container/box").id == added.id
    assert seen() == {"data": ["/data"], "more": ["/more"]}


def test_what_lies_at_a_place_is_never_overwritten(
    controller: ResourceController, files: FileDriver, note: Path, tmp_path: Path
) -> None:
    taken = controller.snapshot(controller.add(files, str(note), session="main"))
    other = tmp_path / "other.txt"
    other.write_text("mine")
    done = controller.restore(taken, place=str(other))
    assert (done.outcome, other.read_text()) == ("error", "mine")


def test_a_link_is_no_file(controller: ResourceController, files: FileDriver, note: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(note)
    with pytest.raises(InvalidInput, match="not a file"):
        controller.add(files, str(link))
    resource = controller.add(files, str(note), session="main")
    note.unlink()
    note.symlink_to("/etc/hostname")
    assert controller.snapshot(resource).state is SnapshotState.ERROR, "it became a link meanwhile"


def test_a_damaged_copy_is_not_restored(
    controller: ResourceController, files: FileDriver, note: Path, tmp_path: Path
) -> None:
    taken = controller.snapshot(controller.add(files, str(note), session="main"))
    (copy,) = (tmp_path / "copies").iterdir()
    copy.write_bytes(b"changed")
    note.write_bytes(b"now")
    done = controller.restore(taken)
    assert (done.outcome, note.read_bytes()) == ("error", b"now")


def test_a_failed_restore_is_undone_and_both_are_recorded(ledger: Ledger, note: Path, tmp_path: Path) -> None:
    driver = FailingDriver(tmp_path / "copies")
    controller = ResourceController(ledger, Drivers(driver))
    taken = controller.snapshot(controller.add(driver, str(note), session="main"))
    done = controller.restore(taken, place=str(tmp_path / "copy"))
    assert (done.outcome, done.error, driver.undone) == ("error", "no room", 1)
    assert controller.reconcile().restores == (), "it is not tried again"


def test_an_address_can_be_shared_and_not_be_kept(ledger: Ledger, controller: ResourceController) -> None:
    resource = controller.add(UriDriver(), "https://example.org/feed", session="main")
    assert resource.imperative
    with pytest.raises(NotApplicable, match="unsupported"):
        controller.snapshot(resource)
    with pytest.raises(InvalidInput, match="no address"):
        controller.add(UriDriver(), "just words")


@pytest.mark.parametrize(
    ("status", "found"),
    [(200, "alive"), (301, "alive"), (404, "dead"), (410, "dead"), (500, "unknown"), (None, "unknown")],
)
def test_an_address_is_looked_at(ledger: Ledger, status: int | None, found: str) -> None:
    def look(_: str) -> int:
        if status is None:
            raise OutsideError("nobody answers")
        return status

    driver = UriDriver(look)
    controller = ResourceController(ledger, Drivers(driver))
    resource = controller.add(driver, "http://example.org/x", session="main")
    assert controller.probe(resource) == found
    assert ledger.resources.get(resource.id).liveness == found


def test_a_wish_that_somebody_left_is_carried_out_by_the_next(
    ledger: Ledger, controller: ResourceController, files: FileDriver, note: Path
) -> None:
    resource = controller.add(files, str(note), session="main")
    wish = controller.log.request_snapshot(resource.id)
    done = controller.reconcile()
    assert [one.id for one in done.snapshots] == [wish]
    assert ledger.resources.snapshot(wish).state is SnapshotState.OK
    restore = controller.log.request_restore(wish)
    note.write_text("changed")
    assert [one.outcome for one in controller.reconcile().restores] == ["ok"]
    assert note.read_bytes() == b"first\x00\xff"
    assert controller.log.restore(restore.id).outcome == "ok"
    assert controller.reconcile() == controller.reconcile()


def test_one_at_a_time_works_on_a_resource(
    ledger: Ledger, controller: ResourceController, files: FileDriver, note: Path, tmp_path: Path
) -> None:
    resource = controller.add(files, str(note), session="main")
    lease = controller.log.hold(resource.id)
    assert isinstance(lease, Lease)
    with pytest.raises(NotApplicable, match="somebody else"):
        controller.snapshot(resource)
    assert controller.reconcile().busy == (resource.id,)
    assert controller.log.renew(lease)
    controller.log.let_go(lease)
    assert not controller.log.renew(lease)
    assert len(controller.reconcile().snapshots) == 1


def test_what_nothing_here_acts_on_is_unsupported(ledger: Ledger, files: FileDriver, note: Path) -> None:
    first = ResourceController(ledger, Drivers(files))
    taken = first.snapshot(first.add(files, str(note), session="main"))
    nobody = ResourceController(ledger, Drivers())
    assert nobody.restore(taken).outcome == "unsupported"
    with pytest.raises(Unsupported):
        Drivers().of(ResourceKind.DOCKER_VOLUME)


class AbsentEngine(FileDriver):
    """A driver whose engine does not answer until it is there."""

    is_there = False

    def describe(self, place: str) -> PlaceDescription:
        self._ask()
        return super().describe(place)

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        self._ask()
        return super().snapshot(resource, key)

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        self._ask()
        return super().restore(resource, snapshot, place, key)

    def _ask(self) -> None:
        if not self.is_there:
            raise EngineUnreachable("unix:///engine", "nobody listens")


def test_what_an_engine_that_does_not_answer_was_to_do_stays_wanted(
    ledger: Ledger, note: Path, tmp_path: Path, files: FileDriver
) -> None:
    driver = AbsentEngine(tmp_path / "absent")
    controller = ResourceController(ledger, Drivers(driver))
    driver.is_there = True
    resource = controller.add(driver, str(note), session="main")
    kept = controller.snapshot(resource)
    driver.is_there = False
    with pytest.raises(EngineUnreachable):
        controller.snapshot(resource)
    assert controller.restore(kept, place=str(tmp_path / "copy")).outcome is None
    assert [len(wishes) for wishes in controller.log.pending()] == [1, 1]
    again = controller.reconcile()
    assert (again.snapshots, again.restores, again.busy, len(again.left)) == ((), (), (), 2)
    assert controller.obstacle(resource) == again.left[0] == "the container engine at unix:///engine: nobody listens"
    job = ResourceJob(ledger, DoomedCrossing(Doom(), ledger), lambda: controller)
    assert job.run(0) == BUSY_MS
    driver.is_there = True
    assert controller.obstacle(resource) is None
    assert job.run(0) is None
    assert controller.log.pending() == ([], [])
    assert (tmp_path / "copy").read_bytes() == note.read_bytes()


class DefectiveDriver(FileDriver):
    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        if resource.name == "broken":
            raise KeyError("a defect")
        return super().snapshot(resource, key)


def test_one_wish_that_fails_for_an_unforeseen_reason_does_not_stop_the_others(
    ledger: Ledger, note: Path, tmp_path: Path
) -> None:
    driver = DefectiveDriver(tmp_path / "kept-files")
    controller = ResourceController(ledger, Drivers(driver))
    (tmp_path / "other").write_text("x")
    broken = controller.add(driver, str(tmp_path / "other"), name="broken", session="main")
    whole = controller.add(driver, str(note), session="main")
    wishes = [controller.log.request_snapshot(one.id) for one in (broken, whole)]
    assert len(controller.reconcile().snapshots) == 2
    first, second = (ledger.resources.snapshot(wish) for wish in wishes)
    assert (first.state, first.error_code, second.state) == (SnapshotState.ERROR, "internal_error", SnapshotState.OK)


def test_what_could_not_be_removed_is_tried_again(ledger: Ledger, note: Path, files: FileDriver) -> None:
    controller = ResourceController(ledger, Drivers(files))
    files.claims.put(PlaceClaim(key="01M7M2HJTWE36H6MSBKK7E9R7S", kind=ClaimKind.RESTORE, place=str(note)))
    damaged = next(note.parent.rglob("01M7M2HJTWE36H6MSBKK7E9R7S.json"))
    damaged.write_text("{")
    job = ResourceJob(ledger, DoomedCrossing(Doom(), ledger), lambda: controller)
    assert job.run(0) == LEFT_MS
    assert job.run(0) == LEFT_MS
    damaged.unlink()
    assert job.run(0) is None
