"""What a simulation runs on: its clock, its loop, its processes and their way to the ledger, driven by one seed.

Time is virtual: it passes when nothing else can happen. Whatever is ready runs in an order that the seed chooses. Every
call to the ledger is a moment at which the process that makes it may be stopped for a while or die, before or after the
commit. A process that died writes, asks, runs and tells nothing more.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop
from pathlib import Path
from typing import Any, TypeVar

import weft
from weft.kernel.enums import QueueMode
from weft.kernel.errors import StoreFailed, WeftError
from weft.ledger.api import Ledger, StreamItem, StreamPosition
from weft.programs import Programs
from weft.runtime.broker.broker import Broker

T = TypeVar("T")
LEASE_SECONDS = 3.0
SENDERS = "xyz"
START_MS = 1_700_000_000_000


class Violation(AssertionError):
    """Something happened that must not happen in any order."""


class VirtualClock:
    """Time that a loop moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return START_MS + int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in an order of the seed; when nothing is, time jumps to the next timer. Nothing comes from
    outside."""

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        super().__init__(selectors.SelectSelector())
        self._virtual, self._chance = clock, chance

    def time(self) -> float:
        return self._virtual.seconds

    def _run_once(self) -> None:
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        clock = self._virtual
        while timers and (timers[0]._cancelled or timers[0]._when <= clock.seconds or not ready):
            timer = heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                clock.seconds = max(clock.seconds, timer._when)
                ready.append(timer)
        if not ready:
            raise Violation("everybody waits, and nothing will ever happen")
        if len(ready) > 1:
            handles = list(ready)
            self._chance.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


@dataclass
class Process:
    """One process: it can be stopped for a while, and die."""

    name: str
    ledger: Ledger
    is_dead: bool = False
    stopped_until: float = 0.0
    was_stopped: bool = False
    task: asyncio.Task[None] | None = None
    broker: Broker | None = None
    shared: dict[Any, Any] = field(default_factory=dict)
    """What those share in it who use the ledger."""
    listeners: dict[asyncio.Task[None], None] = field(default_factory=dict)
    """Connections of subscribers, which break when it dies."""


@dataclass(frozen=True)
class SentMessage:
    """A message that was admitted: where to, what it says, and when."""

    session: str
    text: str
    sender: str
    number: int
    mode: QueueMode
    priority: int
    at_seconds: float


@dataclass(frozen=True)
class PlannedMessage:
    """A message that is sent so long after the one before."""

    pause_seconds: float
    mode: QueueMode
    priority: int
    is_cancelled: bool


Plan = Mapping[str, Sequence[PlannedMessage]]
"""By sender, what they send to one session."""


@dataclass
class Subscriber:
    """Somebody who follows a session, with all that they were told."""

    name: str
    session: str
    start: str | None
    """The position that they began behind; None: with what was under way when they came."""
    items: list[StreamItem] = field(default_factory=list)

    @property
    def position(self) -> StreamPosition | str | None:
        return self.items[-1].position if self.items else self.start


@dataclass
class Schedule:
    """One seed: what may happen, and what did."""

    seed: int
    chance: random.Random
    clock: VirtualClock
    ledgers: list[Ledger]
    prefix: str
    newest_before: int
    """The last event of the ledger before this schedule."""
    plan: Plan = field(default_factory=dict)
    """Empty: the seed says who sends what."""
    log: list[str] = field(default_factory=list)
    crashes_left: int = 0
    faults_left: int = 0
    is_over: bool = False
    tool_runs: Counter[str] = field(default_factory=Counter)
    ends_of_tools: set[str] = field(default_factory=set)
    admitted: dict[str, SentMessage] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)
    is_settled: bool = False
    """Every message is settled: subscribers stay until they were told everything."""
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
        for listener in process.listeners:
            listener.cancel()

    async def endure(self, process: Process, where: str, risk: float = 0.04) -> None:
        """A moment at which the process may be stopped or die; a dead one never comes back from here."""
        if not process.is_dead and self.crashes_left and risk and self.chosen(risk):
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
    """Calls the ledger at once, between two moments at which anything may happen. With `is_reading` whoever calls only
    reads: it is not there that the process dies."""

    def __init__(self, schedule: Schedule, process: Process, *, is_reading: bool = False) -> None:
        self._schedule, self._process = schedule, process
        self._risk, self._fault = (0.0, 0.01) if is_reading else (0.08, 0.04)
        self.shared = process.shared

    async def run(self, call: Callable[[], T]) -> T:
        """Half of all calls, by chance, are over before anybody else does anything."""
        schedule, process = self._schedule, self._process
        is_well = not (process.is_dead or schedule.is_over or process.stopped_until > schedule.clock.seconds)
        if is_well and schedule.chosen(0.5):
            return call()
        return await asyncio.shield(asyncio.ensure_future(self._called(call)))

    async def _called(self, call: Callable[[], T]) -> T:
        schedule, process = self._schedule, self._process
        if schedule.chosen(0.3):
            await asyncio.sleep(schedule.chance.choice((0, 0, 0.01)))
        await schedule.endure(process, "before a call of the ledger", self._risk)
        if schedule.faults_left and schedule.chosen(self._fault):
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
            await schedule.endure(process, "after a call of the ledger", self._risk)
        return result


@contextmanager
def simulated_ledgers(folder: Path, clock: VirtualClock, count: int = 3) -> Iterator[list[Ledger]]:
    """One ledger, opened once for each process and once for those who send."""
    paths = [folder / "ledger.db"] * count
    opened: list[Ledger] = []
    try:
        for path in paths:
            opened.append(weft.open(path, clock=clock, lease_ttl=LEASE_SECONDS))
        for sender in SENDERS:
            Programs(opened[-1]).create("human", sender, {"permissions": ["session:*", "turn:*"]})
        yield opened
        problems = list(opened[-1].verify())
        assert problems == []
    finally:
        for ledger in opened:
            ledger.close()
