"""What the runtime asks of a ledger: a ledger of `weft.aio`, which surfaces open and hand in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority, LedgerTrust
from weft.ledger.api import Context, Ledger, Page, StoredEvent
from weft.ledger.model import Compaction, RecordedTurn, Session, Turn

T = TypeVar("T")


class Crossing(Protocol):
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
    def crossing(self) -> Crossing: ...

    @property
    def compactions(self) -> RuntimeCompactions: ...

    async def session(self, name: str) -> Session: ...

    async def turn(self, name: str) -> Turn: ...

    async def events(self, turn: str) -> Page[StoredEvent]: ...

    def read_content(self, ref: str) -> AsyncIterator[bytes]: ...

    async def context(self, turn: str | None = None, *, session: str | None = None) -> Context: ...
