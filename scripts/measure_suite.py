"""What `make test` takes: in a fresh clone of HEAD, after its set-up, with the CPU time of every process of it.

    scripts/measure_suite                          one run
    scripts/measure_suite --times 3 --beside 4     three runs, each beside four busy loops
    scripts/measure_suite --here --write           this checkout as it stands; its costs become tests/durations.json

It prints the times of each run, the twenty dearest tests, and those above one second that give no reason. It fails
where a run fails, or takes more than 12 CPU minutes; that is judged only where nothing runs beside it, since a core
that two processes share gives each less work for the same time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = Path("tests") / "durations.json"
MOST_CPU_MINUTES = 12
DEAREST = 20
SLOW_CPU_SECONDS = 1.0
KEPT_UNIT_SECONDS = 0.5
"""Files that take less are left out of the table: where they run makes no difference."""
PR_SET_CHILD_SUBREAPER = 36
BUSY = "while True: pass"
Row = dict[str, Any]


@dataclass
class RunTimes:
    code: int
    wall_seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        result = "passed" if self.code == 0 else f"failed with exit code {self.code}"
        return f"{result} in {self.wall_seconds / 60:.1f} min, {self.cpu_seconds / 60:.1f} CPU min"


def main() -> int:
    arguments = _arguments()
    if arguments.measured is not None:
        return run_measured(arguments.measured)
    with _checkout(arguments) as folder, tempfile.TemporaryDirectory(prefix="weft-costs-") as costs:
        _say("setting up")
        subprocess.run([folder / "scripts" / "setup"], check=True, stdout=sys.stderr)
        runs: list[RunTimes] = []
        rows: list[Row] = []
        for number in range(arguments.times):
            place = Path(costs) / str(number)
            place.mkdir()
            with busy_loops(arguments.beside):
                runs.append(measure(folder, place))
            print(f"make test {runs[-1]}", flush=True)
            rows = list(rows_of(place))
        print("\n".join(report_lines(rows)))
        if arguments.write and runs[-1].code == 0:
            (ROOT / DURATIONS).write_text(durations(rows))
    is_too_dear = not arguments.beside and any(run.cpu_seconds > MOST_CPU_MINUTES * 60 for run in runs)
    if is_too_dear:
        print(f"that is more than {MOST_CPU_MINUTES} CPU minutes")
    return 1 if is_too_dear or any(run.code for run in runs) else 0


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="scripts/measure_suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=1, metavar="N", help="so many runs, one after the other")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="so many busy loops beside each run")
    parser.add_argument("--here", action="store_true", help="this checkout, and no clone")
    parser.add_argument("--in", dest="parent", metavar="FOLDER", help="where the clone is made and left")
    parser.add_argument("--write", action="store_true", help="write tests/durations.json of this checkout")
    parser.add_argument("--measured", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextmanager
def _checkout(arguments: argparse.Namespace) -> Iterator[Path]:
    if arguments.here:
        yield ROOT
        return
    parent = arguments.parent or tempfile.mkdtemp(prefix="weft-measured-")
    folder = Path(parent) / "weft"
    try:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        yield folder
    finally:
        if arguments.parent is None:
            shutil.rmtree(parent, ignore_errors=True)


@contextmanager
def busy_loops(amount: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(amount)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(folder: Path, costs: Path) -> RunTimes:
    """One run, in a process of its own, of which all others descend: the busy loops are none of them."""
    times = costs / "times.json"
    environment = {**os.environ, "WEFT_COSTS": str(costs)}
    command = [sys.executable, __file__, "--measured", str(times)]
    subprocess.run(command, cwd=folder, env=environment, check=False)
    return RunTimes(**json.loads(times.read_text()))


def run_measured(file: Path) -> int:
    """Run `make test` here and write what it took. Processes that outlive the one that started them are counted too:
    this one becomes their parent, and waits for each as soon as it has ended. Tests look whether such a process is
    gone, and one that nobody has waited for is not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    suite = os.posix_spawnp("make", ["make", "test"], os.environ)
    ended, status = os.wait()
    while ended != suite:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begun
    _wait_for_others(until=time.monotonic() + 10)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    file.write_text(json.dumps({"code": code, "wall_seconds": wall, "cpu_seconds": used.ru_utime + used.ru_stime}))
    return code


def _wait_for_others(until: float) -> None:
    """Those that have not ended by then are left."""
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            return


def rows_of(folder: Path) -> Iterator[Row]:
    for file in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, file.read_text().splitlines())


def report_lines(rows: Iterable[Row]) -> Iterator[str]:
    dearest_first = sorted(rows, key=lambda row: -row["cpu"])
    yield f"{len(dearest_first)} tests, {sum(row['cpu'] for row in dearest_first) / 60:.1f} CPU min; the dearest:"
    for row in dearest_first[:DEAREST]:
        yield f"{row['cpu']:8.1f} s  {row['wall']:6.1f} s by the clock  {row['test']}"
    unexplained = [row for row in dearest_first if row["cpu"] > SLOW_CPU_SECONDS and not row["why"]]
    if unexplained:
        yield f"{len(unexplained)} tests took more than a second of CPU and have no @pytest.mark.slow with a reason:"
        yield from (f"{row['cpu']:8.1f} s  {row['test']}" for row in unexplained)


def durations(rows: Iterable[Row]) -> str:
    """The CPU seconds of each unit that is started as a whole, the dearest first."""
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        seconds[row["unit"]] += row["cpu"]
    kept = sorted(((took, unit) for unit, took in seconds.items() if took >= KEPT_UNIT_SECONDS), reverse=True)
    return json.dumps({unit: round(took, 1) for took, unit in kept}, indent=0) + "\n"


def _say(text: str) -> None:
    print(f"measure_suite: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
