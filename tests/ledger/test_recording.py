"""Recording a whole turn at once: every field comes back as it was given."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import kinds, problems, select, texts
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, NoCanonicalForm, NotApplicable, NotFound, WeftError
from weft.kernel.events import EventRef, Usage
from weft.kernel.events import ToolCallRequested as ToolCallEvent
from weft.ledger.api import recording
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ToolResultPart, ToolUsePart

SETTING: dict[str, Any] = {
    "model": "claude-sonnet-4",
    "provider": "anthropic",
    "role": "worker",
    "reason": "schedule",
    "toolset": "full",
    "tools_available": ["Read", "a tool with spaces"],
    "permissions_granted": {"tools": {"allow": ["Read"], "deny": []}},
    "permissions_used": ["tools.Read"],
    "thinking_config": {"budget": 1024, "mode": None},
    "effective_config": {"temperature": 0.2, "max_tokens": 10},
    "workspace": "/home/someone/a project",
    "source_event_id": "webhook/42 of today",
}
USAGE = {
    "input_tokens": 9,
    "output_tokens": 20,
    "cached_input_tokens": 300,
    "cache_write_tokens": 4000,
    "reasoning_tokens": 5,
    "total_tokens": 4329,
}


def test_a_turn_keeps_everything_that_was_said_about_it(ledger: Ledger, clock: FixedClock) -> None:
    made = ledger.record_turn(session="main", query="q", response="r", usage=USAGE, **SETTING)
    turn = ledger.turn(made.id)
    assert (turn.model, turn.provider, turn.role, turn.reason) == ("claude-sonnet-4", "anthropic", "worker", "schedule")
    assert turn.toolset_name == "full"
    assert turn.tools_available == ("Read", "a tool with spaces")
    assert turn.permissions_granted == SETTING["permissions_granted"]
    assert turn.permissions_used == SETTING["permissions_used"]
    assert turn.thinking_config == SETTING["thinking_config"]
    assert turn.effective_config == SETTING["effective_config"]
    assert turn.workspace_path == SETTING["workspace"]
    assert turn.source_event_id == SETTING["source_event_id"]
    assert turn.usage == Usage(**USAGE)
    assert (turn.turn_type, turn.status, turn.persona_id) == ("normal", "completed", "local")
    assert turn.started_at == turn.completed_at == NOON
    assert turn.session_id == ledger.session("main").id
    assert problems(ledger) == []


def test_what_was_not_said_is_absent(ledger: Ledger) -> None:
    turn = ledger.turn(ledger.record_turn(session="main").id)
    assert (turn.model, turn.provider, turn.reason, turn.toolset_name, turn.tools_available) == (None,) * 5
    assert turn.usage == Usage()
    assert (turn.message_count, turn.tool_call_count, turn.response_message_id) == (0, 0, None)
    assert (turn.depth, turn.parent_id, turn.error, turn.interruption_reason) == (1, None, None, None)


def test_a_recorded_turn_answers_with_its_place_and_its_receipt(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="a", response="b")
    second = ledger.record_turn(session="main", query="c")
    assert (first.depth, second.depth) == (1, 2)
    assert (first.parent_id, second.parent_id) == (None, first.id)
    assert first.session == second.session == "main"
    assert ledger.thread(first.id).digest == first.digest == first.receipt.digest
    assert first.response_message_id == ledger.messages(first.id)[1].id
    assert second.response_message_id is None
    assert list(ledger.verify(receipt=first.receipt)) == list(ledger.verify(receipt=second.receipt)) == []


def test_a_turn_without_a_session_is_a_root_of_its_own(ledger: Ledger) -> None:
    alone = ledger.record_turn(query="model, are you there?", response="yes", model="m")
    assert (alone.session, alone.depth) == (None, 1)
    assert ledger.sessions() == []
    assert texts(ledger.thread(alone.id).messages) == ["model, are you there?", "yes"]


def test_a_session_that_does_not_exist_is_made(ledger: Ledger) -> None:
    made = ledger.record_turn(session="fresh", query="x")
    session = ledger.session("fresh")
    assert (session.head, session.status, session.lifecycle, session.origin) == (made.id, "active", "active", "weft")


def test_the_events_of_a_turn_come_in_the_order_in_which_it_happened(ledger: Ledger) -> None:
    call = {"name": "read", "arguments": {}, "result": 1}
    made = ledger.record_turn(
        session="m", system="s", query=["a", "b"], response="r", model="m", tool_calls=[call, call]
    )
    assert kinds(ledger, made.id) == [
        "run_started", *["history_append"] * 3, "model_request", "tool_call", "tool_result", "tool_call", "tool_result",
        "model_response", "run_finished",
    ]  # fmt: skip


USE = {"content": [{"type": "text", "text": "look"}, {"type": "tool_use", "id": "c1", "name": "read", "input": {}}]}


@pytest.mark.parametrize("rest", [[], ["done"], [{"role": "system", "content": "note"}]])
def test_a_call_comes_after_the_message_that_asks_for_it(ledger: Ledger, rest: list[Any]) -> None:
    calls = [{"id": "c0", "name": "plan"}, {"id": "c1", "name": "read", "result": "R"}, {"name": "tidy"}]
    made = ledger.record_turn(session="m", query="q", response=[USE, *rest], tool_calls=calls)
    events = ledger.events(made.id)
    asking = next(recorded for recorded in events if b'"tool_use"' in recorded.line)
    asked = [recorded.event.requested_by for recorded in events if isinstance(recorded.event, ToolCallEvent)]
    assert asked == [UNSET, EventRef(asking.id), EventRef(asking.id)]
    calling = ledger.messages(made.id)[1].id
    assert [(call.name, call.message_id) for call in ledger.tool_calls(made.id)] == [
        ("plan", None), ("read", calling), ("tidy", calling)
    ]  # fmt: skip
    shown = [part for message in ledger.context(session="m").messages for part in message.content]
    assert shown.index(ToolUsePart("c1", "read", {})) < shown.index(ToolResultPart("c1", "R"))


def test_calls_that_share_an_id_go_with_the_messages_that_ask_for_it_in_turn(ledger: Ledger) -> None:
    calls = [{"id": "c1", "name": "read", "result": i} for i in range(3)]
    made = ledger.record_turn(session="m", query="q", response=[USE, USE, "done"], tool_calls=calls)
    first, second = (message.id for message in ledger.messages(made.id)[1:3])
    assert [(call.message_id, call.result) for call in ledger.tool_calls(made.id)] == [
        (first, 0), (second, 1), (second, 2)
    ]  # fmt: skip


def test_every_event_of_a_request_its_response_and_its_tools_has_one_correlation(ledger: Ledger) -> None:
    made = ledger.record_turn(session="m", query="q", response="r", tool_calls=[{"name": "a"}, {"name": "b"}])
    found = [getattr(recorded.event, "correlation_id", None) for recorded in ledger.events(made.id)]
    chain = [correlation for correlation in found if correlation is not None]
    assert len(chain) == 6
    assert len(set(chain)) == 1
    assert {call.correlation_id for call in ledger.tool_calls(made.id)} == set(chain)


@pytest.mark.parametrize(
    ("usage", "total"),
    [
        ({"input_tokens": 9, "output_tokens": 2}, 11),
        ({"input_tokens": 9, "cached_input_tokens": 1, "cache_write_tokens": 5, "output_tokens": 2}, 17),
        ({"output_tokens": 7, "reasoning_tokens": 6}, 7),
        ({"cache_write_tokens": 5, "cache_write_1h_tokens": 5}, 5),
        ({"total_tokens": 40}, 40),
        ({"input_tokens": 0}, 0),
        ({}, 0),
        (Usage(input_tokens=3, total_tokens=3), 3),
    ],
)
def test_the_total_is_the_sum_of_the_disjoint_parts(ledger: Ledger, usage: Any, total: int) -> None:
    turn = ledger.turn(ledger.record_turn(session="main", query="q", response="r", usage=usage).id)
    assert turn.usage.total_tokens == total


def test_a_turn_that_asked_no_model_keeps_its_usage_too(ledger: Ledger) -> None:
    turn = ledger.turn(ledger.record_turn(session="main", query="q", usage={"input_tokens": 5}).id)
    assert turn.usage == Usage(input_tokens=5, total_tokens=5)


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -1},
        {"input_tokens": 1.0},
        {"input_tokens": True},
        {"input_tokens": "9"},
        {"input_tokens": 2**53},
        {"prompt_tokens": 9},
        {"input_tokens": 1, "total_tokens": 5},
        {"cache_write_tokens": 4, "cache_write_1h_tokens": 5},
        {"cache_write_1h_tokens": 1},
        [9, 2],
        Usage(input_tokens="x"),  # type: ignore[arg-type]
    ],
)
def test_a_usage_that_has_no_single_meaning_is_refused(ledger: Ledger, usage: Any) -> None:
    with pytest.raises(InvalidInput, match="usage"):
        ledger.record_turn(session="main", query="q", usage=usage)
    assert ledger.sessions() == []


@pytest.mark.parametrize("result", [None, "text", 0, 1.5, True, [], {"rc": 0, "stdout": "…"}, [[{"a": None}]], 2**80])
def test_a_tool_result_is_any_json(ledger: Ledger, result: Any) -> None:
    made = ledger.record_turn(session="main", tool_calls=[{"name": "exec", "result": result}])
    (call,) = ledger.tool_calls(made.id)
    assert call.result == result
    assert type(call.result) is type(result)
    assert (call.outcome, call.status, call.error) == ("ok", "completed", None)


@pytest.mark.parametrize("arguments", [{"path": "x"}, {}, [1, 2], "just text", None, 7, {"n": 2**70, "f": 1.0}])
def test_tool_arguments_are_any_json(ledger: Ledger, arguments: Any) -> None:
    made = ledger.record_turn(session="main", tool_calls=[{"name": "t", "arguments": arguments}])
    assert ledger.tool_calls(made.id)[0].arguments == arguments


@pytest.mark.parametrize(
    "text", ['{"b": 1,  "a":2}', ' {"x":1e2}', '{"a":1,"a":2}', '{"n":12345678901234567890123}', '{"\\ud800":1}']
)
def test_arguments_that_came_as_json_text_are_kept_to_the_letter(disk: Ledger, text: str, path: Path) -> None:
    made = disk.record_turn(session="main", tool_calls=[{"name": "t", "arguments": text}])
    assert select(path, "SELECT params_json FROM tool_calls")[0]["params_json"] == text
    assert isinstance(disk.tool_calls(made.id)[0].arguments, dict)


@pytest.mark.parametrize("text", ["{not json", '{"a":NaN}', "[1]", '"x"', "{\ud800}"])
def test_arguments_that_only_look_like_json_text_are_a_string(ledger: Ledger, text: str) -> None:
    made = ledger.record_turn(session="main", tool_calls=[{"name": "t", "arguments": text}])
    assert ledger.tool_calls(made.id)[0].arguments == text


def test_a_tool_call_keeps_all_its_fields(ledger: Ledger) -> None:
    failed = {"message": "no such file", "code": "ENOENT", "details": {"path": ["x", None]}}
    made = ledger.record_turn(
        session="main",
        tool_calls=[
            {"id": "c1", "name": "my tool", "server": "my server", "number": 7, "error": failed, "duration_ms": 12},
            {"id": "c2", "name": "spawn", "spawned_session": "worker-1", "status": "timeout", "result": "part"},
        ],
    )
    first, second = ledger.tool_calls(made.id)
    assert (first.id, first.call_id, first.turn_id, first.sequence) == (f"{made.id}:c1", "c1", made.id, 0)
    assert (first.name, first.server, first.number) == ("my tool", "my server", 7)
    assert (first.status, first.outcome, first.error, first.error_code) == ("failed", "error", "no such file", "ENOENT")
    assert (second.status, second.outcome, second.result, second.sequence) == ("failed", "timeout", "part", 1)
    assert second.spawned_session == "worker-1"
    assert ledger.session("worker-1").head is None


def test_a_session_that_a_call_starts_knows_its_parents(ledger: Ledger) -> None:
    call = {"id": "c1", "name": "spawn", "spawned_session": "worker"}
    made = ledger.record_turn(session="main", persona="ann", query="q", tool_calls=[call])
    with ledger.begin_turn(session="main") as writer:
        asked = writer.tool_call("spawn", id="c2")
        writer.tool_result(asked, spawned_session="helper")
        again = writer.tool_call("spawn", id="c3")
        writer.tool_result(again, spawned_session="worker")
        writer.finish()
    worker, helper = ledger.session("worker"), ledger.session("helper")
    assert [(each.is_subagent, each.parent_session, each.persona_id) for each in (worker, helper)] == [
        (True, "main", "ann"), (True, "main", "ann")
    ]  # fmt: skip
    assert (worker.parent_turn_id, worker.spawn_tool_call_id) == (made.id, f"{made.id}:c1")
    assert (helper.parent_turn_id, helper.spawn_tool_call_id) == (writer.id, f"{writer.id}:c2")
    assert list(ledger.verify()) == []


def test_a_session_that_a_call_without_a_session_starts_knows_the_turn(ledger: Ledger) -> None:
    made = ledger.record_turn(query="q", tool_calls=[{"id": "c", "name": "t", "spawned_session": "worker"}])
    worker = ledger.session("worker")
    assert (worker.is_subagent, worker.parent_session, worker.parent_turn_id) == (True, None, made.id)


def test_call_ids_that_a_provider_repeats_stay_apart(ledger: Ledger) -> None:
    calls = [{"id": "c", "name": "t", "result": i} for i in range(3)]
    made = ledger.record_turn(session="main", tool_calls=calls)
    assert [call.id for call in ledger.tool_calls(made.id)] == [f"{made.id}:c{end}" for end in ("", "~2", "~3")]
    assert [call.result for call in ledger.tool_calls(made.id)] == [0, 1, 2]


def test_a_failed_turn_stays_and_the_head_does_not_move(ledger: Ledger) -> None:
    good = ledger.record_turn(session="main", query="q")
    bad = ledger.record_turn(session="main", query="q", error={"message": "boom", "code": "overloaded"})
    assert (ledger.session("main").head, bad.parent_id) == (good.id, good.id)
    turn = ledger.turn(bad.id)
    assert (turn.status, turn.error, turn.error_code) == ("failed", "boom", "overloaded")
    again = ledger.record_turn(session="main", query="again", error="plain words")
    assert (again.parent_id, ledger.turn(again.id).error_code) == (good.id, "error")
    assert problems(ledger) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": {"role": "nobody", "content": "x"}},
        {"query": {"role": "user"}},
        {"query": {"content": "x", "colour": "red"}},
        {"query": 5},
        {"query": [["deep"], {"content": [{"type": "poem", "text": "x"}]}]},
        {"response": {"content": [{"type": "text"}]}},
        {"tool_calls": [{"arguments": {}}]},
        {"tool_calls": [{"name": ""}]},
        {"tool_calls": [{"name": "t", "status": "fine"}]},
        {"tool_calls": [{"name": "t", "number": 1.5}]},
        {"tool_calls": [{"name": "t", "duration_ms": 2**53}]},
        {"role": "king"},
        {"reason": "boredom"},
        {"model": ""},
        {"model": 5},
        {"persona": ""},
        {"persona": "\ud800"},
        {"error": {"code": "x"}},
        {"session": ""},
        {"session": "a~b"},
        {"session": " a"},
        {"session": "a\nb"},
        {"session": "x" * 513},
        {"session": 7},
        {"params": {"t": float("nan")}},
        {"thinking_config": {"x": b"bytes"}},
    ],
)
def test_what_has_no_single_form_is_refused_and_nothing_is_written(ledger: Ledger, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ledger.record_turn(**{"session": "main", "query": "q", **wrong})
    assert ledger.upkeep.stats()["events"] == 0
    assert problems(ledger) == []


def test_a_refusal_names_the_place(ledger: Ledger) -> None:
    with pytest.raises(NoCanonicalForm) as refused:
        ledger.record_turn(session="main", tool_calls=[{"name": "t", "arguments": {"a": [0, float("inf")]}}])
    assert refused.value.path == "arguments.a[1]"


def test_an_unknown_argument_is_a_mistake_of_the_caller(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="colour"):
        ledger.record_turn(session="main", colour="red")  # type: ignore[call-arg]
    assert ledger.sessions() == []


def test_a_parent_that_is_not_there_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.record_turn(parent="01ARZ3NDEKTSV4RRFFQ69G5FAV", query="q")


def test_an_archived_session_takes_no_turns(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q")
    ledger.labels.archive("main")
    with pytest.raises(NotApplicable, match="archived"):
        ledger.record_turn(session="main", query="q")


def test_the_example_of_the_readme_holds(path: Path, tmp_path: Path) -> None:
    with weft.open(path) as ledger:
        turn = ledger.record_turn(
            session="main", query="hello", response="hi", model="m", usage={"input_tokens": 9, "output_tokens": 2},
            tool_calls=[{"id": "c1", "name": "read", "arguments": {"path": "x"}, "result": "…"}],
        )  # fmt: skip
        ledger.fork(turn.id, label="alt")
        ledger.record_turn(session="alt", query="…", response="…")
        assert texts(ledger.thread(turn.id).messages) == ["hello", "hi"]
        assert ledger.thread(turn.id).digest == turn.digest
        assert ledger.session("main").head == turn.id
        assert ledger.upkeep.export_facts(tmp_path / "facts.jsonl") > 0
        assert list(ledger.verify()) == []


def test_usage_fields_that_were_not_given_stay_absent(ledger: Ledger) -> None:
    usage = ledger.turn(ledger.record_turn(session="m", response="r", usage={"output_tokens": 2}).id).usage
    assert usage.input_tokens is UNSET
    assert usage.output_tokens == 2


def test_several_turns_are_recorded_together_or_not_at_all(ledger: Ledger) -> None:
    large = "x" * 2_000_000
    turns = ledger.record_turns(
        [
            {"session": "new", "query": "one", "response": "1", "model": "m", "workspace": "w"},
            {"session": "new", "query": large, "response": "2", "key": "k"},
        ]
    )
    assert [turn.depth for turn in turns] == [1, 2]
    assert turns[1].parent_id == turns[0].id
    assert ledger.session("new").head == turns[1].id
    assert (ledger.turn(turns[0].id).model, ledger.messages(turns[1].id)[0].text) == ("m", large)
    assert turns[0].receipt.n < turns[1].receipt.n == ledger.upkeep.stats()["events"]
    for refused in ({"query": "x", "usage": {"input_tokens": -1}}, {"query": "x", "key": "k"}, {"parent": "gone"}):
        with pytest.raises(WeftError):
            ledger.record_turns([{"session": "new", "query": "kept?"}, {"session": "new", **refused}])
    assert ledger.session("new").head == turns[1].id
    assert ledger.upkeep.stats()["turns"] == 2
    assert problems(ledger) == []


def test_turns_in_no_session_follow_each_other(ledger: Ledger) -> None:
    first, second, other = ledger.record_turns([{"query": "a"}, {"query": "b"}, {"query": "c", "parent": None}])
    assert (first.parent_id, second.parent_id, other.parent_id) == (None, first.id, None)


def test_a_turn_of_a_list_takes_what_record_turn_takes(ledger: Ledger) -> None:
    arguments = signature(Ledger.record_turn).parameters.keys() - {"self", "wait"}
    assert arguments == recording._ARGUMENTS
    assert ledger.record_turns([]) == []
    wrong: list[tuple[Any, str]] = [
        ("x", "turns is str"),
        (["x"], "turn 1 is str"),
        ([{"query": "q"}, {"qurey": "q"}], "turn 2 has 'qurey'"),
    ]
    for turns, said in wrong:
        with pytest.raises(InvalidInput, match=said):
            ledger.record_turns(turns)
