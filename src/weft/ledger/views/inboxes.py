"""What events mean for those who wait for messages: conversations and whom a message reaches,
inboxes of sessions and turns that a broker has to bring to an end, workers and the calls that wait
for them, requests to people and decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import UNSET

from weft.kernel import events
from weft.kernel import ledger_events as own
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import (
    ApprovalState,
    CallState,
    Decision,
    InboxState,
    InvitationState,
    OpenRunState,
    QueueMode,
    RoomHistory,
    RoomMessageKind,
    RoomStatus,
    WorkerAnswerState,
)
from weft.kernel.events import Event
from weft.kernel.ledger_events import MessageAdmitted
from weft.ledger.views.projector import OTHERS, RUN, SESSIONS, EventMoment, Handler, Projector, begins, handles, plain
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.store.sql import Question

# --- What events mean for conversations: who takes part, what was said at which position, whom it mentions and
# reaches.

STREAM = "conversation:"


def _conversation_of(event: events.ConversationEvent) -> str:
    return event.stream.removeprefix(STREAM)


def _counts_for_conversation(view: Projector, moment: EventMoment, conversation: str, event: Event) -> bool:
    """Whether an event comes from the ledger that the conversation belongs to."""
    row = view.sql.fetch_row("SELECT n, replica FROM conversation WHERE id = ?", (conversation,))
    if row is None:
        return False
    own, replica = view.own_events, plain(event.replica)
    return own.has(moment.n, replica) if own.has(row[0], row[1]) else bool(replica == row[1])


Changed = TypeVar("Changed", bound=events.ConversationEvent)


def changes(kind: type[Changed]) -> Callable[[Callable[[Projector, EventMoment, Changed], None]], Handler]:
    """What an event does to a conversation that it belongs to."""

    def register(handler: Callable[[Projector, EventMoment, Changed], None]) -> Handler:
        def checked(view: Projector, moment: EventMoment, event: Any) -> None:
            if event.stream.startswith(STREAM) and _counts_for_conversation(
                view, moment, _conversation_of(event), event
            ):
                handler(view, moment, event)

        return handles(kind, OTHERS)(checked)

    return register


@begins(events.ConversationCreated, STREAM)
def _create_conversation(view: Projector, moment: EventMoment, event: events.ConversationCreated) -> None:
    origin, forked_at = _fork_place(view, event)
    view.sql.run(
        "INSERT INTO conversation(id, n, replica, title, status, history, created_by, created_at, forked_from,"
        " forked_at, position, last_message_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        (
            _conversation_of(event),
            moment.n,
            plain(event.replica),
            None if event.title is UNSET else view.lookup_number(event.title),
            RoomStatus.ACTIVE.value,
            RoomHistory.JOINED.value if event.history is UNSET else event.history.value,
            event.actor,
            moment.when,
            origin,
            forked_at,
            forked_at,
            None,
        ),
    )
    view.move_stream_tip(event.stream, moment.event_id)


def _fork_place(view: Projector, event: events.ConversationCreated) -> tuple[str | None, int]:
    """Where a conversation goes on from another one, and the position there. A message that is not known, or not of
    the conversation that is named, is no place: so every chain of forks leads to older conversations and ends."""
    if event.forked_from is UNSET or event.at_message is UNSET:
        return None, 0
    row = view.sql.fetch_row(
        "SELECT position FROM room_message WHERE id = ? AND conversation = ?", (event.at_message, event.forked_from)
    )
    return (None, 0) if row is None else (event.forked_from, int(row[0]))


@changes(events.ConversationRetitled)
def _retitle_conversation(view: Projector, moment: EventMoment, event: events.ConversationRetitled) -> None:
    view.sql.run(
        "UPDATE conversation SET title = ? WHERE id = ?", (view.lookup_number(event.title), _conversation_of(event))
    )


@changes(events.ConversationArchived)
def _archive_conversation(view: Projector, moment: EventMoment, event: events.ConversationArchived) -> None:
    _set_status(view, event, RoomStatus.ARCHIVED)


@changes(events.ConversationRestored)
def _restore_conversation(view: Projector, moment: EventMoment, event: events.ConversationRestored) -> None:
    _set_status(view, event, RoomStatus.ACTIVE)


def _set_status(view: Projector, event: events.ConversationEvent, status: RoomStatus) -> None:
    view.sql.run("UPDATE conversation SET status = ? WHERE id = ?", (status.value, _conversation_of(event)))


def _last_position(view: Projector, conversation: str) -> int | None:
    row = view.sql.fetch_row("SELECT position FROM conversation WHERE id = ?", (conversation,))
    return None if row is None else int(row[0])


@changes(events.ParticipantAdded)
def _participant_added(view: Projector, moment: EventMoment, event: events.ParticipantAdded) -> None:
    conversation = _conversation_of(event)
    position = _last_position(view, conversation)
    if position is None:
        return
    since = position if event.since is UNSET else event.since
    view.sql.run(
        "INSERT INTO participant(id, conversation, kind, node, n, replica, session, added_by, added_at, since, seen)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (
            event.participant,
            conversation,
            event.participant_kind.value,
            event.node,
            moment.n,
            plain(event.replica),
            plain(event.session),
            event.actor,
            moment.when,
            since,
            since if event.seen is UNSET else event.seen,
        ),
    )
    _close_invitation(view, conversation, event.node, InvitationState.CONFIRMED)


@changes(events.ParticipantRemoved)
def _participant_removed(view: Projector, moment: EventMoment, event: events.ParticipantRemoved) -> None:
    conversation = _conversation_of(event)
    view.sql.run(
        "UPDATE participant SET removed_by = ?, removed_at = ?, removed_n = ?, until = ?"
        " WHERE id = ? AND conversation = ? AND removed_n IS NULL",
        (event.actor, moment.when, moment.n, _last_position(view, conversation), event.participant, conversation),
    )


@changes(events.ParticipantInvited)
def _participant_invited(view: Projector, moment: EventMoment, event: events.ParticipantInvited) -> None:
    conversation = _conversation_of(event)
    if _last_position(view, conversation) is None:
        return
    view.sql.run(
        "INSERT INTO invitation(conversation, node, n, replica, message, state, invited_by, invited_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (conversation, node) DO UPDATE SET n = excluded.n,"
        " replica = excluded.replica, message = excluded.message, state = excluded.state,"
        " invited_by = excluded.invited_by, invited_at = excluded.invited_at",
        (
            conversation,
            event.node,
            moment.n,
            plain(event.replica),
            plain(event.message),
            InvitationState.OPEN.value,
            event.actor,
            moment.when,
        ),
    )


@changes(events.InvitationDeclined)
def _invitation_declined(view: Projector, moment: EventMoment, event: events.InvitationDeclined) -> None:
    _close_invitation(view, _conversation_of(event), event.node, InvitationState.DECLINED)


def _close_invitation(view: Projector, conversation: str, node: str, state: InvitationState) -> None:
    view.sql.run(
        "UPDATE invitation SET state = ? WHERE conversation = ? AND node = ? AND state = ?",
        (state.value, conversation, node, InvitationState.OPEN.value),
    )


@changes(events.MessagePosted)
def _message_posted(view: Projector, moment: EventMoment, event: events.MessagePosted) -> None:
    conversation = _conversation_of(event)
    before = _last_position(view, conversation)
    if before is None or view.sql.fetch_row("SELECT 1 FROM room_message WHERE id = ?", (event.message,)) is not None:
        return
    position = before + 1
    author = plain(event.author)
    node = None if author is None else view.sql.fetch_row("SELECT node FROM participant WHERE id = ?", (author,))
    view.sql.run(
        "INSERT INTO room_message(conversation, position, id, n, replica, kind, author, node, notice, root, hops,"
        " answers, turn, posted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            conversation,
            position,
            event.message,
            moment.n,
            plain(event.replica),
            event.message_kind.value,
            author,
            None if node is None else node[0],
            plain(event.notice),
            event.message if event.root is UNSET else event.root,
            0 if event.hops is UNSET else event.hops,
            plain(event.answers),
            plain(event.turn),
            moment.when,
        ),
    )
    is_by_participant = event.message_kind is RoomMessageKind.PARTICIPANT
    view.sql.run(
        "UPDATE conversation SET position = ?, last_message_at = CASE WHEN ? THEN ? ELSE last_message_at END"
        " WHERE id = ?",
        (position, int(is_by_participant), moment.when, conversation),
    )
    for mention in () if event.mentions is UNSET else event.mentions:
        view.sql.run(
            "INSERT INTO mention(conversation, position, kind, node) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (conversation, position, mention.kind.value, mention.id),
        )


def deliver(view: Projector, moment: EventMoment, session: str, event: MessageAdmitted) -> None:
    """A message of a conversation entered the inbox of an agent's session there: for the first time, or once more in a
    copy of the ledger where it waited. From then on the agent knows the conversation up to that message."""
    posted = view.sql.fetch_row("SELECT root, position, conversation FROM room_message WHERE id = ?", (event.posted,))
    if posted is None or not _counts_for_conversation(view, moment, posted[2], event):
        return
    view.sql.run(
        "UPDATE room_delivery SET message = ? WHERE posted = ? AND session = ?"
        " AND NOT EXISTS (SELECT 1 FROM room_delivery other WHERE other.message = ?)",
        (event.message, event.posted, session, event.message),
    )
    view.sql.run(
        "INSERT INTO room_delivery(posted, session, message, root) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (event.posted, session, event.message, posted[0]),
    )
    view.sql.run("UPDATE participant SET seen = ? WHERE session = ? AND seen < ?", (posted[1], session, posted[1]))


# --- What events mean for workers: the sessions that tool calls started, their answers, and the calls that wait for
# these.


def add_worker(view: Projector, moment: EventMoment, session: SessionRow, event: own.SessionCreated) -> None:
    """A session that names the call of this ledger that started it is a worker's."""
    if session.parent_turn is None or session.parent_session is None:
        return
    assert event.spawned_by is not UNSET, "only such sessions are a worker's"
    above = view.sql.fetch_row("SELECT depth FROM worker WHERE session = ?", (session.parent_session,))
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


def _may_answer(view: Projector, moment: EventMoment, worker: str, event: Event) -> bool:
    """Whether a session is a worker's, and the event comes from the ledger whose worker it is."""
    row = view.sql.fetch_row("SELECT n, replica FROM worker WHERE session = ?", (worker,))
    return row is not None and view.may_change(moment, event, row)


def add_answer(view: Projector, moment: EventMoment, turn: TurnRow, event: events.RunFinished) -> None:
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
    view: Projector, moment: EventMoment, session: SessionRow, event: own.MessageCancelled | own.MessageDead
) -> None:
    """A message to a worker left its inbox without a turn: its spawner is to hear of that, too."""
    if session.parent_turn is None or not _may_answer(view, moment, session.id, event):
        return
    view.sql.run(
        "INSERT INTO worker_answer(turn, worker, n, state) SELECT message, ?, ?, ? FROM inbox"
        " WHERE message = ? AND session = ? AND turn IS NULL ON CONFLICT DO NOTHING",
        (session.id, moment.n, WorkerAnswerState.READY.value, event.message, session.n),
    )


def mark_answers(
    view: Projector, moment: EventMoment, event: Event, turns: Iterable[str], state: WorkerAnswerState
) -> None:
    """An event brings these answers to the spawner, by the word of the ledger whose workers gave them."""
    for turn in turns:
        row = view.sql.fetch_row("SELECT worker FROM worker_answer WHERE turn = ?", (turn,))
        if row is not None and _may_answer(view, moment, row[0], event):
            view.sql.run(
                "UPDATE worker_answer SET state = ? WHERE turn = ? AND state = ?",
                (state.value, turn, WorkerAnswerState.READY.value),
            )


def note_awaited(view: Projector, moment: EventMoment, turn: TurnRow, event: own.RunParked) -> None:
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


def end_call(view: Projector, moment: EventMoment, turn: TurnRow, event: events.ToolResult) -> None:
    """The result of a call brings the answers that it names."""
    if event.awaited is not UNSET:
        mark_answers(view, moment, event, event.awaited, WorkerAnswerState.AWAITED)
    if turn.inbox is not None:
        forget_awaited(view, turn, event.call.event_id)


# --- What events mean for the inboxes of sessions, and which turns a broker has still to bring to an end.

RUNNING, PARKED = 1, 2
"""The column `inbox` of a turn that took messages."""


@handles(own.MessageAdmitted, SESSIONS)
def _message_admitted(view: Projector, moment: EventMoment, event: own.MessageAdmitted) -> None:
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
def _message_cancelled(view: Projector, moment: EventMoment, event: own.MessageCancelled) -> None:
    if _may_change(view, moment, event, event.message):
        _change_message_state(view, moment.row, event.message, (InboxState.QUEUED,), InboxState.CANCELLED, moment.when)
        add_unanswered(view, moment, moment.row, event)


@handles(own.MessageDead, SESSIONS)
def _message_dead(view: Projector, moment: EventMoment, event: own.MessageDead) -> None:
    if not _may_change(view, moment, event, event.message):
        return
    ended = (InboxState.QUEUED, InboxState.TAKEN, InboxState.DEAD)
    _change_message_state(view, moment.row, event.message, ended, InboxState.DEAD, moment.when)
    add_unanswered(view, moment, moment.row, event)
    if event.error is not UNSET:
        number = view.contents.number(event.error.message)
        view.sql.run("UPDATE inbox SET error = ? WHERE message = ?", (number, event.message))


def admission_question(message: str) -> Question:
    """Which event admitted a message, and who wrote it."""
    return "SELECT n, replica FROM inbox WHERE message = ?", (message,)


def _may_change(view: Projector, moment: EventMoment, event: Event, message: str) -> bool:
    """What was admitted here is taken, cancelled, buried and sent again here alone."""
    row = view.sql.fetch_row(*admission_question(message))
    return row is None or view.may_change(moment, event, row)


def _change_message_state(
    view: Projector, session: SessionRow, message: str, before: tuple[InboxState, ...], state: InboxState, when: int
) -> None:
    """Only what the session's own inbox holds, and only where it still can change."""
    marks = ", ".join("?" * len(before))
    view.sql.run(
        f"UPDATE inbox SET state = ?, settled_at = ? WHERE message = ? AND session = ? AND state IN ({marks})",
        (state.value, when, message, session.n, *(each.value for each in before)),
    )


def take_message(view: Projector, moment: EventMoment, event: Event, message: str) -> None:
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
def _run_parked(view: Projector, moment: EventMoment, event: own.RunParked) -> None:
    """Calls with different time limits are parked by events of their own: the turn goes on at the earliest. One that
    names no call waits for a process that can go on, whoever answered."""
    row: TurnRow = moment.row
    if row.inbox is None:
        return
    answers = "SELECT 1 FROM approval WHERE turn = ? AND answer IS NOT NULL AND used = 0"
    if event.calls and view.sql.fetch_row(answers, (row.id,)):
        return  # somebody answered meanwhile
    note_awaited(view, moment, row, event)
    row.inbox = PARKED
    until = None if event.until is UNSET else ms_from_iso(event.until)
    view.sql.run("UPDATE open_run SET state = ? WHERE turn = ?", (OpenRunState.PARKED.value, row.id))
    view.sql.run(
        "UPDATE open_run SET until = ? WHERE turn = ? AND (until IS NULL OR until > ?)", (until, row.id, until)
    )


@handles(own.WorkersAnswered, RUN)
def _workers_answered(view: Projector, moment: EventMoment, event: own.WorkersAnswered) -> None:
    row: TurnRow = moment.row
    forget_awaited(view, row, event.call.event_id)
    if row.inbox == PARKED:
        unpark(view, row)


def unpark(view: Projector, row: TurnRow) -> None:
    """What a parked turn waited for has come."""
    row.inbox = RUNNING
    view.sql.run("UPDATE open_run SET state = ?, until = NULL WHERE turn = ?", (OpenRunState.RUNNING.value, row.id))


def settle_messages(view: Projector, moment: EventMoment, row: TurnRow) -> None:
    """A turn that took messages is over: they are answered, or dead where it failed."""
    state = InboxState.ANSWERED if row.status == "completed" else InboxState.DEAD
    view.sql.run(
        "UPDATE inbox SET state = ?, settled_at = ?, error = ? WHERE turn = ? AND state = ?",
        (state.value, moment.when, row.error, row.id, InboxState.TAKEN.value),
    )
    view.sql.run("DELETE FROM open_run WHERE turn = ?", (row.id,))


# --- What events mean for tool calls that were decided on: decisions, requests to people and their answers.

OPEN, GRANTED, DENIED = ApprovalState.OPEN.value, ApprovalState.GRANTED.value, ApprovalState.DENIED.value


@handles(events.ToolDecided, RUN)
def _tool_decided(view: Projector, moment: EventMoment, event: events.ToolDecided) -> None:
    row: TurnRow = moment.row
    if not _is_of_its_ledger(view, row, event):
        return
    request = None
    if event.grant is not UNSET:
        found = view.sql.fetch_row(
            "SELECT request FROM approval WHERE answer = ? AND turn = ?", (event.grant.event_id, row.id)
        )
        request = found[0] if found else None
        view.sql.run("UPDATE approval SET used = 1 WHERE request = ?", (request,))
        call = view.call(row, bytes.fromhex(event.call.event_id))
        if call is not None and call.outcome is None and event.decision is Decision.ALLOW:
            call.started_at, call.status = moment.when, CallState.RUNNING.value  # until then it waited for a person
    view.sql.run(
        "INSERT INTO tool_decision(n, turn, call, decision, source, bound, policy, approval, rationale, decided_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            row.id,
            bytes.fromhex(event.call.event_id),
            event.decision.value,
            event.by.value,
            plain(event.bound),
            plain(event.policy),
            request,
            view.number(event.rationale),
            moment.when,
        ),
    )


@handles(events.ApprovalRequested, RUN)
def _approval_requested(view: Projector, moment: EventMoment, event: events.ApprovalRequested) -> None:
    row: TurnRow = moment.row
    if not _is_of_its_ledger(view, row, event):
        return
    view.sql.run(
        "INSERT INTO approval(request, n, turn, session, call, bound, state, replica, rationale, shown, subjects,"
        " requested_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.event_id.hex(),
            moment.n,
            row.id,
            row.session,
            bytes.fromhex(event.call.event_id),
            event.bound,
            OPEN,
            plain(event.replica),
            view.number(event.rationale),
            view.number(event.shown),
            view.number(event.subjects),
            moment.when,
            None if event.expires is UNSET else ms_from_iso(event.expires),
        ),
    )
    call = view.call(row, bytes.fromhex(event.call.event_id))
    if call is not None and call.outcome is None:
        call.status = CallState.PENDING.value


def _is_of_its_ledger(view: Projector, row: TurnRow, event: Event) -> bool:
    """Whether the ledger that runs the turn wrote this. What another one adds to its stream changes nothing."""
    run = view.sql.fetch_row("SELECT replica FROM open_run WHERE turn = ?", (row.id,))
    return run is not None and run[0] == plain(event.replica)


@handles(events.ApprovalGranted, RUN)
def _approval_granted(view: Projector, moment: EventMoment, event: events.ApprovalGranted) -> None:
    _answer_approval(view, moment, event, GRANTED)


@handles(events.ApprovalDenied, RUN)
def _approval_denied(view: Projector, moment: EventMoment, event: events.ApprovalDenied) -> None:
    _answer_approval(view, moment, event, DENIED)


def _answer_approval(
    view: Projector, moment: EventMoment, event: events.ApprovalGranted | events.ApprovalDenied, state: str
) -> None:
    row: TurnRow = moment.row
    request = event.request.event_id
    asked = view.sql.fetch_row(
        "SELECT replica, bound, state FROM approval WHERE request = ? AND turn = ?", (request, row.id)
    )
    if asked is None or asked[0] != plain(event.replica) or asked[2] != OPEN:
        return
    scope = None
    if isinstance(event, events.ApprovalGranted):
        if event.bound != asked[1]:
            return
        scope = plain(event.scope)
    view.sql.run(
        "UPDATE approval SET state = ?, answer = ?, answered_by = ?, answered_at = ?, scope = ?, reason = ?"
        " WHERE request = ?",
        (state, moment.event_id.hex(), event.actor, moment.when, scope, view.number(event.reason), request),
    )
    if row.inbox == PARKED:
        unpark(view, row)


def close_approvals(view: Projector, turn: str, call: str | None = None) -> None:
    """A call, or its whole turn, is over: what was still asked, or allowed and not used, is void."""
    view.sql.run(
        "UPDATE approval SET state = ? WHERE turn = ? AND state IN (?, ?) AND used = 0"
        + ("" if call is None else " AND call = ?"),
        (ApprovalState.VOID.value, turn, OPEN, GRANTED, *(() if call is None else (bytes.fromhex(call),))),
    )
