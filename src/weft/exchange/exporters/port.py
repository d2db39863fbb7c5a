"""The port of an exporter: what it is given to write, and what it gives back.

Exporters are entry points of the group `weft.exporters`, ours among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from msgspec import Struct, field

from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.api import FullTurn, TurnLine, TurnRange

# --- The port of an exporter: what it is given to write, and what it gives back.


class ThinkingChoice(StrEnum):
    """Which of the models' thinking is written."""

    ALL = "all"
    SIGNED = "signed"
    """Only what carries the provider's signature, which its API wants to see again."""
    NONE = "none"


class ThreadTip(Struct, frozen=True, kw_only=True):
    """The end of a thread that was asked for."""

    name: str
    """As it was asked for."""
    turn_id: str
    session: str | None = None
    title: str | None = None


class StoryFacts(Struct, frozen=True, kw_only=True):
    """What is known of all turns of a story together."""

    started_at: int | None = None
    ended_at: int | None = None
    tokens: int = 0
    cost: int | None = None
    """Micro-dollars of the tokens that have a price; null: it is not known."""
    unpriced_tokens: int = 0
    """Those that are in no cost."""
    is_of_sessions: bool = False
    """Tokens and cost are those of all sessions that made the turns, rather than those of one thread."""


class Story(Struct, frozen=True, kw_only=True):
    """What is to be written: ranges of turns, parents before children."""

    title: str
    tips: tuple[ThreadTip, ...]
    thread_ranges: tuple[TurnRange, ...]
    turns_of: Callable[[TurnRange], Iterator[FullTurn]]
    is_context: bool = False
    """It is what a model saw or would see, rather than all that was said."""
    lines_of: Callable[[TurnRange], Iterator[TurnLine]] | None = None
    """A line about each turn of a range, for a list of contents; null: there is none."""
    facts: Callable[[], StoryFacts] | None = None
    """Reads what is known of all turns; only forms that show it call it."""

    @property
    def turns(self) -> Iterator[FullTurn]:
        return (full_turn for thread_range in self.thread_ranges for full_turn in self.turns_of(thread_range))


class AssetFolder(Protocol):
    """A folder beside the export for what does not fit into it."""

    def store_file(self, data: bytes, suffix: str) -> str:
        """Put a file there, once however often it comes; returns the address under which the export finds it."""


class ExportOptions(Struct, frozen=True, kw_only=True):
    """How it is to be written."""

    thinking: ThinkingChoice | None = None
    """Null: as the form does by itself."""
    tools: bool = True
    """Tool calls and their results too?"""
    assets: AssetFolder | None = None


class ExportReport(Struct):
    """What came of it."""

    turns: int = 0
    messages: int = 0
    tool_calls: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """What the form has no place for, or was not asked for, by what it is."""

    def count(self, full_turn: FullTurn) -> None:
        from weft.ledger.model import Message

        messages = sum(isinstance(item, Message) for item in full_turn.items)
        self.turns += 1
        self.messages += messages
        self.tool_calls += len(full_turn.items) - messages


class Exporter(Protocol):
    """Writes turns in one form."""

    form: str
    """The name that `--format` takes, such as `markdown`."""
    suffix: str
    """How names of its files end, such as `.md`."""
    one_thread: bool
    """It holds a single thread; several, or a tree, are refused."""
    wants_requests: bool
    """Does it tell what only events know of a model's answers: which request they came to, how long they took?"""

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        """The export, piece by piece. Counts every turn in the report, and what it leaves out."""


# --- Which exporters there are: every entry point of the group `weft.exporters`, ours among them.

GROUP = "weft.exporters"


def exporter_names() -> list[str]:
    return sorted({point.name for point in _points()})


def load_exporter(form: str) -> Exporter:
    points = {point.name: point for point in _points()}
    if form not in points:
        raise InvalidInput(f"there is no exporter {quoted(form)}", f"known: {', '.join(sorted(points))}")
    exporter: Exporter = points[form].load()()
    return exporter


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Looked for once: every package that is installed has to be asked."""
    return tuple(entry_points(group=GROUP))
