"""One turn of a session, begun for what waits there or gone on with, and brought to its end or left to others.

Whoever has a session that this process cannot have is told of; what no turn can be begun for is buried, so that it
stops nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from weft.kernel.clock import Clock
from weft.kernel.enums import InterruptionReason, QueueMode, RunExit, ToolCallStatus
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
from weft.runtime.broker.awaited_messages import AwaitedMessages
from weft.runtime.broker.plans import Planner, TurnPlan, complete_setting, is_replay
from weft.runtime.broker.queue_modes import Collecting, is_interrupted, next_batch
from weft.runtime.broker.run import Run
from weft.runtime.broker.schedule import BUSY_SECONDS, HELD_MS, SessionSchedule
from weft.runtime.broker.session_contexts import SessionContexts, as_new_message
from weft.runtime.broker.turn_entries import TurnEnd, ended
from weft.runtime.broker.turn_runner import TurnRunner
from weft.runtime.streams.hub import hub_of
from weft.runtime.streams.turn_text import TurnText
from weft.runtime.tools.result_secrets import ResultSecrets
from weft.runtime.turns.ledger_port import Crossing

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

    def __init__(self, runs: Runs, crossing: Crossing, session: str) -> None:
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
        crossing: Crossing,
        clock: Clock,
        schedule: SessionSchedule,
        awaited: AwaitedMessages,
        on_change: Callable[[], None],
        *,
        planner: Planner | None,
        collecting: Collecting,
        is_streamed: bool,
    ) -> None:
        self._ledger, self._runs, self._crossing, self._clock = ledger, runs, crossing, clock
        self._schedule, self._awaited, self._on_change = schedule, awaited, on_change
        self._collecting, self._is_streamed, self._hub = collecting, is_streamed, hub_of(crossing)
        self._contexts, self._secrets = SessionContexts(runs, crossing), ResultSecrets()
        self.planner = planner
        """Plans the turns for messages whose senders have no plan of their own."""
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
        finally:
            await claim.give_back()
        return ServedSession()

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
                    session: found for session, found in self._claimed.items() if now - found[1] < 2 * CLAIM_SECONDS
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
        run = Run(writer.id).apply(events).lose(writer.lost_because)
        request, because = run.last_request, writer.lost_because
        lost = NewError(code=because.value, message="nobody can go on with the turn")
        entries: list[Entry] = [ended(call, ToolCallStatus.INTERRUPTED, error=lost) for call in run.open_calls]
        if request is not None and request.is_open:
            entries.append(Interrupted(because, (request.event,)))
        entries.append(Finished(exit=RunExit.ERROR, error=fault))
        await self._crossing.run(partial(writer.record, entries))

    async def _turn(self, standing: SessionStanding, claim: SessionClaim) -> TurnEnd | None:
        if standing.open_turn is not None:
            now, until = self._clock.now_ms(), standing.parked_until
            if standing.is_parked and (until is None or until > now) and not is_interrupted(standing):
                return None
            await claim.give_back()
            return await self._resumed(standing, standing.open_turn)
        if (lease := standing.lease) is not None:
            raise SessionBusy(standing.label, lease.purpose or "", lease.owner)
        if standing.lifecycle == "paused" or standing.status != "active":
            return None
        batch = next_batch(standing.queued, self._clock.now_ms(), self._collecting)
        if batch.wait_until_ms is not None:
            self._schedule.postpone(standing.id, batch.wait_until_ms)
        return await self._begun(standing, batch.messages, claim) if batch.messages else None

    async def _begun(self, standing: SessionStanding, messages: Sequence[InboxMessage], claim: SessionClaim) -> TurnEnd:
        self._schedule.serve(standing.id)
        try:
            plan = await self._plan(standing, messages)
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
        run = Run(turn).apply(events).lose(writer.lost_because)
        messages = [await self._crossing.run(partial(self._ledger.inbox.get, one)) for one in run.taken]
        try:
            plan = await self._plan(standing, messages)
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
