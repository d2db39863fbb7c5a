"""Which way turns go while a test runs: straight, or the general way that can do everything. A plugin.

A turn without anything unusual goes straight: on SQLite its lines and rows are written in one pass, on PostgreSQL it is
one call to the server, and a context is read in one loop. Every other turn goes the general way; so would all turns if
the straight ones were refused by mistake, and no answer would show it. So the turns are counted, in a file of memory
that all processes of a test share: what a process did before it was killed is counted too. `make prove` prints the
counts; the fixture `turn_path` fails where no turn went straight, and at full size runs a test once more with all
turns sent the general way.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from tests.faults.results import whole_test
from tests.sizes import sized
from weft.ledger.read import context_columns, contexts
from weft.ledger.read.context_columns import SpokenTurns
from weft.ledger.write import record_turn
from weft.store.fact_log import LogTip
from weft.store.postgres.connection import PostgresSql
from weft.store.postgres.store import PostgresStore
from weft.store.postgres.straight_append import ProvisionalSql, StraightAppends

ENVIRONMENT = "WEFT_TEST_PATHS"
SQLITE, POSTGRESQL, CONTEXTS = "SQLite", "PostgreSQL", "contexts"
STRAIGHT, GENERAL = "straight", "general"
PATHS = [(place, way) for place in (SQLITE, POSTGRESQL, CONTEXTS) for way in (STRAIGHT, GENERAL)]
SLOTS = 512
"""Processes count each in a slot of its own, chosen by its id: two that meet in one could lose a count."""
SLOT_WORDS = 8
NO_COUNTS = bytes((SLOTS - 1) * SLOT_WORDS * 8)
PROPERTY = "turn paths"
Paths = Counter[tuple[str, str]]


class SharedCounts:
    """The file of memory. Its first word says whether all turns shall go the general way."""

    def __init__(self, file: str) -> None:
        with open(file, "r+b") as opened:
            self._words = memoryview(mmap.mmap(opened.fileno(), 0)).cast("Q")

    @property
    def is_general_only(self) -> bool:
        return bool(self._words[0])

    @is_general_only.setter
    def is_general_only(self, value: bool) -> None:
        self._words[0] = value

    def add(self, place: str, way: str, turns: int = 1) -> None:
        slot = 1 + os.getpid() % (SLOTS - 1)
        self._words[slot * SLOT_WORDS + PATHS.index((place, way))] += turns

    def clear(self) -> None:
        self._words[SLOT_WORDS:] = memoryview(NO_COUNTS).cast("Q")

    def counted(self) -> Paths:
        counts: Paths = Counter()
        if self._words[SLOT_WORDS:].tobytes() == NO_COUNTS:  # most tests record no turn
            return counts
        for k, path in enumerate(PATHS):
            counts[path] = sum(self._words[SLOT_WORDS + k :: SLOT_WORDS])
        return +counts


class Watch:
    """Counts the turns of this process, and sends them the general way where that is wanted."""

    def __init__(self, counts: SharedCounts) -> None:
        self.counts = counts
        self._here = threading.local()
        self._is_ordinary = record_turn.is_ordinary
        self._spoken, self._in_general = context_columns.spoken_turns, context_columns.spoken_in_general
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (record_turn, "is_ordinary", self.is_ordinary),
            (record_turn, "write_ordinary", self._counting(STRAIGHT, record_turn.write_ordinary)),
            (record_turn, "_write_any", self._counting(GENERAL, record_turn._write_any)),
            (PostgresStore, "_go_straight", self._allowing(PostgresStore._go_straight)),
            (StraightAppends, "send", self._counting_calls(StraightAppends.send)),
            (contexts, "spoken_turns", self.spoken_turns),
            (context_columns, "spoken_in_general", self.spoken_in_general),
        ]
        for place, name, function in replaced:
            setattr(place, name, function)

    def is_ordinary(self, turn: Any) -> bool:
        return not self.counts.is_general_only and self._is_ordinary(turn)

    def _counting(self, way: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """On PostgreSQL the way is that to the server; a turn that is made for one call is not sent yet."""

        def counted(append: Any, *arguments: Any) -> Any:
            written = write(append, *arguments)
            if isinstance(append.txn.sql, PostgresSql):
                self.counts.add(POSTGRESQL, GENERAL)
            elif not isinstance(append.txn.sql, ProvisionalSql):
                self.counts.add(SQLITE, way)
            return written

        return counted

    def _allowing(self, go_straight: Callable[..., bool]) -> Callable[..., bool]:
        return lambda *arguments: not self.counts.is_general_only and go_straight(*arguments)

    def _counting_calls(self, send: Callable[..., LogTip | None]) -> Callable[..., LogTip | None]:
        """A turn that the server refuses goes the general way; one whose call is cut short was under way."""

        def counted(*arguments: Any) -> LogTip | None:
            try:
                tip = send(*arguments)
            except BaseException:  # counted, and passed on
                self.counts.add(POSTGRESQL, STRAIGHT)
                raise
            if tip is not None:
                self.counts.add(POSTGRESQL, STRAIGHT)
            return tip

        return counted

    def spoken_turns(self, txn: Any, ranges: Any, arrived: Any, memory: Any) -> list[SpokenTurns]:
        if self.counts.is_general_only:
            return [stretch for part in ranges for stretch in self.spoken_in_general(txn, part, arrived)]
        self._here.in_general = 0
        spoken = self._spoken(txn, ranges, arrived, memory)
        turns = sum(len(stretch.turns) for stretch in spoken)
        self.counts.add(CONTEXTS, STRAIGHT, max(turns - self._here.in_general, 0))
        return spoken

    def spoken_in_general(self, *arguments: Any) -> Iterator[SpokenTurns]:
        for stretch in self._in_general(*arguments):
            self.counts.add(CONTEXTS, GENERAL, len(stretch.turns))
            self._here.in_general = getattr(self._here, "in_general", 0) + len(stretch.turns)
            yield stretch


@cache
def watch() -> Watch:
    """The watch of this process. The one that runs tests makes the file; those that it starts find it by its name."""
    return Watch(SharedCounts(os.environ[ENVIRONMENT]))


def taken() -> Paths:
    """The turns since the test began, by the place and the way they went."""
    return watch().counts.counted()


@contextmanager
def general_only() -> Iterator[None]:
    """All turns of all processes of this test go the general way meanwhile."""
    counts, before = watch().counts, watch().counts.is_general_only
    counts.is_general_only = True
    try:
        yield
    finally:
        counts.is_general_only = before


def problems(paths: Paths, way: str) -> list[str]:
    """What is wrong with the turns of a test that shall go this way wherever they can."""
    stores = [place for place in (SQLITE, POSTGRESQL) if paths[place, STRAIGHT] + paths[place, GENERAL]]
    if not stores:
        return ["no turn was recorded"]
    if way == GENERAL:
        return [f"{place}: {paths[place, STRAIGHT]} turns went straight" for place in stores if paths[place, STRAIGHT]]
    return [
        f"{place}: none of {paths[place, GENERAL]} turns went straight"
        for place in stores
        if not paths[place, STRAIGHT]
    ]


@pytest.fixture(params=sized(test=[STRAIGHT], prove=[STRAIGHT, GENERAL]))
def turn_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The way that the turns of a test go, as far as they can. It fails if they went another one."""
    way: str = request.param
    watch().counts.clear()  # what a module's fixture recorded before is not the test's
    if way == GENERAL:
        with general_only():
            yield way
    else:
        yield way
    assert problems(taken(), way) == []


# --- the plugin ---------------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    """A file of its own for each process that runs tests."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile(prefix="weft-turn-paths-", dir=memory, delete=False) as file:
        file.truncate(SLOTS * SLOT_WORDS * 8)
    os.environ[ENVIRONMENT] = file.name


def pytest_unconfigure() -> None:
    os.unlink(os.environ[ENVIRONMENT])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    watch().counts.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        item.user_properties.append((PROPERTY, [(*path, turns) for path, turns in taken().items()]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if sized(test=False, prove=True):
        terminalreporter.section("the ways that turns went, test by test")
        for line in told(terminalreporter.getreports("passed")):
            terminalreporter.write_line(line)


def told(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """A line for each test, its parts added up; those that recorded and read no turn are counted only."""
    tests: dict[str, Paths] = {}
    for report in reports:
        for name, values in report.user_properties:
            if name == PROPERTY:
                file, _, test = report.nodeid.partition("::")
                paths = tests.setdefault(f"{file}::{whole_test(test)}", Counter())
                assert isinstance(values, list)
                paths.update({(place, way): turns for place, way, turns in values})
    for test in sorted(test for test, paths in tests.items() if paths):
        yield f"{test} {in_words(tests[test])}"
    yield f"{sum(not paths for paths in tests.values())} other tests neither recorded turns nor read contexts"


def in_words(paths: Paths) -> str:
    places = [place for place, _ in PATHS[::2] if paths[place, STRAIGHT] + paths[place, GENERAL]]
    return "; ".join(
        f"{place}: {paths[place, STRAIGHT]:,} straight, {paths[place, GENERAL]:,} general" for place in places
    )
