"""How big a fault test is: it fits into `make test`, and grows to the stated size in `make prove`."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PROVING = os.environ.get("WEFT_PROVE", "") not in ("", "0")
SEED = int(os.environ.get("WEFT_SEED", "20261115"))


Record = Callable[[str, object], None]  # pytest's `record_property`: what a test counted


def sized(*, test: T, prove: T) -> T:
    return prove if PROVING else test


def chance(*what: object) -> random.Random:
    """Repeatable randomness of one test; WEFT_SEED gives another."""
    return random.Random(f"{SEED}/{'/'.join(map(str, what))}")
