"""How the answers of workers reach whoever spawned them.

An answer is kept until a call of the spawning turn brings it. Where that turn is over, it goes to the inbox of its
session, in the transaction that ends the later of the two turns; there its words stand between marks that it cannot
have written. A spawning turn that fails or is cut short takes its workers down with it, and theirs. The spawner of a
worker whose session is archived or deleted is told so.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

from weft.kernel.enums import InboxState, InterruptionReason, MessageSource, QueueMode, SessionStatus
from weft.kernel.events import run_stream
from weft.kernel.fields import EventRef, ImageFact, PartFact, TextFact
from weft.kernel.ledger_events import MessageAdmitted, MessageCancelled, WorkersAnswered
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.request_inputs import messages_named
from weft.ledger.runs.admission import scope_of
from weft.ledger.runs.inbox import own_run
from weft.ledger.runs.model import EndedRun, RecordedEvent
from weft.ledger.runs.run_responses import response_of
from weft.ledger.runs.turn_commands import cut_open_turn
from weft.ledger.runs.workers import ROUTE, find_worker, have_answered, is_idle, ready_answers, turn_senders
from weft.ledger.sessions.heads import stream_of
from weft.ledger.views.rows import SessionRow, TurnRow, load_session_number, load_turn
from weft.ledger.views.values import text_of
from weft.ledger.write.append import MESSAGE_ROOM, Append
from weft.ledger.write.content_marks import content_mark
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Question

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
        number, error = txn.sql.one("SELECT session, error FROM inbox WHERE message = ?", (answer,)) or (None, None)
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
    rows = append.sql.all(_OWN_WORKERS, (run.session,))
    for id, spawner, n, replica in rows:
        if own.has(n, replica):
            session = append.view.session(str(id))
            if not _is_cut(append.view.turn(spawner)):
                _send_answers(append, session, append.view.session(run.session))
            elif spawner == turn:
                _cancel(append, session, "the turn that spawned it is over")


def _is_cut(turn: TurnRow) -> bool:
    """Whether a turn that is over failed, or was cut short."""
    return bool(turn.closed) and (turn.status != "completed" or turn.interrupted is not None)


def end_worker(append: Append, session: SessionRow) -> None:
    """A session is archived or deleted. Where it is a worker's, nobody would answer what waits there: that is
    cancelled, its turn is cut short, and its spawner hears of it."""
    row = append.sql.one("SELECT n, replica FROM worker WHERE session = ?", (session.id,))
    if row is None or not OwnEvents(append.sql).has(*row) or is_idle(append.sql, session.n):
        return
    _cancel(append, session, "its session was put away")
    notify_spawner(append, session.id)


def _cancel(append: Append, session: SessionRow, why: str) -> None:
    """Take what waits out of a worker's inbox, and have its open turn cut short; its own workers follow at its end."""
    rows = append.sql.all(
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
    row = append.sql.one(_SPAWNER, (session,))
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
    txn = ReadTxn(append.sql, append.txn.facts)
    found = [worker for worker in (find_worker(txn, session) for session in workers) if worker is not None]
    if not have_answered(found, is_any=is_any):
        return None
    return tuple(answer for worker in found for answer in worker.ready)


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
        parts = _answer_parts(append, events, worker, turn, fresh)
        with append.in_name_of(turn_senders(append, answer) if turn is not None else (DEFAULT_AGENT,)):
            stream_of(append, append.view.session(parent.id), DEFAULT_AGENT).add(
                MessageAdmitted,
                message=message,
                mode=QueueMode.FOLLOWUP,
                parts=parts,
                source=MessageSource.AGENT,
                route=events.contents.put_json({ROUTE: worker.label, "answer": answer}, "route"),
                worker=answer,
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
    how = _ending(turn, worker)
    fact = response_of(append, turn.id, fresh)
    texts_and_images = (
        () if fact is None else tuple(part for part in fact.parts if isinstance(part, TextFact | ImageFact))
    )
    if fact is None or not texts_and_images:
        return events.parts(f"{name} {how}.")
    mark = content_mark(fact.id, texts_and_images)
    before = f"{name} {how}. Only what stands between the two marks was said by it:\n[{mark}]"
    return (*events.parts(before), *texts_and_images, *events.parts(f"[/{mark}]"))


def _ending(turn: TurnRow, worker: SessionRow) -> str:
    if turn.status != "completed":
        return "failed"
    if turn.interrupted is None:
        return "answered"
    why = _why_ended(worker)
    return "was interrupted" if why is None else f"was interrupted: {why}"
