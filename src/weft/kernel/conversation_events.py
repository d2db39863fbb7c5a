"""What happens in a conversation: who takes part, what is said, and whom it mentions."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import EventClass, ParticipantKind, RoomHistory, RoomMessageKind, RoomNotice
from weft.kernel.events import Event
from weft.kernel.fields import Content, MentionFact, Name, PartFact, Ulid


class ConversationCreated(Event, frozen=True, gc=False, kw_only=True, tag="conversation_created"):
    """The event with which a conversation begins."""

    about: ClassVar[str] = (
        "A conversation of people and agents begins; `history` says what those read who join later, `forked_from` and"
        " `at_message` where it goes on from another one."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    title: Content | UnsetType = UNSET
    history: RoomHistory | UnsetType = UNSET
    forked_from: Ulid | UnsetType = UNSET
    at_message: Ulid | UnsetType = UNSET


class ConversationRetitled(Event, frozen=True, gc=False, kw_only=True, tag="conversation_retitled"):
    """The event with which a conversation gets another title."""

    about: ClassVar[str] = "A conversation has another title."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    title: Content


class ConversationArchived(Event, frozen=True, gc=False, kw_only=True, tag="conversation_archived"):
    about: ClassVar[str] = "A conversation takes no more messages and leaves the lists."
    category: ClassVar[EventClass] = EventClass.TRANSITION


class ConversationRestored(Event, frozen=True, gc=False, kw_only=True, tag="conversation_restored"):
    about: ClassVar[str] = "An archived conversation takes messages again."
    category: ClassVar[EventClass] = EventClass.TRANSITION


class ParticipantAdded(Event, frozen=True, gc=False, kw_only=True, tag="participant_added"):
    about: ClassVar[str] = (
        "A person or an agent takes part; `session` is the one that an agent answers in, `message` the one that brought"
        " them in. `since` and `seen` are positions: what they read begins behind the one, and what an agent was sent"
        " ends with the other."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    participant: Ulid
    participant_kind: ParticipantKind
    node: Name | Ulid
    session: Ulid | UnsetType = UNSET
    message: Ulid | UnsetType = UNSET
    since: int | UnsetType = UNSET
    seen: int | UnsetType = UNSET


class ParticipantRemoved(Event, frozen=True, gc=False, kw_only=True, tag="participant_removed"):
    about: ClassVar[str] = "A person or an agent takes part no longer; whoever left removed themselves."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    participant: Ulid


class ParticipantInvited(Event, frozen=True, gc=False, kw_only=True, tag="participant_invited"):
    about: ClassVar[str] = "A person who takes no part was mentioned: a participant may confirm the invitation."
    category: ClassVar[EventClass] = EventClass.INTENT

    node: Name | Ulid
    message: Ulid | UnsetType = UNSET


class InvitationDeclined(Event, frozen=True, gc=False, kw_only=True, tag="invitation_declined"):
    about: ClassVar[str] = "An invitation is over without anybody joining."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    node: Name | Ulid


class MessagePosted(Event, frozen=True, gc=False, kw_only=True, tag="message_posted"):
    """The event with which something is said in a conversation."""

    about: ClassVar[str] = (
        "Somebody said something in a conversation, or the system did. `root` is the person's message that it goes back"
        " to, `hops` how many answers lie between, `answers` the message that an agent's `turn` was begun for."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    message: Ulid
    message_kind: RoomMessageKind
    parts: tuple[PartFact, ...]
    author: Ulid | UnsetType = UNSET
    mentions: tuple[MentionFact, ...] | UnsetType = UNSET
    notice: RoomNotice | UnsetType = UNSET
    meta: Content | UnsetType = UNSET
    root: Ulid | UnsetType = UNSET
    hops: int | UnsetType = UNSET
    answers: Ulid | UnsetType = UNSET
    turn: Ulid | UnsetType = UNSET


ConversationEvent = (
    ConversationCreated
    | ConversationRetitled
    | ConversationArchived
    | ConversationRestored
    | ParticipantAdded
    | ParticipantRemoved
    | ParticipantInvited
    | InvitationDeclined
    | MessagePosted
)
