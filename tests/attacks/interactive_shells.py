"""Shells on terminals, as a person sits at them: keys go in, what the terminal shows comes out."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 120.0
PROMPT = "READY> "
STARTED = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "--interactive"),
}


class InteractiveShell:
    """One shell; `press` sends keys, `wait_for` reads until the terminal has shown a text."""

    def __init__(self, terminal: int) -> None:
        self._terminal, self._screen = terminal, ""

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> str:
        """What was shown up to and with the text; it is not looked at again."""
        end = time.monotonic() + PATIENCE_SECONDS
        while text not in self._screen:
            ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} was not shown, but {self._screen!r}"
            self._screen += os.read(self._terminal, 65536).decode(errors="replace")
        shown, _, self._screen = self._screen.partition(text)
        return shown + text


@contextmanager
def interactive(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[InteractiveShell]:
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "PS1": PROMPT, **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield InteractiveShell(terminal)
        finally:
            process.kill()
            os.close(terminal)


def install_weft(folder: Path) -> Path:
    """A folder with the program `weft` in it, for `PATH`."""
    folder.mkdir(exist_ok=True)
    program = folder / "weft"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft.surfaces.cli "$@"\n')
    program.chmod(0o755)
    return folder
