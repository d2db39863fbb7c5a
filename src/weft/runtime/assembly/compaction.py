"""Compactions: when one is due, how it is made and recorded, and how several of a thread compare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import CompactionTrigger
from weft.kernel.errors import ContextTooLong, InvalidConfig, InvalidInput, NotApplicable, WeftError
from weft.kernel.events import Usage
from weft.ledger.api import Context, Ledger, PriceTable
from weft.ledger.model import Compaction, Message, NewMessage, TextPart
from weft.runtime.assembly.context_fitting import (
    DEFAULT_WINDOW_TOKENS,
    ContextBudget,
    ContextFit,
    ContextLayers,
    TurnMessages,
    context_tokens,
    divisions,
    fit_of,
    last_request,
    layers_of,
)
from weft.runtime.assembly.summaries import (
    CompactionStrategy,
    ExtractSummariser,
    PastSummariser,
    StrategySummary,
    SummarisedPast,
    Summariser,
    key_terms,
    load_strategy,
    plain_text,
    untitled,
)
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelSettings, RequestBudget, cost_of, estimated_tokens
from weft.runtime.ledger_port import RuntimeLedger

# --- When a session is compacted: by its settings, the size of its context, and what came of the last request.

FIELD = "compaction"
"""The field of a session's and an agent's configuration."""
DEFAULT_THRESHOLD = 0.8
"""The share of the window from which on a context is compacted."""
Count = Annotated[int, Meta(ge=1)]


class CompactionSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a session is compacted by itself. Without `model` its own model writes summaries; without `every_turns` and
    `every_tokens` only its size makes a compaction due. With `automatic` false none is made but by hand and where a
    provider refused the context as too long."""

    model: str | None = None
    strategy: str = "summary"
    threshold: Annotated[float, Meta(gt=0, le=1)] = DEFAULT_THRESHOLD
    every_turns: Count | None = None
    every_tokens: Count | None = None
    keep: Annotated[int, Meta(ge=0)] | None = None
    focus: str | None = None
    automatic: bool = True


class SinceCompaction(Struct, frozen=True):
    """How much was said since the compaction in effect, or since the beginning."""

    turns: int
    tokens: int


def compaction_settings(*configs: Mapping[str, Any] | None) -> CompactionSettings:
    """Of several configurations, each over the ones before, field by field; such as the agent's, then the session's."""
    merged: dict[str, Any] = {}
    for config in configs:
        fields = (config or {}).get(FIELD)
        if isinstance(fields, Mapping):
            merged |= fields
    try:
        return msgspec.convert(merged, CompactionSettings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"config.{FIELD}", str(error), "mend it") from None


def due(settings: CompactionSettings, fit: ContextFit, since: SinceCompaction) -> CompactionTrigger | None:
    """Why a compaction is to be made before the next request; None: none is. A context in which nothing was said since
    the last one is not compacted again: it would not become smaller."""
    if not settings.automatic or since.turns == 0:
        return None
    if fit.has_reached(settings.threshold):
        return CompactionTrigger.CONTEXT_LIMIT
    if settings.every_turns is not None and since.turns >= settings.every_turns:
        return CompactionTrigger.PERIODIC
    if settings.every_tokens is not None and since.tokens >= settings.every_tokens:
        return CompactionTrigger.PERIODIC
    return None


def due_after(error: WeftError, *, recovered: bool) -> CompactionTrigger | None:
    """Whether a request that failed is to be asked once more, after a compaction; never twice in one turn."""
    is_overflow = isinstance(error, ContextTooLong) and not recovered
    return CompactionTrigger.OVERFLOW_RECOVERY if is_overflow else None


# --- One compaction: read the session's context, divide it, have the past summarised, record what came of it.

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
    budget: RequestBudget | None = None,
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
    past = SummarisedPast(
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
    budget: RequestBudget | None,
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
    wanted = len(turns) - (keep if keep is not None else _turns_with_room(turns, strategy.default_keep, room_tokens))
    places = [place for place in divisions(turns) if place > 0]
    if not places:
        raise NotApplicable("every turn belongs to a call that has no result yet", "settle the call first")
    return max((place for place in places if place <= wanted), default=places[0])


def _turns_with_room(turns: Sequence[TurnMessages], most: int, room_tokens: int) -> int:
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
    strategy: CompactionStrategy, summary: StrategySummary, past: SummarisedPast, model: ModelSettings | None, kept: int
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


# --- Compactions that nobody asks for: before a request where one is due, and once after a context was too long.


class CompactionWriter(Struct, frozen=True):
    """By which settings a session is compacted, which model writes the summary, and in whose name it is asked."""

    settings: CompactionSettings
    model: ModelSettings | None
    context: ExecutionContext


CountTokens = Callable[[Sequence[Message | NewMessage]], Awaitable[int | None]]
"""What a provider counts of messages; None where it does not count."""


async def compact_if_due(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    writer: CompactionWriter,
    budget: ContextBudget,
    query: Sequence[Message | NewMessage] = (),
    count: CountTokens | None = None,
) -> Compaction | None:
    """Before a turn begins: compact its session where its size with this query, or its period, makes that due. `budget`
    is that of the model that the turn asks. Where the size makes it due by the estimate, `count` asks its provider."""
    context = await ledger.context(session=session)
    measured = (await last_request(ledger, context)).measured
    fit = fit_of((*context.messages, *query), budget, measured)
    since = await since_compaction(ledger, context)
    trigger = due(writer.settings, fit, since)
    if trigger is CompactionTrigger.CONTEXT_LIMIT and count is not None:
        counted = await count((*context.messages, *query))
        trigger = trigger if counted is None else due(writer.settings, ContextFit(counted, budget), since)
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
            keep=await _turns_to_keep(ledger, session, settings.keep),
            window=window,
            beside=trigger is CompactionTrigger.OVERFLOW_RECOVERY,
        )
    except NotApplicable:  # nothing was said yet, or every turn waits for the result of a call
        return None


async def _turns_to_keep(ledger: RuntimeLedger, session: str, keep: int | None) -> int | None:
    """A session with no more turns than are to be kept keeps all but the first: it is too large as it is."""
    if keep is None:
        return None
    turns = len((await ledger.context(session=session)).turns)
    return min(keep, max(0, turns - 1))


# --- Several compactions of one thread, side by side: what each kept, what is lost in it, and what it cost.

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
