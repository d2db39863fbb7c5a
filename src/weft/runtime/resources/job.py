"""The job of a broker that carries out what is wanted of resources: wishes that whoever made them did not live to see
done, and those of forks."""

from __future__ import annotations

from collections.abc import Callable

from weft.ledger.api import Ledger
from weft.runtime.resources.controller import ResourceController
from weft.runtime.turns.ledger_port import Crossing

BUSY_MS = 5000
"""So soon is looked again at what somebody else works on, or an engine that does not answer is to do."""
LEFT_MS = 60_000
"""So soon is tried again what could not be removed."""


class ResourceJob:
    """A `BackgroundJob`. Its first run also finishes what a process that died left half done; later ones act where
    something is wanted."""

    name = "resources"

    def __init__(self, ledger: Ledger, crossing: Crossing, controller: Callable[[], ResourceController]) -> None:
        self._ledger, self._crossing, self._make = ledger, crossing, controller
        self._controller: ResourceController | None = None
        self._has_left = False
        """Whether something could not be done when it was last tried."""

    async def run_due(self, now_ms: int) -> int | None:
        return await self._crossing.run(lambda: self.run(now_ms))

    def run(self, now_ms: int) -> int | None:
        """Carry out what is open; when to look again at the latest. A ledger that may not act for the person is left
        as it is."""
        if not self._ledger.trust.is_trusted:
            return None
        if self._controller is None:
            self._controller = self._make()
        elif not self._has_left and not any(self._controller.pending()):
            return None
        self._has_left = bool(self._controller.reconcile().left)
        if any(self._controller.pending()):
            return now_ms + BUSY_MS
        return now_ms + LEFT_MS if self._has_left else None
