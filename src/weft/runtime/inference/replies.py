"""What comes back from a model, as plain values."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from weft.kernel.events import Usage
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart


class TokenKind(StrEnum):
    """Whether a piece of a reply is text or thinking."""

    TEXT = "text"
    THINKING = "thinking"


class ReplyToken(Struct, frozen=True, gc=False):
    """A piece of a reply as it comes. With a new `attempt` the reply begins anew, and what came before is void."""

    text: str
    kind: TokenKind = TokenKind.TEXT
    attempt: int = 1


class Finish(StrEnum):
    """Why a model stopped: done, cut by length, a tool call, a filter."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALL = "tool_call"
    CONTENT_FILTER = "content_filter"


class Attempt(Struct, frozen=True, kw_only=True):
    """One try: which model, how it ended (well, where `error` is empty), how long it took and was waited for."""

    model: str
    provider: str
    error: str = ""
    latency_ms: int = 0
    waited_ms: int = 0
    request_id: str | None = None


class Reply(Struct, frozen=True, kw_only=True):
    """A model's whole answer. `usage` is None where the provider reported none that adds up, as `usage_fault` says."""

    parts: tuple[Part, ...]
    finish: Finish
    model_id: str
    model: str
    provider: str
    usage: Usage | None = None
    usage_fault: str = ""
    request_id: str | None = None
    latency_ms: int = 0
    first_token_ms: int | None = None
    situation: str | None = None
    cost: int | None = None
    """Micro-dollars; None where the model has no price or the usage is not known."""
    attempts: tuple[Attempt, ...] = ()
    metadata: dict[str, Any] = {}
    """What is recorded with the message beside these."""

    @property
    def text(self) -> str:
        return "".join(str(part.text) for part in self.parts if isinstance(part, TextPart))

    @property
    def thinking(self) -> str:
        return "".join(str(part.text) for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def calls(self) -> tuple[ToolUsePart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolUsePart))
