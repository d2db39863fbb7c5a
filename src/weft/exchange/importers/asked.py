"""A tool call whose outcome is told later, by another record."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from weft.exchange.importers.transcript import NativeCall
from weft.kernel.enums import ToolCallStatus
from weft.ledger.model import FileNote


class Asked(Struct):
    """What was asked for, and what came of it so far."""

    id: str
    name: str
    arguments: Any
    result: Any = UNSET
    error: str | None = None
    status: ToolCallStatus | None = None
    at: int | None = None
    done: int | None = None
    spawned: str | None = None
    detail: Any = None
    files: tuple[FileNote, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.status is None

    def answer(self, result: Any, status: ToolCallStatus = ToolCallStatus.OK) -> None:
        self.result, self.status = result, status

    def fail(self, error: str, status: ToolCallStatus = ToolCallStatus.ERROR) -> None:
        self.error, self.status = error, status

    def made(self) -> NativeCall:
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=self.result,
            error=self.error,
            status=self.status,
            at=self.at,
            done=self.done,
            spawned=self.spawned,
            detail=self.detail,
            files=self.files,
        )
