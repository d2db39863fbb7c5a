"""Which turns nobody watches that other people began: by a trigger, in a room, as a worker's, or by a message that the
owner's broker answers. Who sends a message and answers it in their own process watches it.

Whose words began a turn decides. Such a turn has no tools that write, unless the ledger's owner set `unattended_writes`
on the agent that answers. The ledger does not tell an agent that acts by itself from one that answers for the owner:
its words are those of whoever made the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.kernel.authority import LOCAL
from weft.kernel.enums import MessageSource, ProgramKind
from weft.ledger.api import InboxMessage, principals_of
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.kinds.agent import UNATTENDED_WRITES
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.programs.vouching import ensure_vouched

ROOM_FIELD = "room"
"""The field of a message's context that says in which conversation it was posted."""


class UnattendedTurn(Struct, frozen=True):
    """How a turn was begun that nobody watches, and by the words of which other people."""

    origin: str
    people: tuple[str, ...]

    def reason(self, agent: str) -> str:
        """Why a tool that writes is withheld from it."""
        return (
            f"{self.origin} of {' for '.join(self.people)} began this turn, and nobody watches it: tools that write are"
            f" withheld until the ledger's owner sets {UNATTENDED_WRITES} of the agent {agent!r} to true"
        )


def unattended_turn(programs: Programs, messages: Sequence[InboxMessage], *, is_worker: bool) -> UnattendedTurn | None:
    """How the turn of these messages was begun; None where the owner's words began it, or those of whoever runs this
    process."""
    is_owners_broker = programs.ledger.authority.is_local
    for message in messages:
        origin = _origin(message, is_worker=is_worker) or ("a message" if is_owners_broker else None)
        people = () if origin is None else other_people(programs, message)
        if origin is not None and people:
            return UnattendedTurn(origin, people)
    return None


def are_owners_words(messages: Sequence[InboxMessage]) -> bool:
    """Whether the ledger's owner wrote all of them: no trigger, no room, no agent, and nobody on whose behalf."""
    return all(map(_is_owners, messages))


def _is_owners(message: InboxMessage) -> bool:
    is_direct = message.source == MessageSource.HUMAN and _origin(message, is_worker=False) is None
    return is_direct and not principals_of(message)


def _origin(message: InboxMessage, *, is_worker: bool) -> str | None:
    if message.trigger is not None:
        return "a trigger"
    if isinstance(message.context, dict) and ROOM_FIELD in message.context:
        return "a room"
    if is_worker:
        return "a worker"
    return "an agent" if message.source == MessageSource.AGENT else None


def other_people(programs: Programs, message: InboxMessage) -> tuple[str, ...]:
    """The names of everybody but the ledger's owner in whose name a message was sent; of an agent that only they made,
    too."""
    everything = programs.acting_as(LOCAL)
    ids = (id for id in principals_of(message) if id not in (DEFAULT_AGENT, message.trigger))
    return tuple(dict.fromkeys(_others(everything.get(id) for id in ids)))


def _others(actors: Iterable[Program]) -> Iterable[str]:
    for actor in actors:
        is_owners = actor.kind == ProgramKind.AGENT and actor.created_by == DEFAULT_AGENT
        if not is_owners:
            yield actor.name


def may_write_unattended(agent: Program | None) -> bool:
    """Whether the ledger's owner lets an agent write in turns that nobody watches."""
    config = {} if agent is None else ensure_vouched(agent).config
    return isinstance(config, dict) and config.get(UNATTENDED_WRITES) is True
