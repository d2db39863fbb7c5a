"""Tool calls of pi and its relatives: outcomes, files, diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tests.exchange.fixtures.pi.sessions import (
    AT_MS,
    Line,
    assistant,
    call,
    called,
    entry,
    header,
    result,
    said,
    turns_of,
    user,
)
from weft.exchange.importers.port import NativeCall, Tokens
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, LintNote


def made(folder: Path, asked: Line, *more: Line) -> NativeCall:
    (turn,) = turns_of(folder, header(), user("u1", None, "Go."), assistant("a1", "u1", asked), *more)
    (found,) = called(turn)
    return found


def test_a_call_has_arguments_result_times_and_detail(tmp_path: Path) -> None:
    began = entry(
        "custom", "x1", "a1",
        customType="tool_execution_start",
        data={"toolCallId": "c1", "toolName": "bash", "startedAt": "2026-01-02T03:04:05.000Z"},
    )  # fmt: skip
    found = made(
        tmp_path,
        call("c1", command="ls"),
        began,
        result("r1", "x1", "c1", "a", details={"exit": 0, "truncation": {"content": "a"}}),
    )
    assert (found.id, found.name, found.arguments, found.result) == ("c1", "bash", {"command": "ls"}, "a")
    assert (found.status, found.at, found.done) == (ToolCallStatus.OK, AT_MS - 6, AT_MS)
    assert found.detail == {"exit": 0}


def test_a_result_that_is_more_than_a_text_stays_what_it_is(tmp_path: Path) -> None:
    blocks = [{"type": "text", "text": "see"}, {"type": "image", "data": "AA", "mimeType": "image/png"}]
    assert made(tmp_path, call("c1"), result("r1", "a1", "c1", blocks)).result == blocks


def test_a_plain_text_result_is_taken(tmp_path: Path) -> None:
    record = result("r1", "a1", "c1")
    record["message"]["content"] = "plain"
    assert made(tmp_path, call("c1"), record).result == "plain"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("no such file", ToolCallStatus.ERROR),
        ("half\n\nCommand timed out after 5 seconds", ToolCallStatus.TIMEOUT),
        ("half\n\nCommand aborted", ToolCallStatus.INTERRUPTED),
    ],
)
def test_a_failed_call_has_its_error(tmp_path: Path, words: str, status: ToolCallStatus) -> None:
    found = made(tmp_path, call("c1"), result("r1", "a1", "c1", words, isError=True))
    assert (found.status, found.error, found.result) == (status, words, UNSET)


def test_a_call_without_a_result_has_no_outcome(tmp_path: Path) -> None:
    found = made(tmp_path, call("c1"))
    assert (found.status, found.result, found.error) == (None, UNSET, None)


def test_models_that_a_tool_used_are_told_in_its_detail(tmp_path: Path) -> None:
    found = made(tmp_path, call("c1"), result("r1", "a1", "c1", usage={"input": 3}))
    assert found.detail == {"details": None, "usage": {"input": 3}}


def test_what_a_tool_spent_on_models_counts_with_the_response_that_asked_for_it(tmp_path: Path) -> None:
    (turn,) = turns_of(
        tmp_path,
        header(),
        user("u1", None, "Go."),
        assistant("a1", "u1", call("c1"), call("c2"), usage={"input": 10, "output": 5}),
        result("r1", "a1", "c1", usage={"input": 3, "cacheRead": 7}),
        result("r2", "r1", "c2", usage={"input": 1, "output": 2}),
        assistant("a2", "r2", "Done.", usage={"input": 20, "output": 6}),
        result("r3", "a2", "c9", usage={"output": 4}),
    )
    assert [message.tokens for message in said(turn)] == [
        None,
        Tokens(input=14, output=7, cached=7),
        Tokens(input=20, output=6),
        Tokens(output=4),
    ]


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Add File: b.py \n*** End Patch"


@pytest.mark.parametrize(
    ("asked", "details", "notes"),
    [
        (call("c1", "read", path="/a"), None, [FileNote(kind=FileKind.READ, path="/a")]),
        (
            call("c1", "read", path="/a", offset=10, limit=5),
            None,
            [FileNote(kind=FileKind.READ, path="/a", line_start=10, line_end=14)],
        ),
        (
            call("c1", "read", path="/a", limit=5),
            None,
            [FileNote(kind=FileKind.READ, path="/a", line_start=1, line_end=5)],
        ),
        (
            call("c1", "read", path="/a.rs:3-9"),
            {"meta": {"source": {"type": "path", "value": "/a.rs"}}},
            [FileNote(kind=FileKind.READ, path="/a.rs", line_start=3, line_end=9)],
        ),
        (call("c1", "read", file_path="auth.go"), None, [FileNote(kind=FileKind.READ, path="auth.go")]),
        (call("c1", "read", path="https://example.org/x"), None, []),
        (call("c1", "write", path="/a", content="x"), None, [FileNote(kind=FileKind.WRITTEN, path="/a")]),
        (
            call("c1", "write", path="local/x.md"),
            {"resolvedPath": "/s/x.md"},
            [FileNote(kind=FileKind.WRITTEN, path="/s/x.md")],
        ),
        (call("c1", "edit", path="/a", edits=[]), {"diff": "..."}, [FileNote(kind=FileKind.WRITTEN, path="/a")]),
        (call("c1", "edit", input=PATCH), {"path": "/w/a.py"}, [FileNote(kind=FileKind.WRITTEN, path="/w/a.py")]),
        (
            call("c1", "apply_patch", input=PATCH),
            None,
            [FileNote(kind=FileKind.WRITTEN, path="a.py"), FileNote(kind=FileKind.WRITTEN, path="b.py")],
        ),
        (call("c1", "grep", pattern="x", path="/src"), None, [FileNote(kind=FileKind.REFERENCED, path="/src")]),
        (call("c1", "glob", path="src/*.py;b"), None, []),
        (call("c1", "bash", command="cat /a"), None, []),
    ],
)
def test_files_that_a_call_touched(tmp_path: Path, asked: Line, details: Any, notes: list[FileNote]) -> None:
    assert list(made(tmp_path, asked, result("r1", "a1", "c1", details=details)).files) == notes


def test_a_failed_call_touched_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, call("c1", "write", path="/a"), result("r1", "a1", "c1", isError=True)).files == ()


def test_diagnostics_of_oh_my_pi_are_lints(tmp_path: Path) -> None:
    messages = ["src/a.ts:3:7 [error] [tsserver] no such name (2304)", "b.py:1:1 [hint] unused", "no place"]
    details = {"diagnostics": {"messages": messages, "summary": "1 error"}}
    found = made(tmp_path, call("c1", "edit", path="src/a.ts"), result("r1", "a1", "c1", details=details))
    assert found.lints == (
        LintNote(path="src/a.ts", message="no such name (2304)", source="tsserver", start_line=3, start_col=7,
                 severity=LintSeverity.ERROR),
        LintNote(path="b.py", message="unused", start_line=1, start_col=1, severity=LintSeverity.HINT),
        LintNote(message="no place"),
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [None, "raw text", [1], 7])
def test_arguments_of_any_kind_are_taken(tmp_path: Path, arguments: Any) -> None:
    asked = {"type": "toolCall", "id": "c1", "name": "read", "arguments": arguments}
    assert made(tmp_path, asked, result("r1", "a1", "c1")).arguments == arguments
