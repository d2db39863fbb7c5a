"""Threads told in full: strands, items in order, where branches leave, and what is known of answers."""

from typing import Any

import pytest

from tests.ledger.histories import change, grow
from tests.ledger.imported import native_turn, rich_import, take
from weft.kernel.enums import LinkReason
from weft.kernel.errors import Damaged, NotFound
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import NativeLink
from weft.ledger.model import Message, ToolCall
from weft.ledger.read.full_threads import AT_ONCE, FullTurn


def texts(told: FullTurn) -> list[str]:
    return [item.text if isinstance(item, Message) else item.name for item in told.items]


def told_ids(ledger: Ledger, *names: str, **options: Any) -> list[str]:
    return [told.turn.id for told in ledger.full_threads(*names, **options).turns]


def test_a_thread_is_told_from_its_root_in_order(ledger: Ledger) -> None:
    turns = grow(ledger, "main", *(str(i) for i in range(AT_ONCE + 3)))
    telling = ledger.full_threads("main")
    assert [told.turn.id for told in telling.turns] == turns == list(ledger.thread("main").ancestry)
    (strand,) = telling.strands
    assert (strand.first, strand.last, strand.count, strand.parent) == (turns[0], turns[-1], len(turns), None)
    assert [texts(told) for told in telling.turns_of(strand)][1] == ["1", "re: 1"]


def test_messages_and_calls_stand_in_the_order_of_their_events(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.message("go")
        turn.request("m", provider="p")
        turn.response("first", latency_ms=7, usage={"input_tokens": 1, "output_tokens": 2})
        turn.tool_call("run", id="c", arguments={"x": 1})
        turn.message("aside", history="notes")
        turn.tool_result("c", "fine")
        turn.response("then")
        turn.finish()
    (told,) = ledger.full_threads("main", requests=True).turns
    assert texts(told) == ["go", "first", "run", "aside", "then"]
    assert list(told.positions) == sorted(told.positions)
    first, then = (told.replies[item.id] for item in told.items if isinstance(item, Message) and item.text in
                   ("first", "then"))  # fmt: skip
    assert (first.provider, first.latency_ms, first.usage and first.usage.output_tokens) == ("p", 7, 2)
    assert first.request_id == then.request_id
    assert (then.latency_ms, then.usage) == (None, None)
    [without] = ledger.full_threads("main").turns
    assert all(reply.request_id is None for reply in without.replies.values())


def test_several_threads_tell_each_turn_once_and_parents_first(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c", "d")
    ledger.fork(turns[1], label="side")
    side = grow(ledger, "side", "x", "y")
    ledger.fork(side[0], label="deep")
    deep = grow(ledger, "deep", "z")
    both = told_ids(ledger, "main", "deep")
    assert sorted(both) == sorted([*turns, side[0], *deep])
    parents = {told.turn.id: told.turn.parent_id for told in ledger.full_threads("main", "deep").turns}
    assert all(parent is None or both.index(parent) < both.index(turn) for turn, parent in parents.items())
    assert sorted(told_ids(ledger, "main", trees=True)) == sorted([*turns, *side, *deep])
    assert told_ids(ledger, "deep") == [*turns[:2], side[0], *deep]


def test_a_turn_says_which_branches_leave_it(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c")
    ledger.fork(turns[0], label="side")
    (x,) = grow(ledger, "side", "x")
    alone = {told.turn.id: told.branches for told in ledger.full_threads("main~1").turns}
    [branch] = alone[turns[0]]
    assert (branch.turn_id, branch.session, branch.subject, branch.strand) == (x, "side", "x", None)
    [after] = alone[turns[1]]
    assert (after.turn_id, after.session, after.strand) == (turns[2], "main", None)
    telling = ledger.full_threads("main", "side")
    [branch] = next(iter(telling.turns)).branches
    assert branch.strand is not None
    strand = telling.strands[branch.strand]
    assert (strand.first, strand.leaves, strand.leaves_at, strand.after_events) == (x, turns[0], 1, None)


def test_a_fork_inside_a_turn_shows_it_up_to_there(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.message("go")
        call = turn.tool_call("run", id="c")
        turn.tool_result(call, "done")
        turn.message("late", role="assistant")
        turn.finish()
    event = next(found.id for found in ledger.events(turn.id) if b'"kind":"tool_call"' in found.line)
    ledger.fork(event, label="inside")
    (after,) = grow(ledger, "inside", "on")
    cut, last = ledger.full_threads("inside").turns
    assert (texts(cut), cut.shown) == (["go", "run"], ledger.thread(event)._events)
    (open_call,) = (item for item in cut.items if isinstance(item, ToolCall))
    assert open_call.outcome == "interrupted"
    assert last.turn.id == after
    whole, *_ = ledger.full_threads("main", "inside").turns
    assert (texts(whole), whole.shown) == (["go", "run", "late"], None)
    [branch] = whole.branches
    assert branch.after_events == cut.shown


def test_a_compaction_is_told_with_its_summary(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    ledger.compactions.record(session="main", summary="so far")
    first, second = ledger.full_threads("main").turns
    assert first.summary is None
    assert second.summary is not None
    assert second.summary.summary == "so far"


def test_a_thread_is_told_across_a_link(ledger: Ledger) -> None:
    take(ledger, "p", native_turn("t1", end=1), native_turn("t2", parent=0, end=2), file="p")
    take(ledger, "c", native_turn("k1", link=NativeLink(to="t1", why=LinkReason.CONTINUATION), end=1), file="c")
    telling = ledger.full_threads("c")
    assert [told.turn.id for told in telling.turns] == list(ledger.thread("c").ancestry)
    parent, child = telling.strands
    assert (child.parent, child.leaves, child.link) == (parent.number, parent.last, "continuation")
    [first, _] = telling.turns
    assert {(branch.session, branch.link, branch.strand) for branch in first.branches} == {
        ("p", None, None),
        ("c", "continuation", child.number),
    }
    usage = next(iter(first.replies.values())).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (10, 5)


def test_chains_that_name_each_other_are_all_told(ledger: Ledger) -> None:
    for session, key, other in (("p", "t1", "k1"), ("c", "k1", "t1")):
        link = NativeLink(to=other, why=LinkReason.CONTINUATION)
        take(ledger, session, native_turn(key, names=(key,), link=link, end=1), file=session)
    both = {session.head for session in ledger.sessions()}
    assert len(both) == 2
    for names in (("p",), ("c",), ("p", "c")):
        found = told_ids(ledger, *names)
        assert (set(found), len(found)) == (both, 2)


def test_a_superseded_turn_is_told_only_where_current_ones_go_on_from_it(ledger: Ledger) -> None:
    rich_import(ledger)
    current = {turn.id for turn in ledger.log()}
    tree = set(told_ids(ledger, "main", trees=True))
    assert tree <= current
    assert set(ledger.thread("main").ancestry) <= tree


def test_a_failed_turn_is_in_the_tree_only(ledger: Ledger) -> None:
    (first,) = grow(ledger, "main", "a")
    failed = ledger.record_turn(session="main", query="b", error="no")
    (last,) = grow(ledger, "main", "c")
    assert told_ids(ledger, "main") == [first, last]
    assert sorted(told_ids(ledger, "main", trees=True)) == sorted([first, failed.id, last])


def test_views_with_a_gap_are_told_as_damage(disk: Ledger) -> None:
    turns = grow(disk, "main", "a", "b", "c")
    disk.fork(turns[0], label="side")
    grow(disk, "side", "x")
    assert change(disk.path, "UPDATE turn SET depth = 1000000000 WHERE id = ?", turns[1]) == 1
    with pytest.raises(Damaged, match="lacks turns"):
        list(disk.full_threads("side", trees=True).turns)


def test_a_name_that_means_nothing_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.full_threads("nobody")
    assert ledger.full_threads().strands == ()


def test_a_line_about_each_turn_and_the_time_of_all(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b\nmore")
    ledger.fork(turns[0], label="side")
    side = grow(ledger, "side", "x")
    compacted = ledger.compactions.record(session="main", summary="so far").id
    threads = ledger.full_threads("main", "side")
    lines = [line for strand in threads.strands for line in threads.lines_of(strand)]
    assert {(line.turn_id, line.depth, line.session, line.subject, line.is_compaction) for line in lines} == {
        (turns[0], 1, "main", "a", False), (turns[1], 2, "main", "b more", False),
        (compacted, 3, "main", "so far", True), (side[0], 2, "side", "x", False),
    }  # fmt: skip
    span = threads.span()
    every = [ledger.turn(line.turn_id) for line in lines]
    assert span.started_at == min(turn.started_at for turn in every)
    assert span.ended_at == max(turn.completed_at or turn.started_at for turn in every)
    assert [line.is_prompted for line in lines] == [not line.is_compaction for line in lines]
    assert span.session_ids == {ledger.session("main").id, ledger.session("side").id}
