"""How long an import will take: from the bytes that are left and how fast it went up to now."""

from __future__ import annotations

from weft.kernel.ambient import Clock

USUAL_RATE = 6_000_000.0
"""Bytes a second, before anything was measured: what a small machine does with sessions of coding agents."""
TRUSTED_SECONDS = 10.0
"""After so long the measured rate counts as much as the assumed one; later it counts for more."""


class Pace:
    """Begins with a rate that is assumed, or was measured the last time, and learns."""

    def __init__(self, clock: Clock, rate: float | None = None) -> None:
        self._clock, self._assumed = clock, rate or USUAL_RATE
        self._begun = clock.monotonic()

    def rate(self, done: int) -> float:
        """Bytes a second, now that so many are done."""
        seconds = self._clock.monotonic() - self._begun
        return (self._assumed * TRUSTED_SECONDS + done) / (TRUSTED_SECONDS + seconds)

    def seconds_left(self, done: int, of: int) -> float:
        return max(0, of - done) / max(1.0, self.rate(done))
