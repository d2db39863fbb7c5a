"""The tables of the broker: what a turn costs without its model layer, and turns a second on PostgreSQL."""

from benchmarks.bars import broker_bars
from benchmarks.broker import SPECS, TurnCost
from benchmarks.fsyncs import Fsyncs
from benchmarks.measure import NotMeasured
from benchmarks.rates import Rate
from benchmarks.report import ABSENT, Table, bar_table_of, number
from benchmarks.results import Results


def broker_tables(results: Results) -> list[Table]:
    if not results.broker:
        return []
    shown = [bar_table_of("Broker: bars", broker_bars(results)), cost_table(results), rate_table(results)]
    return [table for table in (*shown, how_table(results)) if table.rows]


def cost_table(results: Results) -> Table:
    header = (
        "turn with one tool",
        "turns deep",
        "overhead ms",
        "its CPU ms",
        "95 % ms",
        "first turn's ms",
        "model layer ms",
        "its CPU ms",
        "whole turn ms",
    )
    costs = results.broker.costs
    rows = [_cost_row(name, depth, cost) for name, by_depth in costs.items() for depth, cost in by_depth.items()]
    return Table("Broker: overhead of a turn", header, rows)


def _cost_row(name: str, depth: int, cost: TurnCost | NotMeasured) -> tuple[str, ...]:
    if isinstance(cost, NotMeasured):
        return (name, f"{depth:,}", str(cost), *[ABSENT] * 6)
    overhead = cost.overhead
    figures = (overhead.wall_ms, overhead.cpu_ms, overhead.p95_ms, cost.first_ms)
    layer = (cost.layer_ms, cost.layer_cpu_ms, cost.turn_ms)
    return (name, f"{depth:,}", *map(number, figures), *map(number, layer))


def rate_table(results: Results) -> Table:
    sizes = results.sizes
    header = ("turns a second on PostgreSQL", "processes", "turns/s", "CPU ms a turn")
    rows = [
        (name, str(processes), *_rate_cells(rate))
        for name, rates in results.broker.rates.items()
        for processes, rate in rates.items()
    ]
    title = f"Broker: {sizes.broker_sessions} sessions of {sizes.broker_turns} turns, model layers included"
    return Table(title, header, rows)


def _rate_cells(rate: Rate | NotMeasured) -> tuple[str, str]:
    if isinstance(rate, NotMeasured):
        return (str(rate), ABSENT)
    return (number(rate.per_second), number(rate.cpu_ms))


def how_table(results: Results) -> Table:
    """How each was driven and what was taken off as its model layer."""
    rows = [(spec.name, spec.note, spec.layer) for spec in SPECS if spec.name in results.broker.costs]
    commits = results.broker.commits
    if isinstance(commits, Fsyncs):
        rows.append(("weft: syncs to disk a turn", f"median {number(commits.median)}", f"mean {number(commits.mean)}"))
    elif commits is not None:
        rows.append(("weft: syncs to disk a turn", str(commits), ABSENT))
    rows.append(("local server: CPU of a request", f"{number(results.broker.server_ms)} ms", ABSENT))
    return Table("Broker: how it was measured", ("what", "driven by", "taken off as its model layer"), rows)
