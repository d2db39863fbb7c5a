"""Brokers, their clock, a provider, tools, senders and crashes in one process and one thread, driven by one seed.

Time is virtual: it passes when nothing else can happen. Whatever is ready runs in an order that the seed chooses. Every
call to the ledger is a moment at which the process that makes it may be stopped for a while or die, before or after the
commit. A process that died writes, asks and runs nothing more; another one takes its place under another name.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import weft
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.dag_events import HistoryAppend, Interruption, ModelRequest, ModelResponse, ToolCallRequested
from weft.kernel.enums import InterruptionReason, QueueMode
from weft.kernel.errors import NotApplicable, ProviderFailed, ReplyCut, SessionBusy, StoreFailed, WeftError
from weft.ledger.api import Ledger, Runs, SessionStanding, Setting
from weft.ledger.model import Part, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.broker.queue_modes import Collecting
from weft.runtime.broker.run import Run
from weft.runtime.broker.tools import Later, ToolCallContext, tools_of
from weft.runtime.context import context_for
from weft.runtime.inference.replies import Finish, Reply
from weft.runtime.inference.settings import InferenceRequest, ModelSettings, ProviderKind, ProviderSettings, ToolSpec

T = TypeVar("T")
LEASE_SECONDS = 3.0
DEADLINE_SECONDS = 20.0
PATIENCE_SECONDS = 900.0
"""Virtual time after which a message that is not settled counts as stuck."""
MODEL = ModelSettings(
    id="m",
    name="m-1",
    provider=ProviderSettings(id="there", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9"),
)
ACTING = context_for(Principal(PrincipalKind.HUMAN, "tester"))


class Violation(AssertionError):
    """Something happened that must not happen in any order."""


class VirtualClock:
    """Time that a loop moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class _NoSelector(selectors.SelectSelector):
    """Nothing of a simulation comes from outside."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in an order of the seed; when nothing is, time jumps to the next timer."""

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        super().__init__(_NoSelector())
        self._virtual, self._chance = clock, chance

    def time(self) -> float:
        return self._virtual.seconds

    def _run_once(self) -> None:
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not ready and timers:
            self._virtual.seconds = max(self._virtual.seconds, timers[0].when())
        if len(ready) > 1:
            handles = list(ready)
            self._chance.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]


@dataclass
class Process:
    """One broker's process: it can be stopped for a while, and die."""

    name: str
    ledger: Ledger
    is_dead: bool = False
    stopped_until: float = 0.0
    was_stopped: bool = False
    task: asyncio.Task[None] | None = None
    broker: Broker | None = None


@dataclass
class Schedule:
    """One seed: what may happen, and what did."""

    seed: int
    chance: random.Random
    clock: VirtualClock
    ledgers: list[Ledger]
    prefix: str
    log: list[str] = field(default_factory=list)
    crashes_left: int = 0
    faults_left: int = 0
    is_over: bool = False
    tool_runs: Counter[str] = field(default_factory=Counter)
    ends_of_tools: set[str] = field(default_factory=set)
    admitted: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Messages by id: the session and what they say."""
    processes: list[Process] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def accuse(self, words: str) -> Violation:
        """A violation inside an effect: the broker takes it for an error of the effect, so it is kept for the end."""
        self.violations.append(words)
        return Violation(words)

    def note(self, words: str) -> None:
        self.log.append(f"{self.clock.seconds:9.3f} {words}")

    def chosen(self, probability: float) -> bool:
        return self.chance.random() < probability

    # --- what befalls a process --------------------------------------------------------------------------------------

    def die(self, process: Process, where: str) -> None:
        process.is_dead = True
        self.counts["crashes"] += 1
        self.note(f"{process.name} dies {where}")

    async def endure(self, process: Process, where: str) -> None:
        """A moment at which the process may be stopped or die; a dead one never comes back from here."""
        if not process.is_dead and self.crashes_left and self.chosen(0.04):
            self.crashes_left -= 1
            if self.chosen(0.4):
                process.stopped_until = self.clock.seconds + self.chance.choice((0.5, 2.0, 4.0, 8.0))
                process.was_stopped = True
                self.counts["stops"] += 1
                self.note(f"{process.name} stops {where} until {process.stopped_until:.3f}")
            else:
                self.die(process, where)
        while process.stopped_until > self.clock.seconds and not self.is_over:
            await asyncio.sleep(process.stopped_until - self.clock.seconds)
        if self.is_over:
            raise asyncio.CancelledError
        if process.is_dead:
            await asyncio.get_running_loop().create_future()


class SimulatedCrossing:
    """Calls the ledger at once, between two moments at which anything may happen."""

    def __init__(self, schedule: Schedule, process: Process) -> None:
        self._schedule, self._process = schedule, process
        self.shared: dict[Any, Any] = {}

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.ensure_future(self._called(call)))

    async def _called(self, call: Callable[[], T]) -> T:
        schedule, process = self._schedule, self._process
        if schedule.chosen(0.3):
            await asyncio.sleep(schedule.chance.choice((0, 0, 0.01)))
        await schedule.endure(process, "before a call of the ledger")
        if schedule.faults_left and schedule.chosen(0.02):
            schedule.faults_left -= 1
            schedule.counts["store faults"] += 1
            schedule.note(f"{process.name} cannot reach the ledger")
            if schedule.chosen(0.5):
                with suppress(WeftError):
                    call()  # it is written all the same
            raise StoreFailed("commit", "the server went away")
        try:
            result = call()
        finally:
            await schedule.endure(process, "after a call of the ledger")
        return result


class SimulatedProvider:
    """Answers for one session; checks that nobody asks what is answered already, and that it is sent what is
    recorded."""

    def __init__(self, schedule: Schedule, process: Process, session: str) -> None:
        self._schedule, self._process, self._session = schedule, process, session

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        try:
            return await self._inferred(request)
        except (WeftError, asyncio.CancelledError, Violation):
            raise
        except BaseException as error:
            raise self._schedule.accuse(f"the simulation is wrong: {error!r}") from error

    async def _inferred(self, request: InferenceRequest) -> Reply:
        schedule, process, chance = self._schedule, self._process, self._schedule.chance
        await schedule.endure(process, "before it asks the model")
        self._check(request)
        schedule.counts["requests"] += 1
        kind = chance.choices(("answer", "tools", "fault", "cut", "hang"), (60, 34, 3, 2, 1))[0]
        await asyncio.sleep(chance.choice((0, 0.01, 0.5, 5.0)))
        await schedule.endure(process, "while it hears the model")
        if kind == "hang":
            await asyncio.get_running_loop().create_future()
        if kind == "fault":
            raise ProviderFailed("no")
        if kind == "cut":
            cut = ReplyCut("cut")
            cut.partial = "half"
            raise cut
        parts: tuple[Part, ...] = (TextPart(f"answer {chance.random()}"),)
        if kind == "tools":
            names = chance.choices(("writes", "reads", "asks", "fails"), (5, 3, 1, 1), k=chance.choice((1, 2, 3)))
            parts = tuple(ToolUsePart(f"call-{chance.random()}", name, {"n": 1}) for name in names)
        return Reply(
            parts=parts,
            finish=Finish.STOP if kind == "answer" else Finish.TOOL_CALL,
            model_id="m",
            model="m-1",
            provider="there",
        )

    def _check(self, request: InferenceRequest) -> None:
        runs, process = Runs(process_ledger(self._process)), self._process
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


def process_ledger(process: Process) -> Ledger:
    return process.ledger


def text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return " ".join(str(getattr(part, "text", getattr(part, "output", ""))) for part in content)


def owner_of_session(ledger: Ledger, session: str) -> str | None:
    with ledger._store.read() as txn:
        row = txn.sql.one("SELECT owner FROM lease WHERE kind = 'session' AND key = ?", (session,))
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
            return Later(why="a person is asked", until_ms=until)
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
            setting=Setting(),
            tools=tools_of(*(SimulatedTool(schedule, process, name) for name in names)),
            deadline_seconds=DEADLINE_SECONDS,
        )

    process.broker = Broker(
        process.ledger,
        SimulatedCrossing(schedule, process),
        plan,
        clock=schedule.clock,
        collecting=Collecting(quiet_ms=300, longest_ms=1000, most=3),
    )
    process.broker._watch = _late_news(schedule, process.broker)  # type: ignore[method-assign]
    await process.broker.serve()


def _late_news(schedule: Schedule, broker: Broker) -> Callable[[], Coroutine[Any, Any, None]]:
    """News of other processes come at once or late: threads that wait for them are no part of a simulation."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(schedule.chance.choice((0.2, 1.0, 3.0)))
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
    chance, ledger = schedule.chance, schedule.ledgers[-1]
    for number in range(count):
        await asyncio.sleep(chance.choice((0, 0, 0.05, 1.0, 6.0)))
        session, mode = chance.choice(sessions), chance.choices(list(QueueMode), (5, 2, 1, 2))[0]
        text = f"{sender} {number} {mode.value}"
        admission = ledger.inbox.admit(text, session=session, mode=mode.value, key=f"{schedule.prefix} {text}")
        schedule.note(f"{text} is admitted to {session}")
        schedule.admitted[admission.message] = (admission.session_id, text)
        if schedule.chosen(0.1):
            await asyncio.sleep(chance.choice((0, 0.3)))
            with suppress(NotApplicable):
                ledger.inbox.cancel(admission.message)
                schedule.note(f"{text} is cancelled")


async def _play(schedule: Schedule) -> None:
    chance = schedule.chance
    sessions = [f"{schedule.prefix}-{letter}" for letter in "ab"[: chance.choice((1, 2))]]
    running = [asyncio.ensure_future(_keep_running(schedule, n)) for n in range(chance.choice((1, 2)))]
    senders = [
        asyncio.ensure_future(_send(schedule, name, sessions, chance.choice((1, 1, 2, 3))))
        for name in "xy"[: chance.choice((1, 1, 2))]
    ]
    try:
        await asyncio.gather(*senders)
        while not _is_settled(schedule):
            for task in running:
                if task.done():
                    task.result()
            if schedule.clock.seconds > PATIENCE_SECONDS:
                raise Violation(f"messages are stuck: {_states(schedule)}")
            await asyncio.sleep(1.0)
    finally:
        schedule.is_over = True
        await _end_all()


async def _end_all() -> None:
    """Drop whatever is left, without a chance to do anything."""
    for _ in range(20):
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _states(schedule: Schedule) -> dict[str, str]:
    ledger = schedule.ledgers[-1]
    with ledger._store.read() as txn:
        rows = [
            (text, txn.sql.one("SELECT state FROM inbox WHERE message = ?", (message,)))
            for message, (_, text) in schedule.admitted.items()
        ]
    return {text: str(row[0]) if row else "missing" for text, row in rows}


def _is_settled(schedule: Schedule) -> bool:
    return all(state not in ("queued", "taken") for state in _states(schedule).values())


def play(seed: int, ledgers: list[Ledger], clock: VirtualClock, prefix: str) -> Schedule:
    """Run one schedule to its end and check what it left behind."""
    chance = random.Random(seed)
    clock.seconds = 0.0
    schedule = Schedule(seed, chance, clock, ledgers, prefix)
    schedule.crashes_left, schedule.faults_left = chance.choice((0, 1, 3)), chance.choice((0, 0, 2))
    loop = VirtualLoop(clock, chance)
    loop.set_exception_handler(lambda *_: None)  # tasks of dead processes are never asked how they ended
    try:
        loop.run_until_complete(_play(schedule))
        if schedule.violations:
            raise Violation("; ".join(schedule.violations))
        check(schedule)
    except BaseException as error:
        error.add_note("\n".join(schedule.log[-60:]))
        raise
    finally:
        loop.close()
    return schedule


# --- what must hold afterwards ----------------------------------------------------------------------------------------


def check(schedule: Schedule) -> None:
    ledger = schedule.ledgers[-1]
    states = _states(schedule)
    for session in {session for session, _ in schedule.admitted.values()}:
        with ledger._store.read() as txn:
            turns = txn.sql.all(
                "SELECT t.id, t.parent, t.status FROM turn t JOIN session s ON s.n = t.session WHERE s.id = ?"
                " ORDER BY t.n",
                (session,),
            )
            head = txn.sql.one("SELECT head FROM session WHERE id = ?", (session,))
        _check_line(turns, None if head is None else head[0])
        _check_messages(schedule, session, [str(id) for id, _, _ in turns], states)
        for id, _, status in turns:
            _check_turn(schedule, str(id), str(status))


def _check_line(turns: Sequence[Any], head: str | None) -> None:
    last = None
    for id, parent, status in turns:
        if parent != last:
            raise Violation(f"turn {id} grows from {parent}, and the session stood at {last}")
        if status not in ("completed", "failed"):
            raise Violation(f"turn {id} is {status}")
        last = id if status == "completed" else last
    if head != last:
        raise Violation(f"the session stands at {head}, and its last turn is {last}")


def _check_messages(schedule: Schedule, session: str, turns: Sequence[str], states: dict[str, str]) -> None:
    runs = Runs(schedule.ledgers[-1])
    taken = [
        one.event.admitted
        for turn in turns
        for one in runs.events(turn)
        if isinstance(one.event, HistoryAppend) and isinstance(one.event.admitted, str)
    ]
    if len(set(taken)) != len(taken):
        raise Violation(f"a message entered twice: {taken}")
    texts = {id: text for id, (where, text) in schedule.admitted.items() if where == session}
    for id, text in texts.items():
        is_taken, state = id in taken, states[text]
        if (state == "answered" and not is_taken) or (state == "cancelled" and is_taken) or state == "missing":
            raise Violation(f"{text} is {state}, and {'entered' if is_taken else 'did not enter'} a turn")
    order: dict[tuple[str, str], list[int]] = {}
    for id in taken:
        sender, number, mode = texts[id].split(" ")
        order.setdefault((sender, mode), []).append(int(number))
    for (sender, mode), numbers in order.items():
        if numbers != sorted(numbers):
            raise Violation(f"messages of {sender} in mode {mode} entered in the order {numbers}")


def _check_turn(schedule: Schedule, turn: str, status: str) -> None:
    events = Runs(schedule.ledgers[-1]).events(turn)
    answered = Counter(one.event.correlation_id for one in events if isinstance(one.event, ModelResponse))
    requests = {one.event.correlation_id: one.id for one in events if isinstance(one.event, ModelRequest)}
    interrupted = {ref.event_id for one in events if isinstance(one.event, Interruption) for ref in one.event.affects}
    if any(count > 1 for count in answered.values()):
        raise Violation(f"a request of {turn} was answered twice")
    if any(requests[correlation] in interrupted for correlation in answered):
        raise Violation(f"a request of {turn} was answered and interrupted")
    unsettled = [id for correlation, id in requests.items() if correlation not in answered and id not in interrupted]
    if len(unsettled) > (status == "failed"):
        raise Violation(f"{len(unsettled)} requests of {turn} were never settled")
    run = Run(turn).apply(events)
    if run.open_calls:
        raise Violation(f"{len(run.open_calls)} calls of {turn} have no outcome")
    for one in events:
        if isinstance(one.event, ToolCallRequested):
            call = run.calls[one.id]
            if call.outcome == "ok" and call.tool in ("writes", "reads") and one.id not in schedule.ends_of_tools:
                raise Violation(f"{call.tool} has a result and never ran to its end")


@contextmanager
def simulated_ledgers(folder: Path, clock: VirtualClock, count: int = 3) -> Iterator[list[Ledger]]:
    """One ledger, opened once for each process and once for those who send."""
    paths = [folder / "ledger.db"] * count
    opened: list[Ledger] = []
    try:
        for path in paths:
            opened.append(weft.open(path, clock=clock, lease_ttl=LEASE_SECONDS))
        yield opened
        problems = list(opened[-1].verify())
        assert problems == []
    finally:
        for ledger in opened:
            ledger.close()
