"""What events mean for conversations: who takes part, what was said at which position, whom it mentions and reaches.

Every message has a position, counted from 1; a fork counts on from the message where it left its origin. Membership is
kept as positions too: what was the newest message when somebody came, and when they left. A conversation of this ledger
is changed by its own events alone, one of another ledger by those of the replica that began it: what anybody else adds
to its stream changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import UNSET

from weft.kernel import conversation_events as chat
from weft.kernel.enums import InvitationState, RoomHistory, RoomMessageKind, RoomStatus
from weft.kernel.events import Event
from weft.kernel.ledger_events import MessageAdmitted
from weft.ledger.views.projector import OTHERS, Handler, Moment, Projector, begins, handles, plain

STREAM = "conversation:"


def _conversation(event: chat.ConversationEvent) -> str:
    return event.stream.removeprefix(STREAM)


def _counts(view: Projector, moment: Moment, conversation: str, event: Event) -> bool:
    """Whether an event comes from the ledger that the conversation belongs to."""
    row = view.sql.one("SELECT n, replica FROM conversation WHERE id = ?", (conversation,))
    if row is None:
        return False
    own, replica = view.own_events, plain(event.replica)
    return own.has(moment.n, replica) if own.has(row[0], row[1]) else bool(replica == row[1])


Changed = TypeVar("Changed", bound=chat.ConversationEvent)


def changes(kind: type[Changed]) -> Callable[[Callable[[Projector, Moment, Changed], None]], Handler]:
    """What an event does to a conversation that it belongs to."""

    def register(handler: Callable[[Projector, Moment, Changed], None]) -> Handler:
        def checked(view: Projector, moment: Moment, event: Any) -> None:
            if event.stream.startswith(STREAM) and _counts(view, moment, _conversation(event), event):
                handler(view, moment, event)

        return handles(kind, OTHERS)(checked)

    return register


@begins(chat.ConversationCreated, STREAM)
def _created(view: Projector, moment: Moment, event: chat.ConversationCreated) -> None:
    origin, forked_at = _fork_place(view, event)
    view.sql.run(
        "INSERT INTO conversation(id, n, replica, title, status, history, created_by, created_at, forked_from,"
        " forked_at, position, last_message_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        (
            _conversation(event),
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


def _fork_place(view: Projector, event: chat.ConversationCreated) -> tuple[str | None, int]:
    """Where a conversation goes on from another one, and the position there. A message that is not known, or not of
    the conversation that is named, is no place: so every chain of forks leads to older conversations and ends."""
    if event.forked_from is UNSET or event.at_message is UNSET:
        return None, 0
    row = view.sql.one(
        "SELECT position FROM room_message WHERE id = ? AND conversation = ?", (event.at_message, event.forked_from)
    )
    return (None, 0) if row is None else (event.forked_from, int(row[0]))


@changes(chat.ConversationRetitled)
def _retitled(view: Projector, moment: Moment, event: chat.ConversationRetitled) -> None:
    view.sql.run(
        "UPDATE conversation SET title = ? WHERE id = ?", (view.lookup_number(event.title), _conversation(event))
    )


@changes(chat.ConversationArchived)
def _archived(view: Projector, moment: Moment, event: chat.ConversationArchived) -> None:
    _set_status(view, event, RoomStatus.ARCHIVED)


@changes(chat.ConversationRestored)
def _restored(view: Projector, moment: Moment, event: chat.ConversationRestored) -> None:
    _set_status(view, event, RoomStatus.ACTIVE)


def _set_status(view: Projector, event: chat.ConversationEvent, status: RoomStatus) -> None:
    view.sql.run("UPDATE conversation SET status = ? WHERE id = ?", (status.value, _conversation(event)))


def _position(view: Projector, conversation: str) -> int | None:
    row = view.sql.one("SELECT position FROM conversation WHERE id = ?", (conversation,))
    return None if row is None else int(row[0])


@changes(chat.ParticipantAdded)
def _participant_added(view: Projector, moment: Moment, event: chat.ParticipantAdded) -> None:
    conversation = _conversation(event)
    position = _position(view, conversation)
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


@changes(chat.ParticipantRemoved)
def _participant_removed(view: Projector, moment: Moment, event: chat.ParticipantRemoved) -> None:
    conversation = _conversation(event)
    view.sql.run(
        "UPDATE participant SET removed_by = ?, removed_at = ?, removed_n = ?, until = ?"
        " WHERE id = ? AND conversation = ? AND removed_n IS NULL",
        (event.actor, moment.when, moment.n, _position(view, conversation), event.participant, conversation),
    )


@changes(chat.ParticipantInvited)
def _participant_invited(view: Projector, moment: Moment, event: chat.ParticipantInvited) -> None:
    conversation = _conversation(event)
    if _position(view, conversation) is None:
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


@changes(chat.InvitationDeclined)
def _invitation_declined(view: Projector, moment: Moment, event: chat.InvitationDeclined) -> None:
    _close_invitation(view, _conversation(event), event.node, InvitationState.DECLINED)


def _close_invitation(view: Projector, conversation: str, node: str, state: InvitationState) -> None:
    view.sql.run(
        "UPDATE invitation SET state = ? WHERE conversation = ? AND node = ? AND state = ?",
        (state.value, conversation, node, InvitationState.OPEN.value),
    )


@changes(chat.MessagePosted)
def _message_posted(view: Projector, moment: Moment, event: chat.MessagePosted) -> None:
    conversation = _conversation(event)
    before = _position(view, conversation)
    if before is None or view.sql.one("SELECT 1 FROM room_message WHERE id = ?", (event.message,)) is not None:
        return
    position = before + 1
    author = plain(event.author)
    node = None if author is None else view.sql.one("SELECT node FROM participant WHERE id = ?", (author,))
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


def deliver(view: Projector, moment: Moment, session: str, event: MessageAdmitted) -> None:
    """A message of a conversation entered the inbox of an agent's session there: for the first time, or once more in a
    copy of the ledger where it waited. From then on the agent knows the conversation up to that message."""
    posted = view.sql.one("SELECT root, position, conversation FROM room_message WHERE id = ?", (event.posted,))
    if posted is None or not _counts(view, moment, posted[2], event):
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
