"""The measurements. Each takes the stages that are built and writes its figures into the results."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, cast

from benchmarks import group_commit, syncing
from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, say, timed
from benchmarks.peers import FORKING_PEER
from benchmarks.peers.bare import BareScan
from benchmarks.rates import rate_of
from benchmarks.registry import WEFT, WEFT_MODULE
from benchmarks.results import IDLE, LOADED_AGAIN, SECRETS, SMALL_LOG, START, ByDepth, Results
from benchmarks.stages import Stage

if TYPE_CHECKING:
    from benchmarks.weft_subject import WeftLedger

SMALL_TURNS = 100
LOADS = 3
"""Of one thread in a round."""

Stages = dict[tuple[str, int], Stage]


def measure_append(stages: Stages, results: Results) -> None:
    """Those that take alike run next to each other: they are compared, and a slow store between two others would leave
    the second another minute, or another speed of the machine."""
    say("append")
    operations = results.sizes.operations
    in_turn = sorted(stages, key=lambda key: stages[key].usual_seconds)
    found = interleave({key: _append_case(stages[key], operations) for key in in_turn}, results.sizes.rounds)
    results.append = _by_name({key: found[key] for key in stages})


def measure_fork(stages: Stages, results: Results) -> None:
    say("fork")
    operations = results.sizes.operations
    forking = {key: stage for key, stage in stages.items() if stage.subject.forker() is not None}
    runs = {key: _fork_case(stage, operations) for key, stage in forking.items()}
    results.fork = _by_name(interleave(runs, results.sizes.rounds))


def measure_load(stages: Stages, results: Results) -> None:
    """Weft keeps the turns that it read for the next time: it is measured without them, and with them."""
    say("load a thread")
    depth = results.sizes.peer_depths[-1]
    runs = {key: _load_case(stage) for key, stage in stages.items() if key[1] == depth}
    stage, subject = stages.get((WEFT.name, depth)), _weft(stages, depth)
    if stage is not None and subject is not None:
        own = {(WEFT.name, depth): _loaded_first(stage, subject), (LOADED_AGAIN, depth): _loaded_again(stage)}
        peer = {key: run for key, run in runs.items() if key[0] == FORKING_PEER}
        runs = {**own, **peer, **{key: run for key, run in runs.items() if key not in own and key not in peer}}
    results.load = _by_name(interleave(runs, results.sizes.rounds))


def _load_case(stage: Stage) -> Callable[[], Run]:
    return lambda: stage.load_run(LOADS)


def _loaded_first(stage: Stage, subject: "WeftLedger") -> Callable[[], Run]:
    return lambda: stage.load_run(LOADS, before=subject.forget)


def _loaded_again(stage: Stage) -> Callable[[], Run]:
    def run() -> Run:
        stage.load_run()
        return stage.load_run(LOADS)

    return run


def measure_read(stages: Stages, results: Results, directory: Path) -> None:
    say("read as typed messages, beside a bare scan of the same messages")
    cases: dict[tuple[str, int], Callable[[], Run]] = {}
    scans: list[BareScan] = []
    for depth in results.sizes.read_depths:
        subject = _weft(stages, depth)
        if subject is None:
            continue
        for name, read in (("thread", subject.thread), ("context", subject.context)):
            scan = BareScan(directory / f"{name}-{depth}.db", import_module(WEFT_MODULE).columns(read()))
            scans.append(scan)
            cases[name, depth] = _repeated(read)
            cases[f"{name} scan", depth] = _repeated(scan.scan)
    results.read = _by_name(interleave(cases, results.sizes.rounds))
    for scan in scans:
        scan.close()


def measure_verify(stages: Stages, results: Results) -> None:
    say("verify")
    subject = _weft(stages, results.sizes.verify_depth)
    if subject is None:
        return
    events = attempt(subject.events)
    if isinstance(events, NotMeasured):
        results.verify = {"facts": events, "views": events}
        return
    cases = {"facts": _repeated(subject.verify_facts), "views": _repeated(subject.verify_views)}
    figures = interleave(cases, min(3, results.sizes.rounds))
    results.verify = {name: rate_of(found, events) for name, found in figures.items()}


def measure_group(stages: Stages, results: Results, directory: Path) -> None:
    say("group commit")
    deep = _weft(stages, results.sizes.depths[-1])
    if deep is None:
        return
    sizes = results.sizes
    results.group = group_commit.measure(deep, directory, sizes.writers, sizes.turns_per_writer, sizes.rounds)


def measure_command_line(stages: Stages, results: Results, directory: Path) -> None:
    say("command line")
    subject = _weft(stages, results.sizes.peer_depths[-1])
    if subject is None:
        return
    script = Path(sys.executable).with_name("weft")
    program = str(script) if script.exists() else shutil.which("weft")
    if program is None:
        results.command_line = {START: NotMeasured("the command `weft` is not installed")}
        return
    commands = {
        START: [program, *START.split()[1:]],
        "weft log, of all": [program, "log"],
        IDLE: [sys.executable, "-c", "pass"],
    }
    processes = {name: _process(command, subject.path) for name, command in commands.items()}
    small = directory / "small.db"
    syncing.record(small, 0, SMALL_TURNS)
    processes |= {name: _process([program, *name.split()[1:]], small, directory) for name in (SMALL_LOG, SECRETS)}
    attempt(processes[START])  # the first start warms the caches
    cases = {name: _repeated(process) for name, process in processes.items()}
    results.command_line = dict(interleave(cases, results.sizes.rounds))


def _process(command: list[str], ledger: Path, directory: Path | None = None) -> Callable[[], None]:
    """Runs a command; with a directory it finds an empty cache there each time."""
    environment = {**os.environ, "WEFT_LEDGER": str(ledger), "PAGER": "cat"}

    def run() -> None:
        cache = {} if directory is None else {"XDG_CACHE_HOME": mkdtemp(dir=directory)}
        done = subprocess.run(command, env=environment | cache, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it failed without a word"])[-1])

    return run


def _append_case(stage: Stage, operations: int) -> Callable[[], Run]:
    return lambda: stage.append_run(operations)


def _fork_case(stage: Stage, operations: int) -> Callable[[], Run]:
    return lambda: stage.fork_run(operations)


def _repeated(action: Callable[[], object], times: int = 3) -> Callable[[], Run]:
    return lambda: timed([action] * times)


def _weft(stages: Stages, depth: int) -> "WeftLedger | None":
    stage = stages.get((WEFT.name, depth))
    return cast("WeftLedger", stage.subject) if stage else None


def _by_name(figures: dict[tuple[str, int], Figure | NotMeasured]) -> dict[str, ByDepth]:
    names: Iterable[str] = dict.fromkeys(name for name, _ in figures)
    return {name: {depth: found for (other, depth), found in figures.items() if other == name} for name in names}
