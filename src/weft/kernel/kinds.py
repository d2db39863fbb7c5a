"""The one registry of every kind this program knows."""

from __future__ import annotations

from weft.kernel.dag_events import DagEvent
from weft.kernel.events import Registry
from weft.kernel.ledger_events import LedgerEvent

KINDS = Registry(DagEvent, LedgerEvent)
EVENT_KINDS = KINDS.kinds
