"""Checking an event that somebody else wrote, and finding the contents it refers to: both read the field types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidFact
from weft.kernel.events import STREAM_KINDS, Event
from weft.kernel.fields import is_name
from weft.kernel.times import is_iso
from weft.kernel.ulid import is_ulid

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


def content_refs(event: Struct) -> Iterator[str]:
    """The references of all contents that an event names."""
    return (text for _, text, kinds in strings(event) if kinds == {"content"})


def check_event(event: Event) -> None:
    """Refuse an event that holds anything but ids, enum members, numbers, times, names and references."""
    for path, text, kinds in strings(event):
        if path == "$.stream":
            _check_stream(text)
        elif not any(CHECKS[kind](text) for kind in kinds):
            raise InvalidFact(path, f"{text!r:.80} is no {' or '.join(sorted(kinds)) or 'value of this field'}")


def _check_stream(stream: str) -> None:
    kind, _, name = stream.partition(":")
    if kind not in STREAM_KINDS or not is_ulid(name):
        raise InvalidFact("$.stream", f"{stream!r:.80} names no stream")
