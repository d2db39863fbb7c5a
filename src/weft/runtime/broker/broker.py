"""The broker: takes sessions where something waits, and brings every turn to an end.

Beside that it does work on occasions that the ledger and the clock give. A message to a session is
admitted to the inbox, and then brought to its turn by the broker of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from weft.kernel.authority import LOCAL_NAME, Authority
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState, InterruptionReason
from weft.kernel.errors import Action, LeaseLost, NotApplicable, SessionBusy, StoreError, WeftError
from weft.ledger.api import Admission, Ledger, RunConfig, Runs, WaitingSession
from weft.ledger.model import DEFAULT_AGENT
from weft.runtime.answer_streams import hub_of
from weft.runtime.assembly.configuration_layers import MessageOverrides
from weft.runtime.broker.session_turns import (
    BUSY_SECONDS,
    AwaitedMessages,
    CollectRules,
    ServedSession,
    SessionSchedule,
    SessionTurns,
    as_new_message,
    is_interrupted,
    steering,
)
from weft.runtime.broker.turn_plans import Planner, SenderContext, TurnPlan
from weft.runtime.broker.turn_state import TurnEnd
from weft.runtime.egress.execution_context import ExecutionContext, current_context
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local_models import default_prompt
from weft.runtime.inference.model_requests import NO_PARAMETERS, ModelParameters, ModelSettings, RequestBudget
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.replies import TurnReply, load_reply
from weft.runtime.tool.tool_contract import NO_TOOLS, GivenFunctions, Tools
from weft.store.replicas import owner_words

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken


# --- Work that a broker does beside answering messages, on occasions that the ledger and the clock give.

LONGEST_WAIT_SECONDS = 30.0
"""A due time is a time of the wall clock, which can be set: it is looked at at least so often."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""After a failure a job rests for the first pause; for twice as long after each further one in a row."""

OnJobError = Callable[[str, Exception], None]
"""Called with the name of a job and what its run raised. It does not wait."""


class BackgroundJob(Protocol):
    """One kind of work. Several brokers run it at once over one ledger; it sees to it that each thing is done once."""

    @property
    def name(self) -> str:
        """What it does, for people."""

    async def run_due(self, now_ms: int) -> int | None:
        """Do what is due, and return at which Unix milliseconds it is to be run again at the latest; None where
        only news in the ledger can make something due. It can be cancelled anywhere, and run again after that."""


class BackgroundJobs:
    """The jobs of one broker, and the tasks that run them."""

    def __init__(
        self, jobs: Sequence[BackgroundJob] = (), *, clock: Clock | None = None, on_error: OnJobError | None = None
    ) -> None:
        self._clock, self._on_error = clock or SystemClock(), on_error
        self._loops = [_JobLoop(job, self) for job in jobs]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run every job now, and from now on when it is due."""
        self._tasks = [asyncio.ensure_future(loop.run()) for loop in self._loops]

    def wake(self) -> None:
        """Something was written to the ledger: every job runs, once more where it is running."""
        for loop in self._loops:
            loop.wake()

    def drain(self) -> list[asyncio.Task[None]]:
        """Begin no more runs. Returns what is under way: each ends with its present run, or where it is cancelled."""
        for loop in self._loops:
            loop.stop()
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def report_error(self, job: BackgroundJob, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(job.name, error)


class _JobLoop:
    """One job, run again and again."""

    def __init__(self, job: BackgroundJob, jobs: BackgroundJobs) -> None:
        self._job, self._jobs = job, jobs
        self._news, self._stopped = asyncio.Event(), asyncio.Event()
        self._pause_seconds, self._last_error = 0.0, ""

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()

    async def run(self) -> None:
        while not self._stopped.is_set():
            self._news.clear()
            due_ms = await self._run_once()
            if self._pause_seconds:
                await _wait(self._stopped, self._pause_seconds)
            elif not self._stopped.is_set():
                await _wait(self._news, self._seconds_until(due_ms))

    async def _run_once(self) -> int | None:
        try:
            due_ms = await self._job.run_due(self._jobs.now_ms())
        except Exception as error:  # whatever it is, the other jobs and the turns go on
            self._pause_seconds = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds), LONGEST_PAUSE_SECONDS)
            words = f"{type(error).__name__}: {error}"
            if words != self._last_error:
                self._jobs.report_error(self._job, error)
            self._last_error = words
            return None
        self._pause_seconds, self._last_error = 0.0, ""
        return due_ms

    def _seconds_until(self, due_ms: int | None) -> float:
        if due_ms is None:
            return LONGEST_WAIT_SECONDS
        return min(max(0.0, (due_ms - self._jobs.now_ms()) / 1000), LONGEST_WAIT_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` may lose the cancelling of this task
            await event.wait()


# --- The broker: takes sessions where something waits, one turn at a time each, and brings every turn to an end.

T = TypeVar("T")
RENEW_SECONDS = 8.0
"""How often leases are renewed; a quarter of how long they live."""
NEWS_SECONDS = 1.0
NEWS_PAUSE_SECONDS = 0.05
"""So far apart are looks at the ledger that others' events or the time cause, for each broker that is seen there: all
together look so often, however many they are."""
LOOKING_SHARE = 4
"""So many times as long as a look takes is waited before the next one that others cause."""
ATTEND_SECONDS = 0.25
"""How often a process that serves only what it sends looks for messages to its running turns."""
FAILURE_MS = 1000
"""How soon a session is looked at again where working on it failed."""


class Broker:
    """Serves the sessions of one open ledger."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Executor,
        planner: Planner | None = None,
        *,
        clock: Clock | None = None,
        capacity: int = 64,
        collecting: CollectRules | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_streamed: bool = False,
        background: BackgroundJobs | None = None,
        on_left: Callable[[NotApplicable], None] | None = None,
        functions: GivenFunctions | None = None,
    ) -> None:
        """With `is_streamed`, answers come piece by piece also where nobody in this process listens: those who follow
        in other processes see them grow. `on_left` hears once of each turn that nobody in this process goes on with
        for want of a function that a program gave; `functions` are those that the planner has."""
        ledger.trust.ensure("answer messages")
        self._ledger, self._crossing, self._runs = ledger, crossing, Runs(ledger)
        self._clock, self._capacity, self._sleep = clock or SystemClock(), capacity, sleep
        self._background = background or BackgroundJobs()
        self._working: dict[str, asyncio.Task[ServedSession]] = {}
        self.turns_ended = 0
        """Since it began."""
        self._serving = False
        """Whether every session is served, not only those whose messages are awaited here."""
        self._schedule = SessionSchedule(self._runs.owner, capacity)
        self._pause_seconds = NEWS_PAUSE_SECONDS
        self._look_seconds = 0.0
        """How long the last look at the ledger took."""
        self._awaited = AwaitedMessages()
        self._looking_after: list[asyncio.Future[None]] = []
        self._wake, self._stir = asyncio.Event(), asyncio.Event()
        """There is something to do now; there may be something to do, which is looked for after a pause."""
        self._is_draining = False
        self._grace_seconds: float | None = None
        self._turns = SessionTurns(
            ledger,
            self._runs,
            crossing,
            self._clock,
            self._schedule,
            self._awaited,
            self._stir.set,
            planner=planner,
            collecting=collecting or CollectRules(),
            is_streamed=is_streamed,
            on_left=on_left,
            functions=functions,
        )
        self._runners = self._turns.runners

    @property
    def working(self) -> int:
        """How many sessions it works on now."""
        return len(self._working)

    # --- for those who send --------------------------------------------------------------------------------------

    def expect(self, message: str, sending: SenderContext) -> None:
        """A sender in this process waits for the answer to a message."""
        self._awaited.expect(message, sending)

    def plan_with(self, planner: Planner, functions: GivenFunctions | None = None) -> None:
        """Answer also what others left in the sessions that are served."""
        self._turns.planner, self._turns.functions = planner, functions

    def wake(self) -> None:
        """Something was admitted, or came from outside."""
        self._wake_now()
        self._background.wake()

    def _wake_now(self) -> None:
        self._wake.set()
        self._stir.set()

    async def wait_for_answer(self, message: str, session: str, wait: float | None = None) -> TurnEnd | None:
        """Serve one session until this message is settled; None where another broker settled it. Raises SessionBusy,
        and takes the message back, where others hold the session for longer than `wait` seconds."""
        until = None if wait is None else self._clock.monotonic() + wait
        self._await(message, session)
        try:
            while True:
                state, is_elsewhere = await self._crossing.run(partial(self._runs.message_state, message))
                if state not in (InboxState.QUEUED, InboxState.TAKEN):
                    self._awaited.settle(message)
                    return self._awaited.end(message)
                if is_elsewhere:
                    raise NotApplicable(f"message {message} waits in another ledger", Action.LIST_INBOX)
                work = await self._serve_once(session)
                await self._start_workers((session,))
                if (end := self._awaited.end(message)) is not None:
                    return end
                if work.end is not None and wait is not None:  # nobody else held the session
                    until = self._clock.monotonic() + wait
                if work.busy is not None and until is not None:
                    await self._take_back(message, session, work.busy, until)
                await self._pause(session, work)
        finally:
            await self._await_no_more(message)

    def _await(self, message: str, session: str) -> None:
        """Whoever awaits the first message has the turns of this broker looked after, for all that await one."""
        self._awaited.add(message, session)
        if not self._looking_after:
            tasks = (self._renew_all(), self._attend_all())
            self._looking_after = [asyncio.ensure_future(task) for task in tasks]

    async def _await_no_more(self, message: str) -> None:
        self._awaited.remove(message)
        if self._awaited.sessions:
            return
        tasks, self._looking_after = self._looking_after, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_back(self, message: str, session: str, busy: WeftError, until: float) -> None:
        if self._clock.monotonic() < until:
            return
        try:
            await self._crossing.run(partial(self._ledger.inbox.cancel, message, reason="the session is busy"))
        except NotApplicable:  # a turn has it now
            return
        self._awaited.settle(message)
        if isinstance(busy, SessionBusy):  # by the names that its sender knows
            standing = await self._crossing.run(partial(self._runs.standing, session, 1))
            hint = Action.FREE_SESSION.of(session=standing.label) if standing.lease is None else ""
            raise SessionBusy(standing.label, busy.turn, owner_words(busy.owner), hint) from busy
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
        task = asyncio.ensure_future(self._turns.work(waiting))
        self._working[waiting.session] = task
        self._schedule.start(waiting.session, self._clock.now_ms())
        task.add_done_callback(partial(self._note_end_of_work, waiting))
        return task

    async def _start_workers(self, sessions: Collection[str]) -> None:
        """Begin with what workers of sessions have to do: nobody else may be there to do it."""
        waiting = await self._crossing.run(partial(self._runs.waiting_workers, tuple(sessions)))
        for session in self._schedule.choose(waiting, self._working, self._turns.unleft, self._clock.now_ms()):
            self._start(session)

    def interrupt(
        self, session: str, reason: InterruptionReason = InterruptionReason.CANCELED, *, turn: str | None = None
    ) -> bool:
        """Cut the turn short that this broker runs in a session; False where it runs none there, or another one than
        `turn`."""
        runner = self._runners.get(session)
        if runner is None or turn not in (None, runner.turn):
            return False
        runner.interrupt(reason)
        return True

    async def wait_until_parked(self, session: str) -> None:
        """Once this broker runs no turn in a session, as where the turn is parked."""
        while session in self._runners and (task := self._working.get(session)) is not None:
            await asyncio.wait({task})

    def leave(self, message: str, session: str) -> bool:
        """Whoever awaits this message waits no more: a turn of its session that this broker runs, and that comes before
        it, is left to other brokers. Not where somebody else here awaits a message of the session. False where no such
        turn was left; one that is still prepared can be left when it runs."""
        task = self._working.get(session) if session in self._runners else None
        if task is None or self._serving or not self._awaited.is_alone(message, session):
            return False
        task.cancel()
        return True

    # --- serving -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve every session until `drain` is called, or the task is cancelled. Senders in other processes see that a
        broker is there, and leave their messages to it."""
        watching = asyncio.ensure_future(self._watch())
        renewing, announcing = (asyncio.ensure_future(work) for work in (self._renew_all(), self._announce_all()))
        self._background.start()
        self._serving = True
        try:
            while not self._is_draining:
                self._wake.clear()
                self._stir.clear()
                begun = self._clock.monotonic()
                try:
                    seconds = await self._begin_waiting_sessions()
                    self._look_seconds = min(self._clock.monotonic() - begun, NEWS_SECONDS)
                except StoreError:  # the ledger cannot be reached; it is asked again
                    seconds = NEWS_SECONDS
                await self._wait_for_news(seconds)
            with suppress(StoreError):  # senders wait for a moment, then
                await self._crossing.run(self._runs.withdraw_broker)
            await self._finish_work()
        finally:
            self._serving = False
            for task in (watching, renewing, announcing):
                task.cancel()
            await asyncio.gather(watching, renewing, announcing, return_exceptions=True)
            await self._leave_all()
            self._runs.withdraw_broker()

    async def _announce_all(self) -> None:
        """Apart from the leases: whatever is in the way of an announcement, turns go on."""
        while not self._is_draining:
            with suppress(StoreError):  # not now; it is said again
                await self._crossing.run(self._runs.announce_broker)
            await self._sleep(RENEW_SECONDS)

    async def _wait_for_news(self, seconds: float) -> None:
        """Until there is something to do, or for so many seconds; where there may be something, for a pause."""
        pause = max(self._pause_seconds, LOOKING_SHARE * self._look_seconds)
        for event, limit in ((self._wake, pause), (self._stir, seconds - pause)):
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, limit)):  # `wait_for` may lose the cancelling of this task
                    await event.wait()
                    return

    def drain(self, grace_seconds: float | None = None) -> None:
        """Begin no more turns; `serve` returns once those under way are over, or so many seconds later. What is under
        way then is recorded as interrupted by a shutdown, and another broker goes on with it."""
        self._is_draining, self._grace_seconds = True, grace_seconds
        self._wake_now()

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
                    self._stir.set()
                    self._background.wake()
                    await self._sleep(max(self._pause_seconds, LOOKING_SHARE * self._look_seconds))
            except StoreError:  # the server is away; it is asked again
                await self._sleep(NEWS_SECONDS)

    async def _renew_all(self) -> None:
        while True:
            await self._sleep(RENEW_SECONDS)
            for runner in list(self._runners.values()):
                try:
                    await runner.renew()
                except LeaseLost as error:
                    runner.abort(error)
                except StoreError:  # not now; the lease lives on for a while
                    continue

    async def _begin_waiting_sessions(self) -> float:
        """Begin with as many sessions as there is room for, those served longest ago first, and tell running turns what
        concerns them. Returns in how many seconds to look again."""
        limit = 4 * self._capacity if len(self._working) < self._capacity else 0
        look = await self._crossing.run(partial(self._runs.look, limit, list(self._runners)))
        waiting = [*look.waiting, *(await self._turns.waiting_for_functions() if limit else ())]
        for session in self._schedule.choose(waiting, self._working, self._turns.unleft, self._clock.now_ms()):
            self._start(session)
        for session_id in look.to_attend:
            await self._attend(session_id)
        brokers = {waiting.served_by for waiting in look.waiting if waiting.served_by is not None} | {self._runs.owner}
        self._pause_seconds = min(len(brokers) * NEWS_PAUSE_SECONDS, NEWS_SECONDS)
        return self._schedule.seconds_to_wait(look.next_due, self._clock.now_ms())

    def _note_end_of_work(self, waiting: WaitingSession, task: asyncio.Task[ServedSession]) -> None:
        session = waiting.session
        self._working.pop(session, None)
        self._schedule.stop(session)
        self.turns_ended += not task.cancelled() and task.exception() is None and task.result().end is not None
        if not task.cancelled() and task.exception() is not None:
            self._schedule.postpone(session, self._clock.now_ms() + FAILURE_MS)
        elif self._can_go_on(waiting, task):
            self._start(WaitingSession(session, None, waiting.priority, waiting.oldest, amount=waiting.amount - 1))
            return
        is_over = not task.cancelled() and task.exception() is None
        if is_over and task.result().busy is not None:  # it was postponed; the next look is soon enough
            self._stir.set()
        else:
            self._wake_now()

    def _can_go_on(self, waiting: WaitingSession, task: asyncio.Task[ServedSession]) -> bool:
        """Whether more messages wait in a session, as far as is known, and there is room for all who wait: then nobody
        need look for what to do next."""
        has_more = waiting.amount > 1 and not task.cancelled() and task.result().end is not None
        return has_more and self._serving and not self._is_draining and 2 * len(self._working) < self._capacity

    async def _attend_all(self) -> None:
        """Where nobody wakes it: in a process that serves only what it sends, and while it drains."""
        while True:
            await self._sleep(ATTEND_SECONDS)
            with suppress(StoreError):  # not now; it is asked again
                await self._attend_runners()
                await self._start_workers(self._awaited.sessions)

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
            runner.notify(await self._crossing.run(partial(self._runs.events, runner.turn)))
        steers = {message.id: as_new_message(message) for message in steering(standing)}
        if steers:
            runner.steer(steers)


async def _in_thread(call: Callable[[], T]) -> T:
    """A blocking call in a thread. Whoever is cancelled waits for its end: the ledger is closed after it."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()
        raise


# --- A message to a session, answered by a model: admitted to the inbox, then brought to its turn by a broker.

WAIT = 10.0
LEAVING_SECONDS = 0.2
"""How often whoever left looks whether the turn before their message runs by now, and can be left."""


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """What is sent. `message` is plain text, a message or a dict of its shape; `system` replaces the prompt so far."""

    message: Any
    model: ModelSettings
    system: str | None = None
    situation: str | None = None
    parameters: ModelParameters = NO_PARAMETERS
    persona: str = DEFAULT_AGENT
    tools: Tools = NO_TOOLS
    mode: str = "followup"


async def send(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    question: OutgoingMessage,
    *,
    on_token: OnToken | None = None,
    budget: RequestBudget | None = None,
    context: ExecutionContext | None = None,
    wait: float = WAIT,
) -> TurnReply:
    """Send a message to a session, made if there is none, and have it answered by the model that the question names.
    Others who write to the session are waited for, `wait` seconds at most."""
    return await _sent(ledger, inference, session, question, on_token, budget, context, wait, is_root=False)


async def invoke_model(
    ledger: RuntimeLedger,
    inference: Inference,
    question: OutgoingMessage,
    *,
    on_token: OnToken | None = None,
    budget: RequestBudget | None = None,
    context: ExecutionContext | None = None,
    wait: float = WAIT,
) -> TurnReply:
    """Ask a model by itself: a root turn in the session `model:{id}`, without anything that was said there before.
    Whoever did not open the ledger asks in a session of their own, `model:{id}:{name}`."""
    label = model_session(ledger.authority, question.model)
    return await _sent(ledger, inference, label, question, on_token, budget, context, wait, is_root=True)


def model_session(authority: Authority, model: ModelSettings) -> str:
    """The label of the session in which somebody asks a model by itself."""
    label, principal = f"model:{model.id}", authority.principal.id
    return label if principal == LOCAL_NAME else f"{label}:{principal}"


async def _sent(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    question: OutgoingMessage,
    on_token: OnToken | None,
    budget: RequestBudget | None,
    context: ExecutionContext | None,
    wait: float,
    *,
    is_root: bool,
) -> TurnReply:
    ledger.trust.ensure("send a message to a model")
    acting = context or current_context()
    plan = TurnPlan(
        model=question.model,
        inference=inference,
        acting=acting,
        setting=_setting(question, acting, inference),
        situation=question.situation,
        parameters=question.parameters,
        system=question.system,
        default_system=default_prompt(question.model),
        persona=question.persona,
        tools=question.tools,
        budget=budget,
        is_root=is_root,
    )
    admission = await to_the_end(_admit_question(ledger, session, question, is_root=is_root))
    return await answer_admitted(ledger, admission, SenderContext(plan=plan), on_token=on_token, wait=wait)


async def answer_admitted(
    ledger: RuntimeLedger,
    admission: Admission,
    sending: SenderContext,
    *,
    on_token: OnToken | None = None,
    wait: float | None = None,
    unless: asyncio.Future[None] | None = None,
) -> TurnReply:
    """Have an admitted message answered, by the broker that this open ledger's senders share or by another one that is
    quicker. `on_token` hears the answer as it comes, where it is this process that runs the turn. Raises what its turn
    failed with. Where others hold the session for longer than `wait` seconds it is taken
    back, and SessionBusy raised; with None they are waited for. Where `unless` fails before that, what it failed with
    is raised once the turn is parked, and the turn stays so."""
    broker = broker_of(ledger)
    broker.expect(admission.message, sending)
    with hub_of(ledger.crossing).listening(admission.message, on_token):
        end = await await_turn(ledger, broker, admission, wait, unless)
    if end is None:
        return await ledger.crossing.run(lambda: _answered_elsewhere(ledger.sync, admission.message))
    if end.error is not None:
        raise end.error
    if end.cut is InterruptionReason.APPROVAL_DENIED:
        raise NotApplicable("a tool call was denied, and the turn ended with it", "what it did until then is recorded")
    if end.recorded is None or end.reply is None or end.cut is not None:
        raise NotApplicable("the turn was interrupted", "what had come of the answer is recorded")
    return TurnReply(turn=end.recorded, reply=end.reply)


def _answered_elsewhere(ledger: Ledger, message: str) -> TurnReply:
    return load_reply(ledger, ledger.inbox.get(message))


def broker_of(ledger: RuntimeLedger) -> Broker:
    """The broker that those share who send through one open ledger, in one name: it answers what they send, and nothing
    else."""
    shared, key = ledger.crossing.shared, ("broker", ledger.authority)
    if key not in shared:
        shared[key] = Broker(ledger.sync, ledger.crossing)
    broker: Broker = shared[key]
    return broker


@contextmanager
def serving_broker(ledger: RuntimeLedger, broker: Broker) -> Iterator[None]:
    """Meanwhile whoever sends through an open ledger, in one name, shares this broker, which serves others too."""
    shared, key = ledger.crossing.shared, ("broker", ledger.authority)
    shared[key] = broker
    try:
        yield
    finally:
        if shared.get(key) is broker:
            del shared[key]


async def _admit_question(
    ledger: RuntimeLedger, session: str, question: OutgoingMessage, *, is_root: bool
) -> Admission:
    overrides = MessageOverrides(
        model=question.model.id,
        situation=question.situation,
        parameters=question.parameters,
        system=question.system,
        is_root=is_root,
    )
    inbox = ledger.sync.inbox
    return await ledger.crossing.run(
        lambda: inbox.admit(
            question.message,
            session=session,
            persona=question.persona,
            mode=question.mode,
            overrides=overrides.record(),
        )
    )


async def await_turn(
    ledger: RuntimeLedger,
    broker: Broker,
    admission: Admission,
    wait: float | None = None,
    unless: asyncio.Future[None] | None = None,
) -> TurnEnd | None:
    """Serve the session until the message is settled; None where another process settled it. Whoever is cancelled has
    the turn end with what it has. `unless`: see `answer_admitted`."""
    serving = asyncio.ensure_future(broker.wait_for_answer(admission.message, admission.session_id, wait))
    awaited: set[asyncio.Future[Any]] = {serving} if unless is None else {serving, unless}
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if unless is not None and not serving.done():
            await _until_parked(broker, admission, serving)
            unless.result()
        return await asyncio.shield(serving)
    except asyncio.CancelledError:
        await to_the_end(_given_up(ledger, broker, admission, serving))
        raise


async def _until_parked(broker: Broker, admission: Admission, serving: asyncio.Future[TurnEnd | None]) -> None:
    """Wait until nothing of the turn is under way here, and serve the message no more."""
    parking = asyncio.ensure_future(broker.wait_until_parked(admission.session_id))
    awaited: set[asyncio.Future[Any]] = {parking, serving}
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        parking.cancel()
    if not serving.done():
        serving.cancel()
        await asyncio.wait({serving})


async def _given_up(
    ledger: RuntimeLedger, broker: Broker, admission: Admission, serving: asyncio.Future[TurnEnd | None]
) -> None:
    """Take the message back, and leave a turn before it to other brokers; or cut its own turn short. Then wait for the
    end of what is under way."""
    try:
        if await _taken_back(ledger, admission.message):
            while not broker.leave(admission.message, admission.session_id) and not serving.done():
                await asyncio.wait({serving}, timeout=LEAVING_SECONDS)
        else:
            await _interrupt_answer(ledger, broker, admission)
    except BaseException:  # the ledger cannot be reached: nobody waits for what is served
        serving.cancel()
        raise
    finally:
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.exception()  # whoever is cancelled does not hear of it


async def _taken_back(ledger: RuntimeLedger, message: str) -> bool:
    """Whether no turn has the message, nor had it."""
    try:
        await ledger.crossing.run(partial(ledger.sync.inbox.cancel, message, reason="its sender left"))
    except NotApplicable:
        return False
    return True


async def _interrupt_answer(ledger: RuntimeLedger, broker: Broker, admission: Admission) -> None:
    """The message's own turn alone is cut short: its session may be answering somebody else by now. Where another
    process runs the turn, it is asked to."""
    runs, message = Runs(ledger.sync), admission.message
    turn = await ledger.crossing.run(partial(runs.answering_turn, message))
    if turn is not None and not broker.interrupt(admission.session_id, turn=turn):
        await ledger.crossing.run(partial(runs.interrupt_answer, message))


def _setting(question: OutgoingMessage, acting: ExecutionContext, inference: Inference) -> RunConfig:
    """Under which circumstances the turn runs: in whose name, and how the model is asked. What the model is not sent of
    the parameters is not told."""
    wanted = question.model.in_situation(question.situation, question.parameters)
    parameters = inference.sendable(question.model, wanted).given()
    config = {
        "model": question.model.id,
        "provider": question.model.provider.id,
        "situation": question.situation,
        "parameters": parameters,
        "chain": [str(principal) for principal in acting.chain],
    }
    thinking = parameters.get("thinking")
    return RunConfig(effective_config=config, thinking_config=None if thinking is None else {"thinking": thinking})


async def to_the_end(work: Any) -> Any:
    """What records the end of a turn is not cut short, however often its task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()  # whoever is cancelled does not hear of it
        raise


@asynccontextmanager
async def renewed(
    renew_lease: Callable[[], Awaitable[Any]], sleep: Callable[[float], Any] = asyncio.sleep
) -> AsyncIterator[None]:
    """Renews a lease again and again, to say that its holder is alive. If it is lost all the same, the work inside is
    cancelled, and what renewing raised is raised."""
    owner = asyncio.current_task()
    lost: list[WeftError] = []

    async def renew() -> None:
        while True:
            await sleep(RENEW_SECONDS)
            try:
                await renew_lease()
            except WeftError as error:
                lost.append(error)
                if owner is not None:
                    owner.cancel()
                return

    renewing = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if lost:
            raise lost[0] from None
        raise
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
