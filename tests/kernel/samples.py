"""One event of every kind, filled from its field types: as little as it can hold, and as much."""

from collections.abc import Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Struct, UnsetType
from msgspec.structs import fields

from weft.kernel.events import Event, Words
from weft.kernel.foreign_input import field_types, markers

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
STRINGS = {
    "ulid": ULID,
    "digest": "0f" * 32,
    "content": "c5" * 32,
    "name": "claude-code",
    "time": "2026-01-02T03:04:05.678Z",
    "node": ULID,
}
STREAM = f"run:{ULID}"


def least(kind: type[Event]) -> Event:
    """Only what must be there."""
    types = field_types(kind)
    made = {field.name: _value(types[field.name]) for field in fields(kind) if field.required}
    return kind(**{**made, "stream": STREAM})


def fullest(kind: type[Event]) -> Event:
    """Every field, and in a list one of each shape."""
    types = field_types(kind)
    return kind(**{**{name: _value(annotation) for name, annotation in types.items()}, "stream": STREAM})


def _value(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)[0]
    if origin is Annotated:
        return STRINGS[min(markers(annotation))]
    if origin is tuple:
        return tuple(_each(get_args(annotation)[0]))
    if origin in (Union, UnionType):
        return next(_each(annotation))
    return _plain(annotation)


def _each(annotation: Any) -> Iterator[Any]:
    """One of every shape that a field may have."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for part in parts:
        if part not in (UnsetType, NoneType):
            yield _value(part)


def _plain(kind: Any) -> Any:
    if kind is Words:
        return Words(content=STRINGS["content"])
    if issubclass(kind, Struct):
        return kind(**{name: _value(annotation) for name, annotation in field_types(kind).items()})
    if issubclass(kind, Enum):
        return next(iter(kind))
    return {bool: True, int: 7, str: "x"}[kind]
