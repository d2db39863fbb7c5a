"""Files of turns: forked, checked out, compared, undone and merged, over real folders and the real git."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import grow, problems
from weft.kernel.enums import SnapshotState, VolumeMode
from weft.kernel.errors import HeadMoved, InvalidInput, NotApplicable, WeftError
from weft.ledger.api import Ledger, ResourceLog
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.directories import FileStore
from weft.runtime.resources.directory_driver import DirectoryDriver
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.fork_plans import ForkPlanner, plan_json
from weft.runtime.resources.turn_files import TurnFiles
from weft.runtime.resources.uri_driver import UriDriver
from weft.runtime.resources.workspace_snapshots import workspace_resource


class Desk:
    """A session that works in a folder, each turn of which keeps its files."""

    def __init__(self, ledger: Ledger, folder: Path, driver: DirectoryDriver) -> None:
        self.ledger, self.folder, self.driver = ledger, folder, driver
        self.files = TurnFiles(ledger, driver)
        self.planner = ForkPlanner(ledger, Drivers(driver, UriDriver()))

    def work(self, session: str, folder: Path | None = None, **files: str | None) -> str:
        """A turn that writes these files, or deletes those without a text."""
        place, log = folder or self.folder, ResourceLog(self.ledger)
        grow(self.ledger, session, " ".join(files))
        turn = self.ledger.resolve(session)
        resource = workspace_resource(log, self.driver, self.ledger.session(session).id, place)
        log.record_snapshot(resource, self.driver.take(place), run=turn, is_before=True)
        for name, text in files.items():
            path = place / name
            path.unlink() if text is None else path.write_text(text)
        log.record_snapshot(resource, self.driver.take(place), run=turn)
        return turn


def listed(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    folder = tmp_path / "project"
    folder.mkdir()
    with weft.open(tmp_path / "ledger.db") as ledger:
        yield Desk(ledger, folder, DirectoryDriver(FileStore(tmp_path / "kept")))
        ledger.upkeep.catch_up()
        assert problems(ledger) == []


def test_undo_takes_turn_and_files_back_and_redo_brings_them_again(desk: Desk) -> None:
    (desk.folder / "own").write_text("mine")
    first = desk.work("main", a="1")
    second = desk.work("main", a="2", b="new")
    (desk.folder / "own").write_text("changed since")
    undone = desk.files.undo("main")
    assert (undone.before, undone.head) == (second, first)
    assert listed(desk.folder) == {"a": "1", "own": "mine"}
    assert desk.ledger.session("main").head == first
    desk.files.undo("main")
    assert listed(desk.folder) == {"own": "mine"}, "also what was before the first turn is known"
    assert desk.ledger.session("main").head is None
    desk.files.redo("main")
    assert listed(desk.folder) == {"a": "1", "own": "mine"}
    with pytest.raises(NotApplicable, match="no undo"):
        desk.files.redo("main")


def test_redo_brings_back_what_people_changed_after_the_turn(desk: Desk) -> None:
    desk.work("main", a="1")
    turn = desk.work("main", a="2")
    (desk.folder / "a").write_text("by hand")
    desk.files.undo("main")
    desk.files.redo("main")
    assert listed(desk.folder) == {"a": "by hand"}
    assert desk.ledger.session("main").head == turn
    assert desk.files.check_out(turn, to=str(desk.folder.parent / "copy")).place
    assert listed(desk.folder.parent / "copy") == {"a": "2"}, "the turn's files stay what the turn left"


def test_a_turn_without_files_is_undone_by_itself(desk: Desk) -> None:
    grow(desk.ledger, "talk", "one", "two")
    undone = desk.files.undo("talk")
    assert (undone.head, undone.restores) == (desk.ledger.resolve("talk"), ())


def test_undo_does_not_overwrite_the_work_of_another_session(desk: Desk) -> None:
    desk.work("main", a="1")
    desk.work("main", a="2")
    desk.work("other", a="3")
    with pytest.raises(NotApplicable, match="'other' works in"):
        desk.files.undo("main")
    assert listed(desk.folder) == {"a": "3"}
    desk.files.undo("main", force=True)
    assert listed(desk.folder) == {"a": "1"}


def test_undo_is_refused_where_somebody_moved_the_head(desk: Desk) -> None:
    desk.work("main", a="1")
    turn = desk.work("main", a="2")
    log = ResourceLog(desk.ledger)
    with pytest.raises(HeadMoved):
        log.move_with_files("main", expected=desk.ledger.resolve("main~1"), to=None, reason="undo", snapshots=[])
    assert desk.ledger.session("main").head == turn


def test_a_turn_is_checked_out_beside_or_in_place(desk: Desk, tmp_path: Path) -> None:
    first = desk.work("main", a="1")
    desk.work("main", a="2", b="x")
    out = desk.files.check_out(first, to=str(tmp_path / "out"))
    assert listed(Path(out.place)) == {"a": "1"}
    with pytest.raises(NotApplicable, match="not empty"):
        desk.files.check_out(first, to=str(tmp_path / "out"))
    desk.files.check_out(first)
    assert listed(desk.folder) == {"a": "1"}
    grow(desk.ledger, "talk", "x")
    with pytest.raises(NotApplicable, match="no files are known"):
        desk.files.check_out("talk", to=str(tmp_path / "none"))


def test_the_files_of_two_turns_are_compared(desk: Desk) -> None:
    first = desk.work("main", a="1\n", c="same")
    second = desk.work("main", a="2\n", b="new", c="same")
    changes = desk.files.changes(desk.files.snapshot_of(first), desk.files.snapshot_of(second))
    assert [(one.path, one.status) for one in changes] == [("a", "modified"), ("b", "added")]
    assert desk.files.text_diff(changes[0]) == ["@@ -1 +1 @@", "-1", "+2"]


def test_a_fork_gets_a_copy_of_the_files_of_its_turn(desk: Desk, tmp_path: Path) -> None:
    first = desk.work("main", a="1")
    desk.work("main", a="2")
    lines = desk.planner.propose(first, "alt")
    assert [(line.mode, line.place) for line in lines] == [(VolumeMode.SNAPSHOT, str(tmp_path / "project-alt"))]
    forked = desk.planner.carry_out(first, "alt", lines)
    assert forked.failures == ()
    assert listed(tmp_path / "project-alt") == {"a": "1"}
    assert listed(desk.folder) == {"a": "2"}
    (copy,) = desk.ledger.resources.list(session="alt")
    assert (copy.place, copy.is_made) == (str(tmp_path / "project-alt"), True)
    desk.work("alt", Path(copy.place), a="3")
    desk.files.undo("alt")
    assert listed(Path(copy.place)) == {"a": "1"}


def test_a_fork_of_the_present_takes_a_snapshot_first(desk: Desk) -> None:
    grow(desk.ledger, "main", "one")
    (desk.folder / "a").write_text("now")
    workspace_resource(ResourceLog(desk.ledger), desk.driver, desk.ledger.session("main").id, desk.folder)
    lines = desk.planner.propose("main", "alt")
    assert (lines[0].snapshot, lines[0].why) == (None, "a copy of what it is like now")
    forked = desk.planner.carry_out("main", "alt", desk.planner.changed(lines, None, str(desk.folder.parent / "there")))
    assert listed(desk.folder.parent / "there") == {"a": "now"}
    assert forked.restores[0].outcome == "ok"


def test_a_plan_of_a_person_is_followed(desk: Desk) -> None:
    turn = desk.work("main", a="1")
    lines = desk.planner.propose(turn, "alt")
    written = b'[{"resource": "project", "mode": "keep", "kept_by": "fork"}]'
    changed = desk.planner.read(lines, written)
    assert plan_json(changed) == [{"resource": lines[0].resource.id, "mode": "keep", "kept_by": "fork"}]
    desk.planner.carry_out(turn, "alt", changed)
    owner = desk.ledger.resources.get("project").owner
    assert owner is not None
    assert owner.name == "alt"
    odd = (b'"mode": "burn"', b'"mode": "keep", "x": 1', b'"mode": "keep", "kept_by": "nobody"')
    for wrong in (b"no", *(b'[{"resource": "project", %s}]' % fields for fields in odd)):
        with pytest.raises(InvalidInput):
            desk.planner.read(lines, wrong)


@pytest.mark.parametrize(("mode", "owner"), [(VolumeMode.KEEP, "main"), (VolumeMode.DISCARD, None)])
def test_one_decision_for_all(desk: Desk, mode: VolumeMode, owner: str | None) -> None:
    turn = desk.work("main", a="1")
    lines = desk.planner.changed(desk.planner.propose(turn, "alt"), mode, None)
    forked = desk.planner.carry_out(turn, "alt", lines)
    (resource,) = desk.ledger.resources.list(include_discarded=True)
    assert (resource.owner and resource.owner.name, forked.restores) == (owner, ())
    assert listed(desk.folder) == {"a": "1"}, "what Weft did not make is never removed"


def test_what_cannot_be_copied_stays(desk: Desk) -> None:
    grow(desk.ledger, "main", "one")
    uri = UriDriver()
    ResourceController(desk.ledger, Drivers(uri)).add(uri, "https://example.org/x", session="main")
    lines = desk.planner.propose("main", "alt")
    assert [line.mode for line in lines] == [VolumeMode.KEEP]
    with pytest.raises(NotApplicable, match="unsupported"):
        desk.planner.changed(lines, VolumeMode.SNAPSHOT, None)


def test_a_copy_that_fails_leaves_both_sessions_usable(desk: Desk, tmp_path: Path) -> None:
    turn = desk.work("main", a="1")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("mine")
    lines = desk.planner.changed(desk.planner.propose(turn, "alt"), None, str(tmp_path / "taken"))
    forked = desk.planner.carry_out(turn, "alt", lines)
    assert [one.outcome for one in forked.failures] == ["error"]
    assert listed(tmp_path / "taken") == {"x": "mine"}
    desk.work("main", a="2")
    grow(desk.ledger, "alt", "goes on")
    assert desk.ledger.resources.list(session="alt") == []


def test_a_snapshot_that_cannot_be_taken_makes_no_fork(desk: Desk) -> None:
    grow(desk.ledger, "main", "one")
    workspace_resource(ResourceLog(desk.ledger), desk.driver, desk.ledger.session("main").id, desk.folder)
    lines = desk.planner.propose("main", "alt")
    desk.folder.rmdir()
    with pytest.raises(NotApplicable, match="no snapshot"):
        desk.planner.carry_out("main", "alt", lines)
    with pytest.raises(WeftError):
        desk.ledger.session("alt")
    desk.folder.mkdir()


def test_files_of_a_branch_are_merged(desk: Desk, tmp_path: Path) -> None:
    base = desk.work("main", a="1\n2\n3\n", b="b\n")
    desk.planner.carry_out(base, "alt", desk.planner.propose(base, "alt"))
    desk.work("alt", tmp_path / "project-alt", a="1\n2\nthree\n")
    desk.work("main", b="other\n")
    merged = desk.files.merge("alt", "main")
    assert merged.merge.conflicts == ()
    assert listed(desk.folder) == {"a": "1\n2\n3\n", "b": "other\n"}, "nothing is written before it is said"
    turn = desk.ledger.merges.summarize("alt", into="main", text="three").id
    assert desk.files.apply_merge(merged, turn).outcome == "ok"
    assert listed(desk.folder) == {"a": "1\n2\nthree\n", "b": "other\n"}
    assert desk.files.snapshot_of("main").run == turn


def test_a_merge_keeps_what_people_changed(desk: Desk, tmp_path: Path) -> None:
    base = desk.work("main", a="1\n")
    desk.planner.carry_out(base, "alt", desk.planner.propose(base, "alt"))
    desk.work("alt", tmp_path / "project-alt", a="theirs\n")
    (desk.folder / "a").write_text("by hand\n")
    (desk.folder / "own").write_text("mine\n")
    merged = desk.files.merge("alt", "main")
    assert [one.path for one in merged.merge.conflicts] == ["a"], "the base is what the turn left"
    assert desk.files.check_out(base, to=str(tmp_path / "base")).place
    assert listed(tmp_path / "base") == {"a": "1\n"}, "the files of a turn are never rewritten"
    (desk.folder / "a").write_text("1\n")
    merged = desk.files.merge("alt", "main")
    (desk.folder / "own").write_text("changed\n")
    turn = desk.ledger.merges.summarize("alt", into="main", text="x").id
    with pytest.raises(NotApplicable, match="has changed since"):
        desk.files.apply_merge(merged, turn)
    assert listed(desk.folder) == {"a": "1\n", "own": "changed\n"}


def test_nothing_goes_over_what_another_session_works_in(desk: Desk, tmp_path: Path) -> None:
    base = desk.work("main", a="1\n")
    desk.planner.carry_out(base, "alt", desk.planner.propose(base, "alt"))
    desk.work("other", a="2\n")
    with pytest.raises(NotApplicable, match="no directory of its own"):
        desk.files.merge("alt", "main")
    with pytest.raises(NotApplicable, match="'other' works in"):
        desk.files.check_out(base)
    assert listed(desk.folder) == {"a": "2\n"}


def test_a_fork_of_the_present_leaves_undo_of_its_origin(desk: Desk) -> None:
    desk.work("main", a="1")
    grow(desk.ledger, "main", "talk")
    desk.planner.carry_out("main", "alt", desk.planner.propose("main", "alt"))
    desk.files.undo("main")
    desk.files.undo("main")
    assert listed(desk.folder) == {}


def test_conflicts_are_shown_and_nothing_is_overwritten(desk: Desk, tmp_path: Path) -> None:
    base = desk.work("main", a="1\n")
    desk.planner.carry_out(base, "alt", desk.planner.propose(base, "alt"))
    desk.work("alt", tmp_path / "project-alt", a="theirs\n")
    desk.work("main", a="ours\n")
    merged = desk.files.merge("alt", "main")
    assert [one.path for one in merged.merge.conflicts] == ["a"]
    with pytest.raises(NotApplicable, match="conflicts"):
        desk.files.apply_merge(merged, desk.ledger.resolve("main"))
    assert listed(desk.folder) == {"a": "ours\n"}


def test_a_snapshot_says_what_it_left_out(desk: Desk) -> None:
    (desk.folder / "pipe").unlink(missing_ok=True)
    os.mkfifo(desk.folder / "pipe")
    os.mkfifo(os.fsencode(desk.folder) + b"/\xff")
    desk.work("main", a="1")
    kept = desk.files.snapshot_of("main")
    assert (kept.state, kept.skipped) == (
        SnapshotState.OK,
        [
            {"path": "pipe", "why": "special"},
            {"path": "\\xff", "why": "special"},
        ],
    )
