"""Compacts a session as its configuration says, or as a person asks for once."""

from __future__ import annotations

from weft.kernel.enums import CompactionTrigger
from weft.ledger.model import Compaction
from weft.runtime.assembly.sizes import DEFAULT_WINDOW_TOKENS, window_of
from weft.runtime.broker.compacting import session_settings
from weft.runtime.compaction.compact import compact
from weft.runtime.compaction.strategies import load_strategy
from weft.runtime.configuration.gathering import TurnRequest
from weft.runtime.invoke.invocation import InvocationContext
from weft.runtime.invoke.session import ensure_open


async def compact_session(
    context: InvocationContext,
    session: str,
    *,
    strategy: str | None = None,
    model: str | None = None,
    focus: str | None = None,
    keep: int | None = None,
    trigger: CompactionTrigger = CompactionTrigger.MANUAL,
) -> Compaction:
    """What is not given is what the session's configuration says, then its agent's. The summary is written by the model
    that is named for compactions, else by the one that the session's next turn asks."""
    program = await context.get(session)
    ensure_open(program)
    configuration = await context.configuration(TurnRequest(session=program.id))
    settings = session_settings(configuration)
    chosen = load_strategy(strategy or settings.strategy)
    writer, acting = configuration.model, configuration.context
    if model or settings.model:
        configured = await context.model(str(model or settings.model), acting)
        writer, acting = configured.model, configured.context
    elif chosen.asks_model:
        writer = configuration.require_model()
    return await compact(
        context.ledger,
        context.inference,
        program.name,
        model=writer,
        context=acting,
        strategy=chosen.name,
        trigger=trigger,
        focus=focus or settings.focus,
        keep=settings.keep if keep is None else keep,
        window=DEFAULT_WINDOW_TOKENS if configuration.model is None else window_of(configuration.model),
    )
