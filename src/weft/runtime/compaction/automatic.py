"""Compactions that nobody asks for: before a request where one is due, and once after a context was too long.

Neither fails a turn: where there is nothing to compact, nothing is done, and the request is made, or its failure
stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.enums import CompactionTrigger
from weft.kernel.errors import NotApplicable, WeftError
from weft.ledger.api import Context
from weft.ledger.model import Compaction, Message, NewMessage
from weft.runtime.assembly.last_request import last_request
from weft.runtime.assembly.sizes import ContextBudget, fit_of
from weft.runtime.compaction.compact import compact, context_under, since_compaction
from weft.runtime.compaction.triggers import CompactionSettings, due, due_after
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.settings import ModelSettings
from weft.runtime.turns.ledger_port import RuntimeLedger


class CompactionWriter(Struct, frozen=True):
    """By which settings a session is compacted, which model writes the summary, and in whose name it is asked."""

    settings: CompactionSettings
    model: ModelSettings | None
    context: ExecutionContext


async def compact_if_due(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    writer: CompactionWriter,
    budget: ContextBudget,
    query: Sequence[Message | NewMessage] = (),
) -> Compaction | None:
    """Before a turn begins: compact its session where its size with this query, or its period, makes that due. `budget`
    is that of the model that the turn asks."""
    context = await ledger.context(session=session)
    measured = (await last_request(ledger, context)).measured
    fit = fit_of((*context.messages, *query), budget, measured)
    trigger = due(writer.settings, fit, await since_compaction(ledger, context))
    return None if trigger is None else await _compacted(ledger, inference, session, writer, trigger, budget.window)


async def recover_from_overflow(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    writer: CompactionWriter,
    budget: ContextBudget,
    seen: Context,
    error: WeftError,
    *,
    recovered: bool,
) -> tuple[Compaction, Context] | None:
    """Within a turn whose request was refused as too long: a compaction beside the thread, and what `seen`, the context
    of that turn, is under it. `recovered`: this was done in this turn already. Whoever finishes the turn has the
    session choose the compaction afterwards. None: it is no such refusal, or there is nothing to compact.

    The provider counted more than was believed to fit, so half the window is reckoned with."""
    trigger = due_after(error, recovered=recovered)
    if trigger is None:
        return None
    compaction = await _compacted(ledger, inference, session, writer, trigger, budget.window // 2)
    return None if compaction is None else (compaction, await context_under(ledger, seen, compaction))


async def _compacted(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    writer: CompactionWriter,
    trigger: CompactionTrigger,
    window: int,
) -> Compaction | None:
    settings = writer.settings
    try:
        return await compact(
            ledger,
            inference,
            session,
            model=writer.model,
            context=writer.context,
            strategy=settings.strategy,
            trigger=trigger,
            focus=settings.focus,
            keep=await _kept(ledger, session, settings.keep),
            window=window,
            beside=trigger is CompactionTrigger.OVERFLOW_RECOVERY,
        )
    except NotApplicable:  # nothing was said yet, or every turn waits for the result of a call
        return None


async def _kept(ledger: RuntimeLedger, session: str, keep: int | None) -> int | None:
    """A session with no more turns than are to be kept keeps all but the first: it is too large as it is."""
    if keep is None:
        return None
    turns = len((await ledger.context(session=session)).turns)
    return min(keep, max(0, turns - 1))
