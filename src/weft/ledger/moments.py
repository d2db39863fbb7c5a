"""Times as people write them, in the zone they live in."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo

from weft.kernel.errors import InvalidInput

_AGO = re.compile(r"(\d{1,12})\s*(second|minute|hour|day|week|month|year|s|m|h|d|w)s?(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONG = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000, "year": 31536000}
_LAST = re.compile(r"last\s+(day|week|month|year)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the alias hides what it is


def parse_moment(text: str, now_ms: int, zone: tzinfo) -> int:
    """`now`, `yesterday`, `3 days ago`, `3.days.ago`, `last week`, or a date with or without time and offset, as Unix
    milliseconds."""
    words = text.strip().lower()
    now = _EPOCH + timedelta(milliseconds=now_ms)
    if words in ("now", "today"):
        return now_ms
    if words == "yesterday":
        return _ms(now - timedelta(days=1))
    if match := _LAST.fullmatch(words):
        return now_ms - _LONG[match[1]] * 1000
    if match := _AGO.fullmatch(words.replace(".", " ")):
        unit = _SECONDS.get(match[2]) or _LONG[match[2]]
        return now_ms - int(match[1]) * unit * 1000
    try:
        moment = datetime.fromisoformat(text.strip())
        return _ms(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{text!r:.80} is no time", "write yesterday, '2 hours ago', 2026-11-15 or '2026-11-15 09:30'"
        ) from None


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
