"""Which waiting messages the next turn takes, and which concern the turn that runs: pure, by their modes, senders,
priorities and times."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.enums import QueueMode
from weft.ledger.api import InboxMessage, SessionStanding, principals_of, retry_of


class Collecting(Struct, frozen=True, kw_only=True):
    """How messages of the mode `collect` are gathered."""

    quiet_ms: int = 1000
    """So long nothing must have come."""
    longest_ms: int = 10_000
    """So long the first one waits at most."""
    most: int = 20


class Batch(Struct, frozen=True):
    """What the next turn takes; or when to look again, where it is still being gathered."""

    messages: tuple[InboxMessage, ...] = ()
    wait_until_ms: int | None = None


NOTHING = Batch()


def next_batch(queued: Sequence[InboxMessage], now_ms: int, collecting: Collecting | None = None) -> Batch:
    """The messages of the next turn, out of those that wait, which come in the order in which they are answered.

    An interrupting message takes everything with it that waits and was sent in the same names. Messages to collect go
    together once nothing more came for a while. What one failed turn was asked is tried again together. Everything else
    is a turn of its own; a steering message that found no turn to enter is one of them. A turn has the rights of one
    sender: messages that were sent in different names never go together.
    """
    if not queued:
        return NOTHING
    interrupting = next((message for message in queued if message.mode == QueueMode.INTERRUPT), None)
    if interrupting is not None:
        return Batch(tuple(sorted(_of_same_names(queued, interrupting), key=lambda message: message.n)))
    first = queued[0]
    if (retry := retry_of(first)) is not None:
        return Batch(tuple(message for message in _of_same_names(queued, first) if retry_of(message) == retry))
    if first.mode != QueueMode.COLLECT:
        return Batch((first,))
    together = _collected(queued, (collecting or Collecting()).most)
    until = _gathered_at(together, collecting or Collecting())
    return Batch(together) if until <= now_ms else Batch((), until)


def _of_same_names(queued: Sequence[InboxMessage], first: InboxMessage) -> list[InboxMessage]:
    return [message for message in queued if principals_of(message) == principals_of(first)]


def _collected(queued: Sequence[InboxMessage], most: int) -> tuple[InboxMessage, ...]:
    """The first message to collect and those of the same names that may go with it, in order of arrival. None overtakes
    a message of its own sender that is answered before it."""
    together: list[InboxMessage] = []
    for message in queued:
        if message.sender != queued[0].sender:
            continue
        if message.mode != QueueMode.COLLECT or principals_of(message) != principals_of(queued[0]):
            break
        together.append(message)
        if len(together) >= most:
            break
    return tuple(sorted(together, key=lambda message: message.n))


def _gathered_at(together: Sequence[InboxMessage], collecting: Collecting) -> int:
    if len(together) >= collecting.most:
        return 0
    last, first = together[-1].admitted_at, together[0].admitted_at
    return min(last + collecting.quiet_ms, first + collecting.longest_ms)


def is_interrupted(standing: SessionStanding) -> bool:
    """Whether a message wants to cut the open turn short: one that came after the turn began."""
    return any(
        message.mode == QueueMode.INTERRUPT and message.n > (standing.open_since or 0) for message in standing.queued
    )


def steering(standing: SessionStanding) -> list[InboxMessage]:
    """Messages that may enter the open turn. Those in whose name such a message was sent are among those in whose names
    the turn runs: it has no rights then that the sender has not. Any other waits for a turn of its own."""
    names = set(standing.open_principals)
    return [
        message
        for message in standing.queued
        if message.mode == QueueMode.STEER and names.issuperset(principals_of(message))
    ]
