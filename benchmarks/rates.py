"""How many a second."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """So many things a second, and the CPU milliseconds of one."""

    per_second: float
    cpu_ms: float
