"""What responses cost.

`token_count` reports the last request and the total so far; a report that repeats the total is no new request. Codex
writes it after the response and its tool results, Codex 0.39 before them: which of the two is learned from the file.
A report without a response of its own (a request that failed, or that summarised) is added to the nearest response of
its turn, so that the sum over a file is its final total; a turn without any response gets one without a word.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import summed_tokens
from weft.exchange.importers.port import Tokens
from weft.exchange.importers.records.values import mapping, whole

_COUNTS = ("total_tokens", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")


def tokens_of(usage: Any) -> Tokens | None:
    """Disjoint parts: for Codex the cached input is part of the input, and reasoning part of the output."""
    counts = mapping(usage)
    prompt, output = whole(counts.get("input_tokens")), whole(counts.get("output_tokens"))
    if prompt is None and output is None:
        return None
    cached = whole(counts.get("cached_input_tokens"))
    written = whole(counts.get("cache_write_input_tokens"))
    return Tokens(
        input=None if prompt is None else max(prompt - (cached or 0) - (written or 0), 0),
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=whole(counts.get("reasoning_output_tokens")),
    )


class Meter:
    """Reads a thread's reports in order."""

    def __init__(self) -> None:
        self._total: tuple[int | None, ...] | None = None
        self.context: int | None = None
        """How many tokens the context held at the last report."""

    def read(self, payload: dict[str, Any]) -> Tokens | None:
        """What a report adds, if it is of a new request."""
        info = mapping(payload.get("info"))
        totals, last = mapping(info.get("total_token_usage")), mapping(info.get("last_token_usage"))
        total = tuple(whole(totals.get(name)) for name in _COUNTS) if totals else None
        self.context = whole(last.get("total_tokens")) or whole(last.get("input_tokens")) or self.context
        if total is not None and total == self._total:
            return None
        self._total = total
        return tokens_of(last)


def says_usage(payload: dict[str, Any]) -> bool:
    """Rate limits alone say nothing of a request."""
    return bool(mapping(mapping(payload.get("info")).get("last_token_usage")))


class Bill(Struct):
    """The responses and reports of one turn in their order: an index of a response, or what was reported."""

    marks: list[int | Tokens]

    def comes_first(self) -> bool | None:
        """Do reports stand before their responses here? None: this turn does not tell."""
        if not any(isinstance(mark, int) for mark in self.marks) or all(isinstance(mark, int) for mark in self.marks):
            return None
        return not isinstance(self.marks[0], int)

    def shares(self, reports_first: bool) -> dict[int, Tokens]:
        """What each response cost."""
        tokens: dict[int, Tokens] = {}
        last: int | None = None
        waiting: Tokens | None = None
        for mark in self.marks:
            if isinstance(mark, Tokens):
                if last is None or reports_first:
                    waiting = summed_tokens(waiting or Tokens(), mark)
                else:
                    tokens[last] = summed_tokens(tokens.get(last) or Tokens(), mark)
            else:
                last = mark
                if waiting is not None:
                    tokens[last], waiting = summed_tokens(tokens.get(last) or Tokens(), waiting), None
        if waiting is not None and last is not None:
            tokens[last] = summed_tokens(tokens.get(last) or Tokens(), waiting)
        return tokens
