"""Which waiting messages the next turn takes: pure, by their modes, priorities and times."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.enums import QueueMode
from weft.ledger.api import InboxMessage, retry_of


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

    An interrupting message takes everything with it that waits. Messages to collect go together once nothing more came
    for a while. What one failed turn was asked is tried again together. Everything else is a turn of its own; a
    steering message that found no turn to enter is one of them.
    """
    if not queued:
        return NOTHING
    if any(message.mode == QueueMode.INTERRUPT for message in queued):
        return Batch(tuple(sorted(queued, key=lambda message: message.n)))
    first = queued[0]
    if (retry := retry_of(first)) is not None:
        return Batch(tuple(message for message in queued if retry_of(message) == retry))
    if first.mode != QueueMode.COLLECT:
        return Batch((first,))
    together = _collected(queued, (collecting or Collecting()).most)
    until = _gathered_at(together, collecting or Collecting())
    return Batch(together) if until <= now_ms else Batch((), until)


def _collected(queued: Sequence[InboxMessage], most: int) -> tuple[InboxMessage, ...]:
    """The first message to collect and those that may go with it, in order of arrival. None overtakes a message of its
    own sender that is answered before it."""
    barred: set[str] = set()
    together: list[InboxMessage] = []
    for message in queued:
        if message.mode != QueueMode.COLLECT or len(together) >= most:
            barred.add(message.sender)
        elif message.sender not in barred:
            together.append(message)
    return tuple(sorted(together, key=lambda message: message.n))


def _gathered_at(together: Sequence[InboxMessage], collecting: Collecting) -> int:
    if len(together) >= collecting.most:
        return 0
    last, first = together[-1].admitted_at, together[0].admitted_at
    return min(last + collecting.quiet_ms, first + collecting.longest_ms)
