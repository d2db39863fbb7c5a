"""`weft trust FOLDER --work`, and who is asked about it: a person at a terminal, once; nobody else grants it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.shell import Shell, on_terminal

ASKED = "do you trust it for work?"


def trusted_folders(shell: Shell) -> dict[str, bool]:
    """The trusted folders, and whether each is trusted for work."""
    entries: list[dict[str, Any]] = shell.json("trust", "--list")
    return {entry["place"]: entry["is_for_work"] for entry in entries if "place" in entry}


def test_a_folder_is_trusted_for_work_listed_and_revoked(shell: Shell, folder: Path) -> None:
    answer = shell("trust", ".", "--work")
    assert "is trusted for work" in answer.out
    assert f"undo: weft trust {folder} --work --revoke" in answer.err
    assert trusted_folders(shell) == {str(folder): True}
    assert f"{folder}  folder, for work" in shell("trust", "--list").out
    assert "agents are told its rules still" in shell("trust", ".", "--work", "--revoke").out
    assert shell("trust", ".", "--work").code == 0
    assert shell.json("trust", ".", "--work", "--revoke") == {"folder": str(folder), "was_trusted": True}
    assert trusted_folders(shell) == {str(folder): False}
    assert shell.json("trust", ".", "--revoke", "--work")["was_trusted"] is False
    assert shell.json("trust", ".")["is_for_work"] is False


def test_revoking_inside_a_trusted_folder_says_what_still_is(shell: Shell, folder: Path) -> None:
    shell("trust", ".", "--work")
    (folder / "deep").mkdir()
    answer = shell("trust", "deep", "--work", "--revoke")
    assert f"{folder}/deep is trusted for work no longer; {folder}, which it lies in, still is" in answer.out
    assert shell.json("trust", "deep", "--work", "--revoke")["was_trusted"] is False


@pytest.mark.parametrize("words", [("--work",), (".", "--work", "--show", "a"), (".", "a", "--work", "--revoke")])
def test_the_option_stands_with_a_folder_alone(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell("trust", *words).code == 2
    assert trusted_folders(shell) == {}


def test_a_home_folder_and_what_lies_above_it_are_not_trusted_for_work(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "people" / "ada"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for place in (home, home.parent, Path("/")):
        answer = shell("trust", str(place), "--work")
        assert "holds your whole home folder" in answer.err
    assert trusted_folders(shell) == {}
    assert shell("trust", str(home)).code == 0, "its rules alone can be trusted"


def test_init_asks_at_a_terminal_and_a_yes_alone_grants_it(shell: Shell, folder: Path) -> None:
    for name, typed, is_for_work in (
        ("one", "y\n", True),
        ("two", "\n", False),
        ("three", "n\n", False),
        ("four", "\x04", False),
    ):
        place = folder / name
        place.mkdir()
        code, shown = on_terminal(place, "init", typed=typed)
        assert code == 0
        assert ASKED in shown
        assert "run commands in the sandbox" in shown
        assert ("no: the input ended" in shown) is (typed == "\x04")
        assert ("you are asked for each step there" in shown) is not is_for_work
        assert trusted_folders(shell).get(str(place), False) is is_for_work


def test_init_asks_nobody_without_a_terminal_nor_of_a_ledger_that_is_no_folders(shell: Shell, folder: Path) -> None:
    assert ASKED not in shell("init", stdin="y\n").err
    for words in (("init", "here.db"), ("init", "--user"), ("init",), ("init", "--quiet", "quiet")):
        (folder / "quiet").mkdir(exist_ok=True)
        assert ASKED not in on_terminal(folder, *words, typed="y\n")[1], words
    assert trusted_folders(shell) == {}


def test_an_agents_first_run_in_a_folder_asks_once(weft: Shell, folder: Path) -> None:
    place = folder / "project"
    place.mkdir()
    run = ("agent", "run", "nobody", "do it", "--in", str(place))
    assert ASKED not in weft(*run, stdin="y\n").err, "without a terminal"
    assert ASKED in on_terminal(folder, *run, typed="n\n")[1]
    assert trusted_folders(weft) == {}
    assert ASKED not in on_terminal(folder, *run, typed="y\n")[1], "it was answered"
    assert ASKED in on_terminal(folder, "agent", "run", "nobody", "do it", "--in", str(folder), typed="y\n")[1]
    assert trusted_folders(weft) == {str(folder): True}
    assert ASKED not in on_terminal(folder, *run, typed="y\n")[1], "it lies in one that is trusted"
    assert trusted_folders(weft) == {str(folder): True}


def test_what_came_with_a_folder_grants_nothing(shell: Shell, folder: Path) -> None:
    """The list lies in the person's state folder, whatever a clone brought along."""
    (folder / ".weft").mkdir()
    (folder / ".weft" / "trust.json").write_text('{"version": 1, "folders": [{"place": "/", "is_for_work": true}]}')
    assert trusted_folders(shell) == {}
