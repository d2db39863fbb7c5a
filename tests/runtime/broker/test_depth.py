"""A turn of a long thread costs what a turn of a short one costs: counted, not timed.

The clock stands still, and what a broker does every few seconds is left out: on a slow machine it would be counted too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Struct

import weft
from tests.runtime.broker.bench import Bench, PlayedProvider, never, run, saying
from weft.kernel.clock import FixedClock
from weft.ledger.api import Ledger
from weft.ledger.read.contexts import InputChain
from weft.runtime.inference.dialects.dialect_port import WireConversation
from weft.runtime.inference.dialects.model_clients import KeptConversations
from weft.runtime.inference.model_requests import ConversationBeginning, Dialect, InferenceRequest
from weft.runtime.replies import Reply
from weft.runtime.tool.tool_contract import FunctionTool, tools_of
from weft.store.fact_log import FactReader

TURNS = 4


class Costs(Struct):
    """What some turns took."""

    statements: int = 0
    contents: int = 0
    translated: int = 0
    chains: int = 0
    """How often the naming of a whole conversation was made, and not grown."""


class TranslatingProvider(PlayedProvider):
    """Takes a conversation as the model layer takes it."""

    def __init__(self, *answers: Reply) -> None:
        super().__init__(*answers)
        self.conversations = KeptConversations()

    async def infer(self, request: InferenceRequest, **more: Any) -> Reply:
        self.conversations.translate(request.messages, Dialect.OPENAI_CHAT, images=True)
        return await super().infer(request, **more)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    """Counts what is done from now on."""
    costs = Costs()
    content, text, extend, chain = FactReader.content, FactReader.text, WireConversation.extend, InputChain.__init__

    def counted_content(self: Any, n: int) -> bytes:
        costs.contents += 1
        return content(self, n)

    def counted_text(self: Any, n: int) -> str | None:
        costs.contents += 1
        return text(self, n)

    def counted_extend(self: Any, messages: Iterable[Any]) -> None:
        news = list(messages)
        costs.translated += len(news)
        extend(self, news)

    def counted_chain(self: Any, *parts: Any) -> None:
        costs.chains += 1
        chain(self, *parts)

    monkeypatch.setattr(FactReader, "content", counted_content)
    monkeypatch.setattr(FactReader, "text", counted_text)
    monkeypatch.setattr(WireConversation, "extend", counted_extend)
    monkeypatch.setattr(InputChain, "__init__", counted_chain)
    return costs


async def looks() -> str:
    """Looks somewhere."""
    return "seen"


def spent_at(depth: int, costs: Costs) -> Costs:
    """What some turns with one tool each take on a thread of this depth, after a first one that reads it."""

    async def body(ledger: Ledger) -> None:
        bench = Bench(ledger, clock=clock)
        bench.sleep = never
        replies = [saying("", "looks"), saying("it is there")]
        bench.provider = TranslatingProvider(*replies * (TURNS + 1))
        bench.options["tools"] = tools_of(FunctionTool(looks, is_read_only=True))
        broker = bench.broker()
        await bench.answered(bench.admit(), broker)
        costs.statements = costs.contents = costs.translated = costs.chains = 0
        for _ in range(TURNS):
            await bench.answered(bench.admit(), broker)
        assert len(bench.provider.sent()) == 2 * depth + 4 * TURNS + 3
        sent = [request.messages for request in bench.provider.requests]
        assert len({id(one.conversation) for one in sent if isinstance(one, ConversationBeginning)}) == 1
        assert [len(one) for one in sent[-2:]] == [2 * depth + 4 * TURNS + 1, 2 * depth + 4 * TURNS + 3]

    def count(_cursor: Any, _sql: str, _values: Any) -> bool:
        costs.statements += 1
        return True

    clock = FixedClock(1_700_000_000_000)
    with weft.open(":memory:", clock=clock) as ledger:
        for number in range(depth):
            ledger.record_turn(session="main", query=f"question {number}", response="answer")
        ledger._store._sql.connection.exec_trace = count  # type: ignore[attr-defined]
        run(body(ledger))
    return Costs(costs.statements, costs.contents, costs.translated, costs.chains)


def test_a_turn_of_a_long_thread_costs_what_a_turn_of_a_short_one_does(costs: Costs) -> None:
    shallow, deep = spent_at(10, costs), spent_at(500, costs)
    assert deep == shallow
    assert shallow.translated == 4 * TURNS
    assert shallow.chains == 0
    assert shallow.statements < 160 * TURNS
