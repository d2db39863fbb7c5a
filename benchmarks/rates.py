"""How many a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Rate:
    """So many things a second, and the CPU milliseconds of one."""

    per_second: float
    cpu_ms: float
    rounds: tuple[float, ...]
    """So many a second in each round."""


def middle(rates: Sequence[Rate]) -> Rate:
    """Of the same thing, measured once a round."""
    every = tuple(each.per_second for each in rates)
    return Rate(median(every), median(each.cpu_ms for each in rates), every)
