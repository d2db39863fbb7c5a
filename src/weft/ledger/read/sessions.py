"""Sessions read from their rows: records, names, reflog, which ones contain a turn, other replicas' branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.kernel.enums import TaskStatus
from weft.ledger.model import DEFAULT_AGENT, UNDATED, Branch, HeadMove, Session, SessionAlias
from weft.ledger.read.access import access_of, session_of_number
from weft.ledger.views.recorded_events import event_at
from weft.ledger.views.rows import (
    HISTORY,
    SESSION,
    HistoryRow,
    SegmentDepth,
    SessionRow,
    crossings,
)
from weft.ledger.views.values import json_of, text_of
from weft.store.facts import FactReader
from weft.store.port import ReadTxn
from weft.store.sql import Row, Sql, rows_in


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


def to_session(txn: ReadTxn, row: SessionRow) -> Session:
    return to_sessions(txn, [row])[0]


def to_sessions(txn: ReadTxn, rows: list[SessionRow]) -> list[Session]:
    """Many at once: a few statements in all."""
    txn.facts.hold(n for row in rows for n in _contents(row) if n)
    above = {row.parent_session for row in rows if row.parent_session}
    parents = _labels(txn, above)
    names = agent_names(txn.sql, (row.persona for row in rows))
    heads = {row.head for row in rows if row.head and _is_subagent(row)}
    ends: dict[str, str] = dict(rows_in(txn.sql, "SELECT id, status FROM turn WHERE id IN", heads))
    tried = _attempts(txn.sql, (row.n for row in rows if _is_subagent(row)))
    states = {row.n: tried.get(row.n) or ends.get(row.head or "") for row in rows}
    return [_to_session(txn, row, parents, names, states[row.n]) for row in rows]


def _labels(txn: ReadTxn, sessions: Iterable[str]) -> dict[str, str]:
    """By id the labels of those that can be read."""
    rows = (SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE id IN", sessions))
    return {row.id: row.label for row in rows if access_of(txn).may_read(row)}


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
        row.task, row.routing, row.origin_session, row.title, row.workspace, row.git_branch,
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
        time_known=row.updated_at != UNDATED,
        origin=row.origin or "weft",
        head_event=row.head_events,
        chosen_compaction=row.compaction,
        is_subagent=_is_subagent(row),
        parent_session=parents.get(row.parent_session) if row.parent_session else None,
        parent_turn_id=row.parent_turn,
        spawn_tool_call_id=row.spawn_call_name,
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
    found = [session_of_number(txn, n) for n in sorted(numbers)]
    return [row for row in found if row is not None]


_BELOW = (
    "WITH RECURSIVE below(segment, depth) AS (SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) UNION ALL"
    " SELECT s.n, s.base FROM below b JOIN segment s ON s.parent = b.segment AND s.parent_depth >= b.depth)"
)
_STOOD_BELOW = (
    f"{_BELOW} SELECT s.n FROM below b JOIN session s ON s.head_segment = b.segment AND s.head_depth >= b.depth"
    " UNION SELECT d.session FROM below b JOIN departure d ON d.segment = b.segment AND d.depth >= b.depth"
)
NAME_LETTERS = 6
_COLUMNS = (
    "SELECT s.id, s.label, b.tip, b.replica, b.head, b.head_events, b.changed_at, s.n FROM branch b"
    " JOIN session s ON s.n = b.session"
)


_ALIASES = (
    "SELECT a.alias, s.label, s.id, a.reason, s.n FROM alias a JOIN session s ON s.n = a.session"
    " WHERE s.status <> 'deleted'"
)


def load_aliases(txn: ReadTxn, session: int | None = None) -> list[SessionAlias]:
    """Other names of one session, or of all that can be read, in the order of the names."""
    which, values = ("", ()) if session is None else (" AND a.session = ?", (session,))
    rows, access = txn.sql.all(f"{_ALIASES}{which} ORDER BY a.alias", values), access_of(txn)
    return [
        SessionAlias(alias=alias, session=label, session_id=id, reason=reason)
        for alias, label, id, reason, n in rows
        if access.is_unlimited or access.session_of_number(n) is not None
    ]


def load_branches(txn: ReadTxn, session: int | None = None) -> list[Branch]:
    """Other replicas' branches, of one session or of all that can be read; the newest first."""
    where, values = ("", ()) if session is None else (" WHERE b.session = ?", (session,))
    rows, access = txn.sql.all(f"{_COLUMNS}{where} ORDER BY b.n DESC", values), access_of(txn)
    return [_branch(row) for row in rows if access.is_unlimited or access.session_of_number(row[-1]) is not None]


def _branch(row: Row) -> Branch:
    session, label, tip, replica, head, events, changed_at, _ = row
    return Branch(
        session_id=session,
        label=label,
        name=f"{(replica or session)[-NAME_LETTERS:].lower()}/{label}",
        replica=replica,
        head=head,
        head_event=events,
        changed_at=changed_at,
        tip=bytes(tip).hex(),
    )


def find_branch(txn: ReadTxn, name: str) -> Branch | None:
    """The newest branch of this name."""
    replica, _, label = name.partition("/")
    if len(replica) != NAME_LETTERS or not label:
        return None
    return next((found for found in load_branches(txn) if found.name == name), None)
