"""The protocol behind which every runner of turns stands, and the clock of its model layer's share of a turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.workload import Turn


class LayerClock:
    """Wall and CPU seconds that were spent inside the model layer: translating for the wire, HTTP, waiting for the
    server. CPU is that of the thread which asks, so that what other threads save meanwhile is not taken off."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.calls = 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the model layer whose time is counted."""

        def run(*args: Any, **kwargs: Any) -> Any:
            before, cpu_before = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._add(before, cpu_before)

        return run

    def timed_async(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            before, cpu_before = time.perf_counter(), time.thread_time()
            try:
                return await call(*args, **kwargs)
            finally:
                self._add(before, cpu_before)

        return run

    def _add(self, before: float, cpu_before: float) -> None:
        self.wall += time.perf_counter() - before
        self.cpu += time.thread_time() - cpu_before
        self.calls += 1


class TurnSubject(Protocol):
    """A program that answers messages on one thread, with the model at a URL and the tool `add`."""

    layer: LayerClock

    def build(self, turns: Sequence[Turn]) -> None:
        """Give the thread these turns, the fastest way there is."""

    def take_turn(self, text: str) -> str:
        """Bring a message to its answer: two requests to the model, one call of the tool."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subject keeps its thread, and which model it asks."""

    directory: Path
    url: str
    postgres: str = ""
    """The address of a server, for those that keep their thread there."""
    session: str = "main"


@dataclass(frozen=True, slots=True)
class TurnSpec:
    name: str
    open: Callable[[Place], TurnSubject]
    note: str
    layer: str
    """What is taken off as its model layer."""
    is_peer: bool = True
    needs_server: bool = False
    is_weaker: bool = False
    """Whether it goes on before a step is durable: shown, but no bar is set by it."""


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b
