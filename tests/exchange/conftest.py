"""A folder of sources for the toy importer, and a ledger beside it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.exchange.toy import Toy
from weft import Ledger
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import SystemClock

LONG_AGO = 1_000_000_000
Write = Callable[..., Path]


def written(path: Path, *lines: Any, age: int = 0) -> Path:
    """Lines of JSON, last changed long ago; `age` tells versions of one file apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    os.utime(path, (LONG_AGO + age, LONG_AGO + age))
    return path


def take(ledger: Ledger | None, *paths: Path, **options: Any) -> ImportSummary:
    return ImportRun(ledger, [Toy()], SystemClock(), **options).run(paths)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with weft.open(tmp_path / "ledger.db") as opened:
        yield opened


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    return folder
