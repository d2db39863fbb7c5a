"""Compactions: recorded, chosen by sessions, and read."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from weft.ledger.api.base import WAIT, LedgerPart
from weft.ledger.api.recording import check_pins
from weft.ledger.model import (
    Compaction,
    RecordedTurn,
    UsageInput,
)
from weft.ledger.read.contexts import compactions_of, load_compaction
from weft.ledger.sessions import compactions
from weft.ledger.write.append import Patience, requires


class Compactions(LedgerPart):
    """`ledger.compactions`: summaries that stand for turns, and which one a session goes by."""

    @requires("compaction:record")
    def record(
        self,
        *,
        summary: str,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        through: str | None = None,
        first_kept: str | None = None,
        model: str = "unknown",
        provider: str | None = None,
        compaction_type: str = "summary",
        trigger: str | None = None,
        metadata: Any = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        summary_tokens: int | None = None,
        summarization_input_tokens: int | None = None,
        summarization_output_tokens: int | None = None,
        duration_ms: int | None = None,
        usage: UsageInput = None,
        wait: float = WAIT,
    ) -> RecordedTurn:
        """A compaction turn: `summary` stands for all turns through `through`; turns from `first_kept` on are kept.
        `usage` is what a provider reported for writing the summary: reports of usage count it."""
        check_pins(parent, UNSET)
        compaction = compactions.NewCompaction(
            summary=summary,
            through=through,
            first_kept=first_kept,
            model=model,
            provider=provider,
            compaction_type=compaction_type,
            trigger=trigger,
            metadata=metadata,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            summary_tokens=summary_tokens,
            summarization_input_tokens=summarization_input_tokens,
            summarization_output_tokens=summarization_output_tokens,
            duration_ms=duration_ms,
            usage=usage,
        )
        patience = Patience(self._writer, wait, self._ttl)
        return compactions.record_compaction(
            self._writer, compaction, session=session, parent=parent, patience=patience
        )

    @requires("compaction:choose")
    def choose(self, session: str, compaction: str | None) -> None:
        """Let a session go by another compaction of its thread; None: by none, the whole history is seen."""
        compactions.choose_compaction(self._writer, session, compaction)

    def get(self, turn: str) -> Compaction:
        with self._store.read() as txn:
            return load_compaction(txn, self._resolve(txn, turn).turn.id)

    def of_thread(self, name: str) -> list[Compaction]:
        """The compactions of a session's thread or a turn's, the oldest first: those on it, and those beside it, which
        a session can choose."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
            return [load_compaction(txn, turn) for turn in compactions_of(txn, spot.turn, spot.events)]
