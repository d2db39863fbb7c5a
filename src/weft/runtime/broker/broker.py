"""The broker: takes sessions where something waits, one turn at a time each, and brings every turn to an end.

Any number of brokers may serve one ledger. A session belongs to the one that holds its lease; what another one left
behind, by dying or by letting go, is gone on with. Sessions take turns: the one that was served longest ago goes first
among those of equal priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState, InterruptionReason, MessageRole, QueueMode
from weft.kernel.errors import HeadMoved, LeaseLost, NotApplicable, SessionBusy, StoreError, WeftError
from weft.ledger.api import (
    AddMessage,
    InboxMessage,
    InputChain,
    Ledger,
    Runs,
    SessionStanding,
    WaitingSession,
)
from weft.ledger.model import Message, NewMessage
from weft.runtime.broker.plans import Planner, Sending, TurnPlan
from weft.runtime.broker.queue_modes import Collecting, next_batch
from weft.runtime.broker.run import Run
from weft.runtime.broker.turn_runner import TurnEnd, TurnRunner
from weft.runtime.inference.replies import ReplyToken
from weft.runtime.turns.ledger_port import Crossing

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

RENEW_SECONDS = 8.0
"""How often leases are renewed; a quarter of how long they live."""
BUSY_SECONDS = 0.25
"""How soon a session is looked at again that another broker holds."""
NEWS_SECONDS = 1.0
DEFAULT_PROMPT = "default_of_embedded_model"
"""In the metadata of a system message: nobody gave it, and no other model is sent it."""
RETRIES = 8
"""So often a turn is begun anew where its session moved meanwhile."""


class KeptContext(Struct, frozen=True):
    """What a session's next request is sent, as the last turn left it."""

    key: tuple[Any, ...]
    messages: tuple[Message | NewMessage, ...]
    chain: InputChain | None


class Broker:
    """Serves the sessions of one open ledger."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Crossing,
        planner: Planner | None = None,
        *,
        clock: Clock | None = None,
        capacity: int = 64,
        collecting: Collecting | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        ledger.trust.ensure("answer messages")
        self._ledger, self._crossing, self._planner, self._runs = ledger, crossing, planner, Runs(ledger)
        self._clock, self._capacity, self._collecting = clock or SystemClock(), capacity, collecting or Collecting()
        self._sleep = sleep
        self._working: dict[str, asyncio.Task[WeftError | None]] = {}
        self._runners: dict[str, TurnRunner] = {}
        self._not_before: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._turns_begun = 0
        self._kept: dict[str, KeptContext] = {}
        self._sendings: dict[str, Sending] = {}
        self._ends: dict[str, TurnEnd] = {}
        self._wake = asyncio.Event()
        self._settled = asyncio.Condition()
        self._is_draining = False

    # --- for those who send --------------------------------------------------------------------------------------

    def expect(self, message: str, sending: Sending) -> None:
        """A sender in this process waits for the answer to a message."""
        self._sendings[message] = sending

    def wake(self) -> None:
        """Something was admitted, or came from outside."""
        self._wake.set()

    async def answered(self, message: str, session: str, wait: float | None = None) -> TurnEnd | None:
        """Serve one session until this message is settled; None where another broker settled it. Raises SessionBusy,
        and takes the message back, where others hold the session for longer than `wait` seconds."""
        renewing = asyncio.ensure_future(self._renew_all())
        until = None if wait is None else self._clock.monotonic() + wait
        try:
            while True:
                admitted = await self._crossing.run(partial(self._ledger.inbox.get, message))
                if admitted.state not in (InboxState.QUEUED, InboxState.TAKEN):
                    return self._ends.pop(message, None)
                busy = await self._serve_once(session)
                if busy is not None and until is not None:
                    await self._take_back(message, busy, until)
                if message not in self._ends:
                    await self._pause(session)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _take_back(self, message: str, busy: WeftError, until: float) -> None:
        if self._clock.monotonic() >= until:
            with suppress(NotApplicable):  # a turn has it now
                await self._crossing.run(partial(self._ledger.inbox.cancel, message, reason="the session is busy"))
                raise busy

    async def _pause(self, session: str) -> None:
        until = self._not_before.get(session, 0)
        seconds = max(0.0, (until - self._clock.now_ms()) / 1000)
        if seconds:
            await self._sleep(min(seconds, BUSY_SECONDS))

    async def _serve_once(self, session: str) -> WeftError | None:
        """One turn of the session, begun by whoever of this process asks first; the others wait for its end."""
        task = self._working.get(session)
        if task is None:
            task = self._start(WaitingSession(session, None, 0, 0))
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def _start(self, waiting: WaitingSession) -> asyncio.Task[WeftError | None]:
        task = asyncio.ensure_future(self._work(waiting))
        self._working[waiting.session] = task
        task.add_done_callback(partial(self._worked, waiting.session))
        return task

    def interrupt(self, session: str, reason: InterruptionReason = InterruptionReason.CANCELED) -> bool:
        """Cut the turn short that this broker runs in a session; False where it runs none there."""
        runner = self._runners.get(session)
        if runner is not None:
            runner.interrupt(reason)
        return runner is not None

    # --- serving -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve every session until `drain` is called, or the task is cancelled."""
        watching = asyncio.ensure_future(self._watch())
        renewing = asyncio.ensure_future(self._renew_all())
        try:
            while not self._is_draining:
                self._wake.clear()
                await self._dispatch()
                await self._attend_runners()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), await self._seconds_to_wait())
            await self._finish_work()
        finally:
            for task in (watching, renewing):
                task.cancel()
            await asyncio.gather(watching, renewing, return_exceptions=True)
            await self._leave_all()

    def drain(self) -> None:
        """Begin no more turns; `serve` returns once those under way are over."""
        self._is_draining = True
        self._wake.set()

    async def _finish_work(self) -> None:
        if self._working:
            await asyncio.wait(set(self._working.values()))

    async def _leave_all(self) -> None:
        tasks = list(self._working.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Hear of what other processes write."""
        seen = await self._crossing.run(self._ledger.newest)
        while True:
            wait = partial(self._runs.wait_for_news, seen, NEWS_SECONDS)
            try:
                if await asyncio.to_thread(wait):
                    seen = await self._crossing.run(self._ledger.newest)
                    self._wake.set()
            except StoreError:  # the server is away; it is asked again
                await self._sleep(NEWS_SECONDS)

    async def _renew_all(self) -> None:
        while True:
            await self._sleep(RENEW_SECONDS)
            for runner in list(self._runners.values()):
                try:
                    await runner.renew()
                except LeaseLost as error:
                    runner.lose(error)
                except StoreError:  # not now; the lease lives on for a while
                    continue

    async def _seconds_to_wait(self) -> float:
        now = self._clock.now_ms()
        due = await self._crossing.run(self._runs.next_due)
        times = [until for until in (*self._not_before.values(), due) if until is not None and until > now]
        return max(0.01, min(30.0, (min(times) - now) / 1000 if times else 30.0))

    async def _dispatch(self) -> None:
        """Begin with as many sessions as there is room for, those served longest ago first."""
        room = self._capacity - len(self._working)
        if room <= 0:
            return
        now = self._clock.now_ms()
        self._not_before = {session: until for session, until in self._not_before.items() if until > now}
        waiting = await self._crossing.run(partial(self._runs.waiting, 4 * self._capacity))
        free = [one for one in waiting if one.session not in self._working and one.session not in self._not_before]
        free.sort(key=lambda one: (one.turn is None, -one.priority, self._served.get(one.session, 0), one.oldest))
        for one in free[:room]:
            self._start(one)

    def _worked(self, session: str, task: asyncio.Task[WeftError | None]) -> None:
        self._working.pop(session, None)
        if not task.cancelled() and task.exception() is not None:
            self._not_before[session] = self._clock.now_ms() + 1000
        self._wake.set()

    async def _attend_runners(self) -> None:
        """Tell running turns of messages that want to interrupt them or to enter them."""
        for session in list(self._runners):
            await self._attend(session)

    async def _attend(self, session: str) -> None:
        standing = await self._crossing.run(partial(self._runs.standing, session))
        runner = self._runners.get(session)
        if runner is None or standing.open_turn != runner.turn:
            return
        if any(message.mode == QueueMode.INTERRUPT for message in standing.queued):
            runner.interrupt(InterruptionReason.CANCELED)
        steers = {one.id: as_new_message(one) for one in standing.queued if one.mode == QueueMode.STEER}
        if steers:
            runner.steer(steers)

    # --- one turn ------------------------------------------------------------------------------------------------

    async def _work(self, waiting: WaitingSession) -> WeftError | None:
        """One turn of a session: gone on with, or begun for what waits there. Tells who else has the session."""
        session = waiting.session
        try:
            for _ in range(RETRIES):
                standing = await self._crossing.run(partial(self._runs.standing, session))
                try:
                    await self._turn(standing)
                except HeadMoved:
                    self._kept.pop(session, None)
                    continue
                return None
            self._not_before[session] = self._clock.now_ms() + round(BUSY_SECONDS * 1000)
        except (SessionBusy, LeaseLost, NotApplicable) as error:
            self._kept.pop(session, None)
            self._not_before[session] = self._clock.now_ms() + round(BUSY_SECONDS * 1000)
            return error
        return None

    async def _turn(self, standing: SessionStanding) -> TurnEnd | None:
        if standing.open_turn is not None:
            return await self._resumed(standing, standing.open_turn)
        if standing.lifecycle == "paused" or standing.status != "active":
            return None
        batch = next_batch(standing.queued, self._clock.now_ms(), self._collecting)
        if batch.wait_until_ms is not None:
            self._not_before[standing.id] = batch.wait_until_ms
        return await self._begun(standing, batch.messages) if batch.messages else None

    async def _begun(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnEnd:
        try:
            plan = await self._plan(standing, messages)
        except WeftError as error:
            return await self._buried(messages, error)
        if plan is None:
            raise NotApplicable(f"nobody here can answer in session {standing.label!r}", "let its sender answer it")
        runner = self._runner(plan, messages)
        before = await self._assemble(runner, plan, standing, messages)
        self._turns_begun += 1
        self._served[standing.id] = self._turns_begun
        writer, record = await self._crossing.run(
            lambda: self._runs.begin(
                standing.id,
                expected=(standing.head, standing.head_events),
                messages=[message.id for message in messages],
                before=before,
                setting=plan.setting,
                then=runner.intents,
                parent=plan.parent,
                is_root=plan.is_root,
                persona=plan.persona,
            )
        )
        return await self._run(standing, runner, partial(runner.begin, writer, record), messages)

    async def _buried(self, messages: Sequence[InboxMessage], error: WeftError) -> TurnEnd:
        """No turn can be begun for them as things are: they stop nobody else, and a person sees them."""
        ids = [message.id for message in messages]
        code, words = type(error).__name__, str(error)
        await self._crossing.run(lambda: self._runs.bury(ids, code, words))
        end = TurnEnd(turn="", error=error)
        self._ends.update(dict.fromkeys(ids, end))
        return end

    async def _resumed(self, standing: SessionStanding, turn: str) -> TurnEnd | None:
        writer = await self._crossing.run(partial(self._runs.adopt, turn))
        if writer is None:
            return None
        events = await self._crossing.run(partial(self._runs.events, turn))
        run = Run(turn).apply(events).lose()
        messages = [await self._crossing.run(partial(self._ledger.inbox.get, one)) for one in run.taken]
        plan = await self._plan(standing, messages)
        if plan is None:
            await self._crossing.run(writer.leave)
            raise NotApplicable(f"nobody here can answer in session {standing.label!r}", "let its sender answer it")
        runner = self._runner(plan, messages)
        runner.chain = await self._crossing.run(partial(self._runs.last_input, turn))
        return await self._run(standing, runner, partial(runner.resume, writer, run), messages)

    async def _plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan | None:
        """The sender's own plan where it is in this process, else what the planner makes of the message. None where
        nobody here knows how to answer it."""
        plans = [sending.plan for one in messages if (sending := self._sendings.get(one.id)) and sending.plan]
        if plans:
            return plans[-1]
        return None if self._planner is None else await self._planner(standing, messages)

    def _runner(self, plan: TurnPlan, messages: Sequence[InboxMessage]) -> TurnRunner:
        sendings = [self._sendings[one.id] for one in messages if one.id in self._sendings]
        heard = [sending.on_token for sending in sendings if sending.on_token is not None]
        on_token = partial(_tell, heard) if heard else None
        return TurnRunner(self._runs, self._crossing, self._clock, plan, on_token=on_token)

    async def _run(
        self,
        standing: SessionStanding,
        runner: TurnRunner,
        go: Callable[[], Awaitable[TurnEnd]],
        messages: Sequence[InboxMessage],
    ) -> TurnEnd:
        self._runners[standing.id] = runner
        try:
            end = await go()
        except asyncio.CancelledError:
            await self._let_go(runner)
            raise
        finally:
            self._runners.pop(standing.id, None)
        for message in runner.taken or [message.id for message in messages]:
            self._ends[message] = end
            self._sendings.pop(message, None)
        self._keep(standing, runner, end)
        return end

    async def _let_go(self, runner: TurnRunner) -> None:
        with suppress(WeftError):  # another broker has it already
            await runner.leave()

    # --- contexts ------------------------------------------------------------------------------------------------

    async def _assemble(
        self, runner: TurnRunner, plan: TurnPlan, standing: SessionStanding, messages: Sequence[InboxMessage]
    ) -> Sequence[AddMessage]:
        """What the first request is sent: the prompt, what was said before, the messages. Gives what the turn adds
        before the messages."""
        history, chain = await self._history(plan, standing)
        in_effect = history[0] if history and history[0].role == "system" else None
        prompt = _prompt_to_bring(plan, in_effect)
        is_replaced = prompt is not None or (is_default_prompt(in_effect) and plan.default_system is None)
        if in_effect is not None and is_replaced:
            history = history[1:]
            chain = None if chain is None else InputChain(chain.steps, chain.refs[1:])
        brought = [] if prompt is None else [prompt]
        runner.messages = [*brought, *history, *map(as_new_message, messages)]
        runner.chain, runner.brings_prompt = chain, prompt is not None
        return [AddMessage(message) for message in brought]

    async def _history(
        self, plan: TurnPlan, standing: SessionStanding
    ) -> tuple[tuple[Message | NewMessage, ...], InputChain | None]:
        if plan.is_root:
            return (), InputChain([], [])
        kept = self._kept.get(standing.id)
        if kept is not None and kept.key == _key(standing) and plan.parent is None:
            return kept.messages, kept.chain
        at = plan.parent or standing.head
        read = (
            partial(self._runs.history, standing.id) if plan.parent is None else partial(self._runs.after, plan.parent)
        )
        context = await self._crossing.run(read)
        chain = await self._crossing.run(partial(self._runs.input_chain, context, at))
        return tuple(context), chain

    def _keep(self, standing: SessionStanding, runner: TurnRunner, end: TurnEnd) -> None:
        """A turn that ended well leaves behind what the next request of the session begins with."""
        self._kept.pop(standing.id, None)
        recorded = end.recorded
        if recorded is None or recorded.session is None or end.cut is not None or end.error is not None:
            return
        if runner.messages is None or runner.chain is None or end.reply is None:
            return
        key = (recorded.id, None, standing.compaction, standing.erasures)
        chain = runner.chain_after_answer(recorded.response_message_id)
        if chain is not None:
            self._kept[standing.id] = KeptContext(key, tuple(runner.messages), chain)


def _prompt_to_bring(plan: TurnPlan, in_effect: Message | NewMessage | None) -> NewMessage | None:
    """The system prompt that the turn begins with, unless it is in effect already."""
    if plan.system is not None:
        is_same = in_effect is not None and text_of(in_effect) == plan.system and not is_default_prompt(in_effect)
        return None if is_same else NewMessage(role=MessageRole.SYSTEM, content=plan.system)
    if plan.default_system is not None and in_effect is None:
        return NewMessage(role=MessageRole.SYSTEM, content=plan.default_system, metadata={DEFAULT_PROMPT: True})
    return None


def is_default_prompt(message: Message | NewMessage | None) -> bool:
    """Whether this is the prompt that the embedded model alone is given."""
    metadata = None if message is None else message.metadata
    return isinstance(metadata, dict) and DEFAULT_PROMPT in metadata


def _tell(listeners: Sequence[OnToken], token: ReplyToken) -> None:
    for listener in listeners:
        listener(token)


def _key(standing: SessionStanding) -> tuple[Any, ...]:
    return (standing.head, standing.head_events, standing.compaction, standing.erasures)


def as_new_message(message: InboxMessage) -> NewMessage:
    """A message of an inbox as a model is sent it."""
    return NewMessage(role=MessageRole.USER, content=message.content)


def text_of(message: Message | NewMessage) -> str:
    if isinstance(message, Message):
        return message.text
    return message.content if isinstance(message.content, str) else ""
