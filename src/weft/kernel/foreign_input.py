"""What others wrote: how much of it is read (bytes, things, seconds, nesting, memory), and
whether an event of theirs is one of the kinds that this program knows, with the contents that it
names.
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

from weft.kernel.clock import ALPHABET, is_iso, is_ulid
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.errors import InvalidFact, LimitExceeded, quoted
from weft.kernel.events import (
    STREAM_KINDS,
    ApprovalEvent,
    ConversationEvent,
    DagEvent,
    Event,
    Registry,
    UnknownEvent,
    Usage,
    is_name,
)
from weft.kernel.ledger_events import LedgerEvent, ResourceEvent
from weft.kernel.program_events import ProgramEvent

# --- How much is read of what a stranger wrote: bytes, things, seconds, nesting and the memory of one text.

KIB, MIB, GIB = 1024, 1024**2, 1024**3


class ReadLimits(Struct, frozen=True, kw_only=True):
    """The limits of one kind of input, and what its owner can do about one that is larger."""

    bytes: int = 64 * GIB
    """That come out of one input, unpacked."""
    free_bytes: int = 256 * MIB
    """Come out of any input, however small it is."""
    ratio: int = 200
    """So many bytes more come out for each byte that was read."""
    held_bytes: int = 256 * MIB
    """Of one line, value, document or file beside a source: it is in memory as a whole."""
    values: int = 4 * MIB
    """Of one JSON text: each takes some 64 bytes of memory or more."""
    nesting: int = 1000
    """Levels of one JSON text: the parsers of Weft go no deeper."""
    entries: int = 1 * MIB
    """Members of an archive, or files that one session is spread over."""
    seconds: int = 120
    bytes_a_second: int = 128 * 1024
    """So many bytes that were read give one more second."""
    advice: str = "split it, and read the parts"


class ReadBudget:
    """What one reading may take. Without a clock the time is not limited."""

    def __init__(self, limits: ReadLimits, monotonic: Callable[[], float] | None = None) -> None:
        self.limits = limits
        self._monotonic = monotonic
        self._begun = 0.0 if monotonic is None else monotonic()
        self._read_bytes, self._bytes, self._entries = 0, 0, 0

    def note_read(self, count: int) -> None:
        """So many more bytes of the input were read, or can be."""
        self._read_bytes += count

    def take_bytes(self, count: int) -> None:
        """So many more bytes came out of it."""
        self._bytes += count
        limits = self.limits
        most = min(limits.bytes, limits.free_bytes + limits.ratio * self._read_bytes)
        if self._bytes > most:
            what = f"{self._read_bytes} bytes unpack to {self._bytes} or more" if self._read_bytes else "its bytes"
            raise LimitExceeded(what, self._bytes, most, limits.advice)

    def take_entries(self, count: int = 1) -> None:
        self._entries += count
        if self._entries > self.limits.entries:
            raise LimitExceeded("the things in it", self._entries, self.limits.entries, self.limits.advice)

    def check_held(self, size: int, what: str = "a part of it in bytes") -> None:
        """Is something of this size held in memory as a whole?"""
        if size > self.limits.held_bytes:
            raise LimitExceeded(what, size, self.limits.held_bytes, self.limits.advice)

    def check_time(self) -> None:
        if self._monotonic is None:
            return
        most = self.limits.seconds + self._read_bytes // self.limits.bytes_a_second
        passed = self._monotonic() - self._begun
        if passed > most:
            raise LimitExceeded("the seconds that reading it takes", int(passed), most, self.limits.advice)


FEW_QUOTES = 2**16
"""A text of so few strings is quickly copied without them; of one with more each string would be a part to join."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_STRING_OR_SIGN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
_QUOTE = b'"'[0]


def json_values(text: bytes | memoryview, most: int) -> int:
    """How many values a JSON text holds, or a number above `most` where there are more. Linear, and without memory of
    its own. A text has no more values than bytes, so a short one is not looked at."""
    if len(text) <= most:
        return min(len(text), most)
    data = bytes(text)
    count = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if count <= most:
        return count
    if data.count(b'"') <= FEW_QUOTES:
        bare = _STRING.sub(b"", data)
        return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{")
    count = 1
    for sign in _STRING_OR_SIGN.finditer(data):
        count += data[sign.start()] != _QUOTE
        if count > most:
            break
    return count


def check_json(text: bytes | memoryview, limits: ReadLimits) -> None:
    """Raises LimitExceeded for a text that would take too much memory once it is parsed."""
    if len(text) > limits.held_bytes:
        raise LimitExceeded("a JSON text in bytes", len(text), limits.held_bytes, limits.advice)
    if (count := json_values(text, limits.values)) > limits.values:
        raise LimitExceeded("the values of a JSON text", count, limits.values, limits.advice)


# --- The one registry of every kind this program knows.

KINDS = Registry(DagEvent, ResourceEvent, LedgerEvent, ApprovalEvent, ConversationEvent, ProgramEvent)
EVENT_KINDS = KINDS.kinds


# --- Checking an event that somebody else wrote, and finding the contents it refers to: both read the field types.

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
def _struct_plan(record: type[Struct]) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((name, markers(annotation)) for name, annotation in field_types(record).items())


def strings(value: Struct, path: str = "$") -> Iterator[tuple[str, str, frozenset[str]]]:
    """Every string of an event with its path and what it may be."""
    for name, kinds in _struct_plan(type(value)):
        found = getattr(value, name)
        if found is not UNSET and found is not None:
            yield from _strings_in(found, f"{path}.{name}", kinds)


def _strings_in(found: Any, path: str, kinds: frozenset[str]) -> Iterator[tuple[str, str, frozenset[str]]]:
    if isinstance(found, Struct):
        yield from strings(found, path)
    elif isinstance(found, tuple):
        for i, item in enumerate(found):
            yield from _strings_in(item, f"{path}[{i}]", kinds)
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
            if field.name != "stream" and not _fits_type(found[field.name], types[field.name]):
                raise InvalidFact(f"{path}.{field.name}", f"{quoted(found[field.name])} is no value of this field")
        elif field.required:
            raise InvalidFact(f"{path}.{field.name}", "is missing")


def _fits_type(found: Any, annotation: Any) -> bool:
    """Is this JSON value one of the type, or one that a newer program may have added to it?"""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_fits_type(found, part) for part in get_args(annotation)) or _is_newer_shape(found, annotation)
    if origin is Annotated:
        return isinstance(found, str) and any(CHECKS[kind](found) for kind in markers(annotation))
    if origin is tuple:
        return isinstance(found, list) and all(_fits_type(item, get_args(annotation)[0]) for item in found)
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
