"""Everything one run found, in one value that becomes the table, the page, the plot and the JSON file."""

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.broker import BrokerResults
from benchmarks.fsyncs import Fsyncs
from benchmarks.graph import GraphCosts
from benchmarks.imports import Import
from benchmarks.measure import Figure, NotMeasured, paired_ratio
from benchmarks.plan import Sizes
from benchmarks.rates import Rate
from benchmarks.reports import ReportCosts
from benchmarks.rooms import RoomCosts
from benchmarks.routing import Routed
from benchmarks.searching import Searched
from benchmarks.similarity import Compared
from benchmarks.streaming import Streamed
from benchmarks.syncing import Moved

LOADED_AGAIN = "weft, again"
"""Under this name is what loading costs where most turns were kept from the time before."""
START = "weft log -n 20"
"""The command whose time is the command line's start; without a limit it prints every turn."""

IDLE = "python -c pass"
"""What every command written in Python takes."""
SECRETS, SMALL_LOG = "weft secrets --all", "weft log"
"""Both on one small ledger; no rules are in the user's cache."""

ByDepth = dict[int, Figure | NotMeasured]


@dataclass(slots=True)
class Served:
    """A store on a PostgreSQL server."""

    settings: str
    append: Figure | NotMeasured | None = None
    fork: Figure | NotMeasured | None = None
    load: Figure | NotMeasured | None = None
    many: Rate | NotMeasured | None = None
    """Turns a second of many processes, each with a session of its own."""
    alone: Rate | NotMeasured | None = None
    """The same of one process."""
    lock_held_ms: float | None = None
    """How long an append of these many held the writers' lock, by the server's clock."""


@dataclass(slots=True)
class Results:
    sizes: Sizes
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    not_built: dict[str, NotMeasured] = field(default_factory=dict)
    bytes_per_turn: dict[str, float] = field(default_factory=dict)
    append: dict[str, ByDepth] = field(default_factory=dict)
    fork: dict[str, ByDepth] = field(default_factory=dict)
    load: dict[str, ByDepth] = field(default_factory=dict)
    read: dict[str, ByDepth] = field(default_factory=dict)
    """By what was read: `thread` or `context`, and `thread scan` or `context scan`."""
    verify: dict[str, Rate | NotMeasured] = field(default_factory=dict)
    group: dict[str, Rate | NotMeasured] = field(default_factory=dict)
    imports: dict[str, Import | NotMeasured] = field(default_factory=dict)
    search: dict[str, Searched | NotMeasured] = field(default_factory=dict)
    similarity: dict[str, Compared | NotMeasured] = field(default_factory=dict)
    routing: dict[str, Routed | NotMeasured] = field(default_factory=dict)
    streams: dict[str, Streamed | NotMeasured] = field(default_factory=dict)
    sync: dict[str, Moved | NotMeasured] = field(default_factory=dict)
    """By the turns that a ledger has and what is done."""
    command_line: dict[str, Figure | NotMeasured] = field(default_factory=dict)
    clones: dict[str, Figure | NotMeasured] = field(default_factory=dict)
    fsyncs: dict[str, Fsyncs | NotMeasured] = field(default_factory=dict)
    postgres: dict[str, Served | NotMeasured] = field(default_factory=dict)
    broker: BrokerResults = field(default_factory=BrokerResults)
    rooms: dict[str, RoomCosts | NotMeasured] = field(default_factory=dict)
    graph: dict[str, GraphCosts | NotMeasured] = field(default_factory=dict)
    """By the events that a ledger has."""
    starts: dict[str, Figure | NotMeasured] = field(default_factory=dict)
    """By the command."""
    reports: dict[str, ReportCosts | NotMeasured] = field(default_factory=dict)
    """By the size of the sources that a ledger has imported."""
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    seconds: float = 0
    cut_short: bool = False
    """Somebody interrupted the run."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def wall(figures: ByDepth | None, depth: int) -> float | None:
    """The milliseconds, where there are any."""
    found = (figures or {}).get(depth)
    return found.wall_ms if isinstance(found, Figure) else None


def wall_ratio(value: Figure | NotMeasured | None, floor: Figure | NotMeasured | None) -> float | None:
    """By the clock, of two cases that took turns."""
    if not isinstance(value, Figure) or not isinstance(floor, Figure):
        return None
    return paired_ratio(value.rounds_ms, floor.rounds_ms)


def rate_ratio(value: object, floor: object) -> float | None:
    """Of two rates that were measured in turns."""
    if not isinstance(value, Rate) or not isinstance(floor, Rate):
        return None
    return paired_ratio(value.rounds, floor.rounds)


def ratio(value: float | None, floor: float | None) -> float | None:
    return value / floor if value is not None and floor else None
