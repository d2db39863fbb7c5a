"""A run under way: messages in order, each call with the outcome that a later message brings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.transcript import Item, NativeCall, NativeMessage
from weft.kernel.enums import ToolCallStatus
from weft.ledger.model import FileNote

TIMED_OUT = ("EXECUTION TIMED OUT", "timed out and has been killed", "was cancelled because it took more than")
"""How a tool's words tell that a command took too long."""


class Asked(Struct):
    """A call whose outcome may still be found."""

    id: str
    name: str
    arguments: Any
    result: Any = UNSET
    error: str | None = None
    at: int | None = None
    done: int | None = None
    detail: Any = None
    files: tuple[FileNote, ...] = ()

    def made(self) -> NativeCall:
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=self.result,
            error=self.error,
            status=self._status(),
            at=self.at,
            done=self.done,
            detail=self.detail,
            files=self.files,
        )

    def _status(self) -> ToolCallStatus | None:
        if self.error is not None:
            return ToolCallStatus.ERROR
        if self.result is UNSET:
            return None
        words = self.result if isinstance(self.result, str) else ""
        is_late = any(sign in words[:400] or sign in words[-400:] for sign in TIMED_OUT)
        return ToolCallStatus.TIMEOUT if is_late else ToolCallStatus.OK


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
        return next((call for call in named if call.result is UNSET and call.error is None), None)

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
