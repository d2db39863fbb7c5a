"""Syncing: what a push and a pull move, and what they take, beside `git push` of the same turns.

A ledger is pushed to an empty one behind `weft sync-stdio`, then some turns more, then nothing; a third ledger pulls it
all. Each runs in a process of its own, which reports the CPU time and the peak memory of both sides. Git gets the same
turns as JSON lines, a file and a commit for every hundred, and pushes them to an empty repository.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import peak_bytes
from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, say, timed
from benchmarks.plan import Sizes
from benchmarks.workload import Turn, turns

if TYPE_CHECKING:
    from weft.ledger.api.ledger import Ledger

CLONE, COPY = "weft clone", "copy of the file, synced"
_COPY_AND_SYNC = """
import os, shutil, sys
shutil.copyfile(*sys.argv[1:])
descriptor = os.open(sys.argv[2], os.O_RDONLY)
os.fsync(descriptor)
"""
A_COMMIT = 100
SEED = 7
Found = dict[str, "Moved | NotMeasured"]


@dataclass(frozen=True, slots=True)
class Moved:
    """One push or pull."""

    missing_bytes: int
    """Of the facts that the other side lacked; for git, of the files."""
    moved_bytes: int
    """On the wire, both ways."""
    cpu_seconds: float
    """Of both sides."""
    wall_seconds: float
    peak_bytes: int | None = None
    """Of the side that needs more, the interpreter included."""

    @property
    def ratio(self) -> float | None:
        return self.moved_bytes / self.missing_bytes if self.missing_bytes else None


def measure_syncing(sizes: Sizes, directory: Path) -> Found:
    """Rows are named by the turns that the ledger has and by what is done."""
    found: Found = {}
    for amount in sizes.sync_turns:
        say(f"sync {amount:,} turns")
        place = directory / f"sync-{amount}"
        place.mkdir()
        here = place / "here.db"
        built = attempt(lambda here=here, amount=amount: record(here, 0, amount))  # type: ignore[misc]
        if isinstance(built, NotMeasured):
            found[name_of(amount, "push, all")] = built
            continue
        found |= synced(place, here, amount, sizes.sync_more)
    say("git push")
    found |= pushed_by_git(directory / "git", sizes.sync_turns[-1], sizes.sync_more)
    return found


def measure_cloning(ledger: Path, rounds: int) -> dict[str, Figure | NotMeasured]:
    """`weft clone` of a ledger of this person's, beside a copy of its file that is synced. Both in processes of their
    own, and of a ledger that nobody has open."""
    folder = ledger.with_name("clones")
    folder.mkdir()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "WEFT_LEDGER": str(ledger)}
    weft = [sys.executable, "-m", "weft.surfaces.cli"]

    def run(command: list[str]) -> None:
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=Path(__file__).parents[1])

    def case(command: list[str]) -> Callable[[], Run]:
        def one() -> Run:
            for path in folder.glob("made*"):
                path.unlink()
            return timed([lambda: run(command)])

        return one

    made = folder / "made.db"
    run([*weft, "trust"])
    cases = {
        CLONE: case([*weft, "clone", str(ledger), str(made)]),
        COPY: case([sys.executable, "-c", _COPY_AND_SYNC, str(ledger), str(made)]),
    }
    return dict(interleave(cases, rounds))


def name_of(amount: int, what: str) -> str:
    return f"{amount:,} turns: {what}"


def synced(place: Path, here: Path, amount: int, more: int) -> Found:
    """A ledger of so many turns, pushed and pulled. Any of it that fails takes no other with it."""
    import weft

    hub, third = place / "hub.db", place / "third.db"
    for other in (hub, third):
        weft.open(other).close()
    found = {name_of(amount, "push, all"): attempt(lambda: apart("push", here, hub))}
    attempt(lambda: record(here, amount, more))
    found[name_of(amount, f"push, {more:,} more")] = attempt(lambda: apart("push", here, hub))
    attempt(lambda: catch_up(hub))
    found[name_of(amount, "push, nothing")] = attempt(lambda: apart("push", here, hub))
    found[name_of(amount, "pull, all")] = attempt(lambda: apart("pull", third, hub))
    return found


def catch_up(path: Path) -> None:
    """Or each closing would spend its moment on search, which has all turns that were pushed before it."""
    import weft

    with weft.open(path) as ledger:
        ledger.upkeep.catch_up()


def record(path: Path, start: int, amount: int) -> None:
    import weft

    with weft.open(path) as ledger:
        for turn in islice(turns(start, SEED), amount):
            record_turn(ledger, turn)
        ledger.upkeep.catch_up()


def record_turn(ledger: "Ledger", turn: Turn) -> None:
    ledger.record_turn(
        session="main",
        query=turn.query,
        response=turn.response,
        model=turn.model,
        usage=turn.usage,
        tool_calls=[{"id": turn.call, "name": turn.tool, "arguments": turn.arguments, "result": turn.result}],
    )


def apart(verb: str, ledger: Path, other: Path) -> Moved:
    """In a process of its own, begun by a shell: what a process begins counts its memory too."""
    command = [
        "sh",
        "-c",
        '"$@"; exit $?',
        "sh",
        sys.executable,
        "-m",
        "benchmarks.syncing",
        verb,
        str(ledger),
        str(other),
    ]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if ran.returncode:
        raise RuntimeError(f"the {verb} ended with {ran.stderr.strip().splitlines()[-1:]}")
    return Moved(**json.loads(ran.stdout))


def main() -> None:
    """`python -m benchmarks.syncing push|pull LEDGER OTHER`: once, and its figures as JSON."""
    import weft
    from weft.exchange import sync

    verb, path, other = sys.argv[1:]
    serve = [sys.executable, "-m", "weft.surfaces.cli", "sync-stdio", "--ledger", other]
    before = time.perf_counter()
    with weft.open(path) as ledger:
        done = {"push": sync.push, "pull": sync.pull}[verb](ledger, f"cmd:{shlex.join(serve)}", weft.open)
    wall = time.perf_counter() - before
    own, served = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    moved = Moved(
        done.event_bytes + done.content_bytes,
        done.sent_bytes + done.received_bytes,
        own.ru_utime + own.ru_stime + served.ru_utime + served.ru_stime,
        wall,
        max(peak_bytes(), served.ru_maxrss * unit),
    )
    print(json.dumps(asdict(moved)))


# --- git ------------------------------------------------------------------------------------------------------------


def pushed_by_git(place: Path, amount: int, more: int) -> Found:
    attempt(lambda: _repositories(place))
    return {
        name_of(amount, "git push, all"): attempt(lambda: _git_push(place, 0, amount)),
        name_of(amount, f"git push, {more:,} more"): attempt(lambda: _git_push(place, amount, more)),
    }


def _repositories(place: Path) -> None:
    place.mkdir()
    git(place, "init", "-q", "--bare", "-b", "main", "hub")
    git(place, "init", "-q", "-b", "main", "here")
    for name in ("email", "name"):
        git(place / "here", "config", f"user.{name}", "bench@localhost")
    git(place / "here", "config", "gc.auto", "0")


def _git_push(place: Path, start: int, amount: int) -> Moved:
    """The pack that it would send is made once more to be weighed: `git push` does not tell."""
    here = place / "here"
    known = git(here, "rev-parse", "-q", "--verify", "HEAD", check=False).decode().strip()
    size = sum(_commit(here, some) for some in _by_hundreds(start, amount))
    wanted = f"HEAD\n^{known}\n" if known else "HEAD\n"
    pack = git(here, "pack-objects", "--revs", "--thin", "--stdout", "-q", given=wanted.encode())
    spent, before = _spent(), time.perf_counter()
    git(here, "push", "-q", str(place / "hub"), "main")
    return Moved(size, len(pack), _spent() - spent, time.perf_counter() - before)


def _by_hundreds(start: int, amount: int) -> Iterator[list[Turn]]:
    given = islice(turns(start, SEED), amount)
    while some := list(islice(given, A_COMMIT)):
        yield some


def _commit(here: Path, some: list[Turn]) -> int:
    """A file of lines, and a commit; returns how many bytes it is."""
    file = here / f"{some[0].number:08}.jsonl"
    size = file.write_bytes(b"".join(json.dumps(asdict(turn)).encode() + b"\n" for turn in some))
    git(here, "add", file.name)
    git(here, "commit", "-q", "-m", f"turns from {some[0].number}")
    return size


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def git(place: Path, *words: str, given: bytes = b"", check: bool = True) -> bytes:
    return subprocess.run(["git", *words], cwd=place, input=given, check=check, capture_output=True).stdout


if __name__ == "__main__":
    main()
