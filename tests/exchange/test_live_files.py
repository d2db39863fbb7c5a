"""Files that live while they are watched: in the end the ledger stands as if they had been imported cold."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from tests.exchange.corpus import opened
from tests.exchange.live_files import Growing, live_importers, material, standing
from tests.exchange.timeline import Stage
from tests.sizes import PROVING, points
from weft import Ledger
from weft.exchange.importing.run import ImportRun
from weft.exchange.importing.sources import QUIET_SECONDS

SEEDS = points(12, test=1)
FILES, LIMIT, PIECES = (12, 3_000_000, 40) if PROVING else (2, 60_000, 8)
PAUSE = 0 if PROVING else 0.02
"""Of readers between two rounds, in seconds."""


@contextmanager
def readers(ledger: Ledger) -> Iterator[None]:
    """Others search, list and read all the while; whatever they see holds together."""
    done = Event()

    def read() -> int:
        rounds = 0
        while not done.is_set():
            for session in ledger.sessions(every=True)[:5]:
                if session.head is not None:
                    turns = list(ledger.thread(session.head).turns)
                    assert turns[-1].id == session.head
            ledger.search("the", limit=5)
            ledger.imports.provisional()
            rounds += 1
            done.wait(PAUSE)
        return rounds

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        try:
            yield
        finally:
            done.set()
        assert all(each.result() > 0 for each in reading)


@pytest.mark.slow("reads files at dozens of stages, beside two readers")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_watched_home_ends_as_a_cold_import_of_its_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"live/{seed}")
    folder = tmp_path / "home"
    folder.mkdir()
    growing = [Growing(folder / name, data) for name, data in material(chance, FILES, LIMIT)]
    with opened(tmp_path / "watched.db") as watched, readers(watched):
        stage = Stage(watched, folder, live_importers())
        _live(stage, growing, chance)
        seen = standing(watched)
        assert list(watched.verify()) == []
    with opened(tmp_path / "cold.db") as cold:
        ImportRun(cold, live_importers(), stage.clock).run([folder])
        expected = standing(cold)
    for what, value in expected.items():
        assert seen[what] == value, what
    assert seen["provisional"] == []
    assert seen["turns"]


def _live(stage: Stage, growing: list[Growing], chance: random.Random) -> None:
    """Each file in pieces, with pauses; some changes no notice tells, and now and then the watch itself is ended."""
    at, actions = 1.0, []
    for _ in range(len(growing) * PIECES * 2):
        at += chance.choice([0.01, 0.1, 0.4, 2.0])
        actions.append((at, partial(_act, stage, chance.choice(growing), chance)))
    cut = chance.randrange(1, len(actions))
    stage.follow(*actions[:cut], end=actions[cut - 1][0] + 0.05)
    rest = [(at + 1 + number, partial(_act, stage, file, chance, whole=True)) for number, file in enumerate(growing)]
    stage.follow(*actions[cut:], *rest, end=at + len(growing) + QUIET_SECONDS + 90)


def _act(stage: Stage, file: Growing, chance: random.Random, *, whole: bool = False) -> list[Path]:
    if whole and not file.is_whole:
        file.grow(len(file.target))
    elif not whole and not file.is_whole:
        file.act(chance, max(1, len(file.target) // PIECES * 2))
    if file.path.exists():
        now = stage.clock.now_ms() * 1_000_000
        os.utime(file.path, ns=(now, now))
    return [file.path] if chance.random() < 0.8 else []
