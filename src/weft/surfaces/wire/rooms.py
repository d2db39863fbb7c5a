"""What the commands of rooms answer beside the records of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from weft.ledger.api import Invitation, Participant, PostedMessage, ReachedAgent, Room, RoomMessage


class RoomMember(Struct, frozen=True, kw_only=True):
    """Somebody in a room, and how they are shown: by their picture, or where they have none by their emoji. Of an agent
    that does not work for whoever looks nothing more is told than its name."""

    participant: Participant
    avatar_url: str | None = None
    emoji: str | None = None
    last_active_time: int | None = None


class ShownRoom(Struct, frozen=True, kw_only=True):
    """`room show`: a room, everybody who takes part, and who waits to be let in."""

    room: Room
    members: tuple[RoomMember, ...]
    invitations: tuple[Invitation, ...]


class AnsweredPost(Struct, frozen=True, kw_only=True):
    """`room post`: what became of a message. `answers` are what was said because of it while it was waited for,
    notices included; `waiting` are agents that have not answered; `unknown` are names behind an @ that nobody has or
    several have, and that stayed text."""

    posted: PostedMessage
    answers: tuple[RoomMessage, ...] = ()
    waiting: tuple[ReachedAgent, ...] = ()
    unknown: tuple[str, ...] = ()


class DeclinedInvitation(Struct, frozen=True, kw_only=True):
    """`room decline`: whose invitation to which room was ended."""

    room: str
    person: str
