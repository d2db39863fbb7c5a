"""Has a message of a room answered by the agents that it reached, and by those that their answers reach in turn.

Each of them answers in its own session, several at once, through the broker that one open ledger's senders share, or
through another broker that is quicker. An answer is posted by the transaction that ends its turn; here it is only read
back. Whoever is cancelled has the turns under way end with what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from weft.kernel.errors import WeftError
from weft.ledger.api import Admission, Ledger, PostedMessage, ReachedAgent, RoomMessage
from weft.runtime.broker.plans import Planner, Sending
from weft.runtime.turns.ledger_port import RuntimeLedger
from weft.runtime.turns.messages import answer_admitted, broker_of
from weft.runtime.turns.recorded_replies import TurnReply

PAGE_MESSAGES = 200
OnMessage = Callable[[RoomMessage], None]


class FailedAnswer(Struct, frozen=True):
    """An agent that could not answer, and why."""

    reached: ReachedAgent
    error: WeftError


class PendingAnswers:
    """The answers to one message of a room."""

    def __init__(
        self, ledger: RuntimeLedger, reader: Ledger, posted: PostedMessage, planner: Planner, on_message: OnMessage
    ) -> None:
        self._ledger, self._reader, self._room, self._root = ledger, reader, posted.conversation_id, posted.message
        self._sending, self._on_message = Sending(planner=planner), on_message
        self._tasks: dict[asyncio.Task[TurnReply], ReachedAgent] = {}
        self._begun: set[str] = set()
        self.failures: list[FailedAnswer] = []

    async def settle(self, after: int) -> None:
        """Until nobody has anything to answer. `on_message` hears what is said because of the message, behind the
        position `after`."""
        try:
            while True:
                await self._begin_new()
                after = await self._read_new(after)
                if not self._tasks:
                    return
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self.failures += self._ended(done)
        finally:
            await self._give_up()

    async def _begin_new(self) -> None:
        """Whoever was begun with and still has it to answer is left to other brokers."""
        pending = await self._ledger.crossing.run(partial(self._ledger.sync.rooms.pending, self._room, self._root))
        for reached in pending:
            if reached.message not in self._begun:
                self._begun.add(reached.message)
                task = asyncio.ensure_future(answer_admitted(self._ledger, _admission(reached), self._sending))
                self._tasks[task] = reached

    async def _read_new(self, after: int) -> int:
        while True:
            page = await self._ledger.crossing.run(
                partial(self._reader.rooms.messages, self._room, after=after, limit=PAGE_MESSAGES)
            )
            for message in page:
                if message.meta.get("root") == self._root:
                    self._on_message(message)
            if not page:
                return after
            after = page[-1].position

    def _ended(self, done: set[asyncio.Task[TurnReply]]) -> Iterator[FailedAnswer]:
        for task in done:
            reached, error = self._tasks.pop(task), task.exception()
            if isinstance(error, WeftError):
                yield FailedAnswer(reached, error)
            elif error is not None:
                raise error

    async def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _admission(reached: ReachedAgent) -> Admission:
    return Admission(
        message=reached.message, session=reached.session, session_id=reached.session_id, is_fork=False, receipt=None
    )


async def answer_pending(
    ledger: RuntimeLedger,
    reader: Ledger,
    posted: PostedMessage,
    planner: Planner,
    *,
    on_message: OnMessage,
) -> list[FailedAnswer]:
    """Have everything answered that goes back to a message which was just posted. Turns run in the name of `ledger`,
    whose owner may use the sessions of all agents there; `planner` plans every one of them, also for what others left
    in those sessions. `on_message` hears what is said because of the message, as far as `reader`, the ledger in the
    name of whoever posted it, may read it. Returns who could not answer."""
    ledger.trust.ensure("send a message to a model")
    broker_of(ledger).plan_with(planner)
    answers = PendingAnswers(ledger, reader, posted, planner, on_message)
    await answers.settle(posted.position)
    return answers.failures
