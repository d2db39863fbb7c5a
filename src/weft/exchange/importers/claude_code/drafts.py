"""A turn's messages and calls while its lines are being read: lines of one API message are one message."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from weft.exchange.importers.claude_code.content import Block, count_or_none, object_or_empty, storable, text_or_none
from weft.exchange.importers.claude_code.kinds import JsonObject
from weft.exchange.importers.transcript import Item, NativeCall, NativeMessage, Tokens
from weft.kernel.enums import MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

SYNTHETIC: Final = "<synthetic>"
"""The model named on notices that Claude Code writes itself."""

_COUNTS: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}
_PRICED: Final = ("cache_creation", "server_tool_use", "service_tier", "speed", "inference_geo")
"""What else of a usage bears on its price."""
_TOLD: Final = frozenset(
    "requestId promptId promptSource origin effort advisorModel attributionAgent attributionSkill attributionPlugin"
    " attributionMcpServer attributionMcpTool isAbortedMidStream isApiErrorMessage apiErrorStatus errorDetails"
    " supersedesUuids interruptedMessageId sourceToolUseID imagePasteIds thinkingMetadata todos teamName costUSD"
    " durationMs scheduledTaskId usageMetadata systemPayload".split()
)
"""Fields of a line that are kept with its message."""


class CallDraft:
    """A tool call, answered or not."""

    __slots__ = ("arguments", "at", "detail", "done", "error", "files", "id", "name", "result", "spawned", "status")

    def __init__(self, id: str, name: str, arguments: Any, at: int | None) -> None:
        self.id, self.name, self.arguments, self.at = id, name, arguments, at
        self.result: Any = UNSET
        self.error: str | None = None
        self.status: ToolCallStatus | None = None
        self.done: int | None = None
        self.spawned: str | None = None
        self.detail: Any = None
        self.files: tuple[FileNote, ...] = ()

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
        )


class MessageDraft:
    """A message; an assistant's gathers the lines of one response."""

    __slots__ = (
        "at",
        "calls",
        "context",
        "files",
        "finish_reason",
        "lints",
        "literal",
        "metadata",
        "model",
        "native",
        "parts",
        "role",
        "source",
        "usage",
    )

    def __init__(self, role: MessageRole, native: str | None, at: int | None, literal: str | None) -> None:
        self.role, self.native, self.at, self.literal = role, native, at, literal
        self.parts: list[Part] = []
        self.calls: list[CallDraft] = []
        self.source: MessageSource | None = None
        self.model: str | None = None
        self.usage: dict[str, int] = {}
        self.finish_reason: str | None = None
        self.context: list[Any] = []
        self.metadata: JsonObject = {}
        self.files: list[FileNote] = []
        self.lints: list[LintNote] = []

    def say(self, block: Block) -> None:
        """Text, thinking and images are parts; what is none of these is kept as it is."""
        match block.get("type"):
            case "text" if isinstance(text := block.get("text"), str):
                self.parts.append(TextPart(text))
            case "thinking" if isinstance(text := block.get("thinking"), str):
                if text:
                    self.parts.append(ReasoningPart(text))
                if signature := block.get("signature"):
                    self.metadata.setdefault("signatures", []).append(storable(signature))
            case "image" if url := image_url(block.get("source")):
                self.parts.append(ImagePart(url))
            case _:
                self.metadata.setdefault("blocks", []).append(storable(block))

    def describe(self, record: JsonObject) -> None:
        """Model, cost and the other things that a line tells beside its content."""
        for key in sorted(_TOLD.intersection(record)):
            if (value := record[key]) is not None:
                self.metadata[key] = storable(value)
        message = object_or_empty(record.get("message"))
        model = text_or_none(message.get("model")) or text_or_none(record.get("model"))
        if model == SYNTHETIC:
            self.metadata["synthetic"] = True
        elif self.role is MessageRole.ASSISTANT:
            self.model = model or self.model
            self._count(message.get("usage"), record.get("usageMetadata"))
        self.finish_reason = text_or_none(message.get("stop_reason")) or self.finish_reason

    def _count(self, usage: Any, gemini: Any) -> None:
        """Every line repeats the usage of its response, early ones a partial one, a copy's last one perhaps zeros: the
        largest of each number holds."""
        if isinstance(usage, dict):
            for name, key in _COUNTS.items():
                self._raise(name, usage.get(key))
            details = object_or_empty(usage.get("output_tokens_details"))
            self._raise("reasoning", details.get("thinking_tokens", details.get("reasoning_tokens")))
            priced = {key: value for key in _PRICED if _is_telling(value := usage.get(key))}
            if priced:
                self.metadata["usage"] = storable(priced)
        elif isinstance(gemini, dict) and gemini:
            asked, cached = (gemini.get(key) for key in ("promptTokenCount", "cachedContentTokenCount"))
            said, thought = (gemini.get(key) for key in ("candidatesTokenCount", "thoughtsTokenCount"))
            self._raise("input", _less(asked, cached))
            self._raise("cached", cached)
            self._raise("output", _more(said, thought))
            self._raise("reasoning", thought)

    def _raise(self, name: str, value: Any) -> None:
        number = count_or_none(value)
        if number is not None and number >= self.usage.get(name, 0):
            self.usage[name] = number

    def finished(self) -> list[Item]:
        is_claude = self.model is not None and self.model.startswith("claude")
        message = NativeMessage(
            role=self.role,
            parts=tuple(self.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal,
            source=self.source,
            model=self.model,
            provider="anthropic" if is_claude else None,
            tokens=Tokens(**self.usage) if self.usage else None,
            finish_reason=self.finish_reason,
            context={"attachments": self.context} if self.context else None,
            metadata=self.metadata or None,
            files=tuple(dict.fromkeys(self.files)),
            lints=tuple(self.lints),
        )
        return [message, *(call.finished() for call in self.calls)]


def image_url(source: Any) -> str | None:
    """An image as a URL that carries it; one that lies elsewhere keeps its own and is not fetched."""
    source = object_or_empty(source)
    data, kind = source.get("data"), source.get("media_type")
    if source.get("type") == "base64" and isinstance(data, str):
        return f"data:{kind if isinstance(kind, str) else 'application/octet-stream'};base64,{data}"
    return text_or_none(source.get("url"))


def _is_telling(value: Any) -> bool:
    if isinstance(value, dict):
        return any(value.values())
    return bool(value) and value not in ("standard", "not_available")


def _less(whole: Any, part: Any) -> Any:
    return whole - part if type(whole) is int and type(part) is int and whole >= part else whole


def _more(one: Any, other: Any) -> Any:
    return one + other if type(one) is int and type(other) is int else one
