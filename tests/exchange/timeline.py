"""A watch whose time and notices a test decides."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.exchange.toy import Toy
from weft import Ledger
from weft.exchange.importers.port import Importer
from weft.exchange.importing.watch import WatchEvent, watch
from weft.kernel.clock import FixedClock

START_MS = 1_700_000_000_000
Action = Callable[[], Iterable[Path] | None]


class End(Exception):
    """The test has seen enough."""


class Timeline:
    """Waits by letting others act: each at its second, and the paths they return are the notices that come of it."""

    is_blind = False

    def __init__(self, clock: FixedClock, *actions: tuple[float, Action], end: float) -> None:
        self._clock, self._end = clock, end
        self._actions = sorted(actions, key=lambda action: action[0])
        self.closed = self.waits = 0

    def wait(self, seconds: float) -> set[str]:
        now = self._clock.monotonic()
        self.waits += 1
        if self._actions and self._actions[0][0] <= now + seconds:
            at, act = self._actions.pop(0)
            self._clock.sleep(max(0.0, at - now))
            return {str(path) for path in act() or ()}
        if now + seconds > self._end:
            raise End
        self._clock.sleep(max(seconds, 0.001) if seconds else 0.0)  # a clock that counts may round to nothing
        return set()

    def close(self) -> None:
        self.closed += 1


class Stage:
    """A clock, a folder, and who writes into it."""

    def __init__(self, ledger: Ledger, folder: Path, importers: Sequence[Importer] | None = None) -> None:
        self.ledger, self.folder = ledger, folder
        self.clock = FixedClock(START_MS)
        self.importers = importers or [Toy()]
        self.timeline: Timeline | None = None

    def write(self, name: str, *lines: Any, told: bool = True, more: bool = False) -> Action:
        """A whole file, or more of it, written at this moment of the stage's clock."""

        def act() -> list[Path]:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if more else "w") as file:
                file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
            now = self.clock.now_ms() * 1_000_000
            os.utime(path, ns=(now, now))
            return [path] if told else []

        return act

    def add(self, name: str, *lines: Any, told: bool = True) -> Action:
        return self.write(name, *lines, told=told, more=True)

    def follow(self, *actions: tuple[float, Action], end: float) -> list[WatchEvent]:
        """What a watch tells until the end."""
        found: list[WatchEvent] = []
        timeline = self.timeline = Timeline(self.clock, *actions, end=end)
        watching = watch(
            self.ledger, [self.folder], importers=self.importers, clock=self.clock, waiting=lambda _: timeline
        )
        try:
            found.extend(watching)
        except End:
            return found
        raise AssertionError("a watch ended by itself")
