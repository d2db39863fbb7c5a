"""Brokers, a provider, tools, senders, subscribers and crashes in one process and one thread, driven by one seed.

Where a process dies another one takes its place under another name. A schedule is over when every message is settled
and every subscriber was told everything; `play` then checks what it left behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.runtime.broker.simulated_subscribers import stay_to_the_end, subscribe
from tests.runtime.broker.simulated_world import (
    SENDERS,
    Plan,
    Process,
    Schedule,
    SentMessage,
    SimulatedCrossing,
    Subscriber,
    Violation,
    VirtualClock,
    VirtualLoop,
)
from tests.runtime.broker.simulation_checks import check, session_events
from weft.kernel.authority import LOCAL, Principal, PrincipalKind
from weft.kernel.enums import InterruptionReason, QueueMode
from weft.kernel.errors import NotApplicable, ProviderFailed, ReplyCut, SessionBusy, WeftError
from weft.ledger.api import Admission, Ledger, RunConfig, Runs, SessionStanding
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.session_turns import CollectRules
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.broker.turn_state import Run
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    ProviderKind,
    ProviderSettings,
    TokenCount,
    ToolSpec,
)
from weft.runtime.replies import FinishReason, Reply, ReplyToken, TokenKind
from weft.runtime.tool.tool_contract import LaterResult, ToolCallContext, tools_of
from weft.store.sql import rows_in

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken

DEADLINE_SECONDS = 20.0
PATIENCE_SECONDS = 900.0
"""Virtual time after which a message that is not settled counts as stuck."""
MODEL = ModelSettings(
    id="m",
    name="m-1",
    provider=ProviderSettings(id="there", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9"),
)
ACTING = context_for(Principal(PrincipalKind.HUMAN, "tester"))


class SimulatedProvider:
    """Answers for one session; checks that nobody asks what is answered already, and that it is sent what is
    recorded."""

    def __init__(self, schedule: Schedule, process: Process, session: str) -> None:
        self._schedule, self._process, self._session = schedule, process, session

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, *, on_token: Any, before: Any, **_: Any) -> Reply:
        try:
            return await self._inferred(request, on_token or (lambda token: None), before)
        except (WeftError, asyncio.CancelledError, Violation):
            raise
        except BaseException as error:
            raise self._schedule.accuse(f"the simulation is wrong: {error!r}") from error

    async def _inferred(self, request: InferenceRequest, on_token: OnToken, before: Any) -> Reply:
        schedule, process, chance = self._schedule, self._process, self._schedule.chance
        await schedule.endure(process, "before it asks the model")
        self._check(request)
        schedule.counts["requests"] += 1
        kind = chance.choices(("answer", "tools", "fault", "cut", "hang"), (65, 28, 3, 2, 2))[0]
        text, thinking = await self._spoken(on_token)
        if schedule.chosen(0.05):
            await before(MODEL, ModelParameters(), 2)
            schedule.counts["second attempts"] += 1
            text, thinking = await self._spoken(on_token)
        await schedule.endure(process, "while it hears the model")
        if kind == "hang":
            await asyncio.get_running_loop().create_future()
        if kind == "fault":
            raise ProviderFailed("no")
        if kind == "cut":
            cut = ReplyCut("cut")
            cut.partial = text
            raise cut
        calls: tuple[Part, ...] = ()
        if kind == "tools":
            names = chance.choices(("writes", "reads", "asks", "fails"), (5, 3, 1, 1), k=chance.choice((1, 2, 3)))
            calls = tuple(ToolUsePart(f"call-{chance.random()}", name, {"n": 1}) for name in names)
        if schedule.chosen(0.03):
            text = text[:-1]  # what was told of it is longer than it is in the end
        said = (*((ReasoningPart(thinking),) if thinking else ()), *((TextPart(text),) if text else ()))
        return Reply(
            parts=(*said, *calls) or (TextPart("nothing"),),
            finish=FinishReason.TOOL_CALL if calls else FinishReason.STOP,
            model_id="m",
            model="m-1",
            provider="there",
        )

    async def _spoken(self, on_token: OnToken) -> tuple[str, str]:
        """Text and thinking of an answer, which come in pieces."""
        schedule, chance = self._schedule, self._schedule.chance
        whole = dict.fromkeys(TokenKind, "")
        kinds = [TokenKind.THINKING] * schedule.chosen(0.2) + [TokenKind.TEXT] * chance.choice((0, 1, 1, 2, 4))
        await asyncio.sleep(chance.choice((0, 0.01, 0.5, 3.0)))
        for kind in kinds:
            piece = f"{chance.randrange(1000)} "
            on_token(ReplyToken(piece, kind))
            whole[kind] += piece
            await asyncio.sleep(chance.choice((0, 0.01, 0.5, 2.5)))
            await schedule.endure(self._process, "in the middle of an answer", 0.01)
        return whole[TokenKind.TEXT], whole[TokenKind.THINKING]

    def _check(self, request: InferenceRequest) -> None:
        runs, process = Runs(self._process.ledger), self._process
        turn = runs.standing(self._session).open_turn
        if turn is None or owner_of_session(self._process.ledger, self._session) != process.name:
            if not process.was_stopped:
                raise self._schedule.accuse(f"{process.name} asks a model in a session that it does not hold")
            return
        run = Run(turn).apply(runs.events(turn))
        if run.last_request is None or not run.last_request.is_open:
            raise self._schedule.accuse(f"{process.name} asks again what is answered or was never recorded, in {turn}")
        if not self._schedule.chosen(0.1):
            return
        recorded = [(str(one.role), text_of(one)) for one in runs.sent(turn)]
        sent = [(str(one.role), text_of(one)) for one in request.messages]
        if sent != recorded:
            raise self._schedule.accuse(f"{process.name} sends {sent} and recorded {recorded} in {turn}")


def text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return " ".join(str(getattr(part, "text", getattr(part, "output", ""))) for part in content)


def owner_of_session(ledger: Ledger, session: str) -> str | None:
    with ledger._store.read() as txn:
        row = txn.sql.fetch_row("SELECT owner FROM lease WHERE kind = 'session' AND key = ?", (session,))
    return None if row is None else str(row[0])


class SimulatedTool:
    """Counts how often each call ran."""

    def __init__(self, schedule: Schedule, process: Process, name: str) -> None:
        self._schedule, self._process, self._name = schedule, process, name
        self.spec = ToolSpec(name=name, description="", schema={"type": "object"})
        self.is_idempotent = self.is_read_only = name == "reads"
        self.is_repeatable = False

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        schedule, process = self._schedule, self._process
        await schedule.endure(process, f"before it runs {self._name}")
        run = Run(context.turn).apply(Runs(process.ledger).events(context.turn))
        is_settled = run.calls[context.call].outcome is not None
        if is_settled and not process.was_stopped:
            raise self._schedule.accuse(f"{process.name} runs {self._name} whose outcome is recorded")
        schedule.tool_runs[context.call] += 1
        schedule.counts["tools"] += 1
        if schedule.tool_runs[context.call] > 1 and not self.is_idempotent:
            raise schedule.accuse(f"{self._name} runs twice for one call")
        if self._name == "asks":
            schedule.counts["parked"] += 1
            until = schedule.clock.now_ms() + 5000 if schedule.chosen(0.5) else None
            outside = asyncio.ensure_future(_resolve_later(schedule, context, until))
            _background.add(outside)
            outside.add_done_callback(_background.discard)
            return LaterResult(why="a person is asked", until_ms=until)
        await asyncio.sleep(schedule.chance.choice((0, 0.01, 1.0)))
        await schedule.endure(process, f"while it runs {self._name}")
        schedule.ends_of_tools.add(context.call)
        if self._name == "fails":
            raise ValueError("it fails")
        return {"n": schedule.chance.random()}


_background: set[asyncio.Task[None]] = set()


async def _resolve_later(schedule: Schedule, context: ToolCallContext, until: int | None) -> None:
    """Somebody outside gives the outcome of a parked call, unless its time passes first."""
    await asyncio.sleep(schedule.chance.choice((0, 0.1, 2.0, 20.0)))
    ledger = schedule.ledgers[-1]
    while not schedule.is_over:
        run = Run(context.turn).apply(Runs(ledger).events(context.turn))
        if run.is_finished or context.call not in run.calls or run.calls[context.call].outcome is not None:
            return
        with suppress(NotApplicable, SessionBusy):
            id = Runs(ledger).text(run.calls[context.call].call_id)
            ledger.record_late_result(context.turn, id or "", {"said": "yes"})
            schedule.counts["late results"] += 1
            return
        await asyncio.sleep(0.5)


# --- one schedule ----------------------------------------------------------------------------------------------------


async def _broker_process(schedule: Schedule, process: Process) -> None:
    async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        names = ("writes", "reads", "asks", "fails")
        return TurnPlan(
            model=MODEL,
            inference=SimulatedProvider(schedule, process, standing.id),  # type: ignore[arg-type]
            acting=ACTING,
            setting=RunConfig(),
            tools=tools_of(*(SimulatedTool(schedule, process, name) for name in names)),
            deadline_seconds=DEADLINE_SECONDS,
        )

    process.broker = Broker(
        process.ledger,
        SimulatedCrossing(schedule, process),
        plan,
        clock=schedule.clock,
        collecting=CollectRules(quiet_ms=300, longest_ms=1000, most=3),
        is_streamed=schedule.chosen(0.5),
    )
    process.broker._watch = _late_news(schedule, process.broker)  # type: ignore[method-assign]
    await process.broker.serve()


def _late_news(schedule: Schedule, broker: Broker) -> Callable[[], Coroutine[Any, Any, None]]:
    """News of other processes come at once or late: threads that wait for them are no part of a simulation."""

    async def watch() -> None:
        newest = -1
        while True:
            await asyncio.sleep(schedule.chance.choice((0.2, 1.0, 3.0)))
            if newest != (newest := broker._ledger.newest()):
                broker.wake()

    return watch


async def _keep_running(schedule: Schedule, number: int) -> None:
    """A process and those that take its place."""
    while not schedule.is_over:
        process = Process(f"{schedule.prefix}-{number}-{len(schedule.processes)}", schedule.ledgers[number])
        process.ledger._owner = process.name
        schedule.processes.append(process)
        schedule.note(f"{process.name} starts")
        process.task = asyncio.ensure_future(_broker_process(schedule, process))
        is_to_drain = schedule.chosen(0.2)
        while not process.is_dead and not process.task.done():
            await asyncio.sleep(1.0)
            if is_to_drain and process.broker is not None and schedule.chosen(0.2):
                is_to_drain = False
                schedule.counts["drains"] += 1
                schedule.note(f"{process.name} drains")
                process.broker.drain(schedule.chance.choice((0.0, 1.0)))
            if process.broker is not None and schedule.chosen(0.01):
                for session in list(process.broker._runners):
                    schedule.note(f"{process.name} is told to interrupt")
                    process.broker.interrupt(session, InterruptionReason.CANCELED)
        if process.task.done():
            process.task.result()
        await asyncio.sleep(schedule.chance.choice((0, 0.1, 1.0)))


async def _send(schedule: Schedule, sender: str, sessions: Sequence[str], count: int) -> None:
    chance = schedule.chance
    ledger = schedule.ledgers[-1].acting_as(LOCAL.delegate(Principal(PrincipalKind.HUMAN, sender)))
    for number in range(count):
        await asyncio.sleep(chance.choice((0, 0, 0.05, 1.0, 6.0)))
        session, mode = chance.choice(sessions), chance.choices(list(QueueMode), (5, 2, 1, 2))[0]
        priority = chance.choice((0, 0, 0, 5, -5))
        text = f"{sender} {number} {mode.value} {priority}"
        admission = _admit(schedule, ledger, text, session)
        await _regret(schedule, ledger, admission)


def _admit(schedule: Schedule, ledger: Ledger, text: str, session: str) -> Admission:
    """Send a text that names its sender, its number, its mode and its priority."""
    sender, number, mode, priority = text.split(" ")
    key = f"{schedule.prefix} {text}"
    admission = ledger.inbox.admit(text, session=session, mode=mode, priority=int(priority), key=key)
    if admission.message not in schedule.admitted:
        schedule.note(f"{text} is admitted to {session}")
        now = schedule.clock.seconds
        message = SentMessage(admission.session_id, text, sender, int(number), QueueMode(mode), int(priority), now)
        schedule.admitted[admission.message] = message
    return admission


async def _send_planned(schedule: Schedule, sender: str) -> None:
    ledger = schedule.ledgers[-1].acting_as(LOCAL.delegate(Principal(PrincipalKind.HUMAN, sender)))
    for number, planned in enumerate(schedule.plan[sender]):
        await asyncio.sleep(planned.pause_seconds)
        text = f"{sender} {number} {planned.mode.value} {planned.priority}"
        admission = _admit(schedule, ledger, text, f"{schedule.prefix}-a")
        if planned.is_cancelled:
            with suppress(NotApplicable):
                ledger.inbox.cancel(admission.message)


async def _regret(schedule: Schedule, ledger: Ledger, admission: Admission) -> None:
    """Senders cancel what they sent, send it again without having heard of it, or stop the turn that is under way."""
    chance, text = schedule.chance, schedule.admitted[admission.message].text
    doing = chance.choices((None, "cancel", "repeat", "interrupt"), (75, 12, 5, 8))[0]
    if doing is None:
        return
    await asyncio.sleep(chance.choice((0, 0.3, 2.0)))
    message = schedule.admitted[admission.message]
    with suppress(NotApplicable):
        if doing == "cancel":
            ledger.inbox.cancel(admission.message)
        elif doing == "interrupt":
            ledger.inbox.interrupt(message.session)
        else:
            if _admit(schedule, ledger, text, admission.session).message != admission.message:
                raise Violation(f"{text} is admitted twice")
        schedule.counts[f"senders who {doing}"] += 1
        schedule.note(f"the sender of {text} chose to {doing}")


async def _play(schedule: Schedule) -> None:
    chance = schedule.chance
    sessions = [f"{schedule.prefix}-{letter}" for letter in "ab"[: chance.choice((1, 2))]]
    running = [asyncio.ensure_future(_keep_running(schedule, n)) for n in range(chance.choice((1, 2)))]
    senders = [
        asyncio.ensure_future(_send(schedule, name, sessions, chance.choice((1, 1, 1, 2))))
        for name in SENDERS[: chance.choice((1, 1, 2, 3)) if not schedule.plan else 0]
    ] + [asyncio.ensure_future(_send_planned(schedule, sender)) for sender in schedule.plan]
    await asyncio.wait(senders, return_when=asyncio.FIRST_COMPLETED) if schedule.chosen(0.5) else None
    reader = Process("reader", schedule.ledgers[-1])
    for n in range(chance.choice((0, 1, 1, 2))):
        start = chance.choice((str(schedule.newest_before), None))
        schedule.subscribers.append(Subscriber(f"subscriber {n}", chance.choice(sessions), start))
    running += [asyncio.ensure_future(subscribe(schedule, one, reader)) for one in schedule.subscribers]
    try:
        await asyncio.gather(*senders)
        newest = -1
        while newest == (newest := schedule.ledgers[-1].newest()) or not _is_settled(schedule):
            _raise_failed(running)
            if schedule.clock.seconds > PATIENCE_SECONDS:
                raise Violation(f"messages are stuck: {message_states(schedule)}")
            await asyncio.sleep(1.0)
        schedule.is_settled = True
        await stay_to_the_end(schedule, partial(_last_events, schedule))
        _raise_failed(running)
    finally:
        schedule.is_over = True
        await _end_all()


def _raise_failed(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


async def _end_all() -> None:
    """Drop whatever is left, without a chance to do anything."""
    for _ in range(20):
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def message_states(schedule: Schedule) -> dict[str, str]:
    """By id."""
    with schedule.ledgers[-1]._store.read() as txn:
        rows: dict[str, str] = dict(
            rows_in(txn.sql, "SELECT message, state FROM inbox WHERE message IN", list(schedule.admitted))
        )
    return {message: rows.get(message, "missing") for message in schedule.admitted}


def _is_settled(schedule: Schedule) -> bool:
    return all(state not in ("queued", "taken") for state in message_states(schedule).values())


def _last_events(schedule: Schedule) -> dict[str, int]:
    """By label of their session."""
    return {session.label: session.numbers[-1] for session in session_events(schedule).values()}


def play(seed: int, ledgers: list[Ledger], clock: VirtualClock, prefix: str) -> Schedule:
    """Run one schedule to its end and check what it left behind."""
    chance = random.Random(seed)
    schedule = Schedule(seed, chance, clock, ledgers, prefix, ledgers[-1].newest())
    schedule.crashes_left, schedule.faults_left = chance.choice((0, 1, 3)), chance.choice((0, 0, 2))
    return _played(schedule)


def play_plan(plan: Plan, ledgers: list[Ledger], clock: VirtualClock, prefix: str) -> Schedule:
    """The same, without crashes and faults of the ledger, of messages that are planned."""
    return _played(Schedule(0, random.Random(0), clock, ledgers, prefix, ledgers[-1].newest(), plan=plan))


def _played(schedule: Schedule) -> Schedule:
    schedule.clock.seconds = 0.0
    loop = VirtualLoop(schedule.clock, schedule.chance)
    loop.set_exception_handler(lambda *_: None)  # tasks of dead processes are never asked how they ended
    try:
        loop.run_until_complete(_play(schedule))
        if schedule.violations:
            raise Violation("; ".join(schedule.violations))
        check(schedule, message_states(schedule))
    except BaseException as error:
        error.add_note("\n".join(schedule.log[-60:]))
        raise
    finally:
        loop.close()
        store: Any = schedule.ledgers[-1]._store
        store._fill_lookups()  # as it is done in the background elsewhere
    return schedule
