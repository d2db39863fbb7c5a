"""A message that a broker of another process answers: its sender follows the ledger until it is settled.

Nothing is loaded here that plans a turn, asks a model or runs a tool. Where no broker takes the message soon, where the
last one is gone, where nobody alive works on the turn that took it, or where a person is asked about a tool call, the
sender goes on with a broker of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.clock import SystemClock
from weft.kernel.enums import InboxState
from weft.kernel.errors import NotApplicable
from weft.ledger.api import (
    AttemptReset,
    Ledger,
    MessageAdded,
    Runs,
    SessionStream,
    StreamItem,
    TextAdded,
    store_of,
)
from weft.runtime.inference.replies import ReplyToken, TokenKind
from weft.runtime.turns.recorded_replies import TurnReply, load_reply

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

TAKING_SECONDS = 2.0
"""So long a sender waits for a broker to begin with its message."""
LOOK_SECONDS = 0.5
"""How often a sender looks whether there is a broker still, and what it kept of the answer that it hears."""


def await_served(ledger: Ledger, message: str, session: str, answer: FollowedAnswer | None = None) -> TurnReply | None:
    """The answer to a message that was admitted to a session, both by their ids; None where its sender must see to it.
    `answer` tells it as it comes. Whoever is interrupted meanwhile calls `leave_message`."""
    runs, clock = Runs(ledger), SystemClock()
    until = clock.monotonic() + TAKING_SECONDS
    next_check = clock.monotonic()
    while True:
        newest = ledger.newest()  # before anything is read: what comes after it is waited for
        state, is_elsewhere = runs.message_state(message)
        if answer is not None:
            answer.tell_news()
        if state not in (InboxState.QUEUED, InboxState.TAKEN):
            return load_reply(ledger, ledger.inbox.get(message))
        if state == InboxState.QUEUED and (is_elsewhere or clock.monotonic() >= until):
            return None
        if not runs.has_broker() or runs.open_requests(session):
            return None
        if state == InboxState.TAKEN and clock.monotonic() >= next_check:  # not at each of others' events
            next_check = clock.monotonic() + LOOK_SECONDS
            if _is_left(runs, session):
                return None
        runs.wait_for_news(newest, LOOK_SECONDS)


def _is_left(runs: Runs, session: str) -> bool:
    """Whether nobody who is alive works on the open turn of the session, though it could go on: the broker that began
    it stands still, or is gone while others are there. That its lease is silent is seen by looking again and again."""
    turn = runs.standing(session, 1).open_turn
    return turn is not None and runs.is_left(turn)


def leave_message(ledger: Ledger, message: str) -> str:
    """Its sender waits no more: the message is taken back, or the turn that has it is cut short. Nothing happens where
    it is settled, whatever runs in its session by now. Says which of them it was."""
    try:
        ledger.inbox.cancel(message, reason="its sender left")
    except NotApplicable:  # a turn has it, or it is over
        if Runs(ledger).interrupt_answer(message):
            return "the turn that answers the message is cut short"
        turn = ledger.inbox.get(message).turn
        is_cut = turn is not None and ledger.turn(turn).interruption_reason is not None
        return "the turn that answered the message was cut short" if is_cut else "the message was answered already"
    return "the message was taken back: no model was asked"


class FollowedAnswer:
    """The answer to one message, told piece by piece as its broker keeps it for readers elsewhere, or as somebody who
    goes on with it hears it. A piece counts to a new attempt where the one before it was taken back."""

    def __init__(self, ledger: Ledger, message: str, session: str, on_token: OnToken) -> None:
        self._ledger, self.session = ledger, session
        self._stream = SessionStream(store_of(ledger), session, None)
        self.position = self._stream.cursor.position
        """How far it was told."""
        self._message, self._on_token = message, on_token
        self._turn: str | None = None
        self._attempt = 1

    def tell_news(self) -> None:
        """What there is by now, where nobody else tells it."""
        while (items := self._stream.read()) is not None:
            for item in items:
                self.tell(item)
        for item in self._stream.read_partial():
            self.tell(item)

    def tell_rest(self) -> None:
        """What there is beyond what others told."""
        self._stream = SessionStream(store_of(self._ledger), self.session, self.position)
        self.tell_news()

    def tell(self, item: StreamItem) -> None:
        self.position = item.position
        match item:
            case MessageAdded(message=self._message):
                self._turn = item.turn
            case TextAdded() if item.turn == self._turn:
                self._on_token(ReplyToken(item.text, TokenKind(item.kind), self._attempt))
            case AttemptReset() if item.turn == self._turn:
                self._attempt += 1
            case _:
                return
