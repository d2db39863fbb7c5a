"""The one small protocol behind which every measured store stands, and how one is named and opened."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.measure import Action
from benchmarks.workload import MESSAGES_PER_TURN, Turn


class Subject(Protocol):
    """An open store with one main thread. Making an action is free; running it is what is timed."""

    def appender(self, turn: Turn) -> Action:
        """Prepares the turn; the action makes it durable at the end of the main thread."""

    def forker(self) -> Action | None:
        """An action that starts a new branch at the last turn; None where the store has no forks."""

    def rejoin(self) -> None:
        """Goes back to the main thread after a fork, where the fork moved away from it."""

    def load(self) -> int:
        """Reads the whole main thread as the store's own messages; how many there were."""

    def settings(self) -> str:
        """What it ran with, read back from its connection."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Spec:
    """A store that can be measured: its name, how to open it in a directory, how deep it may go."""

    name: str
    open: Callable[[Path], Subject]
    packages: tuple[str, ...] = ()
    max_depth: int | None = None
    note: str = ""
    loaded_per_turn: int = MESSAGES_PER_TURN
    """What `load` has to count, for its figure to mean anything."""


def durability(journal_mode: object, synchronous: object) -> str:
    levels = {"0": "off", "1": "normal", "2": "full", "3": "extra"}
    return f"{journal_mode}, synchronous={levels[str(synchronous)]}"


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
