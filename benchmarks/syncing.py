"""`python -m benchmarks.syncing`: what a push and a pull move, and how long they take, beside `git push` of the same.

A ledger of so many turns is pushed to an empty one behind `weft sync-stdio`, then some turns more; a third ledger pulls
it all. Git gets the same turns as JSON lines, committed by the hundred, and is asked for the pack that it would send.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import weft
from benchmarks.workload import Turn, turns
from weft.exchange import sync
from weft.exchange.sync import Synced
from weft.ledger.ledger import Ledger

A_COMMIT = 100
BAR = 1.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--turns", type=int, default=1_000, help="how many turns there are first (100,000 is the claim)"
    )
    parser.add_argument("--more", type=int, default=100, help="how many come before the second push")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-sync-") as folder:
        rows = measure(Path(folder), options.turns, options.more)
    print(f"{'':24} {'missing':>12} {'on the wire':>12} {'ratio':>6} {'seconds':>8}")
    for name, missing, moved, seconds in rows:
        print(f"{name:24} {missing:12,} {moved:12,} {moved / missing if missing else 0:6.2f} {seconds:8.2f}")
    worst = max(moved / missing for name, missing, moved, _ in rows if missing and name.startswith("weft"))
    print(f"at most {worst:.2f} times the bytes that are missing (the bar is {BAR})")
    return int(worst > BAR)


def measure(folder: Path, first: int, more: int) -> list[tuple[str, int, int, float]]:
    given = turns()
    some, rest = [next(given) for _ in range(first)], [next(given) for _ in range(more)]
    rows = []
    with weft.open(folder / "here.db") as here, weft.open(folder / "third.db") as third:
        hub = folder / "hub.db"
        weft.open(hub).close()
        address = f"cmd:{shlex.join([sys.executable, '-m', 'weft.surfaces.cli', 'sync-stdio', '--ledger', str(hub)])}"
        record(here, some)
        rows.append(timed("weft push, all", lambda: sync.push(here, address, weft.open)))
        record(here, rest)
        rows.append(timed("weft push, more", lambda: sync.push(here, address, weft.open)))
        rows.append(timed("weft push, nothing", lambda: sync.push(here, address, weft.open)))
        rows.append(timed("weft pull, all", lambda: sync.pull(third, address, weft.open)))
    return rows + git_rows(folder / "git", some, rest)


def record(ledger: Ledger, given: list[Turn]) -> None:
    for turn in given:
        ledger.record_turn(
            session="main",
            query=turn.query,
            response=turn.response,
            model=turn.model,
            usage=turn.usage,
            tool_calls=[{"id": turn.call, "name": turn.tool, "arguments": turn.arguments, "result": turn.result}],
        )


def timed(name: str, work: Callable[[], Synced]) -> tuple[str, int, int, float]:
    start = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - start
    return name, done.event_bytes + done.content_bytes, done.sent_bytes + done.received_bytes, seconds


def git_rows(repository: Path, some: list[Turn], rest: list[Turn]) -> list[tuple[str, int, int, float]]:
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    git(repository, "config", "user.email", "bench@localhost")
    git(repository, "config", "user.name", "bench")
    rows = []
    for name, given in (("git push, all", some), ("git push, more", rest)):
        before = git(repository, "rev-parse", "-q", "--verify", "HEAD", check=False).decode().strip()
        size = commit(repository, given)
        start = time.perf_counter()
        wanted = f"HEAD\n^{before}\n" if before else "HEAD\n"
        pack = git(repository, "pack-objects", "--revs", "--thin", "--stdout", "-q", given=wanted.encode())
        rows.append((name, size, len(pack), time.perf_counter() - start))
    return rows


def commit(repository: Path, given: list[Turn]) -> int:
    """The turns as lines of one file, a commit for every hundred; returns how many bytes they are."""
    size = 0
    for start in range(0, len(given), A_COMMIT):
        lines = b"".join(json.dumps(asdict(turn)).encode() + b"\n" for turn in given[start : start + A_COMMIT])
        with (repository / "main.jsonl").open("ab") as file:
            size += file.write(lines)
        git(repository, "add", "main.jsonl")
        git(repository, "commit", "-q", "-m", f"turns from {start}")
    return size


def git(repository: Path, *words: str, given: bytes = b"", check: bool = True) -> bytes:
    return subprocess.run(["git", *words], cwd=repository, input=given, check=check, capture_output=True).stdout


if __name__ == "__main__":
    sys.exit(main())
