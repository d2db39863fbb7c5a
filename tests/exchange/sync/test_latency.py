"""A link on which every frame takes its time: how long a sync takes, counted in journeys from one side to the other."""

from typing import Any

import pytest

from tests.exchange.sync.conftest import Make
from tests.exchange.sync.wire import digests
from tests.ledger.histories import grow
from weft.exchange.sync import synced_ledgers
from weft.exchange.sync.commands import ServePermissions, SyncClient, SyncServer
from weft.exchange.sync.fact_transfer import Frame, SyncFrameKind, Talk
from weft.ledger.api import store_of

TURNS = 30


class Side:
    """A talk with a clock of its own, and the frames that are on their way to it with the times when they arrive."""

    def __init__(self, talk: Talk[Any]) -> None:
        self.talk, self.clock, self.over = talk, 0, False
        self.coming: list[tuple[int, Frame]] = []
        self.said: list[SyncFrameKind] = []
        self._out = self._step(None)

    def _step(self, frame: Frame | None) -> Frame | None:
        try:
            return next(self.talk) if frame is None else self.talk.send(frame)
        except StopIteration:
            self.over = True
            return None

    def go_on(self, other: "Side") -> bool:
        """Say what there is to say and hear what has come; False where nothing can be done."""
        moved = False
        while not self.over:
            if self._out is not None:
                self.said.append(self._out.kind)
                other.coming.append((self.clock + 1, self._out))
                self._out = self._step(None)
            elif self.coming:
                at, frame = self.coming.pop(0)
                self.clock = max(self.clock, at)
                self._out = self._step(frame)
            else:
                return moved
            moved = True
        return moved


def journeys(asking: SyncClient, talk: Talk[Any], served: Talk[Any]) -> tuple[int, list[SyncFrameKind]]:
    def whole() -> Talk[None]:
        yield from asking.greeting()
        yield from talk
        yield from asking.leaving()

    here, there = Side(whole()), Side(served)
    while here.go_on(there) or there.go_on(here):
        pass
    assert here.over
    assert there.over
    return here.clock, here.said


@pytest.mark.parametrize("empty", [True, False])
def test_a_batch_travels_while_the_one_before_it_is_taken(
    make: Make, monkeypatch: pytest.MonkeyPatch, empty: bool
) -> None:
    """A batch costs one journey there and back for what of it is needed, and one for what of it is wanted; none to hear
    that it was taken."""
    monkeypatch.setattr(synced_ledgers, "BATCH_EVENTS", 8)
    here, there = make("here"), make("there")
    grow(here, "main", *map(str, range(TURNS)))
    if not empty:
        grow(there, "other", "something")
    for ledger in (here, there):
        store_of(ledger).catch_up()
    asking = SyncClient(store_of(here))
    serving = SyncServer(store_of(there), ServePermissions()).serve()
    clock, said = journeys(asking, asking.pushing(), serving)
    batches = said.count(SyncFrameKind.MARK)
    assert batches > TURNS // 4
    assert digests(here).items() <= digests(there).items()
    rounds = 1 if empty else 2
    assert clock <= 2 * rounds * batches + 10
