"""Conversations in tests: somebody who types at a terminal, and a server that answers by script."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.runtime.scripted import Script, Scripted, scripted
from tests.surfaces.forking import Forked, shared_forker
from tests.surfaces.shell import PROGRAM, Shell

PATIENCE = 120
"""Seconds after which a terminal that says nothing more is given up."""
TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""The terminal becomes the program's own, so that Ctrl-C there reaches it, wherever the tests were started."""
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|[\001\002\r]")


def screen_of(raw: str) -> str:
    """What stands on a terminal that was sent this: lines are overwritten and erased as the codes say."""
    lines, row, column = [""], 0, 0
    for code, letter in re.findall(r"\x1b\[([0-9;?]*[a-zA-Z])|\x1b.|([^\x1b])", raw):
        if code.endswith("A"):
            row = max(0, row - int(code[:-1] or 1))
        elif code == "2K":
            lines[row] = ""
        elif code in ("J", "0J"):
            lines[row:] = [lines[row][:column]]
        elif letter == "\r":
            column = 0
        elif letter == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif letter and letter not in "\001\002":
            lines[row] = lines[row][:column].ljust(column) + letter + lines[row][column + 1 :]
            column += 1
    return "\n".join(line.rstrip() for line in lines)


class Typist:
    """A person at a terminal: types, and waits for words to appear."""

    def __init__(self, terminal: int, child: subprocess.Popen[bytes] | Forked) -> None:
        self._terminal, self._child = terminal, child
        self._raw = bytearray()
        self._seen = 0

    @property
    def shown(self) -> str:
        """All that the terminal was sent, without what steers it."""
        return _CODES.sub("", self._raw.decode(errors="replace"))

    @property
    def raw(self) -> str:
        return self._raw.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def line(self, text: str) -> None:
        self.type(f"{text}\r")

    def wait(self, words: str) -> str:
        """What appeared since the last wait, up to and with these words."""
        while words not in self.shown[self._seen :]:
            assert self._read(), f"{words!r} never appeared after: {self.shown[self._seen :]!r}"
        end = self.shown.index(words, self._seen) + len(words)
        found, self._seen = self.shown[self._seen : end], end
        return found

    def insist(self, key: str, words: str) -> None:
        """Press a key again until the words appear: line editing misses an interrupt in the moment of an echo."""
        for _ in range(PATIENCE):
            self.type(key)
            while self._read(1):
                if words in self.shown[self._seen :]:
                    self._seen = len(self.shown)
                    return
        raise AssertionError(f"{words!r} never appeared after: {self.shown[self._seen :]!r}")

    def _read(self, patience: float = PATIENCE) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], patience)
        try:
            piece = os.read(self._terminal, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self._raw += piece
        return bool(piece)

    def end(self) -> int:
        """Wait until the program has ended by itself."""
        while self._read():
            pass
        return self._child.wait(PATIENCE)


@contextmanager
def typing(folder: Path, *arguments: str, program: Sequence[str] = PROGRAM, **environment: str) -> Iterator[Typist]:
    settings = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40", "PYTHONIOENCODING": "utf-8", "PAGER": "cat"}
    terminal, theirs = pty.openpty()
    variables = {**os.environ, **settings, **environment}
    child: subprocess.Popen[bytes] | Forked
    if program is PROGRAM:
        child = shared_forker().start_on_terminal(arguments, folder, variables, theirs)
    else:
        child = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *program, *arguments],
            cwd=folder,
            env=variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    os.close(theirs)
    try:
        yield Typist(terminal, child)
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


class Served:
    """The scripted server, in a thread of its own."""

    def __init__(self, server: Scripted, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._loop = server, loop
        self.url = f"{server.url}/v1"

    def asked(self, number: int = -1) -> list[tuple[str, str]]:
        return [(item["role"], item["content"]) for item in self._server.received[number].body["messages"]]

    @property
    def headers(self) -> dict[str, str]:
        return self._server.received[-1].headers

    def answer_by(self, script_of: Callable[[Any], Script]) -> None:
        """Choose by the body of a request what is answered."""
        self._server.script_of = script_of

    def stream_whole_replies(self) -> None:
        """Scripts that give whole replies serve those who ask for streams too."""
        self._server.streams_whole_replies = True

    def wait_hanging(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.hanging.wait(), self._loop).result(PATIENCE)

    def forget_hanging(self) -> None:
        """The next `wait_hanging` waits for another request."""
        self._loop.call_soon_threadsafe(self._server.hanging.clear)

    def release(self) -> None:
        """What the server holds goes on."""
        self._loop.call_soon_threadsafe(self._server.released.set)

    def wait_left(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.left.wait(), self._loop).result(PATIENCE)


@contextmanager
def serving(*scripts: Script) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    ready: list[Served] = []
    begun, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with scripted(*scripts) as server:
            ready.append(Served(server, loop))
            begun.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(serve()))
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE)
        loop.close()


def use(weft: Shell, served: Served, name: str = "scripted", key_env: str | None = None) -> None:
    """A model program of that server."""
    key = () if key_env is None else ("--key-env", key_env)
    made = weft("provider", "create", f"{name}-home", "--type", "openai-compatible", "--base-url", served.url, *key)
    assert made.code == 0, made.err
    made = weft("model", "create", name, "--backend", "m-1", "--provider", f"{name}-home", "--max-tokens", "50")
    assert made.code == 0, made.err
