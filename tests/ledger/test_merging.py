"""Merging in the small: turns and summaries of a branch come back as turns that name where they came from."""

from typing import Any

import pytest

from tests.ledger.histories import exported
from tests.ledger.imported import native_call, native_turn, take
from weft import Ledger
from weft.kernel.errors import HeadMoved, InvalidInput, KeyTaken, NotApplicable, NotFound, SessionBusy
from weft.kernel.ledger_events import TurnLinked


@pytest.fixture
def branched(ledger: Ledger) -> Ledger:
    """`main` with one turn, and `side` that left there and found something."""
    ledger.record_turn(session="main", query="hello", response="hi")
    ledger.fork("main", label="side")
    ledger.record_turn(
        session="side",
        query="where is it?",
        response="found it at line 42",
        model="model-1",
        usage={"input_tokens": 5, "output_tokens": 3},
        tool_calls=[{"name": "grep", "id": "c1", "arguments": {"word": "it"}, "result": ["line 42"]}],
    )
    return ledger


def said(ledger: Ledger, turn: str) -> list[Any]:
    return [(message.role, message.content) for message in ledger.thread(turn).transcript]


def contents(ledger: Ledger) -> int:
    return exported(ledger).count(b'"salt"')


def test_a_picked_turn_says_what_its_source_said(branched: Ledger) -> None:
    (made,) = branched.merges.cherry_pick("side", onto="main")
    assert said(branched, made.id) == said(branched, "side")
    assert (made.depth, made.session_id) == (2, branched.session("main").id)
    assert branched.session("main").head == made.id
    assert made.model == "model-1"


def test_a_picked_turn_shares_every_content_with_its_source(branched: Ledger) -> None:
    before = contents(branched)
    branched.merges.cherry_pick("side", onto="main")
    assert contents(branched) == before


def test_what_a_picked_turn_cost_is_counted_once(branched: Ledger) -> None:
    before = branched.usage.report().total
    (made,) = branched.merges.cherry_pick("side", onto="main")
    assert branched.thread(made.id).total_tokens == 0
    assert branched.usage.report().total == before


def test_several_turns_are_picked_in_the_order_given_or_not_at_all(branched: Ledger) -> None:
    branched.record_turn(session="side", query="and then?", response="nothing")
    made = branched.merges.cherry_pick(["side", "side~1"], onto="main")
    assert [turn.depth for turn in made] == [2, 3]
    assert [branched.messages(turn.id)[0].text for turn in made] == ["and then?", "where is it?"]
    head = branched.session("main").head
    with pytest.raises(NotFound):
        branched.merges.cherry_pick(["side", "nowhere"], onto="main")
    assert branched.session("main").head == head


def test_provenance_is_told_from_both_ends_and_in_the_turns_own_run(branched: Ledger) -> None:
    left, source = branched.session("main").head, branched.session("side").head
    (made,) = branched.merges.cherry_pick("side", onto="main")
    (told,) = branched.merges.provenance(made.id)
    assert (told.why, told.turn_id, told.source_id, told.left_id) == ("cherry_pick", made.id, source, left)
    assert branched.merges.provenance("side") == [told]
    linked = [found.event for found in branched.events(made.id) if isinstance(found.event, TurnLinked)]
    assert [(event.child, event.parent) for event in linked] == [(made.id, source)]


def test_a_summary_is_a_turn_that_names_the_branch_and_where_it_left(branched: Ledger) -> None:
    left = branched.session("main").head
    made = branched.merges.summarize("side", into="main", text="It is at line 42.")
    assert [message.text for message in branched.messages(made.id)] == ["It is at line 42."]
    (told,) = branched.merges.provenance(made.id)
    assert (told.why, told.source_id, told.left_id) == ("summary", branched.session("side").head, left)
    assert "It is at line 42." in [message.text for message in branched.context(session="main").messages]


def test_a_branch_of_another_tree_left_nowhere(branched: Ledger) -> None:
    branched.record_turn(session="other", query="q", response="r")
    made = branched.merges.summarize("other", into="main", text="nothing there")
    assert branched.merges.provenance(made.id)[0].left_id is None


def test_no_tree_is_rewritten(branched: Ledger) -> None:
    before = {turn.id: turn.digest for turn in branched.log()}
    branched.merges.cherry_pick("side", onto="main")
    branched.merges.summarize("side", into="main", text="t")
    after = {turn.id: turn.digest for turn in branched.log()}
    assert before.items() <= after.items()
    assert branched.session("side").head in before
    assert list(branched.verify()) == []


def test_a_link_of_a_merge_is_no_ancestry(branched: Ledger) -> None:
    branched.create_session("empty")
    (made,) = branched.merges.cherry_pick("side", onto="empty")
    assert list(branched.thread("empty").ancestry) == [made.id]


def test_a_retry_with_the_same_key_gives_the_same_turns(branched: Ledger) -> None:
    first = branched.merges.cherry_pick(["side", "side~1"], onto="main", key="k1")
    assert branched.merges.cherry_pick(["side", "main@{2}"], onto="main", key="k1") == first
    told = branched.merges.summarize("side", into="main", text="t", key="k2")
    assert branched.merges.summarize("side", into="main", text="t", key="k2") == told
    assert branched.session("main").head == told.id


@pytest.mark.parametrize("other", [{"text": "another"}, {"branch": "main~1"}])
def test_the_same_key_for_something_else_is_refused(branched: Ledger, other: dict[str, str]) -> None:
    branched.merges.summarize("side", into="main", text="t", key="k")
    asked = {"branch": "side", "text": "t", **other}
    with pytest.raises(KeyTaken):
        branched.merges.summarize(asked["branch"], into="main", text=asked["text"], key="k")


def test_a_head_that_has_moved_refuses_both(branched: Ledger) -> None:
    stale = branched.session("main").head
    branched.record_turn(session="main", query="q", response="r")
    with pytest.raises(HeadMoved):
        branched.merges.cherry_pick("side", onto="main", expected=stale)
    with pytest.raises(HeadMoved):
        branched.merges.summarize("side", into="main", text="t", expected=stale, key="k")


def test_a_session_that_is_being_recorded_refuses_both(branched: Ledger) -> None:
    with branched.begin_turn(session="main") as turn:
        turn.message("q")
        with pytest.raises(SessionBusy):
            branched.merges.cherry_pick("side", onto="main", wait=0)
        with pytest.raises(SessionBusy):
            branched.merges.summarize("side", into="main", text="t", wait=0)


def test_what_cannot_be_picked_is_refused_with_a_word(branched: Ledger) -> None:
    branched.record_turn(session="failing", query="q", error="broke")
    failed = branched.log(1)[0].id
    branched.compactions.record(session="side", summary="s")
    for turn in (failed, "side"):
        with pytest.raises(NotApplicable):
            branched.merges.cherry_pick(turn, onto="main")
    inside = branched.events("side~1")[1].id
    with pytest.raises(NotApplicable, match="inside"):
        branched.merges.cherry_pick(inside, onto="main")
    with pytest.raises(InvalidInput):
        branched.merges.summarize("side", into="main", text="  \n")
    with pytest.raises(InvalidInput):
        branched.merges.cherry_pick([], onto="main")
    with pytest.raises(NotFound):
        branched.merges.summarize("side", into="nowhere", text="t")
    branched.labels.archive("main")
    with pytest.raises(NotApplicable, match="archived"):
        branched.merges.cherry_pick("side~1", onto="main")


def test_an_imported_turn_is_picked_with_its_calls(branched: Ledger) -> None:
    take(branched, "s1", native_turn("t1", calls=[native_call("c1")], started=1_000, ended=2_000, end=10))
    (made,) = branched.merges.cherry_pick("s1", onto="main")
    assert said(branched, made.id) == said(branched, "s1")
    assert (made.origin, made.native_id, made.model) == (None, None, "model-1")
    assert list(branched.verify()) == []


def test_a_late_result_comes_along_in_the_place_of_the_one_that_it_replaced(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="base", response="b")
    calls = [
        {"id": "late", "name": "slow", "status": "interrupted"},
        {"id": "cut", "name": "t", "status": "interrupted"},
    ]
    turn = ledger.record_turn(session="aside", query="try", response="both cut", tool_calls=calls)
    ledger.record_late_result(turn.id, "late", "came after all")
    (picked,) = ledger.merges.cherry_pick(turn.id, onto="main")
    assert [call.result for call in ledger.tool_calls(picked.id)] == ["came after all", None]
    assert [call.status for call in ledger.tool_calls(picked.id)] == [
        call.status for call in ledger.tool_calls(turn.id)
    ]
    assert list(ledger.verify()) == []


def test_a_late_result_comes_along(ledger: Ledger) -> None:
    ledger.create_session("main")
    with ledger.begin_turn(session="side") as turn:
        turn.message("go")
        turn.tool_call("slow", id="late")
        turn.tool_call("never", id="cut")
        turn.interrupt("timeout")
    ledger.record_late_result(turn.id, "late", "came after all")
    (made,) = ledger.merges.cherry_pick(turn.id, onto="main")
    outcomes = {call.call_id: (call.outcome, call.result) for call in ledger.tool_calls(made.id)}
    assert outcomes == {"late": ("ok", "came after all"), "cut": ("interrupted", None)}
    assert said(ledger, made.id) == said(ledger, turn.id)
    assert list(ledger.verify()) == []
