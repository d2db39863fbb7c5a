"""The command line on a ledger in PostgreSQL: the same commands, the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import shared_server
from tests.surfaces.shell import Shell


@pytest.fixture
def address() -> str:
    return shared_server().address()


def test_a_ledger_is_made_in_a_database_once(shell: Shell, address: str) -> None:
    made = shell.json("init", address)
    assert made["created"] is True
    again = shell.json("init", "--ledger", address)
    assert again == {**made, "created": False}
    assert "there is a ledger already at" in shell("init", address).out
    assert not (shell.folder / ".weft").exists()


def test_a_password_in_the_address_is_not_shown(shell: Shell, address: str) -> None:
    answer = shell("init", address.replace("weft@", "weft:hunter2@"))
    assert answer.code == 0
    assert "hunter2" not in answer.out + answer.err


def test_turns_are_recorded_shown_verified_and_counted(
    shell: Shell, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_LEDGER", address)
    assert shell("log").code == 7
    shell("init")
    turn = shell.record("hello there")
    assert "hello there" in shell("show", turn).out
    assert turn[-6:] in shell("log").out
    assert shell("fork", turn, "other").code == 0
    assert {session["label"] for session in shell.json("sessions")} == {"main", "other"}
    assert shell("verify").code == 0
    assert shell("rebuild").code == 0
    stats = shell.json("stats")
    assert (stats["turns"], stats["path"]) == (1, address)
    assert stats["file_bytes"] > 100_000
    assert "nothing to recover" in shell("recover").out


def test_a_backup_is_a_file_that_opens_by_itself(shell: Shell, address: str, folder: Path) -> None:
    shell("init", address)
    shell._monkeypatch.setenv("WEFT_LEDGER", address)
    turn = shell.record("hello there")
    digest = shell.json("show", turn)["digest"]
    assert shell("backup", "copy.db").code == 0
    shell._monkeypatch.delenv("WEFT_LEDGER")
    assert shell.json("show", turn, "--ledger", str(folder / "copy.db"))["digest"] == digest
    assert shell("verify", "--ledger", str(folder / "copy.db")).code == 0
    restored = shared_server().address()
    assert shell("export-facts", "facts.jsonl", "--ledger", str(folder / "copy.db")).code == 0
    assert shell("init", restored).code == 0
    assert shell("import-facts", "facts.jsonl", "--ledger", restored).code == 0
    assert shell.json("show", turn, "--ledger", restored)["digest"] == digest
    assert shell("verify", "--ledger", restored).code == 0


def test_a_server_that_is_not_there_says_what_to_do(shell: Shell) -> None:
    answer = shell("log", "--json", "--ledger", "postgresql://weft@127.0.0.1:1/work")
    assert answer.code == 7
    assert answer.error["code"] == "store_failed"
    assert "check the address" in answer.error["hint"]
