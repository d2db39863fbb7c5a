"""Clock and randomness: the only module that asks the machine for either. Everyone else is handed them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

RandomBytes = Callable[[int], bytes]

system_random: RandomBytes = os.urandom


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix milliseconds; may stand still or go back."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FixedClock:
    """A clock that moves only when told; sleeping moves it at once."""

    def __init__(self, now_ms: int = 0) -> None:
        self._wall_us = now_ms * 1000
        self._elapsed_us = 0

    def now_ms(self) -> int:
        return self._wall_us // 1000

    def monotonic(self) -> float:
        return self._elapsed_us / 1_000_000

    def sleep(self, seconds: float) -> None:
        self._pass(round(seconds * 1_000_000))

    def set(self, now_ms: int) -> None:
        """Move the wall clock, also back; no time passes."""
        self._wall_us = now_ms * 1000

    def tick(self, ms: int = 1) -> None:
        self._pass(ms * 1000)

    def _pass(self, us: int) -> None:
        self._wall_us += us
        self._elapsed_us += us
