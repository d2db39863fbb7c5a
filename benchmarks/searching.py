"""Searching a large ledger: a fixed mix of queries, and how long search takes to catch up with a burst of turns.

The messages are made up: words of a vocabulary as uneven as a language's, in turns of twenty messages with tool calls,
ten minutes apart. Of each kind of query there are several, and every one is asked a few times.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes

if TYPE_CHECKING:
    from weft.ledger.api.ledger import Ledger

MESSAGES = 20
SESSIONS = 64
WORDS = 16
VOCABULARY = 50_000
STARTED = 1_700_000_000_000
MINUTES_10 = 600_000
HITS = 20
TOOLS = ("Bash", "Read", "Edit", "Grep", "mcp__github__create_issue")
MODELS = ("claude-sonnet-4-5", "claude-opus-4-1", "gpt-5")


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one search."""

    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Searched:
    messages: int
    record_seconds: float
    index_seconds: float
    kinds: dict[str, Latency] = field(default_factory=dict)
    whole: Latency = field(default_factory=lambda: Latency(0, 0))
    burst_turns: int = 0
    burst_seconds: float = 0.0
    """How long search takes to catch up with so many turns that were recorded at once."""


def measure_search(sizes: Sizes, directory: Path) -> dict[str, Searched | NotMeasured]:
    say(f"search {sizes.search_messages:,} messages")
    place = directory / "search"
    place.mkdir()
    return {f"{sizes.search_messages:,} messages": attempt(lambda: searched(sizes, place))}


def searched(sizes: Sizes, place: Path) -> Searched:
    import weft
    from weft.kernel.clock import FixedClock

    clock = FixedClock(STARTED)
    with weft.open(place / "ledger.db", clock=clock) as ledger:
        record_seconds = _timed(lambda: _fill(ledger, clock, sizes.search_messages))
        say("index them")
        index_seconds = _timed(ledger.upkeep.catch_up)
        say("ask")
        found = {name: _asked(ledger, list(queries), sizes.rounds) for name, queries in _mix(ledger).items()}
        burst = sizes.writers * sizes.turns_per_writer
        _burst(ledger, burst)
        return Searched(
            sizes.search_messages,
            record_seconds,
            index_seconds,
            {name: latency(walls) for name, walls in found.items()},
            latency([wall for walls in found.values() for wall in walls]),
            burst,
            _timed(ledger.upkeep.catch_up),
        )


def _timed(action: Callable[[], object]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def latency(walls: list[float]) -> Latency:
    cuts = quantiles(walls, n=20, method="inclusive")
    return Latency(cuts[9] * 1e3, cuts[18] * 1e3)


class Speech:
    """Text of which a few words are most, and most words are rare."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._words = [word(number) for number in range(VOCABULARY)]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))

    def text(self) -> str:
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=WORDS))


def word(number: int) -> str:
    """A pronounceable name of a number: the commonest words are the first."""
    syllables = ("ka", "lo", "mi", "ten", "ru", "sa", "vo", "ne", "pi", "dor")
    return "".join(syllables[int(digit)] for digit in str(number + 10))


def _fill(ledger: "Ledger", clock: Any, messages: int) -> None:
    speech = Speech(7)
    for number in range(messages // MESSAGES):
        clock.tick(MINUTES_10)
        ledger.record_turn(session=f"session {number % SESSIONS}", **_turn(speech, number))


def _turn(speech: Speech, number: int) -> dict[str, Any]:
    response = [{"role": "assistant", "content": speech.text()} for _ in range(MESSAGES - 1)]
    calls = [
        {"id": f"c{k}", "name": TOOLS[(number + k) % len(TOOLS)], "arguments": {"command": speech.text()},
         "result": speech.text()}
        for k in range(2)
    ]  # fmt: skip
    model = MODELS[number % len(MODELS)]
    return {
        "query": speech.text(),
        "response": response,
        "tool_calls": calls,
        "model": model,
        "workspace": "/home/dev/app",
    }


def _burst(ledger: "Ledger", turns: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    speech = Speech(8)
    prepared: list[tuple[str, dict[str, Any]]] = [
        (f"burst {k % 32}", {"query": speech.text(), "response": speech.text()}) for k in range(turns)
    ]
    with ThreadPoolExecutor(32) as pool:
        for done in [pool.submit(ledger.record_turn, session=session, **turn) for session, turn in prepared]:
            done.result()


def _mix(ledger: "Ledger") -> dict[str, Iterator[dict[str, Any]]]:
    """Words by how common they are: the first stands in most messages, the ten thousandth in a few hundred of a
    million."""
    middle = ledger.log(1)[0].started_at // 2 + STARTED // 2
    return {
        "common": ({"words": f'"{word(k)}"'} for k in (0, 1, 5, 20, 50)),
        "rare": ({"words": f'"{word(k)}"'} for k in (2_000, 8_000, 20_000, 45_000, 49_999)),
        "absent": ({"words": w} for w in ("zebra", "quagga", "okapi", "tapir", "nandu")),
        "two words": (
            {"words": f'"{word(a)}" "{word(b)}"'} for a, b in ((0, 3), (2, 40), (10, 900), (70, 3_000), (400, 401))
        ),
        "beginning": ({"words": w} for w in ("kaka", "dordor", "tenruka", "sanevo", "lomi*")),
        "filtered": (
            {"words": f'"{word(9)}"', **filters}
            for filters in (
                {"role": "user"},
                {"tool": "github"},
                {"session": "session 7"},
                {"model": "opus", "since": middle},
                {"until": middle, "origin": "weft", "project": "app"},
            )
        ),
    }


def _asked(ledger: "Ledger", queries: list[dict[str, Any]], rounds: int) -> list[float]:
    walls = []
    for _ in range(rounds):
        for query in queries:
            walls.append(_timed(lambda query=query: ledger.search(limit=HITS, **query)))  # type: ignore[misc]
    return walls
