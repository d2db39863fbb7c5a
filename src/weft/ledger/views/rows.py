"""The rows of the immediate views, as mutable records in the order of their columns.

A projector loads or makes them, events change them, and each is written once per append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import UNSET, Struct
from msgspec.structs import astuple

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.clock import is_ulid
from weft.kernel.fields import Usage
from weft.kernel.labels import normal_form
from weft.ledger.views.lease_rows import LEASE_COLUMNS, Lease
from weft.store.port import StandingParts
from weft.store.sql import Insert, Question, Sql, rows_wanted

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


class Table:
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

    def excepting(self, *fixed: str) -> Table:
        """The same table, for changes that leave these columns alone, too: their indexes are not touched."""
        return Table(self.name, self.record, self._key, (*self._fixed, *fixed))


TURN = Table("turn", TurnRow, ("n",), ("segment", "depth", "id", "root", "parent", "persona", "source_event"))
MESSAGE = Table("message", MessageRow, ("turn", "seq"))
CALL = Table("tool_call", CallRow, ("turn", "seq"), ("message",))
_BORN_WITH = ("id", "persona", "routing", "origin")
SESSION = Table("session", SessionRow, ("n",), (*_BORN_WITH, "origin_session", "replica"))
MOVED_SESSION = SESSION.excepting("label", "status", "head_segment", "parent_session", "parent_turn", "spawn_call_name")
HISTORY = Table("history", HistoryRow, ("session", "k"))


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
    row = sql.one(*turn_question(turn))
    return TurnRow(*row) if row else None


def turn_question(turn: str) -> Question:
    """What `load_turn` asks."""
    return f"{TURN.select} WHERE id = ?", (turn,)


def load_turn_number(sql: Sql, n: int) -> TurnRow | None:
    row = sql.one(f"{TURN.select} WHERE n = ?", (n,))
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
    row = sql.one(*session_question(session))
    return SessionRow(*row) if row else None


def session_question(session: str) -> Question:
    """What `load_session` asks."""
    return f"{SESSION.select} WHERE id = ?", (session,)


def load_session_number(sql: Sql, n: int) -> SessionRow | None:
    row = sql.one(*session_number_question(n))
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
    row = sql.one(f"{SESSION.select} WHERE label = ? AND status <> 'deleted'", (name,))
    if row is None:
        target = sql.one("SELECT session FROM alias WHERE alias = ?", (name,))
        row = sql.one(f"{SESSION.select} WHERE n = ? AND status <> 'deleted'", target) if target else None
    return SessionRow(*row) if row else None


class Sessions(Protocol):
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
    sessions: Sessions,
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


class Standing(Struct, frozen=True):
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


def find_standing(sql: Sql, name: str) -> Standing | None:
    """As `find_session`, with all that belongs to it in the same answer."""
    return next((standing for form in name_forms(name) if (standing := _find_standing(sql, form)) is not None), None)


def _find_standing(sql: Sql, name: str) -> Standing | None:
    row = sql.one(*standing_question(name))
    if row is None:
        target = sql.one("SELECT session FROM alias WHERE alias = ?", (name,))
        row = sql.one(_BY_NUMBER, target) if target else None
    if row is None:
        return None
    session, rest = row[: len(SESSION.columns)], row[len(SESSION.columns) :]
    lease, turn = rest[: len(LEASE_COLUMNS)], rest[len(LEASE_COLUMNS) : -1]
    return Standing(
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

    def learn(self, name: str, found: Standing) -> SessionRow:
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
    return sql.one("SELECT 1 FROM turn WHERE segment = ? AND depth = ?", (segment, depth)) is not None


SegmentDepth = tuple[int, int]
"""A turn by its segment and depth."""
GOES_ON = "l.why IN ('continuation', 'fork')"
"""Links across which a thread goes on; where there are several, at the first in this order:"""
WHERE_FIRST = "p.current DESC, p.id"


def crossings(sql: Sql) -> dict[SegmentDepth, SegmentDepth]:
    """Every root whose thread goes on across a link, with the turn where it does."""
    rows = sql.all(
        "SELECT t.segment, t.depth, p.segment, p.depth FROM link l"  # first: most roots have none
        " CROSS JOIN turn t CROSS JOIN segment s CROSS JOIN turn p"
        " WHERE t.id = l.child AND s.n = t.segment AND s.base = t.depth AND s.parent IS NULL AND p.id = l.parent"
        f" AND {GOES_ON} ORDER BY l.child, {WHERE_FIRST}"
    )
    found: dict[SegmentDepth, SegmentDepth] = {}
    for segment, depth, above, above_depth in rows:
        found.setdefault((segment, depth), (above, above_depth))
    return found
