"""How a turn is run: which model answers, in whose name, with which tools and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from weft.kernel.enums import MessageSource, RunReason
from weft.ledger.api import InboxMessage, InputChain, SessionStanding, Setting, TurnRetry, principals_of
from weft.ledger.model import Message, NewMessage
from weft.runtime.assembly.prompts import SystemPrompt, WorkspaceRules
from weft.runtime.broker.tools import NO_TOOLS, Gate, Tools
from weft.runtime.configuration.unattended import UnattendedTurn
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.budgets import Budget
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.settings import NO_PARAMETERS, ModelSettings, Parameters

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
    setting: Setting
    situation: str | None = None
    parameters: Parameters = NO_PARAMETERS
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
    budget: Budget | None = None
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


class Sending(Struct, kw_only=True):
    """What a sender in this process knows of its message beside what the inbox has."""

    plan: TurnPlan | None = None
    planner: Planner | None = None
    """Makes the plan when the turn is begun, where there is none yet."""


def complete_setting(plan: TurnPlan, messages: Sequence[InboxMessage]) -> Setting:
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
