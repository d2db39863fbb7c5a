"""Content and usage in the shapes of chat APIs, which many tools write down in messages of their own."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.port import Tokens
from weft.exchange.importers.records.builder import MessageContent
from weft.exchange.importers.records.values import text
from weft.ledger.dialects import TEXTS, THOUGHTS, chat_counts, image_url, response_counts, thought_text
from weft.ledger.model import ImagePart, ReasoningPart, TextPart


def content_of(value: Any) -> MessageContent:
    """A text, or a list of texts and blocks; what is neither is kept beside the message."""
    content = MessageContent()
    for block in value if isinstance(value, list) else [] if value is None else [value]:
        _add_block(content, block)
    return content


def _add_block(content: MessageContent, block: Any) -> None:
    if isinstance(block, str):
        if block:
            content.parts.append(TextPart(block))
        return
    kind = text(block.get("type")) if isinstance(block, dict) else None
    if kind in TEXTS and isinstance(words := block.get("text"), str):
        if words:
            content.parts.append(TextPart(words))
    elif kind in THOUGHTS and (thought := thought_text(block)) is not None:
        content.parts.append(ReasoningPart(thought))
    elif kind in ("tool_use", "tool_call"):
        content.calls.append(block)
    elif isinstance(block, dict) and (url := image_url(block)) is not None:
        content.parts.append(ImagePart(url))
    elif block is not None:
        content.other_blocks.append(block)


def content_text(content: Any) -> str:
    """The text of a content."""
    return "\n".join(content_of(content).texts)


def chat_tokens(usage: Any) -> Tokens | None:
    """The count of chat completions, or of another API."""
    counts = chat_counts(usage)
    return None if counts is None else Tokens(**counts)


def response_tokens(usage: dict[str, Any]) -> Tokens | None:
    """The count of OpenAI's responses or of Anthropic's messages."""
    counts = response_counts(usage)
    return None if counts is None else Tokens(**counts)


def summed_tokens(one: Tokens, other: Tokens) -> Tokens:
    """Both together; what neither tells stays untold."""

    def both(first: int | None, second: int | None) -> int | None:
        return second if first is None else first if second is None else first + second

    return Tokens(
        input=both(one.input, other.input),
        output=both(one.output, other.output),
        cached=both(one.cached, other.cached),
        cache_write=both(one.cache_write, other.cache_write),
        cache_write_1h=both(one.cache_write_1h, other.cache_write_1h),
        reasoning=both(one.reasoning, other.reasoning),
    )
