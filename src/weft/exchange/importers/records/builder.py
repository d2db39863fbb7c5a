"""Native turns built record by record.

A builder is given the records of one turn in order. It gathers the items (messages and calls), the identity of each
record, and the times; an outcome that a later record tells is put into the call that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct, field, to_builtins
from msgspec.structs import replace

from weft.exchange.importers.port import Item, NativeCall, NativeMessage, NativeTurn
from weft.exchange.importers.records.planned_turns import Entry, PlannedTurn
from weft.exchange.importers.records.values import canonical, millis
from weft.kernel.enums import ToolCallStatus
from weft.ledger.model import FileNote, LintNote, Part, TextPart


class PendingCall(Struct):
    """A tool call whose outcome a later record may tell."""

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
    lints: tuple[LintNote, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.status is None

    def answer(self, result: Any, status: ToolCallStatus = ToolCallStatus.OK) -> None:
        self.result, self.status = result, status

    def fail(self, error: str, status: ToolCallStatus = ToolCallStatus.ERROR) -> None:
        self.error, self.status = error, status

    def finished(self) -> NativeCall:
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
            lints=self.lints,
        )


class MessageContent(Struct):
    """What the content of one message holds."""

    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Blocks that ask for a tool."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """Blocks with what tools gave back."""
    identity: list[Any] = field(default_factory=list)
    """Every block, reduced to what identifies it."""
    other_blocks: list[Any] = field(default_factory=list)
    """Blocks that no part can hold, as they are."""

    @property
    def texts(self) -> list[str]:
        return [str(part.text) for part in self.parts if isinstance(part, TextPart)]

    def add_text(self, words: str) -> None:
        self.identity.append(["text", words])
        if words:
            self.parts.append(TextPart(words))

    def add_other(self, block: Any) -> None:
        self.other_blocks.append(block)
        self.identity.append(block)


def finished_items(items: Iterable[NativeMessage | PendingCall]) -> tuple[Item, ...]:
    return tuple(item.finished() if isinstance(item, PendingCall) else item for item in items)


class TurnBuilder(Struct, kw_only=True):
    """A turn while its records are read. An origin's builder adds `take`, which maps one record or message."""

    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """The identity of each record, reduced to native ids and contents."""
    times: list[int] = field(default_factory=list)
    error: str | None = None
    is_interrupted: bool = False

    def note_time(self, value: Any) -> None:
        if (at := millis(value)) is not None:
            self.times.append(at)

    def add(self, identity: list[Any], message: NativeMessage) -> None:
        self.records.append(canonical(identity))
        self.items.append(message)

    def add_identity(self, *identity: Any) -> None:
        """Of a record that adds no item of its own."""
        self.records.append(canonical(list(identity)))

    def forget_costs(self) -> None:
        """Remove the token counts of responses that another turn has too: they were paid for once."""
        for number, item in enumerate(self.items):
            if isinstance(item, NativeMessage) and item.tokens is not None:
                self.items[number] = replace(item, tokens=None)

    def turn(self, planned: PlannedTurn, entries: list[Entry], **fields: Any) -> NativeTurn:
        """The native turn; `entries` are those of the plan, `fields` what the origin knows besides."""
        fresh = entries[planned.shared :]
        fields.setdefault("started", min(self.times, default=None))
        fields.setdefault("ended", max(self.times, default=None))
        return NativeTurn(
            key=planned.key,
            records=tuple(self.records) or (canonical([planned.key]),),
            items=finished_items(self.items),
            parent=planned.parent,
            error=None if self.is_interrupted else self.error,
            interrupted=self.is_interrupted,
            offset=min((entry.offset for entry in fresh), default=0),
            end=max((entry.end for entry in fresh), default=0),
            **fields,
        )


def identity(items: Iterable[Item]) -> tuple[bytes, ...]:
    """The identity of a turn whose items say all of it: one record for each item."""
    return tuple(canonical(_item_identity(item)) for item in items)


def _item_identity(item: Item) -> list[Any]:
    if isinstance(item, NativeMessage):
        return [item.role, item.native, [to_builtins(part) for part in item.parts]]
    result = [] if item.result is UNSET else [item.result]
    return ["call", item.id, item.name, item.arguments, result, item.error, item.status]
