"""A stage is one store, filled to one depth and left open, from which timed operations can be taken."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.measure import Action, NotMeasured, Run, attempt, say, timed
from benchmarks.subject import Spec, Subject, bytes_in
from benchmarks.workload import Turn, turns

RUN_SECONDS = 0.5
LEAST_OPERATIONS = 3


@dataclass(slots=True)
class Stage:
    spec: Spec
    depth: int
    subject: Subject
    supply: Iterator[Turn]
    bytes_per_turn: float
    walls: list[float] = field(repr=False)
    """The seconds of every append that filled it, in order."""
    seconds: float

    def append_run(self, operations: int) -> Run:
        """The first append is not counted: it finds the caches full of another store's work."""
        amount = _affordable(self.walls[-50:], operations)
        self.subject.appender(next(self.supply))()
        return timed(self.subject.appender(turn) for turn in islice(self.supply, amount))

    def fork_run(self, operations: int) -> Run:
        first = timed(self._forks(1))
        return timed(self._forks(_affordable(first.walls, operations)))

    @property
    def usual_seconds(self) -> float:
        """Of one of the last appends that filled it."""
        return median(self.walls[-50:])

    def load_run(self, loads: int = 1, before: Action = lambda: None) -> Run:
        """To be taken before the appends, while the thread is as long as the stage says. What is done `before` each is
        not counted."""
        return timed(self._loads(loads, before))

    def _loads(self, amount: int, before: Action) -> Iterator[Action]:
        for _ in range(amount):
            before()
            yield self._load_all

    def _load_all(self) -> None:
        found, expected = self.subject.load(), self.depth * self.spec.loaded_per_turn
        if found != expected:
            raise AssertionError(f"{found} messages were loaded, not {expected}")

    def _forks(self, amount: int) -> Iterator[Action]:
        for _ in range(amount):
            action = self.subject.forker()
            if action is None:
                raise NotImplementedError("it has no forks")
            yield action
            self.subject.rejoin()


def build(spec: Spec, depth: int, directory: Path) -> Stage | NotMeasured:
    """Fills a new store turn by turn. It is closed once, so that its size is that of a store at rest."""
    say(f"building {spec.name}, {depth:,} turns")
    return attempt(lambda: _build(spec, depth, directory))


def _build(spec: Spec, depth: int, directory: Path) -> Stage:
    directory.mkdir(parents=True)
    supply = turns()
    before = time.perf_counter()
    subject = spec.open(directory)
    try:
        walls = list(timed(subject.appender(turn) for turn in islice(supply, depth)).walls)
    finally:
        subject.close()
    seconds = time.perf_counter() - before
    size = bytes_in(directory) / depth
    return Stage(spec, depth, spec.open(directory), supply, size, walls, seconds)


def extend(stage: Stage, seconds: float) -> None:
    """Goes on appending until the stage has had that many seconds, its build included."""
    while stage.seconds < seconds:
        before = time.perf_counter()
        stage.walls.extend(timed(stage.subject.appender(turn) for turn in islice(stage.supply, 10)).walls)
        stage.seconds += time.perf_counter() - before


def curve(walls: list[float], per_decade: int = 6) -> list[tuple[int, float]]:
    """Median milliseconds of an append, in steps of depth that grow with the depth."""
    points = []
    start, edge = 0, 10.0
    while start < len(walls):
        end = min(round(edge), len(walls))
        points.append(((start + end) // 2, median(walls[start:end]) * 1e3))
        start, edge = end, edge * 10 ** (1 / per_decade)
    return points


def _affordable(walls: list[float] | tuple[float, ...], operations: int) -> int:
    """As many operations as fit into a run, so that a slow store does not hold up the others."""
    return max(LEAST_OPERATIONS, min(operations, int(RUN_SECONDS / max(median(walls), 1e-9))))
