"""A linter of the configuration runs after a write, and what it finds is noted and told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.tools.conftest import call, plan
from weft.kernel.enums import LintSeverity
from weft.kernel.errors import StoreFailed
from weft.ledger.model import LintNote
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import EditTool, Linters, LinterSettings, LintFormat, WriteTool, findings

RUFF = [{"filename": "/w/a.py", "code": "F401", "message": "`os` imported but unused",
         "location": {"row": 1, "column": 8}, "end_location": {"row": 1, "column": 10}, "fix": None}]  # fmt: skip
ESLINT = [{"filePath": "/w/src/a.js", "errorCount": 1, "messages": [
    {"ruleId": "no-undef", "severity": 2, "message": "'x' is not defined.", "line": 3, "column": 5, "endColumn": 6}
]}]  # fmt: skip


def outcome(stdout: str | bytes, *, code: int = 1, ending: Ending = Ending.EXITED) -> ProcessOutcome:
    data = stdout.encode() if isinstance(stdout, str) else stdout
    return ProcessOutcome(ending=ending, code=code, stdout=data, stderr=b"")


def linters(
    place: Path, answer: ProcessOutcome | Exception, *settings: LinterSettings
) -> tuple[Linters, list[list[str]]]:
    commands: list[list[str]] = []

    async def run(command: Sequence[str]) -> ProcessOutcome:
        commands.append(list(command))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Linters(settings, str(place), run), commands


def test_the_forms_of_output_are_read() -> None:
    (ruff,) = findings(outcome(json.dumps(RUFF)), LintFormat.RUFF, "/w")
    assert ruff == LintNote(
        path="a.py", message="`os` imported but unused", source="ruff F401", start_line=1, start_col=8, end_line=1,
        end_col=10, severity=LintSeverity.WARNING,
    )  # fmt: skip
    (eslint,) = findings(outcome(json.dumps(ESLINT)), LintFormat.ESLINT, "/w")
    assert (eslint.path, eslint.source, eslint.severity) == ("src/a.js", "eslint no-undef", LintSeverity.ERROR)
    lines = "a.py:3:7: E225 missing white space\nFound 2 errors\n./b.c:4: error: no type\n/etc/x:1:1: note: n\n"
    assert [
        (note.path, note.start_line, note.start_col, note.severity, note.message)
        for note in findings(outcome(lines), LintFormat.LINES, "/w")
    ] == [
        ("a.py", 3, 7, LintSeverity.WARNING, "E225 missing white space"),
        ("b.c", 4, None, LintSeverity.ERROR, "no type"),
        (None, 1, 1, LintSeverity.INFO, "n"),
    ]


def test_what_a_linter_found_is_noted_and_told(place: Path, workspace: WorkspaceFolder) -> None:
    settings = LinterSettings(pattern="*.py", command=("ruff", "check", "--output-format=json"), format=LintFormat.RUFF)
    checking, commands = linters(Path("/w"), outcome(json.dumps(RUFF)), settings)
    output = call(WriteTool(workspace, checking), path="src/a.py", content="import os\n")
    assert commands == [["ruff", "check", "--output-format=json", "./src/a.py"]]
    assert output.result["lints"] == ["a.py:1:8: warning: `os` imported but unused (ruff F401)"]
    assert [note.message for note in output.lints] == ["`os` imported but unused"]
    call(EditTool(workspace, checking), path="src/a.py", old_text="os", new_text="re")
    call(WriteTool(workspace, checking), path="a.txt", content="x")
    assert len(commands) == 2


def test_the_commands_belong_to_the_plan_and_a_name_is_no_option(place: Path, workspace: WorkspaceFolder) -> None:
    setting = LinterSettings(pattern="*", command=("check", "--file={path}", "--strict"))
    checking, _ = linters(place, outcome(""), setting)
    planned = plan(WriteTool(workspace, checking), path="--config=evil.py", content="x")
    assert planned.exact["linters"] == [
        {"command": ["check", "--file=./--config=evil.py", "--strict"], "format": "lines"}
    ]
    assert planned.plan_digest != plan(WriteTool(workspace), path="--config=evil.py", content="x").plan_digest


@pytest.mark.parametrize(
    "answer",
    [
        outcome("no JSON"), outcome(""), outcome("[" * 5000), outcome("[" + "1," * 200_000 + "1]"), outcome('{"a": 1}'),
        outcome("[]", ending=Ending.TIMED_OUT), outcome(b"\xff\xfe"), StoreFailed("the linter is not installed"),
        outcome(json.dumps([{"message": "m", "filename": ["x"]}])),
    ],
)  # fmt: skip
def test_a_linter_that_fails_is_told_and_the_file_is_written(
    answer: Any, place: Path, workspace: WorkspaceFolder
) -> None:
    setting = LinterSettings(pattern="*.py", command=("ruff",), format=LintFormat.RUFF)
    checking, _ = linters(place, answer, setting)
    output = call(WriteTool(workspace, checking), path="a.py", content="x")
    assert output.result["lint_problems"][0].startswith("ruff gave no answer that can be read")
    assert output.lints == ()
    assert (place / "a.py").read_text() == "x"


def test_hostile_output_is_bounded(place: Path, workspace: WorkspaceFolder) -> None:
    many = [{"filename": "../../etc/passwd", "message": "\x1b" * 1000, "code": "c" * 500,
             "location": {"row": -5, "column": 10**15}}] * 300  # fmt: skip
    setting = LinterSettings(pattern="*", command=("ruff",), format=LintFormat.RUFF)
    checking, _ = linters(place, outcome(json.dumps(many)), setting)
    output = call(WriteTool(workspace, checking), path="a", content="x")
    assert (len(output.lints), output.result["more_lints"]) == (50, 250)
    first = output.lints[0]
    assert (first.path, first.start_line, first.start_col, len(first.message or "")) == (None, None, None, 500)
    noisy = "\n".join([":" * 5000, "a:" * 3000, "1:" * 3000, "a:1:1:" * 900, "x" * 100_000])
    assert len(findings(outcome(noisy), LintFormat.LINES, str(place))) <= 5


def test_the_real_ruff_is_understood(place: Path, workspace: WorkspaceFolder) -> None:
    async def run(command: Sequence[str]) -> ProcessOutcome:
        done = subprocess.run(command, check=False, capture_output=True, cwd=place)
        return ProcessOutcome(ending=Ending.EXITED, code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    command = (sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--output-format=json")
    settings = [LinterSettings(pattern="*.py", command=command, format=LintFormat.RUFF)]
    tool = WriteTool(workspace, Linters(settings, str(place), run))
    assert call(tool, path="src/a.py", content="import os\n").result["lints"] == [
        "src/a.py:1:8: warning: `os` imported but unused (ruff F401)"
    ]
    (broken,) = call(tool, path="src/b.py", content="def (:\n").lints[:1]
    assert (broken.path, broken.severity) == ("src/b.py", LintSeverity.ERROR)
