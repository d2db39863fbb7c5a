"""Random schedules of brokers, crashes, stops, faults, senders and subscribers: whatever happens, every message is
settled once, and subscribers are told of everything once."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.broker.simulated_world import VirtualClock, simulated_ledgers
from tests.runtime.broker.simulation import play
from tests.sizes import PROVING, Record, share, sized

SCHEDULES = 50_000
PARTS = sized(test=1, prove=8)
"""Run side by side, where there are several cores."""
SCHEDULES_A_LEDGER = 25
"""A ledger serves several schedules, and is verified after the last of them."""
STARTS = range(0, SCHEDULES, SCHEDULES_A_LEDGER)
"""The first seed of each ledger. In the schedules of the first one everything happens that may happen."""
SEED = int(os.environ["WEFT_SEED"]) if "WEFT_SEED" in os.environ and not PROVING else None


def play_all(seeds: range, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    clock = VirtualClock()
    with simulated_ledgers(folder, clock) as ledgers:
        for seed in seeds:
            try:
                counts.update(play(seed, ledgers, clock, f"s{seed}").counts)
            except BaseException as error:
                error.add_note(f"replay it with WEFT_SEED={seed}")
                raise
    return counts


@pytest.mark.slow("plays 75 schedules of brokers, and verifies three ledgers")
@pytest.mark.parametrize("part", range(PARTS if SEED is None else 1))
def test_every_message_is_settled_once_in_every_schedule(quick_path: Path, record_property: Record, part: int) -> None:
    starts = STARTS[part::PARTS] if PROVING else [STARTS[0], *share(STARTS[1:], test=1)]
    ledgers = [range(start, start + SCHEDULES_A_LEDGER) for start in starts]
    if SEED is not None:
        ledgers = [range(SEED, SEED + 1)]
    counts: Counter[str] = Counter()
    for seeds in ledgers:
        with tempfile.TemporaryDirectory(dir=quick_path) as folder:
            counts.update(play_all(seeds, Path(folder)))
    words = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
    record_property("measured", f"{sum(map(len, ledgers)):,} schedules: {words}")
    if SEED is None:
        kinds = ("crashes", "stops", "store faults", "drains", "parked", "late results", "tools", "second attempts",
                 "senders who cancel", "senders who interrupt", "senders who repeat", "connections",
                 "positions gone back to", "discarded texts")  # fmt: skip
        assert all(counts[kind] > 0 for kind in kinds), counts


def test_a_seed_gives_the_same_schedule_again_in_any_ledger(quick_path: Path) -> None:
    """Alone, as whoever replays a failure plays it, and after others, as it was found."""
    seeds = (14, 15, 16, 17)
    clock = VirtualClock()
    (quick_path / "after others").mkdir()
    with simulated_ledgers(quick_path / "after others", clock) as ledgers:
        logs = [play(seed, ledgers, clock, f"s{seed}").log for seed in seeds]
    for seed, log in list(zip(seeds, logs, strict=True))[1:]:
        (quick_path / str(seed)).mkdir()
        with simulated_ledgers(quick_path / str(seed), clock) as ledgers:
            assert play(seed, ledgers, clock, f"s{seed}").log == log
