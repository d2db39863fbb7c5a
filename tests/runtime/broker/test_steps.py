"""What comes next in a turn, of hand-made events alone."""

from __future__ import annotations

from typing import Any

import pytest

from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import (
    AgentRole,
    InterruptionReason,
    MessageRole,
    RunExit,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.events import (
    Event,
    EventRef,
    HistoryAppend,
    Interruption,
    MessageFact,
    ModelRequest,
    ModelResponse,
    RunFinished,
    RunStarted,
    TextFact,
    ToolCallRequested,
    ToolResult,
    ToolUseFact,
)
from weft.kernel.ledger_events import RunParked
from weft.ledger.api import RecordedEvent
from weft.runtime.broker.turn_state import (
    MAX_LOSSES,
    AskModel,
    CloseCall,
    CutRun,
    FailTurn,
    FinishTurn,
    ParkRun,
    Run,
    RunAgain,
    StartTools,
    next_steps,
    worked_ms,
)

START_MS = 1_700_000_000_000
TURN = "01HF7YAT00AAAAAAAAAAAAAAAA"
CRASH, SHUTDOWN = InterruptionReason.CRASH, InterruptionReason.SHUTDOWN


class History:
    """Events of one turn, each with an id of its own."""

    def __init__(self) -> None:
        self.recorded: list[RecordedEvent] = []
        self._add(RunStarted, turn_type=TurnType.NORMAL, role=AgentRole.UNIFIED)

    def _add(self, kind: type[Event], **fields: Any) -> str:
        ts = iso_from_ms(START_MS + len(self.recorded))
        event = kind(ts=ts, stream=TURN, prev=None, actor="weft", **fields)
        self.recorded.append(RecordedEvent(f"{len(self.recorded):064x}", event))
        return self.recorded[-1].id

    def message(self, id: str = "question") -> str:
        fact = MessageFact(id=f"m-{id}", role=MessageRole.USER, parts=(TextFact(text="00" * 32),))
        return self._add(HistoryAppend, list="messages", message=fact, admitted=id)

    def request(self, attempt: int = 1) -> str:
        return self._add(ModelRequest, model="m", correlation_id=f"c{len(self.recorded)}", attempt=attempt)

    def answer(self, *tools: str, finish: str = "stop") -> str:
        request = next(one.event for one in reversed(self.recorded) if isinstance(one.event, ModelRequest))
        uses = tuple(ToolUseFact(id="11" * 32, name=name, input="22" * 32) for name in tools)
        output = MessageFact(
            id=f"a{len(self.recorded)}", role=MessageRole.ASSISTANT, parts=uses or (TextFact(text="00"),)
        )
        return self._add(ModelResponse, correlation_id=request.correlation_id, output=output, finish_reason=finish)

    def call(self, tool: str) -> str:
        return self._add(ToolCallRequested, tool=tool, call_id="11" * 32, args="22" * 32, correlation_id="c")

    def result(self, call: str, status: ToolCallStatus = ToolCallStatus.OK) -> str:
        return self._add(ToolResult, call=EventRef(call), call_id="11" * 32, status=status, correlation_id="c")

    def interrupted(self, reason: InterruptionReason, *events: str) -> str:
        return self._add(Interruption, reason=reason, affects=tuple(map(EventRef, events)))

    def parked(self, *calls: str, until_ms: int | None = None) -> str:
        until = {} if until_ms is None else {"until": iso_from_ms(until_ms)}
        return self._add(RunParked, calls=tuple(map(EventRef, calls)), **until)

    def finished(self) -> str:
        return self._add(RunFinished, exit=RunExit.SUCCESS)

    def run(self, **settings: Any) -> Run:
        run = Run(TURN).apply(self.recorded)
        for name, value in settings.items():
            setattr(run, name, value)
        return run


@pytest.fixture
def history() -> History:
    history = History()
    history.message()
    return history


def test_the_model_is_asked_first_and_then_waited_for(history: History) -> None:
    assert next_steps(history.run(), START_MS) == (AskModel(),)
    history.request()
    assert next_steps(history.run(), START_MS) == ()


def test_an_answer_without_calls_finishes_the_turn_and_a_finished_turn_has_no_steps(history: History) -> None:
    history.request()
    history.answer()
    assert next_steps(history.run(), START_MS) == (FinishTurn(),)
    history.finished()
    assert next_steps(history.run(), START_MS) == ()


def test_all_tools_of_an_answer_start_side_by_side_and_the_model_is_asked_after_the_last(history: History) -> None:
    history.request()
    history.answer("a", "b", "c")
    (step,) = next_steps(history.run(), START_MS)
    assert isinstance(step, StartTools)
    assert [use.name for use in step.uses] == ["a", "b", "c"]
    calls = [history.call(tool) for tool in "abc"]
    for call in reversed(calls):
        assert next_steps(history.run(), START_MS) == ()
        history.result(call)
    assert next_steps(history.run(), START_MS) == (AskModel(),)


def test_results_enter_the_next_request_in_the_order_of_the_calls(history: History) -> None:
    history.request()
    answer = history.answer("a", "b")
    first, second = history.call("a"), history.call("b")
    late, early = history.result(second), history.result(first)
    output = history.run().answer
    assert output is not None
    assert output[0] == answer
    assert history.run().refs_since_request() == [output[1], EventRef(early), EventRef(late)]


@pytest.mark.parametrize("finish", ["length", "content_filter", "tool_call"])
def test_the_call_with_which_an_answer_breaks_off_is_closed_and_the_others_run(history: History, finish: str) -> None:
    history.request()
    history.answer("a", "b", finish=finish)
    whole, last = history.call("a"), history.call("b")
    run = history.run()
    assert [call.is_cut for call in run.calls.values()] == [False, finish != "tool_call"]
    steps = next_steps(run, START_MS)
    closed = [(step.call, step.status, step.code) for step in steps if isinstance(step, CloseCall)]
    assert closed == ([] if finish == "tool_call" else [(last, ToolCallStatus.ERROR, "cut")])
    assert run.calls[whole].outcome is None


def test_a_lost_request_is_asked_again_and_the_first_marked_as_interrupted(history: History) -> None:
    request = history.request()
    assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(2, request, CRASH),)
    restart = InterruptionReason.SYSTEM_RESTART
    assert next_steps(history.run().mark_lost(restart), START_MS) == (AskModel(2, request, restart),)
    history.interrupted(SHUTDOWN, request)
    assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(2),)


def test_an_answered_request_is_never_lost(history: History) -> None:
    history.request()
    history.answer()
    assert next_steps(history.run().mark_lost(), START_MS) == (FinishTurn(),)


def test_a_request_that_is_lost_again_and_again_fails_the_turn(history: History) -> None:
    for attempt in range(1, MAX_LOSSES):
        request = history.request(attempt)
        assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(attempt + 1, request, CRASH),)
        history.interrupted(CRASH, request)
    request = history.request(MAX_LOSSES)
    (step,) = next_steps(history.run().mark_lost(), START_MS)
    assert isinstance(step, FailTurn)
    assert (step.code, step.discard, step.reason) == ("lost_too_often", request, CRASH)


def test_attempts_that_a_provider_failed_and_orderly_shutdowns_are_not_counted_as_losses(history: History) -> None:
    for attempt in range(1, 8):
        request = history.request(attempt)
        if attempt % 2:
            history.interrupted(SHUTDOWN, request)
    request = history.request(8)
    assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(9, request, CRASH),)


def test_losses_are_counted_anew_after_an_answer(history: History) -> None:
    for attempt in range(1, MAX_LOSSES):
        history.interrupted(CRASH, history.request(attempt))
    history.request(MAX_LOSSES)
    history.answer("a")
    history.result(history.call("a"))
    request = history.request()
    assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(2, request, CRASH),)


def test_a_turn_that_asks_too_often_fails(history: History) -> None:
    for _ in range(3):
        history.request()
        history.answer("a")
        history.result(history.call("a"))
    assert next_steps(history.run(max_requests=4), START_MS) == (AskModel(),)
    (step,) = next_steps(history.run(max_requests=3), START_MS)
    assert isinstance(step, FailTurn)
    assert step.code == "too_many_requests"


def test_a_lost_tool_runs_again_where_it_is_idempotent_and_is_interrupted_elsewhere(history: History) -> None:
    history.request()
    history.answer("reads", "writes", "done")
    reads, writes, done = (history.call(tool) for tool in ("reads", "writes", "done"))
    history.result(done)
    steps = next_steps(history.run(idempotent=frozenset({"reads", "done"})).mark_lost(), START_MS)
    assert steps[0] == RunAgain(reads)
    assert isinstance(steps[1], CloseCall)
    assert (steps[1].call, steps[1].status, steps[1].code) == (writes, ToolCallStatus.INTERRUPTED, "crash")
    assert len(steps) == 2


def test_a_turn_whose_open_calls_all_wait_is_parked(history: History) -> None:
    history.request()
    history.answer("asks", "runs")
    asks, runs = history.call("asks"), history.call("runs")
    run = history.run()
    run.calls[asks].is_parked = True
    assert next_steps(run, START_MS) == ()  # the other one is under way
    history.result(runs)
    run = history.run()
    run.calls[asks].is_parked = True
    assert next_steps(run, START_MS) == (ParkRun((asks,)),)


def test_a_parked_turn_waits_for_its_time_and_its_calls_are_not_lost(history: History) -> None:
    history.request()
    history.answer("asks")
    asks = history.call("asks")
    history.parked(asks, until_ms=START_MS + 5000)
    assert next_steps(history.run().mark_lost(), START_MS + 4999) == ()
    (step,) = next_steps(history.run().mark_lost(), START_MS + 5000)
    assert isinstance(step, CloseCall)
    assert (step.call, step.status) == (asks, ToolCallStatus.TIMEOUT)
    history.result(asks)
    assert next_steps(history.run().mark_lost(), START_MS) == (AskModel(),)


def test_a_turn_that_is_parked_again_keeps_its_time(history: History) -> None:
    history.request()
    history.answer("asks", "asks")
    first, second = history.call("asks"), history.call("asks")
    history.parked(first, second, until_ms=START_MS + 5000)
    history.result(first)
    run = history.run().mark_lost()
    assert next_steps(run, START_MS) == (ParkRun((second,)),)
    assert run.parked_until == START_MS + 5000


def test_every_parked_call_has_a_time_limit_of_its_own(history: History) -> None:
    history.request()
    history.answer("asks", "asks", "asks")
    first, second, third = (history.call("asks") for _ in range(3))
    history.parked(first, until_ms=START_MS + 1000)
    history.parked(second, until_ms=START_MS + 5000)
    history.parked(third)
    assert history.run().parked_until == START_MS + 1000
    assert next_steps(history.run().mark_lost(), START_MS + 999) == ()
    (step,) = next_steps(history.run().mark_lost(), START_MS + 1000)
    assert isinstance(step, CloseCall)
    assert (step.call, step.status) == (first, ToolCallStatus.TIMEOUT)
    history.result(first)
    run = history.run().mark_lost()
    assert next_steps(run, START_MS + 1000) == (ParkRun((second, third)),)
    assert run.parked_until == START_MS + 5000
    closed = next_steps(run, START_MS + 9000)
    assert [step.call for step in closed if isinstance(step, CloseCall)] == [second]


def test_an_interrupted_turn_is_cut_with_its_open_calls(history: History) -> None:
    canceled = InterruptionReason.CANCELED
    assert next_steps(history.run(stop=canceled), START_MS) == (CutRun(canceled, ()),)
    history.request()
    history.answer("a", "b")
    first, second = history.call("a"), history.call("b")
    history.result(first)
    assert next_steps(history.run(stop=canceled), START_MS) == (CutRun(canceled, (second,)),)
    history.parked(second)
    assert next_steps(history.run(stop=canceled), START_MS) == (CutRun(canceled, (second,)),)


def test_a_complete_answer_is_not_cut(history: History) -> None:
    history.request()
    history.answer()
    assert next_steps(history.run(stop=InterruptionReason.CANCELED), START_MS) == (FinishTurn(),)
    assert next_steps(history.run(deadline_seconds=1), START_MS + 9000) == (FinishTurn(),)


def test_a_deadline_counts_from_the_begin_of_the_turn_whoever_runs_it(history: History) -> None:
    history.request()
    assert next_steps(history.run(deadline_seconds=1), START_MS + 999) == ()
    assert next_steps(history.run(deadline_seconds=1), START_MS + 1000) == (CutRun(InterruptionReason.TIMEOUT, ()),)
    assert next_steps(history.run(deadline_seconds=1).mark_lost(), START_MS + 1000) == (
        CutRun(InterruptionReason.TIMEOUT, ()),
    )


def test_time_in_which_a_turn_is_parked_does_not_count(history: History) -> None:
    history.request()
    history.answer("asks")
    call = history.call("asks")
    history.parked(call)
    assert next_steps(history.run(deadline_seconds=1), START_MS + 99_000) == ()
    history.result(call)
    came_at = START_MS + len(history.recorded) - 1
    left = 1000 - (came_at - 1 - START_MS)  # it was worked on until it was parked, which does not begin anew
    assert next_steps(history.run(deadline_seconds=1), came_at + left - 1) == (AskModel(),)
    assert next_steps(history.run(deadline_seconds=1), came_at + left) == (CutRun(InterruptionReason.TIMEOUT, ()),)
    history.request()
    assert worked_ms(one.event for one in history.recorded) == 1000 - left + 1


def test_a_steering_message_enters_with_the_next_request_and_only_with_one(history: History) -> None:
    history.request()
    assert next_steps(history.run(steers=("s",)), START_MS) == ()
    history.answer("a")
    call = history.call("a")
    assert next_steps(history.run(steers=("s",)), START_MS) == ()
    history.result(call)
    assert next_steps(history.run(steers=("s",)), START_MS) == (AskModel(steers=("s",)),)
    history.request()
    history.answer()
    assert next_steps(history.run(steers=("s",)), START_MS) == (FinishTurn(),)


def test_the_same_events_give_the_same_steps_however_they_are_read(history: History) -> None:
    history.request()
    history.answer("a", "b")
    history.result(history.call("a"), ToolCallStatus.ERROR)
    history.call("b")
    whole = history.run()
    piecewise = Run(TURN)
    for recorded in history.recorded:
        piecewise = piecewise.copy().apply([recorded])
    assert next_steps(whole.mark_lost(), START_MS) == next_steps(piecewise.mark_lost(), START_MS)
    assert whole.refs_since_request() == piecewise.refs_since_request()
