"""Making turns of a conversation's nodes."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import UNSET, Struct, field

from weft.exchange.importers.chatgpt.content import CONTEXTS, Said, said
from weft.exchange.importers.transcript import Item, NativeCall, NativeMessage
from weft.exchange.importers.trees import Part
from weft.exchange.importers.values import canonical, mapping, present, sequence, text
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart

NOTED = (
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


def moment(value: Any) -> int | None:
    """Unix milliseconds of seconds with a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e11:
        return None
    return round(value * 1000)


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
    found = said(content)
    if not found.parts and not found.elsewhere and not sequence(mapping(message.get("metadata")).get("attachments")):
        return Part.NOTHING
    is_typed = role == "user" and not is_hidden(message) and text(content.get("content_type")) not in CONTEXTS
    return Part.PROMPT if is_typed else Part.OTHER


class Call(Struct):
    """A call whose outcome follows in other nodes."""

    id: str
    name: str
    arguments: Any
    at: int | None
    results: list[Any] = field(default_factory=list)
    files: list[FileNote] = field(default_factory=list)
    done: int | None = None
    error: str | None = None
    detail: list[Any] = field(default_factory=list)

    def made(self) -> NativeCall:
        status = None if not self.results and self.error is None else ToolCallStatus.OK
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=UNSET if not self.results else self.results[0] if len(self.results) == 1 else self.results,
            error=self.error,
            status=status if self.error is None else ToolCallStatus.ERROR,
            at=self.at,
            done=self.done,
            detail=self.detail or None,
        )


class Making(Struct):
    """A turn under way."""

    conversation: str
    items: list[NativeMessage | Call] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    open: Call | None = None
    error: str | None = None
    is_interrupted: bool = False

    def take(self, message: dict[str, Any], native: str) -> None:
        if (when := moment(message.get("create_time"))) is not None:
            self.times.append(when)
        found, role, tool = said(mapping(message.get("content"))), role_of(message), tool_of(message)
        content = mapping(message.get("content"))
        self.records.append(canonical([role, native, text(message.get("recipient")), content]))
        if tool is not None:
            self._call(message, native, tool, found)
        elif role == "tool" and self.open is not None:
            self._result(message, found)
        else:
            self._message(message, native, found)

    def finished(self) -> tuple[Item, ...]:
        return tuple(item.made() if isinstance(item, Call) else item for item in self.items)

    def _call(self, message: dict[str, Any], native: str, tool: str, found: Said) -> None:
        """The message that asks is one of its own, without the words that are the call's."""
        self._message(message, native, Said(elsewhere=found.elsewhere))
        self.open = Call(native, tool, _arguments(found.words), moment(message.get("create_time")))
        self.items.append(self.open)

    def _result(self, message: dict[str, Any], found: Said) -> None:
        call = self.open
        if call is None:
            return
        call.done = moment(message.get("create_time"))
        images = [{"image": str(part.url)} for part in found.parts if isinstance(part, ImagePart)]
        if mapping(message.get("content")).get("content_type") == "system_error":
            call.error = found.words or "error"
        elif found.words or images:
            call.results += [*([found.words] if found.words else []), *images]
        call.detail += found.elsewhere

    def _message(self, message: dict[str, Any], native: str, found: Said) -> None:
        role, metadata = role_of(message), mapping(message.get("metadata"))
        if role == "assistant":
            self._note_end(message, found)
        if role in ("assistant", "user"):
            self.open = None
        when = message.get("create_time")
        self.items.append(
            NativeMessage(
                role=ROLES.get(role, MessageRole.SYSTEM),
                parts=tuple(found.parts),
                native=native,
                at=moment(when),
                source=_source(message, role),
                model=text(metadata.get("model_slug")) if role == "assistant" else None,
                provider="openai" if role == "assistant" else None,
                finish_reason=text(mapping(metadata.get("finish_details")).get("type")),
                metadata=present(
                    **{name: metadata[name] for name in NOTED if metadata.get(name)},
                    hidden=is_hidden(message) or None,
                    channel=message.get("channel"),
                    author=mapping(message.get("author")).get("name"),
                    type=_type(message),
                    content=found.elsewhere,
                    attachments=metadata.get("attachments"),
                ),
                files=_attached(metadata),
            )
        )

    def _note_end(self, message: dict[str, Any], found: Said) -> None:
        end = text(mapping(mapping(message.get("metadata")).get("finish_details")).get("type"))
        is_error = mapping(message.get("content")).get("content_type") == "system_error"
        self.error = (found.words or "error") if is_error else None
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


def _arguments(words: str) -> Any:
    """What a tool was sent: JSON where it is an object, else its text (code, a query)."""
    if words.lstrip().startswith("{"):
        try:
            return orjson.loads(words)
        except orjson.JSONDecodeError:
            pass
    return words


def _attached(metadata: dict[str, Any]) -> tuple[FileNote, ...]:
    names = (text(mapping(each).get("name")) for each in sequence(metadata.get("attachments")))
    return tuple(FileNote(kind=FileKind.ATTACHED, path=name) for name in dict.fromkeys(names) if name)
