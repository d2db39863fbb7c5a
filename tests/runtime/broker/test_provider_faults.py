"""Whatever a provider does, the turn ends, completed or failed, and the session's next message is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

import weft
from tests.runtime.broker.tool_server import ALWAYS, FAULTS, REFUSE, Fault, tool_server
from tests.runtime.inference.asking import model, person
from tests.sizes import PROVING, share
from weft.ledger.api import InboxMessage, Ledger, RunConfig, Runs, SessionStanding
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.broker.turn_state import Run
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

pytestmark = [pytest.mark.prove] if PROVING else []


class DirectCrossing:
    """Calls the ledger in this thread."""

    def __init__(self) -> None:
        self.shared: dict[Any, Any] = {}

    async def run(self, call: Any) -> Any:
        return call()


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def note(text: str) -> str:
    """Keeps a note."""
    return text


def look(name: str) -> str:
    """Looks something up."""
    return name


async def no_wait(seconds: float) -> None:
    return None


async def answer_three(
    ledger: Ledger, session: str, fault: Fault, stage: int, inference: Inference
) -> list[InboxMessage]:
    """What becomes of a message whose provider does nothing but this, of one whose provider does it once, and of one
    whose provider is well."""
    async with tool_server(fault, stage) as server:

        async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
            tools = tools_of(FunctionTool(add), FunctionTool(note), FunctionTool(look, is_read_only=True))
            return TurnPlan(
                model=model(server.url),
                inference=inference,
                acting=person(server.url),
                setting=RunConfig(),
                tools=tools,
            )

        broker = Broker(ledger, DirectCrossing(), plan)
        messages: list[InboxMessage] = []
        for times in (ALWAYS, 1, 0):
            server.times = times
            if times == 0 or fault.script == [REFUSE]:
                await server.heal() if messages else None
            admission = ledger.inbox.admit("Use all three", session=session)
            await broker.wait_for_answer(admission.message, admission.session_id)
            messages.append(ledger.inbox.get(admission.message))
        return messages


def check_ended(ledger: Ledger, message: InboxMessage, ends: str) -> None:
    """Its turn is over, with an outcome for every call, and says why where it failed."""
    assert message.state == {"completed": "answered", "failed": "dead"}[ends]
    assert message.turn is not None
    turn = ledger.turn(message.turn)
    assert turn.status == ends
    run = Run(message.turn).apply(Runs(ledger).events(message.turn))
    assert run.is_finished
    assert not run.open_calls
    if ends == "failed":
        assert message.error
    else:
        assert run.last_request is not None
        assert run.last_request.is_answered


def problem_with(ledger: Ledger, name: str, messages: Sequence[InboxMessage]) -> str | None:
    fault = FAULTS[name]
    ends = (fault.ends, "completed" if fault.passes else fault.ends, "completed")
    try:
        for message, end in zip(messages, ends, strict=True):
            check_ended(ledger, message, end)
        assert ledger.session(messages[0].session).head == messages[-1].turn
    except AssertionError as error:
        return str(error)
    return None


STAGES = [(name, stage) for stages in ((0, 3), (3, 0)) for name, stage in zip(FAULTS, cycle(stages), strict=False)]
"""In turn at the first request of a turn and at the one that brings the results of its tools, and the other way."""


@pytest.mark.slow("a server fails in a dozen ways, with three messages each")
def test_every_fault_of_a_provider_ends_its_turn_and_stops_nobody() -> None:
    async def main(ledger: Ledger) -> dict[str, str]:
        problems = {}
        async with Inference(policy=RetryPolicy(attempts=2), sleep=no_wait) as inference:
            for name, stage in share(STAGES, test=12):
                messages = await answer_three(ledger, f"{name} {stage}", FAULTS[name], stage, inference)
                if (problem := problem_with(ledger, name, messages)) is not None:
                    problems[f"{name} {stage}"] = problem
        return problems

    with weft.open(":memory:") as ledger:
        assert asyncio.run(main(ledger)) == {}
        assert ledger.inbox.list() == []
        assert list(ledger.verify()) == []
