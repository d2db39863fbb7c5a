"""Workers: sessions that a tool call of a turn starts, and how their answers reach whoever spawned them.

A worker is spawned with its first message in one transaction; the same call again finds the same worker. Its answers
are kept until a call of the spawning turn brings them. Where that turn is over, they go to the inbox of its session, in
the transaction that ends the later of the two turns. A spawning turn that fails or is cut short takes its workers down
with it, and theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.dag_events import ToolCallRequested
from weft.kernel.enums import (
    AgentRole,
    InboxState,
    InterruptionReason,
    MessageSource,
    QueueMode,
    WorkerAnswerState,
)
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.events import run_stream
from weft.kernel.fields import EventRef, ImageFact, PartFact, TextFact
from weft.kernel.ledger_events import MessageAdmitted, MessageCancelled, WorkersAnswered
from weft.ledger.arguments import checked_label
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.request_inputs import messages_named
from weft.ledger.runs.admission import ensure_room, scope_of
from weft.ledger.runs.inbox import own_queue, own_run, run_principals
from weft.ledger.runs.model import EndedRun, QueueLimits, RecordedEvent
from weft.ledger.runs.run_responses import response_of
from weft.ledger.runs.turn_commands import cut_open_turn
from weft.ledger.sessions.heads import stream_of
from weft.ledger.views.recorded_events import run_events
from weft.ledger.views.rows import SessionRow, TurnRow, load_turn
from weft.ledger.views.values import json_of, text_of
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter
from weft.ledger.write.commands import Answer, keyed_command, once
from weft.ledger.write.placement import create_session
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents, own_names
from weft.store.sql import Sql, rows_in

MAX_WORKER_DEPTH = 3
"""A worker of a worker of a worker spawns nobody."""
MAX_WORKERS = 64
"""So many workers may one turn spawn."""
MAX_TASKS = 256
"""So many messages may workers be sent, at every depth together, until somebody else than an agent speaks to the
session at the top: a spawner that is told what they answered may begin again, and would without end."""
ROUTE = "worker"


class NewWorker(Struct, frozen=True, kw_only=True):
    """A worker that a call of an open turn asks for. `constraints` say what it may do at most, beside its spawner."""

    turn: str
    call: str
    """The event of the tool call."""
    task: str
    name: str | None = None
    constraints: Any = None


class Worker(Struct, frozen=True, kw_only=True):
    """A worker's session as it is now."""

    session: str
    label: str
    parent_session: str
    parent_turn: str
    depth: int
    role: str | None
    is_idle: bool
    """Whether nothing waits in its inbox and no turn of it is open."""
    ready: tuple[str, ...] = ()
    """Answers that did not reach the spawner yet: turns, or messages that no turn could answer."""
    constraints: Any = None


class WorkerReply(Struct, frozen=True, kw_only=True):
    """What a worker answered, and how its turn ended: completed, failed, interrupted or not_begun."""

    id: str
    status: str
    text: str = ""
    error: str | None = None
    is_untrusted: bool = False


def find_worker(txn: ReadTxn, session: str) -> Worker | None:
    """A worker of this ledger, by its session's id."""
    row = txn.sql.one(
        "SELECT w.session, s.label, w.parent_session, w.parent_turn, w.depth, w.role, w.constraints, w.n, w.replica,"
        " s.n FROM worker w JOIN session s ON s.id = w.session WHERE w.session = ?",
        (session,),
    )
    if row is None or not OwnEvents(txn.sql).has(row[7], row[8]):
        return None
    return Worker(
        session=row[0],
        label=row[1],
        parent_session=row[2],
        parent_turn=row[3],
        depth=row[4],
        role=row[5],
        is_idle=is_idle(txn.sql, row[9]),
        ready=tuple(ready_answers(txn.sql, session)),
        constraints=None if row[6] is None else json_of(txn, row[6]),
    )


def workers_of_session(txn: ReadTxn, session: str) -> list[Worker]:
    """The workers that turns of a session spawned, in their order."""
    rows = txn.sql.all("SELECT session FROM worker WHERE parent_session = ? ORDER BY n", (session,))
    workers = (find_worker(txn, str(worker)) for (worker,) in rows)
    return [worker for worker in workers if worker is not None]


def workers_below(sql: Sql, sessions: Sequence[str]) -> set[str]:
    """The sessions of all workers of these sessions, and of their workers."""
    below: set[str] = set()
    above = [*sessions]
    while above:
        rows = sql.all("SELECT session FROM worker WHERE parent_session = ?", (above.pop(),))
        fresh = {str(session) for (session,) in rows} - below
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


def worker_turns(sql: Sql, session: str, after: int) -> list[str]:
    """The turns of all workers below a session that began behind an arrival number."""
    query = "SELECT t.id, t.n FROM turn t JOIN session s ON s.n = t.session WHERE s.id IN"
    rows = rows_in(sql, query, sorted(workers_below(sql, [session])))
    return [str(turn) for turn, n in rows if n > after]


def worker_reply(txn: ReadTxn, answer: str) -> WorkerReply:
    """What a worker answered: by its turn, or by the message that no turn answered."""
    row = load_turn(txn.sql, answer)
    if row is None:
        (error,) = txn.sql.one("SELECT error FROM inbox WHERE message = ?", (answer,)) or (None,)
        reason = None if error is None else text_of(txn, error)
        return WorkerReply(id=answer, status="not_begun", error=reason or "its message was cancelled")
    messages = [] if row.response is None else messages_named(txn, [row.response])
    return WorkerReply(
        id=answer,
        status="interrupted" if row.interrupted is not None else row.status,
        text="".join(message.text for message in messages),
        error=None if row.error is None else text_of(txn, row.error),
        is_untrusted=bool(row.untrusted),
    )


def is_idle(sql: Sql, session: int) -> bool:
    """Whether nothing waits in the inbox of a session, by its number, and no turn is open there that is this ledger's
    to answer."""
    if own_run(sql, session) is not None:
        return False
    own, values = own_queue(sql, "i")
    query = f"SELECT 1 FROM inbox i WHERE i.session = ? AND i.state = 'queued' AND {own} LIMIT 1"
    return sql.one(query, (session, *values)) is None


def ready_answers(sql: Sql, session: str) -> list[str]:
    rows = sql.all(
        "SELECT turn FROM worker_answer WHERE worker = ? AND state = ? ORDER BY n",
        (session, WorkerAnswerState.READY.value),
    )
    return [str(turn) for (turn,) in rows]


def is_answered(sql: Sql, workers: Iterable[tuple[str, int]], *, is_any: bool) -> bool:
    """Whether a call need not wait any more for workers, given as ids and numbers of their sessions: all of them are
    done, or one that has an answer where one is enough."""
    idle = [session for session, number in workers if is_idle(sql, number)]
    if is_any and any(ready_answers(sql, session) for session in idle):
        return True
    return len(idle) == len(list(workers))


# --- spawning ------------------------------------------------------------------------------------------------------


def spawn(writer: LedgerWriter, new: NewWorker, limits: QueueLimits) -> str:
    """Make a worker's session and give it its task; the session's id. The same call again gives the same worker."""

    def work(append: Append) -> str:
        spawned = [session for session, call in _workers_of_turn(append, new.turn) if call == new.call]
        if spawned:
            return spawned[0]
        session = _add_worker(append, new)
        _add_message(append, session, new.task, _principals(append, new.turn), limits, turn=new.turn)
        append.seal()
        return session.id

    return writer.write(work)


def _workers_of_turn(append: Append, turn: str) -> list[tuple[str, str]]:
    """The workers that a turn of this ledger spawned: their sessions, each with the event of its call."""
    own = OwnEvents(append.sql)
    rows = append.sql.all("SELECT session, call, n, replica FROM worker WHERE parent_turn = ?", (turn,))
    return [(str(session), str(call)) for session, call, n, replica in rows if own.has(n, replica)]


def _add_worker(append: Append, new: NewWorker) -> SessionRow:
    turn = append.view.turn(new.turn)
    parent = None if turn.session is None else append.view.session_of_number(turn.session)
    if parent is None or turn.closed:
        raise NotApplicable(f"turn {new.turn} is over", "only an open turn spawns workers")
    (depth,) = append.sql.one("SELECT depth FROM worker WHERE session = ?", (parent.id,)) or (0,)
    if depth >= MAX_WORKER_DEPTH:
        raise NotApplicable(f"workers spawn workers {MAX_WORKER_DEPTH} deep at most", "do it yourself")
    count = len(_workers_of_turn(append, turn.id))
    if count >= MAX_WORKERS:
        raise NotApplicable(f"this turn has spawned {count} workers", f"{MAX_WORKERS} are the most")
    (earlier,) = append.sql.one("SELECT count(*) FROM worker WHERE parent_session = ?", (parent.id,)) or (0,)
    contents = append.ledger_contents
    label = _free_label(append, checked_label(f"worker:{parent.label}:{new.name or earlier + 1}", "worker's label"))
    with append.in_name_of(_makers(append, parent)):
        return create_session(
            append,
            label,
            persona=parent.persona,
            actor=DEFAULT_AGENT,
            routing_key=contents.put_text(label, "routing key"),
            parent_session=parent.id,
            parent_turn=turn.id,
            spawn_tool_call=_call_id(append, turn, new.call),
            task_description=contents.put_text(new.task, "task"),
            spawned_by=EventRef(new.call),
            role=AgentRole.WORKER,
            constraints=UNSET if new.constraints is None else contents.put_json(new.constraints, "constraints"),
        )


def _free_label(append: Append, label: str) -> str:
    number, free = 1, label
    while append.view.find_session(free) is not None:
        number += 1
        free = f"{label}-{number}"
    return free


def _makers(append: Append, parent: SessionRow) -> tuple[str, ...]:
    """A worker's session belongs to those whose the spawner's is."""
    return tuple(sorted(append.access.session_creators(parent))) or (DEFAULT_AGENT,)


def _call_id(append: Append, turn: TurnRow, call: str) -> str:
    """The content that is the provider's id of a call."""
    for one in run_events(append.txn.facts, turn):
        if one.id == call and isinstance(one.event, ToolCallRequested):
            return one.event.call_id
    raise NotFound("tool call", call)


def _principals(append: Append, turn: str) -> tuple[str, ...]:
    """In whose name a turn speaks to its workers: its agent's, and of everybody on whose behalf it runs."""
    row = append.view.turn(turn)
    behind = run_principals(append.txn.facts, row.n)
    return (row.persona, *behind) if row.persona != DEFAULT_AGENT else behind or (DEFAULT_AGENT,)


def send_to_worker(writer: LedgerWriter, turn: str, session: str, text: str, call: str, limits: QueueLimits) -> None:
    """Another message to a worker of an open turn's session. The same call again sends nothing."""
    command = keyed_command("message_worker", call, [turn, session, text])

    def send(append: Append) -> Answer:
        worker_row = find_worker(ReadTxn(append.sql, append.txn.facts), session)
        row = append.view.turn(turn)
        spawner = None if row.session is None else append.view.session_of_number(row.session)
        if spawner is None or worker_row is None or worker_row.parent_session != spawner.id:
            raise NotFound("worker", session, "name one that this session spawned")
        worker = append.view.session(session)
        return Answer(_add_message(append, worker, text, _principals(append, turn), limits, turn=turn))

    def work(append: Append) -> None:
        once(append, command, partial(send, append))
        append.seal()

    writer.write(work)


def _add_message(
    append: Append,
    session: SessionRow,
    text: str,
    senders: tuple[str, ...],
    limits: QueueLimits,
    *,
    turn: str,
) -> str:
    """Write a message of a turn to a worker's inbox; the message's id."""
    ensure_room(append, session, limits)
    _ensure_tasks_left(append, session)
    message = append.ulids.mint(MESSAGE_ROOM + 1)
    events = TurnEvents(append, message, actor=DEFAULT_AGENT, scope=scope_of(message))
    is_untrusted = bool(append.view.turn(turn).untrusted)
    with append.in_name_of(senders):
        stream_of(append, session, DEFAULT_AGENT).add(
            MessageAdmitted,
            message=message,
            mode=QueueMode.FOLLOWUP,
            parts=events.parts(text),
            source=MessageSource.AGENT,
            route=events.contents.put_json({ROUTE: session.label, "spawner": turn}, "route"),
            untrusted=is_untrusted or UNSET,
        )
    return message


def _ensure_tasks_left(append: Append, worker: SessionRow) -> None:
    """Refuse another message to a worker where all of the session at the top have been sent as many as they may be."""
    sql, top, names = append.sql, top_session(append.sql, worker.id), tuple(own_names(append.sql))
    own = f"replica IN ({', '.join('?' * len(names))})"
    number = append.view.session(top).n
    query = f"SELECT max(n) FROM inbox WHERE session = ? AND coalesce(source, '') <> ? AND {own}"
    (since,) = sql.one(query, (number, MessageSource.AGENT.value, *names)) or (None,)
    (count,) = sql.one(
        f"WITH RECURSIVE below(id) AS (SELECT session FROM worker WHERE parent_session = ? AND {own}"
        f" UNION SELECT w.session FROM worker w JOIN below b ON w.parent_session = b.id WHERE w.{own})"
        " SELECT count(*) FROM inbox i JOIN session s ON s.n = i.session JOIN below b ON b.id = s.id WHERE i.n > ?",
        (top, *names, *names, since or 0),
    ) or (0,)
    if count >= MAX_TASKS:
        raise NotApplicable(f"workers were sent {count} messages", f"{MAX_TASKS} are the most until a person speaks")


# --- answers -------------------------------------------------------------------------------------------------------


def settle_workers(append: Append, run: EndedRun) -> None:
    """What the end of a turn means for its workers, and for whoever spawned the one that it was."""
    if run.turn is not None:
        _settle_own_workers(append, run, run.turn)
    tell_spawner(append, run.session, run.events)


def _settle_own_workers(append: Append, run: EndedRun, turn: str) -> None:
    own = OwnEvents(append.sql)
    rows = append.sql.all(
        "SELECT session, parent_turn, n, replica FROM worker WHERE parent_session = ? ORDER BY n", (run.session,)
    )
    for id, spawner, n, replica in rows:
        if own.has(n, replica):
            session = append.view.session(str(id))
            if not _is_cut(append.view.turn(spawner)):
                _send_answers(append, session, append.view.session(run.session))
            elif spawner == turn:
                _cancel(append, session)


def _is_cut(turn: TurnRow) -> bool:
    """Whether a turn that is over failed, or was cut short."""
    return bool(turn.closed) and (turn.status != "completed" or turn.interrupted is not None)


def _cancel(append: Append, session: SessionRow) -> None:
    """Take what waits out of a worker's inbox, and have its open turn cut short; its own workers follow at its end."""
    rows = append.sql.all(
        "SELECT message FROM inbox WHERE session = ? AND state = ? ORDER BY n", (session.n, InboxState.QUEUED.value)
    )
    with append.by_the_ledger():
        for (message,) in rows:
            reason = append.put_text("the turn that spawned it is over", "reason")
            stream_of(append, append.view.session(session.id), DEFAULT_AGENT).add(
                MessageCancelled, message=message, reason=reason
            )
        cut_open_turn(append, session, InterruptionReason.CANCELED)


def tell_spawner(append: Append, session: str, fresh: Sequence[RecordedEvent] = ()) -> None:
    """A worker's turn is over, or a message of its was cancelled: wake the call that waits for it, or send its answers
    where no turn is open that could wait. `fresh` are the events that this transaction added to the turn."""
    row = append.sql.one("SELECT parent_session, parent_turn, n, replica FROM worker WHERE session = ?", (session,))
    if row is None or not OwnEvents(append.sql).has(row[2], row[3]):
        return
    parent = append.view.session(row[0])
    if own_run(append.sql, parent.n) is None:
        if not _is_cut(append.view.turn(row[1])):
            _send_answers(append, append.view.session(session), parent, fresh)
        return
    calls = append.sql.all("SELECT DISTINCT turn, call FROM awaiting WHERE worker = ?", (session,))
    with append.by_the_ledger():
        for id, call in calls:
            _wake(append, append.view.turn(id), call)


def answers_for(append: Append, workers: Sequence[str], *, is_any: bool) -> tuple[str, ...] | None:
    """The answers that workers, by the ids of their sessions, have for a call; None where it has still to wait."""
    sessions = [(worker, append.view.session(worker).n) for worker in workers]
    if not is_answered(append.sql, sessions, is_any=is_any):
        return None
    return tuple(answer for worker in workers for answer in ready_answers(append.sql, worker))


def _wake(append: Append, turn: TurnRow, call: str) -> None:
    """Let a parked turn go on, where the workers have answered that one of its calls waits for."""
    rows = append.sql.all(
        "SELECT worker, is_any FROM awaiting WHERE turn = ? AND call = ? ORDER BY worker", (turn.id, call)
    )
    answers = answers_for(append, [str(worker) for worker, _ in rows], is_any=bool(rows[0][1]))
    if answers is not None:
        stream = append.stream(run_stream(turn.id), turn.digest, turn.persona)
        stream.add(WorkersAnswered, call=EventRef(call), turns=answers)


def _send_answers(append: Append, worker: SessionRow, parent: SessionRow, fresh: Sequence[RecordedEvent] = ()) -> None:
    """Put a worker's answers into the inbox of the session that spawned it, one message for each."""
    for answer in ready_answers(append.sql, worker.id):
        message = append.ulids.mint(MESSAGE_ROOM + 1)
        events = TurnEvents(append, message, actor=DEFAULT_AGENT, scope=scope_of(message))
        turn = append.view.find_turn(answer)
        parts, how = _answer_parts(append, turn, fresh)
        prefix = events.parts(f"Worker {worker.label} {how}")
        with append.in_name_of(_principals(append, answer) if turn is not None else (DEFAULT_AGENT,)):
            stream_of(append, append.view.session(parent.id), DEFAULT_AGENT).add(
                MessageAdmitted,
                message=message,
                mode=QueueMode.FOLLOWUP,
                parts=(*prefix, *parts),
                source=MessageSource.AGENT,
                route=events.contents.put_json({ROUTE: worker.label, "answer": answer}, "route"),
                worker=answer,
                untrusted=(turn is not None and bool(turn.untrusted)) or UNSET,
            )


def _answer_parts(
    append: Append, turn: TurnRow | None, fresh: Sequence[RecordedEvent]
) -> tuple[Sequence[PartFact], str]:
    """What a worker said, by reference, and how its turn ended."""
    if turn is None:
        return (), "could not begin: its message is dead or was cancelled."
    fact = response_of(append, turn.id, fresh)
    parts = () if fact is None else tuple(part for part in fact.parts if isinstance(part, TextFact | ImageFact))
    if turn.status == "completed":
        return parts, "answered:" if turn.interrupted is None else "was interrupted; it had said:"
    return parts, "failed." if not parts else "failed; it had said:"
