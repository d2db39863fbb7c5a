"""Several compactions of one thread, side by side: what each kept, what is lost in it, and what it cost.

What survives is measured by the terms of all turns before a compaction: paths, identifiers, addresses. A term survives
where the summary or a kept turn still holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.events import Usage
from weft.ledger.api import Ledger, PriceTable
from weft.ledger.model import Compaction
from weft.runtime.compaction.compact import NO_MODEL
from weft.runtime.compaction.key_terms import key_terms, plain_text
from weft.runtime.inference.budgets import cost_of

MOST_COMPARED_TURNS = 2_000
"""So many of the newest turns before a compaction are looked through for terms."""


class ComparedCompaction(Struct, frozen=True, kw_only=True):
    """A compaction of a thread, and what became of what it stands for."""

    compaction: Compaction
    strategy: str
    in_effect: bool
    """Whether the session's next turn goes by it."""
    kept_turns: int
    survived: tuple[str, ...]
    """The terms that the summary or a kept turn still holds, the most frequent first."""
    lost: tuple[str, ...]
    cost_micro_usd: int | None
    """What the summary cost; null where that is not known."""
    is_extract: bool
    """Whether it was made without a model because the model failed."""


def compare_compactions(ledger: Ledger, session: str, prices: PriceTable) -> list[ComparedCompaction]:
    """All compactions of a session's thread, the oldest first."""
    in_effect = ledger.context(session=session).compaction
    compactions = ledger.compactions.of_thread(session)
    texts = _ThreadTexts(ledger, session) if compactions else None
    return [
        _compared(ledger, compaction, texts, prices, compaction.turn_id == in_effect)
        for compaction in compactions
        if texts is not None
    ]


class _ThreadTexts:
    """The turns of a thread in order, and the text of each, read once."""

    def __init__(self, ledger: Ledger, session: str) -> None:
        self._ledger, self._texts = ledger, dict[str, str]()
        turns = list(ledger.thread(session).turns)
        self._ids = [turn.id for turn in turns]
        self._is_compaction = {turn.id: turn.turn_type == "compaction" for turn in turns}

    def through(self, turn: str | None) -> list[str]:
        """The turns up to this one, without compactions."""
        return self.between(self._ids[0], turn)

    def between(self, first: str | None, last: str | None) -> list[str]:
        """The turns from one to another, without compactions."""
        if first not in self._ids or last not in self._ids:
            return []
        ids = self._ids[self._ids.index(first) : self._ids.index(last) + 1]
        return [id for id in ids if not self._is_compaction[id]]

    def text(self, turns: Sequence[str]) -> str:
        return "\n".join(self._text(turn) for turn in turns[-MOST_COMPARED_TURNS:])

    def _text(self, turn: str) -> str:
        if turn not in self._texts:
            self._texts[turn] = plain_text(self._ledger.thread(turn).transcript)
        return self._texts[turn]


def _compared(
    ledger: Ledger, compaction: Compaction, texts: _ThreadTexts, prices: PriceTable, is_in_effect: bool
) -> ComparedCompaction:
    turn = ledger.turn(compaction.turn_id)
    kept = texts.between(compaction.first_kept, turn.parent_id)
    left = f"{compaction.summary}\n{texts.text(kept)}".casefold()
    terms = key_terms(texts.text(texts.through(turn.parent_id)))
    metadata = compaction.metadata if isinstance(compaction.metadata, dict) else {}
    return ComparedCompaction(
        compaction=compaction,
        strategy=str(metadata.get("strategy", compaction.compaction_type)),
        in_effect=is_in_effect,
        kept_turns=len(kept),
        survived=tuple(term for term in terms if term.casefold() in left),
        lost=tuple(term for term in terms if term.casefold() not in left),
        cost_micro_usd=_cost(compaction, metadata, turn.started_at, prices),
        is_extract="fallback" in metadata,
    )


def _cost(compaction: Compaction, metadata: dict[str, Any], at: int, prices: PriceTable) -> int | None:
    """As it was recorded; else by the tokens and the price of the model at that time."""
    recorded = metadata.get("cost_micro_usd")
    if isinstance(recorded, int):
        return recorded
    if compaction.model == NO_MODEL and not metadata.get("requests"):
        return 0
    sent, received = compaction.summarization_input_tokens, compaction.summarization_output_tokens
    if sent is None or received is None:
        return None
    usage = Usage(input_tokens=sent, output_tokens=received)
    return cost_of(usage, prices.price(compaction.model, at, sent))
