"""Tool parts of opencode: outcomes, files, diagnostics, subagents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tests.exchange.fixtures.opencode.sessions import AT, assistant, called, said, text, tool, turns_of, user
from weft.exchange.importers.port import NativeCall
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, LintNote


def call_of(folder: Path, part: Any) -> NativeCall:
    (turn,) = turns_of(folder, user("msg_01", text("Go.")), assistant("msg_02", "msg_01", part))
    (call,) = called(turn)
    return call


def test_a_completed_call_has_arguments_result_times_and_detail(tmp_path: Path) -> None:
    call = call_of(
        tmp_path,
        tool(
            input={"command": "ls"},
            output="a\nb",
            title="List",
            metadata={"exit": 0, "output": "a\nb", "truncated": False},
        ),
    )
    assert (call.id, call.name, call.arguments, call.result) == ("call_1", "bash", {"command": "ls"}, "a\nb")
    assert (call.status, call.error, call.at, call.done) == (ToolCallStatus.OK, None, AT + 10, AT + 20)
    assert call.detail == {"title": "List", "metadata": {"exit": 0}}


def test_a_failed_call_has_its_error(tmp_path: Path) -> None:
    call = call_of(tmp_path, tool(status="error", error="no such file"))
    assert (call.status, call.error, call.result) == (ToolCallStatus.ERROR, "no such file", UNSET)


@pytest.mark.parametrize(
    ("state", "status", "result"),
    [
        ({"error": "Tool execution aborted"}, ToolCallStatus.INTERRUPTED, UNSET),
        ({"error": "x", "metadata": {"interrupted": True, "output": "half"}}, ToolCallStatus.INTERRUPTED, "half"),
        ({"error": "The user rejected permission to use this tool."}, ToolCallStatus.CANCELED, UNSET),
    ],
)
def test_calls_that_were_stopped_or_refused_say_so(tmp_path: Path, state: Any, status: Any, result: Any) -> None:
    call = call_of(tmp_path, tool(status="error", **state))
    assert (call.status, call.result) == (status, result)


def test_a_running_call_has_no_outcome(tmp_path: Path) -> None:
    call = call_of(tmp_path, tool(status="running", time={"start": AT}))
    assert (call.status, call.result, call.error, call.done) == (None, UNSET, None, None)


def test_arguments_that_are_still_written_are_their_text_so_far(tmp_path: Path) -> None:
    call = call_of(tmp_path, tool(status="pending", input={}, raw='{"comm'))
    assert call.arguments == '{"comm'


def test_a_result_with_attachments_keeps_them(tmp_path: Path) -> None:
    attachment = {"id": "prt_x", "type": "file", "mime": "image/png", "url": "data:image/png;base64,AA"}
    call = call_of(tmp_path, tool(attachments=[attachment]))
    assert call.result == {
        "output": "done",
        "attachments": [{"mime": "image/png", "url": "data:image/png;base64,AA"}],
    }


def test_a_task_names_the_session_that_it_started(tmp_path: Path) -> None:
    call = call_of(tmp_path, tool("task", metadata={"sessionId": "ses_child", "parentSessionId": "ses_one"}))
    assert call.spawned == "ses_child"


@pytest.mark.parametrize(
    ("name", "state", "notes"),
    [
        (
            "read",
            {"input": {"filePath": "/a"}, "metadata": {"display": {"type": "file", "lineStart": 3, "lineEnd": 9}}},
            [FileNote(kind=FileKind.READ, path="/a", line_start=3, line_end=9)],
        ),
        (
            "read",
            {"input": {"filePath": "/a", "offset": 4}, "output": "<file>\n00005| x"},
            [FileNote(kind=FileKind.READ, path="/a", line_start=5)],
        ),
        ("read", {"input": {"filePath": "/a"}}, [FileNote(kind=FileKind.READ, path="/a")]),
        (
            "read",
            {"input": {"filePath": "/d"}, "metadata": {"display": {"type": "directory"}}},
            [FileNote(kind=FileKind.REFERENCED, path="/d")],
        ),
        ("edit", {"input": {"filePath": "/a"}}, [FileNote(kind=FileKind.WRITTEN, path="/a")]),
        ("write", {"input": {"filePath": "/a"}}, [FileNote(kind=FileKind.WRITTEN, path="/a")]),
        (
            "apply_patch",
            {
                "input": {
                    "patchText": "*** Begin Patch\n*** Add File: b.py \n+x\n*** Update File: c.py\n*** Move to: d.py\n"
                }
            },
            [FileNote(kind=FileKind.WRITTEN, path=path) for path in ("b.py", "c.py", "d.py")],
        ),
        (
            "apply_patch",
            {"input": {"patchText": "?"}, "metadata": {"files": [{"filePath": "/e", "movePath": "/f"}]}},
            [FileNote(kind=FileKind.WRITTEN, path="/e"), FileNote(kind=FileKind.WRITTEN, path="/f")],
        ),
        ("grep", {"input": {"pattern": "x", "path": "/src"}}, [FileNote(kind=FileKind.REFERENCED, path="/src")]),
        ("bash", {"input": {"command": "cat /a"}}, []),
        ("edit", {"input": {"filePath": "/a"}, "status": "error", "error": "no match"}, []),
    ],
)
def test_files_that_a_call_touched(tmp_path: Path, name: str, state: Any, notes: list[FileNote]) -> None:
    assert list(call_of(tmp_path, tool(name, **state)).files) == notes


def test_diagnostics_after_an_edit_are_lints_that_count_from_one(tmp_path: Path) -> None:
    span = {"start": {"line": 4, "character": 0}, "end": {"line": 4, "character": 7}}
    told = {"range": span, "severity": 1, "source": "pyright", "message": "undefined"}
    call = call_of(tmp_path, tool("edit", metadata={"diagnostics": {"/a.py": [told, {"severity": 4}]}}))
    assert call.lints == (
        LintNote(path="/a.py", message="undefined", source="pyright", start_line=5, start_col=1, end_line=5, end_col=8,
                 severity=LintSeverity.ERROR),
        LintNote(path="/a.py", severity=LintSeverity.HINT),
    )  # fmt: skip


def test_patched_files_are_written_by_the_message_unless_a_call_says_so(tmp_path: Path) -> None:
    patch = {"type": "patch", "hash": "abc", "files": ["/a", "/b", "/b", 7]}
    edit = tool("edit", input={"filePath": "/a"})
    (turn,) = turns_of(tmp_path, user("msg_01", text("Go.")), assistant("msg_02", "msg_01", edit, patch))
    assert said(turn)[1].files == (FileNote(kind=FileKind.WRITTEN, path="/b"),)


def test_snapshots_are_kept_beside_the_message(tmp_path: Path) -> None:
    steps = [
        {"type": "step-start", "snapshot": "one"},
        {"type": "step-finish", "snapshot": "two"},
        {"type": "snapshot", "snapshot": "three"},
    ]
    (turn,) = turns_of(tmp_path, user("msg_01", text("Go.")), assistant("msg_02", "msg_01", *steps))
    assert said(turn)[1].metadata["snapshots"] == ["one", "two", "three"]


def test_a_call_id_that_repeats_makes_two_calls(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path, user("msg_01", text("Go.")), assistant("msg_02", "msg_01", tool(output="1"), tool(output="2"))
    )
    assert [call.result for call in called(turn)] == ["1", "2"]
