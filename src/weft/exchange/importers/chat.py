"""Messages in the shapes of chat APIs, which many tools write down as they are: content, tool calls, usage."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.port import Tokens
from weft.exchange.importers.records.builder import MessageContent
from weft.exchange.importers.records.values import mapping, sequence, text, whole
from weft.ledger.model import ImagePart, ReasoningPart, TextPart

TEXTS = frozenset({"text", "input_text", "output_text"})
THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content"})


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
    elif kind in THOUGHTS and (thought := _thought(block)) is not None:
        content.parts.append(ReasoningPart(thought))
    elif kind in ("tool_use", "tool_call"):
        content.calls.append(block)
    elif isinstance(block, dict) and (url := image_url(block)) is not None:
        content.parts.append(ImagePart(url))
    elif block is not None:
        content.other_blocks.append(block)


def _thought(block: dict[str, Any]) -> str | None:
    """In Anthropic's words, in LangChain's, or as OpenAI's list of summaries."""
    texts = (text(block.get(name)) for name in ("thinking", "reasoning", "text", "reasoning_content"))
    thought = next((words for words in texts if words is not None), None)
    if thought is not None:
        return thought
    summaries = (text(mapping(block_part).get("text")) for block_part in sequence(block.get("summary")))
    return "\n\n".join(words for words in summaries if words is not None) or None


def image_url(block: dict[str, Any]) -> str | None:
    """OpenAI's `image_url`, Anthropic's `source`, LangChain's `base64` or `url`."""
    value = block.get("image_url")
    if (url := text(value) or text(mapping(value).get("url"))) is not None:
        return url
    if block.get("type") != "image":
        return None
    source = mapping(block.get("source")) or block
    if (url := text(source.get("url"))) is not None:
        return url
    data = text(source.get("data")) or text(source.get("base64"))
    mime = text(source.get("media_type")) or text(source.get("mime_type")) or "application/octet-stream"
    return None if data is None else f"data:{mime};base64,{data}"


def plain_result(content: Any) -> Any:
    """What a tool gave back: one text where there is nothing else, or what there is."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and text(only.get("type")) in TEXTS and isinstance(only.get("text"), str):
            return only["text"]
    return content


def content_text(content: Any) -> str:
    """The text of a content."""
    return "\n".join(content_of(content).texts)


def chat_tokens(usage: Any) -> Tokens | None:
    """Chat completions' count, as LiteLLM gives it for every provider: what was cached or written to the cache lies
    inside the prompt, reasoning inside the completion."""
    counts = mapping(usage)
    prompt, output = whole(counts.get("prompt_tokens")), whole(counts.get("completion_tokens"))
    if prompt is None and output is None:
        return response_tokens(counts)
    prompt_details, output_details = (
        mapping(counts.get("prompt_tokens_details")),
        mapping(counts.get("completion_tokens_details")),
    )
    cached = _first_count(prompt_details.get("cached_tokens"), counts.get("cache_read_input_tokens"))
    written = _first_count(counts.get("cache_creation_input_tokens"), prompt_details.get("cache_creation_tokens"))
    return Tokens(
        input=uncached_input(prompt, cached, written),
        output=output,
        cached=cached,
        cache_write=written,
        cache_write_1h=one_hour_writes(counts),
        reasoning=whole(output_details.get("reasoning_tokens")),
    )


def response_tokens(usage: dict[str, Any]) -> Tokens | None:
    """The count of OpenAI's responses (the cache lies inside the input) or of Anthropic's messages (beside it)."""
    prompt, output = whole(usage.get("input_tokens")), whole(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    prompt_details = mapping(usage.get("input_tokens_details"))
    output_details = mapping(usage.get("output_tokens_details"))
    cached = whole(prompt_details.get("cached_tokens"))
    return Tokens(
        input=uncached_input(prompt, cached, None),
        output=output,
        cached=_first_count(cached, usage.get("cache_read_input_tokens")),
        cache_write=whole(usage.get("cache_creation_input_tokens")),
        cache_write_1h=one_hour_writes(usage),
        reasoning=whole(output_details.get("reasoning_tokens")),
    )


def one_hour_writes(usage: dict[str, Any]) -> int | None:
    """Anthropic's count of what was written to the cache for an hour; LiteLLM gives it inside the prompt's details."""
    details = mapping(usage.get("prompt_tokens_details")).get("cache_creation_token_details")
    durations = mapping(usage.get("cache_creation")) or mapping(details)
    return whole(durations.get("ephemeral_1h_input_tokens"))


def _first_count(*values: Any) -> int | None:
    return next((number for value in values if (number := whole(value)) is not None), None)


def uncached_input(total: int | None, cached: int | None, written: int | None) -> int | None:
    """The input without what came from the cache or went there; as it is where it cannot have held them."""
    if total is None:
        return None
    inside = (cached or 0) + (written or 0)
    return total - inside if inside <= total else total


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
