"""Making turns of the records that the index has put together."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.chat import added
from weft.exchange.importers.pi.calls import Call, call_of, done_at
from weft.exchange.importers.pi.content import said
from weft.exchange.importers.pi.injected import injected
from weft.exchange.importers.pi.responses import response, tokens, trouble
from weft.exchange.importers.transcript import Item, NativeMessage, Tokens
from weft.exchange.importers.values import canonical, mapping, millis, present, text
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

SOURCES = {"user": MessageSource.HUMAN, "agent": MessageSource.AGENT}


class Making(Struct):
    """A turn under way."""

    starts: dict[str, int]
    items: list[NativeMessage | Call] = field(default_factory=list)
    waiting: dict[str, list[Call]] = field(default_factory=dict)
    """Calls without an outcome, by their ids, which may repeat."""
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    summary: str = ""
    compaction: dict[str, Any] | None = None
    error: str | None = None
    is_interrupted: bool = False

    def take(self, kind: str, entry: dict[str, Any]) -> None:
        """One entry more."""
        if (when := millis(entry.get("timestamp"))) is not None:
            self.times.append(when)
        if kind == "message.assistant":
            self._response(entry)
        elif kind == "message.toolResult":
            self._result(entry)
        elif kind == "message.user":
            self._prompt(entry)
        elif kind == "compaction":
            self._compaction(entry)
        else:
            reduced, message = injected(kind, entry)
            self._add(reduced, message)

    def forget_costs(self) -> None:
        """Of responses that another turn has told already: they were paid for once."""
        for number, item in enumerate(self.items):
            if isinstance(item, NativeMessage) and item.tokens is not None:
                self.items[number] = replace(item, tokens=None)

    def finished(self) -> tuple[Item, ...]:
        return tuple(item.made() if isinstance(item, Call) else item for item in self.items)

    def _add(self, reduced: list[Any], message: NativeMessage) -> None:
        self.records.append(canonical(reduced))
        self.items.append(message)

    def _prompt(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = said(message.get("content"))
        id = text(entry.get("id"))
        made = NativeMessage(
            role=MessageRole.USER,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            source=SOURCES.get(text(message.get("attribution")) or "user", MessageSource.HUMAN),
            metadata=present(blocks=content.elsewhere),
        )
        self._add(["user", id, content.reduced], made)

    def _response(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        content = said(message.get("content"))
        self.error, self.is_interrupted = trouble(message)
        id = text(entry.get("id"))
        reduced = ["assistant", id, content.reduced]
        if self.error is not None or self.is_interrupted:
            reduced += [message.get("stopReason"), self.error]
        self._add(reduced, response(entry, message, content))
        asked_by = len(self.items) - 1
        for call in (call_of(block, self.starts) for block in content.calls):
            call.asked_by = asked_by
            self.items.append(call)
            self.waiting.setdefault(call.id, []).append(call)

    def _result(self, entry: dict[str, Any]) -> None:
        message = mapping(entry.get("message"))
        called = text(message.get("toolCallId")) or ""
        content = said(message.get("content"))
        id = text(entry.get("id"))
        reduced = ["result", id, called, content.reduced, message.get("isError") is True]
        if waiting := self.waiting.get(called):
            call = waiting.pop(0)
            call.outcome, call.done = message, done_at(entry, message)
            self._charge(call, message)
            self.records.append(canonical(reduced))
            return
        made = NativeMessage(
            role=MessageRole.TOOL,
            parts=tuple(content.parts),
            native=id,
            at=done_at(entry, message),
            tokens=tokens(message.get("usage")),
            metadata=present(
                call=called, tool=message.get("toolName"), details=message.get("details"), blocks=content.elsewhere
            ),
        )
        self._add(reduced, made)

    def _charge(self, call: Call, message: dict[str, Any]) -> None:
        """A tool may ask models itself: what that took counts with the response that asked for the tool."""
        asker, spent = self.items[call.asked_by], tokens(message.get("usage"))
        if spent is not None and isinstance(asker, NativeMessage):
            self.items[call.asked_by] = replace(asker, tokens=added(asker.tokens or Tokens(), spent))

    def _compaction(self, entry: dict[str, Any]) -> None:
        self.compaction = entry
        summary = entry.get("summary")
        self.summary = summary if isinstance(summary, str) else ""
        id = text(entry.get("id"))
        kept = entry.get("firstKeptEntryId", entry.get("firstKeptEntryIndex"))
        made = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=(TextPart(self.summary),) if self.summary else (),
            native=id,
            at=millis(entry.get("timestamp")),
            tokens=tokens(entry.get("usage")),
        )
        self._add(["compaction", id, self.summary, kept], made)
