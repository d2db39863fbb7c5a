"""Places inside JSON: `$.topic`, `$.items[0].name`, `$['odd name']`, `$.items[*].id`, `$..name`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from weft.kernel.errors import InvalidInput

_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:\.?(?P<name>[^\W\d][\w-]*)|\.?(?P<any>\*)|\[(?P<index>-?\d+)\]|\[(?P<each>\*)\]"
    r"|\[(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)\])"
)
Step = tuple[bool, str | int | None]
"""Whether it goes any depth down, and a name, a place in a list, or None for all."""


def parse_path(text: str) -> list[Step]:
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"path is {text!r:.80}", "write it as $.name[0]")
    at, steps = int(text.startswith("$")), []
    if at == 0:
        text = f".{text}"
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or match.end() == at:
            raise InvalidInput(f"path {text!r:.80} cannot be read at letter {at + 1}", "write it as $.name[0]")
        steps.append((match["deep"] is not None, _wanted(match)))
        at = match.end()
    return steps


def _wanted(match: re.Match[str]) -> str | int | None:
    if match["any"] or match["each"]:
        return None
    if match["index"] is not None:
        return int(match["index"])
    return match["quoted"] if match["quote"] else match["name"]


def found_at(value: Any, path: list[Step]) -> Iterator[Any]:
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
