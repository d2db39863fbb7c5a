"""A trigger that fails keeps no other from firing, and what it failed with is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.triggering import HOUR_MS, NOON, TriggerWorld, open_world
from weft.kernel.errors import Damaged, StoreFailed, error_code, error_text
from weft.ledger.api import CursorMove, FiringOutcome, NewFiring, TriggerLog
from weft.runtime.invoke import trigger_firing as sender_module
from weft.runtime.invoke.trigger_firing import compose


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TriggerWorld]:
    world = open_world(tmp_path / "ledger.db")
    yield world
    world.ledger.close()


def _create_three(world: TriggerWorld, name: str, folder: Path) -> str:
    """One for each thing that sets triggers off; the id of that by the clock."""
    folder.mkdir(exist_ok=True)
    world.create(f"{name}-file", on={"file": {"folder": str(folder)}}, message=name, breaker=3)
    world.create(f"{name}-log", on={"event": {"kind": "run_finished"}}, message=name, breaker=3)
    return world.create(f"{name}-clock", on={"cron": "0 * * * *"}, message=name, breaker=3)


@pytest.mark.parametrize("error", [ZeroDivisionError("no number"), Damaged("a content is not what was written")])
def test_a_defect_of_one_trigger_stops_no_other_and_is_recorded(
    world: TriggerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = tmp_path / "src"

    def failing(template: str | None, values: Any) -> str:
        if template == "bad":
            raise error
        return compose(template, values)

    monkeypatch.setattr(sender_module, "compose", failing)
    for name in ("bad", "good"):
        _create_three(world, name, folder)
    job = world.job()
    job.run(world.at(NOON + 1000))
    (folder / "new.py").write_text("x")
    world.record("hello", "notes")
    for second in range(4):
        job.run(world.at(NOON + HOUR_MS + 3000 * second))
    for place in ("file", "log", "clock"):
        assert world.texts(f"trigger:good-{place}") == ["good"], place
        firing = world.programs.trigger_firings(f"bad-{place}")[-1]
        assert (firing.error_code, firing.error) == (error_code(error), error_text(error))
    assert "bad" not in world.texts()
    assert world.programs.get("bad-clock").state == "paused"
    assert f"its last 3 firings failed: {error_text(error)}" in (world.programs.history("bad-clock")[0].reason or "")


def test_what_a_folder_trigger_remembers_and_cannot_read_is_an_error_of_it(world: TriggerWorld, tmp_path: Path) -> None:
    _create_three(world, "good", tmp_path / "src")
    trigger = world.create("bad", on={"file": {"folder": str(tmp_path / "src")}}, message="x", breaker=1)
    standing = TriggerLog(world.ledger).standing(trigger)
    assert standing is not None
    TriggerLog(world.ledger).move_cursor(trigger, CursorMove(1, standing.since_n, "no state"))
    world.job().run(world.at(NOON + HOUR_MS))
    assert world.programs.get("bad").state == "paused"
    assert world.texts("trigger:good-clock") == ["good"]
    world.programs.step_trigger("bad", "resume")
    world.job().run(world.at(NOON + HOUR_MS))
    assert world.programs.get("bad").state == "active"


def test_a_store_that_fails_for_one_trigger_loses_no_event_and_stops_no_other(
    world: TriggerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        _create_three(world, name, tmp_path / "src")
    job, fire = world.job(), TriggerLog.fire
    is_broken = True

    def failing(log: TriggerLog, new: NewFiring) -> FiringOutcome:
        if is_broken and new.message.content == "bad":
            raise StoreFailed("the disk is full")
        return fire(log, new)

    monkeypatch.setattr(TriggerLog, "fire", failing)
    for text in ("one", "two"):
        world.record(text, "notes")
    for _ in range(2):
        with pytest.raises(StoreFailed):
            job.run(world.at(NOON + HOUR_MS))
    assert [len(world.texts(f"trigger:good-{place}")) for place in ("log", "clock")] == [2, 1]
    is_broken = False
    job.run(world.at(NOON + HOUR_MS + 1000))
    assert [len(world.texts(f"trigger:bad-{place}")) for place in ("log", "clock")] == [2, 1]
    assert [one.error for one in world.programs.trigger_firings("bad-log")] == [None, None]


def test_what_is_kept_of_triggers_that_fire_no_more_is_forgotten(world: TriggerWorld, tmp_path: Path) -> None:
    _create_three(world, "good", tmp_path / "src")
    job = world.job()
    job.run(world.at(NOON + 1000))
    assert all((job._positions, job._watches, job._next_times))
    for place in ("file", "log", "clock"):
        world.programs.delete(f"good-{place}")
    job.run(world.at(NOON + 2000))
    assert not any((job._positions, job._watches, job._next_times))
