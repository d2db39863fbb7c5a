"""Rooms in tests of following them: agents that say what a test tells them to, and somebody who follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import weft.aio
from tests.ledger.rooms import cast
from tests.runtime.inference.asking import model, person
from tests.runtime.speaking import URL, Speaker
from weft.chat.room_stream import (
    RoomAnswerEnded,
    RoomAnswerText,
    RoomFollowingEnded,
    RoomItem,
    RoomMessageAdded,
    RoomParticipantChanged,
    follow_room,
)
from weft.ledger.api import InboxMessage, RunConfig, SessionStanding
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan


class Room:
    """A ledger with people and agents, a broker, and a model of its own for each agent."""

    def __init__(self, ledger: weft.aio.AsyncLedger) -> None:
        self.ledger, self.people = ledger, cast(ledger.sync)
        self.speakers = {name: Speaker() for name in ("helper", "reviewer", "triage")}
        self.broker = Broker(ledger.sync, ledger.crossing, self._plan, is_streamed=True)

    async def _plan(self, standing: SessionStanding, _: Sequence[InboxMessage]) -> TurnPlan:
        speaker = self.speakers[standing.label.rpartition(":")[2]]
        return TurnPlan(model=model(URL), inference=speaker, acting=person(URL), setting=RunConfig())

    def post(self, person: str, text: str) -> None:
        self.people.ledger_of(person).rooms.post("plans", text)
        self.broker.wake()

    def follow(self, person: str, **options: int | float | None) -> Follower:
        return Follower(self.ledger.acting_as(person), **options)


class Follower:
    """Somebody who follows the room, and what they have on their screen."""

    def __init__(self, ledger: weft.aio.AsyncLedger, **options: int | float | None) -> None:
        self._items = follow_room(ledger, "plans", **options)  # type: ignore[arg-type]
        self.items: list[RoomItem] = []
        self.messages: list[tuple[int, str]] = []
        self.answers: dict[str, str] = {}
        """By agent, what is being written."""
        self.statuses: dict[str, str] = {}

    async def next(self) -> RoomItem | None:
        item = await anext(self._items, None)
        if item is None:
            return None
        self.items.append(item)
        match item:
            case RoomMessageAdded():
                self.messages.append((item.message.position, item.message.text))
            case RoomAnswerText():
                before = self.answers.get(item.name, "")[: item.start]
                assert len(before) == item.start, "a piece is missing"
                self.answers[item.name] = before + item.text
            case RoomAnswerEnded():
                del self.answers[item.name]
            case RoomParticipantChanged():
                one = item.participant
                self.statuses[one.name] = "gone" if one.is_removed else one.status
        return item

    async def until(self, kind: type[RoomItem], text: str | None = None) -> RoomItem:
        """Take items up to one of this kind, or up to the one with this text, written so far or said."""
        while (item := await self.next()) is not None:
            if isinstance(item, kind) and text in (None, _text(item), *self.answers.values()):
                return item
        raise AssertionError("the stream ended")

    async def rest(self) -> list[RoomItem]:
        items = []
        while (item := await self.next()) is not None:
            items.append(item)
        return items

    async def close(self) -> None:
        await self._items.aclose()


def _text(item: RoomItem) -> str | None:
    if isinstance(item, RoomMessageAdded):
        return item.message.text
    return item.reason if isinstance(item, RoomFollowingEnded) else None


@asynccontextmanager
async def room_at(address: object, *, is_served: bool = True) -> AsyncIterator[Room]:
    """The room plans of alice's, with bob, helper and reviewer."""
    async with weft.aio.open(address) as ledger:  # type: ignore[arg-type]
        room = Room(ledger)
        alice = room.people.ledger_of("alice")
        alice.rooms.create("plans", agents=["helper", "reviewer"], people=["bob"])
        serving = asyncio.ensure_future(room.broker.serve()) if is_served else None
        try:
            yield room
        finally:
            if serving is not None:
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving
