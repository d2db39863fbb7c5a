"""Whole turns side by side: Weft's broker, LangGraph and the OpenAI Agents SDK, all against one local server.

A turn is a message, a call of a tool, its result, an answer: two requests to the model. What is compared is the
*overhead*: the turn's time without that spent inside the subject's own model layer, measured within the same turn. So
the provider's time, the wire's and the model layer's CPU are taken off everywhere; storing, loading, scheduling and
running the tool remain.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from statistics import median

from benchmarks.broker_rates import measure_rates
from benchmarks.chat_server import ANSWER, counts, running_server
from benchmarks.fsyncs import Fsyncs, count_between_markers
from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, say
from benchmarks.plan import Sizes
from benchmarks.rates import Rate
from benchmarks.turn_subject import Place, TurnSpec, TurnSubject
from benchmarks.workload import turns

WEFT, SERVED = "weft", "weft, PostgreSQL"
SUBJECTS = "benchmarks.broker_subject"
GRAPHS = "benchmarks.peers.langgraph_turns"
OPENAI_CLIENT = "the `openai` client"


def _opener(module: str, name: str) -> Callable[[Place], TurnSubject]:
    """Nothing is imported before it is opened."""

    def open_subject(place: Place) -> TurnSubject:
        subject: TurnSubject = getattr(import_module(module), name)(place)
        return subject

    return open_subject


SPECS = (
    TurnSpec(
        WEFT,
        _opener(SUBJECTS, "BrokerTurns"),
        "`send` through the broker of an open ledger",
        "its own dialect: the body, HTTP, the reading of the answer",
        is_peer=False,
    ),
    TurnSpec(
        "OpenAI Agents SDK",
        _opener("benchmarks.peers.agents_turns", "AgentsTurns"),
        "`Runner.run` with a `SQLiteSession`",
        "its `OpenAIChatCompletionsModel`",
    ),
    TurnSpec(
        "LangGraph SqliteSaver",
        _opener(GRAPHS, "GraphTurns"),
        'a graph of two nodes, `durability="sync"`',
        OPENAI_CLIENT,
    ),
    TurnSpec(
        "LangGraph SqliteSaver, DeltaChannel",
        _opener(GRAPHS, "DeltaTurns"),
        "the same with the list in a `DeltaChannel`",
        OPENAI_CLIENT,
    ),
    TurnSpec(
        "LangGraph SqliteSaver, async",
        _opener(GRAPHS, "EagerTurns"),
        "its default: the next step begins before the last is saved; no bar is set by it",
        OPENAI_CLIENT,
        is_weaker=True,
    ),
    TurnSpec(
        "LangGraph SqliteSaver, DeltaChannel, async",
        _opener(GRAPHS, "EagerDeltaTurns"),
        "the same with the list in a `DeltaChannel`; no bar is set by it",
        OPENAI_CLIENT,
        is_weaker=True,
    ),
    TurnSpec(
        SERVED,
        _opener(SUBJECTS, "ServedBrokerTurns"),
        "the same on PostgreSQL",
        "its own dialect: the body, HTTP, the reading of the answer",
        is_peer=False,
        needs_server=True,
    ),
    TurnSpec(
        "LangGraph PostgresSaver",
        _opener(GRAPHS, "ServerTurns"),
        "the same graph on PostgreSQL",
        OPENAI_CLIENT,
        needs_server=True,
    ),
)


BESIDE = "weft, beside the deepest"
"""Weft with the shortest thread, measured in turns with the longest."""


def is_sqlite_peer(name: str) -> bool:
    """Whether Weft on SQLite is judged by it."""
    return any(spec.name == name and spec.is_peer and not spec.needs_server and not spec.is_weaker for spec in SPECS)


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Of a turn on a thread of some depth."""

    overhead: Figure
    """Without the model layer."""
    turn_ms: float
    layer_ms: float
    """Inside the model layer, the server's time included."""
    layer_cpu_ms: float
    first_ms: float
    """The overhead of the first turn after the thread was opened."""


@dataclass(slots=True)
class BrokerResults:
    costs: dict[str, dict[int, TurnCost | NotMeasured]] = field(default_factory=dict)
    commits: Fsyncs | NotMeasured | None = None
    """Syncs to disk of one turn of Weft."""
    rates: dict[str, dict[int, Rate | NotMeasured]] = field(default_factory=dict)
    """Turns a second on PostgreSQL, by the number of processes."""
    server_ms: float = 0
    """CPU of the local server for one request, over all requests of the run."""

    def __bool__(self) -> bool:
        return bool(self.costs)


class TurnStage:
    """A subject with its thread, and what its turns took until now. Every turn makes the thread longer by one."""

    def __init__(self, spec: TurnSpec, place: Place, depth: int) -> None:
        say(f"{spec.name}, {depth:,} turns")
        self._subject = spec.open(place)
        self._subject.build(list(islice(turns(), depth)))
        self._numbers = count()
        self._walls: list[float] = []
        self._layer_walls: list[float] = []
        self._layer_cpus: list[float] = []
        self.first_ms = self.run(1).walls[0] * 1e3
        self._clear()

    def run(self, amount: int) -> Run:
        """Times so many turns; the seconds are those of the overhead."""
        layer, overheads, overhead_cpu = self._subject.layer, [], 0.0
        for _ in range(amount):
            text = f"what is two and three? {next(self._numbers)}"
            wall_before, cpu_before, calls_before = layer.wall, layer.cpu, layer.calls
            process_before, before = time.process_time(), time.perf_counter()
            answer = self._subject.take_turn(text)
            wall, cpu = time.perf_counter() - before, time.process_time() - process_before
            if answer != ANSWER or layer.calls != calls_before + 2:
                raise RuntimeError(f"{layer.calls - calls_before} requests, and the answer {answer[:40]!r}")
            self._walls.append(wall)
            self._layer_walls.append(layer.wall - wall_before)
            self._layer_cpus.append(layer.cpu - cpu_before)
            overheads.append(wall - self._layer_walls[-1])
            overhead_cpu += cpu - self._layer_cpus[-1]
        return Run(tuple(overheads), overhead_cpu)

    def cost(self, overhead: Figure) -> TurnCost:
        return TurnCost(
            overhead,
            turn_ms=median(self._walls) * 1e3,
            layer_ms=median(self._layer_walls) * 1e3,
            layer_cpu_ms=median(self._layer_cpus) * 1e3,
            first_ms=self.first_ms,
        )

    def close(self) -> None:
        self._subject.close()

    def _clear(self) -> None:
        for seconds in (self._walls, self._layer_walls, self._layer_cpus):
            seconds.clear()


def measure_broker(sizes: Sizes, directory: Path, *, peers: bool = True) -> BrokerResults:
    results = BrokerResults()
    specs = [spec for spec in SPECS if peers or not spec.is_peer]
    with running_server() as url, _postgres() as postgres:
        results.costs = _costs(specs, sizes, directory, url, postgres)
        say("commits of a turn of the broker")
        results.commits = _commits(sizes.broker_fsync_turns, directory / "broker-commits", url)
        if not isinstance(postgres, NotMeasured):
            results.rates = measure_rates(sizes, postgres, url, peers=peers)
        counted = counts(url)
        results.server_ms = 1e3 * counted["cpu"] / max(1, counted["requests"])
    return results


@contextmanager
def _postgres() -> Iterator[str | NotMeasured]:
    server = attempt(lambda: import_module("tests.postgres").Server(max_connections="400"))
    if isinstance(server, NotMeasured):
        yield server
        return
    try:
        yield f"postgresql://weft@/postgres?host={server.folder}"
    finally:
        server.remove()


def _costs(
    specs: Sequence[TurnSpec], sizes: Sizes, directory: Path, url: str, postgres: str | NotMeasured
) -> dict[str, dict[int, TurnCost | NotMeasured]]:
    """All subjects of one depth take turns; then the next depth. Where the peers are no longer measured, Weft takes one
    turn a round, as nearly all of its time passes in the model layer there, and so does a second one with the shortest
    thread: minutes lie between two depths, in which a machine may have become slower."""
    costs: dict[str, dict[int, TurnCost | NotMeasured]] = {spec.name: {} for spec in specs}
    for depth in sizes.broker_depths:
        stages: dict[str, TurnStage] = {}
        is_beyond = depth > sizes.broker_peer_depths[-1]
        for number, spec in enumerate(specs):
            if is_beyond and (spec.is_peer or spec.needs_server):
                continue
            place = directory / f"broker-{number}-{depth}"
            stage = _stage(spec, place, url, postgres, depth)
            if isinstance(stage, NotMeasured):
                costs[spec.name][depth] = stage
            else:
                stages[spec.name] = stage
        if is_beyond:
            shallow = _stage(SPECS[0], directory / f"broker-beside-{depth}", url, postgres, sizes.broker_depths[0])
            if not isinstance(shallow, NotMeasured):
                stages[BESIDE] = shallow
        operations = 1 if is_beyond else sizes.broker_operations
        runs = {name: partial(stage.run, operations) for name, stage in stages.items()}
        for name, figure in interleave(runs, sizes.rounds).items():
            at = sizes.broker_depths[0] if name == BESIDE else depth
            cost = stages[name].cost(figure) if isinstance(figure, Figure) else figure
            costs.setdefault(name, {})[at] = cost
        for stage in stages.values():
            stage.close()
    return costs


def _stage(
    spec: TurnSpec, directory: Path, url: str, postgres: str | NotMeasured, depth: int
) -> TurnStage | NotMeasured:
    if spec.needs_server and isinstance(postgres, NotMeasured):
        return postgres
    directory.mkdir(parents=True)
    place = Place(directory, url, "" if isinstance(postgres, NotMeasured) else postgres, f"thread-{depth}")
    return attempt(lambda: TurnStage(spec, place, depth))


def _commits(amount: int, directory: Path, url: str) -> Fsyncs | NotMeasured:
    return attempt(lambda: count_between_markers("benchmarks.broker_commits", [url], amount, directory))
