"""What a trigger says: its template with the values of an occasion put in, or the occasion itself. No I/O.

`${payload.a.b}` names a value by its place. What is put in is never looked through for further names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weft.kernel.clock import iso_from_ms

PLACE = re.compile(r"\$\{((?:trigger|time|payload|sessions)(?:\.[\w-]+)*)\}")
LIST_PLACE = re.compile(r"[0-9]{1,9}")
MOST_CHARACTERS = 64 * 1024
"""So much of each value enters a message."""


def compose(template: str | None, values: Mapping[str, Any]) -> str:
    """The text of a message. Without a template it is the name of the trigger and what was delivered."""
    if template is None:
        return f"{values['trigger']}:\n\n{shown(values.get('payload'))}"
    return PLACE.sub(lambda match: shown(value_at(values, match[1].split("."))), template)


def value_at(values: Any, places: list[str]) -> Any:
    """The value at a place; None where there is none."""
    for place in places:
        if isinstance(values, Mapping):
            values = values.get(place)
        elif isinstance(values, list) and LIST_PLACE.fullmatch(place) and int(place) < len(values):
            values = values[int(place)]
        else:
            return None
    return values


def shown(value: Any) -> str:
    """A value as text: nothing for none, text as it is, all else as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"


def values_of(trigger: str, at_ms: int, payload: Any, sessions: str | None) -> dict[str, Any]:
    """The names that a template may use."""
    return {"trigger": trigger, "time": iso_from_ms(at_ms), "payload": payload, "sessions": sessions}
