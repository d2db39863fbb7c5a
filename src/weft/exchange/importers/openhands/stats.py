"""What responses of V1 cost. The state tells it response by response; events tell running totals only, just before
the response that made them grow."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.chat import added, apart
from weft.exchange.importers.openhands.v0 import difference
from weft.exchange.importers.transcript import Tokens
from weft.exchange.importers.values import mapping, sequence, text, whole

Json = dict[str, Any]
CONDENSER = "condenser"


class Pending(Struct):
    """Tokens that a running total grew by and that no response has taken yet."""

    model: str | None
    tokens: Tokens


class Stats:
    def __init__(self, state: Any) -> None:
        self._known: dict[str, tuple[str | None, Tokens]] = {}
        self._totals: dict[str, Json] = {}
        self._pending: dict[str, Pending] = {}
        self._taken: set[str] = set()
        self._model: str | None = None
        for metrics in map(mapping, mapping(mapping(state).get("usage_to_metrics")).values()):
            self._model = self._model or text(metrics.get("model_name"))
            for usage in map(mapping, sequence(metrics.get("token_usages"))):
                self._learn(usage, text(metrics.get("model_name")))

    def _learn(self, usage: Json, model: str | None) -> None:
        id = text(usage.get("response_id"))
        prompt, cached = whole(usage.get("prompt_tokens")), whole(usage.get("cache_read_tokens"))
        written = whole(usage.get("cache_write_tokens"))
        tokens = Tokens(
            input=apart(prompt, cached, written),
            output=whole(usage.get("completion_tokens")),
            cached=cached,
            cache_write=written,
            reasoning=whole(usage.get("reasoning_tokens")),
        )
        if id is not None:
            self._known[id] = (text(usage.get("model")) or model, tokens)

    def update(self, value: Any) -> None:
        """New running totals, by what the model is used for."""
        if self._known:
            return
        for usage_id, metrics in mapping(mapping(value).get("usage_to_metrics")).items():
            told = mapping(metrics)
            totals = mapping(told.get("accumulated_token_usage"))
            grown = difference(totals, self._totals.get(usage_id, {}))
            self._totals[usage_id] = totals or self._totals.get(usage_id, {})
            model = text(told.get("model_name")) or text(totals.get("model"))
            self._model = self._model or model
            if grown is not None:
                purpose = CONDENSER if CONDENSER in usage_id else "agent"
                waiting = self._pending.get(purpose)
                tokens = grown if waiting is None else added(waiting.tokens, grown)
                self._pending[purpose] = Pending(model, tokens)

    def spent(self, response: str | None) -> tuple[str | None, Tokens | None]:
        """By a response, which takes what the totals grew by since the last one."""
        return self._take(response, "agent")

    def condensed(self, response: str | None) -> tuple[str | None, Tokens | None]:
        return self._take(response, CONDENSER)

    def _take(self, response: str | None, purpose: str) -> tuple[str | None, Tokens | None]:
        if response is not None and response in self._known:
            model, tokens = self._known[response]
            is_first = response not in self._taken
            self._taken.add(response)
            return model, tokens if is_first else None
        pending = self._pending.pop(purpose, None)
        return (self._model, None) if pending is None else (pending.model, pending.tokens)

    def left(self) -> Tokens | None:
        """What no response has taken."""
        found = None
        for pending in self._pending.values():
            found = pending.tokens if found is None else added(found, pending.tokens)
        return found
