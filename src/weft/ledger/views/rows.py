"""The rows of the immediate views and how they are found, as mutable records in the order of
their columns: turns, sessions, leases, programs; and what they point to: events of a run read back,
and texts, names and JSON behind content numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Protocol

import orjson
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from weft.kernel.clock import is_ulid
from weft.kernel.contents import ABSENT, ERASED, MAX_INTEGER, bytes_text, json_value
from weft.kernel.errors import Action, ContentGone, Damaged, FactDamaged, InvalidFact, NotFound, current_code, quoted
from weft.kernel.events import GENESIS, Event, UnknownEvent, Usage, event_id, extend, run_stream
from weft.kernel.foreign_input import KINDS
from weft.kernel.program_events import PROGRAM_KINDS
from weft.kernel.typed_names import normal_form
from weft.store.fact_log import FactReader, LogRow, is_erased_content
from weft.store.port import ReadTxn, StandingParts
from weft.store.replicas import authored_event
from weft.store.sql import Insert, Question, Sql, rows_wanted

# --- Leases as the table keeps them: who holds what, and for which work.


class LeaseKind(StrEnum):
    """What a lease is for; its key is the id of the session, turn, program or resource."""

    SESSION = "session"
    """Purpose: the turn that is being recorded there."""
    TURN = "turn"
    """A turn without a session. Purpose: the turn itself."""
    AGENT = "agent"
    """Purpose: the task that the agent works on, else `run`."""
    RESOURCE = "resource"
    """Purpose: `work`."""


class Lease(Struct, frozen=True, gc=False):
    """A row of the table. Whoever took it keeps a copy: what they write is refused once the row has another owner,
    epoch or purpose."""

    kind: str
    key: str
    owner: str
    epoch: int
    beat: int
    purpose: str | None
    """What the holder does; None: nobody holds it."""


LEASE_COLUMNS = Lease.__struct_fields__
_SELECT = f"SELECT {', '.join(LEASE_COLUMNS)} FROM lease"


def find_lease(sql: Sql, kind: LeaseKind, key: str) -> Lease | None:
    """The lease as it is, held or released; None where it was never taken."""
    row = sql.fetch_row(*lease_question(kind, key))
    return None if row is None else Lease(*row)


def lease_question(kind: LeaseKind, key: str) -> Question:
    """What `find_lease` asks."""
    return f"{_SELECT} WHERE kind = ? AND key = ?", (kind.value, key)


def held_leases(sql: Sql, *kinds: LeaseKind) -> list[Lease]:
    """Every lease of these kinds that somebody holds; of all kinds where none is named."""
    wanted = [kind.value for kind in kinds or LeaseKind]
    rows = sql.fetch_rows(
        f"{_SELECT} WHERE purpose IS NOT NULL AND kind IN ({', '.join('?' * len(wanted))}) ORDER BY kind, key", wanted
    )
    return [Lease(*row) for row in rows]


# --- The rows of the immediate views, as mutable records in the order of their columns.

TOKENS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)


def added(before: int | None, tokens: int | None) -> int:
    """Sums stop at the largest number that every reader holds exactly; no real thread comes near it."""
    return min((before or 0) + (tokens or 0), MAX_INTEGER)


def usage_total(usage: Usage) -> int:
    """The sum of the disjoint parts, or the given total where no part is known."""
    parts = (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens, usage.output_tokens)
    known = [part for part in parts if part is not UNSET]
    if known:
        return sum(known)
    return 0 if usage.total_tokens is UNSET else usage.total_tokens


class TurnRow(Struct, gc=False):
    """The row of a turn."""

    n: int
    segment: int
    depth: int
    id: str
    root: int
    parent: str | None
    session: int | None
    persona: str
    type: str
    status: str
    started_at: int
    completed_at: int | None
    model: str | None
    provider: str | None
    role: str
    toolset: str | None
    tools: str | None
    permissions_granted: int | None
    permissions_used: int | None
    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    total_tokens: int | None
    tokens_before: int
    response: str | None
    messages: int
    calls: int
    events: int
    last_event: bytes
    reason: str | None
    source_event: int | None
    workspace: int | None
    compaction: str | None
    thinking_config: int | None
    effective_config: int | None
    system: int | None
    interrupted: str | None
    error: int | None
    error_code: str | None
    origin: str | None
    native: int | None = None
    mapping: str | None = None
    source: bytes | None = None
    current: int = 1
    seen: bytes | None = None
    seen_at: int | None = None
    synthesised: int | None = None
    git_branch: int | None = None
    version: int | None = None
    metadata: int | None = None
    listed_at: int = 0
    cache_write_1h_tokens: int | None = None
    successor: str | None = None
    inbox: int | None = None
    """1: it took messages of an inbox, so a broker runs it and another one may go on with it; 2: it is parked."""
    untrusted: int | None = None
    """1: a stranger may have written something that its context holds."""
    provider_program: str | None = None
    """The provider's program, where a broker asked; `provider` is the vendor, null where nothing tells it."""

    def add_tokens(self, usage: Usage) -> None:
        for field in TOKENS:
            if (value := getattr(usage, field)) is not UNSET:
                setattr(self, field, added(getattr(self, field), value))
        self.total_tokens = added(self.total_tokens, usage_total(usage))

    @property
    def closed(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def digest(self) -> str:
        return bytes(self.last_event).hex()


class MessageRow(Struct, gc=False):
    """The row of a message."""

    turn: int
    seq: int
    id: str
    role: str
    source: str | None
    at: int
    position: int
    text: int | None
    parts: str | None
    list: str | None
    parent: str | None
    model: str | None
    thinking: int | None
    thinking_config: int | None
    context: int | None
    metadata: int | None
    native: int | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish: str | None = None
    cache_write_1h_tokens: int | None = None
    recorded_cost: int | None = None
    """Micro-dollars, as the origin itself noted them."""

    def set_tokens(self, usage: Usage) -> None:
        """A response's own tokens: of a turn with several models each has its share."""
        for field in TOKENS:
            if (value := getattr(usage, field)) is not UNSET:
                setattr(self, field, value)


class CallRow(Struct, gc=False):
    """The row of a tool call."""

    turn: int
    seq: int
    event: bytes
    position: int
    call_id: int
    repeated: int
    message: str | None
    tool: str
    number: int | None
    server: str | None
    params: int
    result: int | None
    error: int | None
    error_code: str | None
    status: str
    outcome: str | None
    spawned: int | None
    started_at: int
    completed_at: int | None
    result_position: int | None
    correlation: str
    detail: int | None = None


class SessionRow(Struct, gc=False):
    """The row of a session."""

    n: int
    id: str
    label: str
    persona: str
    head: str | None
    head_segment: int | None
    head_depth: int | None
    head_events: int | None
    moves: int
    since: int
    last_event: bytes
    status: str
    lifecycle: str
    compaction: str | None
    parent_session: str | None
    parent_turn: str | None
    spawn_call: int | None
    task: int | None
    routing: int | None
    origin: str | None
    origin_session: int | None
    created_at: int
    updated_at: int
    replica: str | None
    title: int | None = None
    workspace: int | None = None
    git_branch: int | None = None
    version: int | None = None
    agent: str | None = None
    metadata: int | None = None
    reach: int | None = None
    told: int | None = None
    seen: bytes | None = None
    config: int | None = None
    config_version: int = 0
    model: str | None = None
    has_subagents: int | None = None
    spawn_call_name: str | None = None

    @property
    def indexed(self) -> tuple[object, ...]:
        """What other indexes than those of its id and of its last change hold of it."""
        return (
            self.label, self.status, self.head_segment, self.parent_session, self.parent_turn, self.spawn_call_name
        )  # fmt: skip


class HistoryRow(Struct, gc=False):
    """The row of a move of a session's head."""

    n: int
    session: int
    k: int
    turn: str | None
    segment: int | None
    depth: int | None
    events: int | None
    changed_at: int
    since: int
    why: str
    reason: int | None


class ViewTable:
    """One view table: how its rows are read, added and changed, made once from the record's fields.

    `key` are its first columns, which name a row; `fixed` are those that never change.
    """

    def __init__(self, name: str, record: type[Struct], key: Sequence[str], fixed: Sequence[str] = ()) -> None:
        columns = record.__struct_fields__
        self.name, self.record = name, record
        self._key, self._fixed = key, fixed
        self.columns = columns
        self.select = f"SELECT {', '.join(columns)} FROM {name}"
        self._new = Insert(name, columns)
        self._changed = Insert(name, columns, key, [c for c in columns if c not in key and c not in fixed])

    def add(self, sql: Sql, rows: Iterable[Struct]) -> None:
        sql.add(self._new, [astuple(row) for row in rows])

    def change(self, sql: Sql, rows: Iterable[Struct]) -> None:
        sql.add(self._changed, [astuple(row) for row in rows])

    def excepting(self, *fixed: str) -> ViewTable:
        """The same table, for changes that leave these columns alone, too: their indexes are not touched."""
        return ViewTable(self.name, self.record, self._key, (*self._fixed, *fixed))


TURN = ViewTable("turn", TurnRow, ("n",), ("segment", "depth", "id", "root", "parent", "persona", "source_event"))
MESSAGE = ViewTable("message", MessageRow, ("turn", "seq"))
CALL = ViewTable("tool_call", CallRow, ("turn", "seq"), ("message",))
_BORN_WITH = ("id", "persona", "routing", "origin")
SESSION = ViewTable("session", SessionRow, ("n",), (*_BORN_WITH, "origin_session", "replica"))
MOVED_SESSION = SESSION.excepting("label", "status", "head_segment", "parent_session", "parent_turn", "spawn_call_name")
HISTORY = ViewTable("history", HistoryRow, ("session", "k"))


_FILE_ONCE = ("message", "kind", "path", "(COALESCE(line_start, -1))")
FILES = Insert("message_file", ("id", "message", "kind", "path", "line_start", "line_end"), _FILE_ONCE)
_LINT_PLACE = ("start_line", "start_col", "end_line", "end_col")
LINTS = Insert("message_lint", ("id", "message", "path", "text", "source", *_LINT_PLACE, "severity"))
CONTEXTS = Insert("message_context", ("message", "idx", "name", "listed", "content"))
THREAD_KEYS = Insert("thread_key", ("key", "session", "turn"), ("key",), ("session", "turn"))
LOOKUP_TEXTS = Insert("lookup_text", ("content", "text"), ("content",))
PERSONAS = Insert("persona", ("id", "name"), ("id",))
NAMED_PERSONAS = Insert("persona", ("id", "name"), ("id",), ("name",))


def load_turn(sql: Sql, turn: str) -> TurnRow | None:
    row = sql.fetch_row(*turn_question(turn))
    return TurnRow(*row) if row else None


def turn_question(turn: str) -> Question:
    """What `load_turn` asks."""
    return f"{TURN.select} WHERE id = ?", (turn,)


def load_turn_number(sql: Sql, n: int) -> TurnRow | None:
    row = sql.fetch_row(f"{TURN.select} WHERE n = ?", (n,))
    return TurnRow(*row) if row else None


def is_message(sql: Sql, id: str) -> bool:
    """Whether there is such a message."""
    return bool(turns_of_messages(sql, [id]))


def turns_of_messages(sql: Sql, messages: Iterable[str]) -> dict[str, TurnRow]:
    """By the ids of messages the turns that they belong to; one that is not there is left out. A message's id lies just
    behind its turn's: ids of messages are not indexed."""
    rows = rows_wanted(sql, ("message",), _TURNS_OF_WANTED, ((message,) for message in messages))
    return {message: TurnRow(*row) for message, *row in rows}


_TURNS_OF_WANTED = (
    f"SELECT w.message, {', '.join(f't.{column}' for column in TURN.columns)} FROM wanted w"
    " JOIN turn t ON t.n = (SELECT n FROM turn WHERE id < w.message ORDER BY id DESC LIMIT 1)"
    " JOIN message m ON m.turn = t.n AND m.id = w.message"
)


def load_session(sql: Sql, session: str) -> SessionRow | None:
    row = sql.fetch_row(*session_question(session))
    return SessionRow(*row) if row else None


def session_question(session: str) -> Question:
    """What `load_session` asks."""
    return f"{SESSION.select} WHERE id = ?", (session,)


def load_session_number(sql: Sql, n: int) -> SessionRow | None:
    row = sql.fetch_row(*session_number_question(n))
    return SessionRow(*row) if row else None


def session_number_question(n: int) -> Question:
    """What `load_session_number` asks."""
    return f"{SESSION.select} WHERE n = ?", (n,)


def name_forms(name: str) -> tuple[str, ...]:
    """The forms in which a name may have been noted: the normal one; as it is written, by versions that kept that."""
    normal = name if name.isascii() else normal_form(name)
    return (name,) if normal == name else (normal, name)


def find_session(sql: Sql, name: str) -> SessionRow | None:
    """By label, then by alias; an alias leads to a session, never to another alias."""
    return next((row for form in name_forms(name) if (row := _find_session(sql, form)) is not None), None)


def _find_session(sql: Sql, name: str) -> SessionRow | None:
    row = sql.fetch_row(f"{SESSION.select} WHERE label = ? AND status <> 'deleted'", (name,))
    if row is None:
        target = sql.fetch_row("SELECT session FROM alias WHERE alias = ?", (name,))
        row = sql.fetch_row(f"{SESSION.select} WHERE n = ? AND status <> 'deleted'", target) if target else None
    return SessionRow(*row) if row else None


class SessionLookup(Protocol):
    """Where sessions are looked up: in an append's views, with those that it has created, or among stored rows."""

    def find_session(self, name: str, /) -> SessionRow | None:
        """By label, then by alias."""

    def find_session_id(self, session: str, /) -> SessionRow | None: ...


class StoredSessions:
    """The rows as they are stored."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def find_session(self, name: str, /) -> SessionRow | None:
        return find_session(self._sql, name)

    def find_session_id(self, session: str, /) -> SessionRow | None:
        return load_session(self._sql, session)


def _everybody(session: SessionRow) -> bool:
    return True


def find_by_name(
    sessions: SessionLookup,
    name: str,
    may_see: Callable[[SessionRow], bool] = _everybody,
    *,
    any_case: bool = False,
) -> SessionRow | None:
    """The session that a whole name means: by id, which no label of another session takes from it, else by label or by
    alias. One that may not be seen is passed over; `any_case` takes an id in small letters too. What else a name may
    mean (a beginning, a routing key, a turn) is up to the caller."""
    session = name.upper() if any_case else name
    row = sessions.find_session_id(session) if is_ulid(session) else None
    if row is None or not may_see(row):
        row = sessions.find_session(name)
    return row if row is not None and may_see(row) else None


class SessionTip(Struct, frozen=True):
    """A session, and what a turn that goes on there needs to know."""

    session: SessionRow
    lease: Lease | None
    head: TurnRow | None
    followed: bool
    """The head is not the last turn of its segment."""


_STANDING = (
    f"SELECT {', '.join(f's.{column}' for column in SESSION.columns)},"
    f" {', '.join(f'l.{column}' for column in LEASE_COLUMNS)}, {', '.join(f't.{column}' for column in TURN.columns)},"
    " EXISTS (SELECT 1 FROM turn c WHERE c.segment = t.segment AND c.depth = t.depth + 1)"
)
_STANDING_ROWS = (
    " FROM session s LEFT JOIN lease l ON l.kind = 'session' AND l.key = s.id LEFT JOIN turn t ON t.id = s.head"
    " WHERE s.{} = ? AND s.status <> 'deleted'"
)
STANDING_PARTS = StandingParts(SESSION.columns, LEASE_COLUMNS, TURN.columns, _STANDING_ROWS.replace("{}", "label"))
_BY_LABEL, _BY_NUMBER = (_STANDING + _STANDING_ROWS.replace("{}", column) for column in ("label", "n"))


def standing_question(label: str) -> Question:
    """What `find_standing` asks first."""
    return _BY_LABEL, (label,)


def find_standing(sql: Sql, name: str) -> SessionTip | None:
    """As `find_session`, with all that belongs to it in the same answer."""
    return next((standing for form in name_forms(name) if (standing := _find_standing(sql, form)) is not None), None)


def _find_standing(sql: Sql, name: str) -> SessionTip | None:
    row = sql.fetch_row(*standing_question(name))
    if row is None:
        target = sql.fetch_row("SELECT session FROM alias WHERE alias = ?", (name,))
        row = sql.fetch_row(_BY_NUMBER, target) if target else None
    if row is None:
        return None
    session, rest = row[: len(SESSION.columns)], row[len(SESSION.columns) :]
    lease, turn = rest[: len(LEASE_COLUMNS)], rest[len(LEASE_COLUMNS) : -1]
    return SessionTip(
        SessionRow(*session),
        None if lease[0] is None else Lease(*lease),
        None if turn[0] is None else TurnRow(*turn),
        bool(rest[-1]),
    )


class RowMemory:
    """Rows this ledger wrote or read a moment ago. Good until somebody else writes or something is undone.

    It belongs to the work under way: among its rows are some that are not written yet, so whoever else would clear it
    takes them from under that work's hands. Others may look, for a guess.
    """

    LIMIT = 512

    def __init__(self) -> None:
        self.turns: dict[str, TurnRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.labels: dict[str, SessionRow] = {}
        self.ends: dict[int, int] = {}
        self.lookup_texts: set[int] = set()
        """Contents whose texts are in `lookup_text`."""
        self.free_epochs: dict[str, int] = {}

    def clear(self) -> None:
        for held in (self.turns, self.sessions, self.labels, self.ends, self.lookup_texts, self.free_epochs):
            held.clear()

    def learn(self, name: str, found: SessionTip) -> SessionRow:
        """What was read just now, as far as nothing is known that was changed since; returns the session."""
        session, head, lease = found.session, found.head, found.lease
        session = self.labels[name] = self.sessions.setdefault(session.id, session)
        if head is not None:
            self.turns.setdefault(head.id, head)
            if not found.followed:
                self.ends.setdefault(head.segment, head.depth)
        if lease is None or lease.purpose is None:
            self.free_epochs.setdefault(session.id, lease.epoch if lease else 0)
        return session

    def shrink(self) -> None:
        """Keep the memory small; what is forgotten is read again."""
        if max(len(self.turns), len(self.sessions), len(self.ends), len(self.lookup_texts)) > self.LIMIT:
            self.clear()


def has_turn_at(sql: Sql, segment: int, depth: int) -> bool:
    return sql.fetch_row("SELECT 1 FROM turn WHERE segment = ? AND depth = ?", (segment, depth)) is not None


SegmentDepth = tuple[int, int]
"""A turn by its segment and depth."""
GOES_ON = "l.why IN ('continuation', 'fork')"
"""Links across which a thread goes on; where there are several, at the first in this order:"""
WHERE_FIRST = "p.current DESC, p.id"


def crossings(sql: Sql) -> dict[SegmentDepth, SegmentDepth]:
    """Every root whose thread goes on across a link, with the turn where it does."""
    rows = sql.fetch_rows(
        "SELECT t.segment, t.depth, p.segment, p.depth FROM link l"  # first: most roots have none
        " CROSS JOIN turn t CROSS JOIN segment s CROSS JOIN turn p"
        " WHERE t.id = l.child AND s.n = t.segment AND s.base = t.depth AND s.parent IS NULL AND p.id = l.parent"
        f" AND {GOES_ON} ORDER BY l.child, {WHERE_FIRST}"
    )
    found: dict[SegmentDepth, SegmentDepth] = {}
    for segment, depth, above, above_depth in rows:
        found.setdefault((segment, depth), (above, above_depth))
    return found


# --- The rows of the programs' views, and how they are found.


class ProgramRow(Struct, gc=False):
    """The row of a program."""

    id: str
    kind: str
    name: str
    state: str
    was: str | None = None
    info_type: str | None = None
    config: int | None = None
    version: int = 0
    deleted: int = 0
    applied: int = 0
    created_at: int = 0
    updated_at: int = 0
    created_by: str = "local"
    task: str | None = None
    session: str | None = None
    turns: int | None = None
    checkpoint: int | None = None
    saved: int | None = None
    result: int | None = None
    system_kind: str | None = None
    """What a system agent is for."""


class HistoryEntry(Struct, gc=False):
    """The row of a change of a program: its configuration or state from then on."""

    n: int
    program: str
    kind: str
    state: str
    version: int
    config: int | None
    at: int
    actor: str
    reason: int | None


class RequestRow(Struct, gc=False):
    """The row of what a person was told or asked."""

    id: str
    human: str
    text: int | None
    asks: int
    program: str | None
    data: int | None
    status: str
    asked_by: str
    asked_at: int
    decided_at: int | None = None
    reason: int | None = None


PROGRAM = ViewTable("program", ProgramRow, ("id",), ("kind", "name", "created_at", "created_by", "system_kind"))
PROGRAM_HISTORY = ViewTable("program_history", HistoryEntry, ("n",))
REQUEST = ViewTable("human_request", RequestRow, ("id",))


def load_program(sql: Sql, program: str) -> ProgramRow | None:
    row = sql.fetch_row(f"{PROGRAM.select} WHERE id = ?", (program,))
    return ProgramRow(*row) if row else None


def find_program(sql: Sql, name: str) -> ProgramRow | None:
    """By the name of a living one, then by id."""
    name = normal_form(name)
    row = sql.fetch_row(f"{PROGRAM.select} WHERE name = ? AND deleted = 0", (name,))
    return ProgramRow(*row) if row else load_program(sql, name)


def agent_id(sql: Sql, name: str) -> str | None:
    """The id of a program that can act, by name or id; of a name that only deleted ones had, the last of these."""
    name = normal_form(name)
    kinds = [facts.name for facts in PROGRAM_KINDS.values() if facts.acts]
    row = sql.fetch_row(
        f"SELECT id FROM program WHERE (name = ? OR id = ?) AND kind IN ({', '.join('?' * len(kinds))})"
        " ORDER BY deleted, updated_at DESC, id DESC LIMIT 1",
        (name, name, *kinds),
    )
    return str(row[0]) if row else None


def load_request(sql: Sql, request: str) -> RequestRow | None:
    row = sql.fetch_row(f"{REQUEST.select} WHERE id = ?", (request,))
    return RequestRow(*row) if row else None


# --- A run's events: reading them back, and counting positions in them.

_STREAM = b'"stream":"'


class StoredEvent(Struct, frozen=True):
    """An event as it is stored, with its arrival number, its id and what it says."""

    n: int
    id: str
    line: bytes
    event: Event | UnknownEvent


def recorded(n: int, line: bytes) -> StoredEvent:
    return StoredEvent(n, event_id(line), line, decoded(n, line))


def decoded(n: int, line: bytes) -> Event | UnknownEvent:
    """What an event says that is stored under this number."""
    try:
        return KINDS.decode(line)
    except ValueError as error:
        raise FactDamaged("event number", str(n), str(error)) from error


def recorded_after(facts: FactReader, after: int, rows: int) -> list[StoredEvent]:
    """The events beyond `after` of so many rows of the log, held against the chain of arrival."""
    found: list[StoredEvent] = []
    last: LogRow | None = None
    for row in facts.log(after, rows):
        events = [recorded(n, line) for n, line in enumerate(row.lines(), row.first)]
        if last is None:
            chain = GENESIS if row.first == 1 else facts.chain_at(row.first - 1)
        else:
            chain = last.chain if row.first == last.n + 1 else None
        if chain is None or extend(chain, (bytes.fromhex(event.id) for event in events)) != row.chain:
            raise FactDamaged("log row", str(row.n), "the chain of arrival does not lead here")
        found += (event for event in events if event.n > after)
        last = row
    return found


def fields_of(n: int, line: bytes) -> dict[str, Any]:
    """The fields of an event that is stored under this number, as they are."""
    try:
        fields = orjson.loads(line)
    except ValueError as error:
        raise FactDamaged("event number", str(n), str(error)) from error
    if not isinstance(fields, dict):
        raise FactDamaged("event number", str(n), "it is not an object")
    return fields


def stream_of(n: int, line: bytes) -> str:
    """The stream of an event, without reading the rest of it where only one is named in it."""
    if line.count(_STREAM) == 1:
        start = line.index(_STREAM) + len(_STREAM)
        return line[start : line.index(b'"', start)].decode()
    try:
        return str(orjson.loads(line)["stream"])
    except (ValueError, LookupError, TypeError) as error:
        raise FactDamaged("event number", str(n), f"it names no stream: {error}") from error


def run_events(facts: FactReader, turn: TurnRow, after: int | None = None, count: int = 0) -> Iterator[StoredEvent]:
    """The turn's events in order, each held against the next. They lie between its first arrival and its last, among
    others' events. With `after` those behind that one of its events, by its arrival number, which is the `count`th."""
    stream, left = run_stream(turn.id), turn.events - count
    prev = None if after is None else facts.event_id(after).hex()
    mark = f'"stream":"{stream}"'.encode()
    for n, line in facts.lines(turn.n - 1 if after is None else after) if left else ():
        if mark in line and stream_of(n, line) == stream:
            found = recorded(n, line)
            left -= 1
            if found.event.prev != prev or (left == 0 and found.id != turn.digest):
                break
            yield found
            prev = found.id
            if left == 0:
                return
    if left:
        raise FactDamaged("turn", turn.id, "its events do not lead to its digest")


def event_at(facts: FactReader, turn: TurnRow, position: int) -> str:
    """The id of the turn's event at this position."""
    for i, found in enumerate(run_events(facts, turn)):
        if i == position:
            return found.id
    raise NotFound("event", f"{turn.id}[{position}]")


def position_in_run(facts: FactReader, turn: TurnRow, event: str) -> int:
    """Which event of the turn this is, counted from 0."""
    for i, found in enumerate(run_events(facts, turn)):
        if found.id == event:
            return i
    raise InvalidFact(f"event {event}", f"it is not an event of turn {turn.id}")


def place_of_event(sql: Sql, facts: FactReader, event: str) -> tuple[TurnRow, int]:
    """The turn that an event of a run belongs to, and which of its events it is."""
    n = facts.find_event(bytes.fromhex(event))
    line = None if n is None else facts.line(n)
    if line is None:
        raise NotFound("event", event)
    stream = stream_of(n or 0, line)
    turn = load_turn(sql, stream[4:]) if stream.startswith("run:") else None
    if turn is None:
        raise NotFound("event of a turn", event, "only events inside a turn can be forked from")
    return turn, position_in_run(facts, turn, event)


# --- From columns to the values that were given: texts, names and JSON behind content numbers.


def text_of(txn: ReadTxn, n: int | None) -> str | None:
    return None if n is None else shown_text(txn.facts, n)


def shown_text(facts: FactReader, n: int) -> str:
    """A content's text as readers show it."""
    if n == 0:
        return ABSENT
    try:
        return bytes_text(facts.content(n))
    except ContentGone:
        remainder = remainder_of(facts, n)
        return ERASED if remainder is None else bytes_text(facts.content(remainder))


def remainder_of(facts: FactReader, n: int) -> int | None:
    """The content that stands in for an erased one: what whoever erased part of it left. One that was redacted again
    has a remainder in turn; None where nothing is left at the end."""
    passed = {n}
    number: int | None = n
    while number is not None and is_erased_content(facts.sql, number):
        number = _named_remainder(facts, number)
        if number in passed:
            return None
        if number is not None:
            passed.add(number)
    return number


def _named_remainder(facts: FactReader, n: int) -> int | None:
    """By the newest tombstone that names one. Only the word of this ledger counts: another one could name whatever it
    knows the reference of, or put words into a message."""
    row = facts.sql.fetch_row("SELECT ref FROM content WHERE n = ?", (n,))
    tombstones = [] if row is None else facts.sql.fetch_rows("SELECT n FROM erasure WHERE ref = ? ORDER BY n DESC", row)
    for (number,) in tombstones:
        event = authored_event(ReadTxn(facts.sql, facts), number)
        if event is not None and event.is_own and isinstance(ref := event.fields.get("remainder"), str):
            return facts.find_content(bytes.fromhex(ref))
    return None


def name_of(txn: ReadTxn, column: str | None) -> str | None:
    """A name as it was given: columns hold it as it is, or as '#' and the number of its content."""
    if column is not None and not isinstance(column, str):
        raise Damaged(f"{quoted(column)} in the views is no name", Action.VERIFY_AND_REBUILD)
    return text_of(txn, number_in(column)) if column and column[0] == "#" else column


def error_code_of(txn: ReadTxn, column: str | None) -> str | None:
    """The code of an error as it is called today; what other tools recorded stays as it is."""
    code = name_of(txn, column)
    return None if code is None else current_code(code)


def number_in(column: str) -> int:
    """The number of the content that stands in a column of text, after a '#'."""
    if not column[1:].isdecimal():
        raise Damaged(f"{quoted(column)} in the views names no content", Action.VERIFY_AND_REBUILD)
    return int(column[1:])


def json_of(txn: ReadTxn, n: int | None) -> Any:
    """A JSON value as it was given; a content that was streamed in and is no JSON is its text."""
    if not n:
        return None if n is None else ABSENT
    try:
        data = txn.facts.content(n)
    except ContentGone:
        remainder = remainder_of(txn.facts, n)
        return ERASED if remainder is None else json_of(txn, remainder)
    try:
        return json_value(data)
    except (ValueError, RecursionError):
        return bytes_text(data)


def list_in(column: str | None) -> list[Any]:
    """A list that a view's column holds as JSON: a message's parts, a turn's tools."""
    try:
        found = orjson.loads(column or "[]")
    except orjson.JSONDecodeError as error:
        raise Damaged(f"a list in the views cannot be read: {error}", Action.VERIFY_AND_REBUILD) from error
    if not isinstance(found, list):
        raise Damaged(f"a list in the views is none: {quoted(column)}", Action.VERIFY_AND_REBUILD)
    return found


# --- Which turns and sessions events say something about: whoever made something of these rows makes it anew.


class TouchedTurns(Struct):
    """Turns and sessions that some events say something about, by their ids, and the last of these events."""

    turns: dict[str, None]
    sessions: dict[str, None]
    until: int | None = None

    def take(self, facts: FactReader, n: int, line: bytes) -> None:
        stream = stream_of(n, line)
        if stream[:4] == "run:":
            self.turns[stream[4:]] = None
        elif stream[:8] == "session:":
            self.sessions[stream[8:]] = None
        else:
            self._take_other(facts, fields_of(n, line))

    def _take_other(self, facts: FactReader, event: dict[str, Any]) -> None:
        match event.get("kind"):
            case "sighting":
                self.sessions[event["session"]] = None
                if "turn" in event:
                    self.turns[event["turn"]] = None
            case "turn_superseded":
                self.turns |= dict.fromkeys((event["turn"], event["by"]))
            case "tool_result":
                self._take_turn_of(facts, event["call"]["event_id"])
            case "substitution":
                self._take_turn_of(facts, event["original_event"]["event_id"])

    def _take_turn_of(self, facts: FactReader, event: str) -> None:
        """The turn of an event; a late result belongs to that of its call."""
        n = facts.find_event(bytes.fromhex(event))
        line = None if n is None else facts.line(n)
        if n is None or line is None:
            return
        stream = stream_of(n, line)
        if stream.startswith("run:"):
            self.turns[stream.removeprefix("run:")] = None
        elif (called := fields_of(n, line).get("call")) is not None:
            self._take_turn_of(facts, called["event_id"])


def touched(facts: FactReader, mark: int, log_rows: int | None = None, turns: int = MAX_INTEGER) -> TouchedTurns:
    """What the events beyond `mark` say something about, of a few rows of the log."""
    found = TouchedTurns({}, {})
    for row in islice(facts.rows(mark), log_rows):
        for n, line in enumerate(row.lines(), row.first):
            if n > mark:
                found.take(facts, n, line)
        found.until = row.n
        if len(found.turns) >= turns:
            break
    return found
