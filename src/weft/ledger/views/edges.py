"""The edges of the agent graph: a lagging view, filled when a question about the graph is asked.

A row is an edge: which event opened it, since when and until when it holds, and which event closed it. The times are
those of the events; where one has none, as those of imported turns, the time of its arrival, and readers look for a
better one. `edge_rules` says what an event means; this module keeps what stood before, writes the rows, and moves the
watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson
from msgspec import UNSET, Struct, field

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import RestoreOutcome
from weft.kernel.errors import Damaged
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.weft_error import quoted
from weft.ledger.views import edge_rules_of_resources as _rules_of_resources
from weft.ledger.views.edge_rules import EdgeClosed, EdgeOpened, StandingEdge, changes
from weft.ledger.views.edge_types import EVENT, EdgeType
from weft.ledger.views.projector import plain
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.runs import ROWS_PER_EVENT
from weft.store.facts import FactReader
from weft.store.port import Store, WriteTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql

assert _rules_of_resources.__name__  # registers its rules

VIEW = "edge"
BATCH_ROWS, BATCH_EVENTS = 512, 8192
"""Of the log, so many go into one transaction at most: writers wait for it. A row alone may have more events."""
REMEMBERED_EVENTS, REMEMBERED_RUNS = 65_536, 16_384
Progress = Callable[[str, int, int], None]
_INSERT = (
    "INSERT INTO edge(id, type, source, target, attributes, valid_from) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO NOTHING"
)
_CLOSE = "UPDATE edge SET valid_to = ?, closed = ? WHERE id = ? AND closed IS NULL"
_THINGS: dict[type, str] = {
    dag.ModelResponse: "generation",
    dag.ToolCallRequested: "tool_call",
    dag.ToolResult: "tool_result",
    own.CompactionRecorded: "summary",
}
"""The kinds of event that stand for a node of another kind."""
_time_ms = lru_cache(maxsize=4096)(ms_from_iso)


class EdgeMemory(Struct):
    """What the rows of a stretch of the log say, for the stretch that follows it."""

    mark: int = 0
    events: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By their ids the newest events: arrival number, and as which kind of node they stand."""
    runs: dict[str, int] = field(default_factory=dict)
    """How many events runs have had."""

    def begin(self, after: int) -> None:
        """What was remembered holds only if nothing lies between, or was undone."""
        if after != self.mark:
            self.events.clear()
            self.runs.clear()
        if len(self.events) > REMEMBERED_EVENTS:
            for id in list(islice(self.events, len(self.events) - REMEMBERED_EVENTS // 2)):
                del self.events[id]
        if len(self.runs) > REMEMBERED_RUNS:
            self.runs.clear()


def catch_up(store: Store, progress: Progress | None = None) -> None:
    """Bring the view up to the newest fact, batch by batch, each a transaction of its own."""
    if not is_behind(store):
        return
    store.catch_up()  # events are found by their ids
    memory = EdgeMemory()
    while store.write(partial(advance, memory)):
        if progress is not None:
            with store.read() as txn:
                progress("graph", memory.mark, txn.facts.tip().n)
        if not is_behind(store):
            return


def is_behind(store: Store) -> bool:
    """Whoever has nothing to add takes no lock."""
    if store.read_only:
        return False
    with store.read() as txn:
        return txn.facts.watermark(VIEW) < txn.facts.tip().n


def advance(memory: EdgeMemory, txn: WriteTxn) -> bool:
    """One batch from the watermark on; True when there is more of what was there."""
    mark = txn.facts.watermark(VIEW)
    rows = txn.facts.log(mark, BATCH_ROWS)
    if not rows:
        return False
    first = rows[0].first
    taken = [row for row in rows if row.n - first < BATCH_EVENTS] or rows[:1]
    fill(txn.sql, txn.facts, mark, taken[-1].n, memory=memory)
    return len(taken) < len(rows) or len(rows) == BATCH_ROWS


def fill(
    sql: Sql,
    facts: FactReader,
    after: int,
    until: int,
    *,
    views: Sql | None = None,
    memory: EdgeMemory | None = None,
) -> None:
    """The edges of all events in (after, until], and the mark that says so. `views` has the other views, where they
    are not in the same database."""
    memory = EdgeMemory() if memory is None else memory
    memory.begin(after)
    state = GraphState(sql, views or sql, facts, memory)
    for row in facts.rows(after):
        for n, line in enumerate(row.lines(), row.first):
            if after < n <= until:
                state.take(n, row.at, line)
        if row.n >= until:
            break
    state.flush()
    memory.mark = until
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, until)
    )


class GraphState:
    """The graph up to an event: what the rules ask for, and where they are applied. A `Before` of `edge_rules`."""

    def __init__(self, sql: Sql, views: Sql, facts: FactReader, memory: EdgeMemory) -> None:
        self._sql, self._views, self._facts, self._memory = sql, views, facts, memory
        self._own = OwnEvents(facts.sql)
        self._rows: list[tuple[Any, ...]] = []
        self.n = 0

    def take(self, n: int, at: int, line: bytes) -> None:
        """One fact."""
        event = decoded(n, line)
        self.n = n
        first, when = n * ROWS_PER_EVENT, _time_ms(event.ts) if isinstance(event.ts, str) else at
        for k, change in enumerate(islice(changes(self, event), ROWS_PER_EVENT)):
            if isinstance(change, EdgeOpened):
                attributes = change.attributes
                written = None if attributes is None else _written(attributes)
                self._rows.append((first + k, change.type.value, change.source, change.target, written, when))
            else:
                self._close(change, when)
        self._memory.events[sha256(line).hexdigest()] = n, thing_of(event)

    def _close(self, change: EdgeClosed, when: int) -> None:
        self.flush()
        self._sql.run(_CLOSE, (when, self.n, change.edge))

    def flush(self) -> None:
        if self._rows:
            self._sql.run_many(_INSERT, self._rows)
            self._rows.clear()

    # --- what the rules ask -------------------------------------------------------------------------------------

    def _find(self, event_id: str) -> tuple[str, str]:
        """An event as a kind of node and its id: the arrival number if it came before, else its own id."""
        found = self._memory.events.get(event_id)
        if found is None:
            found = self._look_up(event_id)
            if found is None:
                return EVENT, event_id
            self._memory.events[event_id] = found
        return found[1], str(found[0])

    def _look_up(self, event_id: str) -> tuple[int, str] | None:
        n = self._facts.find_event(bytes.fromhex(event_id))
        line = None if n is None or n >= self.n else self._facts.line(n)
        return None if n is None or line is None else (n, thing_of(decoded(n, line)))

    def thing(self, event_id: str) -> str:
        kind, id = self._find(event_id)
        return f"{kind}:{id}"

    def event(self, event_id: str) -> str:
        return f"event:{self._find(event_id)[1]}"

    def next_in_run(self, run: str, *, is_first: bool) -> int:
        count = self._memory.runs.get(run, 0 if is_first else None)
        if count is None:
            self.flush()
            row = self._sql.one(
                "SELECT attributes FROM edge WHERE source = ? AND type = ? ORDER BY id DESC LIMIT 1",
                (f"run:{run}", EdgeType.RUN_HAS_EVENT.value),
            )
            count = 0 if row is None else int(read_attributes(row[0]).get("seq", -1)) + 1
        self._memory.runs[run] = count + 1
        return count

    def standing(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> list[StandingEdge]:
        self.flush()
        column, end = ("source", source) if target is None else ("target", target)
        rows = self._sql.all(
            f"SELECT id, source, target, attributes FROM edge WHERE {column} = ? AND type = ? AND closed IS NULL"
            " ORDER BY id DESC",
            (end, type.value),
        )
        return [StandingEdge(id, source, target, read_attributes(text)) for id, source, target, text in rows]

    def was_ever(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> bool:
        self.flush()
        column, end = ("source", source) if target is None else ("target", target)
        query = f"SELECT 1 FROM edge WHERE {column} = ? AND type = ? LIMIT 1"
        return self._sql.one(query, (end, type.value)) is not None

    def agent_of(self, session: str) -> str | None:
        owners = self.standing(EdgeType.AGENT_HAS_SESSION, target=f"session:{session}")
        return owners[-1].source.partition(":")[2] if owners else None

    def is_imported(self, session: str) -> bool:
        query = "SELECT 1 FROM session WHERE id = ? AND origin IS NOT NULL AND replica IS NULL"
        return self._views.one(query, (session,)) is not None

    def counts_for_program(self) -> bool:
        return self._views.one("SELECT 1 FROM program_history WHERE n = ?", (self.n,)) is not None

    def may_describe(self, resource: str, event: Event) -> bool:
        row = self._views.one("SELECT n, replica FROM resource WHERE id = ? AND n < ?", (resource, self.n))
        if row is None:
            return False
        return not self._own.has(row[0], row[1]) or self._own.has(self.n, plain(event.replica))

    def resource_of_snapshot(self, snapshot: str) -> str | None:
        row = self._views.one("SELECT resource FROM resource_snapshot WHERE id = ? AND n <= ?", (snapshot, self.n))
        return None if row is None else str(row[0])

    def is_restored(self, restore: str) -> bool:
        row = self._views.one("SELECT outcome FROM resource_restore WHERE id = ?", (restore,))
        return row is not None and row[0] == RestoreOutcome.OK.value

    def may_decide_on(self, policy: str, event: Event, digest: object) -> bool:
        row = self._views.one("SELECT replica, digest FROM policy WHERE id = ? AND n < ?", (policy, self.n))
        return row is not None and row[0] == plain(event.replica) and (digest is UNSET or digest == row[1])

    def policies_beside(self, policy: str) -> list[str]:
        rows = self._views.all(
            "SELECT other.id FROM policy JOIN policy other ON coalesce(other.agent, '') = coalesce(policy.agent, '')"
            " AND other.replica = policy.replica WHERE policy.id = ? ORDER BY other.n",
            (policy,),
        )
        return [id for (id,) in rows]

    def agent_of_policy(self, policy: str) -> str | None:
        row = self._views.one("SELECT agent FROM policy WHERE id = ?", (policy,))
        return None if row is None else row[0]


def _written(attributes: dict[str, Any]) -> str:
    seq = attributes.get("seq")
    if seq is not None and len(attributes) == 1:  # by far the most
        return f'{{"seq":{seq}}}'
    return orjson.dumps(attributes, option=orjson.OPT_SORT_KEYS).decode()


def read_attributes(text: str | None) -> dict[str, Any]:
    """What an edge says of itself."""
    if text is None:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"an edge of the graph cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"an edge of the graph cannot be read: {quoted(text)}")
    return found


def thing_of(event: Event | UnknownEvent) -> str:
    """As which kind of node an event stands."""
    return _THINGS.get(type(event), EVENT)
