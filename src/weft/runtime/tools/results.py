"""Results of tools as they are recorded, and the tool that reads on in one that the model was shown shortened.

`recordable` turns whatever a tool gave into JSON that has one canonical form; it is recorded whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.kernel.contents import MAX_INTEGER
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.inference.shown_results import result_text
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput

READ_CHARACTERS = 20_000
"""That one call of `read_result` shows unless it asks for another number."""
DEEPEST = 200
"""Levels of a result that are recorded."""
TOO_DEEP = f"[nested deeper than {DEEPEST} levels, left out]"
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

    def plan_of(self, arguments: ReadResultArguments) -> CallPlan:
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
