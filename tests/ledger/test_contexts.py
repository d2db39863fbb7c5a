"""Contexts: exactly what an agent saw at a turn, or would see at the next one."""

import math
from typing import Any

import pytest

from tests.ledger.histories import grow, problems, texts
from tests.sizes import PROVING
from weft import ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.events import ModelRequest, RequestInput
from weft.ledger.api.ledger import Ledger
from weft.ledger.read.contexts import Context

TURNS = 300 if PROVING else 100


def spoken(ledger: Ledger, **of: str) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in ledger.context(**of).messages]


def test_a_turn_saw_its_ancestry_and_its_own_query(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    assert spoken(ledger, turn=first) == [("user", "a")]
    assert spoken(ledger, turn=second) == [("user", "a"), ("assistant", "re: a"), ("user", "b")]
    assert ledger.context(second).turns == (first,)
    assert not ledger.context(second).observed


def test_a_session_would_see_all_that_was_said(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b")
    context = ledger.context(session="main")
    assert texts(context.messages) == ["a", "re: a", "b", "re: b"]
    assert (context.turns, context.compaction) == (tuple(turns), None)
    assert ledger.context() == context


def test_an_empty_session_would_see_nothing(ledger: Ledger) -> None:
    ledger.create_session("main")
    assert ledger.context(session="main").messages == ()
    with pytest.raises(NotFound):
        ledger.context(session="nobody")
    with pytest.raises(NotFound):
        ledger.context("nobody")


def test_the_newest_system_prompt_stands_first_and_alone(ledger: Ledger) -> None:
    ledger.record_turn(session="main", system=["you are old", "be brief"], query="a", response="re: a")
    grow(ledger, "main", "b")
    made = ledger.record_turn(session="main", system="you are new", query="c", response="re: c")
    (after,) = grow(ledger, "main", "d")
    assert spoken(ledger, turn=made.id)[:2] == [("system", "you are new"), ("user", "a")]
    assert [pair for pair in spoken(ledger, turn=after) if pair[0] == "system"] == [("system", "you are new")]
    assert spoken(ledger, turn="main~2")[:2] == [("system", "you are old"), ("system", "be brief")]


def test_a_system_message_in_the_middle_stays_where_it_is(ledger: Ledger) -> None:
    query: list[Any] = ["a", {"role": "system", "content": "a note"}, "b"]
    ledger.record_turn(session="main", query=query, response="re: b")
    assert spoken(ledger, session="main") == [
        ("user", "a"),
        ("system", "a note"),
        ("user", "b"),
        ("assistant", "re: b"),
    ]


def test_tool_calls_appear_as_a_use_and_a_result_in_call_order(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("q")
        writer.response("looking")
        calls = [writer.tool_call("t", {"i": i}, id=f"c{i}") for i in range(3)]
        writer.tool_result(calls[2], None)
        writer.tool_result(calls[0], error="broken")
        writer.tool_result(calls[1], {"partial": 1}, status="timeout")
        writer.response("done")
        writer.finish()
    _, looking, uses, results, done = ledger.context(session="main").messages
    assert (looking.text, done.text) == ("looking", "done")
    assert (uses.role, uses.content) == ("assistant", tuple(ToolUsePart(f"c{i}", "t", {"i": i}) for i in range(3)))
    assert (results.role, results.content) == (
        "tool",
        (ToolResultPart("c0", "broken", True), ToolResultPart("c1", {"partial": 1}, True), ToolResultPart("c2", None)),
    )


def test_calls_that_the_messages_spell_out_are_not_told_twice(ledger: Ledger) -> None:
    use, result = ToolUsePart("c1", "read", {"path": "x"}), ToolResultPart("c1", "text of x")
    ledger.record_turn(
        session="main", query="q", tool_calls=[{"id": "c1", "name": "read", "arguments": {"path": "x"}, "result": "…"}],
        response=[{"content": [ReasoningPart("hm"), use]}, {"role": "tool", "content": [result]}, "x is fine"],
    )  # fmt: skip
    content = [message.content for message in ledger.context(session="main").messages]
    assert content == [(TextPart("q"),), (ReasoningPart("hm"), use), (result,), (TextPart("x is fine"),)]


def test_an_interrupted_call_says_so_to_the_next_turn(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("q")
        writer.tool_call("slow", id="c1")
        writer.interrupt()
    assert ledger.context(session="main").messages[-1].content == (ToolResultPart("c1", "interrupted", True),)


def test_a_turn_in_the_making_saw_what_came_before_its_first_step(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    writer = ledger.begin_turn(session="main")
    writer.message("b")
    before = ledger.context(writer.id)
    writer.tool_result(writer.tool_call("t"), 1)
    writer.message("steering")
    writer.response("r")
    writer.finish()
    assert ledger.context(writer.id) == before
    assert texts(before.messages) == ["a", "re: a", "b"]


def test_a_recorded_input_is_the_answer(ledger: Ledger) -> None:
    (first,) = grow(ledger, "main", "a")
    ours = [message.id for message in ledger.messages(first)]
    with ledger.begin_turn(session="main") as writer:
        query = writer.message("b")
        writer.request("m", input=[ours[1], query])
        writer.response("r")
        writer.finish()
    context = ledger.context(writer.id)
    assert context.observed
    assert texts(context.messages) == ["re: a", "b"]


def test_an_input_builds_on_an_earlier_one(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b", "c")
    ids = [message.id for message in ledger.thread("main").messages]
    with ledger.begin_turn(session="main") as writer:
        base = writer.request("m", input=ids[:4])
        writer.finish()
    with ledger.begin_turn(session="main") as writer:
        second = writer.request("m", input={"base": base, "keep": 2, "then": [ids[5]]})
        writer.finish()
    with ledger.begin_turn(session="main") as third:
        third.request("m", input={"base": second, "keep": 9, "then": []})
        third.finish()
    assert texts(ledger.context(writer.id).messages) == ["a", "re: a", "re: c"]
    assert ledger.context(third.id).messages == ledger.context(writer.id).messages
    assert problems(ledger) == []


def test_a_long_conversation_costs_each_request_only_what_is_new(ledger: Ledger) -> None:
    base: str | None = None
    said: list[str | None] = []
    sizes = []
    for i in range(30):
        with ledger.begin_turn(session="main") as writer:
            known = max(len(said) - 1, 0)
            said.append(writer.message(f"{i}"))
            base = writer.request("m", input={"base": base, "keep": known, "then": said[known:]})
            said.append(writer.response(f"re: {i}"))
            writer.finish()
        sizes.append(len(ledger.events(writer.id)[2].line))
    assert max(sizes) < min(sizes) + 120
    assert texts(ledger.context("main").messages) == texts(ledger.context(session="main").messages)[:-1]


def test_an_input_may_name_events_and_summaries(ledger: Ledger) -> None:
    (first,) = grow(ledger, "main", "a")
    compaction = ledger.compactions.record(session="main", summary="SUMMARY")
    with ledger.begin_turn(session="main") as writer:
        writer.message("b")
        writer.tool_result(writer.tool_call("t", {"x": 1}, id="c1"), "found")
        said, called, answered = (found.id for found in ledger.events(writer.id)[1:4])
        writer.request("m", input=[compaction.id, *({"event_id": id} for id in (said, called, answered))])
        writer.finish()
    summary, query, use, result = ledger.context(writer.id).messages
    assert (summary.text, query.text) == ("SUMMARY", "b")
    assert use.content == (ToolUsePart("c1", "t", {"x": 1}),)
    assert result.content == (ToolResultPart("c1", "found"),)
    assert first != writer.id


def test_a_context_can_be_given_as_the_input(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b")
    with ledger.begin_turn(session="main") as writer:
        writer.message("c")
        seen = ledger.context(writer.id)
        writer.request("m", input=seen)
        writer.message("d")
        more = ledger.context(session="main").messages + tuple(ledger.messages(writer.id))
        writer.request("m", input=Context(more, (), None))
        writer.finish()
    assert ledger.context(writer.id).messages == seen.messages
    first, second = (found.event for found in ledger.events(writer.id) if isinstance(found.event, ModelRequest))
    assert isinstance(first.input, RequestInput)
    assert isinstance(second.input, RequestInput)
    assert (first.input.keep, len(first.input.then)) == (0, 5)
    assert (second.input.keep, len(second.input.then)) == (5, 1)


@pytest.mark.slow("records a hundred turns step by step")
def test_a_context_of_any_length_is_found_by_way_of_few_requests(ledger: Ledger) -> None:
    asked: list[RequestInput] = []
    found: dict[str | None, RequestInput] = {}
    for i in range(TURNS):
        if i % 3 == 0:
            grow(ledger, "main", f"beside {i}")
        with ledger.begin_turn(session="main") as writer:
            writer.message(f"ask {i}")
            name = writer.request("m", input=ledger.context(writer.id))
            writer.response("said")
            writer.finish()
        (event,) = (one.event for one in ledger.events(writer.id) if isinstance(one.event, ModelRequest))
        assert isinstance(event.input, RequestInput)
        asked.append(event.input)
        found[name] = event.input
    deepest = math.ceil(math.log2(TURNS * 8 / 3))  # of the messages: two of each turn, two beside every third
    assert sum(len(one.then) for one in asked) < TURNS * 3 * (deepest - 1)  # by the logarithm, not by the depth
    for one in asked:
        steps = 1
        while one.base is not None:
            one, steps = found[one.base], steps + 1
        assert steps <= deepest
    seen = ledger.context("main")
    assert seen.observed
    assert texts(seen.messages) == texts(ledger.context(session="main").messages)[:-1]
    assert problems(ledger) == []


def test_an_open_call_at_a_fork_inside_a_turn_leaves_the_input_unsaid(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("look")
        call = writer.tool_call("read", {})
        inside = ledger.events(writer.id)[-1].id
        writer.tool_result(call, "found")
        writer.finish()
    ledger.fork(inside, label="before")
    with ledger.begin_turn(session="before") as other:
        other.message("and?")
        other.request("m", input=ledger.context(other.id))
        other.finish()
    assert not ledger.context(other.id).observed
    assert "interrupted" in str(ledger.context(other.id).messages)


def test_an_input_that_names_nothing_of_this_ledger_is_refused(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    finished = ledger.turn(turn).digest
    with ledger.begin_turn(session="main") as writer:
        query = writer.message("b")
        (unsaid,) = (each.id for each in ledger.events(turn) if isinstance(each.event, ModelRequest))
        for wrong in (
            ["01M7EK42XE0TTJZQCRYZJ07TSY"],
            [query, turn],
            [{"event_id": "0" * 64}],
            [{"event_id": finished}],
            {"base": "0" * 64, "keep": 0, "then": []},
            {"base": unsaid, "keep": 0, "then": []},
        ):
            with pytest.raises(NotFound):
                writer.request("m", input=wrong)
        writer.request("m", input=[query])
        writer.finish()
    assert problems(ledger) == []


def test_a_context_is_that_of_a_turn_or_of_a_session(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    with pytest.raises(InvalidInput, match="both a turn and a session"):
        ledger.context(turn, session="main")
