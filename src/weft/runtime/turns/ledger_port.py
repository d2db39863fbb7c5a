"""What the runtime asks of a ledger: some verbs of `weft.aio`, which surfaces open and hand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority, LedgerTrust
from weft.ledger.api import Context
from weft.ledger.model import RecordedTurn, Session

T = TypeVar("T")


class Crossing(Protocol):
    """Where synchronous calls are made from asynchronous code: a pool of threads, of `weft.aio.crossing`."""

    async def run(self, call: Callable[[], T]) -> T: ...


class OpenTurn(Protocol):
    """A turn that is being recorded."""

    @property
    def id(self) -> str: ...

    async def message(self, message: Any, *, role: str = "user") -> str: ...

    async def request(
        self,
        model: str,
        *,
        provider: str | None = None,
        params: Any = None,
        input: Any = None,
        tools_spec: Any = None,
        attempt: int | None = None,
    ) -> str: ...

    async def response(
        self,
        message: Any = None,
        *,
        usage: Any = None,
        finish_reason: str | None = None,
        model: str | None = None,
        latency_ms: int | None = None,
    ) -> str | None: ...

    async def renew(self) -> None: ...

    async def finish(self, *, usage: Any = None) -> RecordedTurn: ...

    async def fail(self, error: Any) -> RecordedTurn: ...

    async def interrupt(self, reason: str = "canceled") -> RecordedTurn: ...


class RuntimeHeads(Protocol):
    async def reset(
        self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session: ...


class RuntimeLedger(Protocol):
    @property
    def trust(self) -> LedgerTrust: ...

    @property
    def authority(self) -> Authority: ...

    @property
    def heads(self) -> RuntimeHeads: ...

    async def session(self, name: str) -> Session: ...

    async def context(self, turn: str | None = None, *, session: str | None = None) -> Context: ...

    async def begin_turn(
        self,
        *,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        persona: str = ...,
        role: str = ...,
        reason: str | None = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        wait: float = ...,
    ) -> OpenTurn: ...
