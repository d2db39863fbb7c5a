"""A provider that caches prompts as the real ones do, and counts what it read and wrote.

Anthropic caches what stands before a marker, and finds it again by the very same bytes, at a marker or at one of the
twenty blocks before it. OpenAI caches beginnings by themselves, where the key is the same, and Google does without a
key. None of them caches a prompt that is short. A token is four characters of what was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.runtime.inference.model_requests import Dialect

Body = dict[str, Any]
CHARACTERS_A_TOKEN = 4
LEAST_TOKENS = 1024
STEP_TOKENS = 128
"""OpenAI counts what it read in such steps."""
BLOCKS_LOOKED_BACK = 20
MARKER = "cache_control"


@dataclass(frozen=True)
class CacheCounts:
    """What one request was: all of its tokens, those read from the cache, and those written to it."""

    tokens: int
    read: int
    written: int
    for_hour: int = 0

    @property
    def uncached(self) -> int:
        return self.tokens - self.read - self.written


@dataclass
class CachingProvider:
    """What it has cached, and what it counted of every request."""

    dialect: Dialect
    needs_key: bool = True
    """Whether OpenAI caches for nobody who gives no key: without one, requests may reach any of its machines."""
    counts: list[CacheCounts] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    """Of OpenAI's requests."""
    _digests: set[bytes] = field(default_factory=set)
    _by_key: dict[str, list[str]] = field(default_factory=dict)

    def count(self, body: Body) -> CacheCounts:
        """Of one request, which is cached from now on."""
        counted = self._by_markers(body) if self.dialect is Dialect.ANTHROPIC else self._by_beginning(body)
        self.counts.append(counted)
        return counted

    def shares_read(self) -> list[float]:
        """Of every request but the first: how much of the prompt before it was read from the cache."""
        pairs = zip(self.counts, self.counts[1:], strict=False)
        return [now.read / min(before.tokens, now.tokens) for before, now in pairs]

    def _by_markers(self, body: Body) -> CacheCounts:
        digest, size = hashlib.sha256(), 0
        ends: list[tuple[bytes, int]] = []
        marked: list[tuple[int, str]] = []
        for block, ttl in anthropic_blocks(body):
            digest.update(block.encode() + b"\0")
            size += len(block)
            ends.append((digest.digest(), size // CHARACTERS_A_TOKEN))
            if ttl is not None:
                marked.append((len(ends) - 1, ttl))
        assert len(marked) <= 4, "more than four markers"
        read = written = 0
        for place, _ in marked:
            looked_at = ends[max(0, place - BLOCKS_LOOKED_BACK) : place + 1]
            read = max([read, *(tokens for mark, tokens in looked_at if mark in self._digests)])
        for place, _ in marked:
            mark, tokens = ends[place]
            if tokens >= LEAST_TOKENS:
                self._digests.add(mark)
                written = max(written, tokens - read)
        for_hour = written if marked and marked[-1][1] == "1h" else 0
        return CacheCounts(size // CHARACTERS_A_TOKEN, read, written, for_hour)

    def _by_beginning(self, body: Body) -> CacheCounts:
        is_google = self.dialect is Dialect.GOOGLE
        prompt = "\0".join(google_blocks(body) if is_google else openai_blocks(body))
        tokens, key = len(prompt) // CHARACTERS_A_TOKEN, body.get("prompt_cache_key")
        if not is_google:
            self.keys.append(key)
            if key is None and self.needs_key:
                return CacheCounts(tokens, 0, 0)
        earlier = self._by_key.setdefault(key or "", [])
        longest = max((common_length(prompt, other) for other in earlier), default=0) // CHARACTERS_A_TOKEN
        earlier.append(prompt)
        return CacheCounts(tokens, longest // STEP_TOKENS * STEP_TOKENS if longest >= LEAST_TOKENS else 0, 0)

    def usage(self, body: Body, output_tokens: int) -> Body:
        """What the answer to a request tells of it, as its wire form does."""
        counted = self.count(body)
        if self.dialect is Dialect.ANTHROPIC:
            lasting = {"ephemeral_1h_input_tokens": counted.for_hour}
            lasting["ephemeral_5m_input_tokens"] = counted.written - counted.for_hour
            return {
                "input_tokens": counted.uncached,
                "cache_read_input_tokens": counted.read,
                "cache_creation_input_tokens": counted.written,
                "cache_creation": lasting,
                "output_tokens": output_tokens,
            }
        if self.dialect is Dialect.GOOGLE:
            asked: Body = {"promptTokenCount": counted.tokens, "cachedContentTokenCount": counted.read}
            total_tokens = counted.tokens + output_tokens
            return {**asked, "candidatesTokenCount": output_tokens, "totalTokenCount": total_tokens}
        if self.dialect is Dialect.OPENAI_CHAT:
            told: Body = {"prompt_tokens": counted.tokens, "completion_tokens": output_tokens}
            told["total_tokens"] = counted.tokens + output_tokens
            return {**told, "prompt_tokens_details": {"cached_tokens": counted.read}}
        total: Body = {"total_tokens": counted.tokens + output_tokens, "output_tokens_details": {"reasoning_tokens": 0}}
        told = {"input_tokens": counted.tokens, "output_tokens": output_tokens, **total}
        return {**told, "input_tokens_details": {"cached_tokens": counted.read}}


def anthropic_blocks(body: Body) -> Iterator[tuple[str, str | None]]:
    """A prompt in the order in which it is cached, each block with the time of its marker. How a model thinks, and
    which tool it must call, counts as a block before what was said."""
    system = body.get("system") or []
    yield from map(_block, body.get("tools") or ())
    yield from map(_block, [{"type": "text", "text": system}] if isinstance(system, str) else system)
    yield json.dumps([body["model"], body.get("thinking"), body.get("tool_choice")]), None
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block, ttl in map(_block, blocks):
            yield message["role"] + block, ttl


def _block(block: Body) -> tuple[str, str | None]:
    marker = block.get(MARKER)
    plain = {name: value for name, value in block.items() if name != MARKER}
    return json.dumps(plain), None if marker is None else marker.get("ttl", "5m")


def openai_blocks(body: Body) -> Iterator[str]:
    yield json.dumps([body["model"], body.get("reasoning"), body.get("tools"), body.get("instructions")])
    yield from (json.dumps(item) for item in body.get("input") or body["messages"])


def google_blocks(body: Body) -> Iterator[str]:
    """The system prompt and the tools, then what was said, part by part."""
    yield json.dumps([body.get("systemInstruction"), body.get("tools"), body.get("toolConfig")])
    for content in body["contents"]:
        yield content["role"]
        yield from (json.dumps(part) for part in content["parts"])


def common_length(left: str, right: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
