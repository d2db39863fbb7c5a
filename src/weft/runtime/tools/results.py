"""Results of tools: recorded whole, shown to the model shortened, and read on by it where it wants more.

`recordable` turns whatever a tool gave into JSON that has one canonical form. `for_model` shortens a result to a number
of characters; each place where something was left out says how much, and how the tool `read_result` reads on there.
Both are pure: the same result gives the same words at every request, so a provider's cache of them holds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput

SHOWN_CHARACTERS = 50_000
"""Of one result, as the model sees it."""
FIRST_SHARE = 0.8
"""Of what is shown of a long text, so much is its beginning; the rest is its end."""
READ_CHARACTERS = 20_000
"""That one call of `read_result` shows unless it asks for another number."""
SHORTEST_DATA_CHARACTERS = 1000
"""A `data:` URL of fewer is left as it is."""
DEEPEST = 200
"""Levels of a result that are recorded."""
TOO_DEEP = f"[nested deeper than {DEEPEST} levels, left out]"
LEAST_CHARACTERS = 500
"""That are shown of each long text in a structured result; with less room for each, it is shown as one text."""
DESCRIPTION = (
    "Read on in the result of an earlier call whose result was shortened: `call` is its id, `at` the place within it "
    "(as the mark says), `offset` the first character."
)

RecordedResult = Callable[[ToolCallContext, str], Awaitable[Any]]
"""The recorded result of the call with an id, in the session of a context, the newest where several have it; the ids
are those that the model sees. UNSET where there is none."""


def recordable(value: Any, *, depth: int = 0) -> Any:
    """As JSON with one canonical form. Bytes become text in which what is no UTF-8 stands as `\\xNN`; so do lone
    surrogates, as `\\udNNN`. Numbers that JSON does not have, and whatever else, become their texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, int | float):
        is_number = isfinite(value) if isinstance(value, float) else abs(value) <= MAX_INTEGER
        return value if is_number else str(value)
    return _recordable_structure(value, depth + 1) if depth < DEEPEST else TOO_DEEP


def _recordable_structure(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {recordable(str(key)): recordable(item, depth=depth) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [recordable(item, depth=depth) for item in value]
    try:
        builtins = msgspec.to_builtins(value)
    except TypeError:
        return recordable(str(value))
    return recordable(builtins, depth=depth)


def for_model(result: Any, call: str, limit: int = SHOWN_CHARACTERS) -> Any:
    """A recordable result as the model sees it: as it is where it is short, else with marks. Its form stays where a few
    texts in it are long; else it is shown as one text of JSON. `call` is the id that the model knows the call by."""
    if isinstance(result, str):
        return _shortened(result, limit, call, "")
    whole = result_text(result)
    if len(whole) <= limit:
        return result
    places = dict(_texts(result, ""))
    others = len(whole) - sum(len(msgspec.json.encode(text).decode()) for text in places.values())
    share = _share(list(places.values()), limit - others)
    if share < LEAST_CHARACTERS:
        return _shortened(whole, limit, call, "")
    return _replaced(result, "", {at: _shortened(text, share, call, at) for at, text in places.items()})


def result_text(result: Any) -> str:
    """What `read_result` reads: a text itself, anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


def _texts(value: Any, at: str) -> list[tuple[str, str]]:
    """Each text in a result, by its place as RFC 6901 writes it."""
    if isinstance(value, str):
        return [(at, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _texts(item, f"{at}/{_escaped(key)}")]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _texts(item, f"{at}/{index}")]
    return []


def _replaced(value: Any, at: str, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return texts[at]
    if isinstance(value, dict):
        return {key: _replaced(item, f"{at}/{_escaped(key)}", texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, f"{at}/{index}", texts) for index, item in enumerate(value)]
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _share(texts: Sequence[str], room: int) -> int:
    """How many characters each text may have so that together they fit: short ones leave more to long ones."""
    sizes = sorted(len(text) for text in texts)
    for index, size in enumerate(sizes):
        rest = len(sizes) - index
        if size * rest > room:
            return room // rest
        room -= size
    return room


def _shortened(text: str, limit: int, call: str, at: str) -> str:
    if text.startswith("data:") and len(text) > max(limit, SHORTEST_DATA_CHARACTERS):
        kind = text[5:100].partition(",")[0].partition(";")[0]
        return f"[{kind or 'data'} of {len(text)} characters, left out]"
    if len(text) <= limit:
        return text
    first = int(limit * FIRST_SHARE)
    last = limit - first
    place = {"call": call, **({"at": at} if at else {}), "offset": first + 1}
    left_out = len(text) - limit
    mark = f"[{left_out} of {len(text)} characters left out; read_result {json.dumps(place)} reads on]"
    return f"{text[:first]}\n{mark}\n{text[-last:]}"


class ReadResultArguments(Struct, frozen=True, forbid_unknown_fields=True):
    call: Annotated[str, Meta(min_length=1, max_length=500, description="The id of the call.")]
    at: Annotated[str, Meta(max_length=2000, description="The place in a structured result, such as /stdout.")] = ""
    offset: Annotated[int, Meta(ge=1, description="The first character, from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=40_000, description="How many characters.")] = READ_CHARACTERS


class ReadResultTool(StructTool[ReadResultArguments]):
    """Reads what is recorded, and nothing else: results of the same session, which the model was given already."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(self, recorded: RecordedResult) -> None:
        super().__init__("read_result", DESCRIPTION, ReadResultArguments)
        self._recorded = recorded

    async def plan_of(self, arguments: ReadResultArguments, context: ToolCallContext) -> CallPlan:
        exact = msgspec.to_builtins(arguments)
        shown = f"read the result of the call {arguments.call}"
        return CallPlan(tool=self.spec.name, exact=exact, subjects=(arguments.call,), shown=shown, is_read_only=True)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        call, at, offset, limit = (plan.exact[name] for name in ("call", "at", "offset", "limit"))
        result = await self._recorded(context, call)
        if result is msgspec.UNSET:
            raise ToolFailure("not_found", f"this session has no result of a call {call!r}")
        text = result_text(_at(result, at))
        if offset > len(text):
            raise ToolFailure("not_found", f"it has only {len(text)} characters")
        part = text[offset - 1 : offset - 1 + limit]
        output: dict[str, Any] = {"call": call, "characters": len(text), "offset": offset, "text": part}
        following = offset + len(part)
        if following <= len(text):
            output["more"] = f"{len(text) - following + 1} characters follow: read on with offset {following}"
        return ToolOutput(result=output)


def _at(result: Any, at: str) -> Any:
    """The value at a place that RFC 6901 writes."""
    if at and not at.startswith("/"):
        raise ToolFailure("not_found", f"a place begins with /, and {at!r} does not")
    value = result
    for name in at.split("/")[1:]:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ToolFailure("not_found", f"the result has nothing at {at!r}")
    return value
