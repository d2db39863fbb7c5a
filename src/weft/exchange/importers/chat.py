"""Messages in the shapes of chat APIs, which many tools write down as they are: content, tool calls, usage."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct, field

from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.ledger.model import ImagePart, Part, ReasoningPart, TextPart

TEXTS = frozenset({"text", "input_text", "output_text"})
THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content"})


class Said(Struct):
    """What a message's content holds."""

    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Blocks that ask for a tool."""
    elsewhere: list[Any] = field(default_factory=list)
    """Blocks that no part can hold, as they are."""


def said(content: Any) -> Said:
    """A text, or a list of texts and blocks; what is neither is kept beside the message."""
    found = Said()
    for block in content if isinstance(content, list) else [] if content is None else [content]:
        _block(found, block)
    return found


def _block(found: Said, block: Any) -> None:
    if isinstance(block, str):
        if block:
            found.parts.append(TextPart(block))
        return
    kind = text(block.get("type")) if isinstance(block, dict) else None
    if kind in TEXTS and isinstance(words := block.get("text"), str):
        if words:
            found.parts.append(TextPart(words))
    elif kind in THOUGHTS and (thought := _thought(block)) is not None:
        found.parts.append(ReasoningPart(thought))
    elif kind in ("tool_use", "tool_call"):
        found.calls.append(block)
    elif isinstance(block, dict) and (url := image_url(block)) is not None:
        found.parts.append(ImagePart(url))
    elif block is not None:
        found.elsewhere.append(block)


def _thought(block: dict[str, Any]) -> str | None:
    """In Anthropic's words, in LangChain's, or as OpenAI's list of summaries."""
    plain = (text(block.get(name)) for name in ("thinking", "reasoning", "text", "reasoning_content"))
    found = next((words for words in plain if words is not None), None)
    if found is not None:
        return found
    summaries = (text(mapping(each).get("text")) for each in sequence(block.get("summary")))
    return "\n\n".join(words for words in summaries if words is not None) or None


def image_url(block: dict[str, Any]) -> str | None:
    """OpenAI's `image_url`, Anthropic's `source`, LangChain's `base64` or `url`."""
    told = block.get("image_url")
    if (url := text(told) or text(mapping(told).get("url"))) is not None:
        return url
    if block.get("type") != "image":
        return None
    source = mapping(block.get("source")) or block
    if (url := text(source.get("url"))) is not None:
        return url
    data = text(source.get("data")) or text(source.get("base64"))
    mime = text(source.get("media_type")) or text(source.get("mime_type")) or "application/octet-stream"
    return None if data is None else f"data:{mime};base64,{data}"


def arguments(value: Any) -> Any:
    """Of a function: JSON in a text as the value it says; a text that is none stays as it is."""
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def plain(content: Any) -> Any:
    """What a tool gave back: one text where there is nothing else, or what there is."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and text(only.get("type")) in TEXTS and isinstance(only.get("text"), str):
            return only["text"]
    return content


def words(content: Any) -> str:
    """The text of a content."""
    return "\n".join(str(part.text) for part in said(content).parts if isinstance(part, TextPart))


def chat_tokens(usage: Any) -> Tokens | None:
    """Chat completions' count, as LiteLLM gives it for every provider: what was cached or written to the cache lies
    inside the prompt, reasoning inside the completion."""
    told = mapping(usage)
    prompt, output = whole(told.get("prompt_tokens")), whole(told.get("completion_tokens"))
    if prompt is None and output is None:
        return response_tokens(told)
    inside, within = mapping(told.get("prompt_tokens_details")), mapping(told.get("completion_tokens_details"))
    cached = _first(inside.get("cached_tokens"), told.get("cache_read_input_tokens"))
    written = _first(told.get("cache_creation_input_tokens"), inside.get("cache_creation_tokens"))
    return Tokens(
        input=apart(prompt, cached, written),
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=whole(within.get("reasoning_tokens")),
    )


def response_tokens(usage: dict[str, Any]) -> Tokens | None:
    """The count of OpenAI's responses (the cache lies inside the input) or of Anthropic's messages (beside it)."""
    given, output = whole(usage.get("input_tokens")), whole(usage.get("output_tokens"))
    if given is None and output is None:
        return None
    inside, within = mapping(usage.get("input_tokens_details")), mapping(usage.get("output_tokens_details"))
    cached = whole(inside.get("cached_tokens"))
    return Tokens(
        input=apart(given, cached, None),
        output=output,
        cached=_first(cached, usage.get("cache_read_input_tokens")),
        cache_write=whole(usage.get("cache_creation_input_tokens")),
        reasoning=whole(within.get("reasoning_tokens")),
    )


def _first(*values: Any) -> int | None:
    return next((found for value in values if (found := whole(value)) is not None), None)


def apart(total: int | None, cached: int | None, written: int | None) -> int | None:
    """The input without what came from the cache or went there; as it is where it cannot have held them."""
    if total is None:
        return None
    inside = (cached or 0) + (written or 0)
    return total - inside if inside <= total else total


def added(one: Tokens, other: Tokens) -> Tokens:
    """Both together; what neither tells stays untold."""

    def both(first: int | None, second: int | None) -> int | None:
        return second if first is None else first if second is None else first + second

    return Tokens(
        input=both(one.input, other.input),
        output=both(one.output, other.output),
        cached=both(one.cached, other.cached),
        cache_write=both(one.cache_write, other.cache_write),
        reasoning=both(one.reasoning, other.reasoning),
    )
