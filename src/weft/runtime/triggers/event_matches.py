"""Which events of the log set a trigger off: of a kind, with certain fields; a completed task; a message in a room.

An event that somebody may not read sets nothing off that acts for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.kernel.errors import StoreError, WeftError
from weft.ledger.api import EventPlace
from weft.programs import Programs
from weft.runtime.triggers.sender import ReadyTrigger

LOGGED = ("event", "task", "room")
"""What sets a trigger off that stands in the log."""
TRIGGER_KINDS = ("trigger_fired", "trigger_missed")
"""What triggers say of themselves sets nothing off."""


def wanted_kind(trigger: ReadyTrigger) -> str:
    """The kind of event that a trigger of the log waits for."""
    name, setting = trigger.occasion
    return {"task": "task_completed", "room": "message_posted"}.get(name) or str(setting["kind"])


def fits(trigger: ReadyTrigger, fields: Mapping[str, Any], place: EventPlace, ids: Mapping[str, str]) -> bool:
    """Whether an event of the wanted kind is meant. `ids` are those of the task or the room by the names that triggers
    have for them."""
    name, setting = trigger.occasion
    if fields["kind"] in TRIGGER_KINDS or fields.get("actor") == trigger.id:
        return False
    if name == "task":
        return place.program is not None and place.program == ids.get(setting)
    if name == "room":
        return place.room is not None and place.room == ids.get(setting) and fields.get("message_kind") == "participant"
    return all(_has(fields, place, path, value) for path, value in setting.get("filter", {}).items())


def _has(fields: Mapping[str, Any], place: EventPlace, path: str, wanted: Any) -> bool:
    """`session`, `turn`, `room` and `program` are what the event belongs to; all else is a field of it."""
    if path in ("session", "turn", "room", "program"):
        return bool(getattr(place, path) == wanted)
    value: Any = fields
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return bool(value == wanted)


def may_read(programs: Programs, place: EventPlace) -> bool:
    """Whether whoever these programs are read as may know of an event."""
    ledger = programs.ledger
    try:
        if place.turn is not None:
            ledger.turn(place.turn)
        elif place.session is not None:
            ledger.session(place.session)
        elif place.room is not None:
            return not ledger.rooms.get(place.room).is_left
        elif place.program is not None:
            programs.get(place.program)
        else:
            return ledger.authority.is_unlimited
    except StoreError:  # the ledger cannot be read now
        raise
    except WeftError:
        return False
    return True


def payload_of(fields: Mapping[str, Any], place: EventPlace) -> dict[str, Any]:
    """What a trigger tells of an event: ids, names and numbers, as they stand in it."""
    about = {"session": place.session, "turn": place.turn, "room": place.room, "program": place.program}
    hidden = ("v", "prev", "replica", "on_behalf_of")
    event = {name: value for name, value in fields.items() if name not in hidden}
    return {"event": event, **{name: value for name, value in about.items() if value is not None}}
