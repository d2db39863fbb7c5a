"""Many threads record at once, each into its own session, beside one that records as many turns.

Where a sync costs next to nothing there is little to share. So the same is measured a second time, in a process whose
syncs strace makes last as long as they do on a usual disk.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, timed
from benchmarks.rates import Rate, rate_of
from benchmarks.registry import open_weft
from benchmarks.workload import Turn, turns

if TYPE_CHECKING:
    from benchmarks.weft_subject import WeftLedger

ONE_WRITER, FRESH = "one writer", "fresh"
ONE_DEEP, DEEP = "one writer, deep", "deep"
SYNC_MS = 2
ONE_SLOW, SLOW = f"one writer, syncs of {SYNC_MS} ms", f"fresh, syncs of {SYNC_MS} ms"
Work = list[tuple[str, list[Turn]]]
Rates = dict[str, Rate | NotMeasured]


class GroupCommit:
    """Writers and their turns; every run has new ones."""

    def __init__(self, directory: Path, writers: int, turns_per_writer: int) -> None:
        self.labels = [f"writer-{number}" for number in range(writers)]
        self.turns = writers * turns_per_writer
        self._each, self._directory = turns_per_writer, directory
        self._supply, self._numbers = turns(seed=11), count()

    def cases(self) -> dict[str, Callable[[], Run]]:
        """In ledgers that are new."""
        return {ONE_WRITER: lambda: self._fresh_run(self._alone()), FRESH: lambda: self._fresh_run(self._together())}

    def deep_cases(self, ledger: "WeftLedger") -> dict[str, Callable[[], Run]]:
        """In sessions of a ledger that has them already."""
        return {
            ONE_DEEP: lambda: timed([ledger.record_together(self._alone())]),
            DEEP: lambda: timed([ledger.record_together(self._together())]),
        }

    def rates(self, figures: dict[str, Figure | NotMeasured]) -> Rates:
        return {name: rate_of(found, self.turns) for name, found in figures.items()}

    def _alone(self) -> Work:
        return [(self.labels[0], list(islice(self._supply, self.turns)))]

    def _together(self) -> Work:
        return [(label, list(islice(self._supply, self._each))) for label in self.labels]

    def _fresh_run(self, work: Work) -> Run:
        place = self._directory / f"fresh-{next(self._numbers)}"
        place.mkdir(parents=True)
        subject = cast("WeftLedger", open_weft(place))
        try:
            return timed([subject.record_together(work)])
        finally:
            subject.close()


def measure(ledger: "WeftLedger", directory: Path, writers: int, turns_per_writer: int, rounds: int) -> Rates:
    """`ledger` has the deepest thread."""
    group = GroupCommit(directory / "quick", writers, turns_per_writer)
    ledger.fork_sessions(group.labels)
    rates = group.rates(interleave({**group.cases(), **group.deep_cases(ledger)}, rounds))
    slow = attempt(lambda: with_slow_syncs([str(directory / "slow"), *map(str, (writers, turns_per_writer, rounds))]))
    if isinstance(slow, NotMeasured):
        return {**rates, ONE_SLOW: slow, SLOW: slow}
    return {**rates, ONE_SLOW: slow[ONE_WRITER], SLOW: slow[FRESH]}


def with_slow_syncs(arguments: Sequence[str]) -> Rates:
    """This module in a process of its own. Its other calls to the system go on at full speed."""
    strace = shutil.which("strace")
    if strace is None:
        raise RuntimeError("strace is not installed")
    delay = ["-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:delay_exit={SYNC_MS * 1000}"]
    tracer = [strace, "-f", "--seccomp-bpf", "-qq", "-e", "signal=none", *delay, "-o", "/dev/null"]
    child = [sys.executable, "-m", "benchmarks.group_commit", *arguments]
    done = subprocess.run(tracer + child, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise RuntimeError(lines[-1])
    return cast("Rates", msgspec.json.decode(done.stdout, type=dict[str, Rate]))


def main() -> None:
    directory, writers, turns_per_writer, rounds = sys.argv[1:]
    group = GroupCommit(Path(directory), int(writers), int(turns_per_writer))
    rates = group.rates(interleave(group.cases(), int(rounds)))
    failed = [str(found) for found in rates.values() if isinstance(found, NotMeasured)]
    if failed:
        sys.exit(failed[0])
    sys.stdout.buffer.write(msgspec.json.encode(rates))


if __name__ == "__main__":
    main()
