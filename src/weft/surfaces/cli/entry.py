"""Where the program begins: what it needs is loaded here, so that Ctrl-C is answered from the first moment on.

Nothing but `sys` is imported above `main`: an interrupt that comes before it would end with a traceback.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""As in `command_line.py`, which takes long to load."""


def main() -> int:
    """The command `weft`."""
    try:
        from weft.surfaces.cli.main import main as run_program

        return run_program()
    except KeyboardInterrupt:
        _ignore_interrupts()
        _print_error("weft: interrupted\n")
        return INTERRUPTED


def _ignore_interrupts() -> None:
    """The program is about to end: another Ctrl-C has nothing left to do."""
    while True:
        try:
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:
            continue


def _print_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # the stream is closed, or there is none: the exit code says it
