"""Responses of a provider: who answered, at what cost, and how it ended."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.pi.content import Said
from weft.exchange.importers.transcript import NativeMessage, Tokens
from weft.exchange.importers.values import mapping, millis, present, text, whole
from weft.kernel.enums import MessageRole

BESIDE = ("api", "responseId", "responseModel", "providerThinkingLevel", "rawStopReason", "duration", "ttft")
"""Small facts of a response that have no place of their own."""


def response(entry: dict[str, Any], message: dict[str, Any], content: Said) -> NativeMessage:
    beside = {name: message[name] for name in BESIDE if message.get(name) is not None}
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(content.parts),
        native=text(entry.get("id")),
        at=millis(message.get("timestamp")) or millis(entry.get("timestamp")),
        model=text(message.get("model")),
        provider=text(message.get("provider")),
        tokens=tokens(message.get("usage")),
        finish_reason=text(message.get("stopReason")),
        metadata=present(
            **beside,
            cost=mapping(message.get("usage")).get("cost"),
            error=text(message.get("errorMessage")),
            blocks=content.elsewhere,
        ),
    )


def tokens(usage: Any) -> Tokens | None:
    """Its parts are disjoint already; reasoning lies inside the output."""
    if not isinstance(usage, dict):
        return None
    reasoning = whole(usage.get("reasoning"))
    return Tokens(
        input=whole(usage.get("input")),
        output=whole(usage.get("output")),
        cached=whole(usage.get("cacheRead")),
        cache_write=whole(usage.get("cacheWrite")),
        reasoning=whole(usage.get("reasoningTokens")) if reasoning is None else reasoning,
    )


def trouble(message: dict[str, Any]) -> tuple[str | None, bool]:
    """The error a response ended with, and whether somebody stopped it."""
    stop = message.get("stopReason")
    if stop == "error":
        return text(message.get("errorMessage")) or "error", False
    return None, stop == "aborted"
