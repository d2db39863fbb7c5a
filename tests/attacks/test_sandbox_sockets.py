"""A command talks to a program of the person through a socket that lies in the workspace: an editor, a terminal
multiplexer, an engine of containers. No namespace keeps it from that, and the program acts outside of the sandbox."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runtime.sandbox.repositories import agent_runs, bind_at, make_repository
from tests.sandbox import machine_sandbox

ON_DISK = True  # no sandbox takes a workspace in memory
TALK = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    with socket.socket(socket.AF_UNIX, kind) as talking:
        try:
            talking.connect(sys.argv[1])
            talking.send(b"run")
        except OSError as error:
            print(error.errno)
        else:
            print("sent")
"""
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
PLACES = ("editor.sock", "run/below/editor.sock", "node_modules/.cache/editor.sock", ".env", ".git/editor.sock")


@pytest.fixture(autouse=True)
def _machine() -> None:
    machine_sandbox()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "work", files={"file": "one\n"})
    (folder / "talk.py").write_text(TALK)
    return folder


@contextmanager
def answering(place: Path, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """A program of the person, with a socket there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, kind) as answers:
        bind_at(answers, place)
        if kind != socket.SOCK_DGRAM:
            answers.listen()
        answers.settimeout(0)
        yield answers


def has_heard(answers: socket.socket) -> bool:
    try:
        if answers.type == socket.SOCK_DGRAM:
            answers.recv(10)
        else:
            answers.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_no_program_outside_is_talked_with_through_a_socket_of_the_workspace(
    workspace: Path, place: str, kind: int
) -> None:
    with answering(workspace / place, kind) as answers:
        outcome = agent_runs(workspace, f"python3 talk.py {place}; ln -s {place} link; python3 talk.py link")
        assert b"sent" not in outcome.stdout, outcome.stdout
        assert outcome.stdout.count(b"\n") == 6, outcome.stderr
        assert not has_heard(answers)
    assert (workspace / place).is_socket()


def test_one_that_is_bound_by_a_relative_name_or_was_moved_is_covered(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    with answering(Path("editor.sock")) as answers:
        (workspace / "moved").mkdir()
        os.rename("editor.sock", "moved/other")
        os.link("moved/other", "again")
        outcome = agent_runs(workspace, "python3 talk.py moved/other; python3 talk.py again")
        assert b"sent" not in outcome.stdout
        assert not has_heard(answers)


def test_a_command_takes_no_socket_out_of_the_look_of_the_next_one(workspace: Path) -> None:
    with answering(workspace / "run/editor.sock") as answers:
        agent_runs(workspace, "mkdir node_modules; mv run node_modules/; mv run/editor.sock node_modules/")
        outcome = agent_runs(workspace, "for place in $(find . -name '*.sock'); do python3 talk.py $place; done")
        assert b"sent" not in outcome.stdout
        assert not has_heard(answers)


def test_commands_use_sockets_of_their_own_and_make_those_anew_that_were_left(workspace: Path) -> None:
    with answering(workspace / "left.sock"):
        pass
    script = """
import os, socket
os.path.exists("left.sock") and os.unlink("left.sock")
with socket.socket(socket.AF_UNIX) as answers, socket.socket(socket.AF_UNIX) as asks:
    answers.bind("left.sock")
    answers.listen()
    asks.connect("left.sock")
    print("talked")
"""
    (workspace / "own.py").write_text(script)
    for _ in range(2):
        outcome = agent_runs(workspace, "python3 own.py")
        assert outcome.stdout == b"talked\n", outcome.stderr


def test_a_command_goes_on_when_the_program_ends_that_answered(workspace: Path) -> None:

    def end() -> None:
        while not (workspace / "started").exists():
            time.sleep(0.01)
        (workspace / "editor.sock").unlink()
        (workspace / "ended").touch()

    ending = threading.Thread(target=end)
    with answering(workspace / "editor.sock"):
        ending.start()
        outcome = agent_runs(workspace, "touch started; until [ -e ended ]; do sleep 0.01; done; sleep 0.2; echo on")
        ending.join()
    assert outcome.stdout == b"on\n", outcome.stderr
