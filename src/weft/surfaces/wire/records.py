"""Records as whole values for another program of ours: all of their fields, where a form tells what people are told.

The client asks for them by their media type, so that it has the same records as a program that opens the ledger, and
shows the same of them. Each record stands as an object of its fields, with its name under `$`. It is read by the types
of the fields, so that nothing becomes a record that the answer does not declare.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, UnsetType

from weft.surfaces.wire.forms import HIDDEN
from weft.verbs.declaration import names_for_types

MEDIA_TYPE = "application/vnd.weft.record+json"
NAME = "$"


class UnreadableRecord(Exception):
    """A value that is none of the type, such as one of another version, or of a record that does not travel whole."""


# --- Written.


def whole(value: Any) -> Any:
    """A record, or a list of records, as what JSON has."""
    if isinstance(value, Struct):
        hidden = HIDDEN.get(type(value).__name__, ())
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in hidden}
        told = {name: whole(field) for name, field in fields.items() if field is not UNSET}
        return {NAME: type(value).__name__, **told}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return {whole(name): whole(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(whole, value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(whole, value))
    return value


# --- Read.

_PLAIN = (bool, int, str, float)
_MANY: Mapping[Any, type] = {tuple: tuple, frozenset: frozenset, set: set}


def read(value: Any, annotation: Any) -> Any:
    """The value that was written as this type. Raises UnreadableRecord."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return read(value, parts[0])
    if origin in (Union, UnionType):
        return _read_alternative(value, parts)
    if origin is Literal:
        return _checked(value, value in parts, annotation)
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Struct):
            return _read_record(value, origin, dict(zip(origin.__parameters__, parts, strict=True)))  # type: ignore[attr-defined]
        if issubclass(origin, Mapping):
            _checked(value, isinstance(value, dict), annotation)
            return {read(_key(name, parts[0]), parts[0]): read(item, parts[1]) for name, item in value.items()}
        if issubclass(origin, Collection):
            _checked(value, isinstance(value, list), annotation)
            return _MANY.get(origin, list)(_read_items(value, origin, parts))
    return _read_class(value, annotation)


def _read_items(items: list[Any], origin: Any, parts: tuple[Any, ...]) -> list[Any]:
    if origin is tuple and parts[-1:] != (...,):
        _checked(items, len(items) == len(parts), parts)
        return [read(item, part) for item, part in zip(items, parts, strict=True)]
    return [read(item, parts[0]) for item in items]


def _read_alternative(value: Any, parts: Sequence[Any]) -> Any:
    for part in parts:
        if part is UnsetType:
            continue
        try:
            return read(value, part)
        except UnreadableRecord:
            continue
    raise _unreadable(value, parts)


def _read_class(value: Any, kind: Any) -> Any:
    if kind in (None, NoneType):
        return _checked(value, value is None, kind)
    if not isinstance(kind, type):  # Any
        return value
    if issubclass(kind, Struct):
        return _read_record(value, kind, {})
    if issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        _checked(value, isinstance(value, str | int) and value in members, kind)
        return members[value]
    if kind is float and type(value) is int:
        return float(value)
    if kind is bytes:
        _checked(value, isinstance(value, str), kind)
        return b64decode(value)
    if kind in _PLAIN:
        return _checked(value, type(value) is kind, kind)
    return value


def _read_record(value: Any, kind: type[Struct], types: Mapping[Any, Any]) -> Struct:
    names = {record.__name__: record for record in _with_subclasses(kind)}
    _checked(value, isinstance(value, dict) and value.get(NAME) in names, kind)
    record = names[value[NAME]]
    annotations, meant = field_types(record), {**_item_types(record), **types}
    given = {
        field: read(value[field], _put_in(annotations[field], meant))
        for field in record.__struct_fields__
        if field in value
    }
    try:
        return record(**given)
    except TypeError:  # a field is missing that has no default
        raise _unreadable(value, record) from None


def _with_subclasses(kind: type[Struct]) -> Iterator[type[Struct]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _with_subclasses(narrower)


@lru_cache(maxsize=512)
def field_types(record: type[Struct]) -> dict[str, Any]:
    """The types of its fields, also of those that its module imports for its types alone."""
    names: dict[str, Any] = {}
    for base in record.__mro__:
        if issubclass(base, Struct) and base is not Struct:
            names |= names_for_types(base.__module__)
    return get_type_hints(record, localns=names, include_extras=True)


def _item_types(record: type[Struct]) -> dict[Any, Any]:
    """What stands for the type variables of what a record's class is derived from, such as a page of one kind."""
    meant: dict[Any, Any] = {}
    for base in getattr(record, "__orig_bases__", ()):
        variables: tuple[Any, ...] = getattr(get_origin(base), "__parameters__", ())
        for variable, part in zip(variables, get_args(base), strict=False):
            meant[variable] = _resolved(part, record)
    return meant


def _resolved(part: Any, record: type[Struct]) -> Any:
    """A name that stands as a text in the head of a class."""
    name = getattr(part, "__forward_arg__", part)
    return names_for_types(record.__module__).get(name, part) if isinstance(name, str) else part


def _put_in(annotation: Any, types: Mapping[Any, Any]) -> Any:
    if isinstance(annotation, TypeVar):
        return types.get(annotation, Any)
    variables: tuple[Any, ...] = getattr(annotation, "__parameters__", ())
    if types and variables:
        return annotation[tuple(types.get(variable, Any) for variable in variables)]
    return annotation


def _key(name: str, kind: Any) -> Any:
    return int(name) if kind is int and name.lstrip("-").isdecimal() else name


def _checked(value: Any, is_one: bool, annotation: Any) -> Any:
    if not is_one:
        raise _unreadable(value, annotation)
    return value


def _unreadable(value: Any, annotation: Any) -> UnreadableRecord:
    name = value.get(NAME, "an object") if isinstance(value, dict) else type(value).__name__
    return UnreadableRecord(f"{name} is not {annotation}"[:300])
