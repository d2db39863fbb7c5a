"""Which sessions a broker takes next: pure functions of what it saw."""

from __future__ import annotations

from weft.ledger.api import WaitingSession
from weft.runtime.broker.session_turns import AHEAD_MS, BEGINNING_MS, BEGINNING_TOGETHER, HELD_MS, SessionSchedule

NOW = 1_000_000


def waiting(
    session: str, oldest: int = 1, priority: int = 0, *, is_held: bool = False, served_by: str | None = None
) -> WaitingSession:
    return WaitingSession(session, "turn" if is_held else None, priority, oldest, is_held, 1, served_by)


def chosen(
    schedule: SessionSchedule, *sessions: WaitingSession, working: tuple[str, ...] = (), now: int = NOW
) -> list[str]:
    return [one.session for one in schedule.choose(sessions, working, (), now)]


def running(schedule: SessionSchedule, session: str) -> None:
    schedule.start(session, NOW)
    schedule.serve(session)
    schedule.run(session)


def test_a_broker_that_is_alone_takes_more_and_more_at_once_and_never_waits() -> None:
    schedule, sessions = SessionSchedule("a", 64), [waiting(f"s{number}") for number in range(40)]
    assert len(chosen(schedule, *sessions)) == 1
    for number in range(BEGINNING_TOGETHER):
        running(schedule, f"s{number}")
    assert len(chosen(schedule, *sessions)) == BEGINNING_TOGETHER
    schedule.start("slow", NOW)
    assert len(chosen(schedule, *sessions)) == BEGINNING_TOGETHER - 1
    assert len(chosen(schedule, *sessions, now=NOW + BEGINNING_MS)) == BEGINNING_TOGETHER


def test_what_is_urgent_and_was_served_longest_ago_goes_first_within_the_capacity() -> None:
    schedule = SessionSchedule("a", 2)
    for session in ("old", "new", "other"):
        running(schedule, session)
    assert chosen(schedule, waiting("new"), waiting("old")) == ["old", "new"]
    assert chosen(schedule, waiting("old"), waiting("new"), waiting("urgent", priority=1)) == ["urgent", "old"]
    assert chosen(schedule, waiting("old"), waiting("new"), working=("x",)) == ["old"]
    assert chosen(schedule, waiting("first", 1), waiting("second", 2), working=("x",)) == ["first"]


def test_sessions_that_others_hold_are_not_tried_but_looked_at_again() -> None:
    schedule = SessionSchedule("a", 64)
    assert chosen(schedule, waiting("held", is_held=True)) == []
    assert schedule.seconds_to_wait(None, NOW) == HELD_MS / 1000
    unleft = schedule.choose([waiting("held", is_held=True)], (), ("held",), NOW)
    assert [one.session for one in unleft] == ["held"]
    assert chosen(schedule) == []
    assert schedule.seconds_to_wait(None, NOW) == 30
    assert schedule.seconds_to_wait(NOW + 200, NOW) == 0.2


def test_brokers_of_which_others_were_quicker_try_at_times_of_their_own() -> None:
    schedules = [SessionSchedule(f"broker {number}", 64) for number in range(8)]
    for schedule in schedules:
        for _ in range(6):
            schedule.postpone_taken("taken", NOW, 250)
        assert chosen(schedule, waiting("free")) == []
    times = [first_try(schedule) for schedule in schedules]
    assert len(set(times)) == len(schedules)
    assert all(800 <= time - NOW <= 1600 for time in times)
    for schedule, time in zip(schedules, times, strict=True):
        assert chosen(schedule, waiting("free", 2), now=time) == []  # another message: its time begins anew


def first_try(schedule: SessionSchedule) -> int:
    return next(now for now in range(NOW, NOW + 2000) if chosen(schedule, waiting("free"), now=now))


def test_whoever_served_a_session_last_goes_before_the_others() -> None:
    schedule = SessionSchedule("a", 64)
    own, others = waiting("own", served_by="a"), waiting("others", served_by="b")
    assert chosen(schedule, own, others) == ["own"]
    assert schedule.seconds_to_wait(None, NOW) == AHEAD_MS / 1000
    assert chosen(schedule, others, now=NOW + AHEAD_MS - 1) == []
    assert chosen(schedule, others, now=NOW + AHEAD_MS) == ["others"]
    assert chosen(SessionSchedule("a", 64), waiting("gone")) == ["gone"]  # so is whoever served it


def test_serving_its_own_sessions_makes_a_broker_no_bolder_about_those_of_others() -> None:
    schedule, others = SessionSchedule("a", 64), waiting("others", served_by="b")
    for _ in range(6):
        schedule.postpone_taken("others", NOW, 250)
    now = NOW + 10_000
    for _ in range(20):
        assert chosen(schedule, waiting("own", served_by="a"), now=now) == ["own"]
        running(schedule, "own")
    assert chosen(schedule, others, now=now) == []
    assert chosen(schedule, others, now=now + AHEAD_MS + 799) == []
    assert chosen(schedule, others, now=now + AHEAD_MS + 2000) == ["others"]
    for number in range(40):
        free, now = waiting("free", number), now + 5000
        chosen(schedule, free, now=now)
        assert chosen(schedule, free, now=now + 4000) == ["free"]
        running(schedule, "free")
    assert chosen(schedule, waiting("new"), now=now) == ["new"]
