"""Following a room: every message once and in order, answers while they are written, and who does what meanwhile.

Messages, participants and open turns are read from the ledger in one transaction each time. A position is the number of
a message: whoever goes on behind one is told every message that follows it. Answers that are being written have no
position of their own; whoever begins to follow is told them from their first letter. Their text comes from the hub
where the turn runs in this process, else from what its broker keeps for readers elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial

from msgspec import Struct

from weft.ledger.api import (
    PARTIAL_POLL_SECONDS,
    OpenAnswer,
    Participant,
    RoomFeed,
    RoomMessage,
    RoomNews,
    Runs,
    store_of,
)
from weft.ledger.arguments import checked_seconds
from weft.runtime.streams.hub import Bell, StreamHub, hub_of
from weft.runtime.turns.ledger_port import Crossing, RuntimeLedger

HELD_SECONDS = 0.25
"""Items that were read so long ago are not handed out: what is new is read again."""
NO_THINKING = 2**62
"""Of what a model thinks nothing is told: so many letters of it count as told."""


class RoomItem(Struct, frozen=True, kw_only=True, tag_field="item"):
    """One thing that happened in a room. `position` is the number of the last message that was told."""

    position: int


class RoomMessageAdded(RoomItem, frozen=True, kw_only=True, tag="room_message"):
    """Somebody said something, or the system did."""

    message: RoomMessage


class RoomAnswerText(RoomItem, frozen=True, kw_only=True, tag="room_answer_text"):
    """An answer that is being written goes on. `start` is where the piece begins in it; 0 begins it anew."""

    participant: str
    agent: str
    name: str
    turn: str
    start: int
    text: str


class RoomAnswerEnded(RoomItem, frozen=True, kw_only=True, tag="room_answer_ended"):
    """A turn that was answering is over. Its answer is among the messages told before, if there is one."""

    participant: str
    agent: str
    name: str
    turn: str


class RoomApprovalAsked(RoomItem, frozen=True, kw_only=True, tag="room_approval"):
    """A tool call of an agent that is answering waits for a person; `approval` is its id among the approvals."""

    participant: str
    agent: str
    name: str
    turn: str
    approval: str


class RoomParticipantChanged(RoomItem, frozen=True, kw_only=True, tag="room_participant"):
    """Somebody came, went, or does something else now. Whoever begins to follow is told of everybody who is there."""

    participant: Participant


class RoomStateChanged(RoomItem, frozen=True, kw_only=True, tag="room_state"):
    """The room has another title, was archived or restored."""

    title: str | None
    status: str


class RoomFollowingEnded(RoomItem, frozen=True, kw_only=True, tag="room_ended"):
    """The last item: whoever follows takes part no longer. `reason` is left, removed or gone."""

    reason: str


ROOM_ITEMS: tuple[type[RoomItem], ...] = (
    RoomMessageAdded,
    RoomAnswerText,
    RoomAnswerEnded,
    RoomApprovalAsked,
    RoomParticipantChanged,
    RoomStateChanged,
    RoomFollowingEnded,
)


async def follow_room(
    ledger: RuntimeLedger, room: str, *, after: int | None = None, wait: float | None = None
) -> AsyncGenerator[RoomItem, None]:
    """What happens in a room behind a position, by default from now on. It ends with an item that says so when whoever
    follows takes part no longer, and without one when nothing has come for `wait` seconds."""
    seconds = None if wait is None else checked_seconds(wait, "wait")
    crossing, hub, clock = ledger.crossing, hub_of(ledger.crossing), asyncio.get_running_loop().time
    feed = await crossing.run(partial(RoomFeed, store_of(ledger.sync), room, after))
    with hub.bell(feed.id, Runs(ledger.sync), feed.newest) as bell:
        follower = _RoomFollower(crossing, hub, feed, bell)
        last = clock()
        while True:
            async for item in follower.items():
                yield item
                last = clock()
                if isinstance(item, RoomFollowingEnded):
                    return
            left = None if seconds is None else last + seconds - clock()
            if left is not None and left <= 0:
                return
            await follower.sleep(left)


class _RoomFollower:
    """One subscriber in this process, and what it was told until now."""

    def __init__(self, crossing: Crossing, hub: StreamHub, feed: RoomFeed, bell: Bell) -> None:
        self._crossing, self._hub, self._feed, self._bell = crossing, hub, feed, bell
        self._position = feed.position
        self._state: tuple[str | None, str] | None = None
        self._participants: dict[str, Participant] = {}
        self._answers: dict[str, OpenAnswer] = {}
        """By turn, those under way."""
        self._attempts: dict[str, tuple[int, int]] = {}
        """By turn, of which request the answer was told, and how many letters of it."""

    async def items(self) -> AsyncGenerator[RoomItem, None]:
        """What there is to be told now."""
        clock = asyncio.get_running_loop().time
        while self._bell.has_news:
            self._bell.has_news = False
            news, read_at = await self._crossing.run(self._feed.read), clock()
            for item in self._news_items(news):
                yield item
                if clock() - read_at >= HELD_SECONDS:
                    self._feed.go_back(self._position)
                    self._bell.has_news = True
                    break
            else:
                self._bell.has_news = self._bell.has_news or news.has_more
        if not self._answers:
            return
        async for item in self._text_items():
            yield item

    def _news_items(self, news: RoomNews) -> Iterator[RoomItem]:
        for message in news.messages:
            self._position = message.position
            yield RoomMessageAdded(position=self._position, message=message)
        if news.ended is not None:
            yield RoomFollowingEnded(position=self._position, reason=news.ended)
            return
        if news.has_more:
            return
        yield from self._state_items(news)
        yield from self._participant_items(news)
        yield from self._answer_items(news)

    def _state_items(self, news: RoomNews) -> Iterator[RoomItem]:
        before, self._state = self._state, (news.title, news.status)
        if before not in (None, self._state):
            yield RoomStateChanged(position=self._position, title=news.title, status=news.status)

    def _participant_items(self, news: RoomNews) -> Iterator[RoomItem]:
        for participant in news.participants:
            before = self._participants.get(participant.id)
            if before == participant or (before is None and participant.is_removed):
                continue
            self._participants[participant.id] = participant
            yield RoomParticipantChanged(position=self._position, participant=participant)

    def _answer_items(self, news: RoomNews) -> Iterator[RoomItem]:
        """Turns that are over are told; those under way are listened to from now on."""
        self._hub.ring_for(self._bell, {self._feed.id, *news.sessions})
        answers = {answer.turn: answer for answer in news.answers}
        for turn, answer in list(self._answers.items()):
            if turn in answers:
                continue
            del self._answers[turn]
            if self._attempts.pop(turn, None) is not None:
                yield RoomAnswerEnded(
                    position=self._position,
                    participant=answer.participant,
                    agent=answer.agent,
                    name=answer.name,
                    turn=turn,
                )
        for turn, answer in answers.items():
            yield from self._request_items(answer, self._answers.get(turn))
            self._answers[turn] = answer

    def _request_items(self, answer: OpenAnswer, before: OpenAnswer | None) -> Iterator[RoomItem]:
        for request in answer.requests:
            if before is None or request not in before.requests:
                yield RoomApprovalAsked(
                    position=self._position,
                    participant=answer.participant,
                    agent=answer.agent,
                    name=answer.name,
                    turn=answer.turn,
                    approval=request,
                )

    async def _text_items(self) -> AsyncGenerator[RoomItem, None]:
        """More of the answers under way, if whoever follows still takes part."""
        absent = [turn for turn in self._answers if self._hub.newest_text(turn) is None]
        clock = asyncio.get_running_loop().time
        partials, read_at = await self._crossing.run(partial(self._feed.read_partials, absent)), clock()
        if partials is None:  # the next reading says why
            self._bell.has_news = True
            return
        for turn, answer in list(self._answers.items()):
            live, kept = self._hub.newest_text(turn), partials.get(turn)
            if live is not None:
                start = self._sent_letters(turn, live.attempt)
                text = "".join(text for _, text in live.beyond(start, NO_THINKING))
                attempt = live.attempt
            elif kept is not None:
                attempt, start = kept.attempt, self._sent_letters(turn, kept.attempt)
                text = kept.text[start:]
            else:
                continue
            if text and attempt >= self._attempts.get(turn, (0, 0))[0]:
                self._attempts[turn] = (attempt, start + len(text))
                yield self._piece(answer, start, text)
            if clock() - read_at >= HELD_SECONDS:  # whether they still take part is asked again
                self._bell.ring()
                return

    def _sent_letters(self, turn: str, attempt: int) -> int:
        """How many letters were sent of the answer to a request of a turn."""
        sent_attempt, letters = self._attempts.get(turn, (0, 0))
        return letters if attempt == sent_attempt else 0

    def _piece(self, answer: OpenAnswer, start: int, text: str) -> RoomAnswerText:
        return RoomAnswerText(
            position=self._position,
            participant=answer.participant,
            agent=answer.agent,
            name=answer.name,
            turn=answer.turn,
            start=start,
            text=text,
        )

    async def sleep(self, seconds: float | None) -> None:
        """Until there is something new; what other processes keep of answers is looked at now and then."""
        if self._bell.has_news:
            return
        if any(self._hub.newest_text(turn) is None for turn in self._answers):
            seconds = PARTIAL_POLL_SECONDS if seconds is None else min(seconds, PARTIAL_POLL_SECONDS)
        await self._bell.wait(seconds)
