"""Results of tools as they are recorded, with a mark for each secret, and tools that work on them.

The secrets are found in `ledger.secrets.scan`; what is too long is shortened when a model is asked, in
`inference.model_requests`, and a model can read on in it. The agent's own list of what is to be done,
of the tool `todo`, is such a result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import ToolCallStatus
from weft.ledger.api import Ledger
from weft.ledger.model import SentResult, ToolCall
from weft.runtime.inference.model_requests import IMAGES, count_result_images, result_text, with_images
from weft.runtime.ledger_port import Executor
from weft.runtime.tool.tool_contract import CallPlan, StructTool, ToolCallContext, ToolFailure, ToolOutput, in_thread

if TYPE_CHECKING:
    from weft.ledger.secrets import KnownSecrets


# --- Results of tools as they are recorded, and the tool that reads on in one that the model was shown shortened.

READ_CHARACTERS = 20_000
"""That one call of `read_result` shows unless it asks for another number."""
DEEPEST = 200
"""Levels of a result that are recorded."""
TOO_DEEP = f"[nested deeper than {DEEPEST} levels, left out]"
READ_RESULT_DESCRIPTION = (
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
        super().__init__("read_result", READ_RESULT_DESCRIPTION, ReadResultArguments)
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
        text = result_text(_value_at(result, at))
        if offset > len(text):
            raise ToolFailure("not_found", f"it has only {len(text)} characters")
        part = text[offset - 1 : offset - 1 + limit]
        output: dict[str, Any] = {"call": call, "characters": len(text), "offset": offset, "text": part}
        following = offset + len(part)
        if following <= len(text):
            output["more"] = f"{len(text) - following + 1} characters follow: read on with offset {following}"
        return ToolOutput(result=output)


def _value_at(result: Any, at: str) -> Any:
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


# --- Secrets in results of tools: a model is sent a mark in the place of each.

SHORTEST_RESULT = 16
"""Characters; a shorter one holds no secret that a rule knows, and loads no rules."""
NO_RULES = "none"
"""Recorded where no rules could be asked."""
Ignored = Callable[[Sequence[str]], Collection[str]]
"""Which of some credentials a person said are none: they are sent."""


class ResultSecrets:
    """Takes secrets out of results, and remembers them while the process lives: one that a rule knew by the words
    around it is also taken out where it stands alone."""

    def __init__(self) -> None:
        self._known: KnownSecrets | None = None
        self._loading = Lock()

    async def sent_instead(self, result: Any, folder: Path | None, ignored: Ignored) -> SentResult | None:
        """What is sent in the place of a recordable result; None where that is sent itself. `folder` is where compiled
        rules are kept."""
        fields, images = result, None
        if count_result_images(result):
            fields = {name: value for name, value in result.items() if name != IMAGES}
            images = result[IMAGES]
        if _character_count(fields) < SHORTEST_RESULT:
            return None
        sent = await in_thread(partial(self._mark_result, fields, folder, ignored))
        return sent if sent is None or images is None else SentResult(with_images(sent.value, images), sent.rules)

    def _mark_result(self, result: Any, folder: Path | None, ignored: Ignored) -> SentResult | None:
        # loaded for the first result, not for each message
        from weft.ledger.secrets import KnownSecrets, load_rules, mark_secrets

        with self._loading:  # once; whoever has a long result keeps nobody else waiting
            rules = load_rules(folder)
            self._known = known = KnownSecrets() if self._known is None else self._known
        return mark_secrets(result, rules, known, ignored)


def unchecked(error: Exception) -> SentResult:
    """What is sent of a result that could not be looked through."""
    why = f"it could not be looked through for secrets, {type(error).__name__}"
    return SentResult(f"[this result is left out: {why}]", NO_RULES)


def _character_count(value: Any) -> int:
    """How many there are in a result, in its texts and in the names of its fields."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _character_count(item) for name, item in value.items())
    return sum(map(_character_count, value)) if isinstance(value, list) else 0


# --- What the calls of a session's past gave, as tools ask for it: by the id of a call, or the last one of a tool.

MOST_TURNS = 10_000
"""That are looked through, the newest first."""


class RecordedCalls:
    """Reads one ledger with the rights that it was opened with."""

    def __init__(self, ledger: Ledger, crossing: Executor) -> None:
        self._ledger, self._crossing = ledger, crossing

    async def result(self, context: ToolCallContext, call: str) -> Any:
        """The result of the newest call with this id that succeeded; UNSET where there is none."""

        def find() -> Any:
            return self._first_result(context, lambda recorded: call in (recorded.call_id, recorded.id))

        return await self._crossing.run(find)

    async def last_result(self, context: ToolCallContext, tool: str) -> Any:
        """The result of the last call of a tool that succeeded; UNSET where there is none."""

        def find() -> Any:
            return self._first_result(context, lambda recorded: recorded.name == tool)

        return await self._crossing.run(find)

    def _first_result(self, context: ToolCallContext, fits: Callable[[ToolCall], bool]) -> Any:
        calls = (call for call in self._calls_back(context.turn) if call.outcome == ToolCallStatus.OK and fits(call))
        return next((call.result for call in calls), UNSET)

    def _calls_back(self, turn: str) -> Iterator[ToolCall]:
        """A turn that a fork left in its middle is read up to there."""
        thread = self._ledger.thread(turn)
        turns, cuts = list(thread.ancestry), thread.cuts
        for ancestor in islice(reversed(turns), MOST_TURNS):
            yield from reversed(self._ledger.tool_calls(cuts.get(ancestor, ancestor)))


# --- The tool `todo`: the agent's own list of what is to be done.

MOST_ITEMS = 100
TODO_DESCRIPTION = (
    "Keep a list of what is to be done. `items` replaces the whole list; without it the list is shown. At most one "
    "item is in_progress. Use it for work of several steps, and update it as soon as a step is done."
)

LastResult = Callable[[ToolCallContext, str], Awaitable[Any]]
"""The result of the last call of a tool that succeeded, on the path of a context's turn; UNSET where there is none."""


class TodoStatus(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DROPPED = "dropped"


class TodoItem(Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=1000)]
    status: TodoStatus = TodoStatus.PENDING


class TodoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[tuple[TodoItem, ...], Meta(max_length=MOST_ITEMS, description="The whole list.")] | None = None


class TodoTool(StructTool[TodoArguments]):
    """Changes nothing but what is recorded of its own calls."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(self, last_result: LastResult) -> None:
        super().__init__("todo", TODO_DESCRIPTION, TodoArguments)
        self._last_result = last_result

    def plan_of(self, arguments: TodoArguments) -> CallPlan:
        items = arguments.items
        if items is not None and sum(item.status is TodoStatus.IN_PROGRESS for item in items) > 1:
            raise ToolFailure("invalid_arguments", "at most one item is in_progress")
        exact = {"items": None if items is None else recordable(msgspec.to_builtins(items))}
        shown = "show the list" if items is None else "\n".join(f"{item.status}: {item.text}" for item in items)
        return CallPlan(tool=self.spec.name, exact=exact, shown=shown, is_read_only=True)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        items = plan.exact["items"]
        if items is None:
            items = items_of(await self._last_result(context, self.spec.name))
        return ToolOutput(result={"items": items}, is_untrusted=False)


def items_of(result: Any) -> list[dict[str, str]]:
    """The list in a recorded result; an empty one where there is none."""
    try:
        recorded = msgspec.convert(result, TodoArguments)
    except msgspec.ValidationError:
        return []
    return [msgspec.to_builtins(item) for item in recorded.items or ()]
