"""The second part of docs/start.md is played on a terminal: a model answers by script, an agent commits."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script, chat_saying
from tests.surfaces.serving import serving
from tests.surfaces.test_newcomer import play, words_of
from tests.transcripts import masked, steps

ON_DISK = True  # no sandbox takes a workspace in memory
PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text().partition("\n## Work on code with an agent\n")[2]
DIFFERING = (
    (re.compile(r"\b[0-9a-f]{8}\b"), "<commit>"),
    (re.compile(r"\b\d+ s\b"), "<seconds>"),
)


def comparable(transcript: str) -> list[str]:
    """The words of a transcript without what differs between two runs: where lines are broken goes by the folder."""
    for differing, name in DIFFERING:
        transcript = differing.sub(name, transcript)
    return masked(transcript).split()


def committing() -> Script:
    line = "echo \"print('hello')\" > hello.py && git add hello.py && git commit -qm 'Say hello'"
    function = {"name": "shell", "arguments": json.dumps({"cmd": line})}
    call = {"id": "call-1", "type": "function", "function": function}
    return chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")


def played(command: str, output: str, folder: Path, variables: Mapping[str, str]) -> str:
    if command.startswith("weft "):
        return play(command, output, folder, variables)
    program, *arguments = words_of(command, variables)
    assert program == "git"
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODEL_KEY", CANARY)
    home = tmp_path / "home"
    (home / ".gitconfig").write_text("[user]\n\tname = tester\n\temail = tester@example.com\n")
    (home / "shop").mkdir()
    return home / "shop"


def test_an_agents_first_commit_is_made_and_taken_back_as_the_page_shows(project: Path) -> None:
    shown, expected = "", ""
    with serving(committing(), chat_saying({"content": "hello.py is committed."})) as server:
        for command, output in steps(PAGE):
            step = played(command, output, project, {"MODEL_URL": server.url})
            shown += f"$ {command}\n" + step.replace(str(project.parent), "~").lstrip("\n")
            expected += f"$ {command}\n" + output
    assert comparable(shown) == comparable(expected), shown
