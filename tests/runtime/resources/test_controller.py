"""The controller and the drivers of files and addresses: wishes are carried out once, whatever dies in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import grow, problems
from weft.kernel.enums import ResourceKind, SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable, OutsideError, StoreFailed, Unsupported
from weft.ledger.api import Ledger, Resource, Snapshot
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers, RestoredPlace
from weft.runtime.resources.file_driver import FileDriver
from weft.runtime.resources.uri_driver import UriDriver


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
    assert lease is not None
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
