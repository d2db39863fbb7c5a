"""Records of the ledger as JSON: the field names of the library, times as ISO-8601 UTC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.times import iso_from_ms
from weft.surfaces.cli.plain_text import safe_json

if TYPE_CHECKING:
    from weft.ledger.model import Turn
    from weft.surfaces.cli.history import Reader


def to_json(value: Any) -> Any:
    """A record, or a list of records, as what JSON knows. What users stored stays exactly as it is."""
    if isinstance(value, Struct):
        return _record(value)
    if isinstance(value, tuple) or (isinstance(value, list) and value and isinstance(value[0], Struct)):
        return [to_json(item) for item in value]
    return value


def _record(record: Struct) -> dict[str, Any]:
    tag = record.__struct_config__.tag
    made: dict[str, Any] = {} if tag is None else {"type": tag}
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if value is UNSET:
            continue
        made[field] = iso_from_ms(value) if field.endswith("_at") and isinstance(value, int) else to_json(value)
    return made


def listed_turn(turn: Turn, reader: Reader) -> dict[str, Any]:
    """A turn as lists show it: with what it is about, and the sessions that stand there."""
    shape = {**_record(turn), "subject": reader.subject(turn), "heads": reader.heads(turn.id)}
    principals = reader.on_behalf_of(turn)
    return {**shape, "on_behalf_of": list(principals)} if principals else shape


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
