"""Periods as people write them: a day means all of it, whoever reads it."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone, tzinfo

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.arguments import checked_number, checked_text
from weft.ledger.read.revisions import parse_moment

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the alias hides what it is
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_moment(given: int | str | None, what: str, now: int, zone: tzinfo) -> int | None:
    """A day means all of it: since its beginning, until its end. Everything else is a moment."""
    if given is None or not isinstance(given, str):
        return None if given is None else checked_number(given, what)
    day = _day(checked_text(given, what), now, zone)
    if day is None:
        return parse_moment(given, now, zone)
    try:
        midnight = datetime.combine(day + timedelta(days=what == "until"), time(), zone)
        return (midnight - _EPOCH) // timedelta(milliseconds=1)
    except (OverflowError, ValueError):  # a zone has no offset beyond the calendar
        raise InvalidInput(
            f"{what} {quoted(given)} is beyond the calendar", "name a day between year 1 and 9999"
        ) from None


def read_last_moment(given: int | str | None, now: int, zone: tzinfo) -> int | None:
    """The last millisecond of a period: that of a day, or a moment itself."""
    end = read_moment(given, "until", now, zone)
    is_day = isinstance(given, str) and _day(given, now, zone) is not None
    return end - 1 if end is not None and is_day else end


def _day(text: str, now: int, zone: tzinfo) -> date | None:
    words = text.strip().lower()
    if words in ("today", "yesterday"):
        today = (_EPOCH + timedelta(milliseconds=now)).astimezone(zone).date()
        return today - timedelta(days=words == "yesterday")
    if not _DATE.fullmatch(words):
        return None
    try:
        return date.fromisoformat(words)
    except ValueError:
        return None
