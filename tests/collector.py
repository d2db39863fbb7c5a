"""Python's garbage collector, kept out of what lives until the tests end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
