"""A period as people write it: a day, a month, a year, `last week`, `FIRST..LAST`, or a time from which on."""

from __future__ import annotations

import re
from datetime import date, timedelta

from weft.surfaces.cli.times import EPOCH, Period, read_period

ALL = "all"
_MONTH = re.compile(r"(\d{4})-(\d\d)")
_YEAR = re.compile(r"\d{4}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d|today|yesterday")


def period_ends(words: str, today: date) -> tuple[str | None, str | None]:
    """The first and the last time of a period, each as `--since` and `--until` read it; None: it has no such end.

    A day, a month and a year are meant whole; whatever is no period is a time from which on.
    """
    text = " ".join(words.lower().split())
    if text == ALL:
        return None, None
    if ".." in text:
        first, _, last = text.partition("..")
        return period_ends(first, today)[0] if first.strip() else None, _end(last, today)
    if calendar := _calendar_days(text, today):
        return calendar[0].isoformat(), calendar[1].isoformat()
    return (text, text) if _DAY.fullmatch(text) else (text, None)


def _end(words: str, today: date) -> str | None:
    """The end of what stands behind the dots; of a plain time, that time."""
    if not words.strip():
        return None
    first, last = period_ends(words, today)
    return last or first


def _calendar_days(text: str, today: date) -> tuple[date, date] | None:
    """The first and the last day of a week, month or year."""
    if (month := _MONTH.fullmatch(text)) and 1 <= int(month[2]) <= 12 and int(month[1]):
        return _month(int(month[1]), int(month[2]))
    if _YEAR.fullmatch(text) and int(text):
        return _year(int(text))
    monday, month_before = today - timedelta(days=today.weekday()), today.replace(day=1) - timedelta(days=1)
    named = {
        "this week": (monday, monday + timedelta(days=6)),
        "last week": (monday - timedelta(days=7), monday - timedelta(days=1)),
        "this month": _month(today.year, today.month),
        "last month": _month(month_before.year, month_before.month),
        "this year": _year(today.year),
        "last year": _year(today.year - 1),
    }
    return named.get(text)


def _month(year: int, month: int) -> tuple[date, date]:
    last = 31 if month == 12 else (date(year, month + 1, 1) - timedelta(days=1)).day
    return date(year, month, 1), date(year, month, last)


def _year(year: int) -> tuple[date, date]:
    return date(year, 1, 1), date(year, 12, 31)


def named_period(words: str) -> Period:
    """The period that these words mean today, on this machine's calendar."""
    from weft.kernel.clock import SystemClock

    today = (EPOCH + timedelta(milliseconds=SystemClock().now_ms())).astimezone().date()
    return read_period(*period_ends(words, today))
