"""A run under way: messages in order, each call with the outcome that a later message brings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.asked import Asked
from weft.exchange.importers.transcript import Item, NativeMessage
from weft.kernel.enums import ToolCallStatus
from weft.ledger.model import FileNote

TIMED_OUT = ("EXECUTION TIMED OUT", "timed out and has been killed", "was cancelled because it took more than")
"""How a tool's words tell that a command took too long."""


def answer(call: Asked, result: Any) -> None:
    words = result if isinstance(result, str) else ""
    is_late = any(sign in words[:400] or sign in words[-400:] for sign in TIMED_OUT)
    call.answer(result, ToolCallStatus.TIMEOUT if is_late else ToolCallStatus.OK)


class Making(Struct):
    """The items of a run so far."""

    items: list[NativeMessage | Asked] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    """Calls of the last response."""

    def say(self, message: NativeMessage, calls: Iterable[Asked] = ()) -> None:
        self.items.append(message)
        self.asked = list(calls)
        self.items += self.asked

    def waiting(self, ids: Iterable[Any] = ()) -> Asked | None:
        """The call that an outcome belongs to: the one it names, else the first that has none."""
        named = [call for call in self.asked if call.id in set(ids)] if ids else self.asked
        return next((call for call in named if call.is_open), None)

    def finished(self) -> list[Item]:
        return [item.made() if isinstance(item, Asked) else item for item in self.items]


def with_files(items: list[Item], files: tuple[FileNote, ...]) -> list[Item]:
    """Files that the run as a whole changed, told with its last response."""
    for number in range(len(items) - 1, -1, -1):
        item = items[number]
        if isinstance(item, NativeMessage) and item.role == "assistant":
            items[number] = replace(item, files=(*item.files, *files))
            break
    return items
