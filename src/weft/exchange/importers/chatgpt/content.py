"""What a message says: each type of content as parts, and as what makes its identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.records.values import mapping, present, sequence, text
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart


class NodeContent(Struct):
    parts: list[Part] = field(default_factory=list)
    elsewhere: list[Any] = field(default_factory=list)
    """What no part can hold."""
    is_known: bool = True

    @property
    def words(self) -> str:
        return "\n".join(str(part.text) for part in self.parts if isinstance(part, TextPart))


def content_of(content: dict[str, Any]) -> NodeContent:
    """A type of content that is not known is taken by its text or parts, if it has any."""
    kind = text(content.get("content_type")) or ""
    taker = TAKERS.get(kind)
    found = NodeContent(is_known=taker is not None)
    if taker is not None:
        taker(found, content)
    elif text(content.get("text")) is not None:
        _text(found, content)
    elif isinstance(content.get("parts"), list):
        _parts(found, content)
    else:
        found.elsewhere.append(content)
    return found


def _add(content: NodeContent, words: Any) -> None:
    if isinstance(words, str) and words:
        content.parts.append(TextPart(words))


def _parts(found: NodeContent, content: dict[str, Any]) -> None:
    for part in sequence(content.get("parts")):
        if isinstance(part, str):
            _add(found, part)
        else:
            _asset(found, mapping(part))


def _asset(content: NodeContent, part: dict[str, Any]) -> None:
    """An image by where it lies in the export; what was said aloud by its words."""
    kind, pointer = text(part.get("content_type")) or "", text(part.get("asset_pointer"))
    if kind == "image_asset_pointer" and pointer is not None:
        content.parts.append(ImagePart(pointer))
        content.elsewhere.append({name: part[name] for name in SHOWN if part.get(name) is not None})
    elif text(part.get("text")) is not None:
        _add(content, part["text"])
    elif part:
        content.elsewhere.append(part)


SHOWN = ("asset_pointer", "size_bytes", "width", "height", "metadata")


def _text(found: NodeContent, content: dict[str, Any]) -> None:
    _add(found, content.get("text"))


def _thoughts(found: NodeContent, content: dict[str, Any]) -> None:
    for thought in sequence(content.get("thoughts")):
        fields = mapping(thought)
        words = [text(fields.get("summary")), text(fields.get("content"))]
        if any(words):
            found.parts.append(ReasoningPart("\n".join(word for word in words if word)))
    for part in sequence(content.get("parts")):
        if isinstance(part, str) and part:
            found.parts.append(ReasoningPart(part))


def _recap(found: NodeContent, content: dict[str, Any]) -> None:
    words = text(content.get("content")) or text(next(iter(sequence(content.get("parts"))), None))
    if words is not None:
        found.parts.append(ReasoningPart(words))


def _display(found: NodeContent, content: dict[str, Any]) -> None:
    """What a page or a search showed."""
    _add(found, text(content.get("result")) or text(content.get("summary")))
    rest = present(summary=content.get("summary"), assets=content.get("assets"), tether=content.get("tether_id"))
    if rest:
        found.elsewhere.append(rest)


def _quote(found: NodeContent, content: dict[str, Any]) -> None:
    heading = [text(content.get(name)) for name in ("title", "url")]
    _add(found, "\n".join([*(word for word in heading if word), text(content.get("text")) or ""]).strip())


def _context(found: NodeContent, content: dict[str, Any]) -> None:
    """What a person has told the assistant about themselves, and what it has noted itself."""
    for name in ("user_profile", "user_instructions", "model_set_context"):
        _add(found, content.get(name))


def _error(found: NodeContent, content: dict[str, Any]) -> None:
    _add(found, ": ".join(word for word in (text(content.get("name")), text(content.get("text"))) if word))


TAKERS: dict[str, Callable[[NodeContent, dict[str, Any]], None]] = {
    "text": _parts,
    "multimodal_text": _parts,
    "code": _text,
    "execution_output": _text,
    "citable_code_output": _text,
    "thoughts": _thoughts,
    "reasoning_recap": _recap,
    "tether_browsing_display": _display,
    "tether_browsing_code": _display,
    "tether_quote": _quote,
    "sonic_webpage": _quote,
    "user_editable_context": _context,
    "model_editable_context": _context,
    "system_error": _error,
}
CONTEXTS = frozenset({"user_editable_context", "model_editable_context"})
