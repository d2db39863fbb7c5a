"""How many tokens a text is, by its length: an estimate that is rather too high."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.ledger.api import sent_text
from weft.ledger.model import ImagePart, Message, NewMessage, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference.shown_results import for_model, split_images

BYTES_A_TOKEN = 3
"""Fewer than in most texts. Bytes of UTF-8: a Chinese sign is three of them and about one token."""
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1_600
"""About the most that a provider counts for an image, whatever its size in bytes."""


def estimated_tokens(messages: Iterable[Message | NewMessage]) -> int:
    """By the length of what is sent of each part. Thinking is not sent again, and an image counts as one."""
    return sum(MESSAGE_TOKENS + sum(map(part_tokens, _parts(message))) for message in messages)


def part_tokens(part: Part) -> int:
    match part:
        case TextPart():
            return value_tokens(part.text)
        case ToolUsePart():
            return value_tokens(part.id) + value_tokens(part.name) + value_tokens(part.input)
        case ToolResultPart():
            return value_tokens(part.tool_call_id) + _result_tokens(part)
        case ImagePart():
            return IMAGE_TOKENS
        case ReasoningPart():
            return 0


def _result_tokens(part: ToolResultPart) -> int:
    """Of what the model is shown of a result."""
    output, images = split_images(part.output)
    return value_tokens(for_model(output, part.tool_call_id)) + IMAGE_TOKENS * len(images)


def text_tokens(text: str) -> int:
    return -(-len(text.encode(errors="surrogatepass")) // BYTES_A_TOKEN)


def value_tokens(value: Any) -> int:
    return text_tokens(sent_text(value))


def _parts(message: Message | NewMessage) -> Sequence[Part]:
    content = message.content
    return content if isinstance(content, tuple) else (TextPart(content),)
