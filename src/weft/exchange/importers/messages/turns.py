"""The messages of one conversation as native turns.

A turn is known by everything before it, its prompt and the first message of its answer. So copies of a conversation
have the same turns, whatever their files are called, and two answers to one prompt are two turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET, Struct

from weft.exchange.importers.messages.conversations import TIME_FIELDS
from weft.exchange.importers.port import NativeMessage, NativeTurn, Report, Tokens
from weft.exchange.importers.records.builder import PendingCall, finished_items, identity
from weft.exchange.importers.records.values import UniqueKeys, epoch_millis, fingerprint, mapping, storable
from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.kernel.errors import InvalidInput
from weft.kernel.events import Usage
from weft.ledger.dialects import MessageTurn, TranslatedMessage, joined, split_turns, translated
from weft.ledger.model import NewMessage, Part, TextPart, ToolResultPart, ToolUsePart


class TimedMessage(TranslatedMessage, frozen=True, kw_only=True):
    """A message of a file, with the time that the file tells."""

    at: int | None = None


class SourceSpan(Struct, frozen=True):
    """Where in the source a conversation lies."""

    offset: int
    end: int


def read_messages(values: Iterable[Any], report: Report, *, counts: bool, line: int | None = None) -> list[NewMessage]:
    """The messages that can be read. `counts`: each is a record of the source, and counted as one."""
    messages: list[NewMessage] = []
    for number, value in enumerate(values, 1):
        kind = _kind(value)
        try:
            found = _translated(value, f"message {number}")
        except InvalidInput as error:
            report.problem(line, f"{error}"[:300])
            found = None
        report.found += counts
        if found is None:
            report.kept[kind] += counts
            report.unknown[kind] += counts
        else:
            report.mapped[kind] += counts
            messages += found
    return joined(messages)


def _kind(value: Any) -> str:
    fields = mapping(value)
    names = [fields.get(name) for name in ("role", "from", "type")]
    return next((str(name)[:80] for name in names if isinstance(name, str)), type(value).__name__)


def _translated(value: Any, where: str) -> list[TranslatedMessage] | None:
    fields = mapping(value)
    messages = translated(fields, MessageRole.USER, where, keeps_unknown=True) if fields else None
    if messages is None:
        return None
    times = (epoch_millis(fields.get(name)) for name in TIME_FIELDS)
    at = next((time for time in times if time is not None), None)
    if at is None:
        return messages
    return [
        TimedMessage(**{name: getattr(message, name) for name in message.__struct_fields__}, at=at)
        for message in messages
    ]


def native_turns(
    messages: list[NewMessage], place: SourceSpan, *, is_open: bool, model: str | None
) -> list[NativeTurn]:
    """`is_open`: the source may still grow by the end of the last turn."""
    turns: list[NativeTurn] = []
    keys, before = UniqueKeys(), ""
    split = split_turns(messages)
    for number, turn in enumerate(split):
        items = finished_items(list(_Items(model).all(turn)))  # whole, so that calls have their outcomes
        records = identity(items)
        beginning = [fingerprint(record.decode("utf-8", "replace"), 32) for record in records[: len(turn.query) + 1]]
        key = keys.claim(fingerprint([before, beginning], 32))
        before = fingerprint([before, [record.decode("utf-8", "replace") for record in records]], 32)
        times = [item.at for item in items if item.at is not None]
        turns.append(
            NativeTurn(
                key=key,
                records=records,
                items=items,
                parent=number - 1 if number else None,
                closed=not (is_open and number == len(split) - 1),
                started=min(times, default=None),
                ended=max(times, default=None),
                offset=place.offset,
                end=place.end,
            )
        )
    return turns


class _Items:
    """The items of one turn, while its messages are walked."""

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._waiting: dict[str, deque[PendingCall]] = {}

    def all(self, turn: MessageTurn) -> Iterator[NativeMessage | PendingCall]:
        for message in (*turn.query, *turn.response):
            parts = message.content if isinstance(message.content, tuple) else (TextPart(message.content),)
            calls = [self._call(part, message) for part in parts if isinstance(part, ToolUsePart)]
            results = [part for part in parts if isinstance(part, ToolResultPart)]
            lost = [part for part in results if not self._answer(part, _time(message))]
            rest = [part for part in parts if not isinstance(part, ToolUsePart | ToolResultPart)]
            rest += [_result_text(part) for part in lost]
            if rest or calls or not results:
                yield self._message(message, tuple(rest))
            yield from calls

    def _message(self, message: NewMessage, parts: tuple[Part, ...]) -> NativeMessage:
        is_answer = message.role == MessageRole.ASSISTANT
        usage = message.usage if isinstance(message, TranslatedMessage) else UNSET
        return NativeMessage(
            role=message.role,
            parts=parts,
            at=_time(message),
            model=message.model or (self._model if is_answer else None),
            tokens=_tokens(usage) if isinstance(usage, Usage) else None,
            finish_reason=message.finish_reason if isinstance(message, TranslatedMessage) else None,
            metadata=storable(message.metadata),
        )

    def _call(self, part: ToolUsePart, message: NewMessage) -> PendingCall:
        call = PendingCall(part.id, part.name, storable(part.input), at=_time(message))
        self._waiting.setdefault(part.id, deque()).append(call)
        return call

    def _answer(self, part: ToolResultPart, at: int | None) -> bool:
        waiting = self._waiting.get(part.tool_call_id)
        if not waiting:
            return False
        call = waiting.popleft()
        call.answer(storable(part.output), ToolCallStatus.ERROR if part.is_error is True else ToolCallStatus.OK)
        call.done = at
        return True


def _result_text(part: ToolResultPart) -> TextPart:
    """A result of which no call is known."""
    return TextPart(part.output if isinstance(part.output, str) else str(storable(part.output)))


def _time(message: NewMessage) -> int | None:
    return message.at if isinstance(message, TimedMessage) else None


def _tokens(usage: Usage) -> Tokens:
    def count(value: Any) -> int | None:
        return value if isinstance(value, int) else None

    return Tokens(
        input=count(usage.input_tokens),
        output=count(usage.output_tokens),
        cached=count(usage.cached_input_tokens),
        cache_write=count(usage.cache_write_tokens),
        cache_write_1h=count(usage.cache_write_1h_tokens),
        reasoning=count(usage.reasoning_tokens),
    )
