"""Blocks of a message as parts; what has no part is told apart, never dropped."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.values import mapping, sequence, text
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal", "Text"})
_IMAGES = frozenset({"input_image", "image", "image_url"})


class Content(Struct):
    """What a message holds: its parts, the same as plain values for its identity, and blocks that are no parts."""

    parts: list[Part] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)
    strange: list[Any] = field(default_factory=list)
    sealed: int = 0
    """Letters of encrypted content, which only its provider can read."""

    def words(self) -> str:
        """The text as its writer knows it: without the tags that Codex puts around images."""
        texts = [part.text for part in self.parts if isinstance(part, TextPart) and isinstance(part.text, str)]
        return "".join(each for each in texts if not each.startswith(("<image", "</image>")))


def content_of(blocks: Any) -> Content:
    content = Content()
    for block in [blocks] if isinstance(blocks, str | dict) else sequence(blocks):
        _take(content, block)
    return content


def _take(content: Content, block: Any) -> None:
    if isinstance(block, str):
        block = {"type": "text", "text": block}
    kind = text(mapping(block).get("type"))
    if kind in _TEXTS and isinstance(block.get("text"), str):
        if block["text"]:
            content.parts.append(TextPart(block["text"]))
            content.plain.append(block["text"])
        return
    if kind in _IMAGES and (url := _url(block)) is not None:
        detail = text(block.get("detail"))
        content.parts.append(ImagePart(url, detail or UNSET))
        content.plain.append(["image", url])
        return
    if kind == "encrypted_content":
        content.sealed += len(text(block.get("encrypted_content")) or "")
        return
    content.plain.append(["block", block])
    content.strange.append(block)


def _url(block: dict[str, Any]) -> str | None:
    url = block.get("image_url") or block.get("url")
    return text(url) or text(mapping(url).get("url"))


_THOUGHTS = ("summary", "content", "summary_text", "raw_content", "text")


def thoughts_of(item: dict[str, Any]) -> list[str]:
    """The texts of a reasoning item or event: its summaries, then its raw content where a provider shows it."""
    found: list[str] = []
    for name in _THOUGHTS:
        if blocks := item.get(name):
            found += [
                part.text for part in content_of(blocks).parts if type(part) is TextPart and type(part.text) is str
            ]
    return found


def thought_parts(texts: list[str]) -> list[Part]:
    return [ReasoningPart(each) for each in texts]
