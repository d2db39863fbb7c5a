"""Forms as JSON text: one document, or a list that is written while it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from weft.surfaces.plain_text import safe_json


def document(value: Any, *, indent: bool = False) -> str:
    """One JSON document. Lone surrogates and integers of any size are kept, as JSON can."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        text = json.dumps(value, indent=2 if indent else None, allow_nan=False)
    return safe_json(text)


def list_document(items: Iterable[Any]) -> Iterator[str]:
    """One JSON list, made as it is read: an item to a line."""
    lead = "["
    for item in items:
        yield lead + document(item)
        lead = ","
    yield "[]" if lead == "[" else "]"
