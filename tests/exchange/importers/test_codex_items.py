"""Responses, thinking, tool calls, files and cost in Codex turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tests.exchange.fixtures.codex.rollouts import (
    AT_MS,
    OTHER,
    Line,
    call,
    calls,
    complete,
    context,
    developer,
    event,
    import_lines,
    item,
    line,
    messages,
    meta,
    output,
    said,
    shown,
    started,
    thought,
    tokens,
    told,
    turn_id,
    usage,
    user,
    words_of,
)
from weft.exchange.importers.port import NativeCall, NativeTurn, Tokens
from weft.kernel.enums import FileKind, MessageRole, ToolCallStatus

ONE = turn_id(1)


def turn_of(folder: Path, *lines: Line) -> NativeTurn:
    """A turn with these lines after its prompt."""
    found = import_lines(folder, [meta(), started(ONE), context(ONE), user("a"), told("a"), *lines, complete(ONE)])
    assert len(found.turns) == 1
    return found.turns[0]


def call_of(folder: Path, *lines: Line) -> NativeCall:
    found = calls(turn_of(folder, *lines))
    assert len(found) == 1
    return found[0]


def files_of(found: NativeCall) -> list[tuple[Any, ...]]:
    return [(note.kind, note.path, note.line_start, note.line_end) for note in found.files]


def test_a_response_is_an_unbroken_run_of_a_models_items(tmp_path: Path) -> None:
    turn = turn_of(
        tmp_path,
        thought("hm", id="rs_1"),
        event("agent_message", message="first"),
        said("first", id="msg_1"),
        call("c1", id="fc_1"),
        call("c2", id="fc_2"),
        output("c1"),
        output("c2"),
        call("c3", id="fc_3"),
        output("c3"),
        said("last", id="msg_2"),
    )
    assert shown(turn) == [
        "user: a",
        "assistant: thinking: hm | first",
        "call exec_command c1",
        "call exec_command c2",
        "assistant: ",
        "call exec_command c3",
        "assistant: last",
    ]
    assert [each.native for each in messages(turn)] == [None, "msg_1", "fc_3", "msg_2"]
    assert messages(turn)[1].at == AT_MS


def test_grouping_does_not_depend_on_reports_of_usage(tmp_path: Path) -> None:
    lines = [thought(), call("c1"), output("c1"), tokens(5, given=4, out=1), said("b"), tokens(9, given=3, out=1)]
    with_reports = turn_of(tmp_path, *lines)
    without = turn_of(tmp_path, *[each for each in lines if each["payload"]["type"] != "token_count"])
    assert with_reports.records == without.records
    assert shown(with_reports) == shown(without)


def test_a_message_from_outside_begins_a_new_response(tmp_path: Path) -> None:
    letter = item(
        "agent_message", author="/lead/x", recipient="/lead", content=[{"type": "input_text", "text": "done"}]
    )
    turn = turn_of(tmp_path, thought(id="rs_1"), letter, thought(id="rs_2"), developer("note"), said("b", id="msg_1"))
    assert [each.native for each in messages(turn)] == [None, "rs_1", None, "rs_2", "msg_1"]


def test_events_repeat_what_items_say_and_add_nothing(tmp_path: Path) -> None:
    turn = turn_of(
        tmp_path,
        event("agent_reasoning", text="hm"),
        thought("hm"),
        event("agent_message", message="b", phase="final_answer"),
        said("b"),
    )
    assert shown(turn) == ["user: a", "assistant: thinking: hm | b"]


def test_an_event_that_leaves_out_the_end_of_a_text_is_still_its_echo(tmp_path: Path) -> None:
    words = "A long answer that goes on and on, well beyond what one would call a beginning."
    turn = turn_of(tmp_path, event("agent_message", message=words), said(f"{words}\n<citation>1</citation>"))
    assert len(messages(turn)) == 2


def test_raw_reasoning_of_an_event_alone_is_taken(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, thought(), event("agent_reasoning_raw_content", text="deep"), said("b"))
    assert shown(turn)[1] == "assistant: thinking: deep | b"


def test_summaries_that_repeat_those_before_them_are_told_once(tmp_path: Path) -> None:
    """Within a response each reasoning item brings the summaries of the one before it again."""
    turn = turn_of(tmp_path, thought("one"), thought("one", "two"), thought("one", "two", "three"), said("b"))
    assert shown(turn)[1] == "assistant: thinking: one | thinking: two | thinking: three | b"


def test_encrypted_thinking_is_a_fact_not_a_text(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, thought(encrypted_content="g" * 500), said("b", phase="final_answer"))
    sealed = {"vendor": "openai", "items": [{"at": 0, "parts": 0, "fields": {"encrypted": "g" * 500}}]}
    assert messages(turn)[1].metadata == {
        "encrypted_reasoning_letters": [500],
        "phase": "final_answer",
        "sealed": sealed,
    }
    assert all(b"ggg" not in record for record in turn.records)


def test_a_summary_that_is_a_text_is_taken(tmp_path: Path) -> None:
    assert (
        shown(turn_of(tmp_path, item("reasoning", summary="plain"), said("b")))[1] == "assistant: thinking: plain | b"
    )


def test_arguments_are_parsed_where_they_are_an_object(tmp_path: Path) -> None:
    given = ['{"cmd":"ls"}', "[1]", "not json", '{"cut":', "", {"cmd": "ls"}, None]
    turn = turn_of(tmp_path, *[call(f"c{k}", arguments=each) for k, each in enumerate(given)])
    assert [each.arguments for each in calls(turn)] == [
        {"cmd": "ls"},
        "[1]",
        "not json",
        '{"cut":',
        "",
        {"cmd": "ls"},
        None,
    ]


def test_the_input_of_a_custom_tool_is_raw_text(tmp_path: Path) -> None:
    made = item("custom_tool_call", id="ctc_1", status="completed", call_id="c1", name="exec", input='{"not":"parsed"}')
    found = call_of(tmp_path, made, item("custom_tool_call_output", call_id="c1", output="ok"))
    assert (found.id, found.name, found.arguments, found.result) == ("c1", "exec", '{"not":"parsed"}', "ok")


@pytest.mark.parametrize(
    "result",
    [
        "text",
        [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:,"}],
        {"success": True},
        None,
    ],
)
def test_outputs_are_kept_in_their_own_form(tmp_path: Path, result: Any) -> None:
    found = call_of(tmp_path, call("c1"), output("c1", result))
    assert found.result == result
    assert found.status == ToolCallStatus.OK
    assert (found.at, found.done) == (AT_MS, AT_MS)


def test_a_call_without_output_has_no_outcome(tmp_path: Path) -> None:
    found = call_of(tmp_path, call("c1"))
    assert (found.result, found.status, found.error, found.done) == (UNSET, None, None, None)


def test_an_output_without_its_call_is_a_message_of_the_tool(tmp_path: Path) -> None:
    message = messages(turn_of(tmp_path, output("nobody", "lost")))[1]
    assert (message.role, words_of(message), message.metadata) == (MessageRole.TOOL, ["lost"], {"call_id": "nobody"})


def test_an_output_without_an_id_answers_the_oldest_open_call(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, call("c1"), call("c2"), output(None, "first"), output(None, "second"))
    assert [each.result for each in calls(turn)] == ["first", "second"]


def test_a_second_output_of_a_call_is_kept_beside_the_first(tmp_path: Path) -> None:
    found = call_of(tmp_path, call("c1"), output("c1", "first"), output("c1", "second"))
    assert found.result == "first"
    assert found.detail == {"further_outputs": ["second"]}


def test_call_ids_may_repeat(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, call("c1"), output("c1", "first"), call("c1"), output("c1", "second"))
    assert [each.result for each in calls(turn)] == ["first", "second"]


def test_a_call_that_a_person_stopped_is_interrupted(tmp_path: Path) -> None:
    assert (
        call_of(tmp_path, call("c1"), output("c1", "aborted by user after 2.0s")).status == ToolCallStatus.INTERRUPTED
    )


@pytest.mark.parametrize(
    ("text", "code", "took"),
    [
        ("Chunk ID: ab\nWall time: 0.0500 seconds\nProcess exited with code 1\nOutput:\n", 1, 50),
        ("Exit code: 2\nWall time: 0.3 seconds\nOutput:\n", 2, 300),
        ('{"output":"x","metadata":{"exit_code":3,"duration_seconds":1.5}}', 3, 1500),
    ],
)
def test_a_non_zero_exit_code_is_told_and_is_no_error(tmp_path: Path, text: str, code: int, took: int) -> None:
    found = call_of(tmp_path, call("c1"), output("c1", text))
    assert found.status == ToolCallStatus.OK
    assert found.detail == {"exit_code": code, "duration_ms": took}


def test_exec_command_end_tells_exit_code_duration_and_files_read(tmp_path: Path) -> None:
    end = event(
        "exec_command_end",
        call_id="c1",
        turn_id=ONE,
        command=["bash", "-lc", "cat a.py"],
        cwd="/shop/src",
        parsed_cmd=[
            {"type": "read", "cmd": "cat a.py", "name": "a.py", "path": "a.py"},
            {"type": "read", "cmd": "cat /etc/x", "name": "x", "path": "/etc/x"},
            {"type": "search", "cmd": "rg x", "query": "x"},
            "nonsense",
        ],
        stdout="long",
        aggregated_output="long",
        exit_code=1,
        duration={"secs": 1, "nanos": 500_000_000},
        status="failed",
    )
    found = call_of(tmp_path, call("c1"), end, output("c1", "no such file"))
    assert (found.status, found.error) == (ToolCallStatus.ERROR, "no such file")
    assert (found.detail["exit_code"], found.detail["duration_ms"]) == (1, 1500)
    assert "stdout" not in found.detail["events"][0]
    assert files_of(found) == [
        (FileKind.READ, "/shop/src/a.py", None, None),
        (FileKind.READ, "/etc/x", None, None),
    ]


def test_a_declined_command_is_cancelled(tmp_path: Path) -> None:
    end = event("exec_command_end", call_id="c1", status="declined")
    assert call_of(tmp_path, call("c1"), output("c1", "rejected"), end).status == ToolCallStatus.CANCELED


def patched(call_id: str, **fields: Any) -> Line:
    changes = {
        "/shop/new.py": {"type": "add", "content": "a\nb\nc\n"},
        "/shop/old.py": {"type": "delete", "content": "x\n"},
        "/shop/a.py": {"type": "update", "unified_diff": "@@ -1,2 +1,3 @@\n x\n+y\n@@ -10 +11 @@\n-p\n+q\n"},
        "/shop/b.py": {"type": "update", "unified_diff": "@@ -5,1 +5,2 @@\n", "move_path": "/shop/c.py"},
        "/shop/odd": None,
    }
    return event("patch_apply_end", call_id=call_id, turn_id=ONE, success=True, changes=changes, **fields)


def test_patch_apply_end_tells_the_files_written_with_their_lines(tmp_path: Path) -> None:
    made = item("custom_tool_call", call_id="c1", name="apply_patch", input="*** Begin Patch")
    found = call_of(tmp_path, made, patched("c1"), item("custom_tool_call_output", call_id="c1", output="Success."))
    assert files_of(found) == [
        (FileKind.WRITTEN, "/shop/new.py", 1, 3),
        (FileKind.WRITTEN, "/shop/old.py", None, None),
        (FileKind.WRITTEN, "/shop/a.py", 1, 3),
        (FileKind.WRITTEN, "/shop/a.py", 11, 11),
        (FileKind.WRITTEN, "/shop/b.py", None, None),
        (FileKind.WRITTEN, "/shop/c.py", 5, 6),
        (FileKind.WRITTEN, "/shop/odd", None, None),
    ]
    assert found.detail["events"][0]["changes"]["/shop/a.py"]["type"] == "update"


def test_a_failed_patch_wrote_nothing(tmp_path: Path) -> None:
    failed = event("patch_apply_end", call_id="c1", success=False, changes={"/shop/a": {"type": "add", "content": "x"}})
    found = call_of(tmp_path, call("c1", "apply_patch"), failed, output("c1", "context mismatch"))
    assert found.files == ()
    assert (found.status, found.error) == (ToolCallStatus.ERROR, "context mismatch")


def test_what_runs_inside_exec_belongs_to_the_call_that_was_running(tmp_path: Path) -> None:
    outer = item("custom_tool_call", call_id="c1", name="exec", input="await tools.apply_patch(p)")
    inner = event(
        "exec_command_end", call_id="exec-2", cwd="/w", status="failed", exit_code=1, aggregated_output="oops"
    )
    lines = [call("c0"), output("c0"), outer, patched("exec-1"), inner]
    turn = turn_of(tmp_path, *lines, item("custom_tool_call_output", call_id="c1", output=[]))
    first, second = calls(turn)
    assert first.files == ()
    assert len(second.files) == 7
    assert second.status == ToolCallStatus.OK
    assert second.detail["events"][1]["aggregated_output"] == "oops"
    assert "exit_code" not in second.detail


def test_the_list_of_updated_files_is_used_where_no_event_tells(tmp_path: Path) -> None:
    text = "Exit code: 0\nOutput:\nSuccess. Updated the following files:\nA docs/a.md\nM /abs/b.py\nD ./c.py\nDone"
    found = call_of(tmp_path, call("c1", arguments='{"workdir":"/elsewhere/"}'), output("c1", text))
    assert [note.path for note in found.files] == ["/elsewhere/docs/a.md", "/abs/b.py", "/elsewhere/c.py"]


def test_a_patch_that_only_says_success_names_its_files_itself(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@\n*** Add File: c.py\n+x\n*** End Patch"
    made = item("custom_tool_call", call_id="c1", name="apply_patch", input=patch)
    found = call_of(tmp_path, made, item("custom_tool_call_output", call_id="c1", output={"success": True}))
    assert [note.path for note in found.files] == ["/shop/a.py", "/shop/b.py", "/shop/c.py"]


def test_view_image_reads_a_file(tmp_path: Path) -> None:
    seen = event("view_image_tool_call", call_id="c1", path="/shop/p.png")
    by_event = call_of(tmp_path, call("c1", "view_image", '{"path":"p.png"}'), seen, output("c1", []))
    by_argument = call_of(tmp_path, call("c1", "view_image", '{"path":"p.png"}'), output("c1", []))
    assert files_of(by_event) == files_of(by_argument) == [(FileKind.READ, "/shop/p.png", None, None)]


def test_an_mcp_call_that_failed_is_an_error(tmp_path: Path) -> None:
    invocation = {"server": "s", "tool": "t", "arguments": {}}
    refused = event("mcp_tool_call_end", call_id="c1", invocation=invocation, result={"Err": "no server"})
    failed = event("mcp_tool_call_end", call_id="c1", invocation=invocation, result={"Ok": {"isError": True}})
    fine = event("mcp_tool_call_end", call_id="c1", invocation=invocation, result={"Ok": {"isError": False}})
    found = [call_of(tmp_path, call("c1"), each, output("c1", "said")) for each in (refused, failed, fine)]
    assert [each.status for each in found] == [ToolCallStatus.ERROR, ToolCallStatus.ERROR, ToolCallStatus.OK]
    assert [each.error for each in found] == ["no server", "said", None]
    assert found[0].detail["events"][0]["invocation"] == invocation


def test_an_end_event_may_stand_before_the_item_of_its_call(tmp_path: Path) -> None:
    end = event("web_search_end", call_id="ws_1", query="weather", action={"type": "search"})
    search = item("web_search_call", id="ws_1", status="completed", action={"type": "search", "query": "weather"})
    found = call_of(tmp_path, end, search)
    assert (found.id, found.name, found.status) == ("ws_1", "web_search", ToolCallStatus.OK)
    assert found.arguments == {"type": "search", "query": "weather"}
    assert found.result is UNSET
    assert found.detail["events"][0]["query"] == "weather"


def test_every_kind_of_call_has_a_name_and_arguments(tmp_path: Path) -> None:
    turn = turn_of(
        tmp_path,
        item("local_shell_call", call_id="c1", status="completed", action={"type": "exec", "command": ["ls"]}),
        item("tool_search_call", call_id="c2", status="completed", arguments={"query": "q"}),
        item("image_generation_call", id="ig_1", status="completed", revised_prompt="a cat", result="AAAA"),
        item("tool_search_output", call_id="c2", tools=[{"name": "t"}]),
        output("c1", "a.txt"),
        event("image_generation_end", call_id="ig_1", status="completed", result="AAAA", saved_path="/shop/cat.png"),
    )
    assert [(each.name, each.arguments, each.result) for each in calls(turn)] == [
        ("local_shell", {"type": "exec", "command": ["ls"]}, "a.txt"),
        ("tool_search", {"query": "q"}, [{"name": "t"}]),
        ("image_generation", {"revised_prompt": "a cat"}, "AAAA"),
    ]
    assert files_of(calls(turn)[2]) == [(FileKind.WRITTEN, "/shop/cat.png", None, None)]


def test_spawn_agent_names_the_session_it_started(tmp_path: Path) -> None:
    spawn = call("c1", "spawn_agent", '{"message":"look"}', namespace="collaboration")
    by_end = event("collab_agent_spawn_end", call_id="c1", new_thread_id=OTHER, prompt="look")
    by_activity = event(
        "sub_agent_activity", event_id="c1", agent_thread_id=OTHER, agent_path="/lead/x", kind="started"
    )
    assert call_of(tmp_path, spawn, by_end, output("c1", "{}")).spawned == OTHER
    assert call_of(tmp_path, spawn, by_activity, output("c1", "{}")).spawned == OTHER
    assert call_of(tmp_path, spawn, output("c1", f'{{"agent_id":"{OTHER}"}}')).spawned == OTHER
    assert call_of(tmp_path, spawn, output("c1", "limit reached")).spawned is None


def test_talking_to_an_agent_is_not_spawning_it(tmp_path: Path) -> None:
    activity = event("sub_agent_activity", event_id="c1", agent_thread_id=OTHER, kind="interacted")
    assert call_of(tmp_path, call("c1", "send_message"), activity, output("c1")).spawned is None


def test_a_guardians_verdict_is_told_with_the_call(tmp_path: Path) -> None:
    verdict = event("guardian_assessment", id="g1", target_item_id="c1", status="approved", risk_level="low")
    assert call_of(tmp_path, call("c1"), verdict, output("c1")).detail["events"][0]["risk_level"] == "low"


def test_an_outcome_without_any_call_is_noted_with_the_turn(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, event("exec_command_end", call_id="x", command=["ls"], exit_code=0))
    assert turn.metadata["notes"] == [{"event": "exec_command_end", "call_id": "x", "command": ["ls"], "exit_code": 0}]


def test_cached_input_is_part_of_the_input_and_reasoning_of_the_output(tmp_path: Path) -> None:
    turn = turn_of(tmp_path, said("b"), tokens(130, given=100, cached=60, out=30, thinking=20))
    assert messages(turn)[1].tokens == Tokens(input=40, output=30, cached=60, cache_write=None, reasoning=20)


def test_written_cache_is_part_of_the_input_too(tmp_path: Path) -> None:
    last = {**usage(130, 100, 60, 30), "cache_write_input_tokens": 10}
    report = event("token_count", info={"total_token_usage": usage(130), "last_token_usage": last})
    found = messages(turn_of(tmp_path, said("b"), report))[1].tokens
    assert found == Tokens(input=30, output=30, cached=60, cache_write=10, reasoning=0)


def test_a_repeated_total_is_no_new_request(tmp_path: Path) -> None:
    again = tokens(10, given=8, out=2)
    turn = turn_of(tmp_path, said("b"), again, again, user("c"), said("d"), tokens(15, given=4, out=1), again)
    costs = [each.tokens for each in messages(turn) if each.role == MessageRole.ASSISTANT]
    assert [each and each.input for each in costs] == [8, 12]


def test_rate_limits_alone_are_no_cost(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), user("a"), said("b"), event("token_count", info=None, rate_limits={})])
    assert messages(found.turns[0])[1].tokens is None
    assert found.report.kept == {"event_msg/token_count": 1}


def test_codex_0_39_reports_before_the_response(tmp_path: Path) -> None:
    lines = [
        meta(cli_version="0.39.0"),
        user("a"),
        told("a"),
        context(),
        event("agent_message", message="b"),
        tokens(10, given=8, out=2),
        said("b"),
        call("c1"),
        output("c1"),
        context(),
        tokens(30, given=15, out=5),
        said("c"),
    ]
    found = messages(import_lines(tmp_path, lines).turns[0])
    assert [each.tokens and each.tokens.input for each in found] == [None, 8, 15]


def test_a_report_without_its_own_response_goes_to_the_nearest(tmp_path: Path) -> None:
    hidden = [tokens(10, given=8, out=2), tokens(30, given=15, out=5)]
    turn = turn_of(tmp_path, said("b"), *hidden, user("<environment_context>"), said("c"), tokens(40, given=9, out=1))
    assert [each.tokens and each.tokens.input for each in messages(turn)] == [None, 23, 9]


def test_the_cost_of_a_summary_is_told_with_its_compaction(tmp_path: Path) -> None:
    lines = [started(ONE), tokens(10, given=8, out=2), line("compacted", {"message": "s"}), complete(ONE)]
    turn = import_lines(tmp_path, [meta(), *lines]).turns[0]
    assert turn.compaction is not None
    assert shown(turn) == ["assistant: "]
    assert messages(turn)[0].tokens == Tokens(input=8, output=2, cached=0, reasoning=0)


def test_a_report_without_any_response_is_one_without_a_word(tmp_path: Path) -> None:
    found = import_lines(tmp_path, [meta(), tokens(10, given=8, out=2), event("error", message="rate limit")])
    assert shown(found.turns[0]) == ["assistant: "]
    assert found.turns[0].error == "rate limit"
    assert found.report.mapped["event_msg/token_count"] == 1


def test_a_record_of_usage_stands_in_for_missing_reports(tmp_path: Path) -> None:
    record = line("token_usage_record", {"response_id": "resp_1", "usage": usage(10, 8, 0, 2)})
    alone = messages(turn_of(tmp_path, said("b"), record))[1].tokens
    both = messages(turn_of(tmp_path, said("b"), record, tokens(10, given=8, out=2)))[1].tokens
    assert alone == both == Tokens(input=8, output=2, cached=0, reasoning=0)


def test_usage_of_the_wrong_types_is_no_cost(tmp_path: Path) -> None:
    for last in ("x", {"input_tokens": "8"}, {"input_tokens": [1], "output_tokens": None}, 7):
        report = event("token_count", info={"total_token_usage": [1], "last_token_usage": last})
        assert messages(turn_of(tmp_path, said("b"), report))[1].tokens is None


def test_what_a_settings_event_says_holds_from_then_on(tmp_path: Path) -> None:
    settings = {"model": "gpt-9", "model_provider_id": "else", "cwd": "/new"}
    lines = [
        meta(),
        user("a"),
        said("b"),
        event("thread_settings_applied", thread_settings=settings),
        user("c"),
        said("d"),
    ]
    found = import_lines(tmp_path, lines)
    assert (messages(found.turns[1])[1].model, messages(found.turns[1])[1].provider) == ("gpt-9", "else")
    assert found.turns[1].workspace == "/new"


def test_instructions_are_told_when_they_change(tmp_path: Path) -> None:
    one, two = (context(user_instructions=words) for words in ("be kind", "be brief"))
    lines = [meta(base_instructions={"text": "base"}), user("a"), one, said("b"), one, user("c"), said("d"), two]
    found = import_lines(tmp_path, [*lines, user("e"), said("f")])
    contexts = [messages(turn)[0].context for turn in found.turns]
    assert contexts == [
        {"base_instructions": "base", "user_instructions": "be kind"},
        None,
        {"user_instructions": "be brief"},
    ]


def test_the_state_of_the_world_is_context(tmp_path: Path) -> None:
    world = line("world_state", {"full": True, "state": {"agents_md": {"text": "rules"}}})
    assert messages(turn_of(tmp_path, world, said("b")))[0].context["world_state"][0]["full"] is True


def test_fields_that_nobody_knows_are_kept_with_the_message(tmp_path: Path) -> None:
    found = messages(turn_of(tmp_path, said("b", aura="blue")))[1]
    assert found.metadata == {"fields": {"aura": "blue"}}
