"""A turn of a droid, record by record."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.factory_droid import contents
from weft.exchange.importers.factory_droid.kinds import HUMAN, Standing, blocks, is_injected
from weft.exchange.importers.transcript import Item, NativeCall, NativeCompaction, NativeMessage
from weft.exchange.importers.values import canonical, mapping, millis, present, text, whole
from weft.kernel.enums import MessageRole, MessageSource

FAILED = ("error", "fail", "timeout", "limit")
STOPPED = ("interrupt", "cancel", "abort", "reject", "stop")


class Setting(Struct, frozen=True):
    """What holds for every message of a session."""

    model: str | None = None
    provider: str | None = None
    is_subagent: bool = False


class Making(Struct):
    """A turn under way."""

    setting: Setting
    items: list[Item] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    compaction: NativeCompaction | None = None
    anchor: str | None = None
    reason: str | None = None
    result: Any = None

    def take(self, value: dict[str, Any], standing: Standing) -> None:
        message, at = mapping(value.get("message")), millis(value.get("timestamp"))
        if at is not None:
            self.times.append(at)
        if (id := text(value.get("id"))) is not None:
            self.names.append(id)
        if standing is Standing.COMPACTION:
            self._sum_up(value)
            return
        self.records.append(canonical([message.get("role"), id, [_reduced(block) for block in blocks(message)]]))
        if standing in (Standing.PROMPT, Standing.INJECTED):
            self.items.append(self._asked(message, id, at))
        elif message.get("role") == "assistant":
            self.items += self._answered(message, id, at)
        for block in contents.outcomes(message):
            self._settle(block, at)

    def _asked(self, message: dict[str, Any], id: str | None, at: int | None) -> NativeMessage:
        is_own = not is_injected(message) and message.get("role") == "user"
        attached, notes = contents.documents(message)
        hook = {name: each for name, each in message.items() if name.startswith("hook")}
        return NativeMessage(
            role=MessageRole.SYSTEM if message.get("role") == "system" else MessageRole.USER,
            parts=tuple(contents.parts(message, is_prompt=is_own)),
            native=id,
            at=at,
            source=self._source(message) if is_own else MessageSource.EVENT,
            context=present(reminders=contents.reminders(message) if is_own else None),
            metadata=present(
                visibility=message.get("visibility"),
                source=message.get("userMessageSource"),
                hook=hook,
                documents=attached,
                blocks=contents.others(message),
            ),
            files=tuple(notes),
        )

    def _source(self, message: dict[str, Any]) -> MessageSource:
        told = text(message.get("userMessageSource"))
        if told is not None and told not in HUMAN:
            return MessageSource.TRIGGER
        return MessageSource.AGENT if self.setting.is_subagent else MessageSource.HUMAN

    def _answered(self, message: dict[str, Any], id: str | None, at: int | None) -> list[Item]:
        answer = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(contents.parts(message, is_prompt=False)),
            native=id,
            at=at,
            model=text(message.get("modelId")) or text(message.get("model")) or self.setting.model,
            provider=text(message.get("apiProvider")) or self.setting.provider,
            metadata=present(
                effort=message.get("reasoningEffort"),
                router=message.get("routerId"),
                response=message.get("openaiMessageId"),
                reasoning=message.get("openaiReasoningSummary"),
                blocks=contents.others(message),
            ),
        )
        return [answer, *contents.calls(message, at)]

    def _settle(self, block: dict[str, Any], at: int | None) -> None:
        """The outcome of the call that it names, of those with this id the first that waits."""
        id = text(block.get("tool_use_id"))
        for place, item in enumerate(self.items):
            if isinstance(item, NativeCall) and item.status is None and item.id == id:
                self.items[place] = replace(item, **contents.settled(item, block, at))
                return

    def _sum_up(self, value: dict[str, Any]) -> None:
        """Newer versions have the words beside the record, older ones a title and a body."""
        told = mapping(value.get("summary"))
        found = (
            text(value.get("summaryText")),
            text(value.get("summary")),
            text(told.get("body")),
            text(told.get("title")),
        )
        words = next((each for each in found if each), "")
        self.anchor = text(mapping(value.get("anchorMessage")).get("id"))
        self.records.append(canonical(["summary", text(value.get("id")), words, self.anchor]))
        self.compaction = NativeCompaction(
            summary=words,
            tokens_after=whole(value.get("summaryTokens")),
            metadata=present(kind=value.get("summaryKind"), removed=value.get("removedCount"), title=told.get("title")),
        )

    def end(self, value: dict[str, Any]) -> None:
        """How the turn ended, in the tool's own words."""
        self.reason = text(value.get("reason")) or "ended"
        self.result = present(kind=value.get("resultKind"), result=value.get("result"))
        self.records.append(canonical(["ended", self.reason, self.result]))
        error = text(value.get("error")) or text(mapping(value.get("error")).get("message"))
        if error is not None:
            self.reason = f"{self.reason}: {error}" if self.has_failed else f"error: {error}"

    @property
    def has_failed(self) -> bool:
        return self.reason is not None and any(word in self.reason.lower() for word in FAILED)

    @property
    def was_stopped(self) -> bool:
        return not self.has_failed and any(word in (self.reason or "").lower() for word in STOPPED)


def _reduced(block: dict[str, Any]) -> Any:
    """What makes the identity of a block: not the provider's signatures, which are made anew."""
    beside = ("signature", "signatureProvider", "durationMs", "thought_signature", "cache_control")
    return {name: value for name, value in block.items() if name not in beside}
