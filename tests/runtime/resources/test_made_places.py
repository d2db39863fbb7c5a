"""What Weft made, and what others made where it was: only the first is removed, and a copy stays what it is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET

import weft
from tests.ledger.histories import grow, problems
from tests.runtime.resources.test_turn_files import Desk, listed
from weft.kernel.errors import NotApplicable, StoreFailed
from weft.kernel.ledger_events import CompensationRecorded, ResourceOwned
from weft.ledger.api import Ledger, Resource, ResourceLog
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_objects import DEFAULT_LIMIT
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import ClaimKind, Drivers, PlaceClaim
from weft.runtime.resources.local_drivers import DirectoryDriver


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    folder = tmp_path / "project"
    folder.mkdir()
    with weft.open(tmp_path / "ledger.db") as ledger:
        yield Desk(ledger, folder, DirectoryDriver(FileStore(tmp_path / "kept")))
        ledger.upkeep.catch_up()
        assert problems(ledger) == []


@pytest.fixture
def controller(desk: Desk) -> ResourceController:
    return ResourceController(desk.ledger, Drivers(desk.driver))


def copied(desk: Desk, controller: ResourceController, place: Path, session: str | None = None) -> Resource:
    """A copy of what the desk's folder is like now."""
    kept = controller.snapshot(desk.ledger.resources.get("project"))
    done = controller.restore(kept, place=str(place), session=session)
    assert done.outcome == "ok", done.error
    return desk.ledger.resources.get(str(done.new_resource))


def reasons(ledger: Ledger) -> list[str]:
    """Why what Weft made was left."""
    owned = [one.event for one in ledger.changes() if isinstance(one.event, ResourceOwned)]
    return [b"".join(ledger.read_content(one.reason)).decode() for one in owned if one.reason is not UNSET]


def test_a_folder_that_a_person_made_anew_is_left(desk: Desk, controller: ResourceController, tmp_path: Path) -> None:
    desk.work("main", a="1")
    copy = copied(desk, controller, tmp_path / "copy")
    assert copy.is_made
    (tmp_path / "copy" / "a").unlink()
    (tmp_path / "copy").rmdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("a person's")
    done = controller.discard(copy)
    assert done.why_left == "it is another folder than the one that Weft made"
    assert (done.resource.owner, listed(tmp_path / "copy")) == (None, {"mine": "a person's"})
    assert reasons(desk.ledger) == [done.why_left]
    assert controller.reconcile().left == ()
    assert listed(tmp_path / "copy") == {"mine": "a person's"}


@pytest.mark.parametrize(("mode", "is_made"), [(0o700, True), (0o755, False)])
def test_a_folder_that_was_made_before_its_maker_died_is_known_as_made(
    desk: Desk, controller: ResourceController, tmp_path: Path, mode: int, is_made: bool
) -> None:
    desk.work("main", a="1")
    kept = controller.snapshot(desk.ledger.resources.get("project"))
    wish = ResourceLog(desk.ledger).request_restore(kept.id, place=str(tmp_path / "copy"))
    desk.driver.claims.put(PlaceClaim(key=wish.id, kind=ClaimKind.RESTORE, place=str(tmp_path / "copy")))
    (tmp_path / "copy").mkdir(mode)  # and died here, or a person did so
    (tmp_path / "copy").chmod(mode)
    assert controller.reconcile().left == ()
    copy = desk.ledger.resources.get(str(wish.new_resource))
    assert (copy.is_made, listed(tmp_path / "copy")) == (is_made, {"a": "1"})


def test_what_weft_made_is_removed_also_after_it_was_worked_in(
    desk: Desk, controller: ResourceController, tmp_path: Path
) -> None:
    desk.work("main", a="1")
    copy = copied(desk, controller, tmp_path / "copy")
    desk.work("main", tmp_path / "copy", a="2", b="3")
    assert controller.discard(desk.ledger.resources.get(copy.id)).why_left is None
    assert not (tmp_path / "copy").exists()
    assert reasons(desk.ledger) == []


def test_an_empty_folder_that_was_there_stays_a_persons(
    desk: Desk, controller: ResourceController, tmp_path: Path
) -> None:
    desk.work("main", a="1")
    (tmp_path / "own").mkdir()
    copy = copied(desk, controller, tmp_path / "own")
    assert (copy.is_made, listed(tmp_path / "own")) == (False, {"a": "1"})
    assert controller.discard(copy).why_left == "Weft did not make it"
    assert listed(tmp_path / "own") == {"a": "1"}


def test_a_failure_removes_no_folder_that_was_there(
    desk: Desk, controller: ResourceController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.work("main", a="1")
    kept = controller.snapshot(desk.ledger.resources.get("project"))
    (tmp_path / "own").mkdir()

    def fails(*_: object, **__: object) -> None:
        raise StoreFailed("no room")

    monkeypatch.setattr(desk.driver.files, "restore", fails)
    for place, is_left in ((tmp_path / "own", True), (tmp_path / "new", False)):
        assert controller.restore(kept, place=str(place)).outcome == "error"
        assert place.exists() is is_left
    told = [one.event for one in desk.ledger.changes() if isinstance(one.event, CompensationRecorded)]
    texts = [b"".join(desk.ledger.read_content(one.details)).decode() for one in told if one.details is not UNSET]
    assert "was there before: what was begun in it is left" in texts[0]
    assert "was removed" in texts[1]


def test_a_copy_that_is_declared_again_stays_what_it_is(
    desk: Desk, controller: ResourceController, tmp_path: Path
) -> None:
    desk.work("main", a="1")
    grow(desk.ledger, "other", "hello")
    copy = copied(desk, controller, tmp_path / "copy", "main")
    again = controller.add(desk.driver, str(tmp_path / "copy"))
    assert (again.id, again.name, again.is_made, again.owner) == (copy.id, copy.name, True, copy.owner)
    named = controller.add(desk.driver, str(tmp_path / "copy"), name="mine", session="other")
    assert (named.id, named.name, named.is_made) == (copy.id, "mine", True)
    assert named.owner is not None
    assert named.owner.name == "other"
    assert controller.discard(named).why_left is None
    assert not (tmp_path / "copy").exists()


def test_what_came_to_the_place_of_a_copy_is_declared_as_what_it_is(
    desk: Desk, controller: ResourceController, tmp_path: Path
) -> None:
    desk.work("main", a="1")
    copied(desk, controller, tmp_path / "copy")
    (tmp_path / "copy" / "a").unlink()
    (tmp_path / "copy").rmdir()
    (tmp_path / "copy").mkdir()
    assert not controller.add(desk.driver, str(tmp_path / "copy")).is_made


def test_copies_have_names_of_their_own(desk: Desk, controller: ResourceController, tmp_path: Path) -> None:
    desk.work("main", a="1")
    names = [copied(desk, controller, tmp_path / str(number), "main").name for number in range(3)]
    assert names == ["project-main", "project-main-2", "project-main-3"]
    with pytest.raises(NotApplicable, match="lies in"):
        copied(desk, controller, desk.folder / "inside")
    controller.discard(desk.ledger.resources.get("project-main-2"))
    assert copied(desk, controller, tmp_path / "again", "main").name == "project-main-2"


@pytest.mark.parametrize("unkept", ["repository", "large file"])
def test_a_copy_with_something_that_no_snapshot_has_is_left(
    desk: Desk, controller: ResourceController, tmp_path: Path, unkept: str
) -> None:
    desk.work("main", a="1")
    copy, folder = copied(desk, controller, tmp_path / "copy"), tmp_path / "copy"
    if unkept == "repository":
        (folder / "deep" / ".git").mkdir(parents=True)
        (folder / "deep" / ".git" / "commits").write_text("a person's work")
    else:
        (folder / "large").touch()
        os.truncate(folder / "large", DEFAULT_LIMIT.file_bytes + 1)
    done = controller.discard(copy)
    assert done.why_left is not None
    assert done.why_left.startswith("no snapshot has")
    assert (done.resource.owner, reasons(desk.ledger)) == (None, [done.why_left])
    controller.reconcile()
    assert (folder / "a").read_text() == "1"


def test_a_copy_with_ignored_files_pipes_and_links_to_repositories_is_removed(
    desk: Desk, controller: ResourceController, tmp_path: Path
) -> None:
    desk.work("main", a="1")
    copy, folder = copied(desk, controller, tmp_path / "copy"), tmp_path / "copy"
    (tmp_path / "elsewhere" / ".git").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / ".gitignore").write_text("built")
    (folder / "built").write_text("made anew by whoever needs it")
    os.mkfifo(folder / "pipe")
    assert controller.discard(copy).why_left is None
    assert not folder.exists()
    assert (tmp_path / "elsewhere" / ".git").is_dir()
