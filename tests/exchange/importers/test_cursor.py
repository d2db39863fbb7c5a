"""Composers and their bubbles as turns, messages and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tests.exchange.fixtures.cursor.sessions import (
    AT,
    COMPOSER,
    FOLDER,
    answer,
    composer,
    dialogue,
    read,
    read_rows,
    rows_of,
    session_rows,
    stamp,
    thought,
    tool,
    uri,
    user,
    write_state,
)
from tests.exchange.reading import called, said, texts
from weft.exchange.importers.port import NativeCall, NativeTurn, Tokens
from weft.kernel.enums import AgentRole, FileKind, LintSeverity, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, ReasoningPart, TextPart


def turns(folder: Path, *bubbles: Any, **fields: Any) -> list[NativeTurn]:
    return read_rows(folder, session_rows(*bubbles, **fields)).turns


def one_call(folder: Path, **former: Any) -> NativeCall:
    (turn,) = turns(folder, user("b1", "Go."), tool("b2", **former))
    (call,) = called(turn)
    return call


def test_a_prompt_and_all_up_to_the_next_one_are_a_turn(tmp_path: Path) -> None:
    first, second = turns(tmp_path, *dialogue())
    assert (first.key, second.key, second.parent) == ("b1", "b5", 0)
    assert [texts(each) for each in said(first)] == [["What is this?"], ["Hm."], ["A test."]]
    assert first.names == ("b1", "b2", "b3", "b4")
    assert (first.started, first.ended) == (AT, AT + 3000)
    assert [each.native for each in said(second)] == ["b5", "b6"]


def test_a_session_tells_its_name_folder_and_state(tmp_path: Path) -> None:
    session = read_rows(tmp_path, session_rows(*dialogue(), contextTokensUsed=900, createdOnBranch="main")).session
    assert (session.id, session.title, session.workspace, session.created) == (COMPOSER, "A session", FOLDER, AT)
    assert session.git_branch == "main"
    assert session.metadata["contextTokensUsed"] == 900
    assert session.metadata["model"] == {"modelName": "large", "maxMode": False}


def test_thoughts_are_reasoning_and_their_signature_lies_beside(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "?"), thought("b2", "Hm."), answer("b3", "!", thinking="bare"))
    _, thinking, bare = said(turn)
    assert thinking.parts == (ReasoningPart("Hm."),)
    assert thinking.metadata["signature"] == "sig"
    assert bare.parts == (ReasoningPart("bare"), TextPart("!"))


def test_a_call_without_words_belongs_to_the_message_before_it(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "?"), answer("b2", "Look."), tool("b3"), tool("b4"), answer("b5", "So."))
    kinds = ["message" if hasattr(item, "parts") else "call" for item in turn.items]
    assert kinds == ["message", "message", "call", "call", "message"]


def test_a_call_that_comes_first_has_an_answer_of_its_own(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "?"), tool("b2"))
    assert [message.role for message in said(turn)] == [MessageRole.USER, MessageRole.ASSISTANT]
    assert said(turn)[1].native == "b2"


def test_arguments_and_results_are_the_json_in_their_texts(tmp_path: Path) -> None:
    call = one_call(tmp_path)
    assert (call.id, call.name, call.status) == ("call_b2", "read_file_v2", ToolCallStatus.OK)
    assert call.arguments == {"path": "/shop/a.py"}
    assert call.result == {"contents": "x = 1"}
    assert call.detail == {"bubble": "b2", "params": {"targetFile": "/shop/a.py"}}


def test_texts_that_are_no_json_stay_texts(tmp_path: Path) -> None:
    call = one_call(tmp_path, rawArgs="{broken", result="plain words")
    assert (call.arguments, call.result) == ("{broken", "plain words")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("completed", ToolCallStatus.OK),
        ("error", ToolCallStatus.ERROR),
        ("cancelled", ToolCallStatus.CANCELED),
        ("loading", None),
    ],
)
def test_the_state_of_a_call_is_its_status(tmp_path: Path, status: str, expected: ToolCallStatus | None) -> None:
    assert one_call(tmp_path, status=status).status is expected


def test_a_call_that_never_ran_has_no_outcome(tmp_path: Path) -> None:
    call = one_call(tmp_path, status=None, result=None)
    assert (call.status, call.result, call.files) == (None, UNSET, ())


def test_a_command_that_a_person_refused_is_cancelled(tmp_path: Path) -> None:
    call = one_call(tmp_path, name="run_terminal_command_v2", result='{"rejected":true}', userDecision="rejected")
    assert call.status is ToolCallStatus.CANCELED
    assert call.detail["userDecision"] == "rejected"


def test_an_error_says_what_the_model_was_told(tmp_path: Path) -> None:
    told = '{"clientVisibleErrorMessage":"no","modelVisibleErrorMessage":"File not found"}'
    assert one_call(tmp_path, status="error", error=told, result=None).error == "File not found"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read_file", '{"path":"a.py","startLineOneIndexed":3,"endLineOneIndexedInclusive":9}', (FileKind.READ, 3, 9)),
        ("read_file_v2", '{"path":"a.py","offset":10,"limit":5}', (FileKind.READ, 10, 14)),
        ("read_file", '{"target_file":"a.py","should_read_entire_file":true,"offset":1}', (FileKind.READ, None, None)),
        ("edit_file_v2", '{"relativeWorkspacePath":"a.py"}', (FileKind.WRITTEN, None, None)),
        ("search_replace", '{"file_path":"a.py","old_string":"x"}', (FileKind.WRITTEN, None, None)),
        ("apply_patch", '"*** Begin Patch\\n*** Update File: a.py\\n@@\\n-x\\n"', (FileKind.WRITTEN, None, None)),
        ("delete_file", '{"path":"a.py"}', (FileKind.WRITTEN, None, None)),
        ("list_dir", '{"directoryPath":"a.py"}', (FileKind.REFERENCED, None, None)),
    ],
)  # fmt: skip
def test_calls_tell_which_files_they_touched(tmp_path: Path, name: str, arguments: str, expected: Any) -> None:
    (note,) = one_call(tmp_path, name=name, rawArgs=arguments, params="{}").files
    assert note.path == "a.py"
    assert (note.kind, note.line_start, note.line_end) == expected


def test_a_call_that_failed_touched_no_file(tmp_path: Path) -> None:
    assert one_call(tmp_path, name="edit_file_v2", status="error").files == ()


def test_tools_at_hand_are_told_by_name(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "?", supportedTools=[5, 38, 999]), answer("b2", "!"))
    assert turn.tools == ("edit_file_v2", "read_file", "tool:999")
    assert turn.toolset == "agent"


def test_a_prompt_brings_files_selections_images_and_rules(tmp_path: Path) -> None:
    context = {
        "fileSelections": [{"uri": uri("/shop/a.py")}],
        "selections": [{"uri": uri("/shop/b.py"), "range": {"selectionStartLineNumber": 9, "positionLineNumber": 4}}],
        "selectedImages": [{"path": "/shop/shot.png", "uuid": "i1"}],
        "cursorRules": [{"filename": "style.mdc"}],
    }
    images = [{"data": {"0": 137, "1": 80, "2": 78, "3": 71}}]
    bubble = user("b1", "See", context=context, images=images, relevantFiles=["c.py"])
    prompt = said(turns(tmp_path, bubble, answer("b2", "!"))[0])[0]
    assert prompt.parts == (TextPart("See"), ImagePart("data:image/png;base64,iVBORw=="))
    assert set(prompt.files) == {
        FileNote(kind=FileKind.ATTACHED, path="/shop/a.py"),
        FileNote(kind=FileKind.ATTACHED, path="/shop/b.py", line_start=4, line_end=9),
        FileNote(kind=FileKind.ATTACHED, path="/shop/shot.png"),
        FileNote(kind=FileKind.REFERENCED, path="c.py"),
    }
    assert prompt.context["cursorRules"] == [{"filename": "style.mdc"}]


def test_diagnostics_come_from_the_request_of_a_prompt(tmp_path: Path) -> None:
    lines = {"startPosition": {"line": 3, "column": 1}, "endPosition": {"line": 3, "column": 9}}
    errors = [{"message": "unused", "severity": "DIAGNOSTIC_SEVERITY_WARNING", "source": "ruff", "range": lines}]
    request = {"multiFileLinterErrors": [{"relativeWorkspacePath": "a.py", "errors": errors}], "cursorRules": ["r"]}
    rows = session_rows(user("b1", "?"), answer("b2", "!")) | {f"messageRequestContext:{COMPOSER}:b1": request}
    prompt = said(read_rows(tmp_path, rows).turns[0])[0]
    (lint,) = prompt.lints
    assert (lint.path, lint.message, lint.source, lint.start_line) == ("a.py", "unused", "ruff", 3)
    assert lint.severity is LintSeverity.WARNING
    assert prompt.context == {"cursorRules": ["r"]}


def test_a_subagent_is_joined_to_the_call_that_started_it(tmp_path: Path) -> None:
    child = "33333333-cccc-4ccc-8ccc-000000000003"
    parent = [user("b1", "?"), tool("b2", name="task_v2", result=f'{{"agentId":"{child}"}}')]
    info = {"parentComposerId": COMPOSER, "toolCallId": "call_b2", "subagentTypeName": "explore"}
    inside = [user("s1", "Explore."), answer("s2", "Done.")]
    rows = session_rows(*parent) | rows_of(composer(*inside, id=child, subagentInfo=info), inside)
    (one, two), _ = read(write_state(tmp_path, rows))
    assert called(one.turns[0])[0].spawned == child
    assert (two.session.parent, two.session.spawn_call, two.session.agent) == (COMPOSER, "call_b2", "explore")
    assert two.turns[0].role is AgentRole.WORKER
    assert said(two.turns[0])[0].source is MessageSource.AGENT


def test_an_answers_own_model_goes_before_the_sessions(tmp_path: Path) -> None:
    bubbles = user("b1", "?"), answer("b2", "!", modelInfo={"modelName": "tiny"}), answer("b3", "!")
    _, own, other = said(turns(tmp_path, *bubbles)[0])
    assert (own.model, other.model) == ("tiny", "large")


def test_automatic_choice_is_no_model(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "?"), answer("b2", "!"), modelConfig={"modelName": "default"})
    assert said(turn)[1].model is None
    assert turn.config["model"] == "default"


def test_a_session_that_still_generates_has_an_open_tail(tmp_path: Path) -> None:
    for fields in ({"status": "generating"}, {"generatingBubbleIds": ["b6"]}):
        assert [turn.closed for turn in turns(tmp_path, *dialogue(), **fields)] == [True, False]
    assert [turn.closed for turn in turns(tmp_path, user("b1", "?"), status="none")] == [False]


def test_a_session_that_was_stopped_ends_interrupted(tmp_path: Path) -> None:
    assert [turn.interrupted for turn in turns(tmp_path, *dialogue(), status="aborted")] == [False, True]


def test_a_failed_generation_fails_its_turn(tmp_path: Path) -> None:
    broken = answer("b2", errorDetails={"message": "Premature close", "generationUUID": "g"})
    (turn,) = turns(tmp_path, user("b1", "?"), broken)
    assert turn.error == "Premature close"


def test_files_of_suggested_versions_are_written_once_they_are_accepted(tmp_path: Path) -> None:
    blocks = [{"uri": uri("/shop/a.py"), "version": 0}, {"uri": uri("/shop/b.py"), "version": 1}]
    data = {
        "file:///shop/a.py": [{"uri": uri("/shop/a.py"), "version": 0, "status": "accepted"}],
        "file:///shop/b.py": [{"uri": uri("/shop/b.py"), "version": 1, "status": "rejected"}],
    }
    (turn,) = turns(tmp_path, user("b1", "?"), answer("b2", "So.", codeBlocks=blocks), codeBlockData=data)
    assert said(turn)[1].files == (
        FileNote(kind=FileKind.WRITTEN, path="/shop/a.py"),
        FileNote(kind=FileKind.REFERENCED, path="/shop/b.py"),
    )


def test_prompts_that_no_person_wrote_are_events(tmp_path: Path) -> None:
    (turn,) = turns(tmp_path, user("b1", "Go on.", isCapabilityIteration=True), answer("b2", "!"))
    assert said(turn)[0].source is MessageSource.EVENT


def test_archived_sessions_are_told_by_the_list(tmp_path: Path) -> None:
    headers = {"allComposers": [{"composerId": COMPOSER, "isArchived": True, "name": "Listed"}]}
    found = read_rows(tmp_path, session_rows(*dialogue(), name=None), **{"composer.composerHeaders": headers})
    assert (found.session.archived, found.session.title) == (True, "Listed")


def test_other_rows_of_a_session_are_kept_and_unknown_ones_counted(tmp_path: Path) -> None:
    rows = session_rows(*dialogue()) | {
        f"checkpointId:{COMPOSER}:k1": {"files": []},
        f"hologram:{COMPOSER}:h1": {"deep": 1},
        "agentKv:blob:00ff": {"role": "user"},
    }
    (found,), report = read(write_state(tmp_path, rows))
    assert report.kept == {"checkpointId": 1, "hologram": 1}
    assert report.unknown == {"hologram": 1}
    assert found.raw is not None
    assert b'"deep":1' in found.raw.replace(b" ", b"")
    assert b"agentKv" not in found.raw


def test_composers_that_were_only_opened_are_no_sessions(tmp_path: Path) -> None:
    empty = composer(id="99999999-0000-4000-8000-000000000009", name=None)
    rows = session_rows(*dialogue()) | rows_of(empty, [])
    (found,), report = read(write_state(tmp_path, rows))
    assert found.session.id == COMPOSER
    assert report.kept["composer.empty"] == 1
    assert found.raw is not None
    assert b"99999999" in found.raw


def test_words_that_only_the_editors_tree_holds_are_read_from_it(tmp_path: Path) -> None:
    node = {"type": "paragraph", "children": [{"type": "text", "text": "from "}, {"type": "text", "text": "the tree"}]}
    rich = {"root": {"type": "root", "children": [node, {"type": "paragraph", "children": [{"text": "two"}]}]}}
    (turn,) = turns(tmp_path, user("b1", "", richText=json.dumps(rich)), answer("b2", "!"))
    assert texts(said(turn)[0]) == ["from the tree\ntwo"]


def test_costs_are_counted_where_cursor_counted(tmp_path: Path) -> None:
    first, second = turns(tmp_path, *dialogue())
    assert [each.tokens for each in said(first)] == [None, None, None]
    assert said(second)[1].tokens == Tokens(input=30, output=4)


def test_times_come_from_the_client_where_bubbles_have_none(tmp_path: Path) -> None:
    timing = {"clientStartTime": 123.5, "clientRpcSendTime": AT + 5, "clientEndTime": AT + 8}
    (turn,) = turns(tmp_path, user("b1", "?"), answer("b2", "!", timingInfo=timing))
    assert (turn.started, turn.ended) == (AT + 5, AT + 8)
    assert said(turn)[0].at is None


def test_the_same_bubbles_in_another_session_are_the_same_turns(tmp_path: Path) -> None:
    """A duplicated chat has a new id and the old bubbles."""
    copy = "44444444-dddd-4ddd-8ddd-000000000004"
    rows = session_rows(*dialogue()) | rows_of(composer(*dialogue(), id=copy, name="Copy"), dialogue())
    (one, two), _ = read(write_state(tmp_path, rows))
    assert [turn.records for turn in one.turns] == [turn.records for turn in two.turns]
    assert stamp(0).startswith("2026-")
