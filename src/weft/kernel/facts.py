"""Checking an event that somebody else wrote, and finding the contents it refers to: both read the field types.

A kind this program knows must fit its type. What a newer program may have added fits too: fields, members of a closed
set and shapes of parts that are not known here, as long as a member or a shape is called by a name. Such an event is
kept raw. Plain text where the type wants an id, a time, a name or a reference is refused, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict
from msgspec.structs import fields as struct_fields

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.clock import ALPHABET, is_iso, is_ulid
from weft.kernel.errors import InvalidFact
from weft.kernel.events import STREAM_KINDS, Event, UnknownEvent
from weft.kernel.fields import Usage, is_name
from weft.kernel.weft_error import quoted

_matches_digest = re.compile(r"[0-9a-f]{64}").fullmatch


def is_digest(text: str) -> bool:
    return _matches_digest(text) is not None


CHECKS: dict[str, Callable[[str], object]] = {
    "ulid": is_ulid,
    "digest": is_digest,
    "content": is_digest,
    "name": is_name,
    "time": is_iso,
    "node": lambda text: is_ulid(text) or is_digest(text),
}


@lru_cache(maxsize=256)
def field_types(record: type[Struct]) -> dict[str, Any]:
    """A struct's own fields with their full types, class variables left out."""
    hints = get_type_hints(record, include_extras=True)
    return {name: hints[name] for name in record.__struct_fields__}


def markers(annotation: Any) -> frozenset[str]:
    """Which kinds of string a field may hold: ulid, digest, content, name, time, node."""
    if get_origin(annotation) is Annotated:
        extras = [meta.extra for meta in get_args(annotation)[1:] if isinstance(meta, Meta) and meta.extra]
        return frozenset(extra["is"] for extra in extras)
    if get_origin(annotation) in (Union, UnionType, tuple):
        return frozenset().union(*(markers(part) for part in get_args(annotation)))
    return frozenset()


@lru_cache(maxsize=256)
def _plan(record: type[Struct]) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((name, markers(annotation)) for name, annotation in field_types(record).items())


def strings(value: Struct, path: str = "$") -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every string of an event with its path and what it may be."""
    for name, kinds in _plan(type(value)):
        found = getattr(value, name)
        if found is not UNSET and found is not None:
            yield from _strings(found, f"{path}.{name}", kinds)


def _strings(found: Any, path: str, kinds: frozenset[str]) -> Iterator[tuple[str, str, frozenset[str]]]:
    if isinstance(found, Struct):
        yield from strings(found, path)
    elif isinstance(found, tuple):
        for i, item in enumerate(found):
            yield from _strings(item, f"{path}[{i}]", kinds)
    elif isinstance(found, int) and abs(found) > MAX_INTEGER:
        raise InvalidFact(path, "an integer beyond ±(2^53-1)")
    elif isinstance(found, str) and not isinstance(found, Enum):
        yield path, found, kinds


def content_refs(value: Struct) -> Iterator[str]:
    """The references of all contents that an event names."""
    for name, direct in _content_fields(type(value)):
        found = getattr(value, name)
        if found is UNSET or found is None:
            continue
        for item in found if isinstance(found, tuple) else (found,):
            if isinstance(item, Struct):
                yield from content_refs(item)
            elif direct:
                yield item


@lru_cache(maxsize=256)
def _content_fields(record: type[Struct]) -> tuple[tuple[str, bool], ...]:
    """The fields that may lead to a content, and whether their strings are references themselves."""
    plan = ((name, markers(annotation) == {"content"}, annotation) for name, annotation in field_types(record).items())
    return tuple((name, direct) for name, direct, annotation in plan if direct or _holds_struct(annotation))


def _holds_struct(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return True
    return any(_holds_struct(part) for part in get_args(annotation))


def check_event(event: Event) -> None:
    """Refuse an event that holds anything but ids, enum members, numbers, times, names and references."""
    for path, text, kinds in strings(event):
        if path == "$.stream":
            _check_stream(text)
        elif not any(CHECKS[kind](text) for kind in kinds):
            raise InvalidFact(path, f"{quoted(text)} is no {' or '.join(sorted(kinds)) or 'value of this field'}")
    if event.on_behalf_of == ():
        raise InvalidFact("$.on_behalf_of", "it is empty; an actor that acts for itself has no such field")
    _check_counts(event)


def _check_counts(event: Event) -> None:
    """Tokens are counted from 0."""
    usage = getattr(event, "usage", UNSET)
    counts = asdict(usage) if isinstance(usage, Usage) else {}
    counts |= {name: getattr(event, name) for name in event.__struct_fields__ if "tokens" in name}
    for name, count in counts.items():
        if count is not UNSET and count < 0:
            raise InvalidFact(f"$.{name}", f"{count} is less than none")


def check_unknown(event: UnknownEvent, kind: type[Event] | None) -> None:
    """Refuse an event that this program cannot read and that no newer program wrote either.

    Of a kind unknown here the envelope is checked; of a `kind` known here, everything that is known of it.
    """
    if not _is_stream(event.stream):
        raise InvalidFact("$.stream", f"{quoted(event.stream)} names no stream")
    if event.prev is not None and not is_digest(event.prev):
        raise InvalidFact("$.prev", f"{quoted(event.prev)} is no digest")
    if event.ts is not None and not is_iso(event.ts):
        raise InvalidFact("$.ts", f"{quoted(event.ts)} is no time")
    if kind is not None:
        _check_shape(event.fields, kind, "$")


_is_stream = re.compile(f"[a-z_]{{1,32}}:[0-7][{ALPHABET}]{{25}}").fullmatch


def _check_shape(found: dict[str, Any], record: type[Struct], path: str) -> None:
    types = field_types(record)
    for field in struct_fields(record):
        if field.name in found:
            if field.name != "stream" and not _fits(found[field.name], types[field.name]):
                raise InvalidFact(f"{path}.{field.name}", f"{quoted(found[field.name])} is no value of this field")
        elif field.required:
            raise InvalidFact(f"{path}.{field.name}", "is missing")


def _fits(found: Any, annotation: Any) -> bool:
    """Is this JSON value one of the type, or one that a newer program may have added to it?"""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_fits(found, part) for part in get_args(annotation)) or _is_newer_shape(found, annotation)
    if origin is Annotated:
        return isinstance(found, str) and any(CHECKS[kind](found) for kind in markers(annotation))
    if origin is tuple:
        return isinstance(found, list) and all(_fits(item, get_args(annotation)[0]) for item in found)
    if origin is Literal:
        return found in get_args(annotation)
    if annotation is int:
        return type(found) is int and abs(found) <= MAX_INTEGER
    return _fits_class(found, annotation)


def _fits_class(found: Any, kind: type) -> bool:
    if kind is UnsetType:
        return False
    if issubclass(kind, Enum):
        return isinstance(found, str) and is_name(found) is not None
    if issubclass(kind, Struct):
        return isinstance(found, dict) and _fits_struct(found, kind)
    return isinstance(found, kind)


def _fits_struct(found: dict[str, Any], record: type[Struct]) -> bool:
    config = record.__struct_config__
    if config.tag is not None and found.get(str(config.tag_field)) != config.tag:
        return False
    try:
        _check_shape(found, record, "")
    except InvalidFact:
        return False
    return True


def _is_newer_shape(found: Any, annotation: Any) -> bool:
    """A part whose `type` is a name that is not known here."""
    configs = [part.__struct_config__ for part in get_args(annotation) if isinstance(part, type(Struct))]
    tags = {config.tag for config in configs if config.tag is not None}
    shape = found.get("type") if isinstance(found, dict) else None
    return bool(tags) and isinstance(shape, str) and is_name(shape) is not None and shape not in tags


def _check_stream(stream: str) -> None:
    kind, _, name = stream.partition(":")
    if kind not in STREAM_KINDS or not is_ulid(name):
        raise InvalidFact("$.stream", f"{quoted(stream)} names no stream")
