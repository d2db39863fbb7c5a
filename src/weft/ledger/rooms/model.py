"""What the conversations of a ledger take and give."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.ledger.model import Part


class RoomLimits(Struct, frozen=True, kw_only=True):
    """How far one message may reach."""

    mentions: int = 50
    """So many of those that a message mentions are reached; the others are named in a notice."""
    hops: int = 6
    """An answer to an answer to … a person's message: at most so many."""
    deliveries: int = 40
    """So many messages may reach agents that all go back to one message of a person."""
    missed: int = 40
    """So many earlier messages that an agent has not been sent come with the next one."""


ROOM_LIMITS = RoomLimits()


class Room(Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    title: str | None
    created_by: str
    created_by_name: str
    created_at: int
    last_message_time: int | None
    status: str
    history: str
    position: int
    """The number of its newest message, those of its origin included."""
    forked_from: str | None = None
    fork_position: int | None = None
    """The message of its origin that it goes on from."""
    is_foreign: bool = False
    """Whether it was made in another ledger: it can be read and forked here, and nothing can be said in it."""
    participants: int = 0
    unread: int = 0
    """Messages that the reader has not read."""
    unread_mentions: int = 0
    is_left: bool = False
    """Whether the reader took part and does so no longer. Whoever opened the ledger reads on; others see the room as it
    was when they left."""


class Participant(Struct, frozen=True, kw_only=True):
    """A person or an agent in a conversation, or who was there."""

    id: str
    conversation_id: str
    kind: str
    user_id: str | None
    agent_id: str | None
    name: str
    added_at: int
    added_by: str
    status: str
    is_removed: bool
    removed_at: int | None = None
    session: str | None = None
    """The session that an agent answers in, by its label."""
    system_kind: str | None = None
    is_deleted: bool = False
    """Whether an agent was deleted: it is named still, and nothing reaches it."""
    is_abandoned: bool = False
    """Whether an agent is `thinking` and the process that ran its turn is gone: any broker goes on with it."""

    @property
    def node(self) -> str:
        return self.user_id or self.agent_id or ""


class AgentProfile(Struct, frozen=True, kw_only=True):
    """What anybody may know of an agent that they see."""

    id: str
    name: str
    description: str | None
    personality: str | None
    tools: tuple[str, ...]
    toolset: str | None
    created_by: str
    created_by_name: str
    created_at: int
    kind: str
    """`user_agent`, or `system_agent` where the ledger made it itself."""
    system_agent_kind: str | None
    avatar_url: str | None
    emoji: str
    """Shown where there is no picture."""
    last_active_time: int | None
    """When it last said something in a conversation, or its newest turn ended."""
    public: bool
    private: bool
    is_deleted: bool


class PersonProfile(Struct, frozen=True, kw_only=True):
    """What anybody may know of a person that they see."""

    id: str
    name: str
    email: str | None = None
    image: str | None = None
    emoji: str
    """Shown where there is no picture."""
    presence: str | None = None
    last_active_time: int | None = None
    """When they last said something in a conversation."""
    is_deleted: bool = False


class RoomMention(Struct, frozen=True, kw_only=True):
    """Somebody whom a message mentions, by the name that they have now."""

    kind: str
    id: str
    name: str


class RoomMessage(Struct, frozen=True, kw_only=True):
    """Something that was said in a conversation."""

    id: str
    conversation_id: str
    position: int
    kind: str
    content: tuple[Part, ...]
    text: str
    """Its text parts; mentions stand in it as they were written."""
    author_participant_id: str | None
    author_kind: str | None
    author_id: str | None
    author_name: str | None
    mentions: tuple[RoomMention, ...]
    notice: str | None
    meta: dict[str, Any]
    """`turn`, the turn of an agent that it is the answer of; `answers`, the message that it answers; `root`, the
    person's message that it goes back to; `hops`, how many answers lie between; and what its author gave under other
    names."""
    posted_at: int
    is_erased: bool = False
    """Whether something that it said was erased: the text says so in its place."""


class RoomHit(Struct, frozen=True, kw_only=True):
    """A message of a conversation that holds what was looked for."""

    message_id: str
    room: str
    """The id of the conversation that it is read in: the oldest one that shows it."""
    room_title: str | None
    position: int
    author_id: str | None
    author_name: str | None
    posted_at: int
    snippet: str
    """A piece of its text, on one line."""
    marks: tuple[tuple[int, int], ...]
    """Where the words stand in the snippet: from, to."""


class Invitation(Struct, frozen=True, kw_only=True):
    """A person who was mentioned in a conversation and takes no part in it."""

    conversation_id: str
    conversation_title: str | None
    user_id: str
    name: str
    state: str
    invited_by: str
    invited_at: int
    message: str | None


class ReachedAgent(Struct, frozen=True, kw_only=True):
    """An agent that a message reached: the message of its inbox, and the session that answers."""

    agent: str
    name: str
    message: str
    session: str
    session_id: str


class PostedMessage(Struct, frozen=True, kw_only=True):
    """What became of a message that was posted."""

    message: str
    conversation_id: str
    position: int
    reached: tuple[ReachedAgent, ...]
    """The agents that are to answer; the triage agent where nobody was mentioned."""
    joined: tuple[str, ...] = ()
    """The names of agents that came in by being mentioned."""
    invited: tuple[str, ...] = ()
    """The names of people who were mentioned and take no part."""
    notices: tuple[str, ...] = ()
    """What the system said about it."""
