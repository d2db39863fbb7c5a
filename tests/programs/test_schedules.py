"""Schedules: a year of cron in five zones against a calendar that looks at every minute, intervals, single times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from zoneinfo import ZoneInfo

import pytest

from tests.sizes import share
from weft.kernel.errors import InvalidInput
from weft.programs.triggers import (
    CronSchedule,
    IntervalSchedule,
    SingleSchedule,
    checked_expression,
    checked_zone,
    due_between,
    first_due,
    interval_ms,
    single_time_ms,
)

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu")
"""Changes by an hour, on other days, by half an hour, at midnight, and none at all with an odd offset."""
MINUTE_MS, DAY_MINUTES = 60_000, 24 * 60


def numbers(field: str, first: int, last: int) -> set[int]:
    """What one field of an expression names: `*`, `a-b`, lists and steps."""
    named: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        low, _, high = (f"{first}-{last}" if span == "*" else span).partition("-")
        end = int(high) if high else last if step else int(low)
        named.update(range(int(low), end + 1, int(step or 1)))
    return named


class MinuteCalendar:
    """Goes through every minute of a year, or of its first days, in UTC, and looks at the clock of a zone."""

    def __init__(self, zone: str, year: int, days: int = 365) -> None:
        self.start = datetime(year, 1, 1, tzinfo=UTC)
        self.zone, self.minutes = ZoneInfo(zone), days * DAY_MINUTES
        self.clock = list(self._clock())
        """The local minute of each minute, counted from the first of the year of local time."""

    def _clock(self) -> Iterator[int]:
        origin = self.start.replace(tzinfo=None)
        for quarter in range(0, self.minutes, 15):  # clocks are set at a quarter of an hour
            local = (self.start + timedelta(minutes=quarter)).astimezone(self.zone).replace(tzinfo=None)
            shown = int((local - origin).total_seconds()) // 60
            yield from range(shown, shown + 15)

    def due(self, expression: str) -> list[int]:
        minute, hour, day, month, weekday = expression.split()
        hours, minutes = numbers(hour, 0, 23), numbers(minute, 0, 59)
        times = {60 * h + m for h in hours for m in minutes}
        days, months, weekdays = numbers(day, 1, 31), numbers(month, 1, 12), {n % 7 for n in numbers(weekday, 0, 7)}

        def is_day(number: int) -> bool:
            date = (self.start + timedelta(days=number)).date()
            in_month, in_week = date.day in days, date.isoweekday() % 7 in weekdays
            both = in_month and in_week if "*" in (day[0], weekday[0]) else in_month or in_week
            return date.month in months and both

        fits = bytearray()
        """By local minute, counted from two days before the year."""
        for number in range(-2, 369):
            on_day = bytearray(DAY_MINUTES)
            for time in times if is_day(number) else ():
                on_day[time] = 1
            fits += on_day
        first, before = round(self.start.timestamp() * 1000), 2 * DAY_MINUTES
        if len(hours) == 24:
            return [first + n * MINUTE_MS for n, local in enumerate(self.clock) if fits[before + local]]
        furthest = [self.clock[0] - 1, *accumulate(self.clock, max)]
        """The furthest that the clock has shown before each minute: what lies behind it and before what it shows now is
        passed in this minute, and nothing is where it shows the same again."""
        return [
            first + n * MINUTE_MS
            for n, local in enumerate(self.clock)
            if fits.find(1, before + furthest[n] + 1, before + local + 1) >= 0
        ]


def fired(expression: str, zone: str, calendar: MinuteCalendar) -> list[int]:
    """As a process finds them that is started anew every week."""
    start = round(calendar.start.timestamp() * 1000)
    end, moments, schedule = start + calendar.minutes * MINUTE_MS, [], CronSchedule(expression, zone)
    for week in range(start, end, 7 * DAY_MINUTES * MINUTE_MS):
        until = min(week + 7 * DAY_MINUTES * MINUTE_MS, end) - 1
        moments += due_between(schedule, week - 1, until, most=DAY_MINUTES * 7)
    return moments


@pytest.mark.slow("looks at every minute of a year")
@pytest.mark.parametrize("zone", share(ZONES, test=2))
def test_a_year_of_cron_is_what_a_calendar_of_every_minute_says(zone: str) -> None:
    calendar = MinuteCalendar(zone, 2026)
    for expression in ("*/20 0-3 * * 1-5", "45 * * * *"):
        assert fired(expression, zone, calendar) == calendar.due(expression)


@pytest.mark.prove
@pytest.mark.parametrize("zone", [*ZONES, "America/Havana", "Antarctica/Troll", "Pacific/Chatham", "America/Santiago"])
def test_years_of_any_expression_are_what_a_calendar_of_every_minute_says(zone: str) -> None:
    chance = random.Random(zone)

    def field(first: int, last: int) -> str:
        low = chance.randint(first, last)
        high = chance.randint(low, last)
        return chance.choice((f"*/{chance.randint(2, 9)}", str(low), f"{low}-{high}", f"{low},{high}"))

    for year in (2023, 2026):
        calendar = MinuteCalendar(zone, year)
        for _ in range(12):
            days = chance.choice(
                ("* * *", f"* * {field(0, 6)}", f"{field(1, 28)} * *", f"{field(1, 28)} * {field(0, 6)}")
            )
            expression = f"{chance.choice(('0', '30', field(0, 59)))} {chance.choice(('*', field(0, 23)))} {days}"
            assert fired(expression, zone, calendar) == calendar.due(expression), expression


def local_times(expression: str, zone: str, day: str) -> list[str]:
    after = single_time_ms(f"{day}T00:00:00", zone) - 1
    moments = due_between(CronSchedule(expression, zone), after, after + 26 * 3_600_000, 100)
    shown = (datetime.fromtimestamp(ms / 1000, ZoneInfo(zone)) for ms in moments)
    return [time.strftime("%H:%M%z") for time in shown if time.strftime("%Y-%m-%d") == day]


def test_a_skipped_local_time_is_due_once_after_the_gap_and_a_doubled_one_the_first_time() -> None:
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-03-29") == ["03:00+0200"]
    assert local_times("*/15 2 * * *", "Europe/Berlin", "2026-03-29") == ["03:00+0200"]
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-10-25") == ["02:30+0200"]
    assert local_times("15 2 * * *", "Australia/Lord_Howe", "2026-10-04") == ["02:30+1100"]


def test_an_expression_for_every_hour_leaves_no_hour_out() -> None:
    night = local_times("0 * * * *", "Europe/Berlin", "2026-10-25")
    assert night[:5] == ["00:00+0200", "01:00+0200", "02:00+0200", "02:00+0100", "03:00+0100"]
    assert len(night) == 25
    assert len(local_times("0 0-23 * * *", "Europe/Berlin", "2026-03-29")) == 23


def test_a_schedule_that_is_asked_in_the_second_of_two_equal_hours_does_not_go_back() -> None:
    second_hour = single_time_ms("2026-10-25T02:10:00+01:00")
    due = first_due(CronSchedule("30 2 * * *", "Europe/Berlin"), second_hour)
    assert due == single_time_ms("2026-10-26T02:30:00", "Europe/Berlin")


@pytest.mark.parametrize("text", ["", "* * * *", "0 0 0 * * *", "61 * * * *", "0 0 31 2 *", "0 0 30 2 *", "x * * * *"])
def test_what_is_no_expression_or_names_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        checked_expression(text)


def test_expressions_have_one_form() -> None:
    assert checked_expression(" 0   7 * *\t1-5 ") == "0 7 * * 1-5"
    assert checked_expression("@daily") == "0 0 * * *"


@pytest.mark.parametrize("name", ["", "Berlin", "../../etc/passwd", "/etc/passwd", "Europe/Berlin\0", "Europe"])
def test_a_zone_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        checked_zone(name)


def test_intervals_are_counted_from_their_beginning_however_late_somebody_asks() -> None:
    schedule = IntervalSchedule(interval_ms("15m"), 1_000)
    assert first_due(schedule, 1_000) == 901_000
    assert first_due(schedule, -1_800_000) == -1_799_000  # the clock that told the beginning was ahead
    assert due_between(schedule, 901_000, 3_000_000, 10) == [1_801_000, 2_701_000]


@pytest.mark.parametrize("text", ["", "9s", "0m", "15", "1y", "-5m", "1h30m", "9999999w"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        interval_ms(text)


def test_a_single_time_is_due_once() -> None:
    at = single_time_ms("2026-12-24T18:00:00+01:00")
    assert at == single_time_ms("2026-12-24T18:00", "Europe/Berlin") == single_time_ms("2026-12-24T17:00:00Z")
    assert due_between(SingleSchedule(at), 0, at, 5) == [at]
    assert first_due(SingleSchedule(at), at) is None
    with pytest.raises(InvalidInput):
        single_time_ms("2026-12-24T18:00")
    with pytest.raises(InvalidInput):
        single_time_ms("tomorrow")
