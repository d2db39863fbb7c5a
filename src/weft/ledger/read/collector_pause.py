"""A pause of Python's collector of cycles, for a stretch of work that makes thousands of objects and no cycle.

The collector looks through all new objects each time that some hundreds were made. Of a context, where nearly all of
them stay, that takes a tenth of the time and frees nothing.
"""

from __future__ import annotations

import gc
import threading


class CollectorPause:
    """Held by any number of threads; the collector goes on when the last one lets go, unless it was off before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._holders:
                self._was_on = gc.isenabled()
                gc.disable()
            self._holders += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders and self._was_on:
                gc.enable()


COLLECTOR_PAUSE = CollectorPause()
