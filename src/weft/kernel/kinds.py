"""The one registry of every kind this program knows."""

from __future__ import annotations

from weft.kernel.approval_events import ApprovalEvent
from weft.kernel.conversation_events import ConversationEvent
from weft.kernel.dag_events import DagEvent
from weft.kernel.events import Registry
from weft.kernel.ledger_events import LedgerEvent
from weft.kernel.program_events import ProgramEvent
from weft.kernel.resource_events import ResourceEvent

KINDS = Registry(DagEvent, ResourceEvent, LedgerEvent, ApprovalEvent, ConversationEvent, ProgramEvent)
EVENT_KINDS = KINDS.kinds
