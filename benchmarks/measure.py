"""Timing: runs of single operations, interleaved, so that a noisy minute hurts every store alike.

A *run* times some operations of one case one by one. The cases take turns, round after round. The figure of
a case is the median over its rounds of the run's median. Two cases are compared round by round: what slowed
a round slowed both. CPU time is that of the whole process, threads and the kernel's share included.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Action = Callable[[], object]
Key = TypeVar("Key")
Value = TypeVar("Value")

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds that each operation took, and the CPU seconds of all of them together."""

    walls: tuple[float, ...]
    cpu: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What one operation costs, in milliseconds."""

    wall_ms: float
    cpu_ms: float
    p95_ms: float
    rounds_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why there is no figure. It is printed in the figure's place."""

    reason: str

    def __str__(self) -> str:
        return f"not measured: {self.reason}"


def timed(actions: Iterable[Action]) -> Run:
    """Times each action. What the iterable does to make the next one is not counted."""
    walls: list[float] = []
    cpu = 0.0
    for action in actions:
        cpu_before, before = time.process_time(), time.perf_counter()
        action()
        walls.append(time.perf_counter() - before)
        cpu += time.process_time() - cpu_before
    return Run(tuple(walls), cpu)


def interleave(cases: Mapping[Key, Callable[[], Run]], rounds: int = ROUNDS) -> dict[Key, Figure | NotMeasured]:
    """Runs every case once a round. A case that fails drops out and takes no other with it."""
    runs: dict[Key, list[Run]] = {key: [] for key in cases}
    failed: dict[Key, NotMeasured] = {}
    settle_memory()
    for _ in range(rounds):
        for key, case in cases.items():
            if key in failed:
                continue
            outcome = attempt(case)
            if isinstance(outcome, NotMeasured):
                failed[key] = outcome
            else:
                runs[key].append(outcome)
    return {key: failed.get(key) or figure(runs[key]) for key in cases}


def figure(runs: list[Run]) -> Figure:
    rounds_ms = tuple(median(run.walls) * 1e3 for run in runs)
    every_wall = sorted(wall for run in runs for wall in run.walls)
    return Figure(
        wall_ms=median(rounds_ms),
        cpu_ms=median(run.cpu / len(run.walls) for run in runs) * 1e3,
        p95_ms=every_wall[int(len(every_wall) * 0.95)] * 1e3,
        rounds_ms=rounds_ms,
    )


def paired_ratio(values: Sequence[float], floors: Sequence[float]) -> float | None:
    """The median of what each round says. None where a round is missing."""
    if not values or len(values) != len(floors):
        return None
    return median(value / floor for value, floor in zip(values, floors, strict=True))


def attempt(action: Callable[[], Value]) -> Value | NotMeasured:
    """The value, or why there is none: a store that fails must not end the run for the others."""
    try:
        return action()
    except Exception as error:  # any failure of a measured library becomes its printed reason
        text = str(error).strip().splitlines()
        return NotMeasured(f"{type(error).__name__}: {text[0]}"[:160] if text else type(error).__name__)


def settle_memory() -> None:
    """Puts what lives by now out of the collector's sight: one store's objects must not slow another."""
    gc.collect()
    gc.freeze()


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
