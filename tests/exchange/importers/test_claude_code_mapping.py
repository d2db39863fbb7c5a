"""What the importer makes of the lines of one turn: parts, calls, results, files, diagnostics, cost, identity."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tests.exchange.fixtures.claude_code.lines import (
    SESSION,
    Lines,
    calls,
    image,
    messages,
    read,
    said,
    text,
    thinking,
    use,
)
from weft.exchange.importers.port import NativeCall, NativeTurn, Tokens
from weft.kernel.enums import AgentRole, FileKind, LintSeverity, MessageRole, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote, ReasoningPart, TextPart


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / f"{SESSION}.jsonl"


def only_turn(file: Path, lines: Lines) -> NativeTurn:
    file.write_bytes(lines.bytes())
    (turn,) = read(file).turns
    return turn


def call_of(file: Path, name: str, arguments: dict[str, Any], content: Any = "ok", **result: Any) -> NativeCall:
    lines = Lines().user("p1", "go").answer("a1", use("c1", name, **arguments)).result("r1", "c1", content, **result)
    (call,) = calls(only_turn(file, lines))
    return call


def test_text_thinking_and_images_are_parts_in_their_order(file: Path) -> None:
    lines = Lines().user("p1", [image("QQ=="), text("what is it?")]).answer("a1", thinking("hm"), "a letter")
    prompt, answer = messages(only_turn(file, lines))
    assert prompt.parts == (ImagePart("data:image/png;base64,QQ=="), TextPart("what is it?"))
    assert answer.parts == (ReasoningPart("hm"), TextPart("a letter"))
    assert answer.metadata["signatures"] == ["sig"]


def test_an_image_that_lies_elsewhere_keeps_its_address(file: Path) -> None:
    block = {"type": "image", "source": {"type": "url", "url": "https://example.invalid/x.png"}}
    (prompt,) = messages(only_turn(file, Lines().user("p1", [block])))
    assert prompt.parts == (ImagePart("https://example.invalid/x.png"),)


def test_thinking_of_which_only_the_signature_is_left_is_no_part(file: Path) -> None:
    _, answer = messages(only_turn(file, Lines().user("p1", "go").answer("a1", thinking(""), "done")))
    assert answer.parts == (TextPart("done"),)
    assert answer.metadata["signatures"] == ["sig"]


def test_an_unknown_block_is_kept_with_its_message(file: Path) -> None:
    block = {"type": "hologram", "beams": 3}
    prompt, answer = messages(only_turn(file, Lines().user("p1", [block, text("x")]).answer("a1", "so", block)))
    assert prompt.metadata["blocks"] == [block]
    assert answer.metadata["blocks"] == [block]
    assert said(answer) == "so"


def test_usage_repeated_on_every_line_counts_once_with_its_largest_numbers(file: Path) -> None:
    partial = {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 50}
    last = {"input_tokens": 3, "output_tokens": 70, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 9}
    details = last | {"output_tokens_details": {"thinking_tokens": 30}}
    zeros = dict.fromkeys(last, 0)
    lines = Lines().user("p1", "go")
    for number, usage in enumerate([partial, details, zeros]):
        lines.answer(f"a{number}", f"part {number}", id="m", usage=usage)
    (answer,) = messages(only_turn(file, lines), "assistant")
    assert answer.tokens == Tokens(input=3, output=70, cached=50, cache_write=9, reasoning=30)


def test_what_usage_does_not_say_stays_unknown(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "one", usage={"output_tokens": 4}).answer("a2", "two", usage=None)
    first, second = messages(only_turn(file, lines), "assistant")
    assert first.tokens == Tokens(output=4)
    assert second.tokens is None


def test_a_notice_of_the_tool_itself_is_no_answer_of_a_model(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "No response requested.", model="<synthetic>")
    (notice,) = messages(only_turn(file, lines), "assistant")
    assert (notice.model, notice.provider, notice.tokens) == (None, None, None)
    assert notice.metadata["synthetic"] is True


@pytest.mark.parametrize(("model", "provider"), [("claude-opus-5", "anthropic"), ("glm-4.7", None), ("qwen3", None)])
def test_the_provider_is_told_by_the_model_alone(file: Path, model: str, provider: str | None) -> None:
    (answer,) = messages(only_turn(file, Lines().user("p1", "go").answer("a1", "hi", model=model)), "assistant")
    assert (answer.model, answer.provider) == (model, provider)


def test_the_reason_to_stop_is_that_of_the_last_line_that_has_one(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "x", id="m").answer("a2", "y", id="m", stop_reason="end_turn")
    (answer,) = messages(only_turn(file, lines.answer("a3", "z", id="m")), "assistant")
    assert answer.finish_reason == "end_turn"


def test_a_call_has_arguments_result_and_times(file: Path) -> None:
    call = call_of(file, "Bash", {"command": "ls"}, "a.py", toolUseResult={"stdout": "a.py", "stderr": "", "code": 0})
    assert (call.id, call.name, call.arguments) == ("c1", "Bash", {"command": "ls"})
    assert (call.result, call.error, call.status) == ("a.py", None, ToolCallStatus.OK)
    assert call.at is not None
    assert call.done == call.at + 1000
    assert call.detail == {"stdout": "a.py", "stderr": "", "code": 0}


def test_a_result_without_the_flag_is_a_success(file: Path) -> None:
    assert call_of(file, "Bash", {}).status is ToolCallStatus.OK
    assert call_of(file, "Bash", {}, is_error=False).status is ToolCallStatus.OK


def test_an_error_is_told_by_the_text_the_model_was_given(file: Path) -> None:
    call = call_of(file, "Bash", {}, "Exit code 1", is_error=True, toolUseResult="Error: Exit code 1")
    assert (call.result, call.error, call.status, call.detail) == (UNSET, "Exit code 1", ToolCallStatus.ERROR, None)
    late = call_of(file, "Bash", {}, [text("Command timed out after 2m")], is_error=True)
    assert (late.error, late.status) == ("Command timed out after 2m", ToolCallStatus.TIMEOUT)


@pytest.mark.parametrize("detail", ["Error: no", [{"type": "text", "text": "a"}], {"stdout": "a"}, 7, None])
def test_what_a_tool_tells_beside_its_result_may_be_of_any_type(file: Path, detail: Any) -> None:
    call = call_of(file, "Bash", {}, "ok", toolUseResult=detail)
    assert (call.result, call.status) == ("ok", ToolCallStatus.OK)


def test_a_result_in_blocks_is_kept_as_json(file: Path) -> None:
    content = [text("look"), image()]
    assert call_of(file, "Read", {}, content).result == content
    failed = call_of(file, "Read", {}, content, is_error=True)
    assert (failed.result, failed.error) == (content, "look")


def test_a_result_without_content_is_an_outcome_without_output(file: Path) -> None:
    call = call_of(file, "Bash", {}, None)
    assert (call.result, call.status) == (UNSET, ToolCallStatus.OK)


def test_a_call_that_was_never_answered_has_no_status(file: Path) -> None:
    (call,) = calls(only_turn(file, Lines().user("p1", "go").answer("a1", use("c1"))))
    assert (call.status, call.done, call.result) == (None, None, UNSET)


def test_calls_and_results_without_ids_find_each_other_by_order(file: Path) -> None:
    block = {"type": "tool_use", "name": "bash", "input": {"command": "ls"}}
    lines = Lines().user("p1", "go").answer("a1", block, block)
    for number in (1, 2):
        lines.user(f"r{number}", [{"type": "tool_result", "content": f"out {number}"}], parent="a1")
    found = calls(only_turn(file, lines))
    assert [(call.id, call.result) for call in found] == [("a1:0", "out 1"), ("a1:1", "out 2")]


def test_a_result_whose_call_is_not_there_is_a_message_of_its_tool(file: Path) -> None:
    lines = Lines().user("p1", "go").result("r1", "gone", [text("found"), image()])
    (message,) = messages(only_turn(file, lines), "tool")
    assert said(message) == "found"
    assert message.metadata["tool_use_id"] == "gone"
    assert message.metadata["content"][1]["type"] == "image"


def test_words_beside_a_result_are_a_message(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1"))
    lines.user(
        "r1", [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}, text("[Request interrupted by user]")]
    )
    turn = only_turn(file, lines)
    assert turn.interrupted
    assert said(messages(turn, "user")[1]) == "[Request interrupted by user]"


def test_calls_that_the_provider_ran_itself_are_calls(file: Path) -> None:
    block = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result"}]}
    lines = Lines().user("p1", "go").answer("a1", block, id="m").answer("a2", result, result, id="m")
    turn = only_turn(file, lines)
    (call,) = calls(turn)
    assert (call.name, call.result) == ("web_search", [{"type": "web_search_result"}])
    assert messages(turn)[1].metadata["blocks"] == [result]


def test_what_is_told_already_is_left_out_of_the_detail(file: Path) -> None:
    body = "line\n" * 40
    detail = {"type": "create", "filePath": "/x", "content": body, "originalFile": "y" * 90, "structuredPatch": []}
    call = call_of(file, "Write", {"file_path": "/x", "content": body}, toolUseResult=detail)
    assert call.detail == {"type": "create", "filePath": "/x", "structuredPatch": []}


def test_a_read_file_is_noted_with_its_lines(file: Path) -> None:
    detail = {"type": "text", "file": {"filePath": "/x.py", "content": "...", "startLine": 5, "numLines": 3}}
    call = call_of(file, "Read", {"file_path": "/x.py"}, toolUseResult=detail)
    assert call.files == (FileNote(kind=FileKind.READ, path="/x.py", line_start=5, line_end=7),)
    assert call.detail == {"type": "text", "file": {"filePath": "/x.py", "startLine": 5, "numLines": 3}}
    bare = call_of(file, "Read", {"file_path": "/x.py", "offset": 10, "limit": 5})
    assert bare.files == (FileNote(kind=FileKind.READ, path="/x.py", line_start=10, line_end=14),)


@pytest.mark.parametrize("name", ["Edit", "MultiEdit", "Write"])
def test_a_written_file_is_noted_with_the_lines_that_changed(file: Path, name: str) -> None:
    hunk = {"oldStart": 4, "oldLines": 4, "newStart": 4, "newLines": 5, "lines": [" a", " b", "-c", "+d", "+e", " f"]}
    detail = {"filePath": "/x.py", "structuredPatch": [hunk, {"newStart": 40, "newLines": 2}]}
    call = call_of(file, name, {"file_path": "/x.py"}, toolUseResult=detail)
    assert [(note.kind, note.line_start, note.line_end) for note in call.files] == [
        (FileKind.WRITTEN, 6, 7),
        (FileKind.WRITTEN, 40, 41),
    ]


def test_other_ways_of_writing_are_noted(file: Path) -> None:
    created = call_of(file, "Write", {"file_path": "/x", "content": "a\nb\n"}, toolUseResult={"type": "create"})
    assert created.files == (FileNote(kind=FileKind.WRITTEN, path="/x", line_start=1, line_end=2),)
    notebook = call_of(file, "NotebookEdit", {"notebook_path": "/x.ipynb", "new_source": "1"})
    assert notebook.files == (FileNote(kind=FileKind.WRITTEN, path="/x.ipynb"),)


@pytest.mark.parametrize("name", ["Grep", "Glob"])
def test_found_files_are_noted(file: Path, name: str) -> None:
    call = call_of(file, name, {"pattern": "x"}, toolUseResult={"filenames": ["/a", "/b", 7], "numFiles": 2})
    assert [(note.kind, note.path) for note in call.files] == [(FileKind.REFERENCED, "/a"), (FileKind.REFERENCED, "/b")]


def test_a_call_that_failed_touched_nothing(file: Path) -> None:
    assert call_of(file, "Edit", {"file_path": "/x"}, "no such file", is_error=True).files == ()


def test_attachments_are_the_context_of_the_message_they_stand_at(file: Path) -> None:
    lines = Lines().attach("x1", "hook_additional_context", None, content=["rules"]).user("p1", "go")
    lines.attach("x2", "nested_memory", path="/CLAUDE.md", content={"content": "be kind"}).answer("a1", use("c1"))
    lines.result("r1", "c1").attach("x3", "holo_reminder", text="soon").answer("a2", "done")
    prompt, first, second = messages(only_turn(file, lines))
    assert [each["type"] for each in prompt.context["attachments"]] == ["hook_additional_context", "nested_memory"]
    assert [each["type"] for each in first.context["attachments"]] == ["holo_reminder"]
    assert second.context is None
    assert [note.path for note in prompt.files] == ["/CLAUDE.md"]


def test_pointed_at_files_are_noted_with_their_lines(file: Path) -> None:
    content = {"type": "text", "file": {"filePath": "/x.py", "content": "...", "numLines": 9, "startLine": 2}}
    lines = Lines().user("p1", "see @x.py").attach("x1", "file", filename="/x.py", content=content)
    lines.attach("x2", "selected_lines_in_ide", filename="/y.py", lineStart=3, lineEnd=4, content="...")
    lines.attach("x3", "opened_file_in_ide", filename="/z.py").attach("x4", "edited_text_file", filename="/w.py")
    lines.attach("x5", "file", filename="/pic.png", content={"type": "image", "file": {"base64": "QQ=="}})
    (prompt,) = messages(only_turn(file, lines))
    assert [(note.kind, note.path, note.line_start, note.line_end) for note in prompt.files] == [
        (FileKind.ATTACHED, "/x.py", 2, 10),
        (FileKind.ATTACHED, "/y.py", 3, 4),
        (FileKind.REFERENCED, "/z.py", None, None),
        (FileKind.REFERENCED, "/w.py", None, None),
        (FileKind.ATTACHED, "/pic.png", None, None),
    ]


def test_what_an_editor_says_in_front_of_a_prompt_is_noted(file: Path) -> None:
    selected = "<ide_selection>The user selected the lines 3 to 5 from /x.py:\ncode\n\nThis may ...</ide_selection>"
    opened = "<ide_opened_file>The user opened the file /y.py in the IDE. This may ...</ide_opened_file>"
    (prompt,) = messages(only_turn(file, Lines().user("p1", [text(selected), text(opened), text("why?")])))
    assert prompt.files == (
        FileNote(kind=FileKind.ATTACHED, path="/x.py", line_start=3, line_end=5),
        FileNote(kind=FileKind.REFERENCED, path="/y.py"),
    )
    assert len(prompt.parts) == 3


def test_diagnostics_count_from_one_and_know_hints(file: Path) -> None:
    span = {"start": {"line": 0, "character": 4}, "end": {"line": 1, "character": 0}}
    found = [
        {"message": "bad", "severity": "Error", "source": "ruff", "range": span, "code": "E1"},
        {"message": "meh", "severity": "Hint"},
        {"message": "?", "severity": "Strange", "range": {"start": {"line": "x"}}},
        "not one",
    ]
    lines = Lines().user("p1", "go")
    lines.attach(
        "x1", "diagnostics", files=[{"uri": "file:///a%20b.py", "diagnostics": found}, {"diagnostics": None}, 3]
    )
    (prompt,) = messages(only_turn(file, lines))
    assert prompt.lints[0] == LintNote(
        path="/a b.py",
        message="bad",
        source="ruff",
        start_line=1,
        start_col=5,
        end_line=2,
        end_col=1,
        severity=LintSeverity.ERROR,
    )
    assert [note.severity for note in prompt.lints[1:]] == [LintSeverity.HINT, None, None]


def test_tools_made_known_add_up_along_the_thread(file: Path) -> None:
    lines = Lines().user("p1", "go").attach("x1", "deferred_tools_delta", addedNames=["A", "B"], removedNames=[])
    lines.answer("a1", "yes").user("p2", "go").attach(
        "x2", "deferred_tools_delta", addedNames=["C"], removedNames=["A"]
    )
    lines.answer("a2", "yes").user("p3", "again", parent="a1")
    file.write_bytes(lines.bytes())
    assert [turn.tools for turn in read(file).turns] == [("A", "B"), ("B", "C"), ("A", "B")]


def test_permissions_are_those_of_the_prompt_or_else_of_the_session(file: Path) -> None:
    lines = Lines().raw(type="permission-mode", permissionMode="default", sessionId=SESSION)
    lines.raw(type="mode", mode="normal", sessionId=SESSION).user("p1", "go", permissionMode="plan").answer("a1", "yes")
    lines.raw(type="permission-mode", permissionMode="auto", sessionId=SESSION).user("p2", "go")
    lines.attach("x1", "command_permissions", allowedTools=["Bash(ls:*)"])
    file.write_bytes(lines.bytes())
    first, second = read(file).turns
    assert first.permissions == {"mode": "plan"}
    assert second.permissions == {"mode": "auto", "allowedTools": ["Bash(ls:*)"]}
    assert first.config == {"mode": "normal"}


def test_times_places_and_versions_are_those_of_the_lines(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "done", version="2.1.201", timestamp="2026-08-01T11:59:00.000Z")
    turn = only_turn(file, lines)
    assert turn.started == turn.ended == 1785585601000
    assert messages(turn)[1].at == 1785585540000
    assert (turn.workspace, turn.git_branch, turn.version, turn.role) == ("/shop", "main", "2.1.201", AgentRole.UNIFIED)


@pytest.mark.parametrize("stamp", ["2026-08-01T12:00:00", "yesterday", 1705315200])
def test_a_time_without_a_zone_or_sense_is_kept_in_its_own_words(file: Path, stamp: Any) -> None:
    turn = only_turn(file, Lines().user("p1", "go", timestamp=stamp))
    (prompt,) = messages(turn)
    assert (prompt.at, prompt.literal_time, turn.started, turn.literal_time) == (None, str(stamp), None, str(stamp))


def test_copies_of_a_turn_have_equal_records(file: Path, tmp_path: Path) -> None:
    def session(name: str, **common: Any) -> Lines:
        lines = (
            Lines(name, **common).user("p1", "go").answer("a1", thinking("hm"), use("c1"), usage=common.get("usage"))
        )
        return lines.result("r1", "c1", toolUseResult=common.get("told")).answer("a2", "done")

    one, other = (
        session("one"),
        session("other", cwd="/else", gitBranch="x", version="9", slug="s", usage={}, told={"a": 1}),
    )
    for line in other.lines:
        line["timestamp"] = "2027-01-01T00:00:00.000Z"
        for block in line["message"]["content"] if isinstance(line["message"]["content"], list) else ():
            block |= {"cache_control": None} | ({"is_error": False} if block["type"] == "tool_result" else {})
    other.attach("x1", "hook_success", content="told")
    turns = []
    for name, lines in (("a.jsonl", one), ("b.jsonl", other)):
        (tmp_path / name).write_bytes(lines.bytes())
        turns += read(tmp_path / name).turns
    assert turns[0].key == turns[1].key
    assert turns[0].records == turns[1].records


@pytest.mark.parametrize(
    "change",
    [
        {"uuid": "other"},
        {"message": {"role": "user", "content": "go!"}},
        {"message": {"role": "user", "content": [text("go"), image()]}},
    ],
)
def test_a_turn_that_says_something_else_has_other_records(file: Path, change: dict[str, Any]) -> None:
    lines = Lines().user("p1", "go").answer("a1", "done")
    before = only_turn(file, lines).records
    lines.lines[0] |= change
    lines.lines[1]["parentUuid"] = lines.lines[0]["uuid"]
    assert only_turn(file, lines).records != before


def test_a_text_and_one_block_of_it_are_the_same_record(file: Path) -> None:
    assert (
        only_turn(file, Lines().user("p1", "go")).records == only_turn(file, Lines().user("p1", [text("go")])).records
    )


def test_texts_that_no_encoding_takes_are_read(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", use("c1", x="REPLACED"))
    file.write_bytes(lines.bytes().replace(b"REPLACED", b"\\ud800").replace(b'"go"', b'"\xff"'))
    found = read(file)
    assert calls(found.turns[0])[0].arguments == {"x": "\ud800"}
    assert len(found.turns[0].records) == 2


def test_values_nested_too_deeply_become_text(file: Path) -> None:
    file.write_bytes(Lines().user("p1", "go").answer("a1", use("c1", x="DEEP")).bytes())
    nested = (b"[" * 400) + b'"x"' + (b"]" * 400)
    file.write_bytes(file.read_bytes().replace(b'"DEEP"', nested))
    (call,) = calls(read(file).turns[0])
    assert isinstance(call.arguments, str)


def test_gemini_parts_are_read_as_messages(file: Path) -> None:
    lines = Lines()
    lines.add("user", "p1", message={"role": "user", "parts": [{"text": "look"}]})
    parts = [
        {"text": "hm", "thought": True},
        {"functionCall": {"id": "c1", "name": "read_file", "args": {"path": "/x"}}},
    ]
    usage = {"promptTokenCount": 12, "cachedContentTokenCount": 2, "candidatesTokenCount": 4, "thoughtsTokenCount": 1}
    lines.add("assistant", "a1", message={"role": "model", "parts": parts}, model="coder", usageMetadata=usage)
    response = {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "data"}}}
    lines.add("tool_result", "r1", message={"role": "user", "parts": [response]}, toolCallResult={"status": "success"})
    lines.add("assistant", "a2", message={"role": "model", "parts": [{"text": "seen"}]}, model="coder")
    turn = only_turn(file, lines)
    (call,) = calls(turn)
    assert (call.name, call.arguments, call.result) == ("read_file", {"path": "/x"}, "data")
    _, first, second = messages(turn)
    assert (first.parts, first.model, said(second)) == ((ReasoningPart("hm"),), "coder", "seen")
    assert first.tokens == Tokens(input=10, output=5, cached=2, reasoning=1)


def test_calls_on_lines_of_their_own_belong_to_the_answer_before(file: Path) -> None:
    lines = Lines().user("p1", "go").answer("a1", "writing")
    lines.add(
        "tool", "t1", message={"role": "tool", "tool_name": "write", "tool_input": '{"a":1}', "tool_output": "ok"}
    )
    lines.add("tool_use", "t2", name="bash", input={"command": "ls"}).add("tool_result", "t3", name="bash", output="x")
    lines.answer("a2", use("c3")).add("tool_result", "t4", message={"role": "tool", "content": "y"})
    turn = only_turn(file, lines)
    assert [(call.id, call.name, call.result) for call in calls(turn)] == [
        ("t1", "write", "ok"),
        ("t2", "bash", "x"),
        ("c3", "Bash", "y"),
    ]
    assert len(messages(turn)) == 3


@pytest.mark.parametrize("message", ["just text", ["just text", 5], {"role": "user", "content": 12345}])
def test_messages_of_unexpected_types_keep_what_they_say(file: Path, message: Any) -> None:
    (prompt,) = messages(only_turn(file, Lines().add("user", "p1", message=message)))
    assert prompt.role is MessageRole.USER
    assert said(prompt) == "just text" or prompt.metadata["blocks"] == [{"type": "?", "value": 12345}]


@pytest.mark.parametrize("message", [None, {}, {"role": "user", "content": None}, {"role": "user", "content": []}])
def test_a_user_line_that_says_nothing_is_only_kept(file: Path, message: Any) -> None:
    file.write_bytes(Lines().user("p1", "go").add("user", "x1", message=message).answer("a1", "yes").bytes())
    found = read(file)
    assert found.keys == ["p1"]
    assert found.report.kept["user"] == 1
