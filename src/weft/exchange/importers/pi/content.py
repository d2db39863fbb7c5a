"""Content blocks: what a message says as parts, and the same reduced to what makes its identity."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.values import sequence, text
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

BLOB = "blob:"
"""oh-my-pi keeps large images in files of their own and writes only what they are called."""


class Said(Struct):
    """A message's content."""

    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    reduced: list[Any] = field(default_factory=list)
    elsewhere: list[Any] = field(default_factory=list)
    """Blocks that no part can hold, as they are."""


def said(content: Any) -> Said:
    """A text, or a list of blocks. What is neither is kept beside the message."""
    found = Said()
    if isinstance(content, str):
        _text(found, content)
    elif isinstance(content, list):
        for block in content:
            _block(found, block)
    elif content is not None:
        found.elsewhere.append(content)
        found.reduced.append(content)
    return found


def _text(found: Said, words: str) -> None:
    found.reduced.append(["text", words])
    if words:
        found.parts.append(TextPart(words))


def _block(found: Said, block: Any) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(words := block.get("text"), str):
        _text(found, words)
    elif kind == "thinking" and isinstance(thinking := block.get("thinking"), str):
        found.reduced.append(["thinking", thinking])
        if thinking:
            found.parts.append(ReasoningPart(thinking))
    elif kind == "toolCall":
        found.calls.append(block)
        found.reduced.append(["call", block.get("id"), block.get("name"), block.get("arguments")])
    elif kind == "image" and (url := image_url(block)) is not None:
        found.reduced.append(["image", url])
        found.parts.append(ImagePart(url))
    elif isinstance(block, str):
        _text(found, block)
    else:
        found.elsewhere.append(block)
        found.reduced.append(block)


def image_url(block: dict[str, Any]) -> str | None:
    data, mime = text(block.get("data")), text(block.get("mimeType"))
    if data is None or data.startswith(BLOB):
        return None
    return data if data.startswith("data:") else f"data:{mime or 'application/octet-stream'};base64,{data}"


def plain(content: Any) -> Any:
    """What a tool gave back: a text where it is one, else its blocks."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and only.get("type") == "text" and isinstance(only.get("text"), str):
            return only["text"]
    return content


def words(content: Any) -> str:
    """The text in it."""
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in sequence(content) if isinstance(block, dict))
    return "\n".join(words for words in texts if isinstance(words, str))
