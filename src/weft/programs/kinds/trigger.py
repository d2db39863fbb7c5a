"""Triggers: what sends a message without a person, when it does so, and where the message goes.

`on` names one thing that sets it off. Its folders, variables and secrets are those of the person whose machine it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.kernel import program_events
from weft.kernel.enums import MISSED_CHOICES, SCHEDULED, SESSION_PERIODS, WEBHOOK_SCHEMES
from weft.kernel.errors import InvalidConfig, InvalidInput, quoted
from weft.kernel.foreign_input import EVENT_KINDS
from weft.ledger.views.rows import ProgramRow
from weft.programs.config_fields import Check, Fields, count, filled, member, no_secret, object_, texts
from weft.programs.kinds.kind import Config, KindRow
from weft.programs.machine_names import FOLDER, NOTHING, TEMPLATE, VARIABLES
from weft.programs.program_writer import ProgramWriter
from weft.programs.schedules import checked_expression, checked_zone, interval_ms, single_time_ms

DEFAULT_BREAKER = 5
"""So many errors in a row pause a trigger that says nothing else."""
DEFAULT_TOLERANCE_SECONDS = 300
ROUTES = ("persona", "session", "thread", "smart", "room")


def _valid(check: Any) -> Check:
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
    return _valid(lambda text: (check(text), text)[1])


def _event_kind(path: str, value: Any) -> str:
    if filled(path, value) not in EVENT_KINDS:
        raise InvalidConfig(path, f"there is no kind of event {quoted(value)}", "docs/events.md lists them")
    return str(value)


class _NeededFields(Fields):
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
    "cron": _Cron({"expression": _valid(checked_expression), "zone": _valid(checked_zone)}, "expression"),
    "interval": _as_written(interval_ms),
    "at": _SingleTime({"time": filled, "zone": _valid(checked_zone)}, "time"),
    "webhook": _NeededFields(_WEBHOOK, "secret", "scheme"),
    "event": _NeededFields({"kind": _event_kind, "filter": object_}, "kind"),
    "file": _NeededFields({"folder": filled, "patterns": texts}, "folder"),
    "task": filled,
    "room": filled,
}
"""What sets a trigger off, by the name of the one field of `on`."""


class _Occasion(Fields):
    """Exactly one of its fields is given."""

    def __call__(self, path: str, value: Any) -> dict[str, Any]:
        fields = object_(path, value)
        if len(fields) != 1 or next(iter(fields)) not in self.fields:
            raise InvalidConfig(
                path, f"names {', '.join(map(repr, fields)) or 'nothing'}", f"one of {', '.join(self.fields)}"
            )
        ((name, setting),) = fields.items()
        return {name: self.fields[name](f"{path}.{name}", setting)}


class _Destination(Fields):
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
        "to": _Destination(dict.fromkeys(ROUTES, filled)),
        "message": filled,
        "include": Fields({"sessions": member(*SESSION_PERIODS)}),
        "onMissed": member(*MISSED_CHOICES),
        "breaker": count,
    },
    normalized=_with_message,
    machine={
        **dict.fromkeys(("on.cron.expression", "on.cron.zone", "on.interval", "on.at.time", "on.at.zone"), NOTHING),
        **dict.fromkeys(("on.webhook.secret", "on.webhook.scheme", "on.webhook.toleranceSeconds"), VARIABLES),
        **dict.fromkeys(("on.event.kind", "on.event.filter", "on.file.patterns", "on.task", "on.room"), NOTHING),
        "on.file.folder": FOLDER,
        **dict.fromkeys(("to.persona", "to.session", "to.thread", "to.smart", "to.room"), NOTHING),
        "message": TEMPLATE,
        **dict.fromkeys(("include.sessions", "onMissed", "breaker"), NOTHING),
    },
)


def step(writer: ProgramWriter, trigger: ProgramRow, verb: str, reason: str | None) -> ProgramRow:
    """Pause a trigger, or have it fire again from now on: what set it off meanwhile is passed over."""
    writer.permit_configuring(f"{verb} the trigger {trigger.name!r}", trigger)
    if verb not in program_events.TRIGGER.steps:
        raise InvalidInput(f"a trigger cannot {quoted(verb, 40)}", f"it can {', '.join(program_events.TRIGGER.steps)}")
    return writer.take_step(writer.ensure_own(trigger), verb, reason)
