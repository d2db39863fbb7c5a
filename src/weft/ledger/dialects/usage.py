"""Token counts as the APIs of models report them, in disjoint parts.

Chat completions count what came from the cache inside the prompt, and reasoning inside the completion; so do OpenAI's
responses, under other names. Anthropic counts the cache beside the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from weft.kernel.fields import Usage

Counts = dict[str, int | None]
"""By the names of an importer's tokens: input, output, cached, cache_write and its part cache_write_1h, reasoning."""

_CHAT = ("prompt_tokens", "completion_tokens")
_ANTHROPIC = frozenset(
    "cache_creation_input_tokens cache_read_input_tokens cache_creation server_tool_use service_tier".split()
)
_RESPONSES = frozenset({"input_tokens_details", "output_tokens_details"})
_FIELDS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cached_input_tokens",
    "cache_write": "cache_write_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "reasoning": "reasoning_tokens",
}
_PARTS = ("reasoning_tokens", "cache_write_1h_tokens")
"""Counts that lie inside another one."""
_COUNTED = frozenset(
    "prompt_tokens completion_tokens input_tokens output_tokens cache_creation_input_tokens"
    " cache_read_input_tokens".split()
)
_COUNTED_DETAILS = frozenset(
    "cached_tokens cache_creation_tokens cache_write_tokens reasoning_tokens thinking_tokens".split()
)
_DETAILS = frozenset(
    "prompt_tokens_details completion_tokens_details input_tokens_details output_tokens_details".split()
)


class ForeignUsage(Struct, frozen=True):
    """The usage that an API reported, and those of its fields that no count of ours holds."""

    usage: Usage
    rest: dict[str, Any]


def foreign_usage(value: Mapping[str, Any]) -> ForeignUsage | None:
    """A usage in the words of an API; None where it has none of their names."""
    if not (all(name in value for name in _CHAT) or (_ANTHROPIC | _RESPONSES) & value.keys()):
        return None
    counts = chat_counts(value)
    if counts is None or any(count is not None and not 0 <= count < 2**53 for count in counts.values()):
        return None
    if (one_hour := counts["cache_write_1h"]) is not None:
        counts["cache_write_1h"] = one_hour_part(one_hour, counts["cache_write"])
    tokens = {_FIELDS[name]: count for name, count in counts.items() if count is not None}
    if "output_tokens" in tokens and _is_beside(value, reasoning := tokens.get("reasoning_tokens", 0)):
        tokens["output_tokens"] += reasoning
    total = sum(count for name, count in tokens.items() if name not in _PARTS)
    return ForeignUsage(Usage(**tokens), _rest(value, total))


def _is_beside(value: Mapping[str, Any], reasoning: int) -> bool:
    """Some servers count reasoning beside the completion: their total tells."""
    parts = [value.get(name) for name in _CHAT]
    if not reasoning or not all(isinstance(part, int) for part in parts):
        return False
    return value.get("total_tokens") == sum(part for part in parts if isinstance(part, int)) + reasoning


def _rest(value: Mapping[str, Any], total: int) -> dict[str, Any]:
    """The fields that say more than the counts: costs, audio, tiers, a total that is another one."""
    rest: dict[str, Any] = {}
    for name, field in value.items():
        if name in _DETAILS and isinstance(field, Mapping):
            field = {key: count for key, count in field.items() if key not in _COUNTED_DETAILS and count}
        if field and name not in _COUNTED and (name, field) != ("total_tokens", total):
            rest[name] = field
    return rest


def chat_counts(usage: Any) -> Counts | None:
    """Chat completions' count, as LiteLLM gives it for every provider: what was cached or written to the cache lies
    inside the prompt, reasoning inside the completion. Another API's count where it is none."""
    counts = _mapping(usage)
    prompt, output = _whole(counts.get("prompt_tokens")), _whole(counts.get("completion_tokens"))
    if prompt is None and output is None:
        return response_counts(counts)
    prompt_details = _mapping(counts.get("prompt_tokens_details"))
    output_details = _mapping(counts.get("completion_tokens_details"))
    cached = _first_count(prompt_details.get("cached_tokens"), counts.get("cache_read_input_tokens"))
    written = _first_count(
        counts.get("cache_creation_input_tokens"),
        prompt_details.get("cache_creation_tokens"),
        prompt_details.get("cache_write_tokens"),
    )
    return {
        "input": uncached_input(prompt, cached, written),
        "output": output,
        "cached": cached,
        "cache_write": written,
        "cache_write_1h": one_hour_writes(counts),
        "reasoning": _whole(output_details.get("reasoning_tokens")),
    }


def response_counts(usage: Mapping[str, Any]) -> Counts | None:
    """The count of OpenAI's responses (the cache lies inside the input) or of Anthropic's messages (beside it)."""
    prompt, output = _whole(usage.get("input_tokens")), _whole(usage.get("output_tokens"))
    if prompt is None and output is None:
        return None
    inside, output_details = _mapping(usage.get("input_tokens_details")), _mapping(usage.get("output_tokens_details"))
    cached, written = _whole(inside.get("cached_tokens")), _whole(inside.get("cache_write_tokens"))
    return {
        "input": uncached_input(prompt, cached, written),
        "output": output,
        "cached": _first_count(cached, usage.get("cache_read_input_tokens")),
        "cache_write": _first_count(written, usage.get("cache_creation_input_tokens")),
        "cache_write_1h": one_hour_writes(usage),
        "reasoning": _first_count(output_details.get("reasoning_tokens"), output_details.get("thinking_tokens")),
    }


def one_hour_writes(usage: Mapping[str, Any]) -> int | None:
    """Anthropic's count of what was written to the cache for an hour; LiteLLM gives it inside the prompt's details."""
    details = _mapping(usage.get("prompt_tokens_details")).get("cache_creation_token_details")
    durations = _mapping(usage.get("cache_creation")) or _mapping(details)
    return _whole(durations.get("ephemeral_1h_input_tokens"))


def one_hour_part(one_hour: int, written: int | None) -> int:
    """At most what was written to the cache at all, whatever an API or an origin reports."""
    return min(one_hour, written or 0)


def uncached_input(total: int | None, cached: int | None, written: int | None) -> int | None:
    """The input without what came from the cache or went there; as it is where it cannot have held them."""
    if total is None:
        return None
    inside = (cached or 0) + (written or 0)
    return total - inside if inside <= total else total


def _first_count(*values: Any) -> int | None:
    return next((number for value in values if (number := _whole(value)) is not None), None)


def _whole(value: Any) -> int | None:
    """A whole number, also one that is written as a fraction (`3.0`)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
