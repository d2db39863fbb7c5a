"""`make run`: the demo tells its story through the real command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft as library
from tests.surfaces.shell import Shell, masked
from weft.surfaces import demo


@pytest.fixture
def told(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / "home"))
    assert demo.main() == 0
    return capsys.readouterr().out


def test_the_demo_shows_a_forked_history_a_turn_a_difference_and_a_sound_ledger(told: str) -> None:
    commands = re.findall(r"^\$ (.*)$", told, re.MULTILINE)
    assert commands == [
        "weft log --graph --oneline",
        "weft show main~2",
        "weft diff main by-hand",
        "weft verify",
    ]
    assert "|/" in told
    assert "[failed]" in told
    assert "[compaction]" in told
    assert "no problems" in told


def test_the_demo_keeps_its_ledger_and_says_what_to_try(told: str, tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "home" / "ledger.db"
    assert f"export WEFT_LEDGER={path}" in told
    with library.open(path, read_only=True) as ledger:
        assert list(ledger.verify()) == []
    suggested = re.findall(r"^  (?:'[^']*|\S*)weft'? (.*)$", told, re.MULTILINE)
    assert len(suggested) >= 5
    for words in suggested:
        assert shell("--ledger", str(path), *words.split()).code == 0, words


def test_the_demo_tells_the_same_every_time(told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "home" / "ledger.db").rename(tmp_path / "first.db")
    for beside in (tmp_path / "home").glob("ledger.db-*"):
        beside.unlink()
    demo.main()

    def told_apart_from_ids(text: str) -> str:
        return re.sub("[0-9a-f]{64}", "DIGEST", masked(text))

    assert told_apart_from_ids(capsys.readouterr().out) == told_apart_from_ids(told)
