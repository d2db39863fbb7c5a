"""Files of turns: forked, checked out, compared, undone and merged, over real folders and the real git."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.ledger.histories import grow, problems
from weft.kernel.clock import SystemClock
from weft.kernel.enums import SnapshotState, VolumeMode
from weft.kernel.errors import HeadMoved, InUse, InvalidInput, LabelTaken, NotApplicable, WeftError
from weft.ledger.api import Ledger, ResourceFailure, ResourceLog
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.snapshot_objects import locked
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import DirectoryDriver, UriDriver
from weft.runtime.resources.turn_files import ForkPlanner, TurnFiles
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
    assert (listed(desk.folder), desk.ledger.session("main").head) == ({"a": "1", "own": "mine"}, first)
    redone = desk.files.redo("main")
    assert (redone.before, redone.head) == (first, second)
    assert listed(desk.folder) == {"a": "2", "b": "new", "own": "changed since"}
    assert desk.ledger.session("main").head == second
    with pytest.raises(NotApplicable, match="nothing of session 'main' was undone"):
        desk.files.redo("main")


def test_undos_are_taken_back_in_turn_also_those_that_are_done_again(desk: Desk) -> None:
    turns = [desk.work("main", a=text) for text in "123"]
    for _ in turns:
        desk.files.undo("main")
    desk.files.redo("main")
    desk.files.redo("main")
    desk.files.undo("main")
    heads = []
    for text in "23":
        heads.append(desk.files.redo("main").head)
        assert listed(desk.folder) == {"a": text}
    assert heads == turns[1:]
    with pytest.raises(NotApplicable, match="undone"):
        desk.files.redo("main")


def test_a_turn_or_another_move_ends_what_can_be_redone(desk: Desk) -> None:
    first = desk.work("main", a="1")
    second = desk.work("main", a="2")
    kept = desk.files.snapshot_of(second)
    desk.files.undo("main")
    desk.ledger.move_head("main", new=second, reason=f"undo {kept.id}")
    with pytest.raises(NotApplicable, match="undone"):
        desk.files.redo("main")
    desk.ledger.move_head("main", new=first, reason=f"undo {kept.id}")
    with pytest.raises(NotApplicable, match="undone"):
        desk.files.redo("main")
    desk.work("main", a="3")
    desk.files.undo("main")
    desk.work("main", a="4")
    with pytest.raises(NotApplicable, match="undone"):
        desk.files.redo("main")
    assert listed(desk.folder) == {"a": "4"}


def test_a_session_that_was_renamed_is_redone(desk: Desk) -> None:
    desk.work("main", a="1")
    second = desk.work("main", a="2")
    desk.files.undo("main")
    desk.ledger.labels.rename("main", "renamed")
    assert desk.files.redo("renamed").head == second
    assert [(move.why, move.reason) for move in desk.ledger.reflog("renamed", limit=2)] == [
        ("move", "redo"),
        ("move", "undo"),
    ]


def test_a_head_inside_of_a_turn_comes_back_to_the_same_event(desk: Desk) -> None:
    grow(desk.ledger, "main", "one", "two")
    inside = desk.ledger.events("main")[0].id
    standing = desk.ledger.move_head("main", new=inside)
    assert standing.head_event is not None
    desk.files.undo("main")
    assert desk.ledger.session("main").head == desk.ledger.turn(standing.head or "").parent_id
    desk.files.redo("main")
    again = desk.ledger.session("main")
    assert (again.head, again.head_event) == (standing.head, standing.head_event)


def test_a_redo_that_others_were_quicker_with_is_refused(desk: Desk) -> None:
    desk.work("main", a="1")
    desk.work("main", a="2")
    log = ResourceLog(desk.ledger)
    desk.files.undo("main")
    undone = log.last_undone("main")
    assert undone is not None
    desk.files.redo("main")
    desk.files.undo("main")
    with pytest.raises(NotApplicable, match="in between"):
        log.redo("main", undone, kept=[])


def test_what_an_undo_would_do_is_counted_and_nothing_is_done(desk: Desk) -> None:
    desk.work("main", a="1", b="1", gone="x")
    turn = desk.work("main", a="2", new="x", gone=None)
    (desk.folder / "own").write_text("mine")
    before = desk.ledger.resources.snapshots("project")
    plan = desk.files.plan_undo("main")
    (counts,) = desk.files.present_changes(plan)
    assert (counts.place, counts.changed, counts.removed, counts.restored) == (str(desk.folder), 1, 2, 1)
    assert (desk.ledger.session("main").head, desk.ledger.resources.snapshots("project")) == (turn, before)
    assert desk.files.undo("main").changes == (counts,)
    (back,) = desk.files.present_changes(desk.files.plan_redo("main"))
    assert (back.changed, back.removed, back.restored) == (1, 1, 2)


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
        log.undo("main", expected=desk.ledger.resolve("main~1"), to=None, kept=[], snapshots=[])
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
    changed = desk.planner.read(lines, written, "alt")
    assert [(line.mode, line.is_kept_by_fork) for line in changed] == [(VolumeMode.KEEP, True)]
    desk.planner.carry_out(turn, "alt", changed)
    owner = desk.ledger.resources.get("project").owner
    assert owner is not None
    assert owner.name == "alt"
    odd = (b'"mode": "burn"', b'"mode": "keep", "x": 1', b'"mode": "keep", "kept_by": "nobody"')
    broken = (b"no", b'[{"resource": "\xff", "mode": "keep"}]', b'{"x":' + b"[" * 100_000)
    for wrong in (*broken, *(b'[{"resource": "project", %s}]' % fields for fields in odd)):
        with pytest.raises(InvalidInput):
            desk.planner.read(lines, wrong, "alt")


def test_a_plan_decides_about_each_resource_once(desk: Desk) -> None:
    lines = desk.planner.propose(desk.work("main", a="1"), "alt")
    twice = b'[{"resource": "project", "mode": "keep"}, {"resource": "%s", "mode": "discard"}]'
    with pytest.raises(InvalidInput, match="twice"):
        desk.planner.read(lines, twice % str(desk.folder).encode(), "alt")


@pytest.mark.parametrize("mode", [VolumeMode.DISCARD, VolumeMode.KEEP])
def test_a_plan_gives_away_nothing_that_another_session_owns_by_now(desk: Desk, mode: VolumeMode) -> None:
    turn = desk.work("main", a="1")
    lines = [
        replace(line, mode=mode, is_kept_by_fork=mode is VolumeMode.KEEP, snapshot=None, place=None)
        for line in desk.planner.propose(turn, "alt")
    ]
    desk.work("other", b="2")
    with pytest.raises(NotApplicable, match="belongs to session 'other'"):
        desk.planner.carry_out(turn, "alt", lines)
    owner = desk.ledger.resources.get("project").owner
    assert owner is not None
    assert owner.name == "other"
    assert {one.label for one in desk.ledger.sessions()} == {"main", "other"}, "nothing was forked"
    kept = [replace(line, mode=VolumeMode.KEEP, is_kept_by_fork=False) for line in lines]
    desk.planner.carry_out(turn, "alt", kept)


def test_a_plan_that_discards_removes_what_weft_made(desk: Desk, tmp_path: Path) -> None:
    first = desk.work("main", a="1")
    desk.planner.carry_out(first, "alt", desk.planner.propose(first, "alt"))
    copy = tmp_path / "project-alt"
    turn = desk.work("alt", copy, b="2")
    lines = desk.planner.changed(desk.planner.propose(turn, "third"), VolumeMode.DISCARD, None)
    with pytest.raises(LabelTaken):
        desk.planner.carry_out(turn, "alt", lines)
    assert copy.exists(), "a fork that is refused removes nothing"
    assert not list((tmp_path / "kept" / "restoring").glob("*.json")), "nor is it noted any more"
    assert desk.planner.carry_out(turn, "third", lines).not_removed == ()
    assert not copy.exists()
    assert desk.ledger.resources.get("project-alt").owner is None
    assert not list((tmp_path / "kept" / "restoring").glob("*.json"))


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


def test_each_of_two_directories_has_the_files_of_the_nearest_turn_that_kept_it(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    desk.work("main", a="1")
    first = desk.work("main", tmp_path / "second", b="1")
    last = desk.work("main", a="2")
    for turn, texts in ((first, {"project": "1", "second": "1"}), (last, {"project": "2", "second": "1"})):
        for name, text in texts.items():
            snapshot = desk.files.snapshot_of(turn, name)
            path = "a" if name == "project" else "b"
            assert desk.driver.files.read(snapshot.external_id or "", path) == text.encode()
    assert [line.snapshot is not None for line in desk.planner.propose(last, "alt")] == [True, True]


@pytest.mark.parametrize("is_before", [True, False])
def test_undo_says_that_the_files_are_not_known_and_moves_the_conversation_alone_if_told(
    desk: Desk, is_before: bool
) -> None:
    first = desk.work("main", a="1")
    grow(desk.ledger, "main", "too much")
    last, (resource,) = desk.ledger.resolve("main"), desk.ledger.resources.list()
    log, failed = ResourceLog(desk.ledger), ResourceFailure("limit_exceeded", "there are too many files")
    log.record_snapshot(resource.id, failed, run=last, is_before=True)
    log.record_snapshot(resource.id, desk.driver.take(desk.folder) if is_before else failed, run=last)
    (desk.folder / "a").write_text("2")
    with pytest.raises(NotApplicable, match="not known: there are too many files"):
        desk.files.undo("main")
    assert desk.ledger.session("main").head == last
    undone = desk.files.undo("main", keeps_files=True)
    assert (undone.head, undone.restores, listed(desk.folder)) == (first, (), {"a": "2"})
    assert desk.files.redo("main").head == last


def test_undo_takes_back_files_of_which_only_the_beginning_was_kept(desk: Desk) -> None:
    desk.work("main", a="1")
    grow(desk.ledger, "main", "dies in the middle")
    last, (resource,) = desk.ledger.resolve("main"), desk.ledger.resources.list()
    ResourceLog(desk.ledger).record_snapshot(resource.id, desk.driver.take(desk.folder), run=last, is_before=True)
    (desk.folder / "a").write_text("half")
    desk.files.undo("main")
    assert listed(desk.folder) == {"a": "1"}


def test_a_folder_that_is_gone_is_brought_back_with_its_mode(desk: Desk) -> None:
    desk.folder.chmod(0o750)
    turn = desk.work("main", a="1")
    shutil.rmtree(desk.folder)
    done = desk.files.check_out(turn)
    assert (done.kept is not None, listed(desk.folder)) == (True, {"a": "1"})
    desk.work("main", a="2")
    shutil.rmtree(desk.folder)
    desk.files.undo("main")
    assert (listed(desk.folder), desk.folder.stat().st_mode & 0o777) == ({"a": "1"}, 0o750)
    desk.folder.chmod(0o700)
    desk.files.check_out(turn)
    assert desk.folder.stat().st_mode & 0o777 == 0o750, "in place, too"


def test_a_checkout_keeps_what_was_there_once(desk: Desk) -> None:
    turn = desk.work("main", a="1")
    desk.work("main", a="2")
    (resource,) = desk.ledger.resources.list()
    before = len(desk.ledger.resources.snapshots(resource.id))
    assert [one.path for one in desk.files.changes_of_checkout(desk.files.snapshot_of(turn))] == ["a"]
    assert desk.files.check_out(turn).kept is not None
    assert len(desk.ledger.resources.snapshots(resource.id)) == before + 1


def test_nothing_is_thrown_away_between_a_snapshot_and_its_record(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.work("main", a="1")
    (resource,), record, seen = desk.ledger.resources.list(), ResourceLog.record_snapshot, []

    def recorded(self: ResourceLog, *arguments: Any, **options: Any) -> Any:
        with pytest.raises(InUse), locked(desk.driver.files.path / "lock", SystemClock(), wait_seconds=0):
            pass
        seen.append(record(self, *arguments, **options))
        return seen[-1]

    monkeypatch.setattr(ResourceLog, "record_snapshot", recorded)
    assert ResourceController(desk.ledger, Drivers(desk.driver)).snapshot(resource) in seen


def test_a_tree_that_is_kept_again_while_it_is_to_be_thrown_away_stays(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = desk.work("main", a="1")
    (resource,), (old,) = desk.ledger.resources.list(), desk.ledger.resources.snapshots_of_turn(turn)
    controller, remove, again = ResourceController(desk.ledger, Drivers(desk.driver)), FileStore.remove, []

    def removed(self: FileStore, unwanted: Any) -> int:
        again.append(controller.snapshot(resource))
        return remove(self, unwanted)

    monkeypatch.setattr(FileStore, "remove", removed)
    controller.forget([old], "erased")
    assert desk.ledger.resources.snapshot(old.id).state is SnapshotState.DISCARDED
    assert again[0].external_id == old.external_id
    assert desk.driver.files.verify(old.external_id or "") == []
