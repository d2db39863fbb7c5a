"""A terminal that hands every key over as it is pressed, and is afterwards what it was."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


def can_draw() -> bool:
    """Whether somebody sits at a terminal that lines can be drawn on again."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


@contextmanager
def reading_keys(file: int) -> Iterator[Callable[[], None]]:
    """Keys are neither echoed nor gathered into lines, and Ctrl-C is a key; Ctrl-Z and Ctrl-\\ do what they always do.
    Gives a function that makes it so once more, after a shell had the terminal."""
    before = termios.tcgetattr(file)
    mode = termios.tcgetattr(file)
    mode[0] &= ~(termios.ICRNL | termios.IXON)
    mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    mode[6][termios.VINTR] = os.fpathconf(file, "PC_VDISABLE").to_bytes(1, "big")
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0

    def set_mode() -> None:
        termios.tcsetattr(file, termios.TCSADRAIN, mode)
        write(BRACKETED_PASTE_ON)

    set_mode()
    try:
        yield set_mode
    finally:
        write(BRACKETED_PASTE_OFF)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
