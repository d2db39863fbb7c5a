"""A terminal that hands every key over as it is pressed, and is afterwards what it was."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


@contextmanager
def reading_keys(file: int) -> Iterator[None]:
    """Keys are neither echoed nor gathered into lines, and Ctrl-C is a key; Ctrl-Z and Ctrl-\\ do what they always
    do."""
    before = termios.tcgetattr(file)
    mode = termios.tcgetattr(file)
    mode[0] &= ~(termios.ICRNL | termios.IXON)
    mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    mode[6][termios.VINTR] = os.fpathconf(file, "PC_VDISABLE").to_bytes(1, "big")
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(file, termios.TCSADRAIN, mode)
    write(BRACKETED_PASTE_ON)
    try:
        yield
    finally:
        write(BRACKETED_PASTE_OFF)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
