"""`weft credential`: places of keys, never keys."""

from __future__ import annotations

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.surfaces.shell import Shell, spawn
from weft.surfaces.cli.credentials import person_acting
from weft.surfaces.cli.trust_commands import complete_ids

CANARY = "sk-canary-credential"


def file_of(folder: Path) -> Path:
    return folder.parent / "home" / ".config" / "weft" / "credentials.json"


def test_credentials_are_listed_as_they_were_added(shell: Shell) -> None:
    assert "no credentials yet" in shell("credential").err
    shell("credential", "add", "anthropic", "--env", "ANTHROPIC_API_KEY")
    shell(
        "credential",
        "add",
        "own",
        "--cmd",
        "pass show 'a b'",
        "--origin",
        "http://localhost:8080/v1",
        "--for",
        "agent:x",
    )
    assert shell.json("credential", "list") == [
        {
            "id": "anthropic",
            "origin": "https://api.anthropic.com",
            "env": "ANTHROPIC_API_KEY",
            "command": [],
            "given_to": ["*"],
        },
        {
            "id": "own",
            "origin": "http://localhost:8080",
            "env": None,
            "command": ["pass", "show", "a b"],
            "given_to": ["agent:x"],
        },
    ]
    assert "pass show 'a b'" in shell("credential").out


def test_the_key_itself_is_never_kept(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    answer = shell("credential", "add", "anthropic", "--env", "ANTHROPIC_API_KEY")
    listed = shell("credential", "list")
    assert CANARY not in answer.out + answer.err + listed.out + listed.err
    assert CANARY not in file_of(folder).read_text()
    assert stat.S_IMODE(file_of(folder).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add",), 2),
        (("add", "a"), 2),
        (("add", "a", "--env", "MINE"), 2),
        (("add", "a", "--env", "MINE", "--cmd", "x", "--origin", "https://x"), 2),
        (("add", "a", "--cmd", "'", "--origin", "https://x"), 2),
        (("list", "a"), 2),
        (("remove", "a", "--env", "X"), 2),
        (("remove", "a"), 8),
        (("add", "a b", "--env", "OPENAI_API_KEY"), 5),
        (("add", "a", "--env", "sk-my-own-key", "--origin", "https://x"), 5),
        (("add", "a", "--env", "MINE", "--origin", "x"), 5),
        (("add", "a", "--cmd", "", "--origin", "https://x"), 5),
    ],
)
def test_what_makes_no_credential_is_refused(shell: Shell, folder: Path, arguments: tuple[str, ...], code: int) -> None:
    assert shell("credential", *arguments).code == code
    assert not file_of(folder).exists() or file_of(folder).read_text().count('"id"') == 0


def test_a_name_is_given_once_and_can_be_given_again_after_removing(shell: Shell) -> None:
    add = ("credential", "add", "a", "--env", "OPENAI_API_KEY")
    assert shell(*add).code == 0
    assert shell(*add).code == 4
    assert shell("credential", "remove", "a").code == 0
    assert shell(*add).code == 0


def test_a_file_that_is_none_is_told_and_kept(shell: Shell, folder: Path) -> None:
    file_of(folder).parent.mkdir(parents=True)
    file_of(folder).write_text("{")
    answer = shell("credential", "add", "a", "--env", "OPENAI_API_KEY")
    assert answer.code == 5
    assert file_of(folder).read_text() == "{"
    assert complete_ids(None, None, "") == []  # type: ignore[arg-type]


def test_commands_at_once_lose_nothing(shell: Shell, folder: Path) -> None:
    def add(i: int) -> int:
        return spawn(folder, "credential", "add", f"c{i}", "--env", "OPENAI_API_KEY").returncode

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(add, range(4))) == [0] * 4
    assert sorted(item["id"] for item in shell.json("credential")) == ["c0", "c1", "c2", "c3"]


def test_a_shell_completes_ids(shell: Shell) -> None:
    shell("credential", "add", "anthropic", "--env", "ANTHROPIC_API_KEY")
    assert complete_ids(None, None, "an") == ["anthropic"]  # type: ignore[arg-type]


def test_the_person_at_the_terminal_acts_with_their_credentials(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("credential", "add", "anthropic", "--env", "ANTHROPIC_API_KEY")
    shell("credential", "add", "own", "--cmd", "printf %s-%s sk canary-printed", "--origin", "http://localhost:8080")
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("USER", "bln")
    acting = person_acting()
    assert [str(principal) for principal in acting.chain] == ["human:bln"]
    assert asyncio.run(acting.credential("anthropic", "https://api.anthropic.com/v1")).reveal() == CANARY
    assert asyncio.run(acting.credential("own", "http://localhost:8080/v1")).reveal() == "sk-canary-printed"
