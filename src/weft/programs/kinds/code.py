"""Code: a source text in one of three languages, run in the sandbox when it is invoked."""

from __future__ import annotations

from typing import Any

from weft.kernel import program_events
from weft.kernel.errors import InvalidConfig
from weft.programs.config_fields import filled, member, object_
from weft.programs.json_values import check_schema
from weft.programs.kinds import published
from weft.programs.kinds.kind import KindRow
from weft.programs.machine_names import NOTHING

LANGUAGES = ("javascript", "typescript", "python")


def input_schema(path: str, value: Any) -> dict[str, Any]:
    """The JSON Schema of what it is called with as a tool, which is an object."""
    schema = object_(path, value)
    if schema.get("type") != "object":
        raise InvalidConfig(f"{path}.type", "is not object", "the arguments of a tool are an object")
    check_schema(schema, path)
    return schema


CODE = KindRow(
    facts=program_events.CODE,
    required=("source",),
    fields={"language": member(*LANGUAGES), "source": filled, "inputSchema": input_schema},
    machine=dict.fromkeys(("language", "source", "inputSchema"), NOTHING),
    file_states=published.FILE_STATES,
    state_in_use=published.STATE_IN_USE,
    steps=published.STEPS,
    ended_states=published.ENDED_STATES,
)
