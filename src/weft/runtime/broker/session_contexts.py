"""What the first request of a turn is sent, and what a turn leaves behind for the next one of its session.

A request extends the last one of its session: what the last turn left is used again while the session stands where it
stood, and is read from the ledger otherwise. A conversation belongs to one turn at a time, which adds to it what is
new. A turn that does not end well gives nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.enums import MessageRole
from weft.ledger.api import NO_CUT, AddMessage, Context, ContextCut, InboxMessage, InputChain, Runs, SessionStanding
from weft.ledger.model import NewMessage
from weft.runtime.assembly.prompts import changed_prompt
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.broker.request_fitting import RequestFitting
from weft.runtime.broker.turn_entries import TurnEnd
from weft.runtime.broker.turn_runner import TurnRunner
from weft.runtime.inference.settings import ModelConversation
from weft.runtime.inference.token_estimates import estimated_tokens
from weft.runtime.turns.ledger_port import Crossing

MAX_KEPT_CONTEXTS = 256
"""Of so many sessions, those served last, the context is kept."""


class KeptContext(Struct, frozen=True):
    """What a session's next request is sent, as the last turn left it."""

    key: tuple[Any, ...]
    messages: ModelConversation
    chain: InputChain | None
    tokens: int | None = None
    """What the last request and its answer took, as the provider counted."""
    size: int = 0
    """How large the messages are: those tokens, or an estimate."""
    cut: ContextCut = NO_CUT
    """What the last request was cut by."""


class _Before(Struct, frozen=True):
    """What a turn's first request is sent before its own messages: the prompt that the turn brings, then what was
    said."""

    brought: list[NewMessage]
    messages: ModelConversation
    chain: InputChain | None


class SessionContexts:
    """The contexts of the sessions that one broker serves."""

    def __init__(self, runs: Runs, crossing: Crossing) -> None:
        self._runs, self._crossing = runs, crossing
        self._kept: dict[str, KeptContext] = {}

    def forget(self, session: str) -> None:
        """Somebody else wrote to the session: what it says is read again."""
        self._kept.pop(session, None)

    def tokens(self, standing: SessionStanding) -> int | None:
        """What the session's last request and its answer took; None where that is not known here, or was cut."""
        kept = self._kept.get(standing.id)
        is_whole = kept is not None and kept.key == _key(standing) and kept.cut.is_empty
        return kept.tokens if kept is not None and is_whole else None

    async def assemble(
        self, runner: TurnRunner, plan: TurnPlan, standing: SessionStanding, messages: Sequence[InboxMessage]
    ) -> Sequence[AddMessage]:
        """What the first request is sent: the prompt, what was said before, the messages; cut where that does not fit.
        Gives what the turn adds before the messages."""
        query = [as_new_message(message) for message in messages]
        before = self._kept_before(runner.fitting, plan, standing, query)
        if before is None or runner.fitting.is_exceeded():
            before = await self._read_before(runner.fitting, plan, standing, query)
        conversation = before.messages
        if before.brought:
            conversation = ModelConversation([*before.brought, *conversation])
        conversation.extend(query)
        runner.messages, runner.chain, runner.brings_prompt = conversation, before.chain, bool(before.brought)
        return [AddMessage(message) for message in before.brought]

    def _kept_before(
        self, fitting: RequestFitting, plan: TurnPlan, standing: SessionStanding, query: Sequence[NewMessage]
    ) -> _Before | None:
        """As the last turn left it; only what is new is measured."""
        kept = self._kept.pop(standing.id, None)
        if kept is None or kept.key != _key(standing) or plan.parent is not None or plan.is_root:
            return None
        brought, is_replaced = changed_prompt(plan.prompt, kept.messages)
        fitting.compaction, fitting.cut, fitting.tokens = standing.compaction, kept.cut, kept.size
        fitting.add([*brought, *query])
        if not is_replaced:
            return _Before(brought, kept.messages, kept.chain)
        chain = None if kept.chain is None else kept.chain.part(1)
        return _Before(brought, ModelConversation(kept.messages[1:]), chain)

    async def _read_before(
        self, fitting: RequestFitting, plan: TurnPlan, standing: SessionStanding, query: Sequence[NewMessage]
    ) -> _Before:
        """As the ledger tells it, cut as the last request was, and further where it does not fit."""
        context, at = await self._read(plan, standing)
        brought, is_replaced = changed_prompt(plan.prompt, context.messages)
        if is_replaced:
            context = replace(context, messages=context.messages[1:])
        tokens = None if at is None else await self._counted(at, context)
        fitted = fitting.cut_history(context, tokens, [*brought, *query])
        chain = await self._crossing.run(partial(self._runs.input_chain, fitted.recorded, at))
        return _Before(brought, ModelConversation(fitted.sent), chain)

    async def _read(self, plan: TurnPlan, standing: SessionStanding) -> tuple[Context, str | None]:
        """All that was said before the turn, and the turn that it goes on from."""
        if plan.is_root:
            return Context((), (), None), None
        if plan.parent is None:
            return await self._crossing.run(partial(self._runs.history, standing.id)), standing.head
        return await self._crossing.run(partial(self._runs.after, plan.parent, standing.id)), plan.parent

    async def _counted(self, at: str, context: Context) -> int | None:
        return await self._crossing.run(partial(self._runs.counted_tokens, at, context.compaction))

    def keep(self, standing: SessionStanding, runner: TurnRunner, end: TurnEnd) -> None:
        """A turn that ended well leaves behind what the next request of the session begins with."""
        self._kept.pop(standing.id, None)
        recorded = end.recorded
        if recorded is None or recorded.session is None or end.cut is not None or end.error is not None:
            return
        answer = recorded.response_message_id
        if runner.messages is None or runner.chain is None or end.reply is None or answer is None:
            return
        runner.chain.add(answer)
        usage = end.reply.usage
        tokens = None if usage is None or usage.total_tokens is UNSET else usage.total_tokens
        key = (recorded.id, None, standing.compaction, standing.erasures, standing.substitutions)
        fitting = runner.fitting
        size = estimated_tokens(runner.messages) if fitting.tokens is None else fitting.tokens
        self._kept[standing.id] = KeptContext(key, runner.messages, runner.chain, tokens, size, fitting.cut)
        while len(self._kept) > MAX_KEPT_CONTEXTS:
            del self._kept[next(iter(self._kept))]


def _key(standing: SessionStanding) -> tuple[Any, ...]:
    return (standing.head, standing.head_events, standing.compaction, standing.erasures, standing.substitutions)


def as_new_message(message: InboxMessage) -> NewMessage:
    """A message of an inbox as a model is sent it."""
    return NewMessage(role=MessageRole.USER, content=message.content)
