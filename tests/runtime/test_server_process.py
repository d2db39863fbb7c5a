"""Servers of our own: told what to do in a line, ready in a line, and never left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.processes import ServerProcess

ECHO = "import sys; line = sys.stdin.readline(); print('ready', line, end='', flush=True); sys.stdin.read()"
SILENT = "import sys; sys.stdin.read()"


def start(program: str, tmp_path: Path) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", program], {}, tmp_path)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_answers_one_line_and_is_gone_after_it_is_stopped(tmp_path: Path) -> None:
    server = start(ECHO, tmp_path)
    assert server.ask(b"order", 60) == b"ready order\n"
    assert is_alive(server.process_id)
    server.stop()
    assert not is_alive(server.process_id)
    server.stop()
    assert server.ask(b"more", 60) is None


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    server = start(SILENT, tmp_path)
    assert server.ask(b"order", 0.0) is None
    server.stop()


def test_a_server_that_ends_has_no_answer(tmp_path: Path) -> None:
    server = start("", tmp_path)
    assert server.ask(b"order", 60) is None
    server.stop()


def test_a_server_that_nobody_refers_to_is_killed(tmp_path: Path) -> None:
    server = start(ECHO, tmp_path)
    process_id = server.process_id
    del server
    assert not is_alive(process_id)


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="could not be started"):
        ServerProcess([str(tmp_path / "nothing")], {}, tmp_path)
