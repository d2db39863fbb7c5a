"""How large a run is, and which stores must be built how deep for the sections that were asked for."""

from collections.abc import Collection
from dataclasses import dataclass

SECTIONS = (
    "load", "read", "verify", "fork", "append", "group", "import", "search", "similarity", "routing", "streams", "sync",
    "cli", "fsync", "postgres", "broker", "rooms", "graph", "starts", "reports", "plot",
)  # fmt: skip
"""In this order: what depends on the depth of a thread is read before appends make every thread longer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Depths are turns in one thread."""

    depths: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    peer_depths: tuple[int, ...] = (100, 1_000)
    read_depths: tuple[int, ...] = (1_000, 10_000)
    verify_depth: int = 10_000
    rounds: int = 5
    operations: int = 20
    """Timed operations in one run of a case, fewer where each takes long."""
    writers: int = 32
    turns_per_writer: int = 64
    plot_seconds: float = 40
    """How long a peer may go on appending beyond its last depth, for the plot; its build counts."""
    fsync_turns: int = 60
    strace_peers: bool = True
    subscribers: int = 1_000
    stream_seconds: float = 20
    import_mib: int = 24
    import_sessions: int = 200
    import_corpus: bool = True
    search_messages: int = 1_000_000
    similar_nodes: int = 100_000
    similar_queries: int = 500
    similar_corpus: str = ""
    """Which folder of the corpus the texts are taken from; all of it."""
    route_sets: int = 3
    """Ways to cut the sessions of the corpus."""
    route_vector_sets: int = 1
    route_corpus: str = ""
    """Which folder of the corpus sessions are taken from; all of it."""
    sync_turns: tuple[int, int] = (10_000, 100_000)
    sync_more: int = 1_000
    server_depth: int = 100
    server_processes: int = 16
    server_turns: int = 64
    """Of each process."""
    broker_depths: tuple[int, ...] = (10, 100, 1_000, 10_000)
    broker_peer_depths: tuple[int, int] = (100, 1_000)
    """Where Weft's overhead is compared with the peers'. They, and all on PostgreSQL, are measured no deeper than the
    second."""
    broker_operations: int = 4
    """Few in a round: every turn makes its thread longer."""
    broker_fsync_turns: int = 20
    broker_processes: int = 16
    broker_sessions: int = 32
    broker_turns: int = 24
    """Of each session."""
    room_names: int = 10_000
    triage_agents: int = 1_000
    room_agents: int = 20
    room_messages: int = 10_000
    room_operations: int = 10
    graph_events: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    graph_operations: int = 40
    start_rounds: int = 9
    report_mib: tuple[int, int] = (443, 4 * 443)
    """Of imported sources."""


FULL = Sizes()
QUICK = Sizes(
    subscribers=100,
    stream_seconds=2,
    depths=(10, 30, 400),
    peer_depths=(10, 30),
    read_depths=(30, 400),
    verify_depth=400,
    rounds=3,
    operations=5,
    writers=16,
    turns_per_writer=16,
    plot_seconds=0,
    fsync_turns=20,
    strace_peers=False,
    import_mib=1,
    import_sessions=2,
    import_corpus=False,
    search_messages=2_000,
    similar_nodes=400,
    similar_queries=20,
    similar_corpus="chatgpt",
    route_sets=1,
    route_corpus="chatgpt",
    sync_turns=(30, 100),
    sync_more=10,
    server_depth=10,
    server_turns=4,
    broker_depths=(10, 100),
    broker_peer_depths=(10, 100),
    broker_operations=3,
    broker_fsync_turns=5,
    broker_processes=4,
    broker_sessions=8,
    broker_turns=2,
    room_names=400,
    triage_agents=100,
    room_messages=100,
    room_operations=3,
    graph_events=(1_000, 10_000),
    graph_operations=10,
    start_rounds=3,
    report_mib=(2, 8),
)


def weft_depths(sections: Collection[str], sizes: Sizes) -> list[int]:
    wanted = {
        "append": sizes.depths,
        "fork": (sizes.depths[0], sizes.peer_depths[-1], sizes.depths[-1]),
        "load": sizes.peer_depths[-1:],
        "read": sizes.read_depths,
        "verify": (sizes.verify_depth,),
        "group": sizes.depths[-1:],
        "cli": sizes.peer_depths[-1:],
        "plot": sizes.depths[-1:],
    }
    return _union(sections, wanted)


def bare_depths(sections: Collection[str], sizes: Sizes) -> list[int]:
    wanted = {
        "append": sizes.depths,
        "load": sizes.peer_depths[-1:],
        "plot": sizes.depths[-1:],
    }
    return _union(sections, wanted)


def peer_depths(sections: Collection[str], sizes: Sizes, max_depth: int | None) -> list[int]:
    wanted = {
        "append": sizes.peer_depths,
        "fork": sizes.peer_depths,
        "load": sizes.peer_depths[-1:],
        "plot": sizes.peer_depths[-1:],
    }
    return [depth for depth in _union(sections, wanted) if max_depth is None or depth <= max_depth]


def _union(sections: Collection[str], wanted: dict[str, tuple[int, ...]]) -> list[int]:
    return sorted({depth for section in sections for depth in wanted.get(section, ())})
