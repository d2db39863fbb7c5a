"""How big a test is: it fits into `make test`, and grows to the stated size in `make prove`.

A sweep (a kill at every statement, a flip of every bit) takes a share of its points in `make test`. Which share depends
on the commit, so that the points are all taken in turn as the project goes on; without git it is always the same one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PROVING = os.environ.get("WEFT_PROVE", "") not in ("", "0")
SEED = int(os.environ.get("WEFT_SEED", "20261115"))
OFFSET_VARIABLE = "WEFT_POINTS"
"""Where a run begins in every sweep. The process that starts the others sets it, so that all take the same points."""


Record = Callable[[str, object], None]  # pytest's `record_property`: what a test counted


def sized(*, test: T, prove: T) -> T:
    return prove if PROVING else test


def chance(*what: object) -> random.Random:
    """Repeatable randomness of one test; WEFT_SEED gives another."""
    return random.Random(f"{SEED}/{'/'.join(map(str, what))}")


def points(total: int, *, test: int) -> range:
    """The points of a sweep that this run takes, of those from 0 to `total`: all in `make prove`, else `test` of them
    or a few less, equally far apart. A failure prints the command that takes the same ones again."""
    if total < 0 or test < 1:
        raise ValueError(f"{test} of {total} points")
    if PROVING or total <= test:
        return range(total)
    _sharing.add(_place_of_caller())
    stride = -(-total // test)
    return range(points_offset() % stride, total, stride)


def share(items: Sequence[T], *, test: int) -> list[T]:
    """The items at `points`."""
    return [items[k] for k in points(len(items), test=test)]


_sharing: set[str] = set()
"""Tests, by their ids, and files, by their paths, whose points were a share."""


def takes_share(test_id: str, path: Path) -> bool:
    """Did the test take a share of its points, or its file when it was collected?"""
    return test_id in _sharing or str(path) in _sharing


def _place_of_caller() -> str:
    """The test that runs. While tests are collected: the file that asks."""
    if running := os.environ.get("PYTEST_CURRENT_TEST"):
        return running.rpartition(" (")[0]
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename


@cache
def points_offset() -> int:
    """A number from HEAD, or the one that was given."""
    if given := os.environ.get(OFFSET_VARIABLE):
        return int(given)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        head = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive, or a machine without git
        return 0
    return int(head[:7], 16)
