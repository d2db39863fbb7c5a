"""Workers: sessions that a tool call of a turn started, as they are now; how calls start them
and send them messages; and how their answers reach whoever spawned them, each between marks that
tell its words from those of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.enums import (
    AgentRole,
    InboxState,
    InterruptionReason,
    MessageSource,
    QueueMode,
    SessionStatus,
    WorkerAnswerState,
)
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.events import EventRef, ImageFact, PartFact, TextFact, ToolCallRequested, run_stream
from weft.kernel.ledger_events import MessageAdmitted, MessageCancelled, WorkersAnswered
from weft.ledger.arguments import checked_label
from weft.ledger.broker.admission import cut_open_turn, ensure_room, scope_of
from weft.ledger.broker.inbox import (
    RIGHTS,
    EndedRun,
    QueueLimits,
    RecordedEvent,
    is_limited,
    own_queue,
    own_run,
    response_of,
    run_principals,
    taken_messages,
)
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.contexts import messages_named
from weft.ledger.read.sessions import to_sessions
from weft.ledger.views.rows import (
    SessionRow,
    TurnRow,
    json_of,
    load_session,
    load_session_number,
    load_turn,
    run_events,
    text_of,
)
from weft.ledger.write.sessions import stream_of
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, CommandAnswer, LedgerWriter, keyed_command, run_once
from weft.ledger.write.turn_events import TurnEvents, create_session
from weft.store.port import ReadTxn
from weft.store.replicas import OwnEvents, own_names
from weft.store.sql import Question, Sql, rows_in

# --- Marks between which the words of one speaker are told to a model, so that it can tell them from those of others.

MARK_DIGITS = 10


def content_mark(message: str, parts: Sequence[PartFact]) -> str:
    """The mark of a message, by its id and its texts and images."""
    texts_and_images = [part for part in parts if isinstance(part, TextFact | ImageFact)]
    refs = [part.text if isinstance(part, TextFact) else part.url for part in texts_and_images]
    return sha256("\n".join((message, *map(str, refs))).encode()).hexdigest()[:MARK_DIGITS]


# --- Workers: sessions that a tool call of a turn started, as they are now, and those that they belong to.

ROUTE = "worker"


class WorkerSession(Struct, frozen=True, kw_only=True):
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


def find_worker(txn: ReadTxn, session: str) -> WorkerSession | None:
    """A worker of this ledger, by its session's id."""
    row = txn.sql.fetch_row(
        "SELECT s.label, w.parent_session, w.depth, w.constraints, s.n, w.n, w.replica"
        " FROM worker w JOIN session s ON s.id = w.session WHERE w.session = ?",
        (session,),
    )
    if row is None or not OwnEvents(txn.sql).has(row[5], row[6]):
        return None
    return WorkerSession(
        session=session,
        label=row[0],
        parent_session=row[1],
        depth=row[2],
        is_idle=is_idle(txn.sql, row[4]),
        ready=tuple(ready_answers(txn.sql, session)),
        constraints=None if row[3] is None else json_of(txn, row[3]),
    )


class WorkerState(Struct, frozen=True, kw_only=True):
    """What a worker was told to do, and how far it is."""

    label: str
    task: str
    status: str
    """Pending, running, completed or failed."""
    has_answer: bool
    """Whether an answer of it waits that its spawner did not take yet."""


def worker_states(txn: ReadTxn, session: str) -> list[WorkerState]:
    """The same workers, as their spawner is told of them."""
    workers = workers_of_session(txn, session)
    rows = [load_session(txn.sql, worker.session) for worker in workers]
    sessions = to_sessions(txn, [row for row in rows if row is not None])
    by_id = {each.id: each for each in sessions}
    return [
        WorkerState(
            label=worker.label,
            task=by_id[worker.session].task_description or "",
            status=_status(worker, by_id[worker.session].task_status),
            has_answer=bool(worker.ready),
        )
        for worker in workers
        if worker.session in by_id
    ]


def _status(worker: WorkerSession, status: str | None) -> str:
    """One that was sent another message since its last turn is at work again."""
    return status or "pending" if worker.is_idle else "running" if status != "pending" else "pending"


def workers_of_session(txn: ReadTxn, session: str) -> list[WorkerSession]:
    """The workers that turns of a session spawned, in their order."""
    rows = txn.sql.fetch_rows("SELECT session FROM worker WHERE parent_session = ? ORDER BY n", (session,))
    workers = (find_worker(txn, str(worker)) for (worker,) in rows)
    return [worker for worker in workers if worker is not None]


def workers_below(sql: Sql, sessions: Sequence[str]) -> set[str]:
    """The sessions of all workers of these sessions, and of their workers: those that this ledger spawned."""
    below: set[str] = set()
    above, own = [*sessions], OwnEvents(sql)
    while above:
        rows = sql.fetch_rows("SELECT session, n, replica FROM worker WHERE parent_session = ?", (above.pop(),))
        fresh = {str(session) for session, n, replica in rows if own.has(n, replica)} - below
        below |= fresh
        above += fresh
    return below


def top_session(sql: Sql, session: str) -> str:
    """The session that a worker's spawner, or the spawner of that, answers in and that is no worker's itself; of any
    other session, itself."""
    own = OwnEvents(sql)
    query = "SELECT parent_session, n, replica FROM worker WHERE session = ?"
    while (row := sql.fetch_row(query, (session,))) is not None and own.has(row[1], row[2]):
        session = str(row[0])
    return session


def work_turns(sql: Sql, session: str, after: int) -> list[str]:
    """The turns that took messages which a session got behind an arrival number, and those of all workers below it that
    began behind it."""
    asked = sql.fetch_rows(
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
    return sql.fetch_row(query, (session, *values)) is None


def have_answered(workers: Sequence[WorkerSession], *, is_any: bool) -> bool:
    """Whether a call need not wait any more for workers: all of them are done, or one that has an answer where one is
    enough."""
    idle = [worker for worker in workers if worker.is_idle]
    return len(idle) == len(workers) or (is_any and any(worker.ready for worker in idle))


def ready_answers(sql: Sql, session: str) -> list[str]:
    rows = sql.fetch_rows(
        "SELECT turn FROM worker_answer WHERE worker = ? AND state = ? ORDER BY n",
        (session, WorkerAnswerState.READY.value),
    )
    return [str(turn) for (turn,) in rows]


def turn_senders(append: Append, turn: str) -> tuple[str, ...]:
    """In whose name a turn speaks to its workers: its agent's, and of everybody on whose behalf it runs."""
    row = append.view.turn(turn)
    behind = run_principals(append.txn.facts, row.n)
    return (row.persona, *behind) if row.persona != DEFAULT_AGENT else behind or (DEFAULT_AGENT,)


# --- Workers are spawned and sent messages by calls of open turns.

MAX_WORKER_DEPTH = 3
"""A worker of a worker of a worker spawns nobody."""
MAX_WORKERS = 64
"""So many workers may one turn spawn."""
MAX_TASKS = 256
"""So many messages may workers be sent, at every depth together, until somebody else than an agent speaks to the
session at the top: a spawner that is told what they answered may begin again, and would without end."""


class NewWorker(Struct, frozen=True, kw_only=True):
    """A worker that a call of an open turn asks for. `constraints` say what it may do at most, beside its spawner."""

    turn: str
    call: str
    """The event of the tool call."""
    task: str
    name: str | None = None
    constraints: Any = None


def spawn(writer: LedgerWriter, new: NewWorker, limits: QueueLimits) -> str:
    """Make a worker's session and give it its task; the session's id. The same call again gives the same worker."""

    def work(append: Append) -> str:
        spawned = [session for session, call in _workers_of_turn(append, new.turn) if call == new.call]
        if spawned:
            return spawned[0]
        session = _add_worker(append, new)
        _add_message(append, session, new.task, turn_senders(append, new.turn), limits, turn=new.turn)
        append.seal()
        return session.id

    return writer.write(work)


def _workers_of_turn(append: Append, turn: str) -> list[tuple[str, str]]:
    """The workers that a turn of this ledger spawned: their sessions, each with the event of its call."""
    own = OwnEvents(append.sql)
    rows = append.sql.fetch_rows("SELECT session, call, n, replica FROM worker WHERE parent_turn = ?", (turn,))
    return [(str(session), str(call)) for session, call, n, replica in rows if own.has(n, replica)]


def _add_worker(append: Append, new: NewWorker) -> SessionRow:
    turn = append.view.turn(new.turn)
    parent = None if turn.session is None else append.view.session_of_number(turn.session)
    if parent is None or turn.closed:
        raise NotApplicable(f"turn {new.turn} is over", "only an open turn spawns workers")
    (depth,) = append.sql.fetch_row("SELECT depth FROM worker WHERE session = ?", (parent.id,)) or (0,)
    if depth >= MAX_WORKER_DEPTH:
        raise NotApplicable(f"workers spawn workers {MAX_WORKER_DEPTH} deep at most", "do it yourself")
    count = len(_workers_of_turn(append, turn.id))
    if count >= MAX_WORKERS:
        raise NotApplicable(f"this turn has spawned {count} workers", f"{MAX_WORKERS} are the most")
    (earlier,) = append.sql.fetch_row("SELECT count(*) FROM worker WHERE parent_session = ?", (parent.id,)) or (0,)
    contents = append.ledger_contents
    label = _free_label(append, checked_label(f"worker:{parent.label}:{new.name or earlier + 1}", "worker's label"))
    with append.in_name_of(_session_makers(append, parent)):
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


def _session_makers(append: Append, parent: SessionRow) -> tuple[str, ...]:
    """A worker's session belongs to those whose the spawner's is."""
    return tuple(sorted(append.access.session_creators(parent))) or (DEFAULT_AGENT,)


def _call_id(append: Append, turn: TurnRow, call: str) -> str:
    """The content that is the provider's id of a call."""
    for one in run_events(append.txn.facts, turn):
        if one.id == call and isinstance(one.event, ToolCallRequested):
            return one.event.call_id
    raise NotFound("tool call", call)


def send_to_worker(writer: LedgerWriter, turn: str, session: str, text: str, call: str, limits: QueueLimits) -> None:
    """Another message to a worker of an open turn's session. The same call again sends nothing."""
    command = keyed_command("message_worker", call, [turn, session, text])

    def send(append: Append) -> CommandAnswer:
        worker_row = find_worker(ReadTxn(append.sql, append.txn.facts), session)
        row = append.view.turn(turn)
        spawner = None if row.session is None else append.view.session_of_number(row.session)
        if spawner is None or worker_row is None or worker_row.parent_session != spawner.id:
            raise NotFound("worker", session, "name one that this session spawned")
        worker = append.view.session(session)
        return CommandAnswer(_add_message(append, worker, text, turn_senders(append, turn), limits, turn=turn))

    def work(append: Append) -> None:
        run_once(append, command, partial(send, append))
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
    if session.status != SessionStatus.ACTIVE:
        raise NotApplicable(f"worker {session.label!r} is {session.status}", "spawn another one")
    ensure_room(append, session, limits)
    _ensure_tasks_left(append, session)
    message = append.ulids.mint(MESSAGE_ROOM + 1)
    events = TurnEvents(append, message, actor=DEFAULT_AGENT, scope=scope_of(message))
    is_untrusted = bool(append.view.turn(turn).untrusted)
    limits_of_turn = _limits_of_turn(append, turn)
    with append.in_name_of(senders):
        stream_of(append, session, DEFAULT_AGENT).add(
            MessageAdmitted,
            message=message,
            mode=QueueMode.FOLLOWUP,
            parts=events.parts(text),
            source=MessageSource.AGENT,
            route=events.contents.put_json({ROUTE: session.label, "spawner": turn}, "route"),
            overrides=UNSET if limits_of_turn is None else events.contents.put_json(limits_of_turn, "overrides"),
            untrusted=is_untrusted or UNSET,
        )
    return message


def _limits_of_turn(append: Append, turn: str) -> dict[str, Any] | None:
    """The rights that the messages of a turn were limited to, as overrides of what it has others do."""
    messages = taken_messages(ReadTxn(append.sql, append.txn.facts), turn)
    layers = [layer for message in messages if is_limited(message) for layer in message.overrides[RIGHTS]]
    return {RIGHTS: [layer for at, layer in enumerate(layers) if layer not in layers[:at]]} if layers else None


def _ensure_tasks_left(append: Append, worker: SessionRow) -> None:
    """Refuse another message to a worker where all of the session at the top have been sent as many as they may be."""
    sql, top, names = append.sql, top_session(append.sql, worker.id), tuple(own_names(append.sql))
    own = f"replica IN ({', '.join('?' * len(names))})"
    number = append.view.session(top).n
    query = f"SELECT max(n) FROM inbox WHERE session = ? AND coalesce(source, '') <> ? AND {own}"
    (since,) = sql.fetch_row(query, (number, MessageSource.AGENT.value, *names)) or (None,)
    (count,) = sql.fetch_row(
        f"WITH RECURSIVE below(id) AS (SELECT session FROM worker WHERE parent_session = ? AND {own}"
        f" UNION SELECT w.session FROM worker w JOIN below b ON w.parent_session = b.id WHERE w.{own})"
        " SELECT count(*) FROM below b CROSS JOIN session s CROSS JOIN inbox i"  # in this order: few sessions are below
        " WHERE s.id = b.id AND i.session = s.n AND i.n > ?",
        (top, *names, *names, since or 0),
    ) or (0,)
    if count >= MAX_TASKS:
        raise NotApplicable(f"workers were sent {count} messages", f"{MAX_TASKS} are the most until a person speaks")


# --- How the answers of workers reach whoever spawned them.

_OWN_WORKERS = "SELECT session, parent_turn, n, replica FROM worker WHERE parent_session = ? ORDER BY n"
_SPAWNER = "SELECT parent_session, parent_turn, n, replica FROM worker WHERE session = ?"


def worker_questions(session: str) -> list[Question]:
    """What `settle_workers` asks where a session, by its id, neither has workers nor is one."""
    return [(_OWN_WORKERS, (session,)), (_SPAWNER, (session,))]


class WorkerReply(Struct, frozen=True, kw_only=True):
    """What a worker answered, and how its turn ended: completed, failed, interrupted or not_begun."""

    id: str
    status: str
    text: str = ""
    error: str | None = None
    is_untrusted: bool = False


def worker_reply(txn: ReadTxn, answer: str) -> WorkerReply:
    """What a worker answered: by its turn, or by the message that no turn answered."""
    row = load_turn(txn.sql, answer)
    if row is None:
        number, error = txn.sql.fetch_row("SELECT session, error FROM inbox WHERE message = ?", (answer,)) or (
            None,
            None,
        )
        reason = None if error is None else text_of(txn, error)
        why = reason or _why_ended(load_session_number(txn.sql, number)) or "its message was cancelled"
        return WorkerReply(id=answer, status="not_begun", error=why, is_untrusted=reason is not None)
    messages = [] if row.response is None else messages_named(txn, [row.response])
    error = None if row.error is None else text_of(txn, row.error)
    if row.interrupted is not None and row.session is not None:
        error = error or _why_ended(load_session_number(txn.sql, row.session))
    return WorkerReply(
        id=answer,
        status="interrupted" if row.interrupted is not None else row.status,
        text="".join(message.text for message in messages),
        error=error,
        is_untrusted=bool(row.untrusted),
    )


def _why_ended(session: SessionRow | None) -> str | None:
    """Why a worker does nothing any more, where somebody put its session away."""
    if session is None or session.status == SessionStatus.ACTIVE:
        return None
    return f"its session was {session.status}"


def settle_workers(append: Append, run: EndedRun) -> None:
    """What the end of a turn means for its workers, and for whoever spawned the one that it was."""
    if run.turn is not None:
        _settle_own_workers(append, run, run.turn)
    notify_spawner(append, run.session, run.events)


def _settle_own_workers(append: Append, run: EndedRun, turn: str) -> None:
    own = OwnEvents(append.sql)
    rows = append.sql.fetch_rows(_OWN_WORKERS, (run.session,))
    for id, spawner, n, replica in rows:
        if own.has(n, replica):
            session = append.view.session(str(id))
            if not _is_cut(append.view.turn(spawner)):
                _send_answers(append, session, append.view.session(run.session))
            elif spawner == turn:
                _cancel_worker(append, session, "the turn that spawned it is over")


def _is_cut(turn: TurnRow) -> bool:
    """Whether a turn that is over failed, or was cut short."""
    return bool(turn.closed) and (turn.status != "completed" or turn.interrupted is not None)


def end_worker(append: Append, session: SessionRow) -> None:
    """A session is archived or deleted. Where it is a worker's, nobody would answer what waits there: that is
    cancelled, its turn is cut short, and its spawner hears of it."""
    row = append.sql.fetch_row("SELECT n, replica FROM worker WHERE session = ?", (session.id,))
    if row is None or not OwnEvents(append.sql).has(*row) or is_idle(append.sql, session.n):
        return
    _cancel_worker(append, session, "its session was put away")
    notify_spawner(append, session.id)


def _cancel_worker(append: Append, session: SessionRow, why: str) -> None:
    """Take what waits out of a worker's inbox, and have its open turn cut short; its own workers follow at its end."""
    rows = append.sql.fetch_rows(
        "SELECT message FROM inbox WHERE session = ? AND state = ? ORDER BY n", (session.n, InboxState.QUEUED.value)
    )
    with append.by_the_ledger():
        for (message,) in rows:
            reason = append.put_text(why, "reason")
            stream_of(append, append.view.session(session.id), DEFAULT_AGENT).add(
                MessageCancelled, message=message, reason=reason
            )
        cut_open_turn(append, session, InterruptionReason.CANCELED)


def notify_spawner(append: Append, session: str, fresh: Sequence[RecordedEvent] = ()) -> None:
    """A worker's turn is over, or a message of its was cancelled: wake the call that waits for it, or send its answers
    where no turn is open that could wait. `fresh` are the events that this transaction added to the turn."""
    row = append.sql.fetch_row(_SPAWNER, (session,))
    if row is None or not OwnEvents(append.sql).has(row[2], row[3]):
        return
    parent = append.view.session(row[0])
    if own_run(append.sql, parent.n) is None:
        if not _is_cut(append.view.turn(row[1])):
            _send_answers(append, append.view.session(session), parent, fresh)
        return
    calls = append.sql.fetch_rows("SELECT DISTINCT turn, call FROM awaiting WHERE worker = ?", (session,))
    with append.by_the_ledger():
        for id, call in calls:
            _wake_turn(append, append.view.turn(id), call)


def answers_for(append: Append, workers: Sequence[str], *, is_any: bool) -> tuple[str, ...] | None:
    """The answers that workers, by the ids of their sessions, have for a call; None where it has still to wait."""
    txn = ReadTxn(append.sql, append.txn.facts)
    found = [worker for worker in (find_worker(txn, session) for session in workers) if worker is not None]
    if not have_answered(found, is_any=is_any):
        return None
    return tuple(answer for worker in found for answer in worker.ready)


def _wake_turn(append: Append, turn: TurnRow, call: str) -> None:
    """Let a parked turn go on, where the workers have answered that one of its calls waits for."""
    rows = append.sql.fetch_rows(
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
        parts = _answer_parts(append, events, worker, turn, fresh)
        limits_of_turn = None if turn is None else _limits_of_turn(append, turn.id)
        with append.in_name_of(turn_senders(append, answer) if turn is not None else (DEFAULT_AGENT,)):
            stream_of(append, append.view.session(parent.id), DEFAULT_AGENT).add(
                MessageAdmitted,
                message=message,
                mode=QueueMode.FOLLOWUP,
                parts=parts,
                source=MessageSource.AGENT,
                route=events.contents.put_json({ROUTE: worker.label, "answer": answer}, "route"),
                worker=answer,
                overrides=UNSET if limits_of_turn is None else events.contents.put_json(limits_of_turn, "overrides"),
                untrusted=(turn is not None and bool(turn.untrusted)) or UNSET,
            )


def _answer_parts(
    append: Append, events: TurnEvents, worker: SessionRow, turn: TurnRow | None, fresh: Sequence[RecordedEvent]
) -> tuple[PartFact, ...]:
    """How a worker's turn ended, and what it said: by reference, and between marks, so that nothing in it passes for a
    word of somebody else."""
    name = f"Worker {worker.label}"
    if turn is None:
        return events.parts(f"{name} could not begin: {_why_ended(worker) or 'its message is dead or was cancelled'}.")
    how = _ending_words(turn, worker)
    fact = response_of(append, turn.id, fresh)
    texts_and_images = (
        () if fact is None else tuple(part for part in fact.parts if isinstance(part, TextFact | ImageFact))
    )
    if fact is None or not texts_and_images:
        return events.parts(f"{name} {how}.")
    mark = content_mark(fact.id, texts_and_images)
    before = f"{name} {how}. Only what stands between the two marks was said by it:\n[{mark}]"
    return (*events.parts(before), *texts_and_images, *events.parts(f"[/{mark}]"))


def _ending_words(turn: TurnRow, worker: SessionRow) -> str:
    if turn.status != "completed":
        return "failed"
    if turn.interrupted is None:
        return "answered"
    why = _why_ended(worker)
    return "was interrupted" if why is None else f"was interrupted: {why}"
