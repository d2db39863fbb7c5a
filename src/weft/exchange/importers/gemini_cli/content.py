"""What a message says: the parts of Gemini's API, and the same reduced to what makes its identity."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.values import mapping, sequence, text
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart


class Said(Struct):
    """A message's content."""

    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    """What tools gave back, where it stands in a message of its own."""
    reduced: list[Any] = field(default_factory=list)
    elsewhere: list[Any] = field(default_factory=list)
    """Parts that a message cannot hold, as they are."""

    @property
    def texts(self) -> list[str]:
        return [str(part.text) for part in self.parts if isinstance(part, TextPart)]


def content_of(message: dict[str, Any]) -> Any:
    return message["content"] if "content" in message else message.get("parts")


def said(content: Any) -> Said:
    """A text, a part, or a list of both."""
    found = Said()
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        _part(found, part)
    return found


def _part(found: Said, part: Any) -> None:
    words = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(words, str):
        is_thought = isinstance(part, dict) and part.get("thought") is True
        found.reduced.append(["thought" if is_thought else "text", words])
        if words:
            found.parts.append(ReasoningPart(words) if is_thought else TextPart(words))
    elif not isinstance(part, dict):
        found.elsewhere.append(part)
        found.reduced.append(part)
    elif isinstance(call := part.get("functionCall"), dict):
        found.calls.append(call)
        found.reduced.append(["call", call.get("id"), call.get("name"), call.get("args")])
    elif isinstance(result := part.get("functionResponse"), dict):
        found.results.append(result)
        found.reduced.append(["result", result.get("id"), result.get("name"), result.get("response")])
    elif (url := image_url(part.get("inlineData"))) is not None:
        found.parts.append(ImagePart(url))
        found.reduced.append(["image", url])
    else:
        found.elsewhere.append(part)
        found.reduced.append(part)


def image_url(data: Any) -> str | None:
    told = mapping(data)
    mime, encoded = text(told.get("mimeType")), text(told.get("data"))
    if mime is None or encoded is None or not mime.startswith("image/"):
        return None
    return f"data:{mime};base64,{encoded}"


def thoughts(message: dict[str, Any]) -> list[str]:
    """What the model told of its thinking: a subject and some words each."""
    found = []
    for thought in map(mapping, sequence(message.get("thoughts"))):
        words = [text(thought.get(name)) for name in ("subject", "description", "summary")]
        if any(words):
            found.append("\n".join(word for word in words if word))
    return found
