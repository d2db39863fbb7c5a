"""The broker: takes sessions where something waits, one turn at a time each, and brings every turn to an end.

Any number of brokers may serve one ledger. A session belongs to the one that holds its lease; what another one left
behind, by dying or by letting go, is gone on with. Sessions take turns: the one that was served longest ago goes first
among those of equal priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState, InterruptionReason, QueueMode, RunExit, ToolCallStatus
from weft.kernel.errors import HeadMoved, LeaseLost, NotApplicable, SessionBusy, StoreError, WeftError
from weft.ledger.api import (
    Entry,
    Finished,
    InboxMessage,
    Interrupted,
    Ledger,
    RunRecord,
    Runs,
    RunWriter,
    SessionStanding,
    WaitingSession,
    retry_of,
)
from weft.ledger.model import NewError
from weft.runtime.broker.background import BackgroundJobs
from weft.runtime.broker.plans import Planner, Sending, TurnPlan, complete_setting, is_replay
from weft.runtime.broker.queue_modes import Collecting, is_interrupted, next_batch, steering
from weft.runtime.broker.run import Run
from weft.runtime.broker.schedule import HELD_MS, SessionSchedule
from weft.runtime.broker.session_contexts import SessionContexts, as_new_message
from weft.runtime.broker.turn_entries import TurnEnd, ended
from weft.runtime.broker.turn_runner import TurnRunner
from weft.runtime.streams.hub import hub_of
from weft.runtime.streams.turn_text import TurnText
from weft.runtime.turns.ledger_port import Crossing

T = TypeVar("T")
RENEW_SECONDS = 8.0
"""How often leases are renewed; a quarter of how long they live."""
BUSY_SECONDS = 0.25
"""How soon a session is looked at again that another broker holds."""
NEWS_SECONDS = 1.0
NEWS_PAUSE_SECONDS = 0.05
"""So far apart are looks at the ledger that others' events cause: many brokers that write would otherwise look all the
time."""
LOOKING_SHARE = 4
"""So many times as long as a look takes is waited before the next one that others cause."""
ATTEND_SECONDS = 0.25
"""How often a process that serves only what it sends looks for messages to its running turns."""
FAILURE_MS = 1000
"""How soon a session is looked at again where working on it failed."""
MAX_FAILURES = 3
"""So often in a row that may happen, before its turn fails or its message is dead."""
RETRIES = 8
"""So often a turn is begun anew where its session moved meanwhile."""


class ServedSession(Struct, frozen=True):
    """What came of working on a session: a turn left this broker, somebody else has the session, or neither."""

    end: TurnEnd | None = None
    busy: WeftError | None = None


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
        is_streamed: bool = False,
        background: BackgroundJobs | None = None,
    ) -> None:
        """With `is_streamed`, answers come piece by piece also where nobody in this process listens: those who follow
        in other processes see them grow."""
        ledger.trust.ensure("answer messages")
        self._ledger, self._crossing, self._planner, self._runs = ledger, crossing, planner, Runs(ledger)
        self._clock, self._capacity, self._collecting = clock or SystemClock(), capacity, collecting or Collecting()
        self._sleep, self._is_streamed, self._hub = sleep, is_streamed, hub_of(crossing)
        self._background = background or BackgroundJobs()
        self._working: dict[str, asyncio.Task[ServedSession]] = {}
        self._runners: dict[str, TurnRunner] = {}
        self._schedule = SessionSchedule(self._runs.owner, capacity)
        self._look_seconds = 0.0
        """How long the last look at the ledger took."""
        self._compacted: dict[str, str] = {}
        """By session, the message whose turn is being begun and before which a compaction was looked for already."""
        self._contexts = SessionContexts(self._runs, crossing)
        self._sendings: dict[str, Sending] = {}
        self._awaited: dict[str, str] = {}
        """The sessions of the messages that somebody in this process awaits."""
        self._looking_after: list[asyncio.Future[None]] = []
        self._ends: dict[str, TurnEnd] = {}
        """How the turns of messages ended that somebody in this process awaits."""
        self._unleft: dict[str, TurnRunner] = {}
        """Turns that this broker stopped working on while the ledger could not be told."""
        self._failures: dict[str, int] = {}
        """How often in a row working on a session failed by no fault of the ledger's."""
        self._wake = asyncio.Event()
        self._is_draining = False
        self._grace_seconds: float | None = None

    # --- for those who send --------------------------------------------------------------------------------------

    def expect(self, message: str, sending: Sending) -> None:
        """A sender in this process waits for the answer to a message."""
        self._sendings[message] = sending

    def plan_with(self, planner: Planner) -> None:
        """Answer also what others left in the sessions that are served."""
        self._planner = planner

    def wake(self) -> None:
        """Something was admitted, or came from outside."""
        self._wake.set()
        self._background.wake()

    async def answered(self, message: str, session: str, wait: float | None = None) -> TurnEnd | None:
        """Serve one session until this message is settled; None where another broker settled it. Raises SessionBusy,
        and takes the message back, where others hold the session for longer than `wait` seconds."""
        until = None if wait is None else self._clock.monotonic() + wait
        self._await(message, session)
        try:
            while True:
                state, is_elsewhere = await self._crossing.run(partial(self._runs.message_state, message))
                if state not in (InboxState.QUEUED, InboxState.TAKEN):
                    return self._ends.pop(message, None)
                if is_elsewhere:
                    raise NotApplicable(f"message {message} waits in another ledger", Action.LIST_INBOX)
                work = await self._serve_once(session)
                await self._start_workers((session,))
                if message in self._ends:
                    return self._ends.pop(message)
                if work.busy is not None and until is not None:
                    await self._take_back(message, work.busy, until)
                await self._pause(session, work)
        finally:
            await self._await_no_more(message)

    def _await(self, message: str, session: str) -> None:
        """Whoever awaits the first message has the turns of this broker looked after, for all that await one."""
        self._awaited[message] = session
        if not self._looking_after:
            tasks = (self._renew_all(), self._attend_all())
            self._looking_after = [asyncio.ensure_future(task) for task in tasks]

    async def _await_no_more(self, message: str) -> None:
        self._awaited.pop(message, None)
        self._ends.pop(message, None)
        if self._awaited:
            return
        tasks, self._looking_after = self._looking_after, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_back(self, message: str, busy: WeftError, until: float) -> None:
        if self._clock.monotonic() < until:
            return
        try:
            await self._crossing.run(partial(self._ledger.inbox.cancel, message, reason="the session is busy"))
        except NotApplicable:  # a turn has it now
            return
        raise busy

    async def _pause(self, session: str, work: ServedSession) -> None:
        """Until the session can be looked at again; where it was left as it is, for a while."""
        until = self._schedule.postponed_until(session)
        seconds = max(0.0, (until - self._clock.now_ms()) / 1000)
        if work.end is None or seconds:
            await self._sleep(min(seconds or BUSY_SECONDS, BUSY_SECONDS))

    async def _serve_once(self, session: str) -> ServedSession:
        """One turn of the session, begun by whoever of this process asks first; the others wait for its end."""
        task = self._working.get(session)
        if task is None:
            task = self._start(WaitingSession(session, None, 0, 0))
        elif session in self._runners:
            await self._attend(session)
        await asyncio.wait({task})
        return ServedSession() if task.cancelled() else task.result()

    def _start(self, waiting: WaitingSession) -> asyncio.Task[ServedSession]:
        task = asyncio.ensure_future(self._work(waiting))
        self._working[waiting.session] = task
        self._schedule.start(waiting.session, self._clock.now_ms())
        task.add_done_callback(partial(self._worked, waiting.session))
        return task

    async def _start_workers(self, sessions: Collection[str]) -> None:
        """Begin with what workers of sessions have to do: nobody else may be there to do it."""
        waiting = await self._crossing.run(partial(self._runs.waiting_workers, tuple(sessions)))
        for session in self._schedule.choose(waiting, self._working, self._unleft, self._clock.now_ms()):
            self._start(session)

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
        self._background.start()
        try:
            while not self._is_draining:
                self._wake.clear()
                begun = self._clock.monotonic()
                try:
                    await self._dispatch()
                    await self._attend_runners()
                    seconds = await self._seconds_to_wait()
                    self._look_seconds = min(self._clock.monotonic() - begun, NEWS_SECONDS)
                except StoreError:  # the ledger cannot be reached; it is asked again
                    seconds = NEWS_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):  # `wait_for` may lose the cancelling of this task
                        await self._wake.wait()
            await self._finish_work()
        finally:
            for task in (watching, renewing):
                task.cancel()
            await asyncio.gather(watching, renewing, return_exceptions=True)
            await self._leave_all()

    def drain(self, grace_seconds: float | None = None) -> None:
        """Begin no more turns; `serve` returns once those under way are over, or so many seconds later. What is under
        way then is recorded as interrupted by a shutdown, and another broker goes on with it."""
        self._is_draining, self._grace_seconds = True, grace_seconds
        self._wake.set()

    async def _finish_work(self) -> None:
        tasks = {*self._background.drain(), *self._working.values()}
        attending = asyncio.ensure_future(self._attend_all())  # whoever wants a turn cut short is still heard
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=self._grace_seconds)
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)

    async def _leave_all(self) -> None:
        tasks = [*self._background.drain(), *self._working.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Hear of what other processes write."""
        newest: int | None = None
        while True:
            try:
                if newest is None or await _in_thread(partial(self._runs.wait_for_news, newest, NEWS_SECONDS)):
                    newest = await self._crossing.run(self._ledger.newest)
                    self.wake()
                    await self._sleep(max(NEWS_PAUSE_SECONDS, LOOKING_SHARE * self._look_seconds))
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
        return self._schedule.seconds_to_wait(due, now)

    async def _dispatch(self) -> None:
        """Begin with as many sessions as there is room for, those served longest ago first."""
        if len(self._working) >= self._capacity:
            return
        waiting = await self._crossing.run(partial(self._runs.waiting, 4 * self._capacity))
        for session in self._schedule.choose(waiting, self._working, self._unleft, self._clock.now_ms()):
            self._start(session)

    def _worked(self, session: str, task: asyncio.Task[ServedSession]) -> None:
        self._working.pop(session, None)
        self._schedule.stop(session)
        if not task.cancelled() and task.exception() is not None:
            self._schedule.postpone(session, self._clock.now_ms() + FAILURE_MS)
        self._wake.set()

    async def _attend_all(self) -> None:
        """Where nobody wakes it: in a process that serves only what it sends, and while it drains."""
        while True:
            await self._sleep(ATTEND_SECONDS)
            with suppress(StoreError):  # not now; it is asked again
                await self._attend_runners()
                await self._start_workers(set(self._awaited.values()))

    async def _attend_runners(self) -> None:
        """Tell running turns of messages that want to interrupt them or to enter them."""
        sessions = list(self._runners)
        if sessions:
            for session in await self._crossing.run(partial(self._runs.to_attend, sessions)):
                await self._attend(session)

    async def _attend(self, session: str) -> None:
        standing = await self._crossing.run(partial(self._runs.standing, session))
        runner = self._runners.get(session)
        if runner is None or standing.open_turn != runner.turn:
            return
        if standing.stop is not None:
            runner.interrupt(InterruptionReason(standing.stop))
        if is_interrupted(standing):
            runner.interrupt(InterruptionReason.CANCELED)
        if runner.awaits_answers:
            runner.hear(await self._crossing.run(partial(self._runs.events, runner.turn)))
        steers = {one.id: as_new_message(one) for one in steering(standing)}
        if steers:
            runner.steer(steers)

    # --- one turn ------------------------------------------------------------------------------------------------

    async def _work(self, waiting: WaitingSession) -> ServedSession:
        """One turn of a session: gone on with, or begun for what waits there. Tells who else has the session."""
        session = waiting.session
        try:
            await self._leave_unleft(session)
            for _ in range(RETRIES):
                standing = await self._next_standing(session)
                try:
                    end = await self._turn(standing)
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
            else:
                self._schedule.lose(session, now, ms)
            return ServedSession(busy=error)
        except StoreError:
            raise
        except Exception as error:  # whatever it is, it must not stop the session's queue for ever
            self._failures[session] = self._failures.get(session, 0) + 1
            if self._failures[session] < MAX_FAILURES:
                raise
            await self._give_up(session, error)
        return ServedSession()

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
        fault = NewError(code=type(error).__name__, message=str(error) if isinstance(error, WeftError) else "a defect")
        if standing.open_turn is not None:
            writer = await self._crossing.run(partial(self._runs.adopt, standing.open_turn))
            if writer is not None:
                await self._fail(writer, fault)
        elif standing.queued:
            await self._buried(standing.queued[:1], error, fault)

    async def _fail(self, writer: RunWriter, fault: NewError) -> None:
        """End a turn that nobody can go on with."""
        events = await self._crossing.run(partial(self._runs.events, writer.id))
        run = Run(writer.id).apply(events).lose(writer.lost_because)
        request, because = run.last_request, writer.lost_because
        lost = NewError(code=because.value, message="nobody can go on with the turn")
        entries: list[Entry] = [ended(call, ToolCallStatus.INTERRUPTED, error=lost) for call in run.open_calls]
        if request is not None and request.is_open:
            entries.append(Interrupted(because, (request.event,)))
        entries.append(Finished(exit=RunExit.ERROR, error=fault))
        await self._crossing.run(partial(writer.record, entries))

    async def _turn(self, standing: SessionStanding) -> TurnEnd | None:
        if standing.open_turn is not None:
            now, until = self._clock.now_ms(), standing.parked_until
            if standing.is_parked and (until is None or until > now) and not is_interrupted(standing):
                return None
            return await self._resumed(standing, standing.open_turn)
        if standing.lifecycle == "paused" or standing.status != "active":
            return None
        batch = next_batch(standing.queued, self._clock.now_ms(), self._collecting)
        if batch.wait_until_ms is not None:
            self._schedule.postpone(standing.id, batch.wait_until_ms)
        return await self._begun(standing, batch.messages) if batch.messages else None

    async def _begun(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnEnd:
        self._schedule.serve(standing.id)
        try:
            plan = await self._plan(standing, messages)
        except StoreError:
            raise
        except WeftError as error:
            return await self._buried(messages, error)
        if plan is None:
            raise NotApplicable(f"nobody here can answer in session {standing.label!r}", "let its sender answer it")
        await self._compact(standing, plan, messages)
        runner = self._runner(standing, plan, messages)
        try:
            writer, record = await self._begin(standing, messages, plan, runner)
        except (HeadMoved, SessionBusy, LeaseLost, NotApplicable, StoreError):
            raise
        except WeftError as error:
            return await self._buried(messages, error)
        self._compacted.pop(standing.id, None)
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
        fault = fault or NewError(code=type(error).__name__, message=str(error))
        await self._crossing.run(lambda: self._runs.bury(ids, fault.code or "", fault.message))
        end = TurnEnd(turn="", error=error)
        self._tell_senders(ids, end)
        return end

    def _tell_senders(self, messages: Sequence[str], end: TurnEnd) -> None:
        for message in messages:
            self._sendings.pop(message, None)
            if message in self._awaited:
                self._ends[message] = end

    async def _resumed(self, standing: SessionStanding, turn: str) -> TurnEnd | None:
        writer = await self._crossing.run(partial(self._runs.adopt, turn))
        if writer is None:
            return None
        events = await self._crossing.run(partial(self._runs.events, turn))
        run = Run(turn).apply(events).lose(writer.lost_because)
        messages = [await self._crossing.run(partial(self._ledger.inbox.get, one)) for one in run.taken]
        try:
            plan = await self._plan(standing, messages)
        except StoreError:
            raise
        except WeftError as error:
            await self._fail(writer, NewError(code=type(error).__name__, message=str(error)))
            end = TurnEnd(turn=turn, error=error)
            self._tell_senders(run.taken, end)
            return end
        if plan is None:
            await self._crossing.run(writer.leave)
            raise NotApplicable(f"nobody here can answer in session {standing.label!r}", "let its sender answer it")
        runner = self._runner(standing, plan, messages)
        runner.chain = await self._crossing.run(partial(self._runs.last_input, turn))
        await runner.fitting.resume(turn, standing.compaction)
        if is_interrupted(standing):
            runner.interrupt(InterruptionReason.CANCELED)
        return await self._run(standing, runner, partial(runner.resume, writer, run), messages)

    async def _plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan | None:
        """The sender's own plan where it is in this process, else what the planner makes of the message. None where
        nobody here knows how to answer it."""
        sendings = [self._sendings[one.id] for one in messages if one.id in self._sendings]
        plans = [sending.plan for sending in sendings if sending.plan is not None]
        if plans:
            return plans[-1]
        planners = [sending.planner for sending in sendings if sending.planner is not None]
        if not planners and is_replay(messages):
            if standing.open_turn is None:
                return None
            raise NotApplicable("whoever replayed this turn is gone", "replay it again")
        planner = planners[-1] if planners else self._planner
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
        self._runners[standing.id] = runner
        self._schedule.run(standing.id)
        self._wake.set()
        try:
            end = await go()
        except LeaseLost:
            raise
        except asyncio.CancelledError:
            with suppress(WeftError):  # another broker has it already, or will find it
                await runner.shut_down()
            raise
        except Exception:  # whatever it was, this broker works on the turn no more
            self._unleft[standing.id] = runner
            await self._leave_unleft(standing.id)
            raise
        finally:
            self._runners.pop(standing.id, None)
        if end.recorded is not None:
            self._tell_senders(runner.taken or [message.id for message in messages], end)
        self._contexts.keep(standing, runner, end)
        return end

    async def _leave_unleft(self, session: str) -> None:
        """Let go of a turn that this broker works on no more, as soon as the ledger can be told."""
        runner = self._unleft.get(session)
        if runner is None:
            return
        with suppress(LeaseLost):  # another broker has it already
            try:
                await runner.leave()
            except StoreError:
                return
        self._unleft.pop(session, None)


async def _in_thread(call: Callable[[], T]) -> T:
    """A blocking call in a thread. Whoever is cancelled waits for its end: the ledger is closed after it."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()
        raise
