"""Random threads with tools, compacted, forked and switched between models and brokers, against plain lists: every
request carries what the lists say, cut as they say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

import weft
from tests.ledger.histories import PROPERTY_SCALE
from tests.runtime.broker.bench import Bench, saying, text_of
from tests.runtime.inference.asking import model
from weft.ledger.api import Ledger
from weft.runtime.broker.broker import Broker
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

RESULT_LENGTHS = (10, 950, 2_400)
WINDOWS = (1_300, 2_600, 40_000)
ANSWER_TOKENS = 50


class Line(Struct):
    """One message: its text, and the text of it shortened where it is the result of a tool."""

    turn: str
    text: str
    short: str
    extra: int = 0
    """Tokens of a call's id, name and arguments."""

    def tokens(self, text: str) -> int:
        return 4 + self.extra + -(-len(text) // 3)


class Cut(Struct, frozen=True):
    compaction: str | None = None
    shortened: frozenset[str] = frozenset()
    """By turn and place in it."""
    left_out: frozenset[str] = frozenset()


def key(line: Line, place: int) -> str:
    return f"{line.turn}-{place}"


class PlainThreads:
    """What requests should carry, kept in lists."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.lines: dict[str, list[Line]] = {}
        self.cuts: dict[str, Cut] = {}
        self.seen: dict[str, str | None] = {}
        """The compaction that a turn's child sees."""
        self.compactions: dict[str, tuple[str, str | None]] = {}
        """Summary, and the first turn that is still shown."""
        self.heads: dict[str, str | None] = {"s0": None}
        self.in_effect: dict[str, str | None] = {"s0": None}

    def chain(self, turn: str | None) -> list[str]:
        turns: list[str] = []
        while turn is not None:
            turns.append(turn)
            turn = self.parents[turn]
        return turns[::-1]

    def shown(self, session: str) -> tuple[list[str], list[str]]:
        """The summary, and the turns in full."""
        chain = self.chain(self.heads[session])
        summary, first = self.compactions.get(self.in_effect[session] or "", ("", None))
        begin = 0
        if self.in_effect[session] is not None:
            begin = chain.index(first) if first in chain else chain.index(str(self.in_effect[session]))
        return [summary] if summary else [], chain[begin:]

    def cut(self, session: str) -> Cut:
        asked = [turn for turn in self.chain(self.heads[session]) if turn in self.cuts]
        cut = self.cuts[asked[-1]] if asked else Cut()
        return cut if cut.compaction == self.in_effect[session] else Cut(self.in_effect[session])


class PlainRequest:
    """A request of a thread, cut to fit."""

    def __init__(self, summary: list[str], turns: list[list[Line]], own: list[Line], cut: Cut) -> None:
        self.summary, self.turns, self.own, self.cut = summary, turns, own, cut

    def entries(self, turns: list[list[Line]]) -> Iterator[tuple[str, Line]]:
        for lines in turns:
            yield from ((key(line, place), line) for place, line in enumerate(lines))

    def texts(self) -> list[str]:
        kept = [lines for lines in self.turns if lines and lines[0].turn not in self.cut.left_out]
        shown = [line.short if id in self.cut.shortened else line.text for id, line in self.entries([*kept, self.own])]
        return [*self.summary, *shown]

    def tokens(self) -> int:
        kept = [lines for lines in self.turns if lines and lines[0].turn not in self.cut.left_out]
        summary = sum(4 + -(-len(text) // 3) for text in self.summary)
        entries = self.entries([*kept, self.own])
        return summary + sum(line.tokens(line.short if id in self.cut.shortened else line.text) for id, line in entries)

    def fit(self, room: int) -> None:
        """In the defined order; a cut goes on to 60 % of the room."""
        if self.tokens() <= room:
            return
        target = 0.6 * room
        self.shorten(self.turns, target)
        if self.tokens() > room:
            for lines in self.turns:
                if self.tokens() <= target:
                    break
                if lines:
                    self.cut = Cut(self.cut.compaction, self.cut.shortened, self.cut.left_out | {lines[0].turn})
        if self.tokens() > room:
            self.shorten([self.own], target)

    def shorten(self, turns: list[list[Line]], target: float) -> None:
        for id, line in self.entries(turns):
            if self.tokens() <= target:
                return
            if line.short != line.text and line.turn not in self.cut.left_out:
                self.cut = Cut(self.cut.compaction, self.cut.shortened | {id}, self.cut.left_out)


def shortened(text: str) -> str:
    left_out = len(text) - 800
    if left_out < 200:
        return text
    return f"{text[:600]}\n[{left_out} characters of this result are left out]\n{text[-200:]}"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "say", "compact", "choose", "fork", "model", "broker"]),
        st.integers(0, 5),
        st.lists(st.sampled_from(RESULT_LENGTHS), max_size=2),
    ),
    min_size=4,
    max_size=12,
)


class RandomThreads:
    """One random history, told to brokers and to the lists."""

    def __init__(self, ledger: Ledger) -> None:
        self.bench, self.plain, self.ledger = Bench(ledger), PlainThreads(), ledger
        self.window, self.count = WINDOWS[0], 0
        self.broker: Broker = self.bench.broker()
        self.results: list[str] = []
        self.bench.options["tools"] = tools_of(FunctionTool(self.looks))

    async def looks(self) -> str:
        return self.results.pop(0)

    async def step(self, what: str, pick: int, results: list[int]) -> None:
        plain = self.plain
        session = sorted(plain.heads)[pick % len(plain.heads)]
        head = plain.heads[session]
        if what == "model":
            self.window = WINDOWS[pick % len(WINDOWS)]
        elif what == "broker":
            self.broker = self.bench.broker()
        elif what == "say" or head is None:
            await self.say(session, results)
        elif what == "fork":
            self.fork(session, pick)
        elif what == "compact":
            self.compact(session, pick)
        else:
            self.choose(session, pick)

    def room(self, tools: int) -> int:
        return max(1, self.window - ANSWER_TOKENS - tools)

    async def say(self, session: str, results: list[int]) -> None:
        self.count += 1
        number, bench, plain = self.count, self.bench, self.plain
        outputs = [f"{i}{'r' * length}" for i, length in enumerate(results)]
        self.results = list(outputs)
        bench.provider._answers = [*(saying("", "looks") for _ in results), saying(f"answer {number} " + "a" * 300)]
        bench.options["model"] = model("http://127.0.0.1:9", context_window=self.window)
        first = len(bench.provider.requests)
        end = await bench.answered(bench.admit(f"question {number}", session), self.broker)
        turn, requests = end.turn, bench.provider.requests[first:]
        expected = list(self.expected(session, turn, f"question {number}", outputs))
        assert [[text_of(message) for message in request.messages] for request in requests] == expected
        answer = f"answer {number} " + "a" * 300
        plain.lines[turn].append(Line(turn, answer, answer))
        plain.parents[turn], plain.heads[session] = plain.heads[session], turn
        plain.seen[turn] = plain.in_effect[session]

    def expected(self, session: str, turn: str, question: str, outputs: list[str]) -> Iterator[list[str]]:
        plain = self.plain
        summary, turns = plain.shown(session)
        history = [plain.lines[one] for one in turns]
        own = [Line(turn, question, question)]
        tools = self.tool_tokens()
        request = PlainRequest(summary, history, [], plain.cut(session))
        request.fit(max(1, self.room(tools) - own[0].tokens(question)))
        request.own = own
        yield request.texts()
        for output in outputs:
            call = Line(turn, "", "", extra=-(-len("call-looks") // 3) + -(-len("looks") // 3) + 1)
            own += [call, Line(turn, output, shortened(output), extra=-(-len("call-looks") // 3))]
            request.fit(self.room(tools))
            yield request.texts()
        plain.lines[turn], plain.cuts[turn] = own, request.cut

    def tool_tokens(self) -> int:
        (tool,) = self.bench.options["tools"].values()
        spec = tool.spec
        return -(-len(orjson.dumps([spec.name, spec.description, spec.schema])) // 3)

    def fork(self, session: str, back: int) -> None:
        chain = [turn for turn in self.plain.chain(self.plain.heads[session]) if self.plain.lines[turn]]
        turn, label = chain[-1 - back % len(chain)], f"s{len(self.plain.heads)}"
        self.ledger.fork(turn, label=label)
        self.plain.heads[label], self.plain.in_effect[label] = turn, self.plain.seen[turn]

    def compact(self, session: str, keep: int) -> None:
        plain = self.plain
        _, turns = plain.shown(session)
        spoken = [turn for turn in turns if plain.lines[turn]]
        if len(spoken) < 2:
            return
        first = spoken[max(1, len(spoken) - keep % len(spoken))] if keep % len(spoken) else None
        made = self.ledger.compactions.record(session=session, summary=f"summary {len(turns)}", first_kept=first)
        plain.compactions[made.id] = (f"summary {len(turns)}", first)
        plain.parents[made.id], plain.lines[made.id] = plain.heads[session], []
        plain.heads[session] = plain.in_effect[session] = plain.seen[made.id] = made.id

    def choose(self, session: str, pick: int) -> None:
        listed = [made.turn_id for made in self.ledger.compactions.of_thread(session)]
        chosen = [None, *listed][pick % (len(listed) + 1)]
        self.ledger.compactions.choose(session, chosen)
        self.plain.in_effect[session] = chosen


@pytest.mark.slow("compares every request of seventeen histories")
@settings(max_examples=15 * PROPERTY_SCALE, deadline=None)
@given(STEPS)
@example([("say", 0, [2_400, 950]), ("say", 0, [2_400]), ("fork", 1, []), ("broker", 0, []), ("say", 0, [2_400])])
@example([("model", 1, []), ("say", 0, [2_400]), ("model", 0, []), ("say", 0, []), ("model", 2, []), ("say", 0, [950])])
def test_requests_of_compacted_forked_switched_and_cut_threads_are_those_of_plain_lists(
    steps: list[tuple[str, int, list[int]]],
) -> None:
    async def main() -> None:
        with weft.open(":memory:") as ledger:
            threads = RandomThreads(ledger)
            for step in steps:
                await threads.step(*step)

    asyncio.run(main())
