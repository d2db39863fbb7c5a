"""Where a sender's log stands, computed here from the ids of its events.

A sender marks places in its log: an arrival number and the chain of arrival there. A mark is a claim. It is proven when
the chain that is computed from the last proven place, over the ids that were offered and over the events of our own
that the sender skips, is the one it says. Only proven places are kept: whoever can prove a place in a replica's log has
offered all events of it up to there, whichever name it goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from weft.exchange.sync.messages import BatchEnd, SkippedRun
from weft.kernel.errors import ProtocolBroken
from weft.kernel.events import GENESIS, extend
from weft.kernel.foreign_input import is_digest

OwnRun = Callable[[bytes, int], list[bytes]]
"""The ids of so many of our events from one on, without those that came from the sender."""


class ArrivalProof:
    """The last proven place in a sender's log, and the ids that came after it."""

    def __init__(self, after: int, chain: str, own_run: OwnRun) -> None:
        self._n, self._chain = after, bytes.fromhex(chain) if after else GENESIS
        self._own_run = own_run
        self._offered: deque[bytes] = deque()
        self._skipped: deque[SkippedRun] = deque()
        self._skipped_events = 0
        self.is_broken = False
        """A mark was not proven: no later one is."""

    @property
    def offered_beyond(self) -> int:
        """How many ids were offered that lie beyond the proven place."""
        return len(self._offered)

    def offer(self, ids: Sequence[bytes]) -> None:
        if not self.is_broken:
            self._offered.extend(ids)

    def skip(self, runs: Sequence[SkippedRun], own_events: int) -> None:
        """Nobody has more events from us than there are here."""
        for run in runs:
            self._skipped_events += run.count
            if not run.count or not is_digest(run.id) or self._skipped_events > own_events:
                raise ProtocolBroken("MARK skips events that did not come from here")
        self._skipped.extend(runs)

    def proves(self, mark: BatchEnd) -> bool:
        """Whether the events that came lead to this place; it is the proven one then."""
        if self.is_broken or mark.n <= self._n:
            return False
        chain = extend(self._chain, self._ids_up_to(mark.n))
        if self.is_broken or chain.hex() != mark.chain:
            self.is_broken = True
            self._offered.clear()
            return False
        self._n, self._chain = mark.n, chain
        return True

    def _ids_up_to(self, n: int) -> Iterator[bytes]:
        """The ids at the arrival numbers up to `n`: skipped ones where the sender says so, offered ones elsewhere."""
        at = self._n + 1
        while at <= n and not self.is_broken:
            if self._skipped and self._skipped[0].first <= at:
                run = self._skipped.popleft()
                ids = self._own_run(bytes.fromhex(run.id), run.count)
                self.is_broken = run.first != at or len(ids) != run.count or at + len(ids) - 1 > n
                yield from ids
                at += len(ids)
            elif self._offered:
                yield self._offered.popleft()
                at += 1
            else:
                self.is_broken = True
