"""The command line as tests use it: in this process, in one of its own, or on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.surfaces import script_runs
from tests.surfaces.forking import Forked, shared_forker
from weft.surfaces.cli.main import run

PROGRAM = [sys.executable, "-m", "weft.surfaces.cli"]
PATIENT = "import sys; from weft.surfaces.cli import main, progress; progress.PATIENCE = 3600; sys.exit(main.main())"
"""A script of the same without bars, however slow the machine is: for tests of every byte that a terminal is sent."""
ID = r"[0-9A-HJKMNP-TV-Z]"


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found


class Shell:
    """A person in a folder: `weft("log", "--graph")`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Answer:
        data = stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        self._capsys.readouterr()
        code = run(arguments)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)

    def json(self, *arguments: str, stdin: str | bytes = "") -> Any:
        answer = self(*arguments, "--json", stdin=stdin)
        assert answer.code == 0, answer.err
        return answer.json

    def record(self, query: str, *, session: str = "main", **turn: Any) -> str:
        """Record a turn and say its id."""
        given = {"session": session, "query": query, "response": f"re: {query}", **turn}
        return str(self.json("record", stdin=json.dumps(given))["id"])


def spawn(
    folder: Path, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[bytes]:
    """A process of its own, with a pipe on every side."""
    if _is_for_interpreter(environment):
        variables = {**os.environ, **environment}
        command = [*PROGRAM, *arguments]
        return subprocess.run(
            command, cwd=folder, env=variables, input=stdin, capture_output=True, timeout=300, check=False
        )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with ending(shared_forker().start(arguments, folder, {**os.environ, **environment}, **pipes)) as program:
        out, err = program.communicate(stdin, timeout=300)
    return subprocess.CompletedProcess(arguments, program.wait(), out, err)


@contextmanager
def running(folder: Path, *arguments: str, **streams: int) -> Iterator[Forked]:
    """A program beside the test. However the test ends, the program ends before it."""
    with ending(shared_forker().start(arguments, folder, os.environ, **streams)) as program:
        yield program


@contextmanager
def ending(program: Forked) -> Iterator[Forked]:
    try:
        yield program
    finally:
        program.kill()
        program.wait()
        program.close()


def _is_for_interpreter(environment: Mapping[str, str]) -> bool:
    """True for what an interpreter reads once, when it starts."""
    return any(name.startswith(("PYTHON", "LANG", "LC_")) for name in environment)


def on_terminal(
    folder: Path, *arguments: str, script: str = "", typed: str = "", **environment: str
) -> tuple[int, str]:
    """A process on a terminal of its own, where something was typed ahead; its exit code and all that the terminal was
    sent. It runs the program, which shows no progress however slow the machine is, or a script of Python."""
    settings = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40", "PYTHONIOENCODING": "utf-8", "PAGER": "cat"}
    variables = {**os.environ, **settings, **environment}
    terminal, theirs = pty.openpty()
    child: subprocess.Popen[bytes] | Forked
    if script or not _is_for_interpreter(environment):
        words, streams = (script or PATIENT, *arguments), (theirs, theirs, theirs)
        child = shared_forker()._start(words, folder, variables, streams, script_runs.__name__)
    else:
        child = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=folder,
            env=variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    os.close(theirs)
    os.write(terminal, typed.encode())
    shown = _all_of(terminal)
    code = child.wait()
    os.close(terminal)
    return code, shown.decode().replace("\r\n", "\n")


def _all_of(terminal: int) -> bytes:
    shown = bytearray()
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side of a terminal is closed
            return bytes(shown)
        if not piece:
            return bytes(shown)
        shown += piece


def masked(text: str) -> str:
    """The same text with every id as T1, T2 and so on, in order of appearance."""
    names: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return names.setdefault(match[0][-8:], f"T{len(names) + 1}")

    return re.sub(rf"\b{ID}{{26}}\b|\b{ID}{{8}}\b", name, text)
