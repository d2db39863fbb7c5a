"""Programs that one thread writes to and reads from."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.own_git import PipedProcess

MIB = 1024 * 1024


def start(*argv: str, seconds: float = 60) -> PipedProcess:
    return PipedProcess(argv, environment={"PATH": os.defpath}, folder=Path("/"), seconds=seconds)


def test_more_than_the_pipes_hold_goes_through_in_both_directions() -> None:
    data = os.urandom(10 * MIB)
    with start("cat") as process:
        process.write(data)
        assert process.finish(11 * MIB) == (0, data)


def test_questions_are_answered_one_by_one() -> None:
    with start("cat") as process:
        for number in range(100):
            process.write(b"%d\0" % number)
            assert process.read_until(b"\0", 100) == b"%d" % number
        process.write(b"abcdef")
        assert (process.read(2), process.read_some()) == (b"ab", b"cdef")
        process.close_input()
        assert process.read_some() == b""


def test_its_environment_is_the_given_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    with start("env") as process:
        assert process.finish(MIB) == (0, f"PATH={os.defpath}\n".encode())


def test_one_that_ends_too_soon_says_why() -> None:
    with start("sh", "-c", "echo no >&2; exit 3") as process:
        process.write(bytes(10 * MIB))
        with pytest.raises(StoreFailed, match="before its answer was whole: no"):
            process.read(1)
    with start("sh", "-c", "echo why >&2; exit 3") as process:
        assert process.finish(MIB)[0] == 3
        assert process.complaint == "why"


def test_one_that_takes_too_long_or_answers_too_much_is_killed() -> None:
    with start("sleep", "1000", seconds=0.05) as process:
        with pytest.raises(StoreFailed, match="too long"):
            process.read(1)
        process_id = process.process_id
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
    with start("yes") as process, pytest.raises(StoreFailed, match="more than"):
        process.read_until(b"\0", 1000)
    with start("yes") as process, pytest.raises(StoreFailed, match="more than"):
        process.finish(1000)


def test_one_that_is_not_there_is_told() -> None:
    with pytest.raises(StoreFailed, match="could not be started"):
        start("/no/such/program")
