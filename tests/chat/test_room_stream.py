"""Following a room: each message once and in order, several answers while they are written, and the end of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import weft.aio
from tests.chat.following import Follower, Room, room_at
from tests.conftest import NewPostgresLedger
from tests.ledger.rooms import answer
from tests.runtime.speaking import AGAIN, END, said, thought
from tests.sizes import points
from weft.chat import room_stream
from weft.chat.room_stream import (
    RoomAnswerEnded,
    RoomAnswerText,
    RoomFollowingEnded,
    RoomMessageAdded,
    RoomParticipantChanged,
    RoomStateChanged,
    follow_room,
)
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import PartialReply, Runs


@pytest.fixture(params=["disk", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> str | Path:
    return new_postgres_ledger() if request.param == "postgres" else tmp_path / "ledger.db"


def test_two_agents_answer_at_once_and_everybody_hears_both(address: str | Path) -> None:
    async def main() -> None:
        async with room_at(address) as room:
            bob, mention = room.follow("bob", after=0), room.people.mention
            await bob.until(RoomParticipantChanged)
            room.post("alice", f"{mention('helper')} {mention('reviewer')}, now?")
            helper, reviewer = room.speakers["helper"], room.speakers["reviewer"]
            helper.say(thought("Hm"), said("I "))
            await bob.until(RoomAnswerText, "I ")
            reviewer.say(said("You "))
            await bob.until(RoomAnswerText, "You ")
            helper.say(said("do"))
            await bob.until(RoomAnswerText, "I do")
            assert bob.answers == {"helper": "I do", "reviewer": "You "}
            assert bob.statuses["helper"] == bob.statuses["reviewer"] == "thinking"
            late = room.follow("bob", after=0)
            while late.answers != bob.answers:  # whoever comes late is told answers from their first letter
                assert await late.next() is not None
            reviewer.say(said("don't"), END)
            posted = await bob.until(RoomMessageAdded, "You don't")
            assert isinstance(posted, RoomMessageAdded)
            assert await late.until(RoomMessageAdded, "You don't") == posted
            for one in (bob, late):
                ended = await one.until(RoomAnswerEnded)
                assert isinstance(ended, RoomAnswerEnded)
                assert posted.message.meta["turn"] == ended.turn
                assert one.answers == {"helper": "I do"}
                await one.close()
            again = room.follow("bob", after=posted.position)
            helper.say(END)
            await again.until(RoomMessageAdded)
            assert again.messages == [(posted.position + 1, "I do")]
            while again.statuses.get("helper") != "inactive":
                await again.next()
            assert "Hm" not in repr(bob.items), "what a model thinks is not for the room"
            await again.close()

    asyncio.run(main())


def test_an_answer_that_is_begun_anew_takes_the_place_of_what_was_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db") as room:
            bob = room.follow("bob")
            room.post("alice", f"{room.people.mention('helper')}?")
            room.speakers["helper"].say(said("Half an"))
            await bob.until(RoomAnswerText, "Half an")
            room.speakers["helper"].say(AGAIN, said("Who"))
            item = await bob.until(RoomAnswerText, "Who")
            assert isinstance(item, RoomAnswerText)
            assert (item.start, item.text) == (0, "Who")
            room.speakers["helper"].say(said("le"), END)
            await bob.until(RoomMessageAdded, "Whole")
            await bob.close()

    asyncio.run(main())


@pytest.mark.parametrize(("way", "reason"), [("remove", "removed"), ("leave", "left")])
def test_whoever_is_removed_or_leaves_loses_the_stream_at_once(address: str | Path, way: str, reason: str) -> None:
    async def main() -> None:
        async with room_at(address) as room:
            alice, helper = room.people.ledger_of("alice"), room.speakers["helper"]
            bob, owner = room.follow("bob"), room.follow("alice")
            room.post("alice", f"{room.people.mention('helper')}?")
            helper.say(said("One "))
            await bob.until(RoomAnswerText, "One ")
            await owner.until(RoomAnswerText, "One ")
            if way == "remove":
                alice.rooms.remove("plans", "bob")
            else:
                room.people.ledger_of("bob").rooms.leave("plans")
            helper.say(said("two"))
            last = (await bob.rest())[-1]
            assert isinstance(last, RoomFollowingEnded)
            assert last.reason == reason
            assert "two" not in repr(bob.items)
            await owner.until(RoomAnswerText, "One two")
            helper.say(END)
            await owner.until(RoomMessageAdded, "One two")
            again = room.follow("bob", after=0)
            (*_, end) = await again.rest()
            assert isinstance(end, RoomFollowingEnded)
            assert "One two" not in repr(again.items)
            assert room.people.mention("helper") + "?" in [text for _, text in again.messages]
            with pytest.raises(NotFound):
                await room.follow("carol").next()
            await owner.close()

    asyncio.run(main())


def test_whoever_opened_the_ledger_follows_without_taking_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db", is_served=False) as room:
            owner = Follower(room.ledger, after=0, wait=0)
            await owner.rest()
            assert owner.statuses == dict.fromkeys(("alice", "triage", "bob", "helper", "reviewer"), "inactive")
            local = Follower(room.ledger)
            await local.until(RoomParticipantChanged)
            alice = room.people.ledger_of("alice")
            alice.rooms.retitle("plans", "deeds")
            item = await local.until(RoomStateChanged)
            assert isinstance(item, RoomStateChanged)
            assert (item.title, item.status) == ("deeds", "active")
            alice.rooms.remove("deeds", "helper")
            while local.statuses["helper"] != "gone":
                await local.next()
            await local.close()
            with pytest.raises(InvalidInput, match="beyond the newest message"):
                await anext(follow_room(room.ledger, "deeds", after=99))

    asyncio.run(main())


def test_what_another_process_keeps_of_an_answer_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db", is_served=False) as room:
            room.post("alice", f"{room.people.mention('helper')}?")
            runs = Runs(room.ledger.sync)
            standing = runs.standing(runs.waiting()[0].session)
            expected = (standing.head, standing.head_events)
            messages = [standing.queued[0].id]
            writer, _ = runs.begin(standing.id, expected=expected, messages=messages, before=(), then=None)
            async with weft.aio.open(tmp_path / "ledger.db") as elsewhere:
                bob = Follower(elsewhere.acting_as("bob"))
                runs.keep_partial(writer.id, PartialReply(1, "Be", "secret thoughts"))
                await bob.until(RoomAnswerText, "Be")
                runs.keep_partial(writer.id, PartialReply(1, "Begun"))
                await bob.until(RoomAnswerText, "Begun")
                runs.keep_partial(writer.id, PartialReply(2, "Anew"))
                await bob.until(RoomAnswerText, "Anew")
                assert "secret" not in repr(bob.items)
                await bob.close()

    asyncio.run(main())


def test_what_the_owner_of_a_session_says_in_it_is_not_told_to_the_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db") as room:
            session = room.people.ledger_of("alice").rooms.participants("plans")[-2].session
            assert session is not None
            bob = room.follow("bob")
            await bob.until(RoomParticipantChanged)
            await room.ledger.inbox.admit("Between us", session=session)
            room.broker.wake()
            room.speakers["helper"].say(said("A secret"))
            while not room.speakers["helper"].words.empty():
                await asyncio.sleep(0)
            room.post("alice", f"{room.people.mention('reviewer')}?")
            room.speakers["reviewer"].say(said("Pub"))
            await bob.until(RoomAnswerText, "Pub")
            room.speakers["reviewer"].say(said("lic"), END)
            await bob.until(RoomMessageAdded, "Public")
            room.speakers["helper"].say(END)
            await bob.close()
            assert "secret" not in repr(bob.items)

    asyncio.run(main())


def test_many_messages_come_in_batches_and_slow_readers_are_read_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.ledger.room_reading.BATCH_MESSAGES", 3)

    async def main() -> None:
        async with room_at(tmp_path / "ledger.db", is_served=False) as room:
            for number in range(8):
                room.post("alice", f"{room.people.mention('bob')} {number}")
            newest = room.people.ledger_of("alice").rooms.get("plans").position
            for held in (room_stream.HELD_SECONDS, 0):
                monkeypatch.setattr(room_stream, "HELD_SECONDS", held)
                follower = Follower(room.ledger, after=0, wait=0)
                await follower.rest()
                assert [position for position, _ in follower.messages] == list(range(1, newest + 1))
                assert follower.statuses.keys() == {"alice", "triage", "bob", "helper", "reviewer"}

    asyncio.run(main())


async def _shuffled(room: Room, seed: int) -> None:
    """Posts, answers, removals of others and reconnects in a random order."""
    random, people = Random(seed), room.people
    alice, bob = people.ledger_of("alice"), people.ledger_of("bob")
    followers = {name: room.follow(name, after=0, wait=0) for name in ("alice", "bob")}
    told: dict[str, list[tuple[int, str]]] = {name: [] for name in followers}
    for number in range(25):
        match random.randrange(6):
            case 0:
                alice.rooms.post("plans", f"{people.mention('helper')} {number}")
            case 1:
                bob.rooms.post("plans", f"{people.mention('reviewer')} {people.mention('helper')} {number}")
            case 2 if alice.rooms.pending("plans"):
                waiting = random.choice(alice.rooms.pending("plans"))
                answer(people.ledger, waiting.name, f"answer {number}")
            case 3:
                alice.rooms.retitle("plans", "plans")
            case _:
                name = random.choice(list(followers))
                for _ in range(random.randrange(4)):
                    if await followers[name].next() is None:
                        break
                await followers[name].close()
                told[name] += followers[name].messages
                position = told[name][-1][0] if told[name] else 0
                followers[name] = room.follow(name, after=position, wait=0)
    for name, follower in followers.items():
        await follower.rest()
        told[name] += follower.messages
        ledger = people.ledger_of(name)
        assert told[name] == [(one.position, one.text) for one in ledger.rooms.messages("plans", limit=1000)]


async def _streamed(room: Room, seed: int) -> None:
    """Posts, pieces of answers that a broker hears, and reconnects in a random order."""
    random, people, speaker = Random(seed), room.people, room.speakers["helper"]
    told: list[tuple[int, str]] = []
    bob = room.follow("bob", after=0)
    room.post("alice", f"{people.mention('helper')} first")
    speaker.say(said("first "))
    await bob.until(RoomAnswerText)
    for number in range(30):
        match random.randrange(5):
            case 0:
                room.post("alice", f"{people.mention('helper')} {number}")
            case 1:
                speaker.say(said(f"{number} "))
            case 2:
                speaker.say(said("end"), END)
            case 3:
                await asyncio.sleep(0)
            case _:
                await bob.close()
                told += bob.messages
                bob = room.follow("bob", after=told[-1][0] if told else 0)
                await bob.next()
    while people.ledger.rooms.pending("plans"):
        speaker.say(said("end"), END)
        await bob.until(RoomMessageAdded)
    newest = people.ledger.rooms.get("plans").position
    while (told + bob.messages)[-1][0] < newest:
        await bob.next()
    await bob.close()
    messages = people.ledger_of("bob").rooms.messages("plans", limit=1000)
    assert told + bob.messages == [(one.position, one.text) for one in messages]


@pytest.mark.parametrize("seed", points(100, test=3))
def test_any_order_of_posts_streams_and_reconnects_tells_each_message_once(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db") as room:
            await _streamed(room, seed)

    asyncio.run(main())


@pytest.mark.parametrize("seed", points(200, test=4))
def test_any_order_of_posts_answers_and_reconnects_tells_each_message_once(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with room_at(tmp_path / "ledger.db", is_served=False) as room:
            await _shuffled(room, seed)

    asyncio.run(main())
