"""Real published transcripts, where they lie beside the checkout: data for these tests, no part of the product."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft import Ledger
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import FixedClock

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
ORIGINS = (
    "claude-code", "codex", "opencode", "pi", "cursor", "gemini-cli", "copilot-cli", "chatgpt",
    "swe-agent", "openhands",
)  # fmt: skip
SECRET = bytes(range(32))
LONG_AGO = 1_000_000_000

needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus lies beside this checkout")


def opened(path: Path) -> Ledger:
    """A ledger with an import secret that every run shares, so that digests can be pinned."""
    from weft.ledger.imports import adopt_secret

    ledger = weft.open(path)
    adopt_secret(ledger._store, SECRET)
    return ledger


def take(ledger: Ledger | None, *paths: Path) -> ImportSummary:
    """Imported long after any file was written, however lately these copies were made: no tail is open."""
    return ImportRun(ledger, load_importers(), FixedClock(LONG_AGO * 10_000)).run(paths)


def once_a_run(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills, once for all workers of a run: the first one that asks does it, the others wait."""
    shared = temporary.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else temporary.getbasetemp()
    folder, half_made = shared / name, shared / f"{name}.partial"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the file is closed, also by the end of the process
        if not folder.exists():
            shutil.rmtree(half_made, ignore_errors=True)  # of a worker that failed or was ended
            half_made.mkdir()
            make(half_made)
            half_made.rename(folder)
    return folder


def aged(path: Path, age: int = 0) -> Path:
    os.utime(path, (LONG_AGO + age, LONG_AGO + age))
    return path


def current(ledger: Ledger) -> dict[str, str]:
    return {turn.id: turn.digest for turn in ledger.log()}
