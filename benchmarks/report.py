"""The tables: built once, printed as plain text or as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bars import (
    Bar,
    bars,
    broker_bars,
    graph_bars,
    report_bars,
    room_bars,
    search_bars,
    similarity_bars,
    start_bars,
    sync_bars,
)
from benchmarks.fsyncs import Fsyncs
from benchmarks.imports import Import
from benchmarks.measure import Figure, NotMeasured
from benchmarks.peers import BARE
from benchmarks.rates import Rate
from benchmarks.registry import ALL, WEFT
from benchmarks.reports import FLOOR as FLOOR_OF_REPORTS
from benchmarks.reports import REPORTS
from benchmarks.results import Results, Served, rate_ratio, wall, wall_ratio
from benchmarks.searching import Searched
from benchmarks.streaming import stream_rows

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def as_text(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        shown = ["  ".join(_justified(line, widths)).rstrip() for line in lines]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", shown[0], rule, *shown[1:], ""])

    def as_markdown(self) -> str:
        lines = [self.header, ("---", *["---:"] * (len(self.header) - 1)), *self.rows]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def tables(results: Results) -> list[Table]:
    made = [
        bar_table(results),
        append_table(results),
        store_table(results),
        weft_table(results),
        import_table(results),
    ]
    return [table for table in made if table.rows]


def bar_table(results: Results) -> Table:
    apart_bars = (search_bars, similarity_bars, sync_bars, broker_bars, room_bars, graph_bars, start_bars, report_bars)
    alone = [bar for judged in apart_bars for bar in judged(results)]
    apart = {bar.name for bar in alone}
    return bar_table_of("Bars", [bar for bar in bars(results) if bar.name not in apart])


def bar_table_of(title: str, judged: Sequence[Bar]) -> Table:
    words = {True: "pass", False: "FAIL", None: "not measured"}
    rows = [
        (
            bar.name,
            f"{number(bar.value)} {bar.unit}".strip(),
            f"{bar.sense} {bar.limit:,g} {bar.unit}".strip(),
            words[bar.passed],
        )
        for bar in judged
    ]
    return Table(title, ("what", "measured", "bar", ""), rows)


def append_table(results: Results) -> Table:
    header = ("append one durable turn", "turns deep", "wall ms", "CPU ms", "95 % ms", "x bare insert")
    bare = results.append.get(BARE.name, {})
    rows = []
    for name, figures in results.append.items():
        for depth, found in figures.items():
            rows.append((name, f"{depth:,}", *_costs(found), number(wall_ratio(found, bare.get(depth)))))
    return Table("Append against depth", header, rows)


def store_table(results: Results) -> Table:
    """The stores side by side; a store that could not be built says why in its first cell."""
    shallow, deep = results.sizes.peer_depths[0], results.sizes.peer_depths[-1]
    header = (
        f"one thread of {deep:,} turns",
        f"append at {shallow:,}, ms",
        f"append at {deep:,}, ms",
        "x bare",
        "fork, ms",
        "load, ms",
        "bytes a turn",
        "fsyncs a turn",
        "ran with",
    )
    rows = [_store_row(results, name, shallow, deep) for name in _measured_names(results)]
    return Table("Side by side", header, rows)


def weft_table(results: Results) -> Table:
    rows = [(f"group commit, {name}: turns/s", *_rate_cells(rate)) for name, rate in results.group.items()]
    rows += [(f"verify {name}: events/s", *_rate_cells(rate)) for name, rate in results.verify.items()]
    rows += [
        (f"read {depth:,} turns: {name}, ms", *_costs(found)[:2])
        for name, figures in results.read.items()
        for depth, found in figures.items()
    ]
    rows += [
        (f"fork at {depth:,} turns, ms", *_costs(found)[:2]) for depth, found in results.fork.get(WEFT.name, {}).items()
    ]
    rows += [(f"command line: `{name}`, ms", _costs(found)[0], ABSENT) for name, found in results.command_line.items()]
    rows += [
        (f"the largest synced ledger: {name}, ms", _costs(found)[0], ABSENT) for name, found in results.clones.items()
    ]
    return Table("Weft alone", ("what", "figure", "CPU ms each"), rows)


def import_table(results: Results) -> Table:
    header = ("import", "MB", "MB/s of CPU", "MB/s of wall", "peak MB", "ledger / source")
    rows = [
        (
            name,
            number(found.source_bytes / 1e6),
            number(found.mb_per_cpu_second),
            number(found.source_bytes / 1e6 / found.wall_seconds),
            number(found.peak_bytes / 1e6),
            number(found.size_ratio),
        )
        for name, found in results.imports.items()
        if isinstance(found, Import)
    ]
    return Table("Importing", header, rows)


def search_tables(results: Results) -> list[Table]:
    if not results.search:
        return []
    rows: list[tuple[str, ...]] = []
    for name, found in results.search.items():
        if isinstance(found, Searched):
            latencies = {**found.kinds, "the whole mix": found.whole}
            rows += [(f"{name}: {kind}", number(each.p50_ms), number(each.p95_ms)) for kind, each in latencies.items()]
            rows.append((f"{name}: made the index, s", number(found.index_seconds), ABSENT))
            rows.append((f"caught up with {found.burst_turns:,} more turns, s", number(found.burst_seconds), ABSENT))
    found_table = Table("What is found", ("search for 20 hits", "p50 ms", "p95 ms"), rows)
    return [bar_table_of("Searching", search_bars(results)), found_table]


def similarity_tables(results: Results) -> list[Table]:
    if not results.similarity:
        return []
    header = ("the ten nearest", "p50 ms", "p95 ms", "p50 CPU ms", "p95 CPU ms")
    rows: list[tuple[str, ...]] = []
    for name, found in results.similarity.items():
        if isinstance(found, NotMeasured):
            rows.append((f"{name}: {found}", *[ABSENT] * 4))
            continue
        for way, wall_ms in found.wall.items():
            cpu = found.cpu[way]
            cells = (wall_ms.p50_ms, wall_ms.p95_ms, cpu.p50_ms, cpu.p95_ms)
            rows.append((f"{name}: {way}", *map(number, cells)))
        once = {
            "stored, CPU s": found.store_cpu_seconds,
            "loaded and indexed, CPU s": found.first_cpu_seconds,
            "loaded with the index, CPU s": found.again_cpu_seconds,
        }
        rows += [(f"{name}: {what}", ABSENT, ABSENT, number(value), ABSENT) for what, value in once.items()]
    return [bar_table_of("Similarity", similarity_bars(results)), Table("What is similar", header, rows)]


def stream_tables(results: Results) -> list[Table]:
    """What it costs to deliver answers piece by piece, with the CPU of the stub and of the clients told apart."""
    header = (
        "following answers",
        "stub and broker, of a core",
        "clients",
        "following",
        "CPU µs a piece",
        "p50 ms",
        "p99 ms",
    )
    rows = list(stream_rows(results.streams))
    return [Table("Subscribers", header, rows)] if rows else []


def routing_tables(results: Results) -> list[Table]:
    """How often the right thread was found, and what each threshold would do."""
    if not results.routing:
        return []
    header = (
        "routes of held-out messages",
        "queries",
        "recall@1",
        "recall@3",
        "at the head",
        "p50 CPU ms",
        "p95 CPU ms",
    )
    rows: list[tuple[str, ...]] = []
    sweep: list[tuple[str, ...]] = []
    for name, found in results.routing.items():
        if isinstance(found, NotMeasured):
            rows.append((f"{name}: {found}", *[ABSENT] * 6))
            continue
        shares = (found.recall_at_1, found.recall_at_3, found.at_head)
        cells = (*(f"{share:.3f}" for share in shares), number(found.cpu.p50_ms), number(found.cpu.p95_ms))
        rows.append((f"{name}: {found.turns:,} turns", str(found.labelled), *cells))
        for verdict in found.sweep:
            is_default = " (default)" if verdict.threshold == found.default.threshold else ""
            negatives = f"{verdict.made_up_routed}/{found.made_up}", f"{verdict.left_out_routed}/{found.left_out}"
            counts = map(str, (verdict.right, verdict.wrong, verdict.refused))
            sweep.append((f"{name}: {verdict.threshold:.2f}{is_default}", *counts, *negatives))
    swept = ("threshold", "right", "wrong", "refused", "made-up texts routed", "new topics routed")
    return [Table("Smart routing", header, rows), Table("Thresholds of smart routing", swept, sweep)]


def room_tables(results: Results) -> list[Table]:
    """What suggestions, triage and messages cost."""
    if not results.rooms:
        return []
    rows = [
        (f"{name}: {found}", ABSENT, ABSENT, ABSENT)
        if isinstance(found, NotMeasured)
        else (name, f"{found.size:,}", number(found.cpu.p50_ms), number(found.cpu.p95_ms))
        for name, found in results.rooms.items()
    ]
    header = ("rooms", "names, agents or messages", "p50 CPU ms", "p95 CPU ms")
    return [bar_table_of("Rooms", room_bars(results)), Table("What rooms cost", header, rows)]


def start_tables(results: Results) -> list[Table]:
    """What commands take from their start to their end."""
    if not results.starts:
        return []
    rows = [
        (f"{name}: {found}", ABSENT, ABSENT)
        if isinstance(found, NotMeasured)
        else (name, number(found.wall_ms), number(found.cpu_ms))
        for name, found in results.starts.items()
    ]
    header = ("command", "ms", "CPU ms")
    return [bar_table_of("Starts", start_bars(results)), Table("What a start takes", header, rows)]


def graph_tables(results: Results) -> list[Table]:
    """How the graph is filled, and what questions cost."""
    if not results.graph:
        return []
    measured = {name: found for name, found in results.graph.items() if not isinstance(found, NotMeasured)}
    filled = [
        (f"{name}: {found}", ABSENT, ABSENT, ABSENT)
        if isinstance(found, NotMeasured)
        else (name, f"{found.edges:,}", f"{found.filled_per_second:,.0f}", number(found.bytes_per_event))
        for name, found in results.graph.items()
    ]
    questions = next((list(found.cpu) for found in measured.values()), [])
    asked = [
        (question, *(f"{number(cpu.p50_ms)} / {number(cpu.p95_ms)}" for cpu in costs))
        for question in questions
        for costs in [[found.cpu[question] for found in measured.values()]]
    ]
    return [
        bar_table_of("The agent graph", graph_bars(results)),
        Table("How it is filled", ("graph", "edges", "events/s of CPU", "bytes an event"), filled),
        Table("Questions, p50 / p95 CPU ms", ("question", *measured), asked),
    ]


def report_tables(results: Results) -> list[Table]:
    """What reports cost in ledgers of different ages."""
    if not results.reports:
        return []
    rows: list[tuple[str, ...]] = []
    commands = (FLOOR_OF_REPORTS, *REPORTS)
    for name, costs in results.reports.items():
        if isinstance(costs, NotMeasured):
            rows.append((f"{name}: {costs}", *[ABSENT] * len(commands)))
            continue
        found = [costs[command] for command in commands]
        rows.append((name, *(number(cost.wall_ms) if isinstance(cost, Figure) else str(cost) for cost in found)))
    return [
        bar_table_of("Reports beside a log", report_bars(results)),
        Table("Commands, CPU ms of their processes", ("ledger", *commands), rows),
    ]


def sync_tables(results: Results) -> list[Table]:
    if not results.sync:
        return []
    header = ("sync", "missing MB", "moved MB", "ratio", "CPU s", "wall s", "peak MB")
    rows: list[tuple[str, ...]] = []
    for name, found in results.sync.items():
        if isinstance(found, NotMeasured):
            rows.append((f"{name}: {found}", *[ABSENT] * 6))
            continue
        peak = None if found.peak_bytes is None else found.peak_bytes / 1e6
        cells = (found.missing_bytes / 1e6, found.moved_bytes / 1e6, found.ratio, found.cpu_seconds, found.wall_seconds)
        rows.append((name, *map(number, (*cells, peak))))
    return [bar_table_of("Syncing", sync_bars(results)), Table("Push and pull", header, rows)]


def postgres_tables(results: Results) -> list[Table]:
    return [postgres_table(results)] if results.postgres else []


def postgres_table(results: Results) -> Table:
    """Stands apart from the others: it is measured on a server, and beside another floor."""
    sizes = results.sizes
    header = (
        f"on a PostgreSQL server, {sizes.server_depth:,} turns deep",
        "append, ms",
        "x bare",
        "fork, ms",
        "load, ms",
        "one process, turns/s",
        f"{sizes.server_processes} processes, turns/s",
        "share of bare",
        "lock held, ms",
        "ran with",
    )
    return Table("On PostgreSQL", header, [_served_row(results, name) for name in results.postgres])


def _served_row(results: Results, name: str) -> tuple[str, ...]:
    found, bare = results.postgres[name], results.postgres.get(BARE.name)
    if isinstance(found, NotMeasured):
        return (name, *[ABSENT] * 8, str(found))
    floor = bare if isinstance(bare, Served) else Served("")
    return (
        name,
        number(_ms(found.append)),
        number(wall_ratio(found.append, floor.append)),
        number(_ms(found.fork)),
        number(_ms(found.load)),
        number(_per_second(found.alone)),
        number(_per_second(found.many)),
        number(rate_ratio(found.many, floor.many)),
        number(found.lock_held_ms),
        found.settings,
    )


def _ms(found: Figure | NotMeasured | None) -> float | None:
    return found.wall_ms if isinstance(found, Figure) else None


def _per_second(found: Rate | NotMeasured | None) -> float | None:
    return found.per_second if isinstance(found, Rate) else None


def notes(results: Results) -> list[str]:
    """How each store was driven, and what stood in the way of those without figures."""
    lines = [f"{spec.name}: {spec.note}" for spec in ALL if spec.note and spec.name in _measured_names(results)]
    lines += [f"{name}: {why}" for name, why in results.not_built.items()]
    for by_name in (results.append, results.fork, results.load, results.read):
        for name, by_depth in by_name.items():
            lines += [f"{name}: {found}" for found in by_depth.values() if isinstance(found, NotMeasured)]
    others: dict[str, Mapping[str, object]] = {
        "fsyncs of ": results.fsyncs,
        "verify ": results.verify,
        "group commit, ": results.group,
        "import, ": results.imports,
        "search ": results.search,
        "": {**results.command_line, **results.clones},
    }
    for kind, figures in others.items():
        lines += [f"{kind}{name}: {found}" for name, found in figures.items() if isinstance(found, NotMeasured)]
    for name, served in results.postgres.items():
        parts = (served,) if isinstance(served, NotMeasured) else (served.append, served.fork, served.load, served.many)
        lines += [f"{name}, on PostgreSQL: {found}" for found in parts if isinstance(found, NotMeasured)]
    return list(dict.fromkeys(lines))


def number(value: float | None) -> str:
    if value is None:
        return ABSENT
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _measured_names(results: Results) -> list[str]:
    return [name for name in (spec.name for spec in ALL) if name in results.settings or name in results.not_built]


def _store_row(results: Results, name: str, shallow: int, deep: int) -> tuple[str, ...]:
    append, bare = results.append.get(name, {}), results.append.get(BARE.name, {})
    fsyncs = results.fsyncs.get(name)
    return (
        name,
        number(wall(append, shallow)),
        number(wall(append, deep)),
        number(wall_ratio(append.get(deep), bare.get(deep))),
        number(wall(results.fork.get(name), deep)),
        number(wall(results.load.get(name), deep)),
        number(results.bytes_per_turn.get(name)),
        number(fsyncs.median) if isinstance(fsyncs, Fsyncs) else ABSENT,
        results.settings.get(name, "not measured"),
    )


def _costs(found: Figure | NotMeasured) -> tuple[str, str, str]:
    if isinstance(found, NotMeasured):
        return ("not measured", ABSENT, ABSENT)
    return (number(found.wall_ms), number(found.cpu_ms), number(found.p95_ms))


def _rate_cells(rate: Rate | NotMeasured) -> tuple[str, str]:
    if isinstance(rate, NotMeasured):
        return ("not measured", ABSENT)
    return (number(rate.per_second), number(rate.cpu_ms))


def _justified(line: tuple[str, ...], widths: list[int]) -> list[str]:
    first, *others = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
