"""A connection that is cut at any byte: nothing is half there, and the next run goes on."""

import os
import shlex
import sys

import pytest

from tests.exchange.sync.conftest import Make
from tests.exchange.sync.test_syncing import assert_same, opens, rich
from tests.exchange.sync.wire import contents, events, pull, push
from tests.ledger.histories import grow, problems
from tests.sizes import points
from weft.exchange import sync
from weft.exchange.sync import synced_ledgers
from weft.exchange.sync.fact_transfer import PREAMBLE, Channel, Frame, SyncFrameKind, Talk, encode, refusal
from weft.kernel.errors import ConnectionCut, PeerRefused, ReadOnlyLedger
from weft.ledger.api.ledger import Ledger

PLACES = 60


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_ledgers, "BATCH_EVENTS", 16)


@pytest.mark.parametrize("pushes", [False, True])
def test_a_sync_that_is_cut_again_and_again_ends_with_everything(here: Ledger, make: Make, pushes: bool) -> None:
    rich(here)
    whole = pull(make("measure"), here)[1].bytes
    other, brought, cut = make("other"), 0, 0
    for i in points(PLACES - 1, test=5):
        cut = whole * (i + 1) // PLACES
        before = len(events(other))
        with pytest.raises(ConnectionCut):
            push(here, other, cut // 4) if pushes else pull(other, here, cut // 4)
        assert events(other) <= events(here)
        assert contents(other) <= contents(here)
        brought += len(events(other)) - before
    assert problems(other) == []
    sent, _ = push(here, other) if pushes else pull(other, here)
    assert sent.events == len(events(here)) - brought
    assert_same(here, other)


def test_what_was_taken_before_a_cut_is_not_sent_again(here: Ledger, there: Ledger) -> None:
    grow(there, "main", *(f"question {i}" for i in range(100)))
    with pytest.raises(ConnectionCut):
        pull(here, there, 20_000)
    taken = len(events(here))
    assert taken > 100
    sent, _ = pull(here, there)
    assert sent.events == 601 - taken
    assert sent.known < 6  # of the turn in the midst of which the last batch ended


CUTTER = """
import os, subprocess, sys
served, left = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE), int(sys.argv[1])
while left:
    data = os.read(served.stdout.fileno(), left)
    left -= os.write(1, data)
"""


def test_a_program_whose_output_ends_in_mid_sentence_is_told(here: Ledger, there: Ledger) -> None:
    grow(there, "main", *(os.urandom(2000).hex() for _ in range(30)))
    serves = [sys.executable, "-m", "weft.surfaces.cli", "sync-stdio", "--ledger", there.path]
    with pytest.raises(ConnectionCut, match="in mid-sentence"):
        sync.pull(here, f"cmd:{shlex.join([sys.executable, '-c', CUTTER, '30000', *serves])}", opens)
    assert problems(here) == []
    sync.pull(here, f"cmd:{shlex.join(serves)}", opens)
    assert_same(here, there)


class Gone:
    """A stream whose other side said something and went away before it heard anything."""

    def __init__(self, said: bytes) -> None:
        self._left = said

    def read(self, most: int) -> bytes:
        said, self._left = self._left[:most], self._left[most:]
        return said

    def write(self, data: bytes) -> None:
        raise BrokenPipeError(len(data))

    def close(self) -> None:
        """Nobody is there."""


def test_a_refusal_is_heard_though_the_other_side_is_gone_already() -> None:
    said = [encode(Frame(SyncFrameKind.LACK)), encode(refusal(ReadOnlyLedger("there.db")))]

    def talk() -> Talk[None]:
        yield Frame(SyncFrameKind.BYE)

    with pytest.raises(PeerRefused, match=r"there\.db"):
        Channel(Gone(PREAMBLE + b"".join(said))).converse(talk())
    with pytest.raises(ConnectionCut):
        Channel(Gone(PREAMBLE + said[0])).converse(talk())
