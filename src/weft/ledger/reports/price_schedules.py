"""A model's prices as plain values, and a file that keeps them: the package that has them takes a quarter of a second.

The file holds what was looked up so far. It says of which data and of which program it is, by their sizes and times of
change; a file of others counts as empty, and so does one that cannot be read, that is a link or that somebody else
could have written. Where it cannot be written, all is looked up again.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.ledger.reports.prices import Price, PriceSteps
from weft.store.atomic_files import make_folder, new_file

KINDS = ("input", "output", "cached", "cache_write", "cache_write_1h")
_QUARTER = timedelta(minutes=15)
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC)
MOST_BYTES = 16 * 1024 * 1024
"""A larger file is not what was kept here: all prices that there are take less."""
FileStamp = tuple[int, int]
"""How large a file is, and when it changed, in nanoseconds."""


class KindPrice(Struct, frozen=True):
    """Micro-dollars for a million tokens of one kind; `tiers` are prices of longer prompts, the longest first."""

    base: int | None
    tiers: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if any(price < 0 for price in (self.base or 0, *(price for _, price in self.tiers))):
            raise msgspec.ValidationError("a price is less than nothing")

    def at(self, prompt: int) -> int | None:
        return next((price for start, price in self.tiers if prompt > start), self.base)


class PricePeriod(Struct, frozen=True):
    """Prices that hold from a day on, or within hours of each day, which may go over midnight; in UTC."""

    kinds: dict[str, KindPrice]
    start_date: date | None = None
    hours: tuple[timedelta, timedelta] | None = None

    def __post_init__(self) -> None:
        if self.kinds.keys() != {*KINDS}:
            raise msgspec.ValidationError("a period has a price of each kind")

    def holds(self, moment: datetime) -> bool:
        if self.start_date is not None and moment.date() < self.start_date:
            return False
        if self.hours is None:
            return True
        start, end = self.hours
        midnight = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
        hour = moment - midnight
        return start <= hour < end if start <= end else hour >= start or hour < end

    def price(self, prompt: int) -> Price:
        given = self.kinds["input"].at(prompt)
        cached, written = self.kinds["cached"].at(prompt), self.kinds["cache_write"].at(prompt)
        return Price(
            input=given,
            output=self.kinds["output"].at(prompt),
            cached=given if cached is None else cached,
            cache_write=given if written is None else written,
            cache_write_1h=self.kinds["cache_write_1h"].at(prompt),
        )


class PriceSchedule(Struct, frozen=True):
    """All prices of one model. Of the periods that hold the last one counts; where none does, the first."""

    periods: tuple[PricePeriod, ...]

    def __post_init__(self) -> None:
        if not self.periods:
            raise msgspec.ValidationError("a schedule has at least one period")

    def price(self, at: int | None, prompt: int) -> Price:
        """What has no time, or one that no calendar has, is priced as at the end of all times."""
        try:
            moment = _LAST_SECOND if at is None else datetime.fromtimestamp(at / 1000, UTC)
        except (OverflowError, ValueError):
            moment = _LAST_SECOND
        period = next((period for period in reversed(self.periods) if period.holds(moment)), self.periods[0])
        return period.price(prompt)

    @property
    def steps(self) -> PriceSteps:
        tiers = (tier for period in self.periods for kind in period.kinds.values() for tier in kind.tiers)
        hours = (hour for period in self.periods for hour in period.hours or ())
        return PriceSteps(frozenset(start for start, _ in tiers), all(not hour % _QUARTER for hour in hours))


class _Kept(Struct):
    source: str
    stamps: tuple[FileStamp, ...]
    schedules: dict[str, PriceSchedule | None]


class KeptSchedules:
    """Schedules by the names of models, in a file; None: the table has no such model."""

    def __init__(self, file: Path, of: tuple[Path, ...]) -> None:
        self._file, self._stamps = file, tuple(_stamp(path) for path in of)
        self._kept = self._load()

    @property
    def source(self) -> str | None:
        """The name of the table, where the file has it."""
        return None if self._kept is None else self._kept.source

    @property
    def schedules(self) -> dict[str, PriceSchedule | None]:
        return {} if self._kept is None else self._kept.schedules

    def store(self, source: str, schedules: dict[str, PriceSchedule | None]) -> None:
        kept = _Kept(source, self._stamps, schedules)
        with suppress(OSError):  # the next process looks them up again
            make_folder(self._file.parent)
            with new_file(self._file) as file:
                file.write(msgspec.json.encode(kept))

    def _load(self) -> _Kept | None:
        try:
            kept = msgspec.json.decode(_own_bytes(self._file), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None
        return kept if kept.stamps == self._stamps else None


def _own_bytes(file: Path) -> bytes:
    """What stands in a file that only the user or the system's owner can have written. Raises OSError for any other."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "it may be written by others", str(file))
        if status.st_uid not in (os.geteuid(), 0) or status.st_size > MOST_BYTES:
            raise OSError(errno.EPERM, "it is somebody else's, or too large", str(file))
        return opened.read(MOST_BYTES)


def _stamp(path: Path) -> FileStamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
