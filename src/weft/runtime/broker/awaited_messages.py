"""Messages whose answers somebody in this process awaits: who sent them with which plan, and how their turns ended."""

from __future__ import annotations

from collections.abc import Iterable

from weft.runtime.broker.plans import Sending
from weft.runtime.broker.turn_entries import TurnEnd


class AwaitedMessages:
    """All of one broker, by their ids."""

    def __init__(self) -> None:
        self._sendings: dict[str, Sending] = {}
        self._sessions: dict[str, str] = {}
        self._ends: dict[str, TurnEnd] = {}

    @property
    def sessions(self) -> frozenset[str]:
        """The sessions that awaited messages were sent to."""
        return frozenset(self._sessions.values())

    def expect(self, message: str, sending: Sending) -> None:
        """Its sender knows how it is to be answered."""
        self._sendings[message] = sending

    def sendings(self, messages: Iterable[str]) -> list[Sending]:
        """What the senders of these messages know, where they are in this process."""
        return [self._sendings[message] for message in messages if message in self._sendings]

    def settle(self, message: str) -> None:
        """It is settled, here or elsewhere: how it is to be answered is of no use to anybody. Of one that only nobody
        awaits any more it is kept: its turn may still be begun here."""
        self._sendings.pop(message, None)

    def add(self, message: str, session: str) -> None:
        """Somebody awaits the answer to a message from now on."""
        self._sessions[message] = session

    def is_alone(self, message: str, session: str) -> bool:
        """Whether no other message of the session is awaited."""
        return all(one == message for one, place in self._sessions.items() if place == session)

    def remove(self, message: str) -> None:
        self._sessions.pop(message, None)
        self._ends.pop(message, None)

    def set_end(self, messages: Iterable[str], end: TurnEnd) -> None:
        """The turn of these messages is over."""
        for message in messages:
            self.settle(message)
            if message in self._sessions:
                self._ends[message] = end

    def end(self, message: str) -> TurnEnd | None:
        """How the turn of an awaited message ended; None where that is not known yet."""
        return self._ends.get(message)
