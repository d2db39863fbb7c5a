"""Compactions: a summary stands for old turns, kept turns never vanish, and a session can switch or undo."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import exported, grow, import_into, problems, queries, texts
from tests.sizes import sized
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.events import ExtRef, RunFinished
from weft.kernel.ledger_events import CompactionRecorded
from weft.ledger.api.ledger import Ledger

NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
MEASURES: dict[str, Any] = {
    "tokens_before": 9000,
    "tokens_after": 900,
    "summary_tokens": 80,
    "summarization_input_tokens": 8500,
    "summarization_output_tokens": 85,
    "duration_ms": 1234,
}


def seen(ledger: Ledger, **of: str) -> list[str]:
    """What people said and summaries, as the agent saw or would see them."""
    return [message.text for message in ledger.context(**of).messages if message.role != "assistant"]


def compacted(ledger: Ledger, keep: int = 2) -> tuple[list[str], str]:
    """Five turns in `main`, the last `keep` of them kept."""
    turns = grow(ledger, "main", *"abcde")
    kept = {"first_kept": turns[-keep]} if keep else {}
    return turns, ledger.compactions.record(session="main", summary="SUMMARY", **kept).id  # type: ignore[arg-type]


def test_a_compaction_is_a_turn_with_details(ledger: Ledger) -> None:
    turns = grow(ledger, "main", *"abcde")
    made = ledger.compactions.record(
        session="main", summary="they talked", through=turns[2], first_kept=turns[3], model="small model", provider="p",
        compaction_type="selective", trigger="context_limit", metadata={"version": 2}, **MEASURES,
    )  # fmt: skip
    turn, details = ledger.turn(made.id), ledger.compactions.get(made.id)
    assert (turn.turn_type, turn.status, turn.parent_id) == ("compaction", "completed", turns[4])
    assert (turn.model, turn.provider) == ("small model", "p")
    assert ledger.session("main").head == made.id
    assert (details.summary, details.summarized_through, details.first_kept) == ("they talked", turns[2], turns[3])
    assert (details.turns_summarized, details.compaction_type, details.trigger) == (3, "selective", "context_limit")
    assert (details.model, details.provider, details.metadata) == ("small model", "p", {"version": 2})
    assert {name: getattr(details, name) for name in MEASURES} == MEASURES
    assert problems(ledger) == []


def test_a_compaction_may_be_of_a_type_of_its_own(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b")
    made = ledger.compactions.record(session="main", summary="s", compaction_type="by_topic/2")
    assert ledger.compactions.get(made.id).compaction_type == "by_topic/2"
    with ledger._store.read() as txn:
        assert txn.sql.fetch_rows("SELECT compaction_type FROM compactions") == [("by_topic/2",)]
    assert problems(ledger) == []


def test_a_compaction_without_details_says_so(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b")
    details = ledger.compactions.get(ledger.compactions.record(session="main", summary="").id)
    assert (details.summary, details.summarized_through, details.first_kept) == ("", turns[1], None)
    assert (details.model, details.trigger, details.turns_summarized) == ("unknown", None, 2)


@pytest.mark.parametrize(
    ("keep", "expected"), [(0, ["SUMMARY"]), (2, ["SUMMARY", "d", "e"]), (4, ["SUMMARY", *"bcde"])]
)
def test_the_context_is_the_summary_and_the_kept_turns_and_all_after(
    ledger: Ledger, keep: int, expected: list[str]
) -> None:
    compacted(ledger, keep)
    assert seen(ledger, session="main") == expected
    (after,) = grow(ledger, "main", "f")
    assert seen(ledger, turn=after) == [*expected, "f"]
    assert seen(ledger, session="main") == [*expected, "f"]
    assert queries(ledger, "main") == list("abcdef")


def test_the_system_prompt_comes_before_the_summary(ledger: Ledger) -> None:
    ledger.record_turn(session="main", system="old rules", query="a", response="re: a")
    ledger.record_turn(session="main", system="rules", query="b", response="re: b")
    ledger.compactions.record(session="main", summary="SUMMARY")
    (after,) = grow(ledger, "main", "c")
    assert [(m.role, m.text) for m in ledger.context(after).messages] == [
        ("system", "rules"),
        ("user", "SUMMARY"),
        ("user", "c"),
    ]


def test_old_turns_stay_walkable_and_the_past_keeps_its_context(ledger: Ledger) -> None:
    turns, compaction = compacted(ledger)
    assert queries(ledger, compaction) == list("abcde")
    assert seen(ledger, turn=turns[4]) == list("abcde")
    later = grow(ledger, "main", "f", "g")
    before = [ledger.context(turn) for turn in [*turns, *later]]
    ledger.compactions.record(session="main", summary="ANOTHER")
    grow(ledger, "main", "h")
    ledger.compactions.choose("main", None)
    grow(ledger, "main", "i")
    assert [ledger.context(turn) for turn in [*turns, *later]] == before


def test_several_compactions_of_one_range_can_be_switched_and_undone(ledger: Ledger) -> None:
    turns, first = compacted(ledger)
    second = ledger.compactions.record(parent=turns[4], summary="SHORTER").id
    assert ledger.session("main").head == first
    ledger.compactions.choose("main", second)
    assert (seen(ledger, session="main"), ledger.session("main").chosen_compaction) == (["SHORTER"], second)
    (under_second,) = grow(ledger, "main", "f")
    ledger.compactions.choose("main", first)
    (under_first,) = grow(ledger, "main", "g")
    ledger.compactions.choose("main", None)
    (under_none,) = grow(ledger, "main", "h")
    assert seen(ledger, turn=under_second) == ["SHORTER", "f"]
    assert seen(ledger, turn=under_first) == ["SUMMARY", *"defg"]
    assert seen(ledger, turn=under_none) == list("abcdefgh")
    assert [ledger.turn(turn).compaction_id for turn in (under_second, under_first, under_none)] == [
        second,
        first,
        None,
    ]
    assert problems(ledger) == []


def test_a_new_compaction_replaces_an_earlier_choice(ledger: Ledger) -> None:
    compacted(ledger)
    ledger.compactions.choose("main", None)
    grow(ledger, "main", "f")
    newest = ledger.compactions.record(session="main", summary="NEWEST").id
    assert ledger.session("main").chosen_compaction is None
    (after,) = grow(ledger, "main", "g")
    assert seen(ledger, turn=after) == ["NEWEST", "g"]
    assert ledger.turn(after).compaction_id == newest


def test_a_compaction_of_a_compacted_thread_keeps_what_it_is_told_to(ledger: Ledger) -> None:
    turns, _ = compacted(ledger)
    (sixth,) = grow(ledger, "main", "f")
    ledger.compactions.record(session="main", summary="SECOND", first_kept=turns[4])
    assert seen(ledger, session="main") == ["SECOND", "e", "f"]
    ledger.compactions.record(session="main", summary="THIRD", first_kept=sixth)
    assert seen(ledger, session="main") == ["THIRD", "f"]


def test_a_fork_sees_what_its_turn_saw(ledger: Ledger) -> None:
    turns, compaction = compacted(ledger)
    (after,) = grow(ledger, "main", "f")
    expected = {
        turns[2]: ["a", "b", "c"],
        turns[4]: list("abcde"),
        compaction: ["SUMMARY", "d", "e"],
        after: ["SUMMARY", "d", "e", "f"],
    }
    for i, (turn, context) in enumerate(expected.items()):
        ledger.fork(turn, label=f"fork{i}")
        assert seen(ledger, session=f"fork{i}") == context
        (child,) = grow(ledger, f"fork{i}", "x")
        assert seen(ledger, turn=child) == [*context, "x"]
    assert problems(ledger) == []


def test_a_choice_does_not_outlive_the_thread_it_was_made_for(ledger: Ledger) -> None:
    turns, compaction = compacted(ledger)
    moves: list[Callable[[str], object]] = [lambda s: ledger.move_head(s, new=turns[1]), ledger.heads.reset]
    for i, move in enumerate(moves):
        ledger.fork(compaction, label=f"s{i}")
        grow(ledger, f"s{i}", "x")
        ledger.compactions.choose(f"s{i}", compaction)
        move(f"s{i}")
        grow(ledger, f"s{i}", "y")
        assert seen(ledger, session=f"s{i}") == (["a", "b", "y"] if i == 0 else ["y"])
    assert problems(ledger) == []


def test_undoing_all_compactions_stays_in_force_wherever_the_head_goes(ledger: Ledger) -> None:
    turns, compaction = compacted(ledger)
    ledger.compactions.choose("main", None)
    ledger.move_head("main", new=turns[1])
    assert seen(ledger, session="main") == ["a", "b"]
    grow(ledger, "main", "x")
    assert seen(ledger, session="main") == ["a", "b", "x"]
    assert compaction != turns[1]


def inner_fork(ledger: Ledger) -> tuple[str, str]:
    """`main` stands at the end of a turn of six events, `inner` after its second; the turn, and that event."""
    grow(ledger, "main", "a")
    turn = ledger.record_turn(session="main", query="asked", response="answered").id
    event = ledger.events(turn)[1].id
    ledger.fork(event, label="inner")
    return turn, event


def all_seen(ledger: Ledger, session: str) -> list[str]:
    return texts(ledger.context(session=session).messages)


def test_a_summary_of_a_whole_turn_is_not_for_those_who_saw_part_of_it(ledger: Ledger) -> None:
    turn, _ = inner_fork(ledger)
    whole = ledger.compactions.record(parent=turn, summary="WHOLE").id
    before = ledger.compactions.record(parent=turn, summary="BEFORE", first_kept=turn).id
    with pytest.raises(NotApplicable, match="does not belong"):
        ledger.compactions.choose("inner", whole)
    grow(ledger, "inner", "on")
    with pytest.raises(NotApplicable, match="does not belong"):
        ledger.compactions.choose("inner", whole)
    ledger.compactions.choose("inner", before)
    assert all_seen(ledger, "inner") == ["BEFORE", "asked", "on", "re: on"]
    ledger.compactions.choose("main", whole)
    assert all_seen(ledger, "main") == ["WHOLE"]


def test_a_summary_of_part_of_a_turn_is_not_for_those_who_saw_all_of_it(ledger: Ledger) -> None:
    inner_fork(ledger)
    part = ledger.compactions.record(session="inner", summary="PART").id
    assert all_seen(ledger, "inner") == ["PART"]
    with pytest.raises(NotApplicable, match="does not belong"):
        ledger.compactions.choose("main", part)
    assert all_seen(ledger, "main") == ["a", "re: a", "asked", "answered"]
    ledger.heads.restore("inner", 1)
    ledger.compactions.choose("inner", part)
    assert all_seen(ledger, "inner") == ["PART"]


def test_a_choice_is_given_up_when_the_head_moves_within_its_turn(ledger: Ledger) -> None:
    turn, event = inner_fork(ledger)
    ledger.compactions.choose("main", ledger.compactions.record(parent=turn, summary="WHOLE").id)
    ledger.fork(event, label="other", session="main")
    assert all_seen(ledger, "other") == ["a", "re: a", "asked"]
    ledger.fork(turn, label="same", session="main")
    assert all_seen(ledger, "same") == ["WHOLE"]
    ledger.move_head("main", new=event)
    assert all_seen(ledger, "main") == ["a", "re: a", "asked"]
    assert ledger.session("main").chosen_compaction is None
    assert problems(ledger) == []


def test_a_choice_made_inside_a_turn_does_not_follow_to_what_grew_from_all_of_it(ledger: Ledger) -> None:
    turn, _ = inner_fork(ledger)
    part = ledger.compactions.record(session="inner", summary="PART").id
    ledger.heads.restore("inner", 1)
    ledger.compactions.choose("inner", part)
    (child,) = grow(ledger, "main", "b")
    assert ledger.turn(child).parent_id == turn
    ledger.move_head("inner", new=child)
    assert all_seen(ledger, "inner") == ["a", "re: a", "asked", "answered", "b", "re: b"]
    assert problems(ledger) == []


def test_a_compaction_has_no_effect_before_its_summary(ledger: Ledger) -> None:
    _, compaction = compacted(ledger)
    begun, recorded, _ = (found.id for found in ledger.events(compaction))
    for label, event, expected in (("begun", begun, list("abcde")), ("recorded", recorded, ["SUMMARY", "d", "e"])):
        ledger.fork(event, label=label)
        assert seen(ledger, session=label) == expected
        (child,) = grow(ledger, label, "f")
        assert seen(ledger, turn=child) == [*expected, "f"]
    assert problems(ledger) == []


@pytest.mark.parametrize("choice", ["compaction", None])
def test_choices_are_facts_that_travel_and_survive_a_rebuild(
    ledger: Ledger, open_ledger: OpenLedger, choice: str | None
) -> None:
    turns, first = compacted(ledger)
    second = ledger.compactions.record(parent=turns[4], summary="SHORTER").id
    ledger.compactions.choose("main", second if choice else None)
    other = open_ledger(":memory:")
    import_into(other, exported(ledger))
    for copy in (ledger, other):
        assert copy.upkeep.rebuild() == 0
        assert seen(copy, session="main") == (["SHORTER"] if choice else list("abcde"))
        assert copy.session("main").chosen_compaction == (second if choice else "")
    assert first != second


def test_a_failed_turn_that_is_tried_again_runs_under_the_same_choice(ledger: Ledger) -> None:
    turns, _ = compacted(ledger)
    second = ledger.compactions.record(parent=turns[4], summary="SHORTER").id
    for choice, expected in ((second, ["SHORTER", "f", "g"]), (None, [*"abcdefg"])):
        ledger.compactions.choose("main", choice)
        failed = ledger.record_turn(session="main", query="f", error="x").id
        again = ledger.record_turn(session="main", query="g", parent=failed).id
        assert seen(ledger, turn=again) == expected
        assert seen(ledger, session="main") == expected
        ledger.heads.restore("main", 1)
    assert problems(ledger) == []


def test_choosing_does_not_move_a_head_and_is_refused_to_nobody_who_records(ledger: Ledger) -> None:
    _, compaction = compacted(ledger)
    moves = ledger.reflog("main")
    writer = ledger.begin_turn(session="main")
    ledger.compactions.choose("main", None)
    writer.message("f")
    writer.finish()
    assert ledger.reflog("main")[1:] == [replace(move, number=move.number + 1) for move in moves]
    assert ledger.turn(writer.id).compaction_id == compaction
    assert seen(ledger, session="main") == list("abcdef")


def test_an_edge_between_summary_and_kept_turns_must_be_closed(ledger: Ledger) -> None:
    turns = grow(ledger, "main", *"abcde")
    with pytest.raises(NotApplicable, match="would vanish"):
        ledger.compactions.record(session="main", summary="s", through=turns[1], first_kept=turns[4])
    overlap = ledger.compactions.record(session="main", summary="S", through=turns[3], first_kept=turns[1])
    assert ledger.compactions.get(overlap.id).turns_summarized == 1
    assert seen(ledger, session="main") == ["S", *"bcde"]


def test_a_compaction_belongs_to_its_thread(ledger: Ledger) -> None:
    turns, compaction = compacted(ledger)
    (stranger,) = grow(ledger, "other", "z")
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"session": "main", "through": stranger}, NotApplicable),
        ({"session": "main", "first_kept": stranger}, NotApplicable),
        ({"session": "main", "through": NOBODY}, NotFound),
        ({"session": "nobody"}, NotFound),
        ({"parent": None}, NotApplicable),
        ({"session": "main", "through": "x"}, InvalidInput),
        ({"session": "main", "compaction_type": "by magic"}, InvalidInput),
        ({"session": "main", "trigger": "whim"}, InvalidInput),
        ({"session": "main", "tokens_before": 1.5}, InvalidInput),
        ({"session": "main", "tokens": 1}, TypeError),
        ({"session": "main", "model": ""}, InvalidInput),
    ]
    for fields, error in wrong:
        with pytest.raises(error):
            ledger.compactions.record(summary="s", **fields)
    for session, choice in (("other", compaction), ("main", turns[0]), ("main", stranger)):
        with pytest.raises(NotApplicable):
            ledger.compactions.choose(session, choice)
    with pytest.raises(NotFound):
        ledger.compactions.choose("main", NOBODY)
    with pytest.raises(NotFound):
        ledger.compactions.get(turns[0])


def test_an_empty_session_has_nothing_to_compact(ledger: Ledger) -> None:
    ledger.create_session("main")
    with pytest.raises(NotApplicable, match="nothing to compact"):
        ledger.compactions.record(session="main", summary="s")


actions = st.lists(
    st.one_of(
        st.just(("grow", 0)), st.just(("grow", 0)), st.tuples(st.just("compact"), st.integers(0, 4)),
        st.tuples(st.just("beside"), st.integers(0, 4)), st.tuples(st.just("choose"), st.integers(0, 9)),
        st.just(("undo", 0)), st.tuples(st.just("move"), st.integers(0, 9)),
    ),
    max_size=16,
)  # fmt: skip


@settings(max_examples=sized(test=10, prove=1500))
@given(actions)
def test_every_turn_is_seen_or_summarised_whatever_was_chosen(steps: list[tuple[str, int]]) -> None:
    with weft.open(":memory:") as ledger:
        turns, compactions = grow(ledger, "main", "0"), list[str]()
        for i, (action, number) in enumerate(steps, 1):
            act(ledger, turns, compactions, action, number, f"{i}")
            head = ledger.session("main").head
            assert head is not None
            thread = [turn.id for turn in ledger.thread(head).turns if turn.turn_type == "normal"]
            context = ledger.context(session="main")
            hidden = [turn for turn in thread if turn not in context.turns]
            assert [turn for turn in thread if turn in context.turns] == list(context.turns)
            assert hidden == thread[: len(hidden)]
            if context.compaction is None:
                assert hidden == []
            else:
                through = ledger.compactions.get(context.compaction).summarized_through
                depth = ledger.turn(through).depth
                assert all(ledger.turn(turn).depth <= depth for turn in hidden)
                assert through in ledger.thread(head).ancestry
        assert problems(ledger) == []


def act(ledger: Ledger, turns: list[str], compactions: list[str], action: str, number: int, text: str) -> None:
    thread = [turn.id for turn in ledger.thread("main").turns if turn.turn_type == "normal"]
    kept = {} if number >= len(thread) - 1 else {"first_kept": thread[-1 - number]}
    if action == "grow":
        turns += grow(ledger, "main", text)
    elif action == "compact":
        compactions.append(ledger.compactions.record(session="main", summary=text, **kept).id)  # type: ignore[arg-type]
    elif action == "beside":
        head = ledger.session("main").head
        compactions.append(ledger.compactions.record(parent=head, summary=text, **kept).id)  # type: ignore[arg-type]
    elif action == "move":
        ledger.move_head("main", new=turns[number % len(turns)])
    elif action == "undo":
        ledger.compactions.choose("main", None)
    elif compactions:
        with suppress(NotApplicable):
            ledger.compactions.choose("main", compactions[number % len(compactions)])


def test_a_compaction_without_a_summary_leaves_no_empty_message(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c")
    ledger.compactions.record(session="main", summary="", first_kept=turns[2], compaction_type="sliding_window")
    assert [message.text for message in ledger.context(session="main").messages] == ["c", "re: c"]


def test_the_end_of_a_compaction_refers_to_its_summary(open_ledger: OpenLedger) -> None:
    with open_ledger() as ledger:
        _, compaction = compacted(ledger)
        recorded, ended = (ledger.events(compaction)[place].event for place in (-2, -1))
        assert isinstance(recorded, CompactionRecorded)
        assert isinstance(ended, RunFinished)
        assert ended.summary_ref == ExtRef("content", recorded.summary)
        assert b"".join(ledger.read_content(recorded.summary)) == b"SUMMARY"
        window = ledger.compactions.record(session="main", summary="", compaction_type="sliding_window").id
        last = ledger.events(window)[-1].event
        assert isinstance(last, RunFinished)
        assert last.summary_ref is UNSET, "there is nothing to refer to"
        assert problems(ledger) == []
