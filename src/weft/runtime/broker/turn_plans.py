"""How a turn is run: which model answers, in whose name, with which tools and limits.

Whether its next request fits the model, the cut that makes it fit, and the compaction that comes
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.enums import MessageSource, RunReason
from weft.kernel.errors import ContextTooLong
from weft.kernel.events import EventRef, Usage
from weft.ledger.api import (
    CUT_PARAMETER,
    NO_CUT,
    Context,
    InboxMessage,
    InputChain,
    RunConfig,
    Runs,
    SessionStanding,
    TurnRetry,
    as_sent,
    principals_of,
)
from weft.ledger.model import Message, NewMessage
from weft.runtime.assembly.compaction import (
    CompactionSettings,
    CompactionWriter,
    CountTokens,
    compact_if_due,
    compaction_settings,
    recover_from_overflow,
)
from weft.runtime.assembly.context_fitting import (
    ContextBudget,
    FittedContext,
    MeasuredRequest,
    apply_cut,
    budget_of,
    cut_to_fit,
    layers_of,
)
from weft.runtime.assembly.system_prompts import SystemPrompt, WorkspaceRules
from weft.runtime.assembly.turn_configuration import TurnConfiguration, UnattendedTurn
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    NO_PARAMETERS,
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    RequestBudget,
    estimated_tokens,
)
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.tool.tool_contract import NO_TOOLS, Gate, Tools

# --- How a turn is run: which model answers, in whose name, with which tools and limits.

RUN_REASONS = {
    MessageSource.HUMAN.value: RunReason.USER,
    MessageSource.AGENT.value: RunReason.SUBAGENT,
    **dict.fromkeys(("trigger", "webhook", "cron", "event"), RunReason.SCHEDULE),
}
"""Why a turn runs, by the source of the message that it is begun for."""


class ShortenedContext(Struct, frozen=True, kw_only=True):
    """What a request is sent in place of one that was too long, and how its record names that."""

    messages: tuple[Message | NewMessage, ...]
    chain: InputChain | None = None
    """None where not all of it is recorded: the request then says nothing of what it was sent."""
    compaction: str | None = None
    """The compaction that it begins with."""


OnOverflow = Callable[[str, Sequence[Message | NewMessage]], Awaitable[ShortenedContext | None]]
"""Called with a turn and what its request was sent, which the provider refused as too long. None: it stays so long."""


class TurnCompaction(Protocol):
    """How the session of a turn is compacted by itself."""

    def may_be_due(self, tokens: int | None, query: Sequence[Message | NewMessage]) -> bool:
        """Whether that can be due before this query, where the last request and its answer took so many tokens."""

    async def before_turn(self, query: Sequence[Message | NewMessage]) -> bool:
        """Compact where it is due; whether it was."""


class TurnPlan(Struct, kw_only=True):
    """What a turn is run with. It is made from the session and the messages alone, so that any broker makes it."""

    model: ModelSettings
    inference: Inference
    acting: ExecutionContext
    setting: RunConfig
    situation: str | None = None
    parameters: ModelParameters = NO_PARAMETERS
    system: str | None = None
    """Replaces the system prompt so far; None leaves it."""
    default_system: str | None = None
    """What this model is told where there is no prompt at all; no other model is sent it."""
    persona: str | None = None
    """The agent that answers, where that is not the session's own."""
    rules: WorkspaceRules | None = None
    """The rules of the workspace that the turn works in, where a person trusts it."""
    tools: Tools = NO_TOOLS
    is_owners: bool = False
    """Whether the ledger's owner began it, by words of their own."""
    unattended: UnattendedTurn | None = None
    """How other people began a turn that nobody watches: it has no tools that write, unless its agent may have."""
    rules_folder: Path | None = None
    """Where the rules that find secrets in results of tools are kept once they are compiled."""
    gate: Gate | None = None
    """Decides about every call. Without one, every tool that is offered may be used."""
    on_asked: Callable[[str], None] | None = None
    """Called with the event of a request to a person, once it is recorded. It does not wait."""
    budget: RequestBudget | None = None
    max_requests: int = 100
    deadline_seconds: float | None = None
    compaction: TurnCompaction | None = None
    """Compacts the session before the turn, where that is due."""
    on_overflow: OnOverflow | None = None
    """Compacts what a request was sent that was too long; it is asked once more with what this gives."""
    is_root: bool = False
    """Whether the turn begins without anything that was said in the session before."""
    parent: str | None = None
    """The failed turn that this one goes on from."""
    retry: TurnRetry | None = None
    """The failed turn that this one tries again."""

    @property
    def prompt(self) -> SystemPrompt:
        return SystemPrompt(text=self.system, default=self.default_system, persona=self.persona, rules=self.rules)


Planner = Callable[[SessionStanding, Sequence[InboxMessage]], Awaitable[TurnPlan]]


class SenderContext(Struct, kw_only=True):
    """What a sender in this process knows of its message beside what the inbox has."""

    plan: TurnPlan | None = None
    planner: Planner | None = None
    """Makes the plan when the turn is begun, where there is none yet."""


def complete_setting(plan: TurnPlan, messages: Sequence[InboxMessage]) -> RunConfig:
    """The circumstances of a turn, with what its messages and its tools say of them where the plan says nothing."""
    setting, first = plan.setting, messages[0]
    if setting.reason is None:
        setting.reason = RUN_REASONS.get(first.source or "", RunReason.USER)
    if setting.source_event_id is None:
        setting.source_event_id = first.source_event_id
    if setting.tools is None and plan.tools:
        setting.tools = list(plan.tools)
    if setting.workspace is None:
        setting.workspace = message_workspace(messages)
    return setting


def is_replay(messages: Sequence[InboxMessage]) -> bool:
    """Whether they replay a recorded turn. Their turn has tools that only whoever sent them has."""
    return any(isinstance(message.overrides, dict) and "replays" in message.overrides for message in messages)


def message_workspace(messages: Sequence[InboxMessage]) -> str | None:
    """The folder that messages were sent from, where they say one; the first counts. Only whoever opened the ledger
    says on which of their folders work is done: of others' messages it is no folder of this machine."""
    own = [message for message in messages if not principals_of(message)]
    contexts = [message.context for message in own if isinstance(message.context, dict)]
    return next((context["workspace"] for context in contexts if isinstance(context.get("workspace"), str)), None)


# --- Whether what a turn's next request is sent fits its model, and the cut that makes it fit.


class FittedRequest(Struct, frozen=True):
    """What a request is sent that was made to fit, and how its record names that."""

    messages: tuple[Message, ...]
    chain: InputChain


class RequestFitting:
    """The size of a turn's next request, its budget, and what is cut of it."""

    def __init__(self, runs: Runs, crossing: Executor, plan: TurnPlan) -> None:
        self._runs, self._crossing, self._plan = runs, crossing, plan
        self.cut = NO_CUT
        self.compaction: str | None = None
        """The compaction that is in effect for the request."""
        self.tokens: int | None = None
        """How large all is that the next request is sent so far; None: that was not measured yet."""

    @cached_property
    def budget(self) -> ContextBudget:
        plan = self._plan
        wanted = plan.model.in_situation(plan.situation, plan.parameters)
        return budget_of(plan.model, wanted, (tool.spec for tool in plan.tools.values()))

    def is_exceeded(self, more: Iterable[NewMessage] = ()) -> bool:
        """Whether the request does not fit, with these messages as well."""
        return self.tokens is not None and self.tokens + estimated_tokens(more) > self.budget.available

    @property
    def parameters(self) -> dict[str, Any]:
        """What the request records of its cut."""
        return {} if self.cut.is_empty else {CUT_PARAMETER: self.cut.record()}

    def add(self, messages: Iterable[Message | NewMessage]) -> None:
        """These are sent as well."""
        if self.tokens is not None:
            self.tokens += estimated_tokens(messages)

    def count(self, usage: Usage | None, answer: NewMessage) -> None:
        """The request was answered, with this."""
        if usage is not None and usage.total_tokens is not UNSET and usage.total_tokens > 0:
            self.tokens = usage.total_tokens
        else:
            self.add([answer])

    def replace(self, messages: Iterable[Message | NewMessage], compaction: str | None) -> None:
        """The request is sent these messages instead, which begin with this compaction."""
        self.compaction, self.cut, self.tokens = compaction, NO_CUT, estimated_tokens(messages)

    async def counted_by_provider(self, messages: Sequence[Message | NewMessage]) -> int | None:
        """What these messages are by the count of the provider; None where it does not count. It is asked only where
        the estimate says that they do not fit. What the tools take is a part of its count, and of the budget."""
        plan = self._plan
        request = InferenceRequest(
            model=plan.model,
            messages=messages,
            situation=plan.situation,
            parameters=plan.parameters,
            tools=tuple(tool.spec for tool in plan.tools.values()),
        )
        count = await plan.inference.count(request, context=plan.acting)
        return None if count.counted_by is None else max(1, count.tokens - self.budget.tools)

    async def fitted_history(self, context: Context, tokens: int | None, own: Sequence[NewMessage]) -> FittedContext:
        """The same as `cut_history`; where that would cut further, the provider counts first."""
        fitted = self.cut_history(context, tokens, own)
        if not fitted.is_new:
            return fitted
        counted = await self.counted_by_provider([*apply_cut(layers_of(context), context.cut), *own])
        return fitted if counted is None else self.cut_history(context, counted - estimated_tokens(own), own)

    def cut_history(self, context: Context, tokens: int | None, own: Sequence[NewMessage]) -> FittedContext:
        """What is sent of all that was said before a turn, beside its own messages. `tokens` is how large that was with
        the last request and its answer, where that is known."""
        budget, own_tokens = self.budget, estimated_tokens(own)
        rest = ContextBudget(window=max(1, budget.available - own_tokens), output=0)
        layers, before = layers_of(context), context.cut
        measured = None if tokens is None else _measured_request(apply_cut(layers, before), tokens)
        fitted = cut_to_fit(layers, rest, measured, before, context.compaction)
        self.compaction, self.cut, self.tokens = context.compaction, fitted.cut, fitted.fit.tokens + own_tokens
        return fitted

    async def resume(self, turn: str, compaction: str | None) -> None:
        """Go on with a turn that another broker began, whose last request was cut by what it says."""
        self.cut, self.compaction = await self._crossing.run(lambda: self._runs.cut(turn)), compaction

    async def measure(
        self, turn: str, chain: InputChain, since: Sequence[str | EventRef], *, is_answered: bool
    ) -> None:
        """Of such a turn: how large all is that its next request is sent. Where its last request was answered, what the
        provider counted holds."""
        counted = None
        if is_answered:
            counted = await self._crossing.run(lambda: self._runs.counted_tokens(turn, self.compaction))
        refs = since if counted is not None else [*chain.refs, *since]
        messages = await self._crossing.run(lambda: self._runs.messages(refs))
        self.tokens = (counted or 0) + estimated_tokens(as_sent(messages, self.cut))

    async def cut_request(
        self,
        turn: str,
        chain: InputChain,
        since: Sequence[str | EventRef],
        window: int | None = None,
        more: Sequence[NewMessage] = (),
    ) -> FittedRequest | None:
        """What the next request of an open turn is sent: what its chain names and what was recorded since, cut. None
        where it fits by the count of the provider, nothing more can be cut, or not all of it is recorded. `more` is
        sent as well."""
        messages = await self._crossing.run(lambda: self._runs.messages([*chain.refs, *since]))
        if window is None and (counted := await self.counted_by_provider(as_sent(messages, self.cut))) is not None:
            self.tokens = counted
            if not self.is_exceeded(more):
                return None
        budget = self.budget if window is None else ContextBudget(window=window, output=0)
        measured = None if self.tokens is None else _measured_request(messages, self.tokens)
        layers = layers_of(Context(messages, (), self.compaction), turn)
        before = replace(self.cut, compaction=self.compaction, left_out_through=None)  # left out, they are not named
        fitted = cut_to_fit(layers, budget, measured, before, self.compaction)
        if not fitted.is_new:
            return None
        named = await self._crossing.run(lambda: self._runs.input_chain(fitted.recorded, turn))
        if named is None:
            return None
        self.cut = replace(fitted.cut, left_out_through=fitted.cut.left_out_through or self.cut.left_out_through)
        self.tokens = fitted.fit.tokens
        return FittedRequest(fitted.sent, named.part(0, len(named.refs) - len(since)))


def _measured_request(messages: Sequence[Message], tokens: int) -> MeasuredRequest:
    return MeasuredRequest(tuple(message.id for message in messages), tokens)


# --- Compaction as a broker needs it: before a turn where it is due, and once where a request was refused as too long.


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
        count: CountTokens | None = None,
    ) -> None:
        self._ledger, self._inference, self._session = ledger, inference, session
        self._writer, self._budget, self._count = writer, budget, count

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
            self._ledger, self._inference, self._session, self._writer, self._budget, query, self._count
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
