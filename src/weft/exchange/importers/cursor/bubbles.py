"""Bubbles, as every generation of Cursor calls a message: what was said, when, by which model, at what cost."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.values import decoded, image_url
from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, millis, sequence, text, whole

USER = frozenset({"1", "user", "human"})
ASSISTANT = frozenset({"2", "ai", "assistant", "bot"})
SUMMARISED = 22
"""The capability of a bubble that marks where the context was summed up."""
EPOCH = 1_000_000_000_000
"""Times below are counted from when a window was opened."""


class Bubble(Struct):
    """One bubble, and what Cursor put beside it when it was sent."""

    id: str | None
    value: dict[str, Any]
    role: str | None = None
    """`user` or `assistant`; None where its type is another."""
    request: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    """Its place among the records that are kept of its session."""


def role_of(value: dict[str, Any], header: dict[str, Any] | None = None) -> str | None:
    told = value.get("type", mapping(header).get("type"))
    if isinstance(told, bool):
        return None
    kind = str(told).lower()
    return "user" if kind in USER else "assistant" if kind in ASSISTANT else None


def words(value: dict[str, Any]) -> str:
    """Its text; where only the editor's form of it was kept, the words of that."""
    return text(value.get("text")) or text(value.get("rawText")) or rich_words(value.get("richText"))


def rich_words(rich: Any) -> str:
    """The words of the editor's tree of nodes, block by block."""
    try:
        tree = decoded(rich) if isinstance(rich, str) and rich.lstrip().startswith("{") else None
    except ValueError:
        return ""
    lines: list[str] = []
    waiting = [(mapping(mapping(tree).get("root")), 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > 50:
            continue
        if isinstance(node.get("text"), str):
            lines[-1:] = [(lines[-1] if lines else "") + node["text"]]
        elif node.get("type") in ("paragraph", "linebreak", "code", "listitem", "heading", "quote") and lines:
            lines.append("")
        children = [(mapping(child), depth + 1) for child in sequence(node.get("children"))]
        waiting.extend(reversed(children))
    return "\n".join(lines).strip()


def thinking(value: dict[str, Any]) -> list[str]:
    own = _thought(value.get("thinking"))
    if own is not None:
        return [own]
    return [each for block in sequence(value.get("allThinkingBlocks")) if (each := _thought(block)) is not None]


def _thought(told: Any) -> str | None:
    fields = mapping(told)
    return text(told) or text(fields.get("text")) or text(fields.get("thinking"))


def signature(value: dict[str, Any]) -> str | None:
    return text(mapping(value.get("thinking")).get("signature"))


def pictures(value: dict[str, Any]) -> list[str]:
    """Images that an answer holds."""
    found = (mapping(image) for image in sequence(value.get("images")))
    return [
        url for image in found if (url := image_url(image.get("data") or image.get("url"), text(image.get("mimeType"))))
    ]


def tokens(value: dict[str, Any]) -> Tokens | None:
    """As counted; Cursor writes noughts where it has not counted."""
    told = mapping(value.get("tokenCount"))
    given, made = whole(told.get("inputTokens")), whole(told.get("outputTokens"))
    return Tokens(input=given, output=made) if given or made else None


def model(value: dict[str, Any]) -> str | None:
    name = text(value.get("modelType")) or text(mapping(value.get("modelInfo")).get("modelName"))
    return None if name == "default" else name


def begun(value: dict[str, Any]) -> int | None:
    timing = mapping(value.get("timingInfo"))
    told = (value.get("createdAt"), timing.get("clientRpcSendTime"), timing.get("clientStartTime"))
    return _first_time(told)


def ended(value: dict[str, Any]) -> int | None:
    timing = mapping(value.get("timingInfo"))
    return _first_time((timing.get("clientEndTime"), timing.get("clientSettleTime")))


def _first_time(told: tuple[Any, ...]) -> int | None:
    found = (millis(each) for each in told)
    return next((when for when in found if when is not None and when >= EPOCH), None)


def failure(value: dict[str, Any]) -> str | None:
    told = value.get("errorDetails")
    if not told:
        return None
    fields = mapping(told)
    found = (text(told), text(fields.get("message")), text(fields.get("title")), text(fields.get("error")))
    return next((each for each in found if each), "error")
