"""Triggers: what sends a message without a person, when it does so, and where the message goes.

The times at which a schedule is due are computed here: cron expressions in a time zone, intervals,
single times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.kernel import program_events
from weft.kernel.enums import MISSED_CHOICES, SCHEDULED, SESSION_PERIODS, WEBHOOK_SCHEMES
from weft.kernel.errors import InvalidConfig, InvalidInput, quoted
from weft.kernel.foreign_input import EVENT_KINDS
from weft.ledger.views.rows import ProgramRow
from weft.programs.config_fields import (
    FOLDER,
    NOTHING,
    TEMPLATE,
    VARIABLES,
    Check,
    ConfigFields,
    count,
    filled,
    member,
    no_secret,
    object_,
    texts,
)
from weft.programs.program_kinds import Config, KindRow
from weft.programs.program_writer import ProgramWriter

if TYPE_CHECKING:
    from cronsim import CronSim


# --- The times at which a schedule is due: cron expressions in a time zone, intervals, and single times.

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
LONGEST_EXPRESSION = 200
LONGEST_GAP = timedelta(hours=26)
"""Local time was never set further than this at once."""
UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
LEAST_INTERVAL_MS = 10_000
LONGEST_INTERVAL_MS = 10 * 366 * UNIT_MS["d"]
_INTERVAL = re.compile(r"([1-9][0-9]{0,6})([smhdw])")
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)


class CronSchedule(Struct, frozen=True):
    """A cron expression of five fields, read in a time zone."""

    expression: str
    zone: str = "UTC"

    def due_after(self, ms: int) -> Iterator[int]:
        """Every time that it names behind this one, in order, each once, in Unix milliseconds."""
        zone, after = time_zone(self.zone), datetime.fromtimestamp(ms // 1000, UTC)
        times = _by_the_clock if _is_hourly(self.expression) else _by_the_calendar
        last = ms
        for time in times(self.expression, zone, after):
            moment = round(time.timestamp()) * 1000
            if moment > last:
                yield moment
                last = moment


class IntervalSchedule(Struct, frozen=True):
    """Every so many milliseconds, counted from a time, before it as well as behind it: the clock by which that time
    was told may have been ahead."""

    every_ms: int
    since_ms: int

    def due_after(self, ms: int) -> Iterator[int]:
        step = (ms - self.since_ms) // self.every_ms + 1
        while True:
            yield self.since_ms + step * self.every_ms
            step += 1


class SingleSchedule(Struct, frozen=True):
    """One time."""

    at_ms: int

    def due_after(self, ms: int) -> Iterator[int]:
        if self.at_ms > ms:
            yield self.at_ms


Schedule = CronSchedule | IntervalSchedule | SingleSchedule


def first_due(schedule: Schedule, after_ms: int) -> int | None:
    """The next time of a schedule; None where there is none."""
    return next(iter(schedule.due_after(after_ms)), None)


def due_between(schedule: Schedule, after_ms: int, until_ms: int, most: int) -> list[int]:
    """The first times behind `after_ms` and not behind `until_ms`, at most so many."""
    times: list[int] = []
    for moment in islice(schedule.due_after(after_ms), most):
        if moment > until_ms:
            break
        times.append(moment)
    return times


# --- cron ------------------------------------------------------------------------------------------------------------


FIELD_RANGES = {
    "minute": "0 to 59", "hour": "0 to 23", "day-of-month": "1 to 31", "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}  # fmt: skip


def _cron_hint(error: str) -> str:
    """What a field may hold, by the name that the library's error ends with."""
    field = error.lower().removeprefix("bad ")
    if field not in FIELD_RANGES:
        return error.lower()
    never = ", and a day that comes in some month" if field == "day-of-month" else ""
    return f"the field {field} is {FIELD_RANGES[field]}{never}"


def checked_expression(text: str) -> str:
    """An expression that names times, in its one form; a shorthand as what it stands for."""
    expression = " ".join(SHORTHANDS.get(text.strip(), text).split())
    if len(expression) > LONGEST_EXPRESSION or len(expression.split()) != 5:
        shorthands = ", ".join(SHORTHANDS)
        raise InvalidInput(
            f"{quoted(text)} is no cron expression", f"give minute hour day month weekday, or {shorthands}"
        )
    from cronsim import CronSimError

    try:
        next(_local_times(expression, datetime(2026, 1, 1)))
    except CronSimError as error:
        raise InvalidInput(f"{quoted(text)} is no cron expression", _cron_hint(str(error))) from None
    except StopIteration:
        raise InvalidInput(f"{quoted(text)} names no time", "give a day that its months have") from None
    return expression


def checked_zone(name: str) -> str:
    """The name of a time zone that is known here."""
    time_zone(name)
    return name


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """A time zone by its name."""
    from zoneinfo import ZoneInfo

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, or a name that leads out of the folder of zones
        raise InvalidInput(
            f"there is no time zone {quoted(name)}", "give a name such as Europe/Berlin, or UTC"
        ) from None


@lru_cache(maxsize=1024)
def _is_hourly(expression: str) -> bool:
    """Whether it is for every hour, however that is written."""
    return len(_local_times(expression, datetime(2026, 1, 1)).hours) == 24


def _local_times(expression: str, after: datetime) -> CronSim:
    """The local times that an expression names behind one. The library is loaded when it is first used."""
    from cronsim import CronSim

    return CronSim(expression, after)


def _by_the_clock(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """Every minute that fits until the clock is set; then on from there, that moment included."""
    offset = _utc_offset(after, zone)
    local = after.replace(tzinfo=None) + offset
    while True:
        for time in _local_times(expression, local):
            moment = time.replace(tzinfo=UTC) - offset
            change = _first_change(after, moment, zone)
            if change is not None:
                break
            yield moment
            after = moment
        else:
            return
        offset, after = _utc_offset(change, zone), change
        local = change.replace(tzinfo=None) + offset - _SECOND


def _by_the_calendar(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """The local times that it names, and when these are. It begins earlier where the clock was set shortly before: what
    was named by then may be due after it."""
    earlier = after - LONGEST_GAP
    start = after if _utc_offset(earlier, zone) == _utc_offset(after, zone) else earlier
    for time in _local_times(expression, start.replace(tzinfo=None) + _utc_offset(start, zone)):
        yield _moment_of(time, zone)


def _moment_of(local: datetime, zone: tzinfo) -> datetime:
    """When a local time is: the first time where it comes twice, and the end of the gap where it is skipped."""
    moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if moment.replace(tzinfo=None) + _utc_offset(moment, zone) == local:
        return moment
    return _change_between(moment - LONGEST_GAP, moment, zone)


def _utc_offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _first_change(after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """The first moment behind one and not behind the other at which the clock is set; looked for day by day."""
    while after < until:
        end = min(after + _DAY, until)
        if _utc_offset(end, zone) != _utc_offset(after, zone):
            return _change_between(after, end, zone)
        after = end
    return None


def _change_between(first: datetime, last: datetime, zone: tzinfo) -> datetime:
    """The moment at which the clock is set, between two at which it shows other offsets."""
    before = _utc_offset(first, zone)
    while last - first > _SECOND:
        middle = (first + (last - first) / 2).replace(microsecond=0)
        if _utc_offset(middle, zone) == before:
            first = middle
        else:
            last = middle
    return last


# --- intervals and single times --------------------------------------------------------------------------------------


def interval_ms(text: str) -> int:
    """`90s`, `15m`, `2h`, `1d` or `1w` in milliseconds."""
    match = _INTERVAL.fullmatch(text.strip())
    ms = 0 if match is None else int(match[1]) * UNIT_MS[match[2]]
    if not LEAST_INTERVAL_MS <= ms <= LONGEST_INTERVAL_MS:
        least = LEAST_INTERVAL_MS // 1000
        raise InvalidInput(f"{quoted(text)} is no interval", f"give one such as 90s, 15m, 2h or 1d, at least {least}s")
    return ms


def single_time_ms(text: str, zone: str | None = None) -> int:
    """An ISO time in milliseconds: with an offset of its own, or as the local time of a zone."""
    time = _iso_time(text)
    if time.tzinfo is None:
        if zone is None:
            raise InvalidInput(f"{quoted(text)} has no offset", "add one such as +01:00 or Z, or name a zone")
        try:
            time = _moment_of(time.replace(microsecond=0), time_zone(zone))
        except OverflowError:
            raise InvalidInput(f"{quoted(text)} is no time of {zone}", "give one of this century") from None
    return round(time.timestamp() * 1000)


def offset_of(text: str) -> tzinfo | None:
    """The offset that an ISO time has of its own."""
    return _iso_time(text).tzinfo


def _iso_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(f"{quoted(text)} is no time", "write it as 2026-12-24T18:00:00+01:00") from None


# --- Triggers: what sends a message without a person, when it does so, and where the message goes.

DEFAULT_BREAKER = 5
"""So many errors in a row pause a trigger that says nothing else."""
DEFAULT_TOLERANCE_SECONDS = 300
ROUTES = ("persona", "session", "thread", "smart", "room", "sender")


def _check_with(check: Any) -> Check:
    """A check by a function that refuses with InvalidInput."""

    def checked(path: str, value: Any) -> Any:
        text = filled(path, value)
        try:
            return check(text)
        except InvalidInput as error:
            raise InvalidConfig(path, str(error), error.hint or "give another") from None

    return checked


def _as_written(check: Any) -> Check:
    """The same for a text that is kept as it is."""
    return _check_with(lambda text: (check(text), text)[1])


def _event_kind(path: str, value: Any) -> str:
    if filled(path, value) not in EVENT_KINDS:
        raise InvalidConfig(path, f"there is no kind of event {quoted(value)}", "docs/events.md lists them")
    return str(value)


class _NeededFields(ConfigFields):
    """The check of an object in which some fields are given, and no others than those of its form."""

    def __init__(self, fields: Mapping[str, Check], *needed: str) -> None:
        super().__init__(fields)
        self._needed = needed

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        fields = super().__call__(path, value)
        for name in self._needed:
            if name not in fields:
                raise InvalidConfig(f"{path}.{name}", "is missing", f"it needs {', '.join(self._needed)}")
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise InvalidConfig(
                f"{path}.{unknown[0]}", "is a field that nothing reads", f"one of {', '.join(self.fields)}"
            )
        return fields


class _Cron(_NeededFields):
    """A schedule, or its expression alone."""

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        return {"zone": "UTC", **super().__call__(path, {"expression": value} if isinstance(value, str) else value)}


class _SingleTime(_NeededFields):
    """A time with its zone, or the time alone."""

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        checked = super().__call__(path, {"time": value} if isinstance(value, str) else value)
        try:
            single_time_ms(checked["time"], checked.get("zone"))
        except InvalidInput as error:
            raise InvalidConfig(f"{path}.time", str(error), error.hint or "give another") from None
        return dict(checked)


_WEBHOOK = {"secret": no_secret, "scheme": member(*WEBHOOK_SCHEMES), "toleranceSeconds": count}
OCCASIONS: dict[str, Check] = {
    "cron": _Cron({"expression": _check_with(checked_expression), "zone": _check_with(checked_zone)}, "expression"),
    "interval": _as_written(interval_ms),
    "at": _SingleTime({"time": filled, "zone": _check_with(checked_zone)}, "time"),
    "webhook": _NeededFields(_WEBHOOK, "secret", "scheme"),
    "event": _NeededFields({"kind": _event_kind, "filter": object_}, "kind"),
    "file": _NeededFields({"folder": filled, "patterns": texts}, "folder"),
    "task": filled,
    "room": filled,
}
"""What sets a trigger off, by the name of the one field of `on`."""


class _Occasion(ConfigFields):
    """Exactly one of its fields is given."""

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        fields = object_(path, value)
        if len(fields) != 1 or next(iter(fields)) not in self.fields:
            raise InvalidConfig(
                path, f"names {', '.join(map(repr, fields)) or 'nothing'}", f"one of {', '.join(self.fields)}"
            )
        ((name, setting),) = fields.items()
        return {name: self.fields[name](f"{path}.{name}", setting)}


PAYLOAD_PLACE = re.compile(r"[\w-]++(?:\.[\w-]++)*+")


def _place(path: str, value: Any) -> str:
    place = filled(path, value)
    if PAYLOAD_PLACE.fullmatch(place) is None:
        raise InvalidConfig(path, f"{quoted(place)} is no place in a payload", "give for example event.user")
    return place


TEMPLATE_NAMES = ("trigger", "time", "payload", "sessions")
"""What a message may name as `${NAME}`, and places in it as `${payload.FIELD}`."""
TEMPLATE_PLACE = re.compile(rf"\$\{{((?:{'|'.join(TEMPLATE_NAMES)})(?:\.[\w-]+)*)\}}")
_WRITTEN_PLACE = re.compile(r"\$\{[^{}]*\}")


def _template(path: str, value: Any) -> str:
    """Refuse a message with a place that nothing would be put into."""
    for place in _WRITTEN_PLACE.findall(value):
        if TEMPLATE_PLACE.fullmatch(place) is None:
            names = ", ".join(f"${{{name}}}" for name in TEMPLATE_NAMES)
            raise InvalidConfig(
                path, f"{quoted(place)} stands for nothing", f"one of {names}, or ${{payload.FIELD.FIELD}}"
            )
    return str(value)


class _Destination(ConfigFields):
    """Where a message goes."""

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        fields = super().__call__(path, value)
        named = [name for name in ROUTES if name in fields and name != "persona"]
        if len(named) > 1 or not fields or set(fields) - set(ROUTES):
            raise InvalidConfig(
                path, f"names {', '.join(fields) or 'nothing'}", f"name a persona, or one of {', '.join(ROUTES)}"
            )
        if "room" in fields and "persona" not in fields:
            raise InvalidConfig(f"{path}.persona", "is missing", "name the agent of the room that is to answer")
        return fields


def _with_message(config: Config) -> Config:
    """Refuse a schedule without a message: it has nothing to say by itself."""
    occasion = config.get("on")
    if "message" not in config and isinstance(occasion, dict) and any(name in occasion for name in SCHEDULED):
        raise InvalidConfig("config.message", "is missing", "say what is to be sent")
    return config


TRIGGER = KindRow(
    facts=program_events.TRIGGER,
    required=("on",),
    fields={
        "on": _Occasion(OCCASIONS),
        "to": _Destination(dict.fromkeys(ROUTES, filled) | {"sender": _place}),
        "message": filled,
        "include": ConfigFields({"sessions": member(*SESSION_PERIODS)}),
        "onMissed": member(*MISSED_CHOICES),
        "breaker": count,
    },
    normalized=_with_message,
    new_checks={"message": _template},
    machine={
        **dict.fromkeys(("on.cron.expression", "on.cron.zone", "on.interval", "on.at.time", "on.at.zone"), NOTHING),
        **dict.fromkeys(("on.webhook.secret", "on.webhook.scheme", "on.webhook.toleranceSeconds"), VARIABLES),
        **dict.fromkeys(("on.event.kind", "on.event.filter", "on.file.patterns", "on.task", "on.room"), NOTHING),
        "on.file.folder": FOLDER,
        **dict.fromkeys(("to.persona", "to.session", "to.thread", "to.smart", "to.room", "to.sender"), NOTHING),
        "message": TEMPLATE,
        **dict.fromkeys(("include.sessions", "onMissed", "breaker"), NOTHING),
    },
    acts_by_itself=True,
)


def step_trigger(writer: ProgramWriter, trigger: ProgramRow, verb: str, reason: str | None) -> ProgramRow:
    """Pause a trigger, or have it fire again from now on: what set it off meanwhile is passed over."""
    writer.permit_configuring(f"{verb} the trigger {trigger.name!r}", trigger)
    if verb == "resume":
        writer.ensure_unlimited(TRIGGER)
    if verb not in program_events.TRIGGER.steps:
        raise InvalidInput(f"a trigger cannot {quoted(verb, 40)}", f"it can {', '.join(program_events.TRIGGER.steps)}")
    return writer.take_step(writer.ensure_own(trigger), verb, reason)
