"""How often an append waits for the disk: counted by strace in a process of its own.

The child syncs a marker file between the appends, so every sync in the trace belongs to one append. Those of
a checkpoint fall to the append that caused it: they show in the mean, not in the median.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean, median

from benchmarks.measure import NotMeasured, attempt
from benchmarks.subject import Spec
from benchmarks.workload import turns

MARKER = "marker"
_SYNC = re.compile(r"\b(?:fsync|fdatasync)\(\d+<([^>]*)>")


@dataclass(frozen=True, slots=True)
class Fsyncs:
    median: float
    mean: float


def count_fsyncs(spec: Spec, amount: int, directory: Path) -> Fsyncs | NotMeasured:
    return attempt(lambda: count_between_markers("benchmarks.fsyncs", [spec.name], amount, directory))


def count_between_markers(module: str, arguments: Sequence[str], amount: int, directory: Path) -> Fsyncs:
    """Run a module under strace with a directory, an amount and its own arguments: it performs so many operations, and
    syncs the marker file there before, between and after them."""
    strace = shutil.which("strace")
    if strace is None:
        raise RuntimeError("strace is not installed")
    directory.mkdir(parents=True)
    trace = directory / "trace"
    tracer = [strace, "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", str(trace)]
    child = [sys.executable, "-m", module, str(directory), str(amount), *arguments]
    done = subprocess.run(tracer + child, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise RuntimeError(lines[-1])
    counts = counts_between_markers(trace.read_text())
    if len(counts) != amount:
        raise RuntimeError(f"{len(counts)} operations in the trace, not {amount}")
    return Fsyncs(median(counts), mean(counts))


def counts_between_markers(trace: str) -> list[int]:
    """Syncs after each marker and before the next."""
    counts: list[int] = []
    for path in _SYNC.findall(trace):
        if Path(path).name == MARKER:
            counts.append(0)
        elif counts:
            counts[-1] += 1
    return counts[:-1]


def append_between_markers(spec: Spec, directory: Path, amount: int) -> None:
    store = directory / "store"
    store.mkdir()
    subject = spec.open(store)
    supply = turns()
    for turn in islice(supply, 10):
        subject.appender(turn)()
    with (directory / MARKER).open("wb") as marker:
        os.fsync(marker.fileno())
        for turn in islice(supply, amount):
            subject.appender(turn)()
            os.fsync(marker.fileno())
    subject.close()


def main() -> None:
    from benchmarks.registry import spec_named  # the child alone needs all of the stores

    directory, amount, name = sys.argv[1:]
    append_between_markers(spec_named(name), Path(directory), int(amount))


if __name__ == "__main__":
    main()
