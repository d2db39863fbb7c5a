"""Forks, undos and restores of files whose controller is killed at any step: the next one finishes them, once."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faults.fork_processes import FORKED, State, World, act, build, decided, fill, opened, state_at, state_of
from tests.faults.processes import KILLED, count_steps, run
from tests.ledger.histories import grow, problems, select
from tests.sizes import PROVING, Record, chance, points, sized
from weft.kernel.enums import SnapshotState, VolumeMode
from weft.kernel.errors import NotFound
from weft.ledger.api import ResourceRestore
from weft.runtime.resources.turn_files import PlanLine

GUESSED_STEPS = 60


def assert_settled(world: World) -> None:
    """Nothing is wanted, held or half made any more, and another look changes nothing."""
    assert world.log.pending() == ([], [])
    again = world.controller.reconcile()
    assert (again.snapshots, again.restores, again.busy, again.left) == ((), (), (), ())
    assert world.directories.claims.all() == world.files.claims.all() == []
    left = [one for one in world.path.rglob("*") if ".partial" in one.name or one.name.startswith(".weft")]
    assert left == []
    world.ledger.upkeep.catch_up()
    assert problems(world.ledger) == []
    held = select(world.path / "ledger.db", "SELECT key FROM lease WHERE kind = 'resource' AND purpose IS NOT NULL")
    assert held == []


def assert_snapshots_restore(world: World, wanted: dict[str, list[State]]) -> None:
    """Each that the ledger calls good is byte-equal to a state that the resource had."""
    for resource in world.ledger.resources.list(include_discarded=True):
        for number, snapshot in enumerate(
            world.ledger.resources.snapshots(resource.id, limit=sized(test=1, prove=100))
        ):
            assert snapshot.state is SnapshotState.OK
            beside = world.path / f"look-{resource.id}-{number}"
            done = world.controller.restore(snapshot, place=str(beside))
            assert done.outcome == "ok", done.error
            assert state_at(beside) in wanted[resource.id]
            copy = world.ledger.resources.get(done.new_resource or "")
            world.controller.discard(copy)
            assert not beside.exists()


def assert_carried_out(world: World, lines: list[PlanLine], states: dict[str, State]) -> None:
    """Each resource has the one owner that the plan says, or is recorded as discarded; a copy is what it copies."""
    made = {one.place: one for one in world.ledger.resources.list(include_discarded=True) if one.is_made}
    assert set(made) == {line.place for line in lines if line.mode is VolumeMode.SNAPSHOT}
    for line in lines:
        owner = world.ledger.resources.get(line.resource.id).owner
        wanted = {VolumeMode.DISCARD: None, VolumeMode.SNAPSHOT: "main"}.get(
            line.mode, FORKED if line.is_kept_by_fork else "main"
        )
        assert (owner and owner.name) == wanted
        if line.place is not None:
            copy = made[line.place]
            assert copy.owner is not None
            assert copy.owner.name == FORKED
            assert state_of(copy) == states[line.resource.id]


def check_fork(path: Path, seed: int, k: int) -> bool:
    """Whether the process was killed."""
    states = build(path, seed)
    with opened(path) as world:
        lines = decided(world.planner, seed)
        owned = [one for one in world.ledger.resources.list() if one.kind.value != "uri"]
        before = {one.id: state_of(one) for one in owned}
        names = {one.name for one in world.places.iterdir()}
        pasts = {one.id: [*states.get(one.place, ()), before[one.id]] for one in owned}
    code, _ = run(act, str(path), "fork", seed, k)
    if PROVING:  # whoever finishes it is killed, too
        run(act, str(path), "reconcile", seed, chance("again", seed, k).randint(1, GUESSED_STEPS))
    with opened(path) as world:
        world.controller.reconcile()
        assert_settled(world)
        try:
            world.ledger.session(FORKED)
        except NotFound:
            assert {one.name for one in world.places.iterdir()} == names
            assert [one for one in world.ledger.resources.list(include_discarded=True) if one.is_made] == []
        else:
            copies = {Path(line.place).name for line in lines if line.place is not None}
            assert {one.name for one in world.places.iterdir()} == names | copies
            assert_carried_out(world, lines, before)
        assert {id: state_of(world.ledger.resources.get(id)) for id in before} == before
        assert_snapshots_restore(world, {**pasts, **copies_of(world, before)})
        grow(world.ledger, "main", "goes on")
        assert problems(world.ledger) == []
    return code == KILLED


def copies_of(world: World, states: dict[str, State]) -> dict[str, list[State]]:
    made = [one for one in world.ledger.resources.list(include_discarded=True) if one.is_made]
    return {one.id: list(states.values()) for one in made}


def moments(path: Path, action: str, seed: int, *, most: int) -> list[int]:
    """Random steps at which a process is killed."""
    steps, _ = count_steps(act, str(path), action, seed, 0)
    return chance("moments", action, seed).sample(range(1, steps + 1), min(steps, most))


def test_a_fork_killed_at_any_step_is_carried_out_once_or_did_not_happen(
    tmp_path: Path, record_property: Record
) -> None:
    kills = 0
    for seed in points(300, test=1):
        whole = tmp_path / f"{seed}"
        whole.mkdir()
        build(whole, seed)
        for k in moments(whole, "fork", seed, most=sized(test=1, prove=6)):
            path = tmp_path / f"{seed}-{k}"
            path.mkdir()
            kills += check_fork(path, seed, k)
            shutil.rmtree(path)
    assert kills > 0 or not PROVING  # a single one may fall behind the last step
    record_property("kills", kills)


@pytest.mark.parametrize("call", range(1, sized(test=3, prove=12)))
def test_a_copy_that_finds_no_room_is_undone_and_both_sessions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    left = iter(range(call - 1, -1, -1))

    def write(descriptor: int, data: bytes) -> int:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and next(left, 1) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    build(tmp_path, 3)
    with opened(tmp_path) as world:
        lines, names = world.planner.propose("main", FORKED), set(os.listdir(world.places))
        ready = [replace(line, snapshot=world.controller.snapshot(line.resource)) for line in lines if line.place]
        real = os.write
        monkeypatch.setattr(os, "write", write)
        forked = world.planner.carry_out("main", FORKED, ready)
        monkeypatch.undo()
        done = {one.place for one in forked.restores if one.outcome == "ok"}
        assert set(os.listdir(world.places)) == names | {Path(place).name for place in done if place is not None}
        assert len(forked.failures) <= 1
        assert_settled(world)
        for session in ("main", FORKED):
            grow(world.ledger, session, "goes on")


# --- undone, done again, discarded -----------------------------------------------------------------------------------


def prepared_undo(path: Path, seed: int, action: str) -> tuple[State, State]:
    """A folder with two turns, the second undone where that is to be taken back. What the folder is like now, and what
    it shall be like."""
    chosen = chance("undo", seed)
    path.mkdir()
    with opened(path) as world:
        folder = world.places / "project"
        folder.mkdir(parents=True)
        fill(folder, chosen)
        world.work(folder, chosen)
        old = state_at(folder)
        world.work(folder, chosen)
        (folder / "since").write_bytes(chosen.randbytes(9))
        new = state_at(folder)
        if action == "undo":
            return new, old
        world.turn_files.undo("main")
        assert state_at(folder) == old
        return old, new


def head_of(path: Path) -> str | None:
    with opened(path) as world:
        return world.ledger.session("main").head


def kept_states(world: World, name: str) -> list[State]:
    states = []
    for number, snapshot in enumerate(world.ledger.resources.snapshots(name)):
        beside = world.path / f"kept-{number}"
        world.turn_files.copy_into(snapshot, beside)
        states.append({**state_at(beside), b"": state_at(world.places / name)[b""]})
        shutil.rmtree(beside)
    return states


@pytest.mark.parametrize("action", sized(test=["undo"], prove=["undo", "redo"]))
def test_an_undo_killed_at_any_step_moves_head_and_files_together_and_loses_no_file(
    tmp_path: Path, action: str, record_property: Record
) -> None:
    kills = 0
    for seed in points(40, test=1):
        whole = tmp_path / f"{seed}"
        prepared_undo(whole, seed, action)
        for k in moments(whole, action, seed, most=sized(test=1, prove=8)):
            path = tmp_path / f"{seed}-{k}"
            present, wanted = prepared_undo(path, seed, action)
            head = head_of(path)
            code, _ = run(act, str(path), action, seed, k)
            kills += code == KILLED
            with opened(path) as world:
                world.controller.reconcile()
                assert_settled(world)
                is_moved = world.ledger.session("main").head != head
                assert state_at(world.places / "project") == (wanted if is_moved else present)
                assert present in kept_states(world, "project") or not is_moved, "what was there is kept"
    assert kills > 0 or not PROVING  # a single one may fall behind the last step
    record_property("kills", kills)


def test_what_was_changed_after_a_kill_is_kept_before_the_files_go_back(tmp_path: Path) -> None:
    path = tmp_path / "world"
    prepared_undo(path, 0, "undo")
    with opened(path) as world:
        wish = wished_restore(world)
        folder = world.places / "project"
        (folder / "later").write_text("typed by somebody who did not know")
        present = state_at(folder)
        (done,) = world.controller.reconcile().restores
        assert (done.id, done.outcome) == (wish, "ok")
        assert not (folder / "later").exists()
        assert present in kept_states(world, "project")
        assert_settled(world)


def wished_restore(world: World) -> str:
    """As an undo leaves it whose process died when the head had moved."""
    turn = world.ledger.turn("main")
    (before,) = world.ledger.resources.snapshots_before_turn(turn.id)
    (wish,) = world.log.undo("main", expected=turn.id, to=turn.parent_id, kept=[], snapshots=[before.id])
    return wish


def test_a_restore_that_was_left_does_not_overwrite_later_turns_undos_or_owners(tmp_path: Path) -> None:
    for name in ("turn", "undo", "owner", "discard"):
        path = tmp_path / name
        prepared_undo(path, 0, "undo")
        with opened(path) as world:
            wish, folder = wished_restore(world), world.places / "project"
            if name == "turn":
                world.work(folder, chance("later"))
            elif name == "undo":
                world.turn_files.undo("main")
            elif name == "owner":
                grow(world.ledger, "other", "hello")
                world.ledger.resources.migrate("project", session="other")
            else:
                world.ledger.resources.discard("project")
            present = state_at(folder)
            world.controller.reconcile()
            assert (world.log.restore(wish).outcome, state_at(folder)) == ("error", present)
            assert_settled(world)


def test_a_copy_that_is_discarded_is_gone_wherever_the_process_was_killed(
    tmp_path: Path, record_property: Record
) -> None:
    def prepared(path: Path) -> ResourceRestore:
        prepared_undo(path, 0, "undo")
        with opened(path) as world:
            (snapshot, *_) = world.ledger.resources.snapshots("project")
            done = world.controller.restore(snapshot, place=str(world.places / "copy"), session="main")
            assert done.outcome == "ok"
        return done

    kills = 0
    prepared(tmp_path / "whole")
    steps, _ = count_steps(act, str(tmp_path / "whole"), "discard", 0, 0)
    for k in points(steps, test=1):
        path = tmp_path / f"{k}"
        done = prepared(path)
        code, _ = run(act, str(path), "discard", 0, k + 1)
        kills += code == KILLED
        with opened(path) as world:
            world.controller.reconcile()
            assert_settled(world)
            copy = world.ledger.resources.get(done.new_resource or "")
            assert (world.places / "copy").exists() == (copy.owner is not None)
    assert kills > 0 or not PROVING  # a single one may fall behind the last step
    record_property("kills", kills)
