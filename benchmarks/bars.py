"""The bars that Weft has to clear, as ratios wherever a ratio says it: machines differ."""

from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.broker import BESIDE, TurnCost, is_sqlite_peer
from benchmarks.broker import WEFT as BROKER
from benchmarks.broker_rates import BROKERS, GRAPHS
from benchmarks.fsyncs import Fsyncs
from benchmarks.graph import GraphCosts
from benchmarks.group_commit import DEEP, FRESH, ONE_DEEP, ONE_SLOW, ONE_WRITER, SLOW
from benchmarks.imports import FLOOR, ONE_PROCESS, TWO_PROCESSES, Import
from benchmarks.measure import Figure, paired_ratio
from benchmarks.peers import BARE, FORKING_PEER
from benchmarks.postgres import SAVER
from benchmarks.rates import Rate
from benchmarks.registry import SAME_ROWS, WEFT
from benchmarks.reports import FLOOR as FLOOR_OF_REPORTS
from benchmarks.reports import REPORTS
from benchmarks.reports import name_of as name_of_sources
from benchmarks.results import (
    IDLE,
    LOADED_AGAIN,
    SECRETS,
    SMALL_LOG,
    START,
    Results,
    Served,
    rate_ratio,
    ratio,
    wall_ratio,
)
from benchmarks.rooms import RoomCosts
from benchmarks.searching import Searched
from benchmarks.similarity import Compared
from benchmarks.starting import LLM, LOG, SEND, SERVED_SEND
from benchmarks.syncing import CLONE, COPY, Moved, name_of


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float | None
    """None: this run did not measure it."""
    limit: float
    unit: str
    sense: Literal["at most", "at least"] = "at most"

    @property
    def passed(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.sense == "at most" else self.value >= self.limit


def bars(results: Results) -> list[Bar]:
    return [
        *_append_bars(results),
        *_group_bars(results),
        *_fork_and_read_bars(results),
        *_import_bars(results),
        *search_bars(results),
        *_other_bars(results),
        *similarity_bars(results),
        *sync_bars(results),
        *server_bars(results),
        *broker_bars(results),
        *room_bars(results),
        *graph_bars(results),
        *start_bars(results),
        *report_bars(results),
    ]


def start_bars(results: Results) -> list[Bar]:
    """By the clock, of commands that took turns: somebody waits for them."""
    starts = results.starts
    beside, log = starts.get(SERVED_SEND), starts.get(LOG)
    more = None
    if isinstance(beside, Figure) and isinstance(log, Figure):
        more = median(one - other for one, other in zip(beside.rounds_ms, log.rounds_ms, strict=True))
    return [
        Bar(f"starts: `{SEND}`, against `{LLM}`", wall_ratio(starts.get(SEND), starts.get(LLM)), 1, "x"),
        Bar(f"starts: `{SEND}` beside a broker, more than `{LOG}`", more, 500, "ms"),
    ]


def similarity_bars(results: Results) -> list[Bar]:
    """Of one search alone, in CPU time: it runs on one thread and waits for nothing."""
    found = next((each for each in results.similarity.values() if isinstance(each, Compared)), None)
    among = f"similarity, {found.vectors if found else results.sizes.similar_nodes:,} vectors"
    return [
        Bar(f"{among}: CPU of a search, p95", found.cpu["search"].p95_ms if found else None, 20, "ms"),
        Bar(f"{among}: recall of the ten nearest", found.recall if found else None, 0.95, "", "at least"),
    ]


def sync_bars(results: Results) -> list[Bar]:
    """Memory and a push of nothing are compared with those of the smallest ledger."""
    small, large = (name_of(size, "") for size in results.sizes.sync_turns)
    found = {name: each for name, each in results.sync.items() if isinstance(each, Moved) and "git" not in name}
    peaks = {name: each.peak_bytes for name, each in found.items()}
    memory = [ratio(peaks.get(large + what), peaks.get(small + what)) for what in ("push, all", "pull, all")]
    idle = [found.get(size + "push, nothing") for size in (small, large)]
    spent = [each.cpu_seconds if each else None for each in idle]
    return [
        Bar("sync: bytes moved, against those missing", _worst([each.ratio for each in found.values()]), 1.2, "x"),
        Bar("sync: peak memory, many turns against few", _worst(memory), 1.25, "x"),
        Bar("sync: a push of nothing, many turns against few", ratio(spent[1], spent[0]), 1.5, "x"),
        Bar(
            f"sync: `{CLONE}`, against a {COPY}",
            wall_ratio(results.clones.get(CLONE), results.clones.get(COPY)),
            3,
            "x",
        ),
    ]


def room_bars(results: Results) -> list[Bar]:
    """In CPU time: each runs on one thread. A message in a grown room is compared with one in an empty room."""
    sizes = results.sizes
    cpu = {name: found.cpu for name, found in results.rooms.items() if isinstance(found, RoomCosts)}
    suggestion, triage = cpu.get("suggestion"), cpu.get("triage without a model")
    empty, full = cpu.get("message in an empty room"), cpu.get("message in a full room")
    grown = f"a message in a room of {sizes.room_agents} agents and {sizes.room_messages:,} messages"
    times = None if empty is None or full is None else full.p50_ms / empty.p50_ms
    return [
        Bar(
            f"rooms: a suggestion among {sizes.room_names:,} names, p95",
            suggestion.p95_ms if suggestion else None,
            10,
            "ms",
        ),
        Bar(f"rooms: triage among {sizes.triage_agents:,} agents, p95", triage.p95_ms if triage else None, 50, "ms"),
        Bar(f"rooms: {grown}, against an empty one", times, 1.25, "x"),
    ]


def graph_bars(results: Results) -> list[Bar]:
    """Questions in the largest ledger are compared with the same ones in the smallest, the worst of them counts."""
    found = [costs for costs in results.graph.values() if isinstance(costs, GraphCosts)]
    rates = [costs.filled_per_second for costs in found]
    ends = (found[0], found[-1]) if len(found) > 1 else None
    times = [ends[1].cpu[name].p50_ms / ends[0].cpu[name].p50_ms for name in ends[0].cpu] if ends else []
    most = f"{results.sizes.graph_events[-1]:,} events against {results.sizes.graph_events[0]:,}"
    return [
        Bar("graph: events filled, by CPU", min(rates) if rates else None, 10_000, "/s", "at least"),
        Bar(f"graph: a question, {most}, worst", max(times) if times else None, 1.5, "x"),
    ]


def report_bars(results: Results) -> list[Bar]:
    """Each command beside the newest turns of the same ledger, in CPU time: the worst of them counts."""
    bars = []
    for mib in results.sizes.report_mib:
        costs = results.reports.get(name_of_sources(mib))
        floor = costs.get(FLOOR_OF_REPORTS) if isinstance(costs, dict) else None
        times = [wall_ratio(costs.get(command), floor) for command in REPORTS] if isinstance(costs, dict) else []
        bars.append(Bar(f"reports: {name_of_sources(mib)}, against `{FLOOR_OF_REPORTS}`, worst", _worst(times), 2, "x"))
    return bars


def server_bars(results: Results) -> list[Bar]:
    """Many processes that record into one ledger on a server."""
    found = {name: each for name, each in results.postgres.items() if isinstance(each, Served)}
    rates = {name: each.many for name, each in found.items()}
    own, many = found.get(WEFT.name), rates.get(WEFT.name)
    alone = own.alone if own else None
    title = f"PostgreSQL, {results.sizes.server_processes} processes"
    return [
        Bar(f"{title}: turns/s, against one process", rate_ratio(many, alone), 1.5, "x", "at least"),
        Bar(f"{title}: turns/s, against PostgresSaver", rate_ratio(many, rates.get(SAVER)), 2.0, "x", "at least"),
        Bar(f"{title}: turns/s, against a bare INSERT", rate_ratio(many, rates.get(BARE.name)), 0.12, "x", "at least"),
        Bar(f"{title}: lock held by an append", own.lock_held_ms if own else None, 0.5, "ms"),
    ]


def broker_bars(results: Results) -> list[Bar]:
    """Overhead of a turn, against that of the peer which has the least; on SQLite all of them, and durable after every
    step. Turns a second of many brokers on one PostgreSQL ledger, model layers included."""
    found, depths = results.broker, results.sizes.broker_depths
    middle, deep = results.sizes.broker_peer_depths
    limits = {middle: 1.0, deep: 0.5}
    own = {depth: _overhead(found.costs.get(BROKER, {}).get(depth)) for depth in depths}
    peers = {
        depth: [_overhead(costs.get(depth)) for name, costs in found.costs.items() if is_sqlite_peer(name)]
        for depth in limits
    }
    best = {depth: min((cost for cost in costs if cost is not None), default=None) for depth, costs in peers.items()}
    commits = found.commits.median if isinstance(found.commits, Fsyncs) else None
    return [
        *(
            Bar(
                f"broker: overhead of a turn, against the best peer, {depth:,} deep",
                ratio(own[depth], best[depth]),
                limit,
                "x",
            )
            for depth, limit in limits.items()
        ),
        Bar(
            f"broker: overhead, {depths[-1]:,} deep against {depths[0]:,}",
            ratio(own[depths[-1]], _overhead(found.costs.get(BESIDE, {}).get(depths[0])) or own[depths[0]]),
            1.2,
            "x",
        ),
        Bar("broker: commits of a turn with one tool", commits, 5, ""),
        *_broker_rate_bars(results),
    ]


def _broker_rate_bars(results: Results) -> list[Bar]:
    many, rates = results.sizes.broker_processes, results.broker.rates
    own, graphs = rates.get(BROKERS, {}), rates.get(GRAPHS, {})
    rate, title = own.get(many), f"broker: turns/s of {many} on PostgreSQL"
    return [
        Bar(f"{title}, against one", rate_ratio(rate, own.get(1)), 1.0, "x", "at least"),
        Bar(f"{title}, against {GRAPHS}", rate_ratio(rate, graphs.get(many)), 1.0, "x", "at least"),
    ]


def _overhead(cost: object) -> float | None:
    return cost.overhead.wall_ms if isinstance(cost, TurnCost) else None


def _append_bars(results: Results) -> list[Bar]:
    """Beside the engine with the same rows, and beside the quickest peer that can fork, at depths that both have."""
    depths, peer_depths = results.sizes.depths, results.sizes.peer_depths
    weft, rows = results.append.get(WEFT.name, {}), results.append.get(SAME_ROWS.name, {})
    peer = results.append.get(FORKING_PEER, {})
    to_rows = [wall_ratio(weft.get(depth), rows.get(depth)) for depth in peer_depths]
    to_peer = [wall_ratio(weft.get(depth), peer.get(depth)) for depth in peer_depths]
    deepest = wall_ratio(weft.get(depths[-1]), weft.get(depths[0]))
    fsyncs = results.fsyncs.get(WEFT.name)
    return [
        Bar("append: fsyncs a turn", fsyncs.median if isinstance(fsyncs, Fsyncs) else None, 1, ""),
        Bar("append: against the same rows, bare, worst depth", _worst(to_rows), 3, "x"),
        Bar(f"append: against {FORKING_PEER}, worst depth", _worst(to_peer), 1, "x"),
        Bar(f"append: {depths[-1]:,} deep against {depths[0]:,}", deepest, 1.2, "x"),
    ]


def _group_bars(results: Results) -> list[Bar]:
    against = {FRESH: ONE_WRITER, DEEP: ONE_DEEP, SLOW: ONE_SLOW}
    return [
        Bar(
            f"group commit, {name}: durable turns, against one writer",
            rate_ratio(results.group.get(name), results.group.get(one)),
            2,
            "x",
            "at least",
        )
        for name, one in against.items()
    ]


def _fork_and_read_bars(results: Results) -> list[Bar]:
    """A context is compared with what the one peer loads that reads as much and can branch."""
    depths, fork = results.sizes.depths, results.fork.get(WEFT.name, {})
    flat = wall_ratio(fork.get(depths[-1]), fork.get(depths[0]))
    depth, load = results.sizes.peer_depths[-1], results.load
    peer = load.get(FORKING_PEER, {}).get(depth)
    first, again = (wall_ratio(load.get(name, {}).get(depth), peer) for name in (WEFT.name, LOADED_AGAIN))
    return [
        Bar(f"fork: {depths[-1]:,} deep against {depths[0]:,}", flat, 1.5, "x"),
        Bar(f"load a context of {depth:,} turns, against AdvancedSQLiteSession", first, 1, "x"),
        Bar(f"load it again, against AdvancedSQLiteSession: {depth:,} turns", again, 0.25, "x"),
    ]


def _import_bars(results: Results) -> list[Bar]:
    found = {name: each for name, each in results.imports.items() if isinstance(each, Import)}
    once, long = found.get("one session"), found.get("one session, four times as long")
    real, again = found.get("real sessions"), found.get("real sessions, into a ledger that has many")
    measured = real or long
    memory = ratio(long.peak_bytes if long else None, once.peak_bytes if once else None)
    slower = ratio(again.cpu_seconds if again else None, real.cpu_seconds if real else None)
    return [
        Bar("import: speed on one core", measured.mb_per_cpu_second if measured else None, 10, "MB/s", "at least"),
        Bar("import: ledger against source bytes", measured.size_ratio if measured else None, 0.9, "x"),
        Bar("import: peak memory, four times the bytes", memory, 1.5, "x"),
        Bar("import: into a ledger that has many sessions", slower, 1.2, "x"),
        *_process_bars(found),
    ]


def _process_bars(found: dict[str, Import]) -> list[Bar]:
    """Of the same sources: two processes beside one, and one beside storing their lines bare."""
    one, two, floor = (found.get(name) for name in (ONE_PROCESS, TWO_PROCESSES, FLOOR))
    speed = paired_ratio(one.rounds, two.rounds) if one and two else None
    memory = (two.peak_bytes + two.worker_peak_bytes) / one.peak_bytes if one and two else None
    bare = one.mb_per_cpu_second / floor.mb_per_cpu_second if one and floor else None
    return [
        Bar("import: speed of two processes, against one", speed, 1.5, "x", "at least"),
        Bar("import: peak memory of two processes, against one", memory, 1.5, "x"),
        Bar("import: speed on one core, against its lines stored bare", bare, 0.3, "x", "at least"),
    ]


def search_bars(results: Results) -> list[Bar]:
    found = next((each for each in results.search.values() if isinstance(each, Searched)), None)
    asked = f"search {results.sizes.search_messages:,} messages: p95 of the mix"
    return [
        Bar(asked, found.whole.p95_ms if found else None, 100, "ms"),
        Bar("search: caught up after a burst", found.burst_seconds if found else None, 2, "s"),
    ]


def _other_bars(results: Results) -> list[Bar]:
    starts = results.command_line
    return [
        Bar("verify facts: events", _per_second(results.verify.get("facts")), 100_000, "/s", "at least"),
        Bar("verify views: events", _per_second(results.verify.get("views")), 20_000, "/s", "at least"),
        Bar(f"command line: `{START}`, against `{IDLE}`", wall_ratio(starts.get(START), starts.get(IDLE)), 20, "x"),
        Bar(
            f"command line: `{SECRETS}`, after `{SMALL_LOG}`",
            _longer(starts.get(SECRETS), starts.get(SMALL_LOG)),
            1,
            "s",
        ),
    ]


def _longer(value: object, floor: object) -> float | None:
    """By how many seconds, of two cases that took turns; the middle one of the rounds."""
    if not isinstance(value, Figure) or not isinstance(floor, Figure):
        return None
    return median(one - other for one, other in zip(value.rounds_ms, floor.rounds_ms, strict=False)) / 1000


def _worst(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _per_second(rate: object) -> float | None:
    return rate.per_second if isinstance(rate, Rate) else None
