"""What the runtime asks of a ledger: a ledger of `weft.aio`, which surfaces open and hand in.

Work on a resource is done under a lease of that ledger, which is renewed for as long as the work
takes.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority, LedgerTrust
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.errors import StoreError
from weft.ledger.api import Context, Lease, Ledger, Page, ResourceLog, StoredEvent
from weft.ledger.model import Compaction, RecordedTurn, Session, Turn

# --- What the runtime asks of a ledger: a ledger of `weft.aio`, which surfaces open and hand in.

T = TypeVar("T")


class Executor(Protocol):
    """Where synchronous calls are made from asynchronous code: a pool of threads, of `weft.aio.crossing`."""

    shared: dict[Any, Any]
    """What those share who use it."""

    async def run(self, call: Callable[[], T]) -> T: ...


class RuntimeCompactions(Protocol):
    async def record(
        self,
        *,
        summary: str,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        through: str | None = None,
        first_kept: str | None = None,
        model: str = ...,
        provider: str | None = None,
        compaction_type: str = ...,
        trigger: str | None = None,
        metadata: Any = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        summary_tokens: int | None = None,
        summarization_input_tokens: int | None = None,
        summarization_output_tokens: int | None = None,
        duration_ms: int | None = None,
        usage: Any = None,
    ) -> RecordedTurn: ...

    async def get(self, turn: str) -> Compaction: ...


class RuntimeLedger(Protocol):
    """The verbs of `weft.aio` that the runtime uses."""

    @property
    def trust(self) -> LedgerTrust: ...

    @property
    def authority(self) -> Authority: ...

    @property
    def sync(self) -> Ledger: ...

    @property
    def crossing(self) -> Executor: ...

    @property
    def compactions(self) -> RuntimeCompactions: ...

    async def session(self, name: str) -> Session: ...

    async def turn(self, name: str) -> Turn: ...

    async def events(self, turn: str) -> Page[StoredEvent]: ...

    def read_content(self, ref: str) -> AsyncIterator[bytes]: ...

    async def context(self, turn: str | None = None, *, session: str | None = None) -> Context: ...


# --- Work on a resource under its lease, which is renewed for as long as the work takes.


class HoldLost(Exception):
    """Somebody else acts on the resource by now: nothing more may be done to it, not even undone."""


class ResourceHold:
    """The lease of one resource, while it is worked on."""

    def __init__(self, log: ResourceLog, lease: Lease, clock: Clock | None = None) -> None:
        self.lease = lease
        self._log, self._clock, self._seconds = log, clock or SystemClock(), log.lease_seconds
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._is_lost, self._renewed_at = False, self._clock.monotonic()

    def ensure(self) -> None:
        """Raises HoldLost. Where nobody has renewed it for half of its time, as in a process that stood still, that is
        asked of the ledger."""
        if self._clock.monotonic() - self._renewed_at >= self._seconds / 2:
            self.renew()
        if self._is_lost:
            raise HoldLost(f"somebody else took over resource {self.lease.key}")

    def renew(self) -> None:
        with self._lock:
            if not self._is_lost:
                self._is_lost = not self._log.renew(self.lease)
                self._renewed_at = self._clock.monotonic()

    def keep_renewing(self) -> None:
        """Until `end`. While the ledger cannot be reached, nobody else takes the lease there, either."""
        while not self._is_over.wait(self._seconds / 3) and not self._is_lost:
            try:
                self.renew()
            except StoreError:
                continue  # `ensure` asks again, and its error ends the work

    def end(self) -> None:
        self._is_over.set()


_held: ContextVar[tuple[ResourceHold, ...]] = ContextVar("held", default=())
"""What this thread works on."""


@contextmanager
def holding(log: ResourceLog, lease: Lease) -> Iterator[ResourceHold]:
    """Work under a lease, which is let go of in the end."""
    hold = ResourceHold(log, lease)
    thread = threading.Thread(target=hold.keep_renewing, name="resource lease", daemon=True)
    token = _held.set((*_held.get(), hold))
    thread.start()
    try:
        yield hold
    finally:
        _held.reset(token)
        hold.end()
        thread.join()
        log.let_go(lease)


def ensure_held() -> None:
    """Raises HoldLost where this thread works on a resource under a lease that somebody else has by now."""
    for hold in _held.get():
        hold.ensure()
