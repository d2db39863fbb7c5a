"""An open ledger with its graph and its programs: `ledger.programs["researcher"].invoke("hello")`. Everything here
blocks.

The graph, programs and what invokes them are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone, tzinfo
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from weft.kernel.authority import LedgerTrust
from weft.kernel.clock import Clock, UlidSource
from weft.ledger.api import RepositoryOf
from weft.ledger.api.base import LEASE_TTL
from weft.ledger.api.ledger import Ledger
from weft.store.port import Store

if TYPE_CHECKING:
    from weft.graph.graph import Graph
    from weft.program_handles import Invoker, LedgerPrograms


class OpenLedger(Ledger):
    """What `weft.open` gives: the ledger, its graph, and its programs, which can be invoked."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ulids: UlidSource,
        *,
        owner: str,
        lease_ttl: float = LEASE_TTL,
        zone: tzinfo = timezone.utc,  # noqa: UP017
        trust: LedgerTrust | None = None,
        variable: Callable[[str], str | None] | None = None,
        repository_of: RepositoryOf | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        super().__init__(
            store,
            clock,
            ulids,
            owner=owner,
            lease_ttl=lease_ttl,
            zone=zone,
            trust=trust,
            repository_of=repository_of,
            progress=progress,
        )
        self._invoker = InvokerSlot(variable)

    @cached_property
    def graph(self) -> Graph:
        from weft.graph.graph import Graph

        return Graph(self)

    @property
    def programs(self) -> LedgerPrograms:
        from weft.program_handles import LedgerPrograms

        return LedgerPrograms(self, self._invoker.open(self))

    def __enter__(self) -> OpenLedger:
        return self

    def close(self) -> None:
        """Invocations end first, then the ledger is closed."""
        try:
            if self._is_original:
                self._invoker.close()
        finally:
            super().close()


class InvokerSlot:
    """What invokes the programs of an open ledger, whoever acts; loaded when it is first used."""

    def __init__(self, variable: Callable[[str], str | None] | None) -> None:
        self._variable, self._lock = variable, Lock()
        self._invoker: Invoker | None = None

    def open(self, ledger: Ledger) -> Invoker:
        from weft.program_handles import Invoker

        with self._lock:
            self._invoker = self._invoker or Invoker(ledger, self._variable)
            return self._invoker

    def close(self) -> None:
        if self._invoker is not None:
            self._invoker.close()
