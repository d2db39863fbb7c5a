"""Following a session: from any position on, by any number, in any process, without gap or repetition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import weft
import weft.aio
from tests.runtime.speaking import AGAIN, BREAK, CALL, END, Screen, Speaker, brokered, said, thought
from tests.sizes import points
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import (
    AnswerEnded,
    AnswerStarted,
    AttemptReset,
    MessageAdded,
    MessageSettled,
    PartialReply,
    Runs,
    StreamItem,
    StreamPosition,
    TextAdded,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    parse_position,
)
from weft.runtime import answer_streams
from weft.runtime.answer_streams import LiveText
from weft.runtime.broker.broker import Broker
from weft.runtime.replies import ReplyToken, TokenKind

Items = AsyncIterator[StreamItem]


async def until(items: Items, screen: Screen, kind: type[StreamItem], text: str | None = None) -> StreamItem:
    """Show items up to one of this kind, or up to the one that makes the answer read so."""
    async for item in items:
        screen.show(item)
        if isinstance(item, kind) and (text is None or screen.text == text):
            return item
    raise AssertionError("the stream ended")


async def close(items: Items) -> None:
    await items.aclose()  # type: ignore[attr-defined]


async def new_session(ledger: weft.aio.AsyncLedger) -> None:
    await ledger.create_session("main")


def test_a_follower_hears_every_event_once_and_answers_as_they_are_written(address: str | Path) -> None:
    async def main() -> None:
        speaker, screen = Speaker(), Screen()
        async with weft.aio.open(address) as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            items = ledger.follow("main", after="0")
            sent = await ledger.inbox.admit("Double 4", session="main")
            broker.wake()
            for piece in (thought("Hm"), said("I'll "), said("ask")):
                speaker.say(piece)
                item = await until(items, screen, TextAdded)
                assert isinstance(item, TextAdded)
                assert (item.text, item.kind) == (piece.text, piece.kind.value)
            speaker.say(CALL)
            called = await until(items, screen, ToolStarted)
            assert isinstance(called, ToolStarted)
            assert (called.tool, called.arguments) == ("double", {"number": 4})
            ended = await until(items, screen, ToolFinished)
            assert isinstance(ended, ToolFinished)
            assert (ended.tool, ended.status, ended.result) == ("double", "ok", 8)
            speaker.say(said("It is 8"), END)
            over = await until(items, screen, TurnEnded)
            assert isinstance(over, TurnEnded)
            assert (over.exit, over.messages, over.error) == ("success", (sent.message,), None)
            kinds = [line[0] if isinstance(line, tuple) else line for line in screen.lines]
            assert kinds == [
                "OtherEvent", "MessageQueued", "TurnStarted", "MessageAdded", "AnswerStarted",
                {"thinking": "Hm", "text": "I'll ask"}, "AnswerEnded", "ToolStarted", "ToolFinished", "AnswerStarted",
                {"thinking": "", "text": "It is 8"}, "AnswerEnded", "TurnEnded",
            ]  # fmt: skip
            own = [one.n async for one in ledger.changes() if one.event.stream.startswith(("run:", "session:"))]
            await until(items, screen, StreamItem)  # the session moved to the turn
            assert [line[1] for line in screen.lines if isinstance(line, tuple)] == own
            await close(items)

    asyncio.run(main())


def test_whoever_comes_late_is_told_what_there_is_of_the_answer_first(tmp_path: Path) -> None:
    async def main() -> None:
        speaker, early, late, later = Speaker(), Screen(), Screen(), Screen()
        async with weft.aio.open(tmp_path / "ledger.db") as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            first = ledger.follow("main", after="0")
            await ledger.inbox.admit("Tell me", session="main")
            broker.wake()
            speaker.say(said("One "), said("two "))
            await until(first, early, TextAdded, "One two ")
            second = ledger.follow("main")  # without a position: from the beginning of the turn that is under way
            await until(second, late, TextAdded, "One two ")
            assert isinstance(late.items[0], TurnStarted)
            assert late.pieces == 1
            for item in early.items[:-1]:
                later.show(item)
            third = ledger.follow("main", after=str(later.position))
            speaker.say(said("three"))
            followers = ((first, early), (second, late), (third, later))
            for items, screen in followers:
                await until(items, screen, TextAdded, "One two three")
            speaker.say(END)
            for items, screen in followers:
                await until(items, screen, TurnEnded)
                await close(items)
            assert early.lines == later.lines
            assert early.lines[2:] == late.lines  # without the session's beginning and the message

    asyncio.run(main())


def test_whoever_is_slow_holds_nobody_up_and_takes_all_that_came_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        speaker, slow, quick = Speaker(), Screen(), Screen()
        async with weft.aio.open(tmp_path / "ledger.db") as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            slow_items, quick_items = ledger.follow("main", after="0"), ledger.follow("main", after="0")
            await ledger.inbox.admit("Tell me", session="main")
            broker.wake()
            speaker.say(said("."))
            await until(slow_items, slow, TextAdded)
            speaker.say(*(said(f"{number} ") for number in range(2000)), thought("!"), said("."))
            whole = "." + "".join(f"{number} " for number in range(2000)) + "."
            await until(quick_items, quick, TextAdded, whole)
            await until(slow_items, slow, TextAdded, whole)
            assert slow.pieces == 4  # the first; all that came; the thought; the last
            speaker.say(END)
            await until(quick_items, quick, TurnEnded)
            await until(slow_items, slow, TurnEnded)
            assert slow.lines == quick.lines
            await close(slow_items)
            await close(quick_items)

    asyncio.run(main())


def test_another_process_is_told_what_is_kept_and_hears_of_a_lost_broker(
    address: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_streams, "KEEP_SECONDS", 0.0)

    async def main() -> None:
        speaker, screen = Speaker(), Screen()
        async with weft.aio.open(address) as lost, weft.aio.open(address) as other:
            await new_session(lost)
            items = other.follow("main", after="0")
            async with brokered(lost, speaker) as broker:
                await lost.inbox.admit("Tell me", session="main")
                broker.wake()
                speaker.say(said("Half an ans"))
                at = (await until(items, screen, TextAdded, "Half an ans")).position
                assert (at.attempt, at.delta) == (1, 11)
            speaker.say(said("The whole answer"))
            async with brokered(other, speaker):
                reset = await until(items, screen, AttemptReset)
                assert isinstance(reset, AttemptReset)
                assert (reset.number, reset.reason, screen.text) == (1, "shutdown", "")
                started = await until(items, screen, AnswerStarted)
                assert isinstance(started, AnswerStarted)
                assert started.number == 2
                await until(items, screen, TextAdded, "The whole answer")
                speaker.say(END)
                await until(items, screen, TurnEnded)
            assert {"thinking": "", "text": "The whole answer"} in screen.lines
            again = Screen()
            resumed = other.follow("main", after=at)
            await until(resumed, again, TurnEnded)
            assert again.lines == screen.lines[-len(again.lines) :]
            assert isinstance(again.items[0], AttemptReset)
            for stream in (items, resumed):
                await close(stream)

    asyncio.run(main())


def test_an_answer_that_fails_half_way_is_told_as_far_as_it_came(tmp_path: Path) -> None:
    async def main() -> None:
        speaker, screen = Speaker(), Screen()
        async with weft.aio.open(tmp_path / "ledger.db") as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            items = ledger.follow("main")
            sent = await ledger.inbox.admit("Tell me", session="main")
            broker.wake()
            speaker.say(said("Lost"), AGAIN, said("Half"), BREAK)
            over = await until(items, screen, TurnEnded)
            assert isinstance(over, TurnEnded)
            assert over.exit == "error"
            assert "it broke" in str(over.error)
            settled = await until(items, screen, MessageSettled)
            assert isinstance(settled, MessageSettled)
            assert (settled.message, settled.state) == (sent.message, "dead")
            texts = [line["text"] for line in screen.lines if isinstance(line, dict)]
            assert (texts, screen.resets) == (["Half"], 1)
            await close(items)

    asyncio.run(main())


@pytest.mark.parametrize("text", ["Half", ""])
def test_thinking_that_is_not_kept_with_a_broken_answer_is_taken_back(text: str, tmp_path: Path) -> None:
    kept = [{"thinking": "", "text": text}] if text else []

    async def main() -> None:
        speaker, screen = Speaker(), Screen()
        async with weft.aio.open(tmp_path / "ledger.db") as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            items = ledger.follow("main")
            await ledger.inbox.admit("Tell me", session="main")
            broker.wake()
            speaker.say(thought("Hm"), *([said(text)] if text else []))
            await until(items, screen, TextAdded, text)
            speaker.say(BREAK)
            await until(items, screen, TurnEnded)
            again = shown(ledger.sync.follow("main", after="0", wait=0))
            assert [line for line in screen.lines if isinstance(line, dict)] == kept
            assert [line for line in again.lines if isinstance(line, dict)] == kept
            await close(items)

    asyncio.run(main())


# --- any cut ------------------------------------------------------------------------------------------------------


def script(random: Random) -> list[Any]:
    """What a model says in the turns of a conversation."""
    words: list[Any] = []
    for _ in range(random.randint(1, 3)):
        for _ in range(random.randint(0, 2)):
            words += [*answer(random), CALL]
        words += [*answer(random), END]
    return words


def answer(random: Random) -> list[Any]:
    words: list[Any] = []
    for attempt in range(random.choice((1, 1, 2, 3))):
        words += [AGAIN] if attempt else []
        for _ in range(random.randint(0, 6)):
            text = "".join(random.choices("abc 😀é", k=random.randint(1, 5)))
            words.append(random.choice((said, said, thought))(text))
    return words


async def reader(ledgers: tuple[weft.aio.AsyncLedger, ...], screen: Screen, random: Random, turns: int) -> None:
    """Follow until all turns have ended, cut off again and again, each time in another process perhaps."""
    ended = 0
    while ended < turns:
        position = screen.position or StreamPosition(0)
        items = random.choice(ledgers).follow("main", after=random.choice((position, str(position))))
        left = random.choice((1, 2, 5, 40))
        async for item in items:
            screen.show(item)
            ended += isinstance(item, TurnEnded)
            left -= 1
            if ended == turns or left == 0:
                break
        await close(items)


async def conversation(path: Path, random: Random, words: list[Any]) -> list[Screen]:
    """Five readers of a conversation, beside the broker and in another process."""
    speaker, screens, turns = Speaker(), [Screen() for _ in range(5)], words.count(END)
    async with weft.aio.open(path) as ledger, weft.aio.open(path) as other, brokered(ledger, speaker) as broker:
        await new_session(ledger)
        seeds = [Random(random.random()) for _ in screens]
        reading = [
            asyncio.ensure_future(reader((ledger, other), screen, own, turns))
            for screen, own in zip(screens, seeds, strict=True)
        ]
        for _ in range(turns):
            await ledger.inbox.admit("Tell me", session="main")
        broker.wake()
        for word in words:
            speaker.say(word)
            for _ in range(random.choice((0, 3, 200))):
                await asyncio.sleep(0)  # others may do something, or not
        await asyncio.gather(*reading)
    return screens


@pytest.mark.parametrize("seed", points(200, test=6))
def test_whoever_is_cut_off_anywhere_goes_on_without_gap_or_repetition(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_streams, "KEEP_SECONDS", 0.0)
    random = Random(seed)
    words, path = script(random), tmp_path / "ledger.db"
    screens = asyncio.run(conversation(path, random, words))
    with weft.open(path) as ledger:
        whole = shown(ledger.follow("main", after="0", wait=0))
        assert sum(isinstance(item, TurnEnded) for item in whole.items) == words.count(END)
        for screen in screens:
            positions = [item.position for item in screen.items]
            assert positions == sorted(set(positions))
            assert screen.lines == whole.lines[: len(screen.lines)]
        heard = screens[0].items
        for cut in random.sample(range(len(heard)), min(len(heard), 25)):
            rest = ledger.follow("main", after=heard[cut].position, wait=0)
            assert shown([*heard[: cut + 1], *rest]).lines == whole.lines


def shown(items: Iterable[StreamItem]) -> Screen:
    screen = Screen()
    for item in items:
        screen.show(item)
    return screen


# --- what is kept, and who may read it ----------------------------------------------------------------------------


def test_what_is_kept_of_one_answer_is_never_told_of_another(address: str | Path) -> None:
    async def main() -> None:
        speaker, screen = Speaker(), Screen()
        async with weft.aio.open(address) as ledger, brokered(ledger, speaker) as broker:
            await new_session(ledger)
            items = ledger.follow("main", after="0")
            await ledger.inbox.admit("Double 4", session="main")
            broker.wake()
            speaker.say(said("abc"), CALL)
            await until(items, screen, ToolFinished)
            asked = await until(items, screen, AnswerStarted)
            assert isinstance(asked, AnswerStarted)
            with weft.open(address) as other:
                runs = Runs(other)
                runs.keep_partial(asked.turn, PartialReply(1, "abc"))
                assert list(other.follow("main", after=asked.position, wait=0)) == []
                runs.keep_partial(asked.turn, PartialReply(2, "de"))
                runs.keep_partial(asked.turn, PartialReply(1, "abcd"))  # of a broker that lost the turn
                (item,) = other.follow("main", after=asked.position, wait=0)
                assert isinstance(item, TextAdded)
                assert (item.text, str(item.position)) == ("de", f"{asked.position.n}.2.2")
            speaker.say(said("def"), END)
            await until(items, screen, AnswerEnded)
            await until(items, screen, TurnEnded)
            assert await ledger.crossing.run(lambda: Runs(ledger.sync).partial(asked.turn)) is None
            await close(items)

    asyncio.run(main())


def test_positions_are_read_back_as_they_are_written() -> None:
    for position in (StreamPosition(0), StreamPosition(12), StreamPosition(12, 1, 40), StreamPosition(12, 2, 0, 7)):
        assert parse_position(str(position)) == position
    for text in ("", "x", "1.2", "-1", "1.2.3.4.5", "١", "9" * 30):
        with pytest.raises(InvalidInput):
            parse_position(text)


def test_a_position_beyond_the_newest_event_and_a_session_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.create_session("main")
        with pytest.raises(InvalidInput, match="beyond the newest event"):
            ledger.follow("main", after="99")
        with pytest.raises(NotFound):
            ledger.follow("nowhere")


@pytest.mark.parametrize("told", [0, 3, 8, 12, 18])
def test_whoever_comes_back_is_told_that_an_answer_was_erased_and_nothing_of_it(path: Path, told: int) -> None:
    with weft.open(path) as ledger:
        turn = ledger.record_turn(session="main", query="CANARY ask", response="CANARY answer here").id
        first = ledger.follow("main", after="0", wait=0)
        slow = [next(first), next(first)]
        (asked,) = (one for one in ledger.follow("main", after="0", wait=0) if isinstance(one, AnswerStarted))
        ledger.erasure.erase(turn, reason="asked to")
        position = StreamPosition(asked.position.n, 1, told) if told else asked.position
        screen = Screen()
        for item in ledger.follow("main", after=position, wait=0):
            screen.show(item)
        assert (screen.lines[1 if told else 0], screen.resets) == ({"thinking": "", "text": "[erased]"}, min(told, 1))
        assert [one.reason for one in screen.items if isinstance(one, AttemptReset)] == ["erased"] * min(told, 1)
        slow += first  # it was read before and is handed out now
        assert [one.text for one in slow if isinstance(one, MessageAdded | TextAdded)] == ["[erased]", "[erased]"]
        assert "CANARY" not in str(screen.items)


def test_a_follower_of_this_process_is_handed_out_nothing_that_was_erased_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_streams, "HELD_SECONDS", 0.0)

    async def main() -> None:
        async with weft.aio.open(path) as ledger:
            turn = await ledger.record_turn(session="main", query="CANARY ask", response="CANARY answer here")
            items, screen = ledger.follow("main", after="0", wait=0), Screen()
            await until(items, screen, TurnStarted)
            await ledger.erasure.erase(turn.id, reason="asked to")
            await until(items, screen, TurnEnded)
            await close(items)
        assert "CANARY" not in str(screen.items)
        assert {"thinking": "", "text": "[erased]"} in screen.lines

    asyncio.run(main())


def test_only_whoever_may_read_a_session_follows_it(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="Hello", response="Hi")
        weft.Programs(ledger).create("human", "reader", {"permissions": ["session:read(main)"]})
        weft.Programs(ledger).create("human", "stranger", {})
        with pytest.raises(NotFound):
            ledger.acting_as("stranger").follow("main", after="0")
        items = ledger.acting_as("reader").follow("main", after="0", wait=0)
        assert next(items) == next(ledger.follow("main", after="0", wait=0))


@pytest.mark.parametrize("seed", range(20))
def test_a_text_gives_what_lies_beyond_any_place_in_it(seed: int) -> None:
    random = Random(seed)
    tokens = [ReplyToken("x" * random.randint(0, 3), random.choice(list(TokenKind))) for _ in range(12)]
    text = LiveText("turn", 1)
    for token in tokens:
        text.add(token)
    characters = [(token.kind, letter) for token in tokens for letter in token.text]
    for cut in range(len(characters) + 1):
        told = [kind for kind, _ in characters[:cut]]
        pieces = text.beyond(told.count(TokenKind.TEXT), told.count(TokenKind.THINKING))
        assert [(kind, letter) for kind, piece in pieces for letter in piece] == characters[cut:]
        assert all(before[0] is not after[0] for before, after in pairwise(pieces))


@pytest.mark.parametrize("steps", range(5))
def test_a_broker_that_is_woken_and_cancelled_at_once_ends(steps: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with weft.aio.open(tmp_path / "ledger.db") as ledger:
            broker = Broker(ledger.sync, ledger.crossing)
            serving = asyncio.ensure_future(broker.serve())
            await ledger.create_session("main")  # it sleeps by now
            broker.wake()
            for _ in range(steps):
                await asyncio.sleep(0)
            serving.cancel()
            done, _ = await asyncio.wait({serving}, timeout=60)
            assert done == {serving}

    asyncio.run(main())
