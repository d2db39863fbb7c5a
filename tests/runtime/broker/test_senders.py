"""Messages of several senders in one session: a turn has the rights of one of them, and no message is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft.aio
from tests.runtime.broker.bench import Bench, run, saying
from tests.runtime.broker.test_broker import settle
from tests.runtime.speaking import CALL, END, Screen, Speaker, brokered, said
from tests.runtime.test_streams import close, until
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind, rights
from weft.kernel.clock import FixedClock
from weft.ledger.api import InboxMessage, Ledger, Runs, SessionStanding, TextAdded, TurnEnded, principals_of
from weft.programs import Programs
from weft.runtime.answer_streams import hub_of
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.tool.tool_contract import FunctionTool, tools_of


class Senders:
    """The owner of a ledger and an agent, who both write to one session."""

    def __init__(self, bench: Bench) -> None:
        self.bench, ledger = bench, bench.ledger
        self.agent_id = Programs(ledger).create("agent", "scout", {}).id
        self._agent = ledger.acting_as(Authority((Principal(PrincipalKind.AGENT, "scout"),)))
        self.planned: list[list[str]] = []
        """Of each plan whose messages it was for."""

    def by_agent(self, text: str, **more: Any) -> str:
        return self._agent.inbox.admit(text, session="main", **more).message

    async def plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan:
        self.planned.append(sorted({name for message in messages for name in principals_of(message) or ("local",)}))
        return await self.bench.plan(standing, messages)


def test_messages_to_collect_of_several_senders_are_turns_of_their_own(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("to the agent"), saying("to the owner"), clock=clock)
        senders = Senders(bench)
        first = senders.by_agent("one", mode="collect")
        second = bench.admit("two", mode="collect")
        third = senders.by_agent("three", mode="collect")
        await settle(bench, clock, bench.broker(senders.plan), first, second, third)
        assert [bench.provider.sent(number)[-2:] for number in range(2)] == [["one", "three"], ["to the agent", "two"]]
        assert [len(names) for names in senders.planned] == [1, 1]
        turns = [ledger.inbox.get(one).turn for one in (first, second, third)]
        assert turns[0] == turns[2] != turns[1]

    run(body())


def test_a_turn_stays_in_its_senders_name_when_the_owner_steers_it(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("", "looks"), saying("Found"), saying("first"), clock=clock)
        senders = Senders(bench)
        low = senders.by_agent("low", priority=-1)
        steer = bench.admit("left, not right", mode="steer", priority=-2)  # before the message that it steers
        high = senders.by_agent("high")

        def looks() -> str:
            return "nothing"

        bench.options["tools"] = tools_of(FunctionTool(looks))
        broker = bench.broker(senders.plan)
        await settle(bench, clock, broker, low, steer, high)
        assert ledger.inbox.get(steer).turn == ledger.inbox.get(high).turn
        names = {getattr(one.event, "on_behalf_of", ()) for one in bench.events(high)}
        assert names == {(senders.agent_id,)}

    run(body())


def test_whoever_steers_hears_the_answer_from_then_on(path: Path) -> None:
    async def body() -> None:
        speaker, heard = Speaker(), dict[str, list[str]](first=[], steer=[])
        async with weft.aio.open(path) as ledger, brokered(ledger, speaker) as broker:
            hub = hub_of(ledger.crossing)
            first = await ledger.inbox.admit("Double 4", session="main")
            with hub.listening(first.message, lambda token: heard["first"].append(token.text)):
                items = ledger.follow("main", after="0")
                broker.wake()
                speaker.say(said("I look."))
                await until(items, Screen(), TextAdded)
                steer = await ledger.inbox.admit("Rather 5", session="main", mode="steer")
                with hub.listening(steer.message, lambda token: heard["steer"].append(token.text)):
                    broker.wake()
                    while not any(runner._steers for runner in broker._runners.values()):
                        await asyncio.sleep(0)
                    speaker.say(CALL, said("Ten"), END)
                    await until(items, Screen(), TurnEnded)
                await close(items)
            assert (await ledger.inbox.get(steer.message)).turn == (await ledger.inbox.get(first.message)).turn
        assert heard == {"first": ["I look.", "Ten"], "steer": ["Ten"]}

    run(body())


def test_an_agent_does_not_steer_a_turn_that_has_more_rights(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("made"), saying("", "looks"), saying("Found"), saying("later"), clock=clock)
        senders = Senders(bench)
        await settle(bench, clock, bench.broker(senders.plan), senders.by_agent("make the session"))
        owners = bench.admit("first", priority=1)
        steer = senders.by_agent("do it as the owner", mode="steer")

        def looks() -> str:
            return "nothing"

        bench.options["tools"] = tools_of(FunctionTool(looks))
        await settle(bench, clock, bench.broker(senders.plan), owners, steer)
        assert ledger.inbox.get(steer).turn != ledger.inbox.get(owners).turn
        assert senders.planned[-1] == [senders.agent_id]
        assert "do it as the owner" not in [text for number in (1, 2) for text in bench.provider.sent(number)]

    run(body())


def limited(ledger: Ledger, *allowed: str) -> Ledger:
    """The same owner, with fewer rights, as by a token."""
    return ledger.acting_as(LOCAL.child(rights(("turn:record", "session:*", *allowed))))


def test_messages_of_one_sender_with_other_rights_are_turns_of_their_own(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("to all"), saying("to fewer"), clock=clock)
        first = bench.admit("one", mode="collect")
        second = limited(ledger, "tool:read").inbox.admit("two", session="main", mode="collect").message
        await settle(bench, clock, bench.broker(), first, second)
        assert ledger.inbox.get(first).turn != ledger.inbox.get(second).turn

    run(body())


def test_a_sender_with_fewer_rights_does_not_steer_a_turn_that_has_more(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("", "looks"), saying("Found"), saying("later"), clock=clock)
        owners = bench.admit("first", priority=1)
        steer = limited(ledger, "tool:read").inbox.admit("do it", session="main", mode="steer").message

        def looks() -> str:
            return "nothing"

        bench.options["tools"] = tools_of(FunctionTool(looks))
        await settle(bench, clock, bench.broker(), owners, steer)
        assert ledger.inbox.get(steer).turn != ledger.inbox.get(owners).turn

    run(body())


def test_the_rights_that_a_message_was_sent_with_stand_with_it_and_are_kept_when_it_is_sent_again(
    ledger: Ledger,
) -> None:
    narrow = limited(ledger, "tool:read")
    message = narrow.inbox.admit("one", session="main", overrides={"model": "m"})
    layer = {"allow": ["session:*", "tool:read", "turn:record"], "deny": []}
    assert ledger.inbox.get(message.message).overrides == {"model": "m", "rights": [layer]}
    Runs(ledger).bury([message.message], "error", "no")
    again = ledger.inbox.send_again(message.message)
    assert ledger.inbox.get(again.message).overrides == {"model": "m", "rights": [layer]}
