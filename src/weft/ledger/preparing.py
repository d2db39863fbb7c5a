"""Contents encoded, hashed and salted before the writers' lock is taken, found again when their events are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from weft.kernel.contents import Prepared, json_bytes, text_bytes
from weft.ledger.model import NewMessage, NewToolCall
from weft.store.facts import Key


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
