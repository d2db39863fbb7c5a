"""Messages of inboxes read back, and what a broker can do now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import orjson
from msgspec import UNSET, UnsetType

from weft.kernel.advice import Action
from weft.kernel.enums import InboxState, OpenRunState
from weft.kernel.errors import FactDamaged, NotFound
from weft.kernel.ledger_events import MessageAdmitted
from weft.ledger.model import DEFAULT_AGENT, FileNote
from weft.ledger.read.agent_shares import is_private, users_of_agent
from weft.ledger.read.principals import on_behalf_of
from weft.ledger.read.turns import to_part
from weft.ledger.runs.model import InboxMessage, SessionStanding, WaitingSession
from weft.ledger.views.lease_rows import LEASE_COLUMNS, Lease, LeaseKind
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.recorded_events import decoded, fields_of
from weft.ledger.views.rows import load_session
from weft.ledger.views.runs import part_columns
from weft.ledger.views.values import text_of
from weft.ledger.write.append import Patience
from weft.store.authorship import is_written_here
from weft.store.facts import FactReader
from weft.store.owners import is_dead
from weft.store.port import ReadTxn
from weft.store.replica_names import last_copied_event, own_names
from weft.store.sql import Sql

_SELECT = (
    "SELECT i.message, i.n, s.label, s.id, i.state, i.mode, i.priority, i.sender, i.source, i.turn, i.admitted_at,"
    " i.settled_at, i.error, i.again FROM inbox i JOIN session s ON s.n = i.session"
)
_ORDER = "ORDER BY i.priority DESC, i.n"
QUEUE_SHOWN = 256
"""So many waiting messages of a session are looked at together."""


def load_message(txn: ReadTxn, message: str) -> InboxMessage:
    row = txn.sql.one(f"{_SELECT} WHERE i.message = ?", (message,))
    if row is None:
        raise NotFound("message", message, Action.LIST_INBOX)
    return _to_message(txn, row)


def message_state(txn: ReadTxn, message: str) -> tuple[str, bool]:
    """The state of a message, and whether it waits for another ledger's brokers."""
    row = txn.sql.one("SELECT state, n, replica FROM inbox WHERE message = ?", (message,))
    if row is None:
        raise NotFound("message", message, Action.LIST_INBOX)
    state, n, replica = row
    return state, state == InboxState.QUEUED and not _is_answered_here(txn, n, replica)


def answering_turn(txn: ReadTxn, message: str) -> str | None:
    """The turn that took a message; None where none did."""
    row = txn.sql.one("SELECT turn FROM inbox WHERE message = ?", (message,))
    return None if row is None else row[0]


def queued_messages(txn: ReadTxn, session: int, most: int) -> list[InboxMessage]:
    """What waits in a session, in the order in which it is answered; only what was admitted here. At most so many of
    each name of this ledger, unless one of them interrupts."""
    query = f"{_SELECT} WHERE i.session = ? AND i.state = 'queued' AND i.replica = ? AND i.n > ? {_ORDER}"
    messages: list[InboxMessage] = []
    after = last_copied_event(txn.sql)
    for replica, last in own_names(txn.sql).items():
        interrupting = txn.sql.one(
            "SELECT 1 FROM inbox"
            " WHERE session = ? AND state = 'queued' AND mode = 'interrupt' AND replica = ? AND n > ?",
            (session, replica, after),
        )
        limit = "" if interrupting else f" LIMIT {most}"  # an interrupting message takes all with it
        rows = txn.sql.all(query + limit, (session, replica, after))
        messages += [_to_message(txn, row) for row in rows if last is None or row[1] <= last]
    return sorted(messages, key=lambda message: (-message.priority, message.n))


def taken_messages(txn: ReadTxn, turn: str) -> list[InboxMessage]:
    """What a turn was begun for or took up, in order of arrival."""
    return [_to_message(txn, row) for row in txn.sql.all(f"{_SELECT} WHERE i.turn = ? ORDER BY i.n", (turn,))]


def listed_messages(
    txn: ReadTxn, states: Sequence[str], session: int | None, limit: int, after: int
) -> list[InboxMessage]:
    """Messages in some states, the oldest first, behind an arrival number."""
    marks = ", ".join("?" * len(states))
    where = f"i.state IN ({marks}) AND i.n > ?" + (" AND i.session = ?" if session is not None else "")
    values = (*states, after, *(() if session is None else (session,)), limit)
    return [_to_message(txn, row) for row in txn.sql.all(f"{_SELECT} WHERE {where} ORDER BY i.n LIMIT ?", values)]


def admission_event(facts: FactReader, n: int) -> MessageAdmitted:
    """The event of this number, which admitted a message."""
    line = facts.line(n)
    event = None if line is None else decoded(n, line)
    if not isinstance(event, MessageAdmitted):
        raise FactDamaged("event number", str(n), "it admits no message")
    return event


def ensure_works_for(txn: ReadTxn, agent: str, message: str) -> None:
    """Refuse an agent that does not work for everybody in whose name a message was sent, as one that does not exist."""
    row, admitted = load_program(txn.sql, agent), txn.sql.one("SELECT n FROM inbox WHERE message = ?", (message,))
    if row is None or admitted is None:
        return
    event = admission_event(txn.facts, admitted[0])
    senders = {event.actor, *(() if event.on_behalf_of is UNSET else event.on_behalf_of)}
    senders -= {DEFAULT_AGENT, event.trigger}  # a trigger has no rights of its own: whoever it acts for is asked
    if is_private(txn, row) and not users_of_agent(txn, row).issuperset(senders):
        raise NotFound("agent", row.name, Action.LIST_PROGRAMS)


def _to_message(txn: ReadTxn, row: Sequence[Any]) -> InboxMessage:
    message, n, label, session, state, mode, priority, sender, source, turn, at, settled, error, again = row
    event = admission_event(txn.facts, n)
    return InboxMessage(
        id=message,
        n=n,
        session=label,
        session_id=session,
        state=state,
        is_elsewhere=state == InboxState.QUEUED and not _is_answered_here(txn, n, event.replica),
        mode=mode,
        priority=priority,
        sender=sender,
        on_behalf_of=() if event.on_behalf_of is UNSET else event.on_behalf_of,
        source=source,
        content=tuple(to_part(txn, part_columns(ReferenceNumbers(txn), part)) for part in event.parts),
        files=_files(txn, event),
        context=_json(txn, event.context),
        metadata=_json(txn, event.metadata),
        overrides=_json(txn, event.overrides),
        route=_json(txn, event.route),
        trigger=None if event.trigger is UNSET else event.trigger,
        source_event_id=_text(txn, event.source_event),
        turn=turn,
        admitted_at=at,
        settled_at=settled,
        error=text_of(txn, error),
        again=again,
    )


class ReferenceNumbers:
    """Contents by their references, for whoever makes columns of parts."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn

    def number(self, ref: str) -> int:
        return self._txn.facts.find_content(bytes.fromhex(ref)) or 0


def _files(txn: ReadTxn, event: MessageAdmitted) -> tuple[FileNote, ...]:
    return tuple(
        FileNote(
            kind=file.kind,
            path=_text(txn, file.path) or "",
            line_start=None if file.line_start is UNSET else file.line_start,
            line_end=None if file.line_end is UNSET else file.line_end,
        )
        for file in (() if event.files is UNSET else event.files)
    )


def _text(txn: ReadTxn, ref: str | UnsetType) -> str | None:
    return None if ref is UNSET else text_of(txn, ReferenceNumbers(txn).number(ref))


def _json(txn: ReadTxn, ref: str | UnsetType) -> Any:
    text = _text(txn, ref)
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:  # erased: what is left of it is no JSON
        return None


def _is_answered_here(txn: ReadTxn, n: int, replica: object) -> bool:
    """Whether event `n` asks this ledger for something. In a copy that its origin is asked for is the origin's."""
    return n > last_copied_event(txn.sql) and is_written_here(txn.sql, n, replica)


def own_queue(sql: Sql, alias: str) -> tuple[str, tuple[Any, ...]]:
    """A condition on rows of the inbox, or of open runs as `o`, that are this ledger's to answer."""
    names = own_names(sql)
    number = "(SELECT begun.n FROM turn begun WHERE begun.id = o.turn)" if alias == "o" else f"{alias}.n"
    return f"{alias}.replica IN ({', '.join('?' * len(names))}) AND {number} > ?", (*names, last_copied_event(sql))


_RUN = "o.turn, o.state, o.until, t.interrupted, t.n"


def own_run(sql: Sql, session: int) -> tuple[Any, ...] | None:
    """The turn that a broker of this ledger has open in a session: its id, state and time limit, why it is to stop,
    and the arrival number of the event that began it."""
    condition, values = own_queue(sql, "o")
    return sql.one(
        f"SELECT {_RUN} FROM open_run o JOIN turn t ON t.id = o.turn WHERE o.session = ? AND {condition}",
        (session, *values),
    )


_LEASE = ", ".join(f"l.{column}" for column in LEASE_COLUMNS)


def run_principals(facts: FactReader, n: int) -> tuple[str, ...]:
    """In whose names a turn runs, as the event of this number says, which began it."""
    line = facts.line(n)
    return () if line is None else on_behalf_of(decoded(n, line))


def standing(txn: ReadTxn, session: str, is_stale: Callable[[Lease], bool], most: int) -> SessionStanding:
    """A session, by its id, as it is now, with the first `most` messages that wait there."""
    row = load_session(txn.sql, session)
    if row is None:
        raise NotFound("session", session, Action.LIST_SESSIONS)
    condition, values = own_queue(txn.sql, "o")
    found = txn.sql.one(
        f"SELECT (SELECT max(n) FROM erasure), (SELECT max(n) FROM substitution), {_RUN}, {_LEASE} FROM session s"
        f" LEFT JOIN open_run o ON o.session = s.n AND {condition} LEFT JOIN turn t ON t.id = o.turn"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id WHERE s.n = ?",
        (*values, LeaseKind.SESSION.value, row.n),
    )
    assert found is not None, "the session was just read"
    erasures, substitutions, turn, state, until, stop, since, *columns = found
    lease = Lease(*columns) if columns[0] is not None else None
    is_held = turn is None and lease is not None and lease.purpose is not None and not is_stale(lease)
    return SessionStanding(
        id=row.id,
        label=row.label,
        persona=row.persona,
        lifecycle=row.lifecycle,
        status=row.status,
        head=row.head,
        head_events=row.head_events,
        compaction=row.compaction,
        erasures=erasures or 0,
        substitutions=substitutions or 0,
        open_turn=turn,
        open_since=since,
        open_principals=() if since is None else run_principals(txn.facts, since),
        is_parked=state == OpenRunState.PARKED,
        parked_until=until,
        stop=stop,
        lease=lease if is_held else None,
        queued=tuple(queued_messages(txn, row.n, most)),
    )


def waiting_sessions(
    txn: ReadTxn, now_ms: int, limit: int, patience: Patience, own_turns: dict[str, bool]
) -> list[WaitingSession]:
    """Sessions with a turn that can go on or is to be cut short, then sessions where messages wait and no turn is
    open. Only what was begun or admitted here counts; `own_turns` keeps that of open turns between calls."""
    is_gone = cache(is_dead)

    def is_stale(lease: Lease) -> bool:
        return patience.judge_stale(lease, is_gone)

    return [
        *_waiting_turns(txn, now_ms, limit, is_stale, own_turns),
        *_waiting_queues(txn, limit, is_stale, is_gone),
    ]


def _waiting_turns(
    txn: ReadTxn, now_ms: int, limit: int, is_stale: Callable[[Lease], bool], own_turns: dict[str, bool]
) -> list[WaitingSession]:
    own_runs, run_values = own_queue(txn.sql, "o")
    own_messages, message_values = own_queue(txn.sql, "i")
    runs = txn.sql.all(
        f"SELECT s.id, o.turn, t.n, {_LEASE} FROM open_run o"
        " JOIN session s ON s.n = o.session JOIN turn t ON t.id = o.turn"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id"
        f" WHERE {own_runs} AND (o.state = 'running' OR o.until <= ? OR EXISTS (SELECT 1 FROM inbox i"
        f" WHERE i.session = o.session AND i.state = 'queued' AND i.mode = 'interrupt' AND i.n > t.n"
        f" AND {own_messages})) ORDER BY +t.n LIMIT ?",  # not by the index, along all turns: few of them are open
        (LeaseKind.SESSION.value, *run_values, now_ms, *message_values, limit),
    )
    was_own = dict(own_turns)
    own_turns.clear()
    waiting: list[WaitingSession] = []
    for session, turn, n, *lease in runs:
        is_held = _is_held(turn, lease, is_stale)
        if not is_held:
            own_turns[turn] = was_own[turn] if turn in was_own else _run_is_own(txn, n)
        if is_held or own_turns[turn]:
            waiting.append(WaitingSession(session, turn, 0, n, is_held, served_by=lease[2] if is_held else None))
    return waiting


def _waiting_queues(
    txn: ReadTxn, limit: int, is_stale: Callable[[Lease], bool], is_gone: Callable[[str], bool]
) -> list[WaitingSession]:
    own_runs, run_values = own_queue(txn.sql, "o")
    waiting: list[WaitingSession] = []
    for replica, last in own_names(txn.sql).items():
        queues = txn.sql.all(
            f"SELECT s.id, q.priority, q.n, q.amount, {_LEASE} FROM"
            " (SELECT session, max(priority) AS priority, min(n) AS n, count(*) AS amount FROM inbox"
            " WHERE state = 'queued' AND replica = ? AND n > ? GROUP BY session) q"
            " JOIN session s ON s.n = q.session LEFT JOIN lease l ON l.kind = ? AND l.key = s.id"
            f" WHERE s.lifecycle <> 'paused' AND s.status = 'active' AND NOT EXISTS (SELECT 1 FROM open_run o"
            f" WHERE o.session = s.n AND {own_runs}) ORDER BY q.priority DESC, q.n LIMIT ?",
            (replica, last_copied_event(txn.sql), LeaseKind.SESSION.value, *run_values, limit),
        )
        for session, priority, n, amount, *columns in queues:
            if last is not None and n > last:
                continue
            is_held, served_by = False, None
            if columns[0] is not None:
                lease = Lease(*columns)
                served_by = None if is_gone(lease.owner) else lease.owner
                is_held = lease.purpose is not None and not is_stale(lease)
            waiting.append(WaitingSession(session, None, priority, n, is_held, amount, served_by))
    return waiting


def _is_held(turn: str, columns: Sequence[Any], is_stale: Callable[[Lease], bool]) -> bool:
    """Whether somebody who is alive works on an open turn, or has its session for something else."""
    if columns[-1] is None:  # no lease, or nobody holds it
        return False
    lease = Lease(*columns)
    return lease.purpose != turn or not is_stale(lease)


def is_left(txn: ReadTxn, turn: str, is_stale: Callable[[Lease], bool]) -> bool:
    """Whether a broker's turn could go on, and nobody who is alive works on it."""
    lease = txn.sql.one(
        f"SELECT {_LEASE} FROM open_run o JOIN session s ON s.n = o.session"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id WHERE o.turn = ? AND o.state = 'running'",
        (LeaseKind.SESSION.value, turn),
    )
    return lease is not None and not _is_held(turn, lease, is_stale)


def sessions_to_attend(txn: ReadTxn, sessions: Sequence[str]) -> list[str]:
    """Those of the sessions, by their ids, where a message wants to enter or to interrupt the open turn, or somebody
    asked for it to be cut short."""
    marks = ", ".join("?" * len(sessions))
    rows = txn.sql.all(
        f"SELECT s.id FROM session s WHERE s.id IN ({marks}) AND ("
        "EXISTS (SELECT 1 FROM inbox i WHERE i.session = s.n AND i.state = 'queued'"
        " AND i.mode IN ('interrupt', 'steer'))"
        " OR EXISTS (SELECT 1 FROM open_run o JOIN turn t ON t.id = o.turn WHERE o.session = s.n"
        " AND t.interrupted IS NOT NULL))",
        tuple(sessions),
    )
    return [str(session) for (session,) in rows]


def _run_is_own(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and is_written_here(txn.sql, n, fields_of(n, line).get("replica"))


def next_due(txn: ReadTxn) -> int | None:
    """When the next parked turn can go on by itself."""
    condition, values = own_queue(txn.sql, "o")
    row = txn.sql.one(
        f"SELECT min(o.until) FROM open_run o WHERE o.state = 'parked' AND o.until IS NOT NULL AND {condition}",
        values,
    )
    return None if row is None or row[0] is None else int(row[0])
