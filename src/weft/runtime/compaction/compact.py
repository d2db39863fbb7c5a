"""One compaction: read the session's context, divide it, have the past summarised, record what came of it.

Nothing is written before the summary is there, and recording it is one append: whoever dies in between leaves the
session as it was. Turns that came in meanwhile lie behind the kept ones and are seen in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import CompactionTrigger
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api import Context
from weft.ledger.model import Compaction, Message, TextPart
from weft.runtime.assembly.last_request import last_request
from weft.runtime.assembly.layers import ContextLayers, TurnMessages, divisions, layers_of
from weft.runtime.assembly.sizes import DEFAULT_WINDOW_TOKENS, context_tokens
from weft.runtime.compaction.strategies import (
    CompactionStrategy,
    PastSummariser,
    StrategySummary,
    load_strategy,
    untitled,
)
from weft.runtime.compaction.summaries import ExtractSummariser, Past, Summariser
from weft.runtime.compaction.triggers import SinceCompaction
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.budgets import Budget
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.settings import ModelSettings
from weft.runtime.inference.token_estimates import estimated_tokens
from weft.runtime.turns.ledger_port import RuntimeLedger

KEPT_SHARE = 0.4
"""Where nobody says how many turns are kept, those that are take at most so much of the window."""
NO_MODEL = "none"
"""Recorded as the model of a compaction for which no model answered."""


async def compact(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    *,
    model: ModelSettings | None,
    context: ExecutionContext,
    strategy: str = "summary",
    trigger: CompactionTrigger = CompactionTrigger.MANUAL,
    focus: str | None = None,
    keep: int | None = None,
    window: int = DEFAULT_WINDOW_TOKENS,
    beside: bool = False,
    budget: Budget | None = None,
    clock: Clock | None = None,
) -> Compaction:
    """Compact a session now. `model` writes the summary; `window` is that of the model whose context it is.

    With `beside` the compaction lies beside the thread and the session does not go by it yet: for a turn under way,
    which is asked again with `context_under` and has the session choose the compaction when it ends."""
    chosen = load_strategy(strategy)
    summariser = _summariser(ledger, inference, chosen, model, context, budget)
    clock = clock or SystemClock()
    began = clock.monotonic()
    opened = await ledger.session(session)
    before = await ledger.context(session=opened.label)
    layers = layers_of(before)
    place = division(layers.turns, chosen, keep, int(KEPT_SHARE * window))
    past = Past(
        turns=layers.turns[:place],
        earlier="\n".join(untitled(message.text) for message in layers.summary),
        focus=focus,
    )
    summary = await chosen.summarise(past, summariser)
    measured = (await last_request(ledger, before)).measured
    turn = await ledger.compactions.record(
        summary=summary.text,
        session=None if beside else opened.label,
        parent=opened.head if beside else UNSET,
        **_range(layers.turns, place),
        model=summary.summary.model or NO_MODEL,
        provider=summary.summary.provider,
        compaction_type=chosen.compaction_type,
        trigger=trigger,
        metadata=_metadata(chosen, summary, past, model, len(layers.turns) - place),
        **_token_figures(layers, place, summary, context_tokens(before.messages, measured)),
        usage=summary.summary.usage,
        duration_ms=max(0, round((clock.monotonic() - began) * 1000)),
    )
    return await ledger.compactions.get(turn.id)


def _summariser(
    ledger: RuntimeLedger,
    inference: Inference,
    strategy: CompactionStrategy,
    model: ModelSettings | None,
    context: ExecutionContext,
    budget: Budget | None,
) -> PastSummariser:
    if not strategy.asks_model:
        return ExtractSummariser()
    if model is None:
        raise InvalidInput(f"the strategy {strategy.name!r} asks a model, and none was named", "name a model")
    ledger.trust.ensure("send a message to a model")
    return Summariser(inference, model, context, budget)


def division(turns: Sequence[TurnMessages], strategy: CompactionStrategy, keep: int | None, room_tokens: int) -> int:
    """How many turns are summarised; the others are kept. No call is parted from its result: rather more is kept, and
    where that would be everything, less."""
    if not turns:
        raise NotApplicable("there is nothing to compact", "record a turn first")
    if keep is not None and (keep < 0 or keep >= len(turns)):
        raise NotApplicable(
            f"{keep} turns are to be kept of {len(turns)}: nothing would be summarised", f"keep 0 to {len(turns) - 1}"
        )
    wanted = len(turns) - (keep if keep is not None else _kept(turns, strategy.default_keep, room_tokens))
    places = [place for place in divisions(turns) if place > 0]
    if not places:
        raise NotApplicable("every turn belongs to a call that has no result yet", "settle the call first")
    return max((place for place in places if place <= wanted), default=places[0])


def _kept(turns: Sequence[TurnMessages], most: int, room_tokens: int) -> int:
    count = 0
    for turn in reversed(turns[1:]):
        room_tokens -= estimated_tokens(turn.messages)
        if count >= most or room_tokens < 0:
            break
        count += 1
    return count


def _range(turns: Sequence[TurnMessages], place: int) -> dict[str, Any]:
    """Named by its first kept turn where there is one: between the two a compaction may lie, which no context shows."""
    return {"first_kept": turns[place].turn} if place < len(turns) else {"through": turns[place - 1].turn}


def _metadata(
    strategy: CompactionStrategy, summary: StrategySummary, past: Past, model: ModelSettings | None, kept: int
) -> dict[str, Any]:
    made = summary.summary
    metadata: dict[str, Any] = {"strategy": strategy.name, "kept_turns": kept, "covered_turns": len(past.turns)}
    optional = {
        "focus": past.focus,
        "requests": made.requests or None,
        "cost_micro_usd": made.cost,
        "model_id": model.id if model is not None and made.requests else None,
        "cut_off": True if made.is_cut_off else None,
        "fallback": None if made.failure is None else {"reason": made.failure, "kind": "extract"},
    }
    return {**metadata, **{name: value for name, value in optional.items() if value is not None}, **summary.metadata}


def _token_figures(layers: ContextLayers, place: int, summary: StrategySummary, before: int) -> dict[str, Any]:
    """What is left is estimated, in the measure of the provider's count where there is one."""
    scale = before / max(1, estimated_tokens(layers.messages))
    kept = (message for turn in layers.turns[place:] for message in turn.messages)
    summary_messages = [Message("", "user", (TextPart(summary.text),), 0, 0)] if summary.text else []
    return {
        "tokens_before": before,
        "tokens_after": round(scale * estimated_tokens((*layers.system, *summary_messages, *kept))),
        "summary_tokens": summary.summary.summary_tokens,
        "summarization_input_tokens": summary.summary.input_tokens,
        "summarization_output_tokens": summary.summary.output_tokens,
    }


async def context_under(ledger: RuntimeLedger, context: Context, compaction: Compaction) -> Context:
    """A context as it is under another compaction of its thread; the messages of a turn under way stay."""
    layers = layers_of(context)
    turns, covered = list(layers.turns), compaction.summarized_through
    first = compaction.first_kept
    names = [turn.turn for turn in turns]
    begin = names.index(first) if first in names else names.index(covered) + 1 if covered in names else 0
    started_at = (await ledger.turn(compaction.turn_id)).started_at
    summary_message = Message(compaction.turn_id, "user", (TextPart(compaction.summary),), -1, started_at)
    under = replace(layers, summary=(summary_message,) if compaction.summary else (), turns=layers.turns[begin:])
    shown = tuple(turn for turn in context.turns if turn in {turn.turn for turn in under.turns})
    return Context(under.messages, shown, compaction.turn_id)


async def since_compaction(ledger: RuntimeLedger, context: Context) -> SinceCompaction:
    """How much was said since the compaction that a session's context goes by."""
    turns = layers_of(context).turns
    if context.compaction is not None and turns:
        compaction, last = await ledger.turn(context.compaction), await ledger.turn(turns[-1].turn)
        turns = turns[max(0, len(turns) - max(0, last.depth - compaction.depth)) :]
    return SinceCompaction(len(turns), sum(estimated_tokens(turn.messages) for turn in turns))
