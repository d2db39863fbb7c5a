"""What events mean for workers: the sessions that tool calls started, their answers, and the calls that wait for these.

An answer reaches the spawner once: with the result of a call that waited for it, or as a message to its inbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.enums import WorkerAnswerState
from weft.kernel.events import Event
from weft.ledger.views.projector import Moment, Projector, plain
from weft.ledger.views.rows import SessionRow, TurnRow


def add_worker(view: Projector, moment: Moment, session: SessionRow, event: own.SessionCreated) -> None:
    """A session that names the call of this ledger that started it is a worker's."""
    if session.parent_turn is None or session.parent_session is None:
        return
    assert event.spawned_by is not UNSET, "only such sessions are a worker's"
    above = view.sql.one("SELECT depth FROM worker WHERE session = ?", (session.parent_session,))
    view.sql.run(
        "INSERT INTO worker(session, n, replica, parent_session, parent_turn, call, depth, role, constraints)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            session.id,
            moment.n,
            plain(event.replica),
            session.parent_session,
            session.parent_turn,
            event.spawned_by.event_id,
            1 + (0 if above is None else int(above[0])),
            plain(event.role),
            view.number(event.constraints),
        ),
    )


def _may_answer(view: Projector, moment: Moment, worker: str, event: Event) -> bool:
    """Whether a session is a worker's, and the event comes from the ledger whose worker it is."""
    row = view.sql.one("SELECT n, replica FROM worker WHERE session = ?", (worker,))
    return row is not None and view.may_change(moment, event, row)


def add_answer(view: Projector, moment: Moment, turn: TurnRow, event: dag.RunFinished) -> None:
    """A turn that took messages is over: where its session is a worker's, the spawner is to hear of it."""
    session = None if turn.session is None else view.session_of_number(turn.session)
    if session is None or session.parent_turn is None:
        return
    if not _may_answer(view, moment, session.id, event):
        return
    view.sql.run(
        "INSERT INTO worker_answer(turn, worker, n, state) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (turn.id, session.id, moment.n, WorkerAnswerState.READY.value),
    )


def add_unanswered(
    view: Projector, moment: Moment, session: SessionRow, event: own.MessageCancelled | own.MessageDead
) -> None:
    """A message to a worker left its inbox without a turn: its spawner is to hear of that, too."""
    if session.parent_turn is None or not _may_answer(view, moment, session.id, event):
        return
    view.sql.run(
        "INSERT INTO worker_answer(turn, worker, n, state) SELECT message, ?, ?, ? FROM inbox"
        " WHERE message = ? AND session = ? AND turn IS NULL ON CONFLICT DO NOTHING",
        (session.id, moment.n, WorkerAnswerState.READY.value, event.message, session.n),
    )


def mark_answers(view: Projector, moment: Moment, event: Event, turns: Iterable[str], state: WorkerAnswerState) -> None:
    """An event brings these answers to the spawner, by the word of the ledger whose workers gave them."""
    for turn in turns:
        row = view.sql.one("SELECT worker FROM worker_answer WHERE turn = ?", (turn,))
        if row is not None and _may_answer(view, moment, row[0], event):
            view.sql.run(
                "UPDATE worker_answer SET state = ? WHERE turn = ? AND state = ?",
                (state.value, turn, WorkerAnswerState.READY.value),
            )


def note_awaited(view: Projector, moment: Moment, turn: TurnRow, event: own.RunParked) -> None:
    """The first of the calls waits for the answers of these workers. Nobody waits for those of another ledger."""
    for worker in () if event.awaits is UNSET else event.awaits:
        if not _may_answer(view, moment, worker, event):
            continue
        view.sql.run(
            "INSERT INTO awaiting(turn, call, worker, is_any) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (turn.id, event.calls[0].event_id, worker, int(event.any is True)),
        )


def forget_awaited(view: Projector, turn: TurnRow, call: str | None = None) -> None:
    """Nothing waits any more for what a call of a turn, or any of them, waited for."""
    if call is None:
        view.sql.run("DELETE FROM awaiting WHERE turn = ?", (turn.id,))
    else:
        view.sql.run("DELETE FROM awaiting WHERE turn = ? AND call = ?", (turn.id, call))


def end_call(view: Projector, moment: Moment, turn: TurnRow, event: dag.ToolResult) -> None:
    """The result of a call brings the answers that it names."""
    if event.awaited is not UNSET:
        mark_answers(view, moment, event, event.awaited, WorkerAnswerState.AWAITED)
    if turn.inbox is not None:
        forget_awaited(view, turn, event.call.event_id)
