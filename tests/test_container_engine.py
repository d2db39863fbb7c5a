"""The tests' own container engine: it is tried again, says why it did not start, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from tests import container_engine
from tests.container_engine import EngineMissing, TestEngine, ensure_installed, start_engine, started_at

ROOT = Path(__file__).parents[1]
STARTS_ONE = "from tests.container_engine import start_engine; start_engine(); import os; os._exit(9)"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    try:
        ensure_installed()
    except EngineMissing as reason:
        pytest.skip(f"no container engine: {reason}")
    folder = Path(mkdtemp(prefix="we-", dir=container_engine.PLACE))
    monkeypatch.setattr(container_engine, "PLACE", folder)
    yield folder
    for engine in folder.glob(f"{container_engine.PREFIX}*-*"):
        TestEngine(engine).stop()
    rmtree(folder)


def test_an_engine_that_does_not_start_at_first_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, tries = TestEngine.start, list[Path]()

    def start_later(engine: TestEngine) -> None:
        tries.append(engine.folder)
        if len(tries) == 1:
            raise EngineMissing("not yet")
        start(engine)

    monkeypatch.setattr(TestEngine, "start", start_later)
    engine = start_engine()
    assert engine.answers()
    engine.stop()
    assert (len(tries), engine.answers(), engine.folder.exists()) == (2, False, False)


def test_an_engine_that_cannot_start_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_engine, "SETTINGS", "this is no table")
    with pytest.raises(EngineMissing, match=r"podman ended: .*containers\.conf"):
        start_engine()
    assert not list(place.glob(f"{container_engine.PREFIX}*-*"))


def test_the_engine_of_a_process_that_was_killed_is_removed_by_the_next_one(place: Path) -> None:
    code = f"import tests.container_engine as e; from pathlib import Path; e.PLACE = Path({str(place)!r}); {STARTS_ONE}"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    (left,) = place.glob(f"{container_engine.PREFIX}*-*")
    pid = int((left / "pid").read_text().partition(" ")[0])
    assert started_at(pid)
    engine = start_engine()
    assert (started_at(pid), left.exists()) == ("", False)
    assert engine.folder.name.startswith(f"{container_engine.PREFIX}{os.getpid()}-")
    engine.stop()
