"""Importing Claude Code sessions: speed, memory, size, and whether a full ledger makes it slower.

Each import runs in a process of its own, whose CPU time and peak memory it reports. The sessions are real ones where a
corpus lies beside the checkout, else made up with the same shape.
"""

import json
import random
import resource
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID

from benchmarks.machine import peak_bytes
from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "claude-code"
MIB = 1024 * 1024
ONE_PROCESS, TWO_PROCESSES, FLOOR = "in one process", "in two processes", "its lines parsed, hashed and stored bare"
LINES_TOGETHER = 512
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Import:
    """One import: what was read, what it took."""

    source_bytes: int
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    """Of the whole process, the interpreter included."""
    ledger_bytes: int
    worker_cpu_seconds: float = 0
    worker_peak_bytes: int = 0
    rounds: tuple[float, ...] = ()
    """The seconds by the clock of each round, where there were several; the rest is of the middle one."""

    @property
    def mb_per_cpu_second(self) -> float:
        return self.source_bytes / 1e6 / self.cpu_seconds

    @property
    def size_ratio(self) -> float:
        return self.ledger_bytes / self.source_bytes


def measure_import(sizes: Sizes, directory: Path) -> dict[str, Import | NotMeasured]:
    say("import")
    place = directory / "imports"
    small = made_up(place / "small", sessions=1, mib=sizes.import_mib)
    large = made_up(place / "large", sessions=1, mib=4 * sizes.import_mib)
    many = made_up(place / "many", sessions=sizes.import_sessions, mib=1)
    found: dict[str, Import | NotMeasured] = {
        "one session": attempt(lambda: imported(place / "small.db", small)),
        "one session, four times as long": attempt(lambda: imported(place / "large.db", large)),
    }
    source = CORPUS if CORPUS.is_dir() and sizes.import_corpus else large
    found |= _in_turns(place, source, ROUNDS if sizes.import_corpus else 1)
    found[FLOOR] = attempt(lambda: stored_bare(place / "floor.db", source))
    if CORPUS.is_dir() and sizes.import_corpus:
        found["real sessions"] = attempt(lambda: imported(place / "corpus.db", CORPUS))
        filled = attempt(lambda: imported(place / "full.db", many))
        found["real sessions, into a ledger that has many"] = (
            filled if isinstance(filled, NotMeasured) else attempt(lambda: imported(place / "full.db", CORPUS))
        )
    return found


def _in_turns(place: Path, source: Path, rounds: int) -> dict[str, Import | NotMeasured]:
    """One process and two of them take turns: they are compared."""
    runs: dict[str, list[Import | NotMeasured]] = {ONE_PROCESS: [], TWO_PROCESSES: []}
    for number in range(rounds):
        for processes, each in enumerate(runs.values(), 1):
            ledger = place / f"{processes}-{number}.db"
            each.append(attempt(partial(imported, ledger, source, processes)))
            for file in ledger.parent.glob(f"{ledger.name}*"):
                file.unlink()
    return {name: _middle(each) for name, each in runs.items()}


def _middle(runs: list[Import | NotMeasured]) -> Import | NotMeasured:
    """The one in the middle by the clock, and how long each took."""
    failed = next((run for run in runs if isinstance(run, NotMeasured)), None)
    if failed is not None:
        return failed
    done = [run for run in runs if isinstance(run, Import)]
    seconds = tuple(run.wall_seconds for run in done)
    return replace(sorted(done, key=lambda run: run.wall_seconds)[len(done) // 2], rounds=seconds)


def stored_bare(database: Path, source: Path) -> Import:
    """The floor, in this process: every line is parsed, hashed and stored, hundreds in a transaction, and no more."""
    import sqlite3
    from hashlib import sha256
    from itertools import islice

    import orjson

    cpu, wall = time.process_time(), time.perf_counter()
    size = 0
    store = sqlite3.connect(database, isolation_level=None)
    store.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE line(digest BLOB, data BLOB)"
    )
    for path in sorted(source.rglob("*.jsonl")):
        with path.open("rb") as file:
            while lines := list(islice(file, LINES_TOGETHER)):
                size += sum(map(len, lines))
                for line in lines:
                    with suppress(orjson.JSONDecodeError):  # damaged lines are stored as they are
                        orjson.loads(line)
                store.execute("BEGIN")
                store.executemany("INSERT INTO line VALUES (?, ?)", ((sha256(line).digest(), line) for line in lines))
                store.execute("COMMIT")
    store.close()
    spent = (time.process_time() - cpu, time.perf_counter() - wall)
    return Import(size, *spent, peak_bytes(), _size(database))


def imported(ledger: Path, source: Path, processes: int = 1) -> Import:
    """In a process of its own. The ledger's size is what the import added."""
    before = _size(ledger)
    command = [sys.executable, "-m", "benchmarks.imports", str(ledger), str(source), str(processes)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if ran.returncode:
        raise RuntimeError(f"the import ended with {ran.stderr.strip().splitlines()[-1:]}")
    return Import(**json.loads(ran.stdout), ledger_bytes=_size(ledger) - before)


def _size(ledger: Path) -> int:
    return sum(file.stat().st_size for file in ledger.parent.glob(f"{ledger.name}*"))


def main() -> None:
    import weft
    from weft.exchange.importers.port import load_importers
    from weft.exchange.importing.run import ImportRun
    from weft.kernel.clock import FixedClock

    ledger_path, source, processes = sys.argv[1:]
    worker_peaks = [0]

    def note_worker(_: object) -> None:
        if run._ahead is not None and run._ahead.worker_pid is not None:
            worker_peaks.append(peak_bytes(run._ahead.worker_pid))

    cpu, wall = time.process_time(), time.perf_counter()
    with weft.open(ledger_path) as ledger:
        importers, clock = load_importers("claude-code"), FixedClock(10**13)
        run = ImportRun(ledger, importers, clock, processes=int(processes), progress=note_worker)
        summary = run.run([Path(source)])
        ledger.upkeep.catch_up()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    totals = summary.of("claude-code")
    answer = {
        "source_bytes": totals.bytes,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_bytes": peak_bytes(),
        "worker_cpu_seconds": children.ru_utime + children.ru_stime,
        "worker_peak_bytes": max(worker_peaks),
    }
    print(json.dumps(answer))


def made_up(folder: Path, *, sessions: int, mib: int) -> Path:
    """Sessions with prompts, thinking, tool calls of every length, and the usual envelope on every line."""
    folder.mkdir(parents=True)
    for number in range(sessions):
        chance = random.Random(number)
        size = 0
        parent: str | None = None
        session = str(UUID(int=chance.getrandbits(128), version=4))
        with (folder / f"{session}.jsonl").open("w") as file:
            while size < mib * MIB:
                for line in _exchange(chance, session, parent):
                    parent = str(line["uuid"])
                    size += file.write(json.dumps(line, separators=(",", ":")) + "\n")
    return folder


def _exchange(chance: random.Random, session: str, parent: str | None) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []

    def add(kind: str, content: object, **more: object) -> None:
        nonlocal parent
        uuid = str(UUID(int=chance.getrandbits(128), version=4))
        message: dict[str, object] = {"role": kind, "content": content}
        if kind == "assistant":
            usage = {"input_tokens": 3, "cache_read_input_tokens": 20_000, "output_tokens": chance.randrange(900)}
            message |= {"id": f"msg_{uuid}", "type": "message", "model": "claude-sonnet-4-5", "usage": usage}
        envelope = {"sessionId": session, "cwd": "/home/dev/project", "gitBranch": "main", "version": "2.1.50"}
        times = {"timestamp": "2026-01-02T03:04:05.678Z", "userType": "external", "isSidechain": False}
        line = {"parentUuid": parent, **envelope, **times, "type": kind, "message": message, "uuid": uuid, **more}
        lines.append(line)
        parent = uuid

    add("user", _words(chance, 30))
    for _ in range(chance.randrange(1, 6)):
        call, result = f"toolu_{chance.getrandbits(96):x}", _words(chance, chance.choice((20, 100, 400, 2_000)))
        use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": _words(chance, 12)}}
        add("assistant", [{"type": "text", "text": _words(chance, 40)}, use])
        answered = {"stdout": result, "stderr": "", "interrupted": False}
        add("user", [{"type": "tool_result", "tool_use_id": call, "content": result}], toolUseResult=answered)
    add("assistant", [{"type": "text", "text": _words(chance, 120)}])
    return lines


def _words(chance: random.Random, count: int) -> str:
    return " ".join(
        f"{chance.getrandbits(20):x}" if chance.random() < 0.3 else "config path error" for _ in range(count)
    )


if __name__ == "__main__":
    main()
