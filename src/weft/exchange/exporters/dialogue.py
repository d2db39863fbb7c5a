"""Turns as the APIs of models want to see them: every tool call in an assistant's message, every result right after it.

A result may stand in the turn after its call, where each exchange with an API was recorded as a turn: it is moved.

Ledgers also hold what no API takes: calls that were cut off, results without a call, a call in somebody else's words.
An open call gets a result that says `interrupted`; what has no place of its own becomes text where it stands. So of
the messages that come out of here, those of role `tool` answer all calls of the assistant's message before them and
nothing else, and no other message holds a result.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from msgspec import UNSET, Struct

from weft.exchange.edits.arguments import opened
from weft.exchange.exporters.results import as_json, is_deep, result_text
from weft.ledger.api import FullTurn, Item
from weft.ledger.model import Message, Part, TextPart, ToolCall, ToolResultPart, ToolUsePart

INTERRUPTED = "interrupted"
NAME_LENGTH = 64
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OURS = re.compile(r"weft_\d+")
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


class Spoken(Struct):
    """A message for an API."""

    role: str
    parts: list[Part]
    message: Message | None = None
    """The recorded one, where there is one."""


class ExportCallIds:
    """Ids of calls, each once in an export: the origin's own where it can stand, else one of ours.

    Of every id that was given a bit is remembered, in a table that never grows. Two ids may share one; then the later
    gets a name of ours too, which does no harm.
    """

    BITS = 2**23

    def __init__(self) -> None:
        self._seen, self._made = bytearray(self.BITS // 8), 0

    def take(self, native: str) -> str:
        if _ID.fullmatch(native) and not _OURS.fullmatch(native) and not self._known(native):
            return native
        self._made += 1
        return f"weft_{self._made}"

    def _known(self, native: str) -> bool:
        place = int.from_bytes(sha256(native.encode()).digest()[:4], "big") % self.BITS
        byte, bit = place // 8, 1 << place % 8
        known = bool(self._seen[byte] & bit)
        self._seen[byte] |= bit
        return known


def tool_name(name: str) -> str:
    """A tool's name in the letters that APIs take."""
    return _NO_NAME.sub("_", name)[:NAME_LENGTH] or "tool"


def tool_input(value: Any) -> dict[str, Any]:
    """A call's arguments as the object that APIs want."""
    found = opened(value)
    if isinstance(found, dict) and not is_deep(found):
        return found
    return {} if found is None else {"input": value}


def dialogues(turns: Iterable[FullTurn], ids: ExportCallIds) -> Iterator[tuple[FullTurn, Iterator[Spoken]]]:
    """Each turn with its messages, to be walked before the next one."""
    ahead: Counter[str] = Counter()
    before: FullTurn | None = None
    for turn in turns:
        if before is not None:
            yield before, _Dialogue(before.items, ids, turn.items, ahead).spoken(before.items)
        before = turn
    if before is not None:
        yield before, _Dialogue(before.items, ids, (), ahead).spoken(before.items)


class _Dialogue:
    def __init__(
        self, items: Sequence[Item], ids: ExportCallIds, following: Sequence[Item], ahead: Counter[str]
    ) -> None:
        """`following` are the items of the next turn; `ahead` counts results that were moved out of a turn before it
        was walked, by the id of their call."""
        self._ids, self._ahead = ids, ahead
        self._later: dict[str, deque[ToolResultPart]] = {}
        for part in _leading_results(following):
            self._later.setdefault(part.tool_call_id, deque()).append(part)
        self._calls: dict[str, deque[ToolCall]] = {}
        self._results: dict[str, deque[ToolResultPart]] = {}
        self._spelled = Counter(use.id for use in _uses(items))
        for item in items:
            if isinstance(item, ToolCall):
                self._calls.setdefault(item.call_id, deque()).append(item)
        self._gather(items)
        self._asking: Spoken | None = None
        self._answers: list[Part] = []

    def _gather(self, items: Sequence[Item]) -> None:
        """The results that will be moved to their calls; there may be more of them than calls."""
        wanted = self._spelled | Counter({id: len(calls) for id, calls in self._calls.items()})
        for part in _parts(items, ToolResultPart):
            found = self._results.setdefault(part.tool_call_id, deque())
            if len(found) < wanted[part.tool_call_id]:
                found.append(part)
        self._moved = Counter({id: len(found) for id, found in self._results.items()})

    def spoken(self, items: Sequence[Item]) -> Iterator[Spoken]:
        for item in items:
            if isinstance(item, ToolCall):
                self._call(item)
            elif item.role == "assistant" and item.sequence < 0 and self._asking is not None:
                self._asking.parts += self._assistant(item)  # it stands for calls of the message before it
            elif item.role == "assistant":
                yield from self._asked()
                self._asking = Spoken("assistant", [*self._assistant(item)], item)
            else:
                yield from self._asked()
                parts = [self._plain(part) for part in item.content if not self._is_moved(part)]
                if parts or not item.content:
                    yield Spoken("user" if item.role == "tool" else item.role, parts, item)
        yield from self._asked()

    def _asked(self) -> Iterator[Spoken]:
        """The assistant's message that was waiting for its calls, and what they gave back."""
        if self._asking is not None:
            yield self._asking
        if self._answers:
            yield Spoken("tool", self._answers)
        self._asking, self._answers = None, []

    def _call(self, call: ToolCall) -> None:
        """A call that no message spells out joins the assistant's message before it."""
        if self._spelled[call.call_id]:
            self._spelled[call.call_id] -= 1
            return
        if self._asking is None:
            self._asking = Spoken("assistant", [])
        self._asking.parts.append(self._use(ToolUsePart(call.call_id, call.name, call.arguments)))

    def _assistant(self, message: Message) -> Iterator[Part]:
        for part in message.content:
            if isinstance(part, ToolUsePart):
                yield self._use(part)
            elif not self._is_moved(part):
                yield self._plain(part, uses=False)

    def _use(self, part: ToolUsePart) -> ToolUsePart:
        id = self._ids.take(part.id)
        self._answers.append(self._answer(part.id, id))
        return ToolUsePart(id, tool_name(part.name), tool_input(part.input))

    def _answer(self, native: str, id: str) -> ToolResultPart:
        calls, results = self._calls.get(native), self._results.get(native)
        call = calls.popleft() if calls else None
        if results:
            part = results.popleft()
            return ToolResultPart(id, part.output, part.is_error)
        if call is None and (later := self._later.get(native)):
            self._ahead[native] += 1
            part = later.popleft()
            return ToolResultPart(id, part.output, part.is_error)
        if call is None or call.outcome in (None, INTERRUPTED):
            return ToolResultPart(id, INTERRUPTED, True)
        if call.outcome == "ok":
            return ToolResultPart(id, call.result)
        return ToolResultPart(id, call.error if call.result is None else call.result, True)

    def _is_moved(self, part: Part) -> bool:
        if not isinstance(part, ToolResultPart):
            return False
        moved = self._ahead if self._ahead[part.tool_call_id] else self._moved
        if not moved[part.tool_call_id]:
            return False
        moved[part.tool_call_id] -= 1
        return True

    @staticmethod
    def _plain(part: Part, *, uses: bool = True) -> Part:
        """A part that may stand in any message."""
        if isinstance(part, ToolResultPart):
            return TextPart(f"[result of tool call {part.tool_call_id}]\n{result_text(part.output)}")
        if uses and isinstance(part, ToolUsePart):
            return TextPart(f"[tool call {part.id}: {part.name}]\n{as_json(part.input)}")
        return part


def _uses(items: Iterable[Item]) -> Iterator[ToolUsePart]:
    answers = [item for item in items if isinstance(item, Message) and item.role == "assistant"]
    return (part for message in answers for part in message.content if isinstance(part, ToolUsePart))


def _parts(items: Iterable[Item], kind: type[ToolResultPart]) -> Iterator[ToolResultPart]:
    messages = (item for item in items if isinstance(item, Message))
    return (part for message in messages for part in message.content if isinstance(part, kind))


def _leading_results(items: Iterable[Item]) -> Iterator[ToolResultPart]:
    """Results that a turn begins with."""
    for item in items:
        if not isinstance(item, Message) or item.role not in ("tool", "system"):
            return
        yield from (part for part in item.content if isinstance(part, ToolResultPart))


def is_failed(part: ToolResultPart) -> bool:
    return part.is_error is not UNSET and part.is_error is True
