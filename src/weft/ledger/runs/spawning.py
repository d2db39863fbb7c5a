"""Workers are spawned and sent messages by calls of open turns.

A worker is spawned with its first message in one transaction; the same call again finds the same worker.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.dag_events import ToolCallRequested
from weft.kernel.enums import AgentRole, MessageSource, QueueMode, SessionStatus
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.fields import EventRef
from weft.kernel.ledger_events import MessageAdmitted
from weft.ledger.arguments import checked_label
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.runs.admission import ensure_room, scope_of
from weft.ledger.runs.model import QueueLimits
from weft.ledger.runs.workers import ROUTE, find_worker, top_session, turn_senders
from weft.ledger.sessions.heads import stream_of
from weft.ledger.views.recorded_events import run_events
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter
from weft.ledger.write.commands import Answer, keyed_command, once
from weft.ledger.write.placement import create_session
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents, own_names

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
        return Answer(_add_message(append, worker, text, turn_senders(append, turn), limits, turn=turn))

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
    if session.status != SessionStatus.ACTIVE:
        raise NotApplicable(f"worker {session.label!r} is {session.status}", "spawn another one")
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
        " SELECT count(*) FROM below b CROSS JOIN session s CROSS JOIN inbox i"  # in this order: few sessions are below
        " WHERE s.id = b.id AND i.session = s.n AND i.n > ?",
        (top, *names, *names, since or 0),
    ) or (0,)
    if count >= MAX_TASKS:
        raise NotApplicable(f"workers were sent {count} messages", f"{MAX_TASKS} are the most until a person speaks")
