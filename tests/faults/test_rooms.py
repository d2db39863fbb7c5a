"""Ten people who post to one room at once, agents that ask each other, and brokers that are killed meanwhile."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft
import weft.aio
from tests.faults.broker_processes import MODEL, text_of
from tests.faults.processes import Process, Say
from tests.sizes import Record, chance, sized
from weft.kernel.authority import LOCAL
from weft.kernel.message_text import write_mention
from weft.ledger.api import RunConfig, SessionStanding
from weft.ledger.model import Message, TextPart
from weft.programs import Programs
from weft.runtime.broker import broker as broker_module
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import InferenceRequest, ModelSettings, TokenCount
from weft.runtime.replies import FinishReason, Reply

PEOPLE, AGENTS = 10, 4
MESSAGES = sized(test=2, prove=40)
"""Of each person."""
BROKERS = sized(test=2, prove=6)
KILLS = sized(test=4, prove=120)
LEASE_SECONDS = 1.0
_ASKED = re.compile(r"(number \d+-\d+) `(\w+)`\Z")
_NUMBER = re.compile(r"number \d+-\d+\Z")


class PassingProvider:
    """Asks the agent whose id stands in code at the end of the last message; answers where there is none."""

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        await asyncio.sleep(0.005)
        question = next(one for one in reversed(request.messages) if str(one.role) == "user")
        words = question.text if isinstance(question, Message) else text_of(question)
        asked, number = _ASKED.search(words or ""), _NUMBER.search(words or "")
        if asked is not None:
            text = f"{write_mention('agent', asked[2], 'next')} {asked[1]}"
        else:
            text = f"done {'' if number is None else number[0]}"
        return Reply(parts=(TextPart(text),), finish=FinishReason.STOP, model_id="m", model="m-1", provider="there")


def serve(say: Say, path: str) -> None:
    """A broker process, until it is killed."""
    broker_module.RENEW_SECONDS = LEASE_SECONDS / 4
    say("serving")
    asyncio.run(_serve(path))


async def _serve(path: str) -> None:
    async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        return TurnPlan(
            model=MODEL,
            inference=PassingProvider(),  # type: ignore[arg-type]
            acting=context_for(LOCAL.principal),
            setting=RunConfig(),
        )

    async with weft.aio.open(path, lease_ttl=LEASE_SECONDS) as ledger:
        await Broker(ledger.sync, ledger.crossing, plan).serve()


def test_each_message_is_answered_once_by_each_agent_it_reached(tmp_path: Path, record_property: Record) -> None:
    dice, path = chance("rooms"), str(tmp_path / "ledger.db")
    with weft.open(path) as ledger:
        programs = Programs(ledger)
        people = [programs.create("human", f"person-{k}", {}).name for k in range(PEOPLE)]
        agents = [programs.create("agent", f"agent-{k}", {}).id for k in range(AGENTS)]
        room = ledger.acting_as(people[0]).rooms.create("busy", people=people[1:], agents=agents).id
        posted: dict[str, tuple[str, str]] = {}

        def talk(person: int) -> None:
            own = ledger.acting_as(people[person])
            for k in range(MESSAGES):
                first, second = dice.sample(agents, 2)
                text = f"{write_mention('agent', first, 'first')} number {person}-{k} `{second}`"
                posted[own.rooms.post(room, text).message] = (first, second)

        talkers = [threading.Thread(target=talk, args=(person,)) for person in range(PEOPLE)]
        brokers = [Process(serve, path) for _ in range(BROKERS)]
        try:
            for talker in talkers:
                talker.start()
            for _ in range(KILLS):
                time.sleep(dice.uniform(0.05, 0.4))  # the random moment itself; nothing waits for it
                number = dice.randrange(BROKERS)
                brokers[number].kill()
                brokers[number].end()
                brokers[number] = Process(serve, path)
            for talker in talkers:
                talker.join()
            while ledger.rooms.pending(room):
                time.sleep(0.1)  # what is looked at is no timing: it ends as soon as all is answered
        finally:
            for broker in brokers:
                broker.kill()
                broker.end()
        assert len(posted) == PEOPLE * MESSAGES
        check(ledger, room, posted)
    record_property("measured", f"{PEOPLE} people, {len(posted)} messages, {BROKERS} brokers, {KILLS} kills")


def check(ledger: weft.Ledger, room: str, posted: dict[str, tuple[str, str]]) -> None:
    messages, after = [], 0
    while page := ledger.rooms.messages(room, after=after, limit=1000):
        messages += page
        after = page[-1].position
    assert [one.position for one in messages] == list(range(1, len(messages) + 1))
    assert [one.text for one in messages if one.notice not in (None, "joined")] == []
    answers = Counter((one.meta["answers"], one.author_id) for one in messages if "answers" in one.meta)
    passed = {one.meta["answers"]: one.id for one in messages if one.meta.get("answers") in posted}
    expected = Counter({(message, first): 1 for message, (first, _) in posted.items()})
    expected.update({(passed[message], second): 1 for message, (_, second) in posted.items()})
    assert answers == expected
    assert list(ledger.verify()) == []
