"""A turn's contents before the writers' lock is taken: encoded, hashed, weighed; very large ones are stored first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from weft.kernel.contents import ROW_BYTES, Prepared, json_bytes, text_bytes
from weft.ledger.model import NewMessage, NewToolCall, ReasoningPart, TextPart, ToolResultPart
from weft.store.records import Key


class Preparation:
    """Keyed by the identity of the caller's own objects, which the turn that is recorded keeps alive."""

    def __init__(self, prepare: Callable[[bytes], Prepared], scope: int | None) -> None:
        self._prepare, self._scope = prepare, scope
        self.texts: dict[int, Prepared] = {}
        self.values: dict[int, Prepared] = {}

    def messages(self, messages: Iterable[NewMessage]) -> None:
        for message in messages:
            if isinstance(message.content, str):
                self._text(message.content)

    def calls(self, calls: Iterable[NewToolCall]) -> None:
        for call in calls:
            if isinstance(call.id, str) and call.id:
                self._text(call.id)
            if isinstance(call.arguments, dict):
                self._value(call.arguments, "arguments")
            if isinstance(call.result, str | dict | list):
                self._value(call.result, "result")

    def _text(self, text: str) -> None:
        self.texts[id(text)] = self._prepare(text_bytes(text))

    def _value(self, value: Any, what: str) -> None:
        self.values[id(value)] = self._prepare(json_bytes(value, what))

    def keys(self) -> list[Key]:
        """By what they are looked up in the tree, where it is known."""
        if self._scope is None:
            return []
        return [(self._scope, found.digest) for held in (self.texts, self.values) for found in held.values()]


SUSPECT = ROW_BYTES // 6
"""No text shorter than this takes more than a row, whatever its characters need as UTF-8 or as JSON."""


class Weight(Struct, frozen=True):
    size: int
    large: tuple[bytes, ...]


def weigh(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Weight:
    size = 0
    large: list[bytes] = []
    for text, is_json in _texts(messages, calls):
        size += len(text)
        if len(text) > SUSPECT:
            data = json_bytes(text, "result") if is_json else text_bytes(text)
            if len(data) > ROW_BYTES:
                large.append(data)
    return Weight(size, tuple(large))


def _texts(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Iterator[tuple[str, bool]]:
    """Every string of some length, and whether it is stored as JSON."""
    for message in messages:
        if isinstance(message.content, str):
            yield message.content, False
        elif isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, TextPart | ReasoningPart) and isinstance(part.text, str):
                    yield part.text, False
                elif isinstance(part, ToolResultPart) and isinstance(part.output, str):
                    yield part.output, True
    for call in calls:
        if isinstance(call.result, str):
            yield call.result, True
