"""A session that a stranger called `main` or `chat`: nothing is recorded in it, and nobody talks in it, unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.surfaces.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with weft.open(tmp_path / "other.db") as other:
        for label in ("main", "chat"):
            other.record_turn(session=label, query="who are you?", response="a stranger")
    shell = Shell(folder, monkeypatch, capsys)
    assert shell("init").code == 0
    assert shell("pull", str(tmp_path / "other.db")).code == 0
    return shell


def test_a_pulled_main_is_not_recorded_in_unasked(shell: Shell) -> None:
    answer = shell("record", "--query", "mine", "--response", "own")
    assert answer.code != 0
    assert "written by replica" in answer.err
    assert shell("record", "--session", "main", "--query", "mine", "--response", "own").code == 0
    assert shell("record", "--query", "again", "--response", "own").code == 0


def test_a_pulled_chat_is_not_continued_unasked(shell: Shell) -> None:
    answer = shell("chat", stdin="hello\n")
    assert answer.code != 0
    assert "written by replica" in answer.err
    assert "--new" in answer.err
