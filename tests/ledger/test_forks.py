"""Forks: at any turn and at any event inside one; nothing is copied, and the parent is seen up to the fork point."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.ledger.histories import grow, kinds, lines, problems, queries, texts
from weft import ToolResultPart, ToolUsePart
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger


def long_turn(ledger: Ledger, session: str = "main") -> str:
    """Messages, two calls at once, their results, an answer."""
    with ledger.begin_turn(session=session) as writer:
        writer.message("rules", role="system")
        writer.message("q")
        writer.request("m")
        writer.response("let me see", usage={"input_tokens": 5})
        one, two = writer.tool_call("read", {"n": 1}, id="c1"), writer.tool_call("read", {"n": 2}, id="c2")
        writer.tool_result(two, "second")
        writer.tool_result(one, error="first failed")
        writer.request("m")
        writer.response("answer", usage={"output_tokens": 7})
        writer.finish()
    return writer.id


def test_a_fork_is_one_small_append_whatever_the_depth(ledger: Ledger) -> None:
    turns = grow(ledger, "main", *"abcdefghij")
    sizes = []
    for turn in (turns[0], turns[9]):
        before = len(b"".join(lines(ledger)))
        ledger.fork(turn, label=f"at-{turn[-4:]}")
        sizes.append(len(b"".join(lines(ledger))) - before)
    assert sizes[0] == sizes[1] < 1000
    assert ledger.upkeep.stats()["contents"] == 20 + 3  # what was said, and three labels


def test_a_fork_that_nobody_names_gets_a_label(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b")
    labels = [ledger.fork(turns[0]).label for _ in range(2)]
    assert len({"main", *labels}) == 3
    assert [ledger.session(label).head for label in labels] == [turns[0]] * 2


def test_a_fork_goes_its_own_way(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c")
    session = ledger.fork(turns[1], label="alt")
    assert (session.head, session.head_event, session.persona_id) == (turns[1], None, "local")
    grow(ledger, "alt", "x", "y")
    grow(ledger, "main", "d")
    assert queries(ledger, "alt") == ["a", "b", "x", "y"]
    assert queries(ledger, "main") == ["a", "b", "c", "d"]
    assert problems(ledger) == []


def test_the_event_of_a_fork_says_where_it_comes_from(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.fork("main", label="alt")
    ledger.fork(turn, label="other", session="main")
    ledger.fork(turn, label="third")
    nobodys = ledger.record_turn(query="q")
    ledger.fork(nobodys.id, label="fourth")
    forks = [found.event for found in ledger.changes() if b'"agent_forked"' in found.line]
    main = ledger.session("main").id
    origins = [getattr(event, "from_branch", None) or None for event in forks]
    assert origins == [main, main, main, None]
    assert {event.at_event.event_id for event in forks} == {ledger.turn(turn).digest, nobodys.digest}  # type: ignore[union-attr]
    assert [event.to_branch for event in forks] == [  # type: ignore[union-attr]
        ledger.session(label).id for label in ("alt", "other", "third", "fourth")
    ]


@pytest.mark.parametrize("way", ["label", "turn id", "suffix", "digest", "main~1", "main@{1}"])
def test_a_fork_point_is_whatever_a_name_leads_to(ledger: Ledger, way: str) -> None:
    first, second = grow(ledger, "main", "a", "b")
    at = {
        "label": "main", "turn id": second, "suffix": second[-12:], "digest": ledger.turn(second).digest,
        "main~1": "main~1", "main@{1}": "main@{1}",
    }[way]  # fmt: skip
    assert ledger.fork(at, label="alt").head == (first if way.startswith("main") else second)


@pytest.mark.parametrize("at", ["nobody", "0" * 64, "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_a_fork_point_that_is_not_there_makes_no_session(ledger: Ledger, at: str) -> None:
    grow(ledger, "main", "a")
    with pytest.raises(NotFound):
        ledger.fork(at, label="alt")
    assert [session.label for session in ledger.sessions()] == ["main"]


def test_an_event_of_a_session_is_no_fork_point(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    moved = [found.id for found in ledger.changes() if b'"session_moved"' in found.line]
    with pytest.raises(NotFound):
        ledger.fork(moved[0], label="alt")
    with pytest.raises(InvalidInput):
        ledger.fork("~1", label="alt")


@pytest.mark.parametrize(
    ("position", "said", "calls"),
    [
        (0, [], []),
        (1, ["rules"], []),
        (2, ["rules", "q"], []),
        (3, ["rules", "q"], []),
        (4, ["rules", "q", "let me see"], []),
        (5, ["rules", "q", "let me see"], [("c1", "interrupted", None)]),
        (6, ["rules", "q", "let me see"], [("c1", "interrupted", None), ("c2", "interrupted", None)]),
        (7, ["rules", "q", "let me see"], [("c1", "interrupted", None), ("c2", "ok", "second")]),
        (8, ["rules", "q", "let me see"], [("c1", "error", None), ("c2", "ok", "second")]),
        (9, ["rules", "q", "let me see"], [("c1", "error", None), ("c2", "ok", "second")]),
        (10, ["rules", "q", "let me see", "answer"], [("c1", "error", None), ("c2", "ok", "second")]),
        (11, ["rules", "q", "let me see", "answer"], [("c1", "error", None), ("c2", "ok", "second")]),
    ],
)
def test_a_thread_shows_the_turn_it_forked_inside_up_to_that_event(
    ledger: Ledger, position: int, said: list[str], calls: list[tuple[str, str, Any]]
) -> None:
    turn = long_turn(ledger)
    events = ledger.events(turn)
    assert len(events) == 12
    session = ledger.fork(events[position].id, label="alt")
    assert session.head == turn
    assert session.head_event == (None if position == 11 else position + 1)
    assert texts(ledger.thread("alt").messages) == texts(ledger.messages("alt")) == said
    assert [(call.call_id, call.outcome, call.result) for call in ledger.tool_calls("alt")] == calls
    (child,) = grow(ledger, "alt", "go on")
    assert texts(ledger.thread(child).messages) == [*said, "go on", "re: go on"]
    assert texts(ledger.thread("main").messages) == ["rules", "q", "let me see", "answer"]
    assert problems(ledger) == []


def test_calls_open_at_the_fork_point_are_interrupted_in_the_context(ledger: Ledger) -> None:
    turn = long_turn(ledger)
    ledger.fork(ledger.events(turn)[7].id, label="alt")
    (child,) = grow(ledger, "alt", "go on")
    after = [(m.role, m.content) for m in ledger.context(child).messages][3:]
    assert after[0] == ("assistant", (ToolUsePart("c1", "read", {"n": 1}), ToolUsePart("c2", "read", {"n": 2})))
    assert after[1] == ("tool", (ToolResultPart("c1", "interrupted", True), ToolResultPart("c2", "second")))
    assert [message.text for message in ledger.context(child).messages if message.role == "user"] == ["q", "go on"]
    whole = [m.content for m in ledger.context(session="main").messages if m.role == "tool"]
    assert whole == [(ToolResultPart("c1", "first failed", True), ToolResultPart("c2", "second"))]


def test_what_an_open_turn_does_after_a_fork_is_not_seen_by_the_fork(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    writer.message("before")
    ledger.fork(writer.id, label="alt")
    beside = ledger.record_turn(parent=writer.id, query="beside")
    writer.message("after")
    writer.finish()
    assert texts(ledger.thread("alt").messages) == ["before"]
    assert texts(ledger.thread(beside.id).messages) == ["before", "beside"]
    assert texts(ledger.context(beside.id).messages) == ["before", "beside"]
    assert texts(ledger.thread("main").messages) == ["before", "after"]
    assert problems(ledger) == []


def test_many_children_of_one_turn_are_all_there(ledger: Ledger) -> None:
    (root,) = grow(ledger, "main", "root")
    made = [ledger.record_turn(parent=root, query=f"{i}").id for i in range(40)]
    assert [turn.id for turn in ledger.tree.children(root)] == made
    assert all(queries(ledger, turn) == ["root", f"{i}"] for i, turn in enumerate(made))
    assert problems(ledger) == []


def test_forks_inside_turns_stack(ledger: Ledger) -> None:
    first = long_turn(ledger)
    ledger.fork(ledger.events(first)[2].id, label="one")
    second = long_turn(ledger, "one")
    ledger.fork(ledger.events(second)[4].id, label="two")
    third = long_turn(ledger, "two")
    begin = ["rules", "q"]
    assert texts(ledger.thread(third).messages) == [*begin, *begin, "let me see", *begin, "let me see", "answer"]
    assert ledger.tree.common_ancestor("main", "two") == first
    assert problems(ledger) == []


@pytest.mark.parametrize("verb", ["turns", "ancestry", "total_tokens", "depth"])
def test_a_thread_counts_whole_turns(ledger: Ledger, verb: str) -> None:
    turn = long_turn(ledger)
    ledger.fork(ledger.events(turn)[2].id, label="alt")
    (child,) = grow(ledger, "alt", "x", usage={"output_tokens": 1})
    thread = ledger.thread(child)
    found: dict[str, Callable[[], object]] = {
        "turns": lambda: [found.id for found in thread.turns],
        "ancestry": lambda: list(thread.ancestry),
        "total_tokens": lambda: thread.total_tokens,
        "depth": lambda: thread.depth,
    }
    wanted = {"turns": [turn, child], "ancestry": [turn, child], "total_tokens": 13, "depth": 2}
    assert found[verb]() == wanted[verb]
    assert kinds(ledger, child)[0] == "run_started"
