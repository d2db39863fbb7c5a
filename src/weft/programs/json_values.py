"""JSON values: compared, changed in part, found by their place, and checked against a JSON Schema.

`true` is not 1 here, as it is in Python. A place is written `$.topic`, `$.items[0].name`, `$['odd name']`,
`$.items[*].id` or `$..name`. Schemas are checked by jsonschema-rs, which is loaded when it is first needed; they reach
nothing outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from weft.kernel.errors import InvalidConfig, InvalidInput, quoted
from weft.programs.model import Difference

_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:\.?(?P<name>[^\W\d][\w-]*)|\.?(?P<any>\*)|\[(?P<index>-?\d+)\]|\[(?P<each>\*)\]"
    r"|\[(?P<quote>['\"])(?P<in_quotes>.*?)(?P=quote)\])"
)
PathStep = tuple[bool, str | int | None]
"""Whether it goes any depth down, and a name, a place in a list, or None for all."""
MAX_SHOWN_PROBLEMS = 20


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(is_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Every place at which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            place = f"{path}.{name}" if path else name
            if name not in after:
                yield Difference(place, before[name], None, "removed")
            elif name not in before:
                yield Difference(place, None, after[name], "added")
            else:
                yield from differences(before[name], after[name], place)
    elif not is_same(before, after):
        yield Difference(path, before, after, "changed")


def merged(before: Any, changes: Any) -> Any:
    """JSON Merge Patch (RFC 7396): objects field by field, null takes away, anything else stands in its place."""
    if not isinstance(changes, dict):
        return changes
    result = dict(before) if isinstance(before, dict) else {}
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def parse_path(text: str) -> list[PathStep]:
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"path is {quoted(text)}", "write it as $.name[0]")
    at, steps = int(text.startswith("$")), []
    if at == 0:
        text = f".{text}"
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or match.end() == at:
            raise InvalidInput(f"path {quoted(text)} cannot be read at letter {at + 1}", "write it as $.name[0]")
        steps.append((match["deep"] is not None, _wanted(match)))
        at = match.end()
    return steps


def _wanted(match: re.Match[str]) -> str | int | None:
    if match["any"] or match["each"]:
        return None
    if match["index"] is not None:
        return int(match["index"])
    return match["in_quotes"] if match["quote"] else match["name"]


def found_at(value: Any, path: list[PathStep]) -> Iterator[Any]:
    """Every value at such a place."""
    if not path:
        yield value
        return
    (deep, wanted), rest = path[0], path[1:]
    for place in _below(value) if deep else (value,):
        for inner in _children(place, wanted):
            yield from found_at(inner, rest)


def _below(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _below(inner)


def _children(value: Any, wanted: str | int | None) -> Iterator[Any]:
    if isinstance(value, dict):
        if wanted is None:
            yield from value.values()
        elif isinstance(wanted, str) and wanted in value:
            yield value[wanted]
    elif isinstance(value, list):
        if wanted is None:
            yield from value
        elif isinstance(wanted, int) and -len(value) <= wanted < len(value):
            yield value[wanted]


def problems_with(value: Any, schema: Any, path: str = "schema") -> list[str]:
    """Where and why a value does not fit; empty where it does. A schema that is none is refused."""
    validator = _validator(schema, path)
    problems = []
    for error in validator.iter_errors(value):
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        problems.append(f"${where}: {error.message:.200}")
        if len(problems) == MAX_SHOWN_PROBLEMS:
            break
    return problems


def check_schema(schema: Any, path: str = "schema") -> None:
    _validator(schema, path)


def _validator(schema: Any, path: str) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse)
    except (ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(path, f"is no JSON Schema: {reason:.200}", "see json-schema.org") from error


def _refuse(uri: str) -> Any:
    raise InvalidConfig("$ref", f"{uri} lies outside of the schema and is not fetched", "put what it names into $defs")
