"""One turn of a session, begun or gone on with, and brought to its end or left to others.

Which sessions are taken next, which messages the next turn takes, what its first request is sent,
and who awaits it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from zlib import crc32

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock
from weft.kernel.enums import AgentRole, InterruptionReason, MessageRole, QueueMode, RunExit, ToolCallStatus
from weft.kernel.errors import (
    Action,
    HeadMoved,
    LeaseLost,
    NotApplicable,
    SessionBusy,
    StoreError,
    WeftError,
    error_code,
    error_text,
)
from weft.ledger.api import (
    NO_CUT,
    AddMessage,
    Context,
    ContextCut,
    Entry,
    FinishedRun,
    InboxMessage,
    InputChain,
    Ledger,
    ParkedRun,
    RunInterruption,
    RunRecord,
    Runs,
    RunWriter,
    SessionStanding,
    WaitingSession,
    have_same_rights,
    is_limited,
    principals_of,
    retry_of,
)
from weft.ledger.model import NewError, NewMessage
from weft.runtime.answer_streams import TurnText, hub_of
from weft.runtime.assembly.configuration_layers import read_overrides
from weft.runtime.assembly.system_prompts import changed_prompt, workers_note
from weft.runtime.broker.turn_plans import Planner, RequestFitting, SenderContext, TurnPlan, complete_setting, is_replay
from weft.runtime.broker.turn_runner import TurnRunner
from weft.runtime.broker.turn_state import Run, TurnEnd, awaits_process, call_end_entry, cut_entries
from weft.runtime.inference.model_requests import FunctionReference, ModelConversation, estimated_tokens
from weft.runtime.ledger_port import Executor
from weft.runtime.tool.recorded_results import ResultSecrets
from weft.runtime.tool.tool_contract import FunctionElsewhere, GivenFunctions

# --- Which sessions a broker takes next, and when it looks at the ledger again.

BEGINNING_TOGETHER = 8
"""So many sessions are taken at a time where nobody else was quicker for a while: what other brokers take meanwhile is
not tried here."""
BEGINNING_MS = 1000
"""A session that takes longer than this to begin with holds nobody up."""
BUSY_SECONDS = 0.25
"""How soon a session is looked at again that another broker holds."""
HELD_MS = 1000
"""How soon sessions are looked at again whose turns other brokers work on."""
FIRST_WINDOW_MS, LONGEST_WINDOW_MS = 50, 2000
"""Within how long a free session is tried, once another broker was quicker, and where that happens again and again."""
AHEAD_MS = 200
"""So much sooner than the others whoever served a session last may begin with it again."""
LONGEST_WAIT_MS = 30_000


class SessionSchedule:
    """The sessions that wait, as one broker sees them. Times are Unix milliseconds."""

    def __init__(self, owner: str, capacity: int) -> None:
        self._owner, self._capacity = owner, capacity
        self._not_before: dict[str, int] = {}
        self._turns_begun = 0
        self._served: dict[str, int] = {}
        """Which turn of this broker was the last of a session."""
        self._started_at: dict[str, int] = {}
        """When work on a session was begun that has no running turn yet."""
        self._free_since: dict[str, tuple[int, int]] = {}
        """By session, the message that waits longest there, and when it was first seen here."""
        self._from_others: set[str] = set()
        """Sessions that this broker is about to begin with and did not serve last."""
        self._window_ms = 0
        self._together = 1
        """So many sessions are taken at a time now."""
        self._look_at: int | None = None

    # --- what happened -------------------------------------------------------------------------------------------

    def postpone(self, session: str, until: int) -> None:
        self._not_before[session] = until

    def postponed_until(self, session: str) -> int:
        return self._not_before.get(session, 0)

    def start(self, session: str, now: int) -> None:
        """Work on a session begins."""
        self._started_at[session] = now

    def serve(self, session: str) -> None:
        """A turn of a session is about to be begun."""
        self._turns_begun += 1
        self._served[session] = self._turns_begun

    def run(self, session: str) -> None:
        """A turn of a session runs here: nobody else took it."""
        self._started_at.pop(session, None)
        if session in self._from_others:
            self._from_others.discard(session)
            self._window_ms = self._window_ms * 3 // 4
        self._together = min(self._together + 1, BEGINNING_TOGETHER)

    def postpone_taken(self, session: str, now: int, ms: int) -> None:
        """Somebody else has a session: it is looked at again after so many milliseconds, and later where others are
        quicker again and again."""
        self._from_others.discard(session)
        self.postpone(session, now + ms + self._window_ms)
        self._window_ms = min(max(FIRST_WINDOW_MS, 2 * self._window_ms), LONGEST_WINDOW_MS)
        self._together = 1

    def stop(self, session: str) -> None:
        """Work on a session is over."""
        self._started_at.pop(session, None)
        self._from_others.discard(session)

    # --- what comes next -----------------------------------------------------------------------------------------

    def choose(
        self, waiting: Sequence[WaitingSession], working: Collection[str], unleft: Collection[str], now: int
    ) -> Sequence[WaitingSession]:
        """The sessions to begin with now. `working`: those that this broker works on; `unleft`: those whose turn it
        holds and does not work on."""
        self._not_before = {session: until for session, until in self._not_before.items() if until > now}
        others = [
            session for session in waiting if session.session not in working and session.session not in self._not_before
        ]
        free = [session for session in others if not session.is_held or session.session in unleft]
        ready_at = self._ready_times(free, now)
        ready = sorted(
            (session for session in free if ready_at[session.session] <= now),
            key=lambda session: (*self._urgency(session), session.oldest),
        )
        del ready[max(0, self._capacity - len(working)) :]
        ready.sort(key=lambda session: (*self._urgency(session), self._own_order(session)))
        beginning = sum(now - started < BEGINNING_MS for started in self._started_at.values())
        chosen = ready[: max(0, self._together - beginning)]
        self._from_others |= {session.session for session in chosen if session.served_by != self._owner}
        times = [at for at in ready_at.values() if at > now]
        if len(chosen) < len(ready) or len(free) < len(others):
            times.append(now + HELD_MS)
        self._look_at = min(times, default=None)
        return chosen

    def seconds_to_wait(self, due: int | None, now: int) -> float:
        """Until the next look at the ledger, where nothing happens before; `due`: when a parked turn can go on."""
        times = (*self._not_before.values(), due, self._look_at)
        until = min((time for time in times if time is not None and time > now), default=now + LONGEST_WAIT_MS)
        return max(0.01, min(until - now, LONGEST_WAIT_MS) / 1000)

    def _ready_times(self, free: Sequence[WaitingSession], now: int) -> dict[str, int]:
        self._free_since = {session.session: (session.oldest, self._waiting_since(session, now)) for session in free}
        return {session.session: self._free_since[session.session][1] + self._delay(session) for session in free}

    def _waiting_since(self, waiting: WaitingSession, now: int) -> int:
        oldest, since = self._free_since.get(waiting.session, (None, now))
        return since if oldest == waiting.oldest else now

    def _delay(self, waiting: WaitingSession) -> int:
        """Whoever served a session last goes before the others: it has what was said there."""
        if waiting.served_by == self._owner:
            return 0
        ahead = 0 if waiting.served_by is None else AHEAD_MS
        return ahead + (self._window_ms + self._own_order(waiting) % max(1, self._window_ms)) // 2

    def _urgency(self, waiting: WaitingSession) -> tuple[bool, int, int]:
        return (waiting.turn is None, -waiting.priority, self._served.get(waiting.session, 0))

    def _own_order(self, waiting: WaitingSession) -> int:
        """An order in which hardly two brokers begin with what is equally urgent."""
        return crc32(f"{self._owner} {waiting.oldest}".encode())


# --- Which waiting messages the next turn takes, and which concern the turn that runs: pure, by their modes, senders,
# priorities and times.


class CollectRules(Struct, frozen=True, kw_only=True):
    """How messages of the mode `collect` are gathered."""

    quiet_ms: int = 1000
    """So long nothing must have come."""
    longest_ms: int = 10_000
    """So long the first one waits at most."""
    most: int = 20


class MessageBatch(Struct, frozen=True):
    """What the next turn takes; or when to look again, where it is still being gathered."""

    messages: tuple[InboxMessage, ...] = ()
    wait_until_ms: int | None = None


NOTHING = MessageBatch()


def next_batch(queued: Sequence[InboxMessage], now_ms: int, collecting: CollectRules | None = None) -> MessageBatch:
    """The messages of the next turn, out of those that wait, which come in the order in which they are answered.

    An interrupting message takes everything with it that waits and was sent in the same names. Messages to collect go
    together once nothing more came for a while. What one failed turn was asked is tried again together. Everything else
    is a turn of its own; a steering message that found no turn to enter is one of them. A turn has the rights of one
    sender: messages that were sent in different names, or with different rights, never go together.
    """
    if not queued:
        return NOTHING
    interrupting = next((message for message in queued if message.mode == QueueMode.INTERRUPT), None)
    if interrupting is not None:
        return MessageBatch(tuple(sorted(_of_same_rights(queued, interrupting), key=lambda message: message.n)))
    first = queued[0]
    if (retry := retry_of(first)) is not None:
        return MessageBatch(tuple(message for message in _of_same_rights(queued, first) if retry_of(message) == retry))
    if first.mode != QueueMode.COLLECT:
        return MessageBatch((first,))
    together = _collected(queued, (collecting or CollectRules()).most)
    until = _gathered_at(together, collecting or CollectRules())
    return MessageBatch(together) if until <= now_ms else MessageBatch((), until)


def _of_same_rights(queued: Sequence[InboxMessage], first: InboxMessage) -> list[InboxMessage]:
    return [message for message in queued if have_same_rights(message, first)]


def _collected(queued: Sequence[InboxMessage], most: int) -> tuple[InboxMessage, ...]:
    """The first message to collect and those of the same names that may go with it, in order of arrival. None overtakes
    a message of its own sender that is answered before it."""
    together: list[InboxMessage] = []
    for message in queued:
        if message.sender != queued[0].sender:
            continue
        if message.mode != QueueMode.COLLECT or not have_same_rights(message, queued[0]):
            break
        together.append(message)
        if len(together) >= most:
            break
    return tuple(sorted(together, key=lambda message: message.n))


def _gathered_at(together: Sequence[InboxMessage], collecting: CollectRules) -> int:
    if len(together) >= collecting.most:
        return 0
    last, first = together[-1].admitted_at, together[0].admitted_at
    return min(last + collecting.quiet_ms, first + collecting.longest_ms)


def is_interrupted(standing: SessionStanding) -> bool:
    """Whether a message wants to cut the open turn short: one that came after the turn began."""
    return any(
        message.mode == QueueMode.INTERRUPT and message.n > (standing.open_since or 0) for message in standing.queued
    )


def steering(standing: SessionStanding) -> list[InboxMessage]:
    """Messages that may enter the open turn. Those in whose name such a message was sent are among those in whose names
    the turn runs: it has no rights then that the sender has not. Any other, and one whose sender was limited to fewer
    rights than theirs, waits for a turn of its own."""
    names = set(standing.open_principals)
    return [
        message
        for message in standing.queued
        if message.mode == QueueMode.STEER and names.issuperset(principals_of(message)) and not is_limited(message)
    ]


# --- Messages whose answers somebody in this process awaits: who sent them with which plan, and how their turns ended.


class AwaitedMessages:
    """All of one broker, by their ids."""

    def __init__(self) -> None:
        self._sendings: dict[str, SenderContext] = {}
        self._sessions: dict[str, str] = {}
        self._ends: dict[str, TurnEnd] = {}

    @property
    def sessions(self) -> frozenset[str]:
        """The sessions that awaited messages were sent to."""
        return frozenset(self._sessions.values())

    def expect(self, message: str, sending: SenderContext) -> None:
        """Its sender knows how it is to be answered."""
        self._sendings[message] = sending

    def sendings(self, messages: Iterable[str]) -> list[SenderContext]:
        """What the senders of these messages know, where they are in this process."""
        return [self._sendings[message] for message in messages if message in self._sendings]

    def settle(self, message: str) -> None:
        """It is settled, here or elsewhere: how it is to be answered is of no use to anybody. Of one that only nobody
        awaits any more it is kept: its turn may still be begun here."""
        self._sendings.pop(message, None)

    def add(self, message: str, session: str) -> None:
        """Somebody awaits the answer to a message from now on."""
        self._sessions[message] = session

    def is_alone(self, message: str, session: str) -> bool:
        """Whether no other message of the session is awaited."""
        return all(other == message for other, place in self._sessions.items() if place == session)

    def remove(self, message: str) -> None:
        self._sessions.pop(message, None)
        self._ends.pop(message, None)

    def set_end(self, messages: Iterable[str], end: TurnEnd) -> None:
        """The turn of these messages is over."""
        for message in messages:
            self.settle(message)
            if message in self._sessions:
                self._ends[message] = end

    def end(self, message: str) -> TurnEnd | None:
        """How the turn of an awaited message ended; None where that is not known yet."""
        return self._ends.get(message)


# --- What the first request of a turn is sent, and what a turn leaves behind for the next one of its session.

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

    def __init__(self, runs: Runs, crossing: Executor) -> None:
        self._runs, self._crossing = runs, crossing
        self._kept: dict[str, KeptContext] = {}

    def forget(self, session: str) -> None:
        """Somebody else wrote to the session: what it says is read again."""
        self._kept.pop(session, None)

    def tokens(self, standing: SessionStanding) -> int | None:
        """What the session's last request and its answer took; None where that is not known here, or was cut."""
        remembered = self._kept.get(standing.id)
        is_whole = remembered is not None and remembered.key == _key(standing) and remembered.cut.is_empty
        return remembered.tokens if remembered is not None and is_whole else None

    async def assemble(
        self, runner: TurnRunner, plan: TurnPlan, standing: SessionStanding, messages: Sequence[InboxMessage]
    ) -> Sequence[AddMessage]:
        """What the first request is sent: the prompt, what was said before, the messages; cut where that does not fit.
        Gives what the turn adds before the messages."""
        notes = await self._worker_notes(plan, standing)
        query = [*notes, *(as_new_message(message) for message in messages)]
        before = self._kept_before(runner.fitting, plan, standing, query)
        if before is None or runner.fitting.is_exceeded():
            before = await self._read_before(runner.fitting, plan, standing, query)
        conversation = before.messages
        if before.brought:
            conversation = ModelConversation([*before.brought, *conversation])
        conversation.extend(query)
        runner.messages, runner.chain, runner.brings_prompt = conversation, before.chain, bool(before.brought)
        return [AddMessage(message) for message in (*before.brought, *notes)]

    async def _worker_notes(self, plan: TurnPlan, standing: SessionStanding) -> list[NewMessage]:
        """What a manager is told of its workers, behind all that was said: what was sent before stays as it was."""
        if plan.setting.role is not AgentRole.MANAGER or plan.is_root:
            return []
        workers = await self._crossing.run(partial(self._runs.worker_states, standing.id))
        return [workers_note(workers)] if workers else []

    def _kept_before(
        self, fitting: RequestFitting, plan: TurnPlan, standing: SessionStanding, query: Sequence[NewMessage]
    ) -> _Before | None:
        """As the last turn left it; only what is new is measured."""
        remembered = self._kept.pop(standing.id, None)
        if remembered is None or remembered.key != _key(standing) or plan.parent is not None or plan.is_root:
            return None
        brought, is_replaced = changed_prompt(plan.prompt, remembered.messages)
        fitting.compaction, fitting.cut, fitting.tokens = standing.compaction, remembered.cut, remembered.size
        fitting.add([*brought, *query])
        if not is_replaced:
            return _Before(brought, remembered.messages, remembered.chain)
        chain = None if remembered.chain is None else remembered.chain.part(1)
        return _Before(brought, ModelConversation(remembered.messages[1:]), chain)

    async def _read_before(
        self, fitting: RequestFitting, plan: TurnPlan, standing: SessionStanding, query: Sequence[NewMessage]
    ) -> _Before:
        """As the ledger tells it, cut as the last request was, and further where it does not fit."""
        context, at = await self._read_context(plan, standing)
        brought, is_replaced = changed_prompt(plan.prompt, context.messages)
        if is_replaced:
            context = replace(context, messages=context.messages[1:])
        tokens = None if at is None else await self._counted_tokens(at, context)
        fitted = await fitting.fitted_history(context, tokens, [*brought, *query])
        chain = await self._crossing.run(partial(self._runs.input_chain, fitted.recorded, at))
        return _Before(brought, ModelConversation(fitted.sent), chain)

    async def _read_context(self, plan: TurnPlan, standing: SessionStanding) -> tuple[Context, str | None]:
        """All that was said before the turn, and the turn that it goes on from."""
        if plan.is_root:
            return Context((), (), None), None
        if plan.parent is None:
            return await self._crossing.run(partial(self._runs.history, standing.id)), standing.head
        return await self._crossing.run(partial(self._runs.after, plan.parent, standing.id)), plan.parent

    async def _counted_tokens(self, at: str, context: Context) -> int | None:
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


# --- One turn of a session, begun for what waits there or gone on with, and brought to its end or left to others.

MAX_FAILURES = 3
"""So often in a row working on a session may fail, before its turn fails or its message is dead."""
CLAIM_SECONDS = 32.0
"""As long as a lease lives: whoever claims a session for longer, and begins no turn, may be stopped or gone."""
REMEMBERED_CLAIMS = 1_000
RETRIES = 8
"""So often a turn is begun anew where its session moved meanwhile."""


class ServedSession(Struct, frozen=True):
    """What came of working on a session: a turn left this broker, somebody else has the session, or neither."""

    end: TurnEnd | None = None
    busy: WeftError | None = None


class SessionClaim:
    """What keeps other brokers from preparing a turn in a session that this one is about to begin. It guards nothing:
    whoever begins first has the session."""

    def __init__(self, runs: Runs, crossing: Executor, session: str) -> None:
        self._runs, self._crossing, self._session = runs, crossing, session
        self._taking: asyncio.Future[bool] | None = None

    async def take(self) -> None:
        """Raises SessionBusy where another broker was quicker."""
        self._taking = asyncio.ensure_future(self._crossing.run(partial(self._runs.claim, self._session)))
        if not await asyncio.shield(self._taking):
            self._taking = None
            raise SessionBusy(self._session, "", "another broker")

    async def give_back(self) -> None:
        taking, self._taking = self._taking, None
        if taking is not None and await taking:
            await self._crossing.run(partial(self._runs.give_back, self._session))


class SessionTurns:
    """Runs the turns of one broker. `on_change` is called when a turn begins to run: it can be told of messages."""

    def __init__(
        self,
        ledger: Ledger,
        runs: Runs,
        crossing: Executor,
        clock: Clock,
        schedule: SessionSchedule,
        awaited: AwaitedMessages,
        on_change: Callable[[], None],
        *,
        planner: Planner | None,
        collecting: CollectRules,
        is_streamed: bool,
        on_left: Callable[[NotApplicable], None] | None = None,
        functions: GivenFunctions | None = None,
    ) -> None:
        self._on_left, self._told_of = on_left, set[str]()
        self._ledger, self._runs, self._crossing, self._clock = ledger, runs, crossing, clock
        self._schedule, self._awaited, self._on_change = schedule, awaited, on_change
        self._collecting, self._is_streamed, self._hub = collecting, is_streamed, hub_of(crossing)
        self._contexts, self._secrets = SessionContexts(runs, crossing), ResultSecrets()
        self.planner = planner
        """Plans the turns for messages whose senders have no plan of their own."""
        self.functions = functions
        """What the planner has of functions that programs gave."""
        self._parked: dict[str, tuple[int, frozenset[FunctionReference] | None]] = {}
        """Of each turn that was found parked, how many events it had and which functions it waits for."""
        self.runners: dict[str, TurnRunner] = {}
        """The turns that are running, by their sessions."""
        self.unleft: dict[str, TurnRunner] = {}
        """Turns that this broker stopped working on while the ledger could not be told."""
        self._compacted: dict[str, str] = {}
        """By session, the message whose turn is being begun and before which a compaction was looked for already."""
        self._failures: dict[str, int] = {}
        """How often in a row working on a session failed by no fault of the ledger's."""
        self._claimed: dict[str, tuple[int, float]] = {}
        """By session that another broker has claimed, the message that waits longest there, and since when that was
        found to be so."""

    async def work(self, waiting: WaitingSession) -> ServedSession:
        """One turn of a session: gone on with, or begun for what waits there. Tells who else has the session."""
        session = waiting.session
        claim = SessionClaim(self._runs, self._crossing, session)
        try:
            await self._leave_unleft(session)
            if waiting.turn is None:
                await self._claim(claim, waiting)
            for _ in range(RETRIES):
                standing = await self._next_standing(session)
                try:
                    end = await self._turn(standing, claim)
                except HeadMoved:
                    self._contexts.forget(session)
                    continue
                self._failures.pop(session, None)
                return ServedSession(end)
            self._schedule.postpone(session, self._clock.now_ms() + round(BUSY_SECONDS * 1000))
        except (SessionBusy, LeaseLost, NotApplicable) as error:
            self._contexts.forget(session)
            now, ms = self._clock.now_ms(), round(BUSY_SECONDS * 1000) if waiting.turn is None else HELD_MS
            if isinstance(error, NotApplicable):
                self._schedule.postpone(session, now + ms)
                self._tell_left(error)
            else:
                self._schedule.postpone_taken(session, now, ms)
            return ServedSession(busy=error)
        except StoreError:
            raise
        except Exception as error:  # whatever it is, it must not stop the session's queue for ever
            self._failures[session] = self._failures.get(session, 0) + 1
            if self._failures[session] < MAX_FAILURES:
                raise
            await self._give_up(session, error)
        finally:
            await claim.give_back()
        return ServedSession()

    def _tell_left(self, error: NotApplicable) -> None:
        if self._on_left is None or not isinstance(error.__cause__, FunctionElsewhere) or str(error) in self._told_of:
            return
        self._told_of.add(str(error))
        self._on_left(error)

    async def _claim(self, claim: SessionClaim, waiting: WaitingSession) -> None:
        """Raises SessionBusy where another broker is about to begin, unless it has been for too long."""
        now = self._clock.monotonic()
        try:
            await claim.take()
        except SessionBusy:
            oldest, since = self._claimed.get(waiting.session, (waiting.oldest, now))
            since = since if oldest == waiting.oldest else now
            self._claimed[waiting.session] = (waiting.oldest, since)
            if len(self._claimed) > REMEMBERED_CLAIMS:  # of sessions that nobody asked for again
                self._claimed = {
                    session: claim for session, claim in self._claimed.items() if now - claim[1] < 2 * CLAIM_SECONDS
                }
            if now - since < CLAIM_SECONDS:
                raise
        else:
            self._claimed.pop(waiting.session, None)

    async def _next_standing(self, session: str) -> SessionStanding:
        """A session with what its next turn may take: mostly that is the first message."""
        standing = await self._crossing.run(partial(self._runs.standing, session, 1))
        first = standing.queued[0] if standing.queued else None
        if first is None or not (first.mode == QueueMode.COLLECT or retry_of(first) is not None):
            return standing
        return await self._crossing.run(partial(self._runs.standing, session))

    async def _give_up(self, session: str, error: Exception) -> None:
        """Fail the open turn of a session, or bury what its next turn would take."""
        del self._failures[session]
        standing = await self._crossing.run(partial(self._runs.standing, session))
        fault = NewError(code=error_code(error), message=str(error) if isinstance(error, WeftError) else "a defect")
        if standing.open_turn is not None:
            writer = await self._crossing.run(partial(self._runs.adopt, standing.open_turn))
            if writer is not None:
                await self._fail(writer, fault)
        elif standing.queued:
            await self._buried(standing.queued[:1], error, fault)

    async def _fail(self, writer: RunWriter, fault: NewError) -> None:
        """End a turn that nobody can go on with."""
        events = await self._crossing.run(partial(self._runs.events, writer.id))
        run = Run(writer.id).apply(events).mark_lost(writer.lost_because)
        request, because = run.last_request, writer.lost_because
        lost = NewError(code=because.value, message="nobody can go on with the turn")
        entries: list[Entry] = [call_end_entry(call, ToolCallStatus.INTERRUPTED, error=lost) for call in run.open_calls]
        entries += [RunInterruption(because, (call.event,), goes_on=True) for call in run.open_calls]
        if request is not None and request.is_open:
            entries.append(RunInterruption(because, (request.event,)))
        entries.append(FinishedRun(exit=RunExit.ERROR, error=fault))
        await self._crossing.run(partial(writer.record, entries))

    async def _turn(self, standing: SessionStanding, claim: SessionClaim) -> TurnEnd | None:
        if standing.open_turn is not None:
            now, until = self._clock.now_ms(), standing.parked_until
            is_due = until is not None and until <= now
            if standing.is_parked and not (
                is_due or is_interrupted(standing) or await self._is_awaited_here(standing.open_turn)
            ):
                return None
            await claim.give_back()
            return await self._resumed(standing, standing.open_turn)
        if (lease := standing.lease) is not None:
            raise SessionBusy(standing.label, lease.purpose or "", lease.owner)
        if standing.lifecycle == "paused" or standing.status != "active":
            return None
        if standing.lifecycle == "completed" and standing.queued:  # since they were admitted, by another ledger
            error = NotApplicable(f"session {standing.label!r} is completed", "fork it, or make a new session")
            return await self._buried(standing.queued, error)
        batch = next_batch(standing.queued, self._clock.now_ms(), self._collecting)
        if batch.wait_until_ms is not None:
            self._schedule.postpone(standing.id, batch.wait_until_ms)
        return await self._begin_turn(standing, batch.messages, claim) if batch.messages else None

    async def _begin_turn(
        self, standing: SessionStanding, messages: Sequence[InboxMessage], claim: SessionClaim
    ) -> TurnEnd:
        self._schedule.serve(standing.id)
        try:
            plan = await self._plan(standing, messages)
        except FunctionElsewhere as elsewhere:
            first = messages[0].id
            text = f"message {first} of session {standing.label!r} comes first; {elsewhere}"
            raise NotApplicable(text, Action.SERVE_MESSAGE.of(message=first)) from elsewhere
        except StoreError:
            raise
        except WeftError as error:
            return await self._buried(messages, error)
        if plan is None:
            first = messages[0].id
            text = f"message {first} of session {standing.label!r} comes first; nobody in this process can answer it"
            raise NotApplicable(text, Action.SERVE_MESSAGE.of(message=first))
        await self._compact(standing, plan, messages)
        runner = self._runner(standing, plan, messages)
        try:
            writer, record = await self._begin(standing, messages, plan, runner)
        except (HeadMoved, SessionBusy, LeaseLost, NotApplicable, StoreError):
            raise
        except WeftError as error:
            return await self._buried(messages, error)
        self._compacted.pop(standing.id, None)
        await claim.give_back()
        return await self._run(standing, runner, partial(runner.begin, writer, record), messages)

    async def _compact(self, standing: SessionStanding, plan: TurnPlan, messages: Sequence[InboxMessage]) -> None:
        """Compact the session before the turn, where that is due, once for the messages that it is begun for. Raises
        HeadMoved where it was: the turn begins behind the compaction."""
        compaction, first = plan.compaction, messages[0].id
        if compaction is None or plan.is_root or standing.head is None or self._compacted.get(standing.id) == first:
            return
        query = [as_new_message(message) for message in messages]
        if not compaction.may_be_due(self._contexts.tokens(standing), query):
            return
        self._compacted[standing.id] = first
        if await compaction.before_turn(query):
            raise HeadMoved(standing.label, standing.head, None)

    async def _begin(
        self, standing: SessionStanding, messages: Sequence[InboxMessage], plan: TurnPlan, runner: TurnRunner
    ) -> tuple[RunWriter, RunRecord]:
        before = await self._contexts.assemble(runner, plan, standing, messages)
        return await self._crossing.run(
            lambda: self._runs.begin(
                standing.id,
                expected=(standing.head, standing.head_events),
                messages=[message.id for message in messages],
                before=before,
                setting=complete_setting(plan, messages),
                then=runner.intents,
                parent=plan.parent,
                is_root=plan.is_root,
                persona=plan.persona,
                retry=plan.retry,
            )
        )

    async def _buried(
        self, messages: Sequence[InboxMessage], error: Exception, fault: NewError | None = None
    ) -> TurnEnd:
        """No turn can be begun for them as things are: they stop nobody else, and a person sees them."""
        ids = [message.id for message in messages]
        fault = fault or NewError(code=error_code(error), message=error_text(error))
        await self._crossing.run(lambda: self._runs.bury(ids, fault.code or "", fault.message))
        end = TurnEnd(turn="", error=error)
        self._awaited.set_end(ids, end)
        return end

    async def _resumed(self, standing: SessionStanding, turn: str) -> TurnEnd | None:
        writer = await self._crossing.run(partial(self._runs.adopt, turn))
        if writer is None:
            return None
        events = await self._crossing.run(partial(self._runs.events, turn))
        run = Run(turn).apply(events).mark_lost(writer.lost_because)
        messages = [await self._crossing.run(partial(self._ledger.inbox.get, message)) for message in run.taken]
        try:
            plan = await self._plan(standing, messages)
        except FunctionElsewhere as elsewhere:
            if is_interrupted(standing) or run.stop is not None:
                return await self._cut(writer, run)
            if standing.is_parked:
                await self._crossing.run(writer.leave)
            else:
                park = ParkedRun(why=elsewhere.awaited_process)
                await self._crossing.run(partial(writer.record, [park]))
            text = f"turn {turn} of session {standing.label!r} comes first; {elsewhere}"
            raise NotApplicable(text, Action.SERVE_TURN.of(session=standing.label)) from elsewhere
        except StoreError:
            raise
        except WeftError as error:
            await self._fail(writer, NewError(code=error.code, message=str(error)))
            end = TurnEnd(turn=turn, error=error)
            self._awaited.set_end(run.taken, end)
            return end
        if plan is None:
            await self._crossing.run(writer.leave)
            text = f"turn {turn} of session {standing.label!r} comes first; nobody in this process can go on with it"
            raise NotApplicable(text, Action.SERVE_TURN.of(session=standing.label))
        runner = self._runner(standing, plan, messages)
        runner.chain = await self._crossing.run(partial(self._runs.last_input, turn))
        await runner.fitting.resume(turn, standing.compaction)
        if is_interrupted(standing):
            runner.interrupt(InterruptionReason.CANCELED)
        return await self._run(standing, runner, partial(runner.resume, writer, run), messages)

    async def _cut(self, writer: RunWriter, run: Run) -> TurnEnd:
        """End a turn whose functions another process has: it is cut short without them."""
        reason = run.stop or InterruptionReason.CANCELED
        record = await self._crossing.run(partial(writer.record, cut_entries(run, reason)))
        end = TurnEnd(turn=run.turn, recorded=record.ended, cut=reason)
        self._awaited.set_end(run.taken, end)
        return end

    async def waiting_for_functions(self) -> list[WaitingSession]:
        """Sessions whose turn is parked until a process goes on with it that has its functions, where this one has."""
        known = frozenset[FunctionReference]() if self.functions is None else self.functions.references
        if not known:
            return []
        before, self._parked = self._parked, {}
        waiting: list[WaitingSession] = []
        for one, events in await self._crossing.run(self._runs.parked_turns):
            turn = str(one.turn)
            count, wanted = before.get(turn, (0, None))
            if count != events:
                wanted = await self._crossing.run(partial(self._awaited_functions, turn))
            self._parked[turn] = (events, wanted)
            if wanted is not None and wanted <= known:
                waiting.append(one)
        return waiting

    async def _is_awaited_here(self, turn: str) -> bool:
        """Whether a parked turn waits for a process that has its functions, and this one has them."""
        if self.functions is None or not self.functions.references:
            return False
        wanted = await self._crossing.run(partial(self._awaited_functions, turn))
        return wanted is not None and wanted <= self.functions.references

    def _awaited_functions(self, turn: str) -> frozenset[FunctionReference] | None:
        """The functions of a turn that is parked until a process has them; None where it waits for something else."""
        events = self._runs.events(turn)
        if not awaits_process(events):
            return None
        overrides = [self._ledger.inbox.get(one).overrides for one in Run(turn).apply(events).taken]
        return frozenset(one for given in overrides for one in read_overrides(given, turn).functions)

    async def _plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan | None:
        """The sender's own plan where it is in this process, else what the planner makes of the message. None where
        nobody here knows how to answer it."""
        sendings = self._awaited.sendings(message.id for message in messages)
        plans = [sending.plan for sending in sendings if sending.plan is not None]
        if plans:
            return plans[-1]
        planners = [sending.planner for sending in sendings if sending.planner is not None]
        if not planners and is_replay(messages):
            if standing.open_turn is None:
                return None
            raise NotApplicable("whoever replayed this turn is gone", "replay it again")
        planner = planners[-1] if planners else self.planner
        return None if planner is None else await planner(standing, messages)

    def _runner(self, standing: SessionStanding, plan: TurnPlan, messages: Sequence[InboxMessage]) -> TurnRunner:
        ids = [message.id for message in messages]
        text = TurnText(self._hub, self._runs, self._crossing, standing.id)
        return TurnRunner(
            self._runs,
            self._crossing,
            self._clock,
            plan,
            text,
            self._secrets,
            messages=ids,
            is_streamed=self._is_streamed,
        )

    async def _run(
        self,
        standing: SessionStanding,
        runner: TurnRunner,
        go: Callable[[], Awaitable[TurnEnd]],
        messages: Sequence[InboxMessage],
    ) -> TurnEnd:
        self.runners[standing.id] = runner
        self._schedule.run(standing.id)
        self._on_change()
        try:
            end = await go()
        except LeaseLost:
            raise
        except asyncio.CancelledError:
            with suppress(WeftError):  # another broker has it already, or will find it
                await runner.shut_down()
            raise
        except Exception:  # whatever it was, this broker works on the turn no more
            self.unleft[standing.id] = runner
            await self._leave_unleft(standing.id)
            raise
        finally:
            self.runners.pop(standing.id, None)
        if end.recorded is not None:
            self._awaited.set_end(runner.taken or [message.id for message in messages], end)
        self._contexts.keep(standing, runner, end)
        return end

    async def _leave_unleft(self, session: str) -> None:
        """Let go of a turn that this broker works on no more, as soon as the ledger can be told."""
        runner = self.unleft.get(session)
        if runner is None:
            return
        with suppress(LeaseLost):  # another broker has it already
            try:
                await runner.leave()
            except StoreError:
                return
        self.unleft.pop(session, None)
