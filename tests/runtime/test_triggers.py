"""Triggers at work: each occasion fires once, whatever brokers, restarts and clocks do; what was missed is told."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NewPostgresLedger
from tests.ledger.histories import problems
from tests.programs.test_schedules import ZONES, MinuteCalendar
from tests.runtime.triggering import HOUR_MS, MINUTE_MS, NOON, TriggerWorld, open_world
from tests.sizes import share
from weft.kernel.errors import InvalidConfig, NotAllowed, NotApplicable, NotFound, WeftError
from weft.ledger.api import CursorMove, TriggerLog
from weft.ledger.model import TextPart
from weft.ledger.triggers import TriggerCursor
from weft.programs.triggers import single_time_ms
from weft.runtime.assembly.turn_configuration import actor_context
from weft.runtime.invoke.trigger_firing import TriggerSender


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TriggerWorld]:
    world = open_world(tmp_path / "ledger.db")
    yield world
    world.ledger.close()


HOURLY = {"on": {"cron": "0 * * * *"}, "message": "what is new at ${time}?"}


def test_a_cron_trigger_sends_its_message_at_its_time_and_once(world: TriggerWorld) -> None:
    trigger, job = world.create("hourly", **HOURLY), world.job()
    assert job.run(world.at(NOON + 30 * MINUTE_MS)) == NOON + HOUR_MS
    assert world.texts() == []
    job.run(world.at(NOON + HOUR_MS + 40))
    job.run(world.at(NOON + HOUR_MS + 5000))
    world.job().run(world.at(NOON + HOUR_MS + 9000))  # another broker
    assert world.texts() == ["what is new at 2026-11-16T13:00:00.000Z?"]
    (message,) = world.ledger.inbox.list()
    assert (message.source, message.sender, message.on_behalf_of) == ("cron", trigger, ("local",))
    assert message.session == "trigger:hourly"
    (firing,) = world.programs.trigger_firings("hourly")
    assert (firing.due, firing.message, firing.state) == (NOON + HOUR_MS, message.id, "queued")
    assert list(world.ledger.verify()) == []


def test_brokers_that_look_at_the_same_moment_fire_an_occasion_once(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    first, second = world.sender(), world.sender()
    stale = [sender.all()[0] for sender in (first, second)]
    world.at(NOON + HOUR_MS)
    from weft.kernel.enums import MessageSource
    from weft.ledger.api import TriggerOccasion
    from weft.runtime.invoke.trigger_firing import occasion_digest

    occasion = TriggerOccasion(digest=occasion_digest("time", NOON), source=MessageSource.CRON, due_ms=NOON)
    outcomes = [sender.fire(trigger, occasion) for sender, trigger in zip((first, second), stale, strict=True)]
    assert [outcome.is_new for outcome in outcomes] == [True, False]
    assert outcomes[0].firing is not None
    assert outcomes[1].firing is not None
    assert outcomes[0].firing.message == outcomes[1].firing.message
    assert len(world.texts()) == 1


def test_times_that_nobody_was_there_for_are_missed_and_told(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    world.job().run(world.at(NOON + 5 * HOUR_MS + 10 * MINUTE_MS))
    assert world.texts() == []
    (missed,) = world.programs.missed_times("hourly")
    assert (missed.count, missed.first, missed.last) == (5, NOON + HOUR_MS, NOON + 5 * HOUR_MS)
    world.job().run(world.at(NOON + 5 * HOUR_MS + 11 * MINUTE_MS))
    assert len(world.programs.missed_times("hourly")) == 1


@pytest.mark.parametrize(("choice", "fired", "missed"), [("latest", 1, 4), ("all", 5, 0), ("report", 0, 5)])
def test_missed_times_are_caught_up_by_choice(world: TriggerWorld, choice: str, fired: int, missed: int) -> None:
    world.create("hourly", **HOURLY, onMissed=choice)
    job = world.job()
    job.run(world.at(NOON + 5 * HOUR_MS + 10 * MINUTE_MS))
    assert len(world.texts()) == fired
    assert sum(gap.count for gap in world.programs.missed_times("hourly")) == missed
    job.run(world.at(NOON + 6 * HOUR_MS))
    assert len(world.texts()) == fired + 1


def test_a_clock_that_is_set_forth_and_back_fires_nothing_twice_and_leaves_nothing_out(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    job = world.job()
    job.run(world.at(NOON + HOUR_MS))
    job.run(world.at(NOON + 48 * HOUR_MS + MINUTE_MS))  # set two days ahead
    job.run(world.at(NOON + 48 * HOUR_MS + 2 * MINUTE_MS))
    job.run(world.at(NOON + HOUR_MS - 5000))  # and back to before the last time
    job.run(world.at(NOON + HOUR_MS + 100))
    assert len(world.texts()) == 2  # 13:00, and noon two days later, which was due by that clock
    job = world.job()  # a restart
    for hour in (2, 3, 4):
        job.run(world.at(NOON + hour * HOUR_MS + 50))
    assert len(world.texts()) == 5
    job.run(world.at(NOON + 48 * HOUR_MS + 50))
    fired = [firing.due for firing in world.programs.trigger_firings("hourly", limit=100)]
    assert len(fired) == len(set(fired)) == 5


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_trigger_that_was_configured_while_the_clock_was_ahead_fires_by_the_right_one(
    world: TriggerWorld, is_resumed: bool
) -> None:
    job = world.job()
    world.at(NOON + 48 * HOUR_MS)
    world.create("hourly", **HOURLY)
    world.create("often", on={"interval": "1h"}, message="x")
    world.create("once", on={"at": "2026-11-16T14:00Z"}, message="x")
    job.run(NOON + 48 * HOUR_MS + 1000)
    for name in ("hourly", "often", "once") if is_resumed else ():
        world.programs.step_trigger(name, "pause")
        world.programs.step_trigger(name, "resume")
    job.run(world.at(NOON + 1000))
    for minute in range(1, 181):
        job.run(world.at(NOON + minute * MINUTE_MS))
        job = world.job() if minute % 7 == 0 else job
    assert [len(world.texts(f"trigger:{name}")) for name in ("hourly", "often", "once")] == [3, 3, 1]
    assert [world.programs.missed_times(name) for name in ("hourly", "often", "once")] == [[], [], []]


def test_a_missed_time_is_counted_once_however_many_brokers_look_and_clocks_are_set(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    early, late = world.sender(), world.job()
    (stale,) = early.all()
    late._ready_triggers(NOON)  # it has read how far was looked
    cursor = CursorMove(stale.standing.version, NOON + 2 * HOUR_MS, str(stale.standing.since_n))
    early.log.record_missed(stale.id, [NOON + HOUR_MS, NOON + 2 * HOUR_MS], "nobody was there", cursor)
    late._by_time(stale, world.at(NOON + 3 * HOUR_MS + 2 * MINUTE_MS))
    counts = [(gap.count, gap.first) for gap in world.programs.missed_times("hourly")]
    assert counts == [(1, NOON + 3 * HOUR_MS), (2, NOON + HOUR_MS)]
    world.job().run(world.at(NOON + 48 * HOUR_MS))  # set ahead, where one fires; and back
    world.job().run(world.at(NOON + 4 * HOUR_MS - 1000))
    world.job().run(world.at(NOON + 72 * HOUR_MS + 2 * MINUTE_MS))
    fired = len(world.programs.trigger_firings("hourly"))
    assert sum(gap.count for gap in world.programs.missed_times("hourly")) + fired == 72
    assert fired == 1


def test_the_sessions_of_a_day_are_those_of_the_day_where_the_trigger_is(world: TriggerWorld) -> None:
    """While it is the 16th in UTC it is the 17th in Tokyo: the 15th is yesterday here, the day before that there."""
    world.at(NOON - 30 * HOUR_MS)
    world.record("on the 15th in both", "before")
    world.at(NOON + 5 * HOUR_MS)
    tokyo = "2026-11-17T02:30:00"
    for name, on in (
        ("cron", {"cron": {"expression": "30 2 * * *", "zone": "Asia/Tokyo"}}),
        ("zone", {"at": {"time": tokyo, "zone": "Asia/Tokyo"}}),
        ("offset", {"at": f"{tokyo}+09:00"}),
        ("none", {"interval": "1h"}),
    ):
        world.create(name, on=on, message="${sessions}", include={"sessions": "yesterday"})
    world.job().run(world.at(NOON + 5 * HOUR_MS + 30 * MINUTE_MS))
    world.job().run(world.at(NOON + 6 * HOUR_MS))
    is_told = {name: "## before" in world.texts(f"trigger:{name}")[0] for name in ("cron", "zone", "offset", "none")}
    assert is_told == {"cron": False, "zone": False, "offset": False, "none": True}


def test_a_new_schedule_and_a_resumed_trigger_begin_from_now(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    world.programs.step_trigger("hourly", "pause", reason="holidays")
    job = world.job()
    job.run(world.at(NOON + 9 * HOUR_MS + MINUTE_MS))
    assert world.programs.missed_times("hourly") == []
    world.programs.step_trigger("hourly", "resume")
    job.run(world.at(NOON + 9 * HOUR_MS + 2 * MINUTE_MS))
    assert (world.texts(), world.programs.missed_times("hourly")) == ([], [])
    world.programs.change("hourly", {"on": {"cron": None, "interval": "30m"}})
    job.run(world.at(NOON + 9 * HOUR_MS + 32 * MINUTE_MS))
    assert len(world.texts()) == 1


def test_a_single_time_fires_once(world: TriggerWorld) -> None:
    world.create("eve", on={"at": {"time": "2026-12-24T18:00", "zone": "Europe/Berlin"}}, message="presents")
    job, at = world.job(), single_time_ms("2026-12-24T17:00:00Z")
    assert job.run(world.at(NOON + HOUR_MS)) == at
    assert job.run(world.at(at)) is None
    assert job.run(world.at(at + HOUR_MS)) is None
    assert world.texts() == ["presents"]


def test_repeated_errors_pause_a_trigger_with_the_reason(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY, to={"persona": "nobody"}, breaker=3)
    job = world.job()
    for hour in range(1, 6):
        job.run(world.at(NOON + hour * HOUR_MS))
    program = world.programs.get("hourly")
    assert program.state == "paused"
    firings = world.programs.trigger_firings("hourly")
    assert [firing.error_code for firing in firings] == ["not_found"] * 3
    last = world.programs.history("hourly")[0]
    assert "its last 3 firings failed" in (last.reason or "")
    world.programs.step_trigger("hourly", "resume")
    job.run(world.at(NOON + 6 * HOUR_MS))
    assert world.programs.get("hourly").state == "active"


def test_messages_that_nobody_can_answer_count_as_errors(world: TriggerWorld) -> None:
    from weft.ledger.api import Runs

    world.create("hourly", **HOURLY, breaker=2)
    job = world.job()
    for hour in range(1, 4):
        job.run(world.at(NOON + hour * HOUR_MS))
        waiting = [message.id for message in world.ledger.inbox.list()]
        Runs(world.ledger).bury(waiting, "down", "the model is down")
    assert world.programs.get("hourly").state == "paused"
    first, second = world.programs.trigger_firings("hourly")
    dead = world.ledger.inbox.get(second.message or "")
    again = world.ledger.inbox.get(world.ledger.inbox.send_again(dead.id).message)
    assert (again.sender, again.on_behalf_of, again.trigger) == (dead.sender, dead.on_behalf_of, first.trigger)


def test_an_event_trigger_fires_for_what_fits_and_tells_of_it(world: TriggerWorld) -> None:
    filter = {"session": "notes", "exit": "success"}
    world.create("after", on={"event": {"kind": "run_finished", "filter": filter}}, message="see ${payload.turn}")
    job = world.job()
    turn = world.record("hello", "notes")
    world.record("hello", "other")
    job.run(NOON)
    job.run(NOON)
    world.job().run(NOON)  # another broker reads the log from the beginning
    assert world.texts() == [f"see {turn}"]
    (message,) = world.ledger.inbox.list()
    assert message.source == "event"
    _, events = TriggerLog(world.ledger).events_after(0, 10_000)
    (fired,) = [fields for _, fields in events if fields["kind"] == "trigger_fired"]
    assert "payload" not in fired  # what it was told of stands in the message alone


def test_triggers_that_set_each_other_off_are_stopped(world: TriggerWorld) -> None:
    kind = "message_admitted"
    world.create("echo", on={"event": {"kind": kind}}, to={"session": "a"}, message="again")
    world.create("other", on={"event": {"kind": kind}}, to={"session": "b"}, message="and again")
    world.ledger.inbox.admit("hello", session="a")
    job = world.job()
    for _ in range(40):
        job.run(NOON)
    assert {world.programs.get(name).state for name in ("echo", "other")} <= {"active", "paused"}
    assert "paused" in {world.programs.get(name).state for name in ("echo", "other")}
    assert len(world.texts()) <= 200
    reasons = [change.reason for name in ("echo", "other") for change in world.programs.history(name) if change.reason]
    assert any("what triggers caused" in reason for reason in reasons)


def test_a_completed_task_and_a_message_in_a_room_set_triggers_off(world: TriggerWorld) -> None:
    programs = world.programs
    programs.create("task", "release", {"title": "release it"})
    room = world.ledger.rooms.create("team")
    world.create("released", on={"task": "release"}, message="tell everybody")
    world.create("said", on={"room": "team"}, message="${payload.event.message}")
    programs.start_task("release")
    programs.complete_task("release")
    posted = world.ledger.rooms.post(room.id, "hello")
    world.job().run(NOON)
    assert world.texts("trigger:released") == ["tell everybody"]
    assert world.texts("trigger:said") == [posted.message]


def test_a_change_of_a_file_wakes_a_trigger_once_it_is_settled(world: TriggerWorld, tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.py").write_text("one")
    (folder / "notes.txt").write_text("not meant")
    world.create("review", on={"file": {"folder": str(folder), "patterns": ["*.py"]}}, message="${payload.changes}")
    job, step = world.job(), iter(range(NOON, NOON + HOUR_MS, 3000))
    job.run(next(step))
    (folder / "a.py").write_text("two, which is longer")
    (folder / "notes.txt").write_text("changed, and not meant")
    (folder / "b.py").write_text("new")
    job.run(next(step))
    assert world.texts() == []
    job.run(next(step))
    world.job().run(next(step))
    (text,) = world.texts()
    assert '"path": "a.py"' in text
    assert '"change": "added"' in text
    assert "notes.txt" not in text
    (folder / "b.py").unlink()
    for _ in range(3):
        job.run(next(step))
    assert '"change": "removed"' in world.texts()[-1]
    assert len(world.texts()) == 2
    (message, _) = world.ledger.inbox.list()
    assert message.source == "event"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_changed_while_a_file_trigger_was_paused_is_passed_over(
    world: TriggerWorld, tmp_path: Path, is_restarted: bool
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.py").write_text("one")
    world.create("review", on={"file": {"folder": str(folder)}}, message="${payload.changes}")
    job, step = world.job(), iter(range(NOON, NOON + HOUR_MS, 3000))
    job.run(next(step))
    world.programs.step_trigger("review", "pause")
    (folder / "a.py").write_text("two, while it was paused")
    world.programs.step_trigger("review", "resume")
    job = world.job() if is_restarted else job
    for _ in range(3):
        job.run(next(step))
    assert world.texts() == []
    (folder / "a.py").write_text("three, after it was resumed")
    for _ in range(3):
        job.run(next(step))
    (text,) = world.texts()
    assert '"change": "changed"' in text


def test_a_broker_that_has_not_heard_of_a_resumption_does_not_move_its_cursor(world: TriggerWorld) -> None:
    log, trigger = TriggerLog(world.ledger), world.create("review", on={"task": "x"}, message="x")
    assert log.move_cursor(trigger, CursorMove(1, 10, "before", is_compared=True))
    assert log.move_cursor(trigger, CursorMove(1, 20, "after", is_compared=True))
    assert not log.move_cursor(trigger, CursorMove(1, 10, "late", "before", is_compared=True))
    assert not log.move_cursor(trigger, CursorMove(1, 10, "late", is_compared=True))
    assert not log.move_cursor(trigger, CursorMove(1, 30, "late", "after", is_compared=True))
    assert log.cursors()[trigger] == TriggerCursor(1, 20, "after")


def test_a_trigger_posts_to_a_room_and_its_agent_is_reached(world: TriggerWorld) -> None:
    world.programs.create("agent", "writer", {"soul": "You write."})
    room = world.ledger.rooms.create("team", agents=["writer"])
    world.create("hourly", **HOURLY, to={"room": "team", "persona": "writer"})
    world.job().run(world.at(NOON + HOUR_MS))
    messages = world.ledger.rooms.messages(room.id)
    assert any("what is new at" in str(message.content) for message in messages)
    (inbox,) = world.ledger.inbox.list()
    assert inbox.source == "cron"
    assert inbox.trigger is not None
    (reached,) = world.ledger.rooms.pending(room.id)
    assert reached.name == "writer"
    reader = world.programs.create("agent", "reader", {"soul": "You read."}).id
    world.ledger.rooms.add(room.id, "reader")
    world.job().run(world.at(NOON + 2 * HOUR_MS))
    world.ledger.rooms.post(room.id, f"@[reader](agent:{reader}) what do you say to that?")
    _, events = TriggerLog(world.ledger).events_after(0, 10_000)
    admitted = [fields for _, fields in events if fields["kind"] == "message_admitted"]
    assert [fields.get("untrusted") for fields in admitted] == [True, True, True]
    assert list(world.ledger.verify()) == []


def test_a_trigger_of_an_agent_has_no_more_rights_than_the_agent(world: TriggerWorld) -> None:
    programs = world.programs
    programs.create("agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure"]}})
    programs.create("agent", "secret", {"soul": "Private.", "visibility": "private"})
    world.record("private words", "diary")
    as_helper = programs.acting_as("helper")
    as_helper.create("trigger", "peek", {**HOURLY, "to": {"session": "diary"}})
    as_helper.create("trigger", "use", {**HOURLY, "to": {"persona": "secret"}})
    as_helper.create("trigger", "mine", {**HOURLY})
    as_helper.create("trigger", "spy", {"on": {"event": {"kind": "run_finished"}}, "message": "${payload.session}"})
    world.record("more private words", "diary")
    world.job().run(world.at(NOON + HOUR_MS))
    messages = world.ledger.inbox.list()
    assert [message.session for message in messages] == ["helper:main"]
    helper = programs.get("helper").id
    assert messages[0].on_behalf_of == (helper,) or messages[0].on_behalf_of == (helper, "local")
    assert [firing.error_code is not None for firing in programs.trigger_firings("peek")] == [True]
    assert [firing.error_code for firing in programs.trigger_firings("use")] == ["not_found"]


def test_a_trigger_that_somebody_with_fewer_rights_configured_loses_rights(world: TriggerWorld) -> None:
    world.programs.create(
        "agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure", "configure(*)"]}}
    )
    world.record("private words", "diary")
    world.create("hourly", **HOURLY, to={"session": "team"})
    world.programs.acting_as("helper").change("hourly", {"to": {"session": "diary"}})
    world.job().run(world.at(NOON + HOUR_MS))
    assert world.texts() == []
    assert world.programs.trigger_firings("hourly")[0].error_code is not None


def test_a_trigger_without_a_target_goes_to_whoever_created_it_and_not_to_whoever_configured_it(
    world: TriggerWorld,
) -> None:
    world.programs.create(
        "agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure", "configure(*)"]}}
    )
    as_helper = world.programs.acting_as("helper")
    as_helper.create("trigger", "agents", {**HOURLY})
    world.create("persons", **HOURLY)
    world.programs.change("agents", {"message": "changed by a person"})
    as_helper.change("persons", {"message": "changed by an agent"})
    world.job().run(world.at(NOON + HOUR_MS))
    sent = {message.session: text for message, text in zip(world.ledger.inbox.list(), world.texts(), strict=True)}
    assert sent == {"helper:main": "changed by a person", "trigger:persons": "changed by an agent"}


def test_triggers_of_an_agent_that_is_gone_fail_and_are_paused(world: TriggerWorld) -> None:
    world.programs.create("agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure"]}})
    as_helper = world.programs.acting_as("helper")
    as_helper.create("trigger", "hourly", {**HOURLY, "breaker": 1})
    as_helper.create("trigger", "after", {"on": {"event": {"kind": "run_finished"}}, "breaker": 1})
    world.programs.delete("helper")
    world.record("hello", "notes")
    world.job().run(world.at(NOON + HOUR_MS))
    assert world.texts() == []
    assert [world.programs.get(name).state for name in ("hourly", "after")] == ["paused", "paused"]


def test_agents_choose_no_folders_and_no_secrets(world: TriggerWorld) -> None:
    world.programs.create("agent", "helper", {"soul": "You help.", "permissions": {"programs": ["configure"]}})
    as_helper = world.programs.acting_as("helper")
    for on in ({"file": {"folder": "/etc"}}, {"webhook": {"secret": "${HOME}", "scheme": "github"}}):
        with pytest.raises(NotAllowed):
            as_helper.create("trigger", "watch", {"on": on, "message": "x"})


def test_a_trigger_of_another_ledger_does_nothing_until_it_is_taken_over(world: TriggerWorld, tmp_path: Path) -> None:
    world.create("hourly", **HOURLY)
    facts = tmp_path / "facts.jsonl"
    with facts.open("wb") as file:
        world.ledger.upkeep.export_facts(file)
    other = open_world(tmp_path / "other.db")
    with facts.open("rb") as file:
        other.ledger.upkeep.import_facts(file)
    other.job().run(other.at(NOON + HOUR_MS))
    assert other.texts() == []
    with pytest.raises(NotApplicable):
        other.sender().require("hourly")
    (pending,) = [item for item in other.programs.pending() if item.name == "hourly"]
    other.programs.take_over(pending.id)
    other.job().run(other.at(NOON + 2 * HOUR_MS))
    assert len(other.texts()) == 1
    other.ledger.close()


def test_a_trigger_fires_by_hand_and_a_paused_or_deleted_one_does_not(world: TriggerWorld) -> None:
    world.create("hourly", **HOURLY)
    sender = world.sender()
    outcome = sender.fire_by_hand(sender.require("hourly"), {"by": "hand"})
    assert outcome.is_new
    assert world.ledger.inbox.list()[0].source == "trigger"
    world.programs.step_trigger("hourly", "pause")
    with pytest.raises(NotApplicable):
        sender.fire_by_hand(sender.require("hourly"))
    world.programs.delete("hourly")
    with pytest.raises(NotFound):
        sender.require("hourly")


ODD: tuple[dict[str, object], ...] = (
    {},
    {"on": {}},
    {"on": {"cron": "0 7 * * *"}},
    {"on": {"cron": "0 7 * * *", "interval": "1h"}, "message": "x"},
    {"on": {"cron": {"expression": "0 7 * * *", "zone": "Mars"}}, "message": "x"},
    {"on": {"cron": {"expression": "0 7 * * *", "timezone": "Asia/Tokyo"}}, "message": "x"},
    {"on": {"at": {"time": "2026-12-24T18:00Z", "tz": "Asia/Tokyo"}}, "message": "x"},
    {"on": {"interval": "1s"}, "message": "x"},
    {"on": {"at": "2026-12-24T18:00"}, "message": "x"},
    {"on": {"webhook": {"secret": "plain", "scheme": "github"}}},
    {"on": {"webhook": {"secret": "${S}", "scheme": "none"}}},
    {"on": {"event": {"kind": "nothing_happened"}}},
    {"on": {"file": {"patterns": ["*"]}}},
    {"on": {"task": "t"}, "to": {}},
    {"on": {"task": "t"}, "to": {"session": "a", "thread": "b"}},
    {"on": {"task": "t"}, "to": {"room": "a"}},
    {"on": {"task": "t"}, "onMissed": "never"},
    {"on": {"task": "t"}, "surprise": 1},
)


def test_configurations_that_mean_nothing_are_refused(world: TriggerWorld) -> None:
    for config in ODD:
        with pytest.raises(InvalidConfig):
            world.programs.create("trigger", "odd", dict(config))


def test_a_message_with_a_place_that_stands_for_nothing_is_refused_when_it_is_written(world: TriggerWorld) -> None:
    with pytest.raises(InvalidConfig, match=r"\$\{event\.user\}") as refused:
        world.create("odd", on={"cron": "@daily"}, message="${trigger} asks ${event.user}")
    assert "${trigger}, ${time}, ${payload}, ${sessions}" in (refused.value.hint or "")
    world.create("plain", on={"cron": "@daily"}, message="${trigger} at ${time}: ${payload.event.user} $HOME")
    with pytest.raises(InvalidConfig, match="stands for nothing"):
        world.programs.change("plain", {"message": "${ payload }"})
    world.programs.change("plain", {"message": "${sessions}", "include": {"sessions": "today"}})


@pytest.mark.parametrize("is_postgres", [False, True])
def test_a_turn_of_a_trigger_names_the_event_that_set_it_off(
    tmp_path: Path, new_postgres_ledger: NewPostgresLedger, is_postgres: bool
) -> None:
    world = open_world(new_postgres_ledger() if is_postgres else tmp_path / "ledger.db")
    try:
        world.programs.create("agent", "writer", {"soul": "You write."})
        world.ledger.rooms.create("team", agents=["writer"])
        world.create("after", on={"event": {"kind": "run_finished", "filter": {"session": "notes"}}}, message="see")
        world.create("hourly", **HOURLY)
        world.create("posting", **HOURLY, to={"room": "team", "persona": "writer"})
        world.record("hello", "notes")
        world.job().run(world.at(NOON + HOUR_MS))
        _, events = TriggerLog(world.ledger).events_after(0, 10_000)
        finished = next(fields["event_id"] for _, fields in events if fields["kind"] == "run_finished")
        fired = {fields["message"]: fields["event_id"] for _, fields in events if fields["kind"] == "trigger_fired"}
        sources = {message.id: message.source_event_id for message in world.ledger.inbox.list()}
        (after,) = [message.id for message in world.ledger.inbox.list() if message.session == "trigger:after"]
        assert sources.pop(after) == finished
        assert sources == {id: event for id, event in fired.items() if id != after}
        assert len(sources) == 2
        assert list(world.ledger.verify()) == []
    finally:
        world.ledger.close()


def test_many_brokers_fire_each_occasion_once(tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> None:
    """Each with a ledger of its own opening, all at the same moments."""
    for where in (tmp_path / "shared.db", new_postgres_ledger()):
        world = open_world(where)
        world.create("often", on={"interval": "1m"}, message="${time}", to={"session": "main"})
        world.create("hear", on={"event": {"kind": "message_admitted", "filter": {"session": "main"}}}, message="heard")
        others = [open_world(where) for _ in range(3)]
        errors: list[BaseException] = []

        def work(one: TriggerWorld, errors: list[BaseException] = errors) -> None:
            job = one.job()
            try:
                for minute in range(1, 6):
                    job.run(one.at(NOON + minute * MINUTE_MS))
                job.run(one.at(NOON + 5 * MINUTE_MS))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(one,)) for one in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(world.texts("main")) == len(set(world.texts("main"))) == 5
        others[0].job().run(NOON + 5 * MINUTE_MS)
        assert len(world.texts("trigger:hear")) == 5
        assert list(world.ledger.verify()) == []
        for one in (world, *others):
            one.ledger.close()


def simulate_year(world: TriggerWorld, zones: Sequence[str], days: int) -> None:
    """Brokers that come and go, late by hours, with clocks that are set forth and back; against a calendar that looks
    at every minute."""
    chance = random.Random(21)
    world.at(single_time_ms("2026-01-01T00:00:00Z") - 1)
    for zone in zones:
        on = {"cron": {"expression": "30 1,2 * * *", "zone": zone}}
        world.create(zone.replace("/", "-"), on=on, message="${time}", onMissed="all", to={"session": zone})
    start, jobs = world.clock.now_ms() + 1, [world.job(), world.job()]
    end = start + days * 24 * HOUR_MS
    now = start
    while now < end:
        now = min(now + chance.choice((10 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS)), end - 1) if now < end - 1 else end
        if chance.random() < 0.05:
            jobs[chance.randrange(2)] = world.job()
        if chance.random() < 0.1:
            chance.choice(jobs).run(world.at(now - 2 * HOUR_MS))
        chance.choice(jobs).run(world.at(now))
    for zone in zones:
        firings = world.programs.trigger_firings(zone.replace("/", "-"), limit=10_000)
        due = sorted(firing.due for firing in firings if firing.due is not None)
        expected = [ms for ms in MinuteCalendar(zone, 2026, days).due("30 1,2 * * *") if start <= ms < end]
        assert due == expected, zone
        assert world.programs.missed_times(zone.replace("/", "-")) == []


@pytest.mark.prove
def test_a_year_of_cron_in_five_zones_fires_each_time_once(world: TriggerWorld) -> None:
    simulate_year(world, ZONES, days=365)


def test_weeks_of_cron_fire_each_time_once(world: TriggerWorld) -> None:
    simulate_year(world, share(ZONES[:2], test=1), days=10)


def test_a_thread_and_a_thread_that_fits_are_gone_on_with(world: TriggerWorld) -> None:
    turn = world.record("The parser fails on nested brackets in regular expressions.", "parser")
    world.record("Lunch at noon.", "lunch")
    fits = "the parser fails on nested brackets in regular expressions"
    world.create("on", on={"task": "x"}, message="more", to={"thread": turn})
    world.create("smart", on={"task": "x"}, message=fits, to={"smart": "other"})
    world.create("lost", on={"task": "x"}, message="zebra", to={"smart": "other"})
    sender = world.sender()
    for name in ("on", "smart", "lost"):
        sender.fire_by_hand(sender.require(name))
    assert [message.session for message in world.ledger.inbox.list()] == ["parser", "parser", "other"]


def test_whoever_fires_a_trigger_by_hand_lends_it_no_rights_and_gets_none(world: TriggerWorld) -> None:
    world.programs.create("agent", "helper", {"soul": "You help."})
    world.record("private words", "diary")
    world.create("diary-note", on={"task": "x"}, message="note", to={"session": "diary"})
    person = actor_context(world.person, world.programs.get("helper"))
    sender = TriggerSender(world.programs, person, world.clock)
    with pytest.raises(WeftError):
        sender.fire_by_hand(sender.require("diary-note"))
    assert world.texts("diary") == []
    world.create("open-note", on={"task": "x"}, message="note", to={"persona": "helper"})
    sender.fire_by_hand(sender.require("open-note"))
    (message,) = world.ledger.inbox.list()
    assert set(message.on_behalf_of) == {"local", world.programs.get("helper").id}


@pytest.mark.parametrize("is_postgres", [False, True])
def test_the_key_of_a_known_person_leads_by_itself_to_the_session_that_they_have_by_a_channel(
    tmp_path: Path, new_postgres_ledger: NewPostgresLedger, is_postgres: bool
) -> None:
    world = open_world(new_postgres_ledger() if is_postgres else tmp_path / "ledger.db")
    ledger, sender = world.ledger, world.sender()
    try:
        for name in ("chat", "mail"):
            occasion = {"webhook": {"secret": "${S}", "scheme": "slack"}}
            world.create(name, on=occasion, to={"sender": "user"}, message="${payload.text}")

        def deliver(trigger: str, user: str) -> None:
            world.clock.tick(1)
            sender.fire_by_hand(sender.require(trigger), {"user": user, "text": "hello"})

        deliver("chat", "Ann@Example.org")
        assert ledger.labels.aliases() == []
        world.programs.create("human", "ann", {"email": "ann@example.org"})
        deliver("chat", "Ann@Example.org")
        (alias,) = ledger.labels.aliases()
        assert (alias.alias, alias.session, alias.reason) == (
            "dm:ann",
            "dm:chat:Ann@Example.org",
            "identity_promotion",
        )
        deliver("mail", "ann")
        assert ledger.labels.aliases() == [alias], "a key that leads somewhere stays as it is"
        assert ledger.session("dm:mail:ann").id != alias.session_id
        deliver("chat", "eve")
        assert ledger.labels.aliases() == [alias]
        assert problems(ledger) == []
    finally:
        ledger.close()


def test_whoever_writes_by_a_channel_has_a_session_that_a_person_is_promoted_to(world: TriggerWorld) -> None:
    world.programs.create("agent", "ada", {"soul": "You are Ada."})
    occasion = {"webhook": {"secret": "${S}", "scheme": "slack"}}
    world.create("chat", on=occasion, to={"persona": "ada", "sender": "event.user"}, message="${payload.event.text}")
    ledger = world.ledger

    def delivered(user: Any, text: str) -> str:
        sender = world.sender()
        payload = {"event": {"user": user, "text": text}}
        sender.fire_by_hand(sender.require("chat"), payload)
        world.clock.tick(1)
        (message,) = [one for one in ledger.inbox.list() if one.content == (TextPart(text),)]
        return message.session

    assert delivered("U1", "hello") == "dm:chat:U1"
    first = ledger.session("dm:chat:U1")
    assert (first.persona_id, first.routing_key) == ("ada", "dm:chat:U1")
    assert delivered("U2", "me, too") == "dm:chat:U2"
    world.programs.create("human", "ann", {"email": "ann@example.org"})
    ledger.labels.promote("dm:chat:U1", "dm:ann")
    (alias,) = ledger.labels.aliases()
    assert (alias.alias, alias.session, alias.reason) == ("dm:ann", "dm:chat:U1", "identity_promotion")
    assert delivered("U1", "again") == "dm:chat:U1"
    assert ledger.inbox.admit("from elsewhere", session="dm:ann").session_id == first.id
    ledger.labels.rename("dm:chat:U1", "ann")
    assert delivered("U1", "by its key") == "ann"
    odd = delivered("two words\n#1", "odd")
    assert re.fullmatch(r"dm:chat:[0-9a-f]{16}", odd)
    assert delivered(None, "nobody") == "ada:main"
    assert problems(ledger) == []
