"""Conversations of OpenHands: both forms of events, every container, and the traps of the format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec import UNSET

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.openhands.conversations import (
    AT,
    STATE,
    Json,
    action,
    asked,
    observed,
    response,
    stats,
    v0,
    v1,
    v1_event,
    v1_message,
    write,
    write_lines,
    write_v0_folder,
    write_v1_folder,
)
from tests.exchange.fuzzing import as_json, as_lines, either, torn, written
from tests.exchange.reading import called, read, read_one, said, spoken, words
from weft.exchange.importers.openhands import OpenHands
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importers.testing import as_source
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote

HANDS = OpenHands()


def turns_of(folder: Path, events: list[Json]) -> list[NativeTurn]:
    path = write_lines(folder, events) if "kind" in events[0] else write(folder, events)
    return read_one(HANDS, path).turns


class TestContract(OwnImporterContract):
    importer = HANDS
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, v0()),
            write_lines(folder, v1()),
            write_v1_folder(folder, v1(), STATE),
            write_v0_folder(folder, v0(), title="Shop"),
        ]


class TestLines(OwnImporterContract):
    importer = HANDS
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [write_lines(folder, v1())]


@pytest.mark.parametrize("events", [v0, v1])
def test_both_versions_tell_the_same_story(tmp_path: Path, events: Callable[[], list[Json]]) -> None:
    """The fixtures say the same in the words of each: what they share is told alike."""
    turns = turns_of(tmp_path, events())
    assert [turn.parent for turn in turns] == [None, 0, 1, 2]
    assert [call.id for call in called(turns[0])] == ["c1", "c2"]
    assert spoken(turns[0])[0] == ("system", ["You are a helper."])
    answers = [message for message in said(turns[0]) if message.role is MessageRole.ASSISTANT]
    assert answers[0].tokens is not None
    assert (answers[0].tokens.input, answers[0].tokens.output, answers[0].tokens.cached) == (40, 10, 60)
    told = turns[2].compaction
    assert told is not None
    assert (told.summary, told.through) == ("They looked.", 0)
    assert turns[-1].closed


def test_a_user_message_begins_a_turn(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, v0())
    assert spoken(turns[0])[:2] == [
        ("system", ["You are a helper."]),
        ("user", ["Look.", "data:image/png;base64,AA=="]),
    ]
    assert spoken(turns[0])[2:] == [("assistant", ["I look."]), ("assistant", ["Nothing there."])]
    assert turns[0].tools == ("execute_bash",)


def test_a_time_without_a_zone_is_kept_as_its_words(tmp_path: Path) -> None:
    turn = turns_of(tmp_path, v0())[0]
    prompt = said(turn)[1]
    assert (prompt.at, prompt.literal_time) == (None, AT)
    assert said(turn)[2].at == 1767323045000  # a response tells when it was made
    zoned = action(2, "message", "user", content="Look.") | {"timestamp": "2026-01-02T03:04:05Z"}
    (turn,) = turns_of(tmp_path, [zoned, action(3, "message", content="There.")])
    assert (turn.started, said(turn)[0].literal_time) == (1767323045000, None)


def test_calls_of_one_response_follow_one_message_and_count_once(tmp_path: Path) -> None:
    turn = turns_of(tmp_path, v0())[0]
    answers = [message for message in said(turn) if message.role is MessageRole.ASSISTANT]
    assert [message.tokens for message in answers] == [Tokens(input=40, output=10, cached=60), None]
    assert (answers[0].native, answers[0].model, answers[0].finish_reason) == ("r1", "large", "tool_calls")


def test_outcomes_are_found_by_their_cause(tmp_path: Path) -> None:
    first, second = called(turns_of(tmp_path, v0())[0])
    assert (first.arguments, first.result, first.status) == ({"command": "ls"}, "a.py", ToolCallStatus.OK)
    assert first.detail == {"exit_code": 0}
    assert (second.error, second.status, second.files) == ("No such file.", ToolCallStatus.ERROR, ())


def test_noise_is_kept_and_states_close_a_turn(tmp_path: Path) -> None:
    found, report = read(HANDS, write(tmp_path, v0()))
    assert report.kept == {"observation.null": 1}
    assert found[0].turns[-1].closed
    assert not turns_of(tmp_path, v0()[:6])[-1].closed


def test_what_was_recalled_stands_beside_the_prompt(tmp_path: Path) -> None:
    prompt = said(turns_of(tmp_path, v0())[0])[1]
    assert prompt.context == {"injected": [{"content": "Added workspace context", "repo_name": "shop"}]}


def test_a_condensation_is_a_turn_and_what_follows_another(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, v0())
    first, second, compaction, last = turns
    assert compaction.compaction is not None
    assert compaction.compaction.first_kept == 1
    assert last.key == f"{second.key}#16"
    assert [call.name for call in called(last)] == ["finish"]
    assert first.compaction is None


def test_a_finish_needs_no_outcome(tmp_path: Path) -> None:
    (call,) = called(turns_of(tmp_path, v0())[3])
    assert (call.status, call.result) == (ToolCallStatus.OK, UNSET)


def test_files_are_told_by_what_actions_do(tmp_path: Path) -> None:
    turn = turns_of(tmp_path, v0())[1]
    assert called(turn)[0].files == (FileNote(kind=FileKind.WRITTEN, path="/shop/b.py"),)
    both = response("r", ("c", "str_replace_editor", {"command": "view", "path": "/shop"}))
    reading = [
        action(1, "message", "user", content="Read."),
        action(2, "read", response=both, call="c", path="/shop", start=3, end=9),
    ]
    (turn,) = turns_of(tmp_path, [*reading, observed(3, "read", 2, "3 x")])
    assert called(turn)[0].files == (FileNote(kind=FileKind.READ, path="/shop", line_start=3, line_end=9),)
    (turn,) = turns_of(tmp_path, [*reading, observed(3, "read", 2, "Here's the files and directories up to 2 levels")])
    assert called(turn)[0].files == (FileNote(kind=FileKind.REFERENCED, path="/shop"),)


def test_running_totals_count_as_differences_where_a_response_tells_nothing(tmp_path: Path) -> None:
    def total(prompt: int, output: int) -> Json:
        return {"accumulated_token_usage": {"prompt_tokens": prompt, "completion_tokens": output}}

    events = [
        action(1, "message", "user", content="Go."),
        action(2, "run", command="a") | {"llm_metrics": total(100, 10)},
        action(3, "run", command="b") | {"llm_metrics": total(250, 15)},
        action(4, "message", content="Done.") | {"llm_metrics": total(250, 15)},
    ]
    (turn,) = turns_of(tmp_path, events)
    assert [message.tokens for message in said(turn)[1:]] == [
        Tokens(input=100, output=10),
        Tokens(input=150, output=5),
        None,
    ]


def test_a_person_in_the_terminal_makes_no_call(tmp_path: Path) -> None:
    events = [*v0()[:3], action(3, "run", "user", command="pwd"), observed(4, "run", 3, "/shop")]
    (turn,) = turns_of(tmp_path, events)
    assert called(turn) == []
    assert [(words(message), message.source) for message in said(turn)[2:]] == [
        (["pwd"], MessageSource.HUMAN),
        (["/shop"], MessageSource.EVENT),
    ]


def test_a_rejected_call_was_canceled_and_an_error_state_fails_the_turn(tmp_path: Path) -> None:
    events = [
        *v0()[:6],
        observed(6, "user_rejected", 5, "No."),
        observed(7, "agent_state_changed", None, agent_state="error", reason="AuthenticationError"),
    ]
    (turn,) = turns_of(tmp_path, events)
    assert (called(turn)[0].status, called(turn)[0].error) == (ToolCallStatus.CANCELED, "No.")
    assert (turn.error, turn.closed) == ("AuthenticationError", True)


def test_v1_calls_of_one_response_are_grouped_by_its_id(tmp_path: Path) -> None:
    first, second, _, last = turns_of(tmp_path, v1())
    assert spoken(first) == [
        ("system", ["You are a helper."]),
        ("user", ["Look."]),
        ("assistant", [["Hm."], "I look."]),
        ("assistant", ["There."]),
    ]
    assert [(call.id, call.result, call.error) for call in called(first)] == [
        ("c1", UNSET, "Too many."),
        ("c2", "3 x", None),
    ]
    assert called(first)[1].files == (FileNote(kind=FileKind.READ, path="/shop/a.py", line_start=3, line_end=9),)
    assert called(first)[0].detail == {"exit_code": 1}
    assert (first.tools, first.workspace, second.closed, last.closed) == (("terminal",), "/shop", True, True)


def test_v1_usage_is_cumulative_and_taken_as_differences(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, v1())
    spent = [message.tokens for turn in turns for message in said(turn) if message.role is MessageRole.ASSISTANT]
    assert spent == [
        Tokens(input=40, output=10, cached=60, cache_write=0),
        Tokens(input=50, output=20, cached=100, cache_write=0),
        Tokens(input=50, output=5, cached=0, cache_write=0),  # of the condenser
        Tokens(input=50, output=10, cached=0, cache_write=0),
    ]
    assert {message.model for turn in turns for message in said(turn)} == {None, "large"}


def test_v1_totals_that_no_response_follows_count_with_the_last_one(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, [*v1()[:10], stats("e-99", 260, 31, 160)])
    assert said(turn)[-1].tokens == Tokens(input=60, output=21, cached=100, cache_write=0)


def test_v1_states_tell_what_each_response_cost(tmp_path: Path) -> None:
    usage = {"model": "other", "prompt_tokens": 9, "completion_tokens": 2, "cache_read_tokens": 4, "response_id": "r1"}
    state = {**STATE, "stats": {"usage_to_metrics": {"agent": {"model_name": "other", "token_usages": [usage]}}}}
    found = read_one(HANDS, write_v1_folder(tmp_path, v1(), state))
    answers = [message for message in said(found.turns[0]) if message.role is MessageRole.ASSISTANT]
    assert [(message.model, message.tokens) for message in answers] == [
        ("other", Tokens(input=5, output=2, cached=4)),
        ("other", None),
    ]


def test_v1_skills_and_rules_stand_beside_the_prompt(tmp_path: Path) -> None:
    prompt = said(turns_of(tmp_path, v1())[0])[1]
    assert prompt.context == {"skills": ["git"], "added": "Use git."}


def test_v1_condensations_keep_what_they_did_not_forget(tmp_path: Path) -> None:
    turns = turns_of(tmp_path, v1())
    told = turns[2].compaction
    assert told is not None
    assert (told.first_kept, told.model) == (0, "large")


def test_v1_errors_rejections_and_pauses(tmp_path: Path) -> None:
    events = [
        v1()[1],
        asked("a1", "c1", "r1"),
        v1_event("AgentErrorEvent", "o1", error="No such tool.", tool_call_id="c1", tool_name="terminal"),
        asked("a2", "c2", "r2"),
        v1_event("UserRejectObservation", "o2", "user", rejection_reason="No.", tool_call_id="c2", action_id="a2"),
        asked("a3", "c3", "r3"),
        v1_event("PauseEvent", "p1", "user"),
    ]  # fmt: skip
    (turn,) = turns_of(tmp_path, events)
    assert [(call.status, call.error) for call in called(turn)] == [
        (ToolCallStatus.ERROR, "No such tool."),
        (ToolCallStatus.CANCELED, "No."),
        (None, None),
    ]
    assert turn.interrupted
    failed = v1_event("ConversationErrorEvent", "x", "environment", code="LLMError", detail="Too long.")
    (turn,) = turns_of(tmp_path, [*events, failed])
    assert (turn.error, turn.closed) == ("LLMError: Too long.", True)


def test_v1_calls_of_another_agent_are_told_as_they_get_on(tmp_path: Path) -> None:
    def acp(id: str, status: str, **fields: Any) -> Json:
        told = {"tool_call_id": "t1", "title": "ls", "tool_kind": "execute", "status": status, **fields}
        return v1_event("ACPToolCallEvent", id, **told)

    events = [v1()[1], acp("1", "pending", raw_input={"command": "ls"}), acp("2", "completed", raw_output="a.py")]
    (turn,) = turns_of(tmp_path, events)
    (call,) = called(turn)
    assert (call.name, call.arguments, call.result) == ("execute", {"command": "ls"}, "a.py")


def test_a_message_from_another_agent_is_not_a_persons(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, [v1_message("m", "user", "Do it.", sender="boss"), v1()[8]])
    assert said(turn)[0].source is MessageSource.AGENT


def test_every_container_gives_the_same_turns(tmp_path: Path) -> None:
    whole = read_one(HANDS, write(tmp_path, v0())).turns
    folder = read_one(HANDS, write_v0_folder(tmp_path, v0(), title="Shop", selected_branch="main"))
    assert [turn.records for turn in folder.turns] == [turn.records for turn in whole]
    assert (folder.session.id, folder.session.title, folder.session.git_branch) == ("abc", "Shop", "main")
    wrapped = read_one(HANDS, write(tmp_path, {"trajectory": v0()}, "wrapped.json"))
    assert [turn.records for turn in wrapped.turns] == [turn.records for turn in whole]
    lines = read_one(HANDS, write_lines(tmp_path, v1()))
    newer = read_one(HANDS, write_v1_folder(tmp_path, v1(), STATE))
    assert [turn.records for turn in newer.turns] == [turn.records for turn in lines.turns]
    assert [turn.key for turn in newer.turns] == [turn.key for turn in lines.turns]
    assert newer.session.id == STATE["id"]
    assert newer.turns[0].config == {"model": {"model": "large", "temperature": 0.0}, "confirmation": "NeverConfirm"}


def test_a_folder_is_read_once_through_the_file_that_stands_for_it(tmp_path: Path) -> None:
    first = write_v0_folder(tmp_path, v0(), title="Shop")
    others = [path for path in first.parent.parent.rglob("*.json") if path != first]
    assert HANDS.recognises(as_source(first))
    assert not HANDS.is_part(as_source(first))
    assert all(HANDS.is_part(as_source(path)) and not HANDS.recognises(as_source(path)) for path in others)
    state = write_v1_folder(tmp_path, v1(), STATE)
    assert HANDS.recognises(as_source(state))
    assert all(HANDS.is_part(as_source(path)) for path in state.parent.rglob("event-*.json"))
    alone = write_v1_folder(tmp_path / "stateless", v1())
    assert HANDS.recognises(as_source(alone))


def test_a_folder_that_has_grown_brings_what_is_new(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        contract = TestContract()
        contract.import_files(ledger, write_v0_folder(tmp_path, v0()[:12]))
        contract.import_files(ledger, write_v0_folder(tmp_path, v0()))
        (session,) = ledger.sessions()
        assert len(list(ledger.thread(session.label).turns)) == 4
        assert list(ledger.verify()) == []


def test_results_of_an_evaluation_are_a_conversation_a_line(tmp_path: Path) -> None:
    paired = [[each] for each in v0()[:6]]
    lines: list[Json] = [
        {"instance_id": "shop-7", "history": v0(), "error": None},
        {"instance_id": "shop-8", "history": paired, "error": "it broke"},
    ]
    found, report = read(HANDS, write_lines(tmp_path, lines, "output.jsonl"))
    assert [each.session.title for each in found] == ["shop-7", "shop-8"]
    assert [len(each.turns) for each in found] == [4, 1]
    assert found[1].turns[0].error == "it broke"
    assert report.mapped["result"] == 2


def test_unknown_kinds_are_kept_and_counted(tmp_path: Path) -> None:
    events = [*v0(), action(90, "teleport"), observed(91, "hologram", None), {"id": 92, "timestamp": AT}]
    _, report = read(HANDS, write(tmp_path, events))
    assert report.unknown == {"action.teleport": 1, "observation.hologram": 1, "untyped": 1}
    _, report = read(HANDS, write_lines(tmp_path, [*v1(), v1_event("NoveltyEvent", "n")]))
    assert report.unknown == {"NoveltyEvent": 1}


def test_an_event_file_that_is_damaged_harms_no_others(tmp_path: Path) -> None:
    first = write_v0_folder(tmp_path, v0())
    (first.parent / "5.json").write_text('{"id": 5, "acti')
    found, report = read(HANDS, first)
    assert (report.damaged, len(found[0].turns)) == (1, 4)


def test_settings_are_told_without_keys(tmp_path: Path) -> None:
    found = read_one(HANDS, write_v1_folder(tmp_path, v1(), STATE))
    assert "canary" not in json.dumps([turn.config for turn in found.turns])


MUTATED = either(v0()).map(as_json) | either(v1()).map(as_lines)


@given(MUTATED | torn(as_json(v0())) | torn(as_lines(v1())))
def test_mutated_and_torn_files_are_never_fatal_and_always_counted(data: bytes) -> None:
    for name in ("x.json", "x.jsonl"):
        with written(data, name) as path:
            HANDS.recognises(as_source(path))
            HANDS.is_part(as_source(path))
            read(HANDS, path)
