"""Times as people name them on a command line: the viewer's."""

from __future__ import annotations

from typing import TypedDict

from weft.kernel.ambient import SystemClock
from weft.ledger.reports.usage import read_moment
from weft.surfaces.cli.zones import LocalZone


class Period(TypedDict):
    since: int | None
    until: int | None


def read_period(since: str | None, until: str | None) -> Period:
    now = SystemClock().now_ms()
    return {
        "since": read_moment(since, "since", now, LocalZone()),
        "until": read_moment(until, "until", now, LocalZone()),
    }
