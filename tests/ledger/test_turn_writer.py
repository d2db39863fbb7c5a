"""Recording a turn step by step: every step is durable and visible at once, and a turn ends in one of three ways."""

from pathlib import Path
from typing import Any

import pytest

from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import kinds, problems, select, texts
from weft.kernel.clock import FixedClock
from weft.kernel.errors import HeadMoved, InvalidInput, NotApplicable, NotFound, TurnClosed
from weft.kernel.events import Usage
from weft.ledger.api.ledger import Ledger
from weft.ledger.write.turn_writer import TurnWriter


def ask(writer: TurnWriter) -> str:
    """A turn up to an open tool call; returns the call."""
    writer.message("what is in x?")
    writer.request("m", provider="p", params={"temperature": 0})
    writer.response({"content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "x"}}]})
    return writer.tool_call("read", {"path": "x"}, id="c1")


def test_a_model_without_a_provider_is_not_given_that_of_another(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.request("first", provider="p")
        writer.request("first")
        assert (ledger.turn(writer.id).model, ledger.turn(writer.id).provider) == ("first", "p")
        writer.request("second")
        writer.finish()
    turn = ledger.turn(writer.id)
    assert (turn.model, turn.provider) == ("second", None)
    assert problems(ledger) == []


def test_every_step_is_there_for_others_before_its_call_returns(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger()
    writer = ours.begin_turn(session="main", role="manager")
    assert (theirs.turn(writer.id).status, theirs.turn(writer.id).role) == ("pending", "manager")
    writer.message("q")
    assert texts(theirs.messages(writer.id)) == ["q"]
    writer.request("m")
    assert (theirs.turn(writer.id).status, theirs.turn(writer.id).model) == ("streaming", "m")
    writer.response("partial", usage={"input_tokens": 3})
    assert texts(theirs.messages(writer.id)) == ["q", "partial"]
    call = writer.tool_call("read", {})
    assert [(call.status, call.outcome) for call in theirs.tool_calls(writer.id)] == [("running", None)]
    writer.tool_result(call, "…")
    assert [(call.status, call.result) for call in theirs.tool_calls(writer.id)] == [("completed", "…")]
    assert theirs.session("main").head is None
    writer.finish()
    assert (theirs.turn(writer.id).status, theirs.session("main").head) == ("completed", writer.id)


def test_a_turn_recorded_in_steps_is_like_one_recorded_at_once(ledger: Ledger) -> None:
    with ledger.begin_turn(session="steps", role="worker", workspace="/w", toolset="full") as writer:
        writer.message("rules", role="system")
        writer.message("q")
        writer.request("m", provider="p", params={"t": 1}, tools_spec=[{"name": "read"}])
        call = writer.tool_call("read", {"path": "x"}, id="c1", server="fs", number=3)
        writer.tool_result(call, {"rc": 0}, duration_ms=5)
        writer.response("r", usage={"input_tokens": 1}, finish_reason="stop")
        ended = writer.finish(permissions_used=["fs"])
    at_once = ledger.record_turn(
        session="once", role="worker", workspace="/w", toolset="full", system="rules", query="q", model="m",
        provider="p", params={"t": 1}, tools_spec=[{"name": "read"}], response="r", usage={"input_tokens": 1},
        finish_reason="stop", permissions_used=["fs"],
        tool_calls=[{"id": "c1", "name": "read", "server": "fs", "number": 3, "arguments": {"path": "x"},
                     "result": {"rc": 0}, "duration_ms": 5}],
    )  # fmt: skip
    assert kinds(ledger, ended.id) == kinds(ledger, at_once.id)
    left, right = ledger.turn(ended.id), ledger.turn(at_once.id)
    for field in ("status", "model", "provider", "role", "usage", "workspace_path", "toolset_name", "permissions_used"):
        assert getattr(left, field) == getattr(right, field)
    assert texts(ledger.messages(ended.id)) == texts(ledger.messages(at_once.id))
    for ours, theirs in zip(ledger.tool_calls(ended.id), ledger.tool_calls(at_once.id), strict=True):
        assert (ours.call_id, ours.arguments, ours.result, ours.outcome) == (
            theirs.call_id, theirs.arguments, theirs.result, theirs.outcome,
        )  # fmt: skip


def test_finishing_moves_the_head_in_the_same_append(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("q")
        answer = writer.response("r")
        before = ledger.upkeep.stats()["events"]
        ended = writer.finish(usage={"output_tokens": 4})
    assert ledger.upkeep.stats()["events"] == before + 2
    assert ended.receipt.n == before + 2
    assert (ended.response_message_id, ended.session, ended.depth) == (answer, "main", 1)
    assert ledger.session("main").head == ended.id
    assert ledger.turn(ended.id).usage == Usage(output_tokens=4, total_tokens=4)


def test_usage_of_several_responses_adds_up(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.response("a", usage={"input_tokens": 1, "output_tokens": 2})
        writer.response("b", usage={"input_tokens": 10, "cached_input_tokens": 5})
        writer.finish()
    usage = ledger.turn(writer.id).usage
    assert usage == Usage(input_tokens=11, output_tokens=2, cached_input_tokens=5, total_tokens=18)


def test_a_turn_with_open_calls_cannot_finish(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    call = ask(writer)
    with pytest.raises(NotApplicable, match="1 tool calls of turn"):
        writer.finish()
    writer.tool_result(call, "…")
    assert ledger.turn(writer.finish().id).status == "completed"


def test_a_failed_turn_stays_addressable_and_headless(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    ask(writer)
    writer.fail({"message": "the model went away", "code": "gone", "details": {"after": 3}})
    turn = ledger.turn(writer.id)
    assert (turn.status, turn.error, turn.error_code) == ("failed", "the model went away", "gone")
    assert [(call.status, call.outcome) for call in ledger.tool_calls(writer.id)] == [("failed", "interrupted")]
    assert ledger.session("main").head is None
    assert ledger.begin_turn(session="main").finish().parent_id is None
    assert problems(ledger) == []


@pytest.mark.parametrize(
    "reason", ["crash", "shutdown", "context_reset", "approval_denied", "timeout", "canceled", "system_restart"]
)
def test_an_interrupted_turn_is_completed_with_what_it_had(ledger: Ledger, reason: str) -> None:
    writer = ledger.begin_turn(session="main")
    ask(writer)
    ended = writer.interrupt(reason)
    turn = ledger.turn(writer.id)
    assert (turn.status, turn.interruption_reason, turn.error) == ("completed", reason, None)
    assert [(call.status, call.outcome) for call in ledger.tool_calls(writer.id)] == [("failed", "interrupted")]
    assert ledger.session("main").head == writer.id
    assert ended.response_message_id == turn.response_message_id == ledger.messages(writer.id)[-1].id
    interruption = ledger.events(writer.id)[-2].event
    (opened,) = [found.id for found in ledger.events(writer.id) if found.event.__struct_config__.tag == "tool_call"]
    assert [ref.event_id for ref in interruption.affects] == [opened]  # type: ignore[union-attr]


def test_leaving_the_block_by_an_exception_fails_the_turn(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    writer.message("q")
    with pytest.raises(ZeroDivisionError), writer:
        _ = 1 // 0
    turn = ledger.turn(writer.id)
    assert (turn.status, turn.error) == ("failed", "ZeroDivisionError: integer division or modulo by zero")


def test_a_conflict_elsewhere_inside_the_block_fails_the_turn_too(ledger: Ledger) -> None:
    ledger.record_turn(session="other")
    with pytest.raises(HeadMoved), ledger.begin_turn(session="main") as writer:
        ledger.move_head("other", new=None, expected=None)
    assert ledger.turn(writer.id).status == "failed"
    ledger.record_turn(session="main", query="the session is free")


def test_leaving_the_block_without_an_end_interrupts_the_turn(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("q")
    assert (ledger.turn(writer.id).status, ledger.turn(writer.id).interruption_reason) == ("completed", "canceled")


def test_leaving_the_block_after_its_end_changes_nothing(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.fail("no")
    assert ledger.turn(writer.id).status == "failed"
    writer = ledger.begin_turn(session="main")
    writer.finish()
    with pytest.raises(RuntimeError, match="later"), writer:
        raise RuntimeError("later")
    assert ledger.turn(writer.id).status == "completed"


@pytest.mark.parametrize("end", ["finish", "fail", "interrupt"])
@pytest.mark.parametrize("session", ["main", None])
def test_a_turn_that_has_ended_takes_no_more_steps(ledger: Ledger, end: str, session: str | None) -> None:
    writer = ledger.begin_turn(session=session)
    call = ask(writer)
    writer.tool_result(call, 1)
    writer.fail("x") if end == "fail" else getattr(writer, end)()
    events = ledger.upkeep.stats()["events"]
    for step in (lambda: writer.message("late"), lambda: writer.request("m"), writer.finish, writer.interrupt):
        with pytest.raises(TurnClosed):
            step()
    assert ledger.upkeep.stats()["events"] == events


def test_steps_without_a_session_move_nobody(ledger: Ledger) -> None:
    parent = ledger.record_turn(session="main", query="q")
    writer = ledger.begin_turn(parent=parent.id)
    ask(writer)
    ended = writer.interrupt()
    assert (ended.parent_id, ended.session) == (parent.id, None)
    assert ledger.session("main").head == parent.id


def test_every_event_of_a_chain_carries_the_correlation_of_its_request(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        for round_ in range(2):
            writer.request("m")
            writer.response(f"{round_}")
            for _ in range(2):
                writer.tool_result(writer.tool_call("t"), 1)
        writer.finish()
    found = [getattr(recorded.event, "correlation_id", None) for recorded in ledger.events(writer.id)]
    chains = [correlation for correlation in found if correlation]
    assert len(chains) == 12
    assert chains == [chains[0]] * 6 + [chains[6]] * 6
    assert chains[0] != chains[6]


def test_calls_name_the_message_and_the_event_that_asked_for_them(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    ask(writer)
    (call,) = ledger.tool_calls(writer.id)
    assert call.message_id == ledger.messages(writer.id)[-1].id
    asked = {found.event.__struct_config__.tag: found for found in ledger.events(writer.id)}
    assert asked["tool_call"].event.requested_by.event_id == asked["model_response"].id  # type: ignore[union-attr]
    assert asked["model_response"].event.request_id == asked["model_request"].id  # type: ignore[union-attr]


def test_results_find_their_calls_in_any_order_and_under_repeated_ids(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    first, second, third = (writer.tool_call("t", {"i": i}, id="same") for i in range(3))
    assert len({first, second, third}) == 3
    for call in (second, third, first):
        writer.tool_result(call, call)
    writer.finish()
    assert [call.result for call in ledger.tool_calls(writer.id)] == [first, second, third]
    assert {call.call_id for call in ledger.tool_calls(writer.id)} == {"same"}


def test_a_result_without_an_open_call_is_refused(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    call = writer.tool_call("t")
    writer.tool_result(call, 1)
    for nobody in (call, "c9"):
        with pytest.raises(NotFound, match="open tool call"):
            writer.tool_result(nobody, 1)


@pytest.mark.parametrize(
    ("outcome", "status", "state", "error"),
    [
        ({"result": 1}, "ok", "completed", None),
        ({}, "ok", "completed", None),
        ({"error": "broken"}, "error", "failed", "broken"),
        ({"error": {"message": "m", "code": "c", "details": 1}}, "error", "failed", "m"),
        ({"status": "timeout"}, "timeout", "failed", None),
        ({"status": "canceled", "result": "half"}, "canceled", "failed", None),
        ({"status": "interrupted"}, "interrupted", "failed", None),
    ],
)
def test_a_call_ends_in_one_of_five_ways(
    ledger: Ledger, outcome: dict[str, Any], status: str, state: str, error: str | None
) -> None:
    writer = ledger.begin_turn(session="main")
    writer.tool_result(writer.tool_call("t"), **outcome)
    writer.finish()
    (call,) = ledger.tool_calls(writer.id)
    assert (call.outcome, call.status, call.error, call.result) == (status, state, error, outcome.get("result"))


@pytest.mark.parametrize(
    "step",
    [
        lambda writer: writer.message(["a", "b"]),
        lambda writer: writer.message(None),
        lambda writer: writer.message("x", role="nobody"),
        lambda writer: writer.message("x", history=""),
        lambda writer: writer.request(""),
        lambda writer: writer.request("m", attempt="two"),
        lambda writer: writer.request("m", input={"base": "x", "keep": 0, "then": []}),
        lambda writer: writer.request("m", input={"base": None, "keep": -1, "then": []}),
        lambda writer: writer.request("m", input=["not an id"]),
        lambda writer: writer.request("m", input=[{"event_id": "not an event"}]),
        lambda writer: writer.response(["a", "b"]),
        lambda writer: writer.response("r", usage={"input_tokens": -1}),
        lambda writer: writer.response("r", latency_ms=0.5),
        lambda writer: writer.tool_call("", {}),
        lambda writer: writer.tool_call("t", {"x": float("nan")}),
        lambda writer: writer.tool_call("t", number="one"),
        lambda writer: writer.tool_call("t", id=5),
        lambda writer: writer.interrupt("boredom"),
        lambda writer: writer.fail({"code": "only"}),
        lambda writer: writer.finish(usage={"tokens": 1}),
    ],
)
def test_a_step_with_a_wrong_value_is_refused_and_the_turn_goes_on(ledger: Ledger, step: Any) -> None:
    writer = ledger.begin_turn(session="main")
    with pytest.raises(InvalidInput):
        step(writer)
    writer.message("q")
    assert kinds(ledger, writer.finish().id) == ["run_started", "history_append", "run_finished"]
    assert problems(ledger) == []


def test_histories_other_than_main_are_named(disk: Ledger, path: Path, clock: FixedClock) -> None:
    with disk.begin_turn(session="main") as writer:
        writer.message("aside", history="scratch")
        writer.finish()
    assert b'"list":"scratch"' in disk.events(writer.id)[1].line
    assert select(path, "SELECT content FROM messages") == [{"content": "aside"}]


def test_a_spawned_session_is_made_and_linked(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.tool_result(writer.tool_call("spawn"), spawned_session="worker")
        writer.finish()
    assert ledger.tool_calls(writer.id)[0].spawned_session == "worker"
    assert ledger.session("worker").head is None
