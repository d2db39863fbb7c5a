"""Ctrl-C while something is done that must not break off half-way, or that would swallow it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Ctrl-C meanwhile is heard afterwards; a second one at once. Other threads never hear of it, and where it is
    ignored it stays so."""
    usual, delayed = signal.getsignal(signal.SIGINT), list[int]()
    if not callable(usual) or current_thread() is not main_thread():
        yield
        return

    def delay(number: int, frame: FrameType | None) -> None:
        delayed.append(number)
        if len(delayed) > 1:
            usual(number, frame)

    signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if len(delayed) == 1:
            usual(delayed[0], None)
