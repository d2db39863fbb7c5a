"""Compaction as a broker needs it: before a turn where it is due, and once where a request was refused as too long.

Whether it is due before a turn is looked at only where that can be: the last answer's own count says how near the limit
the session was, so that an ordinary turn of a long thread reads nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.errors import ContextTooLong
from weft.ledger.api import InputChain, Runs
from weft.ledger.model import Message, NewMessage
from weft.runtime.assembly.sizes import ContextBudget
from weft.runtime.broker.plans import ShortenedContext
from weft.runtime.compaction.automatic import CompactionWriter, compact_if_due, recover_from_overflow
from weft.runtime.compaction.triggers import CompactionSettings, compaction_settings
from weft.runtime.configuration.gathering import TurnConfiguration
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.token_estimates import estimated_tokens
from weft.runtime.turns.ledger_port import RuntimeLedger


def session_settings(configuration: TurnConfiguration) -> CompactionSettings:
    """How a session is compacted: its own configuration over that of the agent that answers in it."""
    configs = [
        None if program is None else program.config for program in (configuration.persona, configuration.session)
    ]
    return compaction_settings(*(config if isinstance(config, dict) else None for config in configs))


class SessionCompaction:
    """How one session is compacted by itself."""

    def __init__(
        self,
        ledger: RuntimeLedger,
        inference: Inference,
        session: str,
        writer: CompactionWriter,
        budget: ContextBudget,
    ) -> None:
        self._ledger, self._inference, self._session = ledger, inference, session
        self._writer, self._budget = writer, budget

    def may_be_due(self, tokens: int | None, query: Sequence[Message | NewMessage]) -> bool:
        """Whether a compaction can be due where the last request and its answer took so many tokens; None: that is not
        known. A session that is compacted every so many turns or tokens is always looked at."""
        settings = self._writer.settings
        if not settings.automatic:
            return False
        if tokens is None or settings.every_turns is not None or settings.every_tokens is not None:
            return True
        return tokens + estimated_tokens(query) >= self._budget.share(settings.threshold)

    async def before_turn(self, query: Sequence[Message | NewMessage]) -> bool:
        """Compact the session where that is due; whether it was."""
        compaction = await compact_if_due(
            self._ledger, self._inference, self._session, self._writer, self._budget, query
        )
        return compaction is not None

    async def after_overflow(self, turn: str, sent: Sequence[Message | NewMessage]) -> ShortenedContext | None:
        """What a request of this turn is sent in place of what was too long. The session goes by the compaction from
        now on."""
        seen = await self._ledger.context(turn)
        refusal = ContextTooLong("the context was refused as too long")
        recovered = await recover_from_overflow(
            self._ledger,
            self._inference,
            self._session,
            self._writer,
            self._budget,
            seen,
            refusal,
            recovered=False,
        )
        if recovered is None:
            return None
        compaction, context = recovered
        sync, crossing = self._ledger.sync, self._ledger.crossing
        await crossing.run(lambda: sync.compactions.choose(self._session, compaction.turn_id))
        chain: InputChain | None = await crossing.run(lambda: Runs(sync).input_chain(context.messages, turn))
        return ShortenedContext(messages=context.messages, chain=chain, compaction=compaction.turn_id)
