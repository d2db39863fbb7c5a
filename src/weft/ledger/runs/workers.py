"""Workers: sessions that a tool call of a turn started, as they are now, and those that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.enums import WorkerAnswerState
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.runs.inbox import own_queue, own_run, run_principals
from weft.ledger.views.values import json_of
from weft.ledger.write.append import Append
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql, rows_in

ROUTE = "worker"


class Worker(Struct, frozen=True, kw_only=True):
    """A worker's session as it is now."""

    session: str
    label: str
    parent_session: str
    depth: int
    is_idle: bool
    """Whether nothing waits in its inbox and no turn of it is open."""
    ready: tuple[str, ...] = ()
    """Answers that did not reach the spawner yet: turns, or messages that no turn could answer."""
    constraints: Any = None


def find_worker(txn: ReadTxn, session: str) -> Worker | None:
    """A worker of this ledger, by its session's id."""
    row = txn.sql.one(
        "SELECT s.label, w.parent_session, w.depth, w.constraints, s.n, w.n, w.replica"
        " FROM worker w JOIN session s ON s.id = w.session WHERE w.session = ?",
        (session,),
    )
    if row is None or not OwnEvents(txn.sql).has(row[5], row[6]):
        return None
    return Worker(
        session=session,
        label=row[0],
        parent_session=row[1],
        depth=row[2],
        is_idle=is_idle(txn.sql, row[4]),
        ready=tuple(ready_answers(txn.sql, session)),
        constraints=None if row[3] is None else json_of(txn, row[3]),
    )


def workers_of_session(txn: ReadTxn, session: str) -> list[Worker]:
    """The workers that turns of a session spawned, in their order."""
    rows = txn.sql.all("SELECT session FROM worker WHERE parent_session = ? ORDER BY n", (session,))
    workers = (find_worker(txn, str(worker)) for (worker,) in rows)
    return [worker for worker in workers if worker is not None]


def workers_below(sql: Sql, sessions: Sequence[str]) -> set[str]:
    """The sessions of all workers of these sessions, and of their workers: those that this ledger spawned."""
    below: set[str] = set()
    above, own = [*sessions], OwnEvents(sql)
    while above:
        rows = sql.all("SELECT session, n, replica FROM worker WHERE parent_session = ?", (above.pop(),))
        fresh = {str(session) for session, n, replica in rows if own.has(n, replica)} - below
        below |= fresh
        above += fresh
    return below


def top_session(sql: Sql, session: str) -> str:
    """The session that a worker's spawner, or the spawner of that, answers in and that is no worker's itself; of any
    other session, itself."""
    own = OwnEvents(sql)
    query = "SELECT parent_session, n, replica FROM worker WHERE session = ?"
    while (row := sql.one(query, (session,))) is not None and own.has(row[1], row[2]):
        session = str(row[0])
    return session


def work_turns(sql: Sql, session: str, after: int) -> list[str]:
    """The turns that took messages which a session got behind an arrival number, and those of all workers below it that
    began behind it."""
    asked = sql.all(
        "SELECT DISTINCT i.turn FROM inbox i JOIN session s ON s.n = i.session"
        " WHERE s.id = ? AND i.n > ? AND i.turn IS NOT NULL",
        (session, after),
    )
    query = "SELECT t.id, t.n FROM turn t JOIN session s ON s.n = t.session WHERE s.id IN"
    below = rows_in(sql, query, sorted(workers_below(sql, [session])))
    return [*(str(turn) for (turn,) in asked), *(str(turn) for turn, n in below if n > after)]


def is_idle(sql: Sql, session: int) -> bool:
    """Whether nothing waits in the inbox of a session, by its number, and no turn is open there that is this ledger's
    to answer."""
    if own_run(sql, session) is not None:
        return False
    own, values = own_queue(sql, "i")
    query = f"SELECT 1 FROM inbox i WHERE i.session = ? AND i.state = 'queued' AND {own} LIMIT 1"
    return sql.one(query, (session, *values)) is None


def have_answered(workers: Sequence[Worker], *, is_any: bool) -> bool:
    """Whether a call need not wait any more for workers: all of them are done, or one that has an answer where one is
    enough."""
    idle = [worker for worker in workers if worker.is_idle]
    return len(idle) == len(workers) or (is_any and any(worker.ready for worker in idle))


def ready_answers(sql: Sql, session: str) -> list[str]:
    rows = sql.all(
        "SELECT turn FROM worker_answer WHERE worker = ? AND state = ? ORDER BY n",
        (session, WorkerAnswerState.READY.value),
    )
    return [str(turn) for (turn,) in rows]


def turn_senders(append: Append, turn: str) -> tuple[str, ...]:
    """In whose name a turn speaks to its workers: its agent's, and of everybody on whose behalf it runs."""
    row = append.view.turn(turn)
    behind = run_principals(append.txn.facts, row.n)
    return (row.persona, *behind) if row.persona != DEFAULT_AGENT else behind or (DEFAULT_AGENT,)
