"""Run under strace by `benchmarks.broker`: turns of Weft's broker, a marker file synced between them."""

import os
import sys
from itertools import islice
from pathlib import Path

from benchmarks.broker_subject import BrokerTurns
from benchmarks.fsyncs import MARKER
from benchmarks.turn_subject import Place
from benchmarks.workload import turns

DEPTH = 10


def main() -> None:
    directory, amount, url = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = directory / "store"
    store.mkdir()
    subject = BrokerTurns(Place(store, url))
    subject.build(list(islice(turns(), DEPTH)))
    subject.take_turn("what is two and three?")
    with (directory / MARKER).open("wb") as marker:
        os.fsync(marker.fileno())
        for number in range(amount):
            subject.take_turn(f"what is two and three? {number}")
            os.fsync(marker.fileno())
    subject.close()


if __name__ == "__main__":
    main()
