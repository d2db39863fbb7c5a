"""What the runtime asks of a ledger: a ledger of `weft.aio`, which surfaces open and hand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from weft.kernel.authority import Authority, LedgerTrust
from weft.ledger.api import Ledger
from weft.ledger.model import Session

T = TypeVar("T")


class Crossing(Protocol):
    """Where synchronous calls are made from asynchronous code: a pool of threads, of `weft.aio.crossing`."""

    shared: dict[Any, Any]
    """What those share who use it."""

    async def run(self, call: Callable[[], T]) -> T: ...


class RuntimeLedger(Protocol):
    @property
    def trust(self) -> LedgerTrust: ...

    @property
    def authority(self) -> Authority: ...

    @property
    def sync(self) -> Ledger: ...

    @property
    def crossing(self) -> Crossing: ...

    async def session(self, name: str) -> Session: ...
