"""A schema of a program or a task, by somebody who may configure it, that takes whoever holds a value against it all
memory or for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.sizes import share
from weft.kernel.errors import LimitExceeded
from weft.programs.program_records import problems_with

LONGEST_SECONDS = 20
"""Of this process's own time, which others that run beside it do not make longer."""


def _fanned(count: int, *, name: str = "$ref", at: str = "#/$defs/") -> dict[str, Any]:
    """Five parts, each of which names the next one so often."""
    parts: dict[str, Any] = {
        letter: {"$anchor": letter, "allOf": [{name: f"{at}{following}"}] * count}
        for letter, following in zip("abcd", "bcde", strict=True)
    }
    return {"$ref": "#/$defs/a", "$defs": {**parts, "e": {"$anchor": "e", "type": "string"}}}


def _nested(depth: int) -> dict[str, Any]:
    return {"x": _nested(depth - 1)} if depth else {}


TWICE = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}}}}
SCHEMAS: dict[str, tuple[Any, Any]] = {
    "each part names the next one often": (_fanned(50), 1),
    "by anchors": (_fanned(50, at="#"), 1),
    "by dynamic references": (_fanned(50, name="$dynamicRef", at="#"), 1),
    "a part names itself twice": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}}}},
        _nested(60),
    ),
    "in other properties": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"additionalProperties": {"oneOf": [{"$ref": "#/$defs/a"}] * 2}}}},
        _nested(60),
    ),
    "under several patterns": ({"patternProperties": {"x": {"$ref": "#"}, "^x": {"$ref": "#"}}}, _nested(60)),
}


@pytest.mark.parametrize("name", share(list(SCHEMAS), test=2))
def test_no_schema_takes_a_validator_for_ever(name: str) -> None:
    schema, value = SCHEMAS[name]
    began = time.process_time()
    with pytest.raises(LimitExceeded, match="the steps of holding a value against a schema"):
        problems_with(value, schema)
    assert time.process_time() - began < LONGEST_SECONDS


def test_usual_schemas_hold_large_values() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert problems_with({"left": _nested(50), "right": {"left": {"right": 1}}}, tree) == [
        '$.right.left.right: 1 is not of type "object"'
    ]
    row = {"type": "object", "properties": {"n": {"type": "integer"}, "name": {"type": "string"}}}
    rows = [{"n": number, "name": "x"} for number in range(100_000)]
    assert problems_with(rows, {"type": "array", "items": row}) == []
    assert problems_with({"x": {"x": {}}}, TWICE) == []
