"""Memory: Python's garbage collector is kept out of what lives until the tests end, and SQLite counts nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import apsw


@contextmanager
def paused_collector() -> Iterator[None]:
    """Nothing is collected meanwhile, and what was made is never walked through: a collector that meets a million nodes
    of syntax trees again and again takes longer than the parser."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def count_no_memory() -> None:
    """SQLite has a sum of what it took, which nobody here asks for, and a lock around it: a quarter of the time in
    which it reads a schema. Before anything is open."""
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)
    apsw.initialize()
