"""The public verbs of a ledger, and what the layers above need of it: they import it from here.

Names are loaded when they are first used, so that a command loads what it needs. A test holds the short list of other
modules of the ledger that the layers above may import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.ledger.api.base import LedgerBase as LedgerBase
    from weft.ledger.api.base import is_recorded_here as is_recorded_here
    from weft.ledger.api.base import open_thread_facts as open_thread_facts
    from weft.ledger.api.base import owner_of as owner_of
    from weft.ledger.api.base import patience_of as patience_of
    from weft.ledger.api.base import store_of as store_of
    from weft.ledger.api.base import writer_of as writer_of
    from weft.ledger.api.ledger import Ledger as Ledger
    from weft.ledger.api.resources import ResourceLog as ResourceLog
    from weft.ledger.api.runs import Runs as Runs
    from weft.ledger.api.streams import PARTIAL_POLL_SECONDS as PARTIAL_POLL_SECONDS
    from weft.ledger.api.streams import SessionStream as SessionStream
    from weft.ledger.api.triggers import TriggerLog as TriggerLog
    from weft.ledger.approvals.model import Approval as Approval
    from weft.ledger.approvals.model import CallDecision as CallDecision
    from weft.ledger.approvals.model import Policy as Policy
    from weft.ledger.approvals.people import ensure_person as ensure_person
    from weft.ledger.approvals.policies import POLICY_URI as POLICY_URI
    from weft.ledger.approvals.policies import digest_of_source as digest_of_source
    from weft.ledger.approvals.policies import ensure_activatable as ensure_activatable
    from weft.ledger.approvals.policies import ensure_replaced as ensure_replaced
    from weft.ledger.erasing import Erasure as Erasure
    from weft.ledger.erasing import ErasurePlan as ErasurePlan
    from weft.ledger.erasing import Tombstone as Tombstone
    from weft.ledger.imports.kept_sources import SourceRange as SourceRange
    from weft.ledger.imports.provisional import ProvisionalTurn as ProvisionalTurn
    from weft.ledger.read.agent_shares import is_private as is_private
    from weft.ledger.read.agent_shares import shared_with as shared_with
    from weft.ledger.read.agent_shares import users_of_agent as users_of_agent
    from weft.ledger.read.context_cuts import CUT_PARAMETER as CUT_PARAMETER
    from weft.ledger.read.context_cuts import NO_CUT as NO_CUT
    from weft.ledger.read.context_cuts import ContextCut as ContextCut
    from weft.ledger.read.context_cuts import as_sent as as_sent
    from weft.ledger.read.context_cuts import counted_tokens as counted_tokens
    from weft.ledger.read.context_cuts import cut_from as cut_from
    from weft.ledger.read.context_cuts import sent_text as sent_text
    from weft.ledger.read.context_cuts import shortened as shortened
    from weft.ledger.read.contexts import Context as Context
    from weft.ledger.read.full_threads import BranchPoint as BranchPoint
    from weft.ledger.read.full_threads import FullThreads as FullThreads
    from weft.ledger.read.full_threads import FullTurn as FullTurn
    from weft.ledger.read.full_threads import Item as Item
    from weft.ledger.read.full_threads import MessageReply as MessageReply
    from weft.ledger.read.full_threads import TurnLine as TurnLine
    from weft.ledger.read.full_threads import TurnRange as TurnRange
    from weft.ledger.read.injected_text import MessagePassage as MessagePassage
    from weft.ledger.read.injected_text import message_passages as message_passages
    from weft.ledger.read.injected_text import typed_command as typed_command
    from weft.ledger.read.listing import HERE as HERE
    from weft.ledger.read.listing import ListedSession as ListedSession
    from weft.ledger.read.listing import SessionFilter as SessionFilter
    from weft.ledger.read.listing import SessionList as SessionList
    from weft.ledger.read.listing import has_title as has_title
    from weft.ledger.read.moments import read_moment as read_moment
    from weft.ledger.read.pages import Page as Page
    from weft.ledger.read.projects import RepositoryOf as RepositoryOf
    from weft.ledger.read.projects import project_of as project_of
    from weft.ledger.read.projects import repository_name as repository_name
    from weft.ledger.read.request_inputs import InputChain as InputChain
    from weft.ledger.read.session_owners import session_owner as session_owner
    from weft.ledger.read.sessions import agent_names as agent_names
    from weft.ledger.read.system_agents import system_kind_of as system_kind_of
    from weft.ledger.read.threads import ThreadDiff as ThreadDiff
    from weft.ledger.read.turn_steps import StepGroup as StepGroup
    from weft.ledger.read.turn_steps import is_from_tool as is_from_tool
    from weft.ledger.read.turn_steps import sections as sections
    from weft.ledger.read.turns import calls_of as calls_of
    from weft.ledger.read.vouchers import VouchedMessage as VouchedMessage
    from weft.ledger.read.vouchers import Voucher as Voucher
    from weft.ledger.reports.actor_history import ActorEvent as ActorEvent
    from weft.ledger.reports.audit import GROUPS as GROUPS
    from weft.ledger.reports.audit import AuditFinding as AuditFinding
    from weft.ledger.reports.audit import AuditSeverity as AuditSeverity
    from weft.ledger.reports.audit import AuditTally as AuditTally
    from weft.ledger.reports.audit import FindingKind as FindingKind
    from weft.ledger.reports.audit import SuggestedGrant as SuggestedGrant
    from weft.ledger.reports.file_touches import Touch as Touch
    from weft.ledger.reports.file_touches import WantedPath as WantedPath
    from weft.ledger.reports.maintained_prices import kept_prices as kept_prices
    from weft.ledger.reports.maintained_prices import shipped_context_window as shipped_context_window
    from weft.ledger.reports.maintained_prices import shipped_prices as shipped_prices
    from weft.ledger.reports.permissions import used_rights as used_rights
    from weft.ledger.reports.prices import EMBEDDED_PROVIDER as EMBEDDED_PROVIDER
    from weft.ledger.reports.prices import FREE as FREE
    from weft.ledger.reports.prices import Price as Price
    from weft.ledger.reports.prices import PriceTable as PriceTable
    from weft.ledger.reports.prices import prices_from as prices_from
    from weft.ledger.reports.spending import Spending as Spending
    from weft.ledger.reports.spending import UnpricedModel as UnpricedModel
    from weft.ledger.reports.spending import UsageRow as UsageRow
    from weft.ledger.reports.usage import BY as BY
    from weft.ledger.reports.usage import PERIODS as PERIODS
    from weft.ledger.reports.usage import AbandonedUsage as AbandonedUsage
    from weft.ledger.reports.usage import BranchUsage as BranchUsage
    from weft.ledger.reports.usage import UsageReport as UsageReport
    from weft.ledger.reports.usage_tree import TurnUsage as TurnUsage
    from weft.ledger.reports.usage_tree import UsageTree as UsageTree
    from weft.ledger.reports.usage_tree import WorkerUsage as WorkerUsage
    from weft.ledger.reports.work import ProjectWork as ProjectWork
    from weft.ledger.reports.work import SessionWork as SessionWork
    from weft.ledger.reports.work import WorkReport as WorkReport
    from weft.ledger.resources.forking import Fork as Fork
    from weft.ledger.resources.leases import BusyResource as BusyResource
    from weft.ledger.resources.model import Failure as Failure
    from weft.ledger.resources.model import KeptReference as KeptReference
    from weft.ledger.resources.model import KeptState as KeptState
    from weft.ledger.resources.model import NewResource as NewResource
    from weft.ledger.resources.model import NewSnapshot as NewSnapshot
    from weft.ledger.resources.model import Owner as Owner
    from weft.ledger.resources.model import PlannedResource as PlannedResource
    from weft.ledger.resources.model import Resource as Resource
    from weft.ledger.resources.model import ResourceHandle as ResourceHandle
    from weft.ledger.resources.model import Restore as Restore
    from weft.ledger.resources.model import Snapshot as Snapshot
    from weft.ledger.resources.undoing import UndoneMove as UndoneMove
    from weft.ledger.rooms.deliveries import cancel_deliveries_to as cancel_deliveries_to
    from weft.ledger.rooms.feed import OpenAnswer as OpenAnswer
    from weft.ledger.rooms.feed import RoomFeed as RoomFeed
    from weft.ledger.rooms.feed import RoomNews as RoomNews
    from weft.ledger.rooms.model import AgentProfile as AgentProfile
    from weft.ledger.rooms.model import Invitation as Invitation
    from weft.ledger.rooms.model import Participant as Participant
    from weft.ledger.rooms.model import PersonProfile as PersonProfile
    from weft.ledger.rooms.model import PostedMessage as PostedMessage
    from weft.ledger.rooms.model import ReachedAgent as ReachedAgent
    from weft.ledger.rooms.model import Room as Room
    from weft.ledger.rooms.model import RoomHit as RoomHit
    from weft.ledger.rooms.model import RoomMessage as RoomMessage
    from weft.ledger.runs.admission import MessageTarget as MessageTarget
    from weft.ledger.runs.model import AddMessage as AddMessage
    from weft.ledger.runs.model import Admission as Admission
    from weft.ledger.runs.model import ApprovalAsked as ApprovalAsked
    from weft.ledger.runs.model import Entry as Entry
    from weft.ledger.runs.model import Finished as Finished
    from weft.ledger.runs.model import InboxMessage as InboxMessage
    from weft.ledger.runs.model import Interrupted as Interrupted
    from weft.ledger.runs.model import ModelAnswered as ModelAnswered
    from weft.ledger.runs.model import ModelAsked as ModelAsked
    from weft.ledger.runs.model import Parked as Parked
    from weft.ledger.runs.model import QueueLimits as QueueLimits
    from weft.ledger.runs.model import RecordedEvent as RecordedEvent
    from weft.ledger.runs.model import RunRecord as RunRecord
    from weft.ledger.runs.model import SessionStanding as SessionStanding
    from weft.ledger.runs.model import TakeMessage as TakeMessage
    from weft.ledger.runs.model import Then as Then
    from weft.ledger.runs.model import ToolAsked as ToolAsked
    from weft.ledger.runs.model import ToolDecision as ToolDecision
    from weft.ledger.runs.model import ToolEnded as ToolEnded
    from weft.ledger.runs.model import TurnRetry as TurnRetry
    from weft.ledger.runs.model import WaitingSession as WaitingSession
    from weft.ledger.runs.model import principals_of as principals_of
    from weft.ledger.runs.model import retry_of as retry_of
    from weft.ledger.runs.partial_replies import PartialReply as PartialReply
    from weft.ledger.runs.run_writer import RunWriter as RunWriter
    from weft.ledger.runs.spawning import MAX_WORKER_DEPTH as MAX_WORKER_DEPTH
    from weft.ledger.runs.spawning import NewWorker as NewWorker
    from weft.ledger.runs.stream_items import ITEMS as ITEMS
    from weft.ledger.runs.stream_items import AnswerEnded as AnswerEnded
    from weft.ledger.runs.stream_items import AnswerStarted as AnswerStarted
    from weft.ledger.runs.stream_items import AttemptReset as AttemptReset
    from weft.ledger.runs.stream_items import MessageAdded as MessageAdded
    from weft.ledger.runs.stream_items import MessageQueued as MessageQueued
    from weft.ledger.runs.stream_items import MessageSettled as MessageSettled
    from weft.ledger.runs.stream_items import OtherEvent as OtherEvent
    from weft.ledger.runs.stream_items import StreamItem as StreamItem
    from weft.ledger.runs.stream_items import StreamPosition as StreamPosition
    from weft.ledger.runs.stream_items import TextAdded as TextAdded
    from weft.ledger.runs.stream_items import ToolFinished as ToolFinished
    from weft.ledger.runs.stream_items import ToolStarted as ToolStarted
    from weft.ledger.runs.stream_items import TurnEnded as TurnEnded
    from weft.ledger.runs.stream_items import TurnInterrupted as TurnInterrupted
    from weft.ledger.runs.stream_items import TurnParked as TurnParked
    from weft.ledger.runs.stream_items import TurnStarted as TurnStarted
    from weft.ledger.runs.stream_items import parse_position as parse_position
    from weft.ledger.runs.stream_log import StreamCursor as StreamCursor
    from weft.ledger.runs.stream_log import TurnSessions as TurnSessions
    from weft.ledger.runs.worker_answers import WorkerReply as WorkerReply
    from weft.ledger.runs.worker_answers import end_worker as end_worker
    from weft.ledger.runs.workers import Worker as Worker
    from weft.ledger.runs.workers import have_answered as have_answered
    from weft.ledger.search.hits import Hit as Hit
    from weft.ledger.search.related_passages import QueryWord as QueryWord
    from weft.ledger.search.related_turns import RelatedTurn as RelatedTurn
    from weft.ledger.search.related_turns import RelatedTurns as RelatedTurns
    from weft.ledger.secrets import SecretMatch as SecretMatch
    from weft.ledger.secrets import SecretPlace as SecretPlace
    from weft.ledger.secrets import SecretReport as SecretReport
    from weft.ledger.secrets import SecretScanner as SecretScanner
    from weft.ledger.sessions.merging import Provenance as Provenance
    from weft.ledger.sessions.unifying import Unification as Unification
    from weft.ledger.triggers.causes import EventPlace as EventPlace
    from weft.ledger.triggers.model import CursorMove as CursorMove
    from weft.ledger.triggers.model import Firing as Firing
    from weft.ledger.triggers.model import FiringOutcome as FiringOutcome
    from weft.ledger.triggers.model import MissedTimes as MissedTimes
    from weft.ledger.triggers.model import NewFiring as NewFiring
    from weft.ledger.triggers.model import Occasion as Occasion
    from weft.ledger.triggers.model import RoomTarget as RoomTarget
    from weft.ledger.triggers.model import TriggerCursor as TriggerCursor
    from weft.ledger.triggers.model import TriggerStanding as TriggerStanding
    from weft.ledger.triggers.reading import listed_firings as listed_firings
    from weft.ledger.triggers.reading import listed_gaps as listed_gaps
    from weft.ledger.upkeep.ledger_copy import CopyResult as CopyResult
    from weft.ledger.upkeep.packing import PackResult as PackResult
    from weft.ledger.upkeep.salvage import SalvageResult as SalvageResult
    from weft.ledger.upkeep.verify import Problem as Problem
    from weft.ledger.views.lease_rows import Lease as Lease
    from weft.ledger.views.lease_rows import LeaseKind as LeaseKind
    from weft.ledger.views.recorded_events import StoredEvent as StoredEvent
    from weft.ledger.views.recorded_events import place_of_event as place_of_event
    from weft.ledger.views.recorded_events import stream_of as stream_of
    from weft.ledger.write.turn_events import Setting as Setting

_NAMES = {
    "weft.ledger.approvals.model": "Approval CallDecision Policy",
    "weft.ledger.approvals.people": "ensure_person",
    "weft.ledger.rooms.model": "AgentProfile Invitation Participant PersonProfile PostedMessage ReachedAgent Room"
    " RoomHit"
    " RoomMessage",
    "weft.ledger.runs.model": "AddMessage Admission ApprovalAsked Entry Finished InboxMessage Interrupted ModelAnswered"
    " ModelAsked Parked QueueLimits RecordedEvent RunRecord SessionStanding TakeMessage Then ToolAsked ToolDecision"
    " ToolEnded TurnRetry WaitingSession principals_of retry_of",
    "weft.ledger.rooms.feed": "OpenAnswer RoomFeed RoomNews",
    "weft.ledger.runs.partial_replies": "PartialReply",
    "weft.ledger.runs.run_writer": "RunWriter",
    "weft.ledger.runs.stream_items": "AnswerEnded AnswerStarted AttemptReset ITEMS MessageAdded MessageQueued"
    " MessageSettled OtherEvent StreamItem StreamPosition TextAdded ToolFinished ToolStarted TurnEnded TurnInterrupted"
    " TurnParked TurnStarted parse_position",
    "weft.ledger.rooms.deliveries": "cancel_deliveries_to",
    "weft.ledger.runs.stream_log": "StreamCursor TurnSessions",
    "weft.ledger.runs.spawning": "MAX_WORKER_DEPTH NewWorker",
    "weft.ledger.runs.worker_answers": "WorkerReply end_worker",
    "weft.ledger.runs.workers": "Worker have_answered",
    "weft.ledger.read.request_inputs": "InputChain",
    "weft.ledger.write.turn_events": "Setting",
    "weft.ledger.api.base": "LedgerBase is_recorded_here open_thread_facts owner_of patience_of store_of writer_of",
    "weft.ledger.api.ledger": "Ledger",
    "weft.ledger.api.runs": "Runs",
    "weft.ledger.api.resources": "ResourceLog",
    "weft.ledger.resources.forking": "Fork",
    "weft.ledger.resources.undoing": "UndoneMove",
    "weft.ledger.resources.leases": "BusyResource",
    "weft.ledger.resources.model": "Failure KeptReference KeptState NewResource NewSnapshot Owner PlannedResource"
    " Resource ResourceHandle Restore Snapshot",
    "weft.ledger.api.triggers": "TriggerLog",
    "weft.ledger.triggers.model": "CursorMove Firing FiringOutcome MissedTimes NewFiring Occasion RoomTarget"
    " TriggerCursor TriggerStanding",
    "weft.ledger.triggers.causes": "EventPlace",
    "weft.ledger.triggers.reading": "listed_firings listed_gaps",
    "weft.ledger.runs.admission": "MessageTarget",
    "weft.ledger.api.streams": "PARTIAL_POLL_SECONDS SessionStream",
    "weft.ledger.approvals.policies": "POLICY_URI digest_of_source ensure_activatable ensure_replaced",
    "weft.ledger.erasing": "Erasure ErasurePlan Tombstone",
    "weft.ledger.imports.kept_sources": "SourceRange",
    "weft.ledger.imports.provisional": "ProvisionalTurn",
    "weft.ledger.read.agent_shares": "is_private shared_with users_of_agent",
    "weft.ledger.read.context_cuts": "CUT_PARAMETER ContextCut NO_CUT as_sent counted_tokens cut_from"
    " sent_text shortened",
    "weft.ledger.read.contexts": "Context",
    "weft.ledger.read.full_threads": "BranchPoint FullThreads FullTurn Item MessageReply TurnRange TurnLine",
    "weft.ledger.read.injected_text": "MessagePassage message_passages typed_command",
    "weft.ledger.read.listing": "HERE ListedSession SessionFilter SessionList has_title",
    "weft.ledger.read.pages": "Page",
    "weft.ledger.read.session_owners": "session_owner",
    "weft.ledger.read.sessions": "agent_names",
    "weft.ledger.read.system_agents": "system_kind_of",
    "weft.ledger.read.threads": "ThreadDiff",
    "weft.ledger.read.vouchers": "VouchedMessage Voucher",
    "weft.ledger.read.moments": "read_moment",
    "weft.ledger.read.projects": "RepositoryOf project_of repository_name",
    "weft.ledger.read.turn_steps": "StepGroup is_from_tool sections",
    "weft.ledger.read.turns": "calls_of",
    "weft.ledger.reports.actor_history": "ActorEvent",
    "weft.ledger.reports.permissions": "used_rights",
    "weft.ledger.reports.audit": "AuditFinding AuditTally FindingKind GROUPS AuditSeverity SuggestedGrant",
    "weft.ledger.reports.file_touches": "Touch WantedPath",
    "weft.ledger.reports.maintained_prices": "kept_prices shipped_context_window shipped_prices",
    "weft.ledger.reports.prices": "EMBEDDED_PROVIDER FREE Price PriceTable prices_from",
    "weft.ledger.reports.spending": "Spending UnpricedModel UsageRow",
    "weft.ledger.reports.usage": "AbandonedUsage BY BranchUsage PERIODS UsageReport",
    "weft.ledger.reports.usage_tree": "TurnUsage UsageTree WorkerUsage",
    "weft.ledger.reports.work": "ProjectWork SessionWork WorkReport",
    "weft.ledger.search.hits": "Hit",
    "weft.ledger.search.related_passages": "QueryWord",
    "weft.ledger.search.related_turns": "RelatedTurn RelatedTurns",
    "weft.ledger.secrets": "SecretMatch SecretPlace SecretReport SecretScanner",
    "weft.ledger.sessions.merging": "Provenance",
    "weft.ledger.sessions.unifying": "Unification",
    "weft.ledger.upkeep.ledger_copy": "CopyResult",
    "weft.ledger.upkeep.packing": "PackResult",
    "weft.ledger.upkeep.salvage": "SalvageResult",
    "weft.ledger.upkeep.verify": "Problem",
    "weft.ledger.views.lease_rows": "Lease LeaseKind",
    "weft.ledger.views.recorded_events": "StoredEvent place_of_event stream_of",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'weft.ledger.api' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """All names, also those that are not loaded yet."""
    return sorted({*globals(), *__all__})
