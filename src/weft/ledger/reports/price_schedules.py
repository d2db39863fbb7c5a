"""A model's prices as plain values, and a file that keeps them: the package that has them takes a quarter of a second.

The file holds what was looked up so far. It says of which data and of which program it is, by their sizes and times of
change; a file of others counts as empty, and so does one that cannot be read. Where it cannot be written, all is looked
up again.
"""

from __future__ import annotations

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
FileStamp = tuple[int, int]
"""How large a file is, and when it changed, in nanoseconds."""


class KindPrice(Struct, frozen=True):
    """Micro-dollars for a million tokens of one kind; `tiers` are prices of longer prompts, the longest first."""

    base: int | None
    tiers: tuple[tuple[int, int], ...] = ()

    def at(self, prompt: int) -> int | None:
        return next((price for start, price in self.tiers if prompt > start), self.base)


class PricePeriod(Struct, frozen=True):
    """Prices that hold from a day on, or within hours of each day, which may go over midnight; in UTC."""

    kinds: dict[str, KindPrice]
    start_date: date | None = None
    hours: tuple[timedelta, timedelta] | None = None

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

    @property
    def is_whole(self) -> bool:
        """Whether there is a price, or the word that there is none, for every kind at any time."""
        return bool(self.periods) and all(period.kinds.keys() >= set(KINDS) for period in self.periods)

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
            kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None
        is_whole = all(schedule is None or schedule.is_whole for schedule in kept.schedules.values())
        return kept if is_whole and kept.stamps == self._stamps else None


def _stamp(path: Path) -> FileStamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
