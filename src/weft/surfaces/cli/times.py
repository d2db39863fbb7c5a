"""Times as the person at this machine reads and writes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from weft.ledger.api import Session

UTC = timezone.utc  # noqa: UP017 - the alias hides what it is
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = len("2026-11-15 09:30")
NO_DATE = "unknown"
NO_TIME = "unknown: its origin gives no time"


class LocalZone(tzinfo):
    """The zone that the machine is set to, with the offset that holds at each moment, summer and winter."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def fromutc(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


def local_time(ms: int) -> str:
    """`2026-11-15 09:30:12 +0100`."""
    return f"{(EPOCH + timedelta(milliseconds=ms)).astimezone():%Y-%m-%d %H:%M:%S %z}"


def local_minute(ms: int) -> str:
    """`2026-11-15 09:30`, as tables on a terminal show times."""
    return local_time(ms)[:MINUTE]


def session_time(session: Session) -> str:
    """When a session last changed, as far as anybody knows."""
    return local_time(session.updated_at) if session.time_known else NO_DATE


class Period(TypedDict):
    since: int | None
    until: int | None


def read_period(since: str | None, until: str | None) -> Period:
    from weft.kernel.clock import SystemClock
    from weft.ledger.api import read_moment

    now = SystemClock().now_ms()
    return {
        "since": read_moment(since, "since", now, LocalZone()),
        "until": read_moment(until, "until", now, LocalZone()),
    }
