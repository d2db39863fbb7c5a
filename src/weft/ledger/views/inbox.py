"""What events mean for the inboxes of sessions, and which turns a broker has still to bring to an end."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel import ledger_events as own
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import InboxState, OpenRunState, QueueMode, WorkerAnswerState
from weft.kernel.events import Event
from weft.ledger.views.conversations import deliver
from weft.ledger.views.projector import RUN, SESSIONS, Moment, Projector, handles, plain
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.views.workers import add_unanswered, forget_awaited, mark_answers, note_awaited
from weft.store.sql import Question

RUNNING, PARKED = 1, 2
"""The column `inbox` of a turn that took messages."""


@handles(own.MessageAdmitted, SESSIONS)
def _message_admitted(view: Projector, moment: Moment, event: own.MessageAdmitted) -> None:
    session: SessionRow = moment.row
    view.sql.run(
        "INSERT INTO inbox(message, n, session, state, mode, priority, sender, source, replica, admitted_at, again)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (message) DO NOTHING",
        (
            event.message,
            moment.n,
            session.n,
            InboxState.QUEUED.value,
            QueueMode.FOLLOWUP.value if event.mode is UNSET else event.mode.value,
            0 if event.priority is UNSET else event.priority,
            event.actor,
            plain(event.source),
            plain(event.replica),
            moment.when,
            plain(event.again),
        ),
    )
    if event.worker is not UNSET:
        mark_answers(view, moment, event, (event.worker,), WorkerAnswerState.SENT)
    if event.posted is not UNSET:
        deliver(view, moment, session.id, event)
    elif event.again is not UNSET and _may_change(view, moment, event, event.again):
        view.sql.run("UPDATE room_delivery SET message = ? WHERE message = ?", (event.message, event.again))
    # a retry may go on in a fork: the dead message is then another session's
    if event.again is not UNSET and _may_change(view, moment, event, event.again):
        view.sql.run(
            "UPDATE inbox SET state = ?, settled_at = ? WHERE message = ? AND state = ? AND"
            " (session = ? OR replica = ?)",
            (
                InboxState.RESENT.value,
                moment.when,
                event.again,
                InboxState.DEAD.value,
                session.n,
                plain(event.replica),
            ),
        )


@handles(own.MessageCancelled, SESSIONS)
def _message_cancelled(view: Projector, moment: Moment, event: own.MessageCancelled) -> None:
    if _may_change(view, moment, event, event.message):
        _change(view, moment.row, event.message, (InboxState.QUEUED,), InboxState.CANCELLED, moment.when)
        add_unanswered(view, moment, moment.row, event)


@handles(own.MessageDead, SESSIONS)
def _message_dead(view: Projector, moment: Moment, event: own.MessageDead) -> None:
    if not _may_change(view, moment, event, event.message):
        return
    ended = (InboxState.QUEUED, InboxState.TAKEN, InboxState.DEAD)
    _change(view, moment.row, event.message, ended, InboxState.DEAD, moment.when)
    add_unanswered(view, moment, moment.row, event)
    if event.error is not UNSET:
        number = view.contents.number(event.error.message)
        view.sql.run("UPDATE inbox SET error = ? WHERE message = ?", (number, event.message))


def admission_question(message: str) -> Question:
    """Which event admitted a message, and who wrote it."""
    return "SELECT n, replica FROM inbox WHERE message = ?", (message,)


def _may_change(view: Projector, moment: Moment, event: Event, message: str) -> bool:
    """What was admitted here is taken, cancelled, buried and sent again here alone."""
    row = view.sql.one(*admission_question(message))
    return row is None or view.may_change(moment, event, row)


def _change(
    view: Projector, session: SessionRow, message: str, before: tuple[InboxState, ...], state: InboxState, when: int
) -> None:
    """Only what the session's own inbox holds, and only where it still can change."""
    marks = ", ".join("?" * len(before))
    view.sql.run(
        f"UPDATE inbox SET state = ?, settled_at = ? WHERE message = ? AND session = ? AND state IN ({marks})",
        (state.value, when, message, session.n, *(each.value for each in before)),
    )


def take_message(view: Projector, moment: Moment, event: Event, message: str) -> None:
    """A turn of the same session took a message that was waiting there."""
    row: TurnRow = moment.row
    if not _may_change(view, moment, event, message):
        return
    view.sql.run(
        "UPDATE inbox SET state = ?, turn = ? WHERE message = ? AND session = ? AND state = ?",
        (InboxState.TAKEN.value, row.id, message, row.session, InboxState.QUEUED.value),
    )
    if row.inbox is None:
        row.inbox = RUNNING
        view.sql.run(
            "INSERT INTO open_run(turn, session, replica, state) SELECT ?, ?, replica, ? FROM inbox WHERE message = ?",
            (row.id, row.session, OpenRunState.RUNNING.value, message),
        )


@handles(own.RunParked, RUN)
def _run_parked(view: Projector, moment: Moment, event: own.RunParked) -> None:
    """Calls with different time limits are parked by events of their own: the turn goes on at the earliest."""
    row: TurnRow = moment.row
    if row.inbox is None:
        return
    if view.sql.one("SELECT 1 FROM approval WHERE turn = ? AND answer IS NOT NULL AND used = 0", (row.id,)):
        return  # somebody answered meanwhile
    note_awaited(view, moment, row, event)
    row.inbox = PARKED
    until = None if event.until is UNSET else ms_from_iso(event.until)
    view.sql.run("UPDATE open_run SET state = ? WHERE turn = ?", (OpenRunState.PARKED.value, row.id))
    view.sql.run(
        "UPDATE open_run SET until = ? WHERE turn = ? AND (until IS NULL OR until > ?)", (until, row.id, until)
    )


@handles(own.WorkersAnswered, RUN)
def _workers_answered(view: Projector, moment: Moment, event: own.WorkersAnswered) -> None:
    row: TurnRow = moment.row
    forget_awaited(view, row, event.call.event_id)
    if row.inbox == PARKED:
        unpark(view, row)


def unpark(view: Projector, row: TurnRow) -> None:
    """What a parked turn waited for has come."""
    row.inbox = RUNNING
    view.sql.run("UPDATE open_run SET state = ?, until = NULL WHERE turn = ?", (OpenRunState.RUNNING.value, row.id))


def settle_messages(view: Projector, moment: Moment, row: TurnRow) -> None:
    """A turn that took messages is over: they are answered, or dead where it failed."""
    state = InboxState.ANSWERED if row.status == "completed" else InboxState.DEAD
    view.sql.run(
        "UPDATE inbox SET state = ?, settled_at = ?, error = ? WHERE turn = ? AND state = ?",
        (state.value, moment.when, row.error, row.id, InboxState.TAKEN.value),
    )
    view.sql.run("DELETE FROM open_run WHERE turn = ?", (row.id,))
