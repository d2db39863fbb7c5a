"""The agent graph: how quickly it is filled, and what questions cost in ledgers of different sizes, in CPU time.

Every ledger has the same few resources, policies and forks near its end, so that the answers are of one size; what lies
around them grows. Questions are asked of turns all over the ledger.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes
from benchmarks.searching import Latency, latency

if TYPE_CHECKING:
    from weft.surfaces.opening import OpenLedger

SESSIONS = 10
STEPS = 5
"""Of a lineage; every thread is longer than that."""
TURN_EVENTS = 8
"""About so many events has a turn of this workload."""
AT_ONCE = 200
Asked = Callable[[], object]


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """A ledger of so many events: how many of them a second were filled into the graph, how many edges and bytes that
    made, and what each question took."""

    events: int
    edges: int
    filled_per_second: float
    """By CPU time."""
    bytes_per_event: float
    cpu: dict[str, Latency]


@dataclass(frozen=True, slots=True)
class FilledGraph:
    """A ledger whose graph is filled, the turns in it, and what the filling took."""

    path: Path
    turns: list[str]
    events: int
    edges: int
    fill_seconds: float
    bytes: int


def measure_graph(sizes: Sizes, directory: Path) -> dict[str, GraphCosts | NotMeasured]:
    """The ledgers are asked in turns: what slows a question down slows it down in all of them."""
    found: dict[str, GraphCosts | NotMeasured] = {}
    filled: dict[str, FilledGraph] = {}
    for events in sizes.graph_events:
        say(f"graph of {events:,} events")
        name, made = f"{events:,} events", attempt(partial(fill_graph, directory / f"graph-{events}.db", events))
        if isinstance(made, NotMeasured):
            found[name] = made
        else:
            filled[name] = made
    asked = attempt(lambda: ask_all(filled, sizes.graph_operations))
    for name, graph in filled.items():
        found[name] = asked if isinstance(asked, NotMeasured) else _costs(graph, asked[name])
    return found


def fill_graph(path: Path, events: int) -> FilledGraph:
    import weft

    with weft.open(path) as ledger:
        turns = build(ledger, events)
        ledger.upkeep.catch_up()
    before = path.stat().st_size
    with weft.open(path) as ledger:
        started = time.process_time()
        ledger.graph.catch_up()
        spent = time.process_time() - started
        with ledger._store.read() as txn:
            ((edges,),) = txn.sql.fetch_rows("SELECT count(*) FROM edge")
            recorded = txn.facts.tip().n
    return FilledGraph(path, turns, recorded, edges, spent, max(0, path.stat().st_size - before))


def ask_all(filled: dict[str, FilledGraph], operations: int) -> dict[str, dict[str, Latency]]:
    """By graph and question: what it took."""
    import weft

    with ExitStack() as opened:
        ledgers = {name: opened.enter_context(weft.open(graph.path)) for name, graph in filled.items()}
        asks = {name: questions(ledger, filled[name].turns, operations) for name, ledger in ledgers.items()}
        spent: dict[str, dict[str, list[float]]] = {name: {} for name in filled}
        for question in next(iter(asks.values()), {}):
            for number in range(operations):
                for name, of_graph in asks.items():
                    spent[name].setdefault(question, []).append(_cpu(of_graph[question][number]))
    return {name: {question: latency(times) for question, times in of.items()} for name, of in spent.items()}


def _costs(graph: FilledGraph, cpu: dict[str, Latency]) -> GraphCosts:
    rate, size = graph.events / graph.fill_seconds, graph.bytes / graph.events
    return GraphCosts(graph.events, graph.edges, rate, size, cpu)


def build(ledger: "OpenLedger", events: int) -> list[str]:
    """Turns with one tool call each, in many sessions; their ids."""
    from weft.kernel.enums import ResourceCapability, ResourceKind
    from weft.ledger.api.resources import ResourceLog
    from weft.ledger.resource_reading import NewResource

    turns: list[str] = []
    wanted = max(2 * STEPS * SESSIONS, events // TURN_EVENTS)
    while len(turns) < wanted:
        some = range(len(turns), min(len(turns) + AT_ONCE, wanted))
        turns += [made.id for made in ledger.record_turns([_turn(number) for number in some])]
    log = ResourceLog(ledger)
    able = (ResourceCapability.SNAPSHOT, ResourceCapability.SHARE)
    for number in range(10):
        name, session = f"folder {number}", f"s{number}"
        kind, place = ResourceKind.DIRECTORY, f"/work/{number}"
        made = log.declare(NewResource(name=name, kind=kind, place=place, capabilities=able, session=session))
        ledger.resources.attach(made.id, session=session)
        ledger.policies.propose(f"policy {number}", f"print({number})")
        ledger.fork(f"s{number}", label=f"fork {number}")
    return turns


def _turn(number: int) -> dict[str, Any]:
    call = {"id": f"c{number}", "name": "read", "arguments": {"path": f"{number}.py"}, "result": f"text {number}"}
    session = f"s{number % SESSIONS}"
    return {"session": session, "query": f"what is {number}?", "response": f"it is {number}", "tool_calls": [call]}


def questions(ledger: "OpenLedger", turns: list[str], operations: int) -> dict[str, list[Asked]]:
    """Each several times, of turns that are chosen by chance."""
    chance, graph = random.Random(7), ledger.graph
    chosen = [f"run:{chance.choice(turns[(STEPS + 1) * SESSIONS :])}" for _ in range(operations)]
    events = [graph.history(run).events for run in chosen]
    asked: dict[str, list[Asked]] = {
        "node": [partial(graph.node, run) for run in chosen],
        "neighbours": [partial(graph.neighbours, run) for run in chosen],
        "history": [partial(graph.history, run) for run in chosen],
        "calls": [partial(graph.calls, run) for run in chosen],
        f"lineage, {STEPS} steps": [partial(graph.lineage, run, limit=STEPS) for run in chosen],
        "path": [partial(graph.path, some[0].name, some[-1].name) for some in events],
        "resources": [graph.resources for _ in chosen],
        "policies": [graph.policies for _ in chosen],
        "ancestry": [partial(graph.ancestry, f"fork {number % 10}") for number in range(operations)],
    }
    for asks in asked.values():
        asks[0]()
    return asked


def _cpu(action: Asked) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
