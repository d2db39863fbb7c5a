"""Events of every kind, generated from the types of their fields."""

from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from msgspec import Meta, Struct, UnsetType

from weft.kernel.clock import encode, iso_from_ms
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.events import STREAM_KINDS, Event
from weft.kernel.foreign_input import field_types

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-"
YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_999

ulids = st.integers(0, 2**128 - 1).map(encode)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
MARKED: dict[str, st.SearchStrategy[str]] = {
    "ulid": ulids,
    "digest": digests,
    "content": digests,
    "name": st.text(LETTERS, min_size=1, max_size=128),
    "time": st.integers(YEAR_1, YEAR_9999).map(iso_from_ms),
    "node": ulids | digests,
}
streams = st.builds(lambda kind, name: f"{kind}:{name}", st.sampled_from(STREAM_KINDS), ulids)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type may hold."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return st.one_of(*(MARKED[meta.extra["is"]] for meta in parts[1:] if isinstance(meta, Meta) and meta.extra))
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is tuple:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if origin in (Union, UnionType):
        return st.one_of(*(values(part) for part in parts if part is not UnsetType))
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    if issubclass(annotation, Struct):
        return structs(annotation)
    plain: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(-MAX_INTEGER, MAX_INTEGER),
        bool: st.booleans(),
        NoneType: st.none(),
    }
    return plain[annotation]


@cache
def structs(record: type[Struct]) -> st.SearchStrategy[Any]:
    """Required fields always, optional ones now and then. Made once: Hypothesis examines every new strategy."""
    types = field_types(record)
    made = {name: streams if name == "stream" else values(kind) for name, kind in types.items()}
    made |= {name: st.integers(0, MAX_INTEGER) for name in types if "tokens" in name}
    if "on_behalf_of" in types:
        made["on_behalf_of"] = st.lists(MARKED["name"] | ulids, min_size=1, max_size=3).map(tuple)
    optional = {name for name, kind in types.items() if UnsetType in get_args(kind)}
    required = {name: strategy for name, strategy in made.items() if name not in optional}
    chosen = st.fixed_dictionaries(required, optional={name: made[name] for name in optional})
    return chosen.map(lambda fields: record(**fields))


def events(kind: type[Event]) -> st.SearchStrategy[Event]:
    return structs(kind)
