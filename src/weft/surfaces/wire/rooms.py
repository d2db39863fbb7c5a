"""What the commands of rooms answer beside the records of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from weft.ledger.api import Invitation, Participant, PostedMessage, Reached, Room, RoomMessage


class RoomMember(Struct, frozen=True, kw_only=True):
    """Somebody in a room, and how an agent is shown: its picture, or where it has none its emoji."""

    participant: Participant
    avatar_url: str | None = None
    emoji: str | None = None


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
    waiting: tuple[Reached, ...] = ()
    unknown: tuple[str, ...] = ()


class DeclinedInvitation(Struct, frozen=True, kw_only=True):
    """`room decline`: whose invitation to which room was ended."""

    room: str
    person: str
