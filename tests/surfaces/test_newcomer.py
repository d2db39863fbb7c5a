"""The first part of docs/start.md is played on a terminal, and compared with what the commands print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.credentials import Maker
from tests.surfaces.talking import screen_of, typing
from tests.transcripts import masked, steps

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text().partition("\n## Work on code with an agent\n")[0]
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
PROMPT = re.compile(r"^([\w-]+> |.*\[y/N\]: )(.+)$", re.MULTILINE)
"""A line of a transcript where the person typed: what was asked, and what was typed."""
CREDENTIAL = Maker(30).github()
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
DIFFERING = (
    (re.compile(r"(?<=^shop-talk> )([^/\n]+\n)(?:.*\n)+?(\S+, \d+ tokens in), .*, ", re.M), r"\1<answer>\n\2, "),
    (re.compile(r"\d{4}/\d\d/\d\d/rollout-[\dT-]{20}"), "<day>/rollout-<time>-"),
    (re.compile(r"\b01[0-9a-f]{6}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b01[0-9a-f]{6}\b"), "<new session>"),
    (re.compile(r"(?!2026-03-04)\d{4}-\d\d-\d\d \d\d:\d\d\b"), "<time>"),
    (re.compile(r"genai-prices [\d.]+|kingfisher [\d.]+, \d+ rules"), "<version>"),
    (re.compile(r"[\d,]+ bytes\b|(?<=\()[\d.]+ k?B\b|\b(?!9\.6)\d\.\d kB\b"), "<size>"),
    (re.compile(r"\b(?:[0-9a-f]{12}|[0-9a-f]{16})\b"), "<digest>"),
)
"""Beside ids: times of the run, answers of a model, versions of what others maintain, sizes of what is compressed."""


def comparable(transcript: str) -> list[str]:
    """The lines of a transcript without what differs between two runs."""
    for differing, name in DIFFERING:
        transcript = differing.sub(name, transcript)
    return masked(transcript).splitlines()


def words_of(command: str, variables: Mapping[str, str]) -> list[str]:
    """A command's words as a shell gives them: quotes, `~` and variables."""
    words = [os.path.expanduser(word) for word in shlex.split(command)]
    for name, text in variables.items():
        words = [word.replace(f"${name}", text) for word in words]
    return words


def play(command: str, output: str, folder: Path, variables: Mapping[str, str]) -> str:
    """What the terminal shows when the command is typed there, and then what the transcript says was typed."""
    program, *arguments = words_of(command, variables)
    assert program == "weft"
    with typing(folder, *arguments, NO_COLOR="1") as person:
        for prompt, typed in PROMPT.findall(output):
            person.wait(f"\n{prompt}")
            person.line(typed)
        person.end()
        return screen_of(person.raw).rstrip("\n") + "\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a home where Claude Code left two sessions, and nobody used Weft before."""
    home = tmp_path / "home"
    sessions = shutil.copytree(ROOT / "docs" / "samples", home / ".claude" / "projects" / "-home-dev-shop")
    for hour, path in enumerate(sorted(sessions.iterdir()), 9):
        written = datetime(2026, 3, 4, hour, 45, tzinfo=UTC).timestamp()
        os.utime(path, (written, written))
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    project = home / "shop"
    project.mkdir()
    for name, text in FILE.findall(PAGE):
        (project / name).write_text(text)
    return project


def test_a_newcomer_sees_what_the_page_shows(project: Path) -> None:
    shown, expected = "", ""
    for command, output in steps(PAGE):
        step = play(command, output, project, {"GITHUB_TOKEN": CREDENTIAL})
        shown += f"$ {command}\n" + step.replace(str(project.parent), "~")
        expected += f"$ {command}\n" + output
        assert comparable(shown) == comparable(expected), command
    assert CREDENTIAL not in shown
