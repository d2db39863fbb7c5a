"""Processes: what they get, what limits them, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.sandbox.processes import Ending, Limits, ProcessOutcome, run_process

SH = "/bin/sh"


def run(script: str, folder: Path, *words: str, stdin: bytes = b"", **limits: float) -> ProcessOutcome:
    made = run_process(
        [SH, "-c", script, "sh", *words],
        environment={"PATH": "/usr/bin:/bin"},
        folder=folder,
        stdin=stdin,
        limits=Limits(**limits),  # type: ignore[arg-type]
    )
    return asyncio.run(made)


def running(mark: str) -> list[str]:
    """Every process of the machine with this among its arguments, but for us."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_text(errors="replace") and int(folder.name) != os.getpid():
                found.append(folder.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def stays(mark: str) -> bool:
    """Whether such a process stays; one that is killed may take a moment to be gone."""
    for _ in range(6000):
        if not running(mark):
            return False
        time.sleep(0.01)
    return True


def test_a_process_is_fed_and_read(tmp_path: Path) -> None:
    outcome = run("cat; echo oops >&2; pwd; exit 3", tmp_path, stdin=b"x" * 300_000)
    assert (outcome.ending, outcome.code, outcome.stderr) == (Ending.EXITED, 3, b"oops\n")
    assert outcome.stdout == b"x" * 300_000 + str(tmp_path).encode() + b"\n"
    assert not outcome.succeeded


def test_a_process_sees_only_the_environment_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    assert b"canary" not in run("env", tmp_path).stdout


def test_a_process_that_does_not_read_is_no_failure(tmp_path: Path) -> None:
    assert run("exit 0", tmp_path, stdin=b"x" * 1_000_000).succeeded


def test_what_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-slow"
    outcome = run("sh -c 'sleep 1000' $1 & sh -c 'sleep 1000' $1", tmp_path, mark, seconds=0.3)
    assert (outcome.ending, outcome.code) == (Ending.TIMED_OUT, -9)
    assert not stays(mark)


def test_what_is_left_behind_does_not_keep_the_answer_waiting(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-left"
    outcome = run("sh -c 'sleep 1000; :' $1 & echo done", tmp_path, mark)
    assert outcome.succeeded
    assert outcome.stdout == b"done\n"
    assert not stays(mark)


def test_what_left_the_group_does_not_keep_the_answer_waiting(tmp_path: Path) -> None:
    """It is waited for a moment, should it still write; then what came is the answer."""
    script = "setsid sh -c 'echo $$ > escaped; exec sleep 1000' & while [ ! -s escaped ]; do :; done; echo done"
    outcome = run(script, tmp_path, seconds=1000)
    os.kill(int((tmp_path / "escaped").read_text()), 9)
    assert outcome.succeeded
    assert outcome.stdout == b"done\n"


def test_what_writes_too_much_is_killed_and_the_beginning_kept(tmp_path: Path) -> None:
    outcome = run("yes", tmp_path, output=1000)
    assert outcome.ending is Ending.TOO_MUCH_OUTPUT
    assert outcome.stdout == (b"y\n" * 500)


def test_cancelling_kills_the_process(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-cancel"

    async def cancelled() -> None:
        script = "echo begun > begun; sleep 1000; :"
        task = asyncio.create_task(
            run_process([SH, "-c", script, mark], environment={"PATH": "/bin:/usr/bin"}, folder=tmp_path)
        )
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not stays(mark)


def test_cancelling_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    mark = f"weft-mark-{os.getpid()}-start"

    async def cancelled(turns: int) -> None:
        argv = [SH, "-c", "sh -c 'sleep 1000; :' $0 & sleep 1000; :", mark]
        task = asyncio.create_task(run_process(argv, environment={"PATH": "/bin:/usr/bin"}, folder=tmp_path))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for turns in range(12):
        asyncio.run(cancelled(turns))
    assert not stays(mark)


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    for argv in (["/no/such/program"], [str(tmp_path)]):
        with pytest.raises(StoreFailed, match="could not be started"):
            asyncio.run(run_process(argv, environment={}, folder=tmp_path))
    for argv in ([], ["a\0b"]):
        with pytest.raises(InvalidInput):
            asyncio.run(run_process(argv, environment={}, folder=tmp_path))


def test_many_processes_at_once_keep_apart(tmp_path: Path) -> None:
    async def many() -> list[bytes]:
        runs = [
            run_process([sys.executable, "-S", "-c", f"print({i})"], environment={}, folder=tmp_path) for i in range(8)
        ]
        return [outcome.stdout for outcome in await asyncio.gather(*runs)]

    assert asyncio.run(many()) == [f"{i}\n".encode() for i in range(8)]
