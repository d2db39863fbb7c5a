"""A provider's response and its tool calls, gathered from the items that Codex writes one by one.

Codex names no response. One is an unbroken run of what a model gives (messages, reasoning, calls): a tool result, any
message of another role, a compaction or the turn's end begins another. This rests on the items alone, so a copy
without reports of usage is grouped alike; over the corpus no run ever held more than one report.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.codex.contents import Content, content_of, thought_parts, thoughts_of
from weft.exchange.importers.codex.kinds import Entry
from weft.exchange.importers.codex.values import object_text, present
from weft.exchange.importers.transcript import NativeCall, NativeMessage, Tokens
from weft.exchange.importers.values import text
from weft.kernel.enums import MessageRole, ToolCallStatus
from weft.ledger.model import FileNote, Part

_MESSAGE_FIELDS = frozenset(
    "type id role content phase status timestamp internal_chat_message_metadata_passthrough metadata".split()
)


class Call(Struct, kw_only=True):
    """A tool call while its outcome is still coming in."""

    id: str
    name: str
    arguments: Any
    plain: list[Any]
    """Its identity: kind, ids, name and arguments as written, then its output."""
    at: int | None
    result: Any = UNSET
    status: ToolCallStatus | None = None
    error: str | None = None
    done: int | None = None
    spawned: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    files: list[FileNote] = field(default_factory=list)

    def native(self) -> NativeCall:
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
            detail=self.detail or None,
            files=tuple(dict.fromkeys(self.files)),
        )


_NAMES = {
    "local_shell_call": "local_shell",
    "web_search_call": "web_search",
    "tool_search_call": "tool_search",
    "image_generation_call": "image_generation",
}
_ENDED = {
    "completed": ToolCallStatus.OK,
    "failed": ToolCallStatus.ERROR,
    "incomplete": ToolCallStatus.INTERRUPTED,
}


def call_of(entry: Entry, at: int | None) -> Call:
    item = entry.value
    item_id, call_id = text(item.get("id")), text(item.get("call_id"))
    name = text(item.get("name")) or _NAMES.get(entry.name, "")
    raw = _raw_arguments(entry.name, item)
    namespace = text(item.get("namespace"))
    call = Call(
        id=call_id or item_id or "",
        name=name,
        arguments=object_text(raw) if isinstance(raw, str) and entry.name != "custom_tool_call" else raw,
        plain=["call", entry.name, item_id, call_id, namespace, name, raw],
        at=at,
        detail=present(namespace=namespace),
    )
    if entry.name in ("web_search_call", "image_generation_call"):
        _settle_at_once(call, item)
    return call


def _raw_arguments(kind: str, item: dict[str, Any]) -> Any:
    if kind == "custom_tool_call":
        return item.get("input")
    if kind in ("local_shell_call", "web_search_call"):
        return item.get("action")
    if kind == "image_generation_call":
        return present(revised_prompt=text(item.get("revised_prompt")))
    return item.get("arguments")


def _settle_at_once(call: Call, item: dict[str, Any]) -> None:
    """The provider ran it by itself: no output item follows."""
    call.status = _ENDED.get(text(item.get("status")) or "")
    if text(item.get("result")) is not None:
        call.result = item["result"]
    call.plain.append([call.status, None if call.result is UNSET else call.result])


class Response(Struct, kw_only=True):
    """A run of a model's items."""

    at: int | None
    literal_time: str | None
    model: str | None
    provider: str | None
    plain: list[Any]
    """Its identity, one list that grows with it."""
    native: str | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    tokens: Tokens | None = None
    thought: list[str] = field(default_factory=list)
    """The texts of its last reasoning item: the next one may begin by repeating them."""
    named_by_text: bool = False

    def say(self, entry: Entry) -> None:
        item = entry.value
        content = content_of(item.get("content"))
        self.add_content(content)
        self.plain.append(["message", text(item.get("id")), content.plain])
        self._name(text(item.get("id")), by_text=True)
        if (phase := text(item.get("phase"))) is not None:
            self.notes["phase"] = phase
        if strange := {key: value for key, value in item.items() if key not in _MESSAGE_FIELDS and value is not None}:
            self.notes.setdefault("fields", {}).update(strange)

    def say_event(self, words: str) -> None:
        """A text that only an event holds."""
        content = content_of(words)
        self.add_content(content)
        self.plain.append(["message", None, content.plain])

    def add_content(self, content: Content) -> None:
        self.parts += content.parts
        if content.strange:
            self.notes.setdefault("blocks", []).extend(content.strange)
        if content.sealed:
            self.notes["encrypted_letters"] = self.notes.get("encrypted_letters", 0) + content.sealed

    def think(self, entry: Entry) -> None:
        item = entry.value
        texts = thoughts_of(item)
        known = len(self.thought) if texts[: len(self.thought)] == self.thought else 0
        self.thought = texts
        self.parts += thought_parts(texts[known:])
        self.plain.append(["reasoning", text(item.get("id")), texts])
        self._name(text(item.get("id")))
        if sealed := text(item.get("encrypted_content")):
            self.notes.setdefault("encrypted_reasoning_letters", []).append(len(sealed))

    def think_event(self, texts: list[str]) -> None:
        self.parts += thought_parts(texts)
        self.plain.append(["reasoning", None, texts])

    def call(self, call: Call, item: dict[str, Any]) -> None:
        self.calls.append(call)
        self.plain.append(call.plain)
        self._name(text(item.get("id")))

    def _name(self, id: str | None, by_text: bool = False) -> None:
        """The id of its message; of its first item, where it has none."""
        if id is not None and (self.native is None or (by_text and not self.named_by_text)):
            self.native, self.named_by_text = id, by_text

    def items(self, context: dict[str, Any] | None) -> list[NativeMessage | NativeCall]:
        message = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(self.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal_time,
            model=self.model,
            provider=self.provider,
            tokens=self.tokens,
            context=context,
            metadata=self.notes or None,
        )
        return [message, *(call.native() for call in self.calls)]


def names_of(item: dict[str, Any]) -> list[str]:
    return [name for name in (text(item.get("id")), text(item.get("call_id"))) if name is not None]
