"""How many a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.measure import Figure, NotMeasured


@dataclass(frozen=True, slots=True)
class Rate:
    """So many things a second, and the CPU milliseconds of one."""

    per_second: float
    cpu_ms: float
    rounds: tuple[float, ...]
    """So many a second in each round."""


def rate_of(found: Figure | NotMeasured, amount: int) -> Rate | NotMeasured:
    """Of an action that does so many things."""
    if isinstance(found, NotMeasured):
        return found
    every = tuple(amount / each * 1e3 for each in found.rounds_ms)
    return Rate(amount / found.wall_ms * 1e3, found.cpu_ms / amount, every)


def middle(rates: Sequence[Rate]) -> Rate:
    """Of the same thing, measured once a round."""
    every = tuple(each.per_second for each in rates)
    return Rate(median(every), median(each.cpu_ms for each in rates), every)
