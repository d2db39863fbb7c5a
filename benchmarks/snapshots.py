"""`python -m benchmarks.snapshots [FILES…]`: what a snapshot of a folder costs, next to what else keeps files.

For each number of files: the first snapshot, one of the unchanged folder, one after one file changed, a restore of
that file, a checkout beside, and a fork of a session with its folder; next to `git status`, `git stash` of one file, a
first commit, a commit of one file, a clone and `cp -a --reflink=auto` of the same files. What is done again is done by
turns, so that a busy machine slows all alike. The bar is about 50,000 files: a snapshot of the unchanged folder against
`git status`. On a busy machine it is shown and not judged.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import weft
from weft.kernel.enums import ResourceKind, VolumeMode
from weft.ledger.api import Ledger
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.resources.controller import ResourceController
from weft.runtime.resources.drivers import Drivers
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.turn_files import ForkPlanner

SIZES = (100, 1_000, 10_000, 50_000, 100_000)
ROUNDS = 7
FILES_IN_A_FOLDER = 20
BAR_FILES, BAR_RATIO = 50_000, 1.5
BUSY = 0.75
"""Processes that wait for a processor, per processor."""
NOT_JUDGED = 2
WORDS = "the quick brown fox jumps over a lazy dog while return import def class self none true false".split()
GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench", "-c", "gc.auto=0", "-c", "maintenance.auto=false")


def make_files(folder: Path, files: int) -> Path:
    """Text of 100 bytes to 8 KiB in folders of twenty; the path of one of them."""
    chance = random.Random(files)
    path = folder
    for number in range(files):
        group = number // FILES_IN_A_FOLDER
        path = folder / f"part{group % 50}" / f"module{group // 50}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (" ".join(chance.choices(WORDS, k=8)) for _ in range(chance.randint(2, 160)))
        path.write_text("\n".join(lines))
    return path


def git(folder: Path, *words: str) -> None:
    environment = {"PATH": os.defpath, "HOME": str(folder.parent), "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, env=environment)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Case:
    """One folder of so many files, in a repository of its own and in a store."""

    def __init__(self, place: Path, files: int) -> None:
        self.place, self.files = place, files
        self.folder, self.store = place / "work", FileStore(place / "store")
        self.folder.mkdir()
        self.one = make_files(self.folder, files)
        self.times: dict[str, list[float]] = {}
        self._changes = 0

    def note(self, name: str, action: Callable[[], object]) -> None:
        self.times.setdefault(name, []).append(timed(action))

    def change(self) -> None:
        self._changes += 1
        self.one.write_text(f"change {self._changes}\n")

    def run(self, rounds: int) -> dict[str, float]:
        git(self.folder, "init", "-q")
        self.note("first commit", self.commit_all)
        self.note("first snapshot", lambda: self.store.snapshot(self.folder))
        time.sleep(1.1)  # the index of either is younger than its files
        self.settle()
        for _ in range(rounds):
            self.note("snapshot, unchanged", lambda: self.store.snapshot(self.folder))
            self.note("git status", lambda: git(self.folder, "status", "--porcelain"))
        for _ in range(rounds):
            before = self.store.snapshot(self.folder).id
            self.change()
            self.note("snapshot, one file", lambda: self.store.snapshot(self.folder))
            self.note("restore, one file", lambda before=before: self.store.restore(before, self.folder))  # type: ignore[misc]
            self.change()
            self.note("git stash", lambda: git(self.folder, "stash", "-q"))
            self.change()
            self.note("commit, one file", lambda: git(self.folder, "commit", "-qam", "more"))
        last = self.store.snapshot(self.folder).id
        self.note("checkout beside", lambda: self.store.restore(last, self.place / "beside"))
        self.note("clone", lambda: git(self.place, "clone", "-q", str(self.folder), str(self.place / "clone")))
        with weft.open(self.place / "ledger.db") as ledger:
            ledger.record_turn(session="main", query="begin", response="begun")
            self.note("fork with files", lambda: self.fork(ledger))
        copy = ["cp", "-a", "--reflink=auto", str(self.folder), str(self.place / "copy")]
        self.note("cp -a", lambda: subprocess.run(copy, check=True))
        return {name: 1000 * median(values) for name, values in self.times.items()}

    def fork(self, ledger: Ledger) -> None:
        """A session and its folder, which is declared and kept first: as `weft fork` does it."""
        drivers = Drivers(DirectoryDriver(self.store))
        ResourceController(ledger, drivers).add(drivers.of(ResourceKind.DIRECTORY), str(self.folder), session="main")
        planner = ForkPlanner(ledger, drivers)
        lines = planner.changed(planner.propose("main", "fork"), VolumeMode.SNAPSHOT, str(self.place / "forked"))
        done = planner.carry_out("main", "fork", lines)
        assert not done.failures, done.failures

    def commit_all(self) -> None:
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "one")

    def settle(self) -> None:
        for _ in range(2):
            self.store.snapshot(self.folder)
            git(self.folder, "status", "--porcelain")


RATIOS = (
    ("first snapshot", "first commit"),
    ("snapshot, unchanged", "git status"),
    ("snapshot, one file", "git stash"),
    ("snapshot, one file", "commit, one file"),
    ("restore, one file", "git stash"),
    ("checkout beside", "clone"),
    ("checkout beside", "cp -a"),
    ("fork with files", "cp -a"),
)


def main(sizes: tuple[int, ...]) -> int:
    columns: dict[int, dict[str, float]] = {}
    load = 0.0
    for files in sizes:
        with tempfile.TemporaryDirectory(dir=Path.cwd() / "build") as place:
            columns[files] = Case(Path(place), files).run(ROUNDS if files < BAR_FILES else ROUNDS - 2)
            load = max(load, os.getloadavg()[0] / (os.cpu_count() or 1))
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    print(f"{'milliseconds, median':34}" + "".join(f"{files:>12,}" for files in sizes))
    for name in names:
        print(f"{name:34}" + "".join(f"{columns[files][name]:12.1f}" for files in sizes))
    print(f"\n{'ratios':34}" + "".join(f"{files:>12,}" for files in sizes))
    for one, other in RATIOS:
        print(
            f"{one + ' / ' + other:34}"[:34].ljust(34)
            + "".join(f"{columns[files][one] / columns[files][other]:11.2f}x" for files in sizes)
        )
    if BAR_FILES not in columns:
        return 0
    found = columns[BAR_FILES]["snapshot, unchanged"] / columns[BAR_FILES]["git status"]
    print(f"\nsnapshot of {BAR_FILES:,} unchanged files: {found:.2f}x git status   bar: at most {BAR_RATIO}x")
    if load > BUSY:
        print(f"not judged: {load:.1f} processes wait for each processor; run it again where nothing else runs")
        return NOT_JUDGED
    return int(found > BAR_RATIO)


if __name__ == "__main__":
    (Path.cwd() / "build").mkdir(exist_ok=True)
    if shutil.which("git") is None:
        sys.exit("git is not installed")
    sys.exit(main(tuple(map(int, sys.argv[1:])) or SIZES))
