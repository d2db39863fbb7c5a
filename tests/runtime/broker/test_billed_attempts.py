"""Budgets and reports count what was billed: also of an answer that broke off, that is tried again, or that a person
cut short, where its provider had told what it counted."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.broker.test_endings import NAMES, Body, EndingBench, Use, run, whole_answer
from tests.runtime.inference.asking import person
from tests.runtime.inference.strict_providers import StrictServer, stream_of
from tests.runtime.scripted import CLOSE, HANG, STREAM_HEAD, Script, events
from weft.kernel.errors import BudgetSpent, ReplyCut, ReplyMalformed
from weft.kernel.events import ModelRequest, ModelResponse
from weft.ledger.api import AnswerEnded, AnswerStarted, AttemptReset
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.model_requests import Dialect, RequestBudget

MONEY = 1_000_000
TELLING = (Dialect.ANTHROPIC, Dialect.GOOGLE)
"""Who counts at the beginning of a stream. The others do so at its end alone."""
SILENT = (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)


class CuttingServer(StrictServer):
    """Breaks its first answers off in the middle of their text."""

    cuts: int = 0
    step: str = CLOSE

    def script(self, body: Body, *, is_streamed: bool) -> Script:
        whole = super().script(body, is_streamed=is_streamed)
        if not self.cuts:
            return whole
        self.cuts -= 1
        return [STREAM_HEAD, *events(*beginning(self.dialect, self.served[-1])), self.step]


def beginning(dialect: Dialect, answered: Body) -> list[Any]:
    """The events of a stream until some of the text was there."""
    if dialect is Dialect.GOOGLE:
        usage = {"promptTokenCount": 20, "candidatesTokenCount": 1, "totalTokenCount": 21}
        content = {"role": "model", "parts": [{"text": "Do"}]}
        return [{"candidates": [{"content": content, "index": 0}], "usageMetadata": usage}]
    whole = stream_of(dialect, answered)
    texts = [place for place, event in enumerate(whole) if "Done" in str(event)]
    return whole[: texts[0 if dialect is not Dialect.OPENAI_RESPONSES else 1] + 1]


def priced(dialect: Dialect, **more: Any) -> Body:
    """An answer of a model that has a price."""
    name = {"modelVersion": NAMES[dialect]} if dialect is Dialect.GOOGLE else {"model": NAMES[dialect]}
    return {**whole_answer(dialect, **{"text": "Done", "end": "done", **more}), **name}


async def responses(bench: EndingBench) -> list[ModelResponse]:
    turn = (await bench.ledger.turn("main")).id
    return [one.event for one in await bench.ledger.events(turn) if isinstance(one.event, ModelResponse)]


async def ensure_told(bench: EndingBench, budget: RequestBudget, counted: int) -> None:
    """What the report says was spent is what the budget says, of so many answers that were counted."""
    total = (await bench.ledger.usage.report("model")).total
    assert (budget.unknown, budget.spent > 0) == (0, True)
    assert total.cost is not None
    assert abs(total.cost - budget.spent) <= counted, "each answer is rounded up by itself"
    assert total.unpriced == 0


@pytest.mark.parametrize("dialect", TELLING)
def test_an_attempt_that_broke_off_and_the_one_after_it_are_both_counted(path: Path, dialect: Dialect) -> None:
    async def body(bench: EndingBench) -> None:
        server = bench.server = CuttingServer(dialect)
        server.cuts, budget = 1, RequestBudget(money=MONEY)
        turn = await bench.send(priced(dialect), priced(dialect), streamed=True, budget=budget)
        broken, whole = await responses(bench)
        assert broken.is_broken_off
        assert not whole.is_broken_off
        requests = [one.event for one in await bench.ledger.events(turn) if isinstance(one.event, ModelRequest)]
        assert [request.attempt for request in requests] == [1, 2]
        assert broken.correlation_id == requests[0].correlation_id
        await ensure_told(bench, budget, 2)
        assert [message.role for message in await bench.ledger.messages(turn)] == ["user", "assistant"]
        told = [item async for item in bench.ledger.follow("main", after="0", wait=0)]
        kinds = [type(item) for item in told if isinstance(item, AnswerStarted | AttemptReset | AnswerEnded)]
        assert kinds == [AnswerStarted, AttemptReset, AnswerEnded], "whoever follows is told that it begins anew"
        server.served.pop(0)
        await bench.send(priced(dialect), streamed=True, budget=budget)
        await ensure_told(bench, budget, 3)

    run(path, dialect, body, attempts=2)


@pytest.mark.parametrize("dialect", SILENT)
def test_where_an_answer_broke_off_that_was_not_counted_nobody_knows_what_is_left(path: Path, dialect: Dialect) -> None:
    async def body(bench: EndingBench) -> None:
        server = bench.server = CuttingServer(dialect)
        server.cuts, budget = 1, RequestBudget(money=MONEY)
        with pytest.raises(BudgetSpent, match="did not say what it used"):
            await bench.send(priced(dialect), priced(dialect), streamed=True, budget=budget)
        assert (len(server.bodies), budget.unknown) == (1, 1)
        server.cuts = 1
        server.served.clear()
        await bench.send(priced(dialect), priced(dialect), streamed=True)  # without a limit of money it is tried again
        total = (await bench.ledger.usage.report("model")).total
        assert total.responses == 1

    run(path, dialect, body, attempts=2)


@pytest.mark.parametrize("dialect", TELLING)
def test_a_turn_that_failed_with_an_answer_that_broke_off_has_cost_what_was_counted(
    path: Path, dialect: Dialect
) -> None:
    async def body(bench: EndingBench) -> None:
        server = bench.server = CuttingServer(dialect)
        server.cuts, budget = 1, RequestBudget(money=MONEY)
        with pytest.raises(ReplyCut):
            await bench.send(priced(dialect), streamed=True, budget=budget)
        assert (await bench.ledger.usage.report("model")).total.total > 0
        assert budget.spent > 0

    run(path, dialect, body)


@pytest.mark.parametrize(("dialect", "streamed"), list(product(Dialect, (False, True))))
def test_an_answer_that_makes_no_sense_is_paid_for_as_any_other(path: Path, dialect: Dialect, streamed: bool) -> None:
    async def body(bench: EndingBench) -> None:
        budget = RequestBudget(money=MONEY)
        nameless = priced(dialect, text="", uses=(Use("call_1", "", {"a": 1}),), end="calls")
        with pytest.raises(ReplyMalformed):
            await bench.send(nameless, streamed=streamed, budget=budget)
        assert (budget.spent > 0, budget.unknown) == (True, 0)
        assert (await bench.ledger.usage.report("model")).total.total > 0

    run(path, dialect, body)


@pytest.mark.parametrize("dialect", Dialect)
def test_a_refusal_costs_nothing(path: Path, dialect: Dialect) -> None:
    async def body(bench: EndingBench) -> None:
        budget = RequestBudget(money=MONEY)

        async def refused_once() -> None:
            question = OutgoingMessage(message="Go on", model=bench.model())
            bench.server.answers = [(500, {"error": {"message": "oops"}}), (200, priced(dialect))]
            await send(bench.ledger, bench.inference, "main", question, context=person(bench.url), budget=budget)

        await refused_once()
        (whole,) = await responses(bench)
        assert not whole.is_broken_off
        await ensure_told(bench, budget, 1)

    run(path, dialect, body, attempts=2)


def test_what_a_person_cuts_short_before_its_text_is_counted(path: Path) -> None:
    async def body(bench: EndingBench) -> None:
        server = bench.server = CuttingServer(Dialect.ANTHROPIC)
        server.cuts, server.step, budget = 1, HANG, RequestBudget(money=MONEY)
        asking = asyncio.ensure_future(bench.send(priced(Dialect.ANTHROPIC), streamed=True, budget=budget))
        while not server.bodies:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert budget.spent > 0

    run(path, Dialect.ANTHROPIC, body)
