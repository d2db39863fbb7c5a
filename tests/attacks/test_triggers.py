"""Triggers that are to fire without end, for what their maker may not know, or in the place of all others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NewPostgresLedger
from tests.ledger.test_inbox import answered
from tests.runtime.triggering import HOUR_MS, MINUTE_MS, NOON, TriggerWorld, open_world
from weft.kernel.errors import InvalidConfig, NotApplicable
from weft.ledger import triggers as firing_module
from weft.programs.program_kinds import KindRow
from weft.programs.triggers import due_between
from weft.runtime.invoke import trigger_job as job_module

FIRINGS_OF_A_CIRCLE = 140
"""Two triggers, each stopped after 64 firings in an hour for what triggers caused, and what they had by then."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TriggerWorld]:
    world = open_world(tmp_path / "ledger.db")
    yield world
    world.ledger.close()


@pytest.mark.parametrize("kind", ["session_created", "agent_forked"])
def test_triggers_that_make_sessions_for_made_sessions_are_stopped(world: TriggerWorld, kind: str) -> None:
    turn = world.record("hello", "root")
    world.record("more", "root")
    for label in ("one", "two"):  # with two sessions that stand at the turn, each message behind it makes another
        world.ledger.fork(turn, label=label)
    for name in ("echo", "other"):
        world.create(name, on={"event": {"kind": kind}}, to={"thread": turn}, message="again")
    world.ledger.fork(turn, label="three")
    job = world.job()
    for _ in range(9):
        job.run(NOON)
    assert {world.programs.get(name).state for name in ("echo", "other")} == {"paused"}
    assert len(world.texts()) < FIRINGS_OF_A_CIRCLE


def test_triggers_that_change_programs_for_changed_programs_are_stopped(world: TriggerWorld) -> None:
    """No event of a program names the turn in which an agent changed it."""
    world.programs.create("agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure(work)"]}})
    world.programs.create("task", "work", {"title": "0"})
    world.create("echo", on={"event": {"kind": "task_configured"}}, to={"persona": "helper"}, message="again")
    as_helper, job = world.programs.acting_as("helper"), world.job()
    world.programs.change("work", {"title": "1"})
    for number in range(2, 20):
        job.run(NOON)
        if world.ledger.inbox.list():
            answered(world.ledger, "helper:main")
            as_helper.change("work", {"title": str(number)})
    assert world.programs.get("echo").state == "paused"
    hops = [firing.hops for firing in world.programs.trigger_firings("echo")]
    assert hops == list(range(8, -1, -1))
    world.programs.step_trigger("echo", "resume")
    world.programs.change("work", {"title": "a person's"})  # whatever the agent did before
    job.run(NOON)
    assert world.programs.trigger_firings("echo")[0].hops == 0


def test_a_trigger_that_was_paused_for_its_errors_is_what_a_trigger_caused(world: TriggerWorld) -> None:
    world.create("fails", on={"interval": "1h"}, message="x", to={"persona": "nobody"}, breaker=1)
    world.create("tells", on={"event": {"kind": "trigger_paused"}}, message="see to it")
    world.job().run(world.at(NOON + HOUR_MS))
    world.job().run(NOON + HOUR_MS)
    assert [firing.hops for firing in world.programs.trigger_firings("tells")] == [1]


def test_the_causes_of_firings_are_shown_to_those_who_may_read_them(world: TriggerWorld) -> None:
    programs, ledger = world.programs, world.ledger
    programs.create("human", "ann", {"permissions": ["session:read(open)"]})
    programs.create("agent", "secret", {"soul": "Private.", "visibility": "private"})
    room = ledger.rooms.create("team")
    for name, on in (
        ("runs", {"event": {"kind": "run_finished"}}),
        ("sessions", {"event": {"kind": "session_renamed"}}),
        ("rooms", {"event": {"kind": "message_posted"}}),
        ("programs", {"event": {"kind": "agent_configured"}}),
    ):
        world.create(name, on=on, to={"session": "triggered"}, message="x")
    hidden, shown = world.record("private words", "diary"), world.record("hello", "open")
    ledger.labels.rename("diary", "secret-diary")
    ledger.rooms.post(room.id, "among us")
    programs.change("secret", {"soul": "Still private."})
    world.job().run(NOON)
    causes = {name: [one.cause for one in programs.trigger_firings(name)] for name in ("sessions", "rooms", "programs")}
    assert all(cause is not None for each in causes.values() for cause in each)
    assert [one.cause for one in programs.trigger_firings("runs")] == [shown, hidden]
    as_ann = programs.acting_as("ann")
    assert [one.cause for one in as_ann.trigger_firings("runs")] == [shown, None]
    for name, each in causes.items():
        assert [one.cause for one in as_ann.trigger_firings(name)] == [None] * len(each), name


def test_whoever_left_a_room_hears_nothing_of_it_and_says_nothing_in_it(world: TriggerWorld) -> None:
    world.programs.create("human", "ann", {"permissions": ["configure"]})
    world.programs.create("agent", "writer", {"soul": "You write."})
    room = world.ledger.rooms.create("team", agents=["writer"], people=["ann"])
    as_ann = world.programs.acting_as("ann")
    as_ann.create("trigger", "said", {"on": {"room": "team"}, "message": "${payload}"})
    any_message = {"event": {"kind": "message_posted"}}
    as_ann.create("trigger", "all", {"on": any_message, "message": "${payload}"})
    to_room = {"room": "team", "persona": "writer"}
    as_ann.create("trigger", "talk", {"on": {"interval": "1h"}, "message": "from ann", "to": to_room})
    world.ledger.rooms.post(room.id, "for all of us")
    job = world.job()
    job.run(world.at(NOON + HOUR_MS))
    assert [len(world.texts(f"trigger:{name}")) for name in ("said", "all")] == [1, 2]  # her own notice is the second
    world.ledger.rooms.remove(room.id, "ann")
    before = [len(world.texts(f"trigger:{name}")) for name in ("said", "all")]
    world.ledger.rooms.post(room.id, "without her")
    job.run(world.at(NOON + 2 * HOUR_MS))
    assert [len(world.texts(f"trigger:{name}")) for name in ("said", "all")] == before
    assert world.programs.trigger_firings("talk")[0].error_code == "not_allowed"
    texts = [str(message.content) for message in world.ledger.rooms.messages(room.id)]
    assert sum("from ann" in text for text in texts) == 1


def test_no_place_in_a_message_stops_the_other_triggers(world: TriggerWorld) -> None:
    place = "9" * 5000
    world.create(
        "far", on={"event": {"kind": "message_admitted"}}, message=f"[${{payload.event.parts.{place}}}]", breaker=1
    )
    world.create("ticks", on={"cron": "* * * * *"}, message="tick")
    world.ledger.inbox.admit("hello", session="other")
    job = world.job()
    job.run(NOON)
    job.run(world.at(NOON + MINUTE_MS))
    assert world.texts("trigger:far")[0] == "[]"
    assert world.texts("trigger:ticks") == ["tick"]


@pytest.mark.parametrize(("time", "zone"), [("9999-12-31T23:59:59", "America/New_York"), ("0001-01-01", "Asia/Tokyo")])
def test_a_time_that_no_calendar_has_is_refused(world: TriggerWorld, time: str, zone: str) -> None:
    with pytest.raises(InvalidConfig):
        world.create("late", on={"at": {"time": time, "zone": zone}}, message="now")


@pytest.mark.parametrize(("choice", "fired"), [("report", 2), ("latest", 3), ("all", 60)])
def test_a_long_time_that_was_missed_is_looked_at_once(
    world: TriggerWorld, monkeypatch: pytest.MonkeyPatch, choice: str, fired: int
) -> None:
    """However long nobody was there, no time is computed twice, and of all that were missed one is the latest."""
    monkeypatch.setattr(job_module, "MOST_COUNTED", 25)
    monkeypatch.setattr(job_module, "MOST_TIMES", 7)
    counts: list[int] = []

    def counting(*args: Any) -> list[int]:
        times = due_between(*args)
        counts.append(len(times))
        return times

    monkeypatch.setattr(job_module, "due_between", counting)
    world.create("often", on={"cron": "* * * * *"}, message="${time}", onMissed=choice, to={"session": "main"})
    job, now = world.job(), world.at(NOON + HOUR_MS)
    for _ in range(20):
        if job.run(now) != now:
            break
    assert sum(counts) == 60
    assert len(world.texts("main")) == fired
    assert sum(missed.count for missed in world.programs.missed_times("often")) == 60 - fired


ODD: tuple[dict[str, Any], ...] = (
    {"on": {}, "message": "x"},
    {"on": {"interval": "0s"}, "message": "x"},
    {"on": {"cron": {"expression": "bad"}}, "message": "x"},
    {"on": {"file": {"folder": 7}}, "message": "x"},
    {"on": {"event": "x"}, "message": "x"},
    {"on": {"interval": "1h"}, "message": 7},
    {"on": {"interval": "1h"}, "message": "x", "to": "y"},
    {"on": {"interval": "1h"}, "message": "x", "breaker": "z"},
)


def test_no_configuration_of_another_ledger_stops_the_other_triggers(
    world: TriggerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_world(tmp_path / "other.db")
    with monkeypatch.context() as patches:
        patches.setattr(KindRow, "checked_config", lambda kind, config: config)
        for number, config in enumerate(ODD):
            other.create(f"odd-{number}", **config)
    facts = tmp_path / "facts.jsonl"
    with facts.open("wb") as file:
        other.ledger.upkeep.export_facts(file)
    other.ledger.close()
    with facts.open("rb") as file:
        world.ledger.upkeep.import_facts(file)
    for pending in world.programs.pending():
        world.programs.take_over(pending.id)
    world.create("ticks", on={"interval": "1h"}, message="tick")
    world.job().run(world.at(NOON + HOUR_MS))
    assert world.texts() == ["tick"]
    with pytest.raises(NotApplicable):
        world.sender().require("odd-0")


def _taken_over(world: TriggerWorld, other: TriggerWorld, tmp_path: Path) -> None:
    """What the other ledger holds comes into this one, and counts here up to now."""
    facts = tmp_path / "facts.jsonl"
    with facts.open("wb") as file:
        other.ledger.upkeep.export_facts(file)
    with facts.open("rb") as file:
        world.ledger.upkeep.import_facts(file)
    for pending in world.programs.pending():
        world.programs.take_over(pending.id)


def test_firings_of_another_ledger_hide_none_count_for_none_and_reset_nothing(
    tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    """However many there are and whatever they say, on both engines."""
    for number, where in enumerate((str(tmp_path / "here.db"), new_postgres_ledger())):
        other, world = open_world(tmp_path / f"there-{number}.db"), open_world(where)
        other.create("hourly", on={"cron": "0 * * * *"}, message="x", onMissed="all", breaker=3)
        other.create("late", on={"cron": "0 * * * *"}, message="x")
        _taken_over(world, other, tmp_path)
        world.programs.change("hourly", {"to": {"persona": "nobody"}})
        world.job().run(world.at(NOON + 2 * HOUR_MS + 2 * MINUTE_MS))
        assert len(world.programs.trigger_firings("hourly")) == 2
        for hour in range(3, 9):
            other.job().run(other.at(NOON + hour * HOUR_MS + 2 * MINUTE_MS))
        other.programs.step_trigger("hourly", "pause")
        other.programs.step_trigger("hourly", "resume")
        facts = tmp_path / f"facts-{number}.jsonl"
        with facts.open("wb") as file:
            other.ledger.upkeep.export_facts(file)
        with facts.open("rb") as file:
            world.ledger.upkeep.import_facts(file)
        assert [one.error_code for one in world.programs.trigger_firings("hourly", limit=2)] == ["not_found"] * 2
        assert [one.count for one in world.programs.missed_times("late", limit=1)] == [2]
        world.job().run(world.at(NOON + 3 * HOUR_MS))
        assert world.programs.get("hourly").state == "paused"
        for one in (world, other):
            one.ledger.close()


@pytest.mark.parametrize(("is_own", "state"), [(True, "paused"), (False, "active")])
def test_only_firings_of_this_ledger_count_as_causes(
    world: TriggerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool, state: str
) -> None:
    """Another ledger that claims to have sent our messages, after very many firings, stops no trigger."""
    world.create("echo", on={"event": {"kind": "message_admitted"}}, message="again")
    world.create("start", on={"task": "x"}, message="go")
    monkeypatch.setattr(firing_module, "MAX_HOPS", 0)
    sender = world.sender()
    sender.fire_by_hand(sender.require("start"))
    if not is_own:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
            database.execute("UPDATE trigger_firing SET replica = ?", ("another",))
    world.job().run(NOON)
    assert world.programs.get("echo").state == state
