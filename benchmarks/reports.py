"""What `weft usage`, `weft projects` and `weft sessions` cost beside `weft log`, in ledgers of different ages.

Each ledger is an import of real sessions where a corpus lies beside the checkout, else of made-up ones, as often as it
takes: every copy has ids of its own, and begins a day after the one before it. The commands take turns, each in a
process of its own; what counts is the CPU time of that.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.imports import CORPUS, MIB, imported, made_up
from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, say
from benchmarks.plan import Sizes

FLOOR = "weft log -n 20"
REPORTS = ("weft usage", "weft projects", "weft sessions")
ReportCosts = dict[str, Figure | NotMeasured]
"""By command."""
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID = re.compile(r"\b(msg|req|toolu)_")
_TIME = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d)(?=T[0-2]\d:)")


def measure_reports(sizes: Sizes, directory: Path) -> dict[str, ReportCosts | NotMeasured]:
    """By the size of the sources."""
    ledgers = {
        name_of(mib): attempt(partial(_ledger, directory / f"reports-{mib}", mib, sizes)) for mib in sizes.report_mib
    }
    built = {name: path for name, path in ledgers.items() if isinstance(path, Path)}
    cases = {(name, command): _command(command, path) for name, path in built.items() for command in (FLOOR, *REPORTS)}
    for warm in cases.values():
        attempt(warm)  # the first report counts what was imported
    figures = interleave(cases, sizes.rounds)
    return {
        name: path
        if isinstance(path, NotMeasured)
        else {command: figure for (of, command), figure in figures.items() if of == name}
        for name, path in ledgers.items()
    }


def name_of(mib: int) -> str:
    return f"{mib:,} MiB of sources"


def _ledger(place: Path, mib: int, sizes: Sizes) -> Path:
    say(f"reports of {name_of(mib)}")
    source = CORPUS
    if not (sizes.import_corpus and CORPUS.is_dir()):
        source = made_up(place / "made-up", sessions=max(4, sizes.import_sessions), mib=1)
    _copy(source, place / "sources", mib * MIB)
    ledger = place / "ledger.db"
    imported(ledger, place / "sources")
    shutil.rmtree(place / "sources")
    return ledger


def _copy(source: Path, target: Path, size: int) -> None:
    """The sources as often as it takes to be of this size together."""
    written = 0
    for number, file in _again_and_again(sorted(source.rglob("*.jsonl"))):
        if written >= size:
            return
        text = _copied(file.read_text(errors="replace"), number)
        path = target / str(number) / _copied(str(file.relative_to(source)), number)
        path.parent.mkdir(parents=True, exist_ok=True)
        written += path.write_text(text)


def _again_and_again(files: list[Path]) -> Iterator[tuple[int, Path]]:
    number = 0
    while files:
        yield from ((number, file) for file in files)
        number += 1


def _copied(text: str, number: int) -> str:
    """With ids and times of its own."""
    text = _UUID.sub(lambda id: f"{int(id[0][:8], 16) ^ number * 0x9E3779B1 & 0xFFFFFFFF:08x}{id[0][8:]}", text)
    text = _ID.sub(lambda kind: f"{kind[0]}{number}k", text)
    return _TIME.sub(lambda day: _days_after(day[1], number), text)


def _days_after(day: str, number: int) -> str:
    try:
        return (datetime.fromisoformat(day) + timedelta(days=number)).date().isoformat()
    except ValueError:  # no day of the calendar
        return day


def _command(words: str, ledger: Path) -> Callable[[], Run]:
    program = str(Path(sys.executable).with_name("weft"))
    folders = {f"XDG_{kind}_HOME": str(ledger.parent / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
    environment = {**os.environ, **folders, "WEFT_LEDGER": str(ledger), "PAGER": "cat"}

    def run() -> Run:
        before = _cpu_of_children()
        subprocess.run([program, *words.split()[1:]], env=environment, capture_output=True, check=True)
        spent = _cpu_of_children() - before
        return Run((spent,), spent)

    return run


def _cpu_of_children() -> float:
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
