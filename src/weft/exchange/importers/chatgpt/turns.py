"""The nodes of one turn of a conversation, mapped to what the ledger takes."""

from __future__ import annotations

from typing import Any

from msgspec import field

from weft.exchange.importers.chatgpt.content import CONTEXTS, NodeContent, content_of
from weft.exchange.importers.port import NativeCall, NativeMessage
from weft.exchange.importers.records.builder import PendingCall, TurnBuilder
from weft.exchange.importers.records.values import mapping, object_in_text, present, seconds_millis, sequence, text
from weft.exchange.importers.trees import Part
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart

NOTED_FIELDS = (
    "voice_mode_message",
    "thinking_effort",
    "finished_duration_sec",
    "request_id",
    "citations",
    "content_references",
    "search_result_groups",
    "aggregate_result",
    "dalle",
    "image_gen_title",
    "is_user_system_message",
)
"""What a message's metadata tells beside what it says."""


def role_of(message: dict[str, Any]) -> str:
    return text(mapping(message.get("author")).get("role")) or "none"


def is_hidden(message: dict[str, Any]) -> bool:
    metadata = mapping(message.get("metadata"))
    return message.get("weight") == 0 or metadata.get("is_visually_hidden_from_conversation") is True


def kind_of(message: dict[str, Any]) -> str:
    return f"{role_of(message)}.{text(mapping(message.get('content')).get('content_type')) or 'none'}"


def tool_of(message: dict[str, Any]) -> str | None:
    """Whom an assistant's message is for, where it is for a tool."""
    recipient = text(message.get("recipient"))
    return recipient if role_of(message) == "assistant" and recipient not in (None, "all") else None


def part_of(message: dict[str, Any]) -> Part:
    role, content = role_of(message), mapping(message.get("content"))
    if role in ("assistant", "tool"):
        return Part.ANSWER
    found = content_of(content)
    if not found.parts and not found.elsewhere and not sequence(mapping(message.get("metadata")).get("attachments")):
        return Part.NOTHING
    is_typed = role == "user" and not is_hidden(message) and text(content.get("content_type")) not in CONTEXTS
    return Part.PROMPT if is_typed else Part.OTHER


class Call(PendingCall, kw_only=True):
    """A call whose outcome follows in other nodes."""

    results: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)

    def finished(self) -> NativeCall:
        if self.error is not None:
            self.status = ToolCallStatus.ERROR
        elif self.results:
            self.status = ToolCallStatus.OK
        if self.results:
            self.result = self.results[0] if len(self.results) == 1 else self.results
        self.detail = self.notes or None
        return super().finished()


class ChatGptBuilder(TurnBuilder, kw_only=True):
    """A turn of ChatGPT, message by message."""

    open: Call | None = None

    def take(self, message: dict[str, Any], native: str) -> None:
        if (when := seconds_millis(message.get("create_time"))) is not None:
            self.times.append(when)
        node_content, role, tool = content_of(mapping(message.get("content"))), role_of(message), tool_of(message)
        content = mapping(message.get("content"))
        self.add_identity(role, native, text(message.get("recipient")), content)
        if tool is not None:
            self._call(message, native, tool, node_content)
        elif role == "tool" and self.open is not None:
            self._result(message, node_content)
        else:
            self._message(message, native, node_content)

    def _call(self, message: dict[str, Any], native: str, tool: str, content: NodeContent) -> None:
        """The message that asks is one of its own, without the words that are the call's."""
        self._message(message, native, NodeContent(elsewhere=content.elsewhere))
        self.open = Call(
            id=native, name=tool, arguments=object_in_text(content.words), at=seconds_millis(message.get("create_time"))
        )
        self.items.append(self.open)

    def _result(self, message: dict[str, Any], content: NodeContent) -> None:
        call = self.open
        if call is None:
            return
        call.done = seconds_millis(message.get("create_time"))
        images = [{"image": str(part.url)} for part in content.parts if isinstance(part, ImagePart)]
        if mapping(message.get("content")).get("content_type") == "system_error":
            call.error = content.words or "error"
        elif content.words or images:
            call.results += [*([content.words] if content.words else []), *images]
        call.notes += content.elsewhere

    def _message(self, message: dict[str, Any], native: str, content: NodeContent) -> None:
        role, metadata = role_of(message), mapping(message.get("metadata"))
        if role == "assistant":
            self._note_end(message, content)
        if role in ("assistant", "user"):
            self.open = None
        when = message.get("create_time")
        self.items.append(
            NativeMessage(
                role=ROLES.get(role, MessageRole.SYSTEM),
                parts=tuple(content.parts),
                native=native,
                at=seconds_millis(when),
                source=_source(message, role),
                model=text(metadata.get("model_slug")) if role == "assistant" else None,
                provider="openai" if role == "assistant" else None,
                finish_reason=text(mapping(metadata.get("finish_details")).get("type")),
                metadata=present(
                    **{name: metadata[name] for name in NOTED_FIELDS if metadata.get(name)},
                    hidden=is_hidden(message) or None,
                    channel=message.get("channel"),
                    author=mapping(message.get("author")).get("name"),
                    type=_type(message),
                    content=content.elsewhere,
                    attachments=metadata.get("attachments"),
                ),
                files=_attached(metadata),
            )
        )

    def _note_end(self, message: dict[str, Any], content: NodeContent) -> None:
        end = text(mapping(mapping(message.get("metadata")).get("finish_details")).get("type"))
        is_error = mapping(message.get("content")).get("content_type") == "system_error"
        self.error = (content.words or "error") if is_error else None
        self.is_interrupted = end == "interrupted"


ROLES = {
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "system": MessageRole.SYSTEM,
}


def _source(message: dict[str, Any], role: str) -> MessageSource | None:
    if role == "assistant":
        return None
    is_typed = role == "user" and part_of(message) is Part.PROMPT
    return MessageSource.HUMAN if is_typed else MessageSource.EVENT


def _type(message: dict[str, Any]) -> str | None:
    kind = text(mapping(message.get("content")).get("content_type"))
    return None if kind in ("text", "multimodal_text") else kind


def _attached(metadata: dict[str, Any]) -> tuple[FileNote, ...]:
    names = (text(mapping(attachment).get("name")) for attachment in sequence(metadata.get("attachments")))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=name) for name in dict.fromkeys(names) if name)
