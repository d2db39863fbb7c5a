"""`kill -9` of a broker while triggers fire, at every step: after a restart each occasion has fired exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.checks import copy_ledger
from tests.faults.processes import assert_swept, count_steps, run, was_killed
from tests.faults.trigger_processes import create_triggers, die_while_firing, fire_all
from tests.runtime.triggering import TriggerWorld, open_world
from tests.sizes import Record, points

STATEMENTS, WRITES = 5, 1
"""Every so many of them are points of the sweep."""


def check(world: TriggerWorld) -> None:
    programs = world.programs
    sent = {name: len(world.texts(name)) for name in ("all", "latest", "report", "event", "file", "webhook")}
    assert sent == {"all": 4, "latest": 2, "report": 1, "event": 2, "file": 1, "webhook": 1}
    for name in ("all", "latest", "report", "event"):
        assert len(set(world.texts(name))) == sent[name], name
    missed = {name: sum(gap.count for gap in programs.missed_times(name)) for name in ("all", "latest", "report")}
    assert missed == {"all": 0, "latest": 2, "report": 3}
    assert [firing.error_code for firing in programs.trigger_firings("fails")] == ["not_found"] * 4
    messages = [str(message.content) for message in world.ledger.rooms.messages("team")]
    assert sum("posted" in text for text in messages) == 1
    assert len(world.ledger.rooms.pending("team")) == 1
    assert list(world.ledger.verify()) == []


@pytest.mark.parametrize(
    ("is_at_statements", "apart"), [(True, STATEMENTS), (False, WRITES)], ids=["at statements", "inside writes"]
)
def test_each_occasion_fires_once_wherever_a_broker_is_killed(
    quick_path: Path, is_at_statements: bool, apart: int, record_property: Record
) -> None:
    base, path, folder, kills = quick_path / "base.db", quick_path / "ledger.db", quick_path / "watched", 0
    folder.mkdir()
    world = open_world(base)
    create_triggers(world, folder)
    world.ledger.close()

    def check_after_restart() -> None:
        world = open_world(path)
        fire_all(world)
        check(world)
        world.ledger.close()

    steps, _ = count_steps(die_while_firing, str(copy_ledger(base, path)), 0, is_at_statements)
    check_after_restart()
    taken = points(steps // apart, test=2)
    for k in taken:
        code, _ = run(die_while_firing, str(copy_ledger(base, path)), k * apart + 1, is_at_statements)
        check_after_restart()
        kills += was_killed(code)
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")
