"""Sessions: stable labels on moving heads. Every movement is an event and a line of the reflog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel.dag_events import AgentForked
from weft.kernel.enums import AliasReason, MoveReason, SessionStatus, TaskStatus
from weft.kernel.errors import HeadMoved, InvalidInput, LabelTaken, NotFound
from weft.kernel.events import session_stream
from weft.kernel.fields import EventRef, is_name
from weft.kernel.ledger_events import AliasAdded, CompactionChosen, SessionArchived, SessionMoved, SessionRenamed
from weft.ledger.arguments import checked_text
from weft.ledger.batches import rows_in
from weft.ledger.beginnings import find_by_beginning
from weft.ledger.draft import DEFAULT_AGENT, Desk, Draft, Stream
from weft.ledger.labels import checked_label
from weft.ledger.leases import Patience, ensure_free
from weft.ledger.model import HeadMove, Session
from weft.ledger.places import create_session, find_named, load_parent
from weft.ledger.rows import (
    HISTORY,
    SESSION,
    HistoryRow,
    SegmentDepth,
    SessionRow,
    TurnRow,
    crossings,
    load_session,
    load_session_number,
)
from weft.ledger.runs import event_at
from weft.ledger.scribe import checked_id, member
from weft.ledger.values import json_of, text_of
from weft.store.facts import FactReader
from weft.store.port import ReadTxn, Sql

DETAILS = frozenset(
    "routing_key origin origin_session_id parent_session parent_turn_id spawn_tool_call_id task_description".split()
)


def require_session(draft: Draft, name: str) -> SessionRow:
    name = checked_text(name, "session")
    row = draft.view.find_session(name) or load_session(draft.sql, name) or find_by_beginning(draft.sql, name)
    if row is None:
        raise NotFound("session", name, "`weft sessions` lists them")
    return draft.view.session(row.id)


def stream_of(draft: Draft, row: SessionRow, actor: str | None = None) -> Stream:
    return draft.stream(session_stream(row.id), bytes(row.last_event).hex(), actor or row.persona)


def create(desk: Desk, label: str, persona: str, details: dict[str, Any]) -> str:
    """A session before its first turn. Returns its id."""
    checked_label(label)

    def work(draft: Draft) -> str:
        if (taken := find_named(draft, label)) is not None:
            raise _label_taken(label, taken)
        row = create_session(draft, label, persona=persona, **_details(draft, details))
        draft.seal()
        return row.id

    return desk.write(work)


def _label_taken(name: str, by: SessionRow) -> LabelTaken:
    if name == by.label:
        return LabelTaken(name, "a session")
    return LabelTaken(name, f"{'the id' if name == by.id else 'an alias'} of {by.label!r}")


def _details(draft: Draft, details: dict[str, Any]) -> dict[str, Any]:
    """The agents ledger's fields of a session as those of the event: texts become contents, sessions their ids."""
    made: dict[str, Any] = {}
    if unknown := set(details) - DETAILS:
        raise InvalidInput(f"session: unknown field {min(unknown)!r}", f"known: {', '.join(sorted(DETAILS))}")
    for field in ("routing_key", "origin_session_id", "task_description"):
        if details.get(field) is not None:
            made[field] = draft.put_text(details[field], field)
    if details.get("spawn_tool_call_id") is not None:
        made["spawn_tool_call"] = draft.put_text(details["spawn_tool_call_id"], "spawn_tool_call_id")
    if details.get("origin") is not None:
        if not isinstance(details["origin"], str) or not is_name(details["origin"]):
            raise InvalidInput(f"origin {details['origin']!r} is not a name", "use letters, digits and _ . : / -")
        made["origin"] = details["origin"]
    if details.get("parent_session") is not None:
        made["parent_session"] = require_session(draft, details["parent_session"]).id
    if details.get("parent_turn_id") is not None:
        made["parent_turn"] = load_parent(draft, checked_id(details["parent_turn_id"], "parent turn")).id
    return made


def fork(desk: Desk, turn: str, event: str | None, label: str, source: str | None, persona: str | None) -> str:
    """A new session whose head stands at a turn, or at an event inside one. Returns the session's id.

    It comes from `source`, or from the session that made the turn.
    """
    checked_label(label)

    def work(draft: Draft) -> str:
        if (taken := find_named(draft, label)) is not None:
            raise _label_taken(label, taken)
        row = load_parent(draft, turn)
        origin = require_session(draft, source) if source else None
        owner = persona or (origin.persona if origin else row.persona)
        branch = origin or (None if row.session is None else draft.view.session_of_number(row.session))
        session = create_session(draft, label, persona=owner)
        stream_of(draft, session).add(
            AgentForked,
            to_branch=session.id,
            at_event=EventRef(event or row.digest),
            at_turn=row.id,
            from_branch=branch.id if branch else UNSET,
        )
        if origin is not None and origin.compaction is not None and _passes_on_choice(draft, origin, row, event):
            stream_of(draft, session).add(CompactionChosen, compaction=origin.compaction or None)
        draft.seal()
        return session.id

    return desk.write(work)


def _passes_on_choice(draft: Draft, origin: SessionRow, turn: TurnRow, event: str | None) -> bool:
    """A compaction that was chosen fits a fork that begins just where its origin stands; none at all fits all of it."""
    if origin.head != turn.id or not origin.compaction:
        return origin.head == turn.id
    return _pinned(turn, event) == (head_event(draft.txn.facts, turn, origin.head_events) or UNSET)


def move_head(
    desk: Desk,
    name: str,
    *,
    new: str | None,
    expected: str | UnsetType | None,
    why: MoveReason,
    reason: str | None,
    patience: Patience,
    at_event: str | None = None,
) -> None:
    """Compare and swap: the head moves if it is where the caller believes it to be."""

    def work(draft: Draft) -> None:
        row = require_session(draft, name)
        ensure_free(draft, row, patience)
        if expected is not UNSET and row.head != expected:
            raise HeadMoved(row.label, expected, row.head)
        turn = None if new is None else load_parent(draft, checked_id(new, "turn"))
        stream_of(draft, row).add(
            SessionMoved,
            to=turn.id if turn else None,
            before=row.head,
            why=why,
            at=_pinned(turn, at_event),
            reason=UNSET if reason is None else draft.put_text(reason, "reason"),
        )
        draft.seal()

    patience.keep_trying(lambda: desk.write(work))


def _pinned(turn: TurnRow | None, at_event: str | None) -> str | UnsetType:
    """The event a head stands at: none for a whole turn; a turn still open stands for its last event at this moment."""
    if turn is None or (at_event is None and turn.closed):
        return UNSET
    return at_event or turn.digest


def rename(desk: Desk, name: str, label: str) -> None:
    checked_label(label)

    def work(draft: Draft) -> None:
        row = require_session(draft, name)
        taken = find_named(draft, label)
        if taken is not None and (taken.id != row.id or taken.label == label):
            raise _label_taken(label, taken)
        stream_of(draft, row).add(SessionRenamed, label=draft.put_text(label))
        draft.seal()

    desk.write(work)


def add_alias(desk: Desk, alias: str, name: str, reason: str) -> None:
    """Another name for a session. A target that is itself an alias is resolved now, so lookups never chain."""
    checked_label(alias, "alias")
    why = member(AliasReason, reason, "reason")

    def work(draft: Draft) -> None:
        row = require_session(draft, name)
        if (taken := find_named(draft, alias)) is not None:
            raise _label_taken(alias, taken)
        stream_of(draft, row).add(AliasAdded, alias=draft.put_text(alias), reason=why)
        draft.seal()

    desk.write(work)


def set_status(desk: Desk, name: str, status: SessionStatus, reason: str | None) -> None:
    def work(draft: Draft) -> None:
        row = require_session(draft, name)
        if status != SessionStatus.DELETED and row.status == SessionStatus.DELETED:
            other = draft.view.find_session(row.label)
            if other is not None and other.id != row.id:
                raise LabelTaken(row.label, "used by a newer session; rename that one first")
        stream_of(draft, row).add(
            SessionArchived, status=status, reason=UNSET if reason is None else draft.put_text(reason)
        )
        draft.seal()

    desk.write(work)


def head_event(facts: FactReader, turn: Any, events: int | None) -> str | None:
    return None if events is None else event_at(facts, turn, events - 1)


def reflog(txn: ReadTxn, row: SessionRow, limit: int | None, skip: int = 0) -> list[HeadMove]:
    """Newest first; number 0 is the present head."""
    rows = txn.sql.all(
        f"{HISTORY.select} WHERE session = ? AND k <= ? ORDER BY k DESC LIMIT ?",
        (row.n, row.moves - 1 - skip, row.moves if limit is None else limit),
    )
    return [_head_move(txn, row, HistoryRow(*values)) for values in rows]


def _head_move(txn: ReadTxn, session: SessionRow, row: HistoryRow) -> HeadMove:
    return HeadMove(
        number=session.moves - 1 - row.k,
        turn_id=row.turn,
        changed_at=row.changed_at,
        why=row.why,
        reason=None if row.reason is None else text_of(txn, row.reason),
        at_event=row.events,
    )


def head_at(sql: Sql, session: SessionRow, when: int) -> tuple[str | None, int | None] | None:
    """The turn and how many of its events, at a time; None when the session had no head yet.

    A clock that went back counts as standing still.
    """
    low, high = 0, session.moves
    while low < high:
        middle = (low + high) // 2
        found = sql.one("SELECT since FROM history WHERE session = ? AND k = ?", (session.n, middle))
        if found is not None and found[0] <= when:
            low = middle + 1
        else:
            high = middle
    row = sql.one("SELECT turn, events FROM history WHERE session = ? AND k = ?", (session.n, low - 1))
    return (row[0], row[1]) if row else None


def load_sessions(txn: ReadTxn, *, every: bool) -> list[Session]:
    """The latest first."""
    where = "" if every else " WHERE status = 'active'"
    rows = txn.sql.all(f"{SESSION.select}{where} ORDER BY updated_at DESC, n DESC")
    return to_sessions(txn, [SessionRow(*row) for row in rows])


def to_session(txn: ReadTxn, row: SessionRow) -> Session:
    return to_sessions(txn, [row])[0]


def to_sessions(txn: ReadTxn, rows: list[SessionRow]) -> list[Session]:
    """Many at once: a few statements in all."""
    txn.facts.hold(n for row in rows for n in _contents(row) if n)
    above = {row.parent_session for row in rows if row.parent_session}
    parents: dict[str, str] = dict(rows_in(txn.sql, "SELECT id, label FROM session WHERE id IN", above))
    names = agent_names(txn.sql, (row.persona for row in rows))
    heads = {row.head for row in rows if row.head and _is_subagent(row)}
    ends: dict[str, str] = dict(rows_in(txn.sql, "SELECT id, status FROM turn WHERE id IN", heads))
    tried = _attempts(txn.sql, (row.n for row in rows if _is_subagent(row)))
    states = {row.n: tried.get(row.n) or ends.get(row.head or "") for row in rows}
    return [_to_session(txn, row, parents, names, states[row.n]) for row in rows]


def _attempts(sql: Sql, sessions: Iterable[int]) -> dict[int, str]:
    """By session: the state of the newest turn that is under way, or failed, since the head was last moved."""
    found = sorted(rows_in(sql, _SINCE_THE_HEAD_MOVED, sessions), key=lambda row: row[1])
    return {session: status for session, _, status in found}


_SINCE_THE_HEAD_MOVED = (
    "SELECT t.session, t.n, t.status FROM turn t WHERE t.status <> 'completed' AND t.current = 1 AND t.n > COALESCE("
    "(SELECT h.n FROM history h WHERE h.session = t.session ORDER BY h.k DESC LIMIT 1), 0) AND t.session IN"
)


def _is_subagent(row: SessionRow) -> bool:
    return row.parent_session is not None or row.parent_turn is not None


def _task_status(row: SessionRow, state: str | None) -> str | None:
    """How far a subagent is, by the state of its newest turn; without one it has not begun."""
    if not _is_subagent(row):
        return None
    if state is None:
        return TaskStatus.PENDING.value
    return state if state in (TaskStatus.COMPLETED, TaskStatus.FAILED) else TaskStatus.RUNNING.value


def _contents(row: SessionRow) -> tuple[int | None, ...]:
    return (
        row.spawn_call, row.task, row.routing, row.origin_session, row.title, row.workspace, row.git_branch,
        row.version, row.metadata,
    )  # fmt: skip


def _to_session(
    txn: ReadTxn, row: SessionRow, parents: dict[str, str], names: dict[str, str], state: str | None
) -> Session:
    return Session(
        id=row.id,
        label=row.label,
        head=row.head,
        persona_id=names[row.persona],
        status=row.status,
        lifecycle=row.lifecycle,
        created_at=row.created_at,
        updated_at=row.updated_at,
        origin=row.origin or "weft",
        head_event=row.head_events,
        chosen_compaction=row.compaction,
        is_subagent=_is_subagent(row),
        parent_session=parents.get(row.parent_session) if row.parent_session else None,
        parent_turn_id=row.parent_turn,
        spawn_tool_call_id=text_of(txn, row.spawn_call),
        task_description=text_of(txn, row.task),
        task_status=_task_status(row, state),
        routing_key=text_of(txn, row.routing),
        origin_session_id=text_of(txn, row.origin_session),
        title=text_of(txn, row.title),
        workspace_path=text_of(txn, row.workspace),
        git_branch=text_of(txn, row.git_branch),
        version=text_of(txn, row.version),
        agent=row.agent,
        metadata=json_of(txn, row.metadata),
    )


def agent_names(sql: Sql, agents: Iterable[str]) -> dict[str, str]:
    """The name of each agent; one that nobody named goes by its id."""
    names = {agent: agent for agent in agents}
    asked = [agent for agent in names if agent != DEFAULT_AGENT]
    return names | dict(rows_in(sql, "SELECT id, name FROM program WHERE id IN", asked))


def sessions_containing(txn: ReadTxn, segment: int, depth: int) -> list[SessionRow]:
    """Every session whose head ever stood at or below a turn: today's heads and past departures in its subtree, and in
    those of turns that go on from there across a link."""
    links = crossings(txn.sql)
    waiting, seen, numbers = [(segment, depth)], set[SegmentDepth](), set[int]()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        numbers.update(n for (n,) in txn.sql.all(_STOOD_BELOW, place))
        if links:
            below: dict[int, int] = dict(txn.sql.all(f"{_BELOW} SELECT segment, depth FROM below", place))
            waiting += [child for child, (above, at) in links.items() if above in below and at >= below[above]]
    found = [load_session_number(txn.sql, n) for n in sorted(numbers)]
    return [row for row in found if row is not None]


_BELOW = (
    "WITH RECURSIVE below(segment, depth) AS (SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) UNION ALL"
    " SELECT s.n, s.base FROM below b JOIN segment s ON s.parent = b.segment AND s.parent_depth >= b.depth)"
)
_STOOD_BELOW = (
    f"{_BELOW} SELECT s.n FROM below b JOIN session s ON s.head_segment = b.segment AND s.head_depth >= b.depth"
    " UNION SELECT d.session FROM below b JOIN departure d ON d.segment = b.segment AND d.depth >= b.depth"
)
