"""What a session cost. A response tells its output alone; all the rest is told by model when the session ends."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, text, whole

COUNTS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")
OLDER = {"inputTokens": "input", "outputTokens": "output", "cacheReadTokens": "cachedInput"}
Counts = dict[str, int]


class Spending:
    """What is told of the session's cost while its events are read."""

    def __init__(self) -> None:
        self._known: dict[str, Counts] = {}
        """By model, what responses have told themselves since the session was last summed up."""
        self._before: dict[str, Counts] = {}

    def note(self, model: str | None, told: dict[str, Any]) -> None:
        known = self._known.setdefault(model or "", dict.fromkeys(COUNTS, 0))
        for name, count in counted(told).items():
            known[name] += count

    def sum_up(self, end: dict[str, Any]) -> dict[str, Tokens]:
        """By model, what no response has told. A session that is resumed goes on counting; one that has less than it
        had has begun anew."""
        told = {model: counted(mapping(mapping(each).get("usage"))) for model, each in _metrics(end).items()}
        goes_on = all(told.get(model, {}).get(name, 0) >= count
                      for model, each in self._before.items() for name, count in each.items())  # fmt: skip
        found = {}
        for model, each in told.items():
            before = self._before.get(model, {}) if goes_on else {}
            known = self._known.get(model, {})
            left = {name: max(count - before.get(name, 0) - known.get(name, 0), 0) for name, count in each.items()}
            if any(left.values()):
                found[model] = tokens(left)
        self._known, self._before = {}, told
        return found


def _metrics(end: dict[str, Any]) -> dict[str, Any]:
    return mapping(end.get("modelMetrics"))


def counted(told: dict[str, Any]) -> Counts:
    return {name: max(_count(told, name) or 0, 0) for name in COUNTS}


def _count(told: dict[str, Any], name: str) -> int | None:
    found = whole(told.get(name))
    return whole(told.get(OLDER[name])) if found is None and name in OLDER else found


def tokens(told: dict[str, Any]) -> Tokens:
    """Input holds what was read from the cache and written to it."""
    given, output, cached, written, reasoning = (_count(told, name) for name in COUNTS)
    return Tokens(
        input=None if given is None else max(given - (cached or 0) - (written or 0), 0),
        output=output,
        cached=cached,
        cache_write=written,
        reasoning=reasoning,
    )


def of_compaction(data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    used = mapping(data.get("compactionTokensUsed"))
    return text(used.get("model")), used
