"""Random threads with tool calls, compacted, forked and switched at random, against a model of plain lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

import weft
from tests.ledger.histories import PROPERTY_SCALE
from tests.runtime.compaction.threads import unpaired
from tests.runtime.inference.asking import person
from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger
from weft.kernel.errors import NotApplicable
from weft.ledger.model import Message, NewToolCall
from weft.runtime.assembly.compaction import compact
from weft.runtime.assembly.summaries import (
    STRATEGIES,
    PastSummariser,
    PastSummary,
    StrategySummary,
    SummarisedPast,
    SummaryStrategy,
)
from weft.runtime.inference.inference import Inference

HERE = "http://127.0.0.1:1"


class Told(SummaryStrategy):
    """Tells which turns it stands for, without asking a model."""

    name = "told"
    asks_model = False

    async def summarise(self, past: SummarisedPast, summariser: PastSummariser) -> StrategySummary:
        text = " ".join(filter(None, [past.earlier, *(turn.turn for turn in past.turns)]))
        return StrategySummary(text=text, summary=PastSummary(text=text))


class PlainTurn(Struct):
    parent: str | None
    lines: list[str]
    """What a context shows of it; a compaction has no lines."""
    in_effect: str | None
    """The compaction that its next turn sees."""
    awaits: bool = False


class PlainCompaction(Struct):
    summary: str
    begin: int
    """So many ancestors of its head are not shown any more."""


class PlainThreads:
    """What the ledger should say, kept in lists."""

    def __init__(self) -> None:
        self.turns: dict[str, PlainTurn] = {}
        self.compactions: dict[str, PlainCompaction] = {}
        self.heads: dict[str, str] = {}
        self.in_effect: dict[str, str | None] = {}

    def chain(self, turn: str | None) -> list[str]:
        turns: list[str] = []
        while turn is not None:
            turns.append(turn)
            turn = self.turns[turn].parent
        return turns[::-1]

    def context(self, session: str) -> list[str]:
        compaction = self.compactions.get(self.in_effect[session] or "")
        shown = self.chain(self.heads[session])[compaction.begin if compaction else 0 :]
        told = [compaction.summary] if compaction and compaction.summary else []
        return [*told, *(line for turn in shown for line in self.turns[turn].lines)]


def lines_of(messages: list[Message]) -> list[str]:
    return [told.text or ",".join(type(part).__name__ for part in told.content) for told in messages]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["say", "call", "ask", "ask", "compact", "compact", "slide", "beside", "fork", "switch", "undo"]
        ),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, 1, 2, 3, 9]),
    ),
    min_size=4,
    max_size=22,
)


class Run:
    """One random history, told to the ledger and to the model."""

    def __init__(self, ledger: weft.Ledger, pool: Pool, inference: Inference) -> None:
        self.ledger, self.aio, self.inference = ledger, AsyncLedger(ledger, pool), inference
        self.plain = PlainThreads()
        self.count = 0

    async def step(self, what: str, pick: int, keep: int) -> None:
        labels = list(self.plain.heads) or ["s0"]
        label = labels[pick % len(labels)]
        if label not in self.plain.heads or what in ("say", "call", "ask"):
            self.say(label, what if what in ("call", "ask") else "say")
        elif what == "fork":
            self.fork(label, keep)
        elif what in ("switch", "undo"):
            self.choose(label, None if what == "undo" else keep)
        else:
            try:
                await self.compact(label, what, keep)
            except NotApplicable as error:
                if not any(words in str(error) for words in ("to be kept", "no result yet", "nothing to compact")):
                    raise

    def say(self, label: str, kind: str) -> None:
        self.count += 1
        head = self.plain.heads.get(label)
        last = next((turn for turn in reversed(self.plain.chain(head)) if self.plain.turns[turn].lines), None)
        query: Any = [f"q{self.count}"]
        lines = [f"q{self.count}"]
        if last is not None and self.plain.turns[last].awaits:
            part = {"type": "tool_result", "tool_call_id": f"open-{last}", "output": "late"}
            query, lines = [{"role": "tool", "content": [part]}, *query], ["ToolResultPart", *lines]
        calls = [NewToolCall(name="look", id=f"c{self.count}", result="r")] if kind == "call" else []
        turn = self.ledger.record_turn(session=label, query=query, response=f"a{self.count}", tool_calls=calls).id
        lines += ["ToolUsePart", "ToolResultPart"] if calls else []
        in_effect = self.plain.in_effect.setdefault(label, None)
        self.plain.turns[turn] = PlainTurn(head, [*lines, f"a{self.count}"], in_effect)
        self.plain.heads[label] = turn
        if kind == "ask":
            self.ask(label)

    def ask(self, label: str) -> None:
        """A turn that ends with a call; its result comes with the next turn."""
        self.count += 1
        head, query = self.plain.heads[label], f"q{self.count}"
        writer = self.ledger.begin_turn(session=label)
        part = {"type": "tool_use", "id": f"open-{writer.id}", "name": "look", "input": {}}
        with writer as turn:
            turn.message(query)
            turn.response({"role": "assistant", "content": [part]})
        in_effect = self.plain.in_effect[label]
        self.plain.turns[writer.id] = PlainTurn(head, [query, "ToolUsePart"], in_effect, awaits=True)
        self.plain.heads[label] = writer.id

    def fork(self, label: str, back: int) -> None:
        chain = self.plain.chain(self.plain.heads[label])
        turn = chain[-1 - back % len(chain)]
        fork = f"s{len(self.plain.heads)}"
        self.ledger.fork(turn, label=fork)
        self.plain.heads[fork], self.plain.in_effect[fork] = turn, self.plain.turns[turn].in_effect

    async def compact(self, label: str, what: str, keep: int) -> None:
        plain, head = self.plain, self.plain.heads[label]
        made = await compact(
            self.aio,
            self.inference,
            label,
            model=None,
            context=person(HERE),
            strategy="sliding_window" if what == "slide" else "told",
            keep=None if keep > 4 else keep,
            window=300,
            beside=what == "beside",
        )
        chain = plain.chain(head)
        begin = chain.index(made.first_kept) if made.first_kept else chain.index(made.summarized_through) + 1
        plain.compactions[made.turn_id] = PlainCompaction(made.summary, begin)
        kept = [turn for turn in chain[begin:] if plain.turns[turn].lines]
        assert made.metadata["kept_turns"] == len(kept)
        if what == "beside":
            self.ledger.compactions.choose(label, made.turn_id)
        else:
            plain.turns[made.turn_id] = PlainTurn(head, [], made.turn_id)
            plain.heads[label] = made.turn_id
        plain.in_effect[label] = made.turn_id

    def choose(self, label: str, pick: int | None) -> None:
        listed = [made.turn_id for made in self.ledger.compactions.of_thread(label)]
        chosen = None if pick is None or not listed else listed[pick % len(listed)]
        self.ledger.compactions.choose(label, chosen)
        self.plain.in_effect[label] = chosen

    def check(self) -> None:
        for label in self.plain.heads:
            messages = list(self.ledger.context(session=label).messages)
            assert lines_of(messages) == self.plain.context(label)
            waiting = self.plain.turns[self.last(label)].awaits
            assert len(unpaired(messages)) == waiting

    def last(self, label: str) -> str:
        chain = self.plain.chain(self.plain.heads[label])
        return next(turn for turn in reversed(chain) if self.plain.turns[turn].lines)


@pytest.mark.slow("compares contexts after each step of random histories")
@settings(max_examples=25 * PROPERTY_SCALE, deadline=None)
@given(STEPS)
@example([("ask", 0, 0), ("compact", 0, 0), ("say", 0, 0), ("compact", 0, 1)])
def test_contexts_of_compacted_forked_and_switched_threads_are_those_of_a_plain_model(
    steps: list[tuple[str, int, int]],
) -> None:
    async def main() -> None:
        pool = Pool()
        with weft.open(":memory:") as ledger:
            run = Run(ledger, pool, Inference())
            for step in steps:
                await run.step(*step)
                if run.plain.heads:
                    run.check()
        await pool.close(lambda: None)

    STRATEGIES["told"] = Told()
    try:
        asyncio.run(main())
    finally:
        del STRATEGIES["told"]
