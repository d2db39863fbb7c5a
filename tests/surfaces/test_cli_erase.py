"""`weft erase`: shown first, asked for, done, told."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.surfaces.shell import PROGRAM, Shell, on_terminal
from weft.surfaces.cli.ledgers.import_job import ImportJob
from weft.verbs.exchange_answers import ImportStatus

SECRET = "hunter2-secret"


@pytest.fixture
def secret(weft: Shell) -> str:
    weft.record("before")
    return weft.record(f"{SECRET} is my password")


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / ".weft").iterdir())


def test_a_dry_run_shows_what_would_go_and_changes_nothing(weft: Shell, secret: str, folder: Path) -> None:
    weft("fork", secret, "alt")
    weft("backup", "copy.db")
    answer = weft("erase", secret, "--dry-run")
    assert answer.code == 0
    assert "goes: 2 contents" in answer.out
    assert "session: alt (contains it, active)" in answer.out
    assert f"copy: {folder}/copy.db may still hold it" in answer.out
    plan = weft.json("erase", secret, "--dry-run")
    assert [found["what"] for found in plan["contents"]] == [
        "history_append message.parts[0].text",
        "model_response output.parts[0].text",
    ]
    assert SECRET.encode() in files(folder)
    assert weft.json("erase", "--list") == []


def test_nothing_is_erased_where_nobody_can_say_yes(weft: Shell, secret: str, folder: Path) -> None:
    answer = weft("erase", secret, "--reason", "r")
    assert answer.code == 4
    assert "--yes" in answer.err
    assert weft("erase", secret, "--yes").code == 5
    assert SECRET.encode() in files(folder)


def test_without_a_reason_the_plan_is_shown_and_the_reason_asked_for(weft: Shell, secret: str, folder: Path) -> None:
    weft("fork", secret, "alt")
    answer = weft("erase", secret)
    assert answer.code == 5
    assert "goes: 2 contents" in answer.out
    assert "session: alt (contains it, active)" in answer.out
    assert answer.err.startswith("weft: nothing was erased: an erasure needs a reason\nhint: give one with --reason; ")
    assert weft("erase", secret, "--json").out == ""
    assert SECRET.encode() in files(folder)


def test_a_plan_names_sessions_and_turns_as_listings_do(weft: Shell, folder: Path) -> None:
    first, second = "c0fff321-0000-4000-8000-000000000001", "d1fff321-0000-4000-8000-000000000001"
    for session in (first, second):
        (folder / f"{session}.jsonl").write_text(
            json.dumps({"type": "user", "uuid": session, "sessionId": session, "timestamp": "2026-01-01T00:00:00Z",
                        "message": {"role": "user", "content": "the same words"}}) + "\n"
        )  # fmt: skip
    assert weft("import", str(folder)).code == 0
    (turn,) = [one["id"] for one in weft.json("log", second)]
    plan = weft("erase", "c0fff321", "--dry-run").out
    assert "session: c0fff321 (its label and title go, active)" in plan
    assert f"turn {turn[-8:]}; --everywhere" in plan
    shown = on_terminal(folder, "program", "list", "--type", "session", NO_COLOR="1")[1]
    assert {"c0fff321", "d1fff321"} <= {line.split()[1] for line in shown.splitlines()}


def test_an_erasure_is_done_told_and_listed(weft: Shell, secret: str, folder: Path) -> None:
    assert weft("human", "create", "bob").code == 0
    refused = weft("erase", secret, "--reason", "leaked", "--yes", "--as", "bob")
    assert (refused.code, SECRET.encode() in files(folder)) == (weft("show", "nothing").code, True)
    rights = ("--permission=session:read(main)", "--permission=content:erase(main)")
    assert weft("human", "create", "ann", *rights).code == 0
    answer = weft("erase", secret, "--reason", "leaked", "--yes", "--as", "ann")
    assert answer.code == 0, answer.err
    assert answer.out == "erased 2 contents (62 bytes)\n"
    assert SECRET.encode() not in files(folder)
    listed = weft.json("erase", "--list")
    assert {(found["actor"], found["reason"], found["turn_id"]) for found in listed} == {("ann", "leaked", secret)}
    assert "leaked" in weft("erase", "--list").out
    verified = weft("verify")
    assert (verified.out, "2 contents erased" in verified.err) == ("no problems\n", True)
    assert "[erased]" in weft("show", secret).out
    assert "[erased]" in weft("log").out
    assert weft("erase", secret, "--reason", "again", "--yes").out == "nothing to erase: 2 contents erased already\n"


def test_what_others_use_too_stays_and_is_said(weft: Shell) -> None:
    one = weft.record("twice")
    weft.record("twice")
    answer = weft("erase", one, "--reason", "r", "--yes")
    assert answer.out.startswith("nothing to erase: others use all of it")
    assert "erased 2 contents" in weft("erase", one, "--reason", "r", "--yes", "--everywhere").out


def test_erasures_of_another_ledger_wait_and_are_applied(weft: Shell, secret: str, folder: Path) -> None:
    weft("export-facts", "before.jsonl")
    weft("erase", secret, "--reason", "leaked", "--yes")
    weft("export-facts", "after.jsonl")
    other = ("--ledger", "other.db")
    weft("init", "other.db")
    weft(*other, "import-facts", "before.jsonl")
    assert "2 erasures of other ledgers wait" in weft(*other, "import-facts", "after.jsonl").err
    assert len(weft.json(*other, "erase", "--pending")) == 2
    theirs = weft.json("replica")["replica"]
    listed = weft(*other, "erase", "--list")
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [row[2:] for row in rows] == [[secret[-8:], "local", theirs[-8:], "waits", "leaked"]] * 2
    assert "2 erasures of other ledgers not carried out here: `weft erase --pending`" in listed.err
    assert weft(*other, "pending", "refuse", rows[0][1]).code == 0
    assert [line.split("\t")[5] for line in weft(*other, "erase", "--list").out.splitlines()] == ["refused", "waits"]
    assert weft(*other, "pending", "undo", rows[0][1]).code == 0
    assert "erased 2 contents" in weft(*other, "erase", "--apply", "--yes").out
    assert weft.json(*other, "erase", "--pending") == []
    rows = [line.split("\t") for line in weft(*other, "erase", "--list").out.splitlines()]
    assert {(row[4], row[5]) for row in rows} == {("this one", "erased"), (theirs[-8:], "erased")}
    assert weft(*other, "erase", "--apply", "--yes").out == "no erasures of other ledgers are waiting\n"
    again = weft(*other, "import-facts", "before.jsonl")
    assert "2 contents passed over" in again.err


@pytest.mark.parametrize("words", [(), ("x", "--list"), ("--pending", "--apply")])
def test_one_thing_is_asked_for_at_a_time(weft: Shell, words: tuple[str, ...]) -> None:
    assert weft("erase", *words).code == 2


def test_nothing_is_left_to_finish_by_default(weft: Shell, secret: str) -> None:
    assert weft.json("erase", "--finish") == {"complete": True}


@pytest.mark.parametrize(("typed", "gone"), [("y\n", True), ("n\n", False)])
def test_a_person_at_a_terminal_is_shown_the_plan_and_asked(
    weft: Shell, secret: str, folder: Path, typed: str, gone: bool
) -> None:
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "erase", secret, "--reason", "r"], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        os.write(terminal, typed.encode())
        shown = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(terminal)
    assert b"erase it for good?" in shown
    assert (SECRET.encode() not in files(folder)) == gone
    assert child.returncode == (0 if gone else 4)


def test_the_log_of_imports_forgets_what_it_named(weft: Shell, secret: str, folder: Path) -> None:
    job = ImportJob(str(folder / ".weft" / "ledger.db"))
    job.log.write_text(f"/home/{SECRET}.jsonl: not JSON from byte 0 on")
    failed = ImportStatus(
        state="failed", pid=1, started_at=1, updated_at=2, ledger="x", log=str(job.log), error=f"OSError: {SECRET}"
    )
    job.write_status(failed)
    weft("erase", secret, "--reason", "asked for", "--yes")
    assert SECRET.encode() not in files(folder)
    status = job.status()
    assert status is not None
    assert (status.state, status.started_at) == ("failed", 1)
