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
    from weft.ledger.api.base import vouch_content as vouch_content
    from weft.ledger.api.base import writer_of as writer_of
    from weft.ledger.api.broker import Runs as Runs
    from weft.ledger.api.ledger import Ledger as Ledger
    from weft.ledger.api.reading import PARTIAL_POLL_SECONDS as PARTIAL_POLL_SECONDS
    from weft.ledger.api.reading import SessionStream as SessionStream
    from weft.ledger.api.resources import ResourceLog as ResourceLog
    from weft.ledger.api.resources import Resources as Resources
    from weft.ledger.api.rooms import TriggerLog as TriggerLog
    from weft.ledger.broker.admission import MessageTarget as MessageTarget
    from weft.ledger.broker.inbox import AddMessage as AddMessage
    from weft.ledger.broker.inbox import Admission as Admission
    from weft.ledger.broker.inbox import ApprovalAsked as ApprovalAsked
    from weft.ledger.broker.inbox import Entry as Entry
    from weft.ledger.broker.inbox import FinishedRun as FinishedRun
    from weft.ledger.broker.inbox import InboxMessage as InboxMessage
    from weft.ledger.broker.inbox import ModelAnswered as ModelAnswered
    from weft.ledger.broker.inbox import ModelAsked as ModelAsked
    from weft.ledger.broker.inbox import ParkedRun as ParkedRun
    from weft.ledger.broker.inbox import QueueLimits as QueueLimits
    from weft.ledger.broker.inbox import RecordedEvent as RecordedEvent
    from weft.ledger.broker.inbox import RunInterruption as RunInterruption
    from weft.ledger.broker.inbox import RunRecord as RunRecord
    from weft.ledger.broker.inbox import SessionStanding as SessionStanding
    from weft.ledger.broker.inbox import TakeMessage as TakeMessage
    from weft.ledger.broker.inbox import Then as Then
    from weft.ledger.broker.inbox import ToolAsked as ToolAsked
    from weft.ledger.broker.inbox import ToolDecision as ToolDecision
    from weft.ledger.broker.inbox import ToolEnded as ToolEnded
    from weft.ledger.broker.inbox import TurnRetry as TurnRetry
    from weft.ledger.broker.inbox import WaitingSession as WaitingSession
    from weft.ledger.broker.inbox import have_same_rights as have_same_rights
    from weft.ledger.broker.inbox import is_limited as is_limited
    from weft.ledger.broker.inbox import own_queue as own_queue
    from weft.ledger.broker.inbox import principals_of as principals_of
    from weft.ledger.broker.inbox import queued_messages as queued_messages
    from weft.ledger.broker.inbox import retry_of as retry_of
    from weft.ledger.broker.run_writer import RunWriter as RunWriter
    from weft.ledger.broker.session_stream import ITEMS as ITEMS
    from weft.ledger.broker.session_stream import AnswerEnded as AnswerEnded
    from weft.ledger.broker.session_stream import AnswerStarted as AnswerStarted
    from weft.ledger.broker.session_stream import AttemptReset as AttemptReset
    from weft.ledger.broker.session_stream import MessageAdded as MessageAdded
    from weft.ledger.broker.session_stream import MessageQueued as MessageQueued
    from weft.ledger.broker.session_stream import MessageSettled as MessageSettled
    from weft.ledger.broker.session_stream import OtherEvent as OtherEvent
    from weft.ledger.broker.session_stream import PartialReply as PartialReply
    from weft.ledger.broker.session_stream import StreamCursor as StreamCursor
    from weft.ledger.broker.session_stream import StreamItem as StreamItem
    from weft.ledger.broker.session_stream import StreamPosition as StreamPosition
    from weft.ledger.broker.session_stream import TextAdded as TextAdded
    from weft.ledger.broker.session_stream import ToolFinished as ToolFinished
    from weft.ledger.broker.session_stream import ToolStarted as ToolStarted
    from weft.ledger.broker.session_stream import TurnEnded as TurnEnded
    from weft.ledger.broker.session_stream import TurnInterrupted as TurnInterrupted
    from weft.ledger.broker.session_stream import TurnParked as TurnParked
    from weft.ledger.broker.session_stream import TurnSessions as TurnSessions
    from weft.ledger.broker.session_stream import TurnStarted as TurnStarted
    from weft.ledger.broker.session_stream import parse_position as parse_position
    from weft.ledger.broker.workers import MAX_WORKER_DEPTH as MAX_WORKER_DEPTH
    from weft.ledger.broker.workers import NewWorker as NewWorker
    from weft.ledger.broker.workers import WorkerReply as WorkerReply
    from weft.ledger.broker.workers import WorkerSession as WorkerSession
    from weft.ledger.broker.workers import WorkerState as WorkerState
    from weft.ledger.broker.workers import end_worker as end_worker
    from weft.ledger.broker.workers import have_answered as have_answered
    from weft.ledger.erasing import Erasure as Erasure
    from weft.ledger.erasing import ErasurePlan as ErasurePlan
    from weft.ledger.imports.sources import ProvisionalTurn as ProvisionalTurn
    from weft.ledger.imports.sources import SourceRange as SourceRange
    from weft.ledger.read.access import is_private as is_private
    from weft.ledger.read.access import session_owner as session_owner
    from weft.ledger.read.access import shared_with as shared_with
    from weft.ledger.read.access import system_kind_of as system_kind_of
    from weft.ledger.read.access import users_of_agent as users_of_agent
    from weft.ledger.read.content_uses import Tombstone as Tombstone
    from weft.ledger.read.contexts import CUT_PARAMETER as CUT_PARAMETER
    from weft.ledger.read.contexts import NO_CUT as NO_CUT
    from weft.ledger.read.contexts import Context as Context
    from weft.ledger.read.contexts import ContextCut as ContextCut
    from weft.ledger.read.contexts import InputChain as InputChain
    from weft.ledger.read.contexts import PromptChange as PromptChange
    from weft.ledger.read.contexts import PromptPart as PromptPart
    from weft.ledger.read.contexts import VouchedMessage as VouchedMessage
    from weft.ledger.read.contexts import Voucher as Voucher
    from weft.ledger.read.contexts import as_sent as as_sent
    from weft.ledger.read.contexts import counted_tokens as counted_tokens
    from weft.ledger.read.contexts import cut_from as cut_from
    from weft.ledger.read.contexts import sent_text as sent_text
    from weft.ledger.read.contexts import shortened as shortened
    from weft.ledger.read.contexts import translate_by as translate_by
    from weft.ledger.read.full_threads import BranchPoint as BranchPoint
    from weft.ledger.read.full_threads import FullThreads as FullThreads
    from weft.ledger.read.full_threads import FullTurn as FullTurn
    from weft.ledger.read.full_threads import Item as Item
    from weft.ledger.read.full_threads import MessageReply as MessageReply
    from weft.ledger.read.full_threads import StepGroup as StepGroup
    from weft.ledger.read.full_threads import TurnLine as TurnLine
    from weft.ledger.read.full_threads import TurnRange as TurnRange
    from weft.ledger.read.full_threads import is_from_tool as is_from_tool
    from weft.ledger.read.full_threads import sections as sections
    from weft.ledger.read.revisions import read_moment as read_moment
    from weft.ledger.read.search_matches import Hit as Hit
    from weft.ledger.read.session_list import HERE as HERE
    from weft.ledger.read.session_list import ListedSession as ListedSession
    from weft.ledger.read.session_list import MessagePassage as MessagePassage
    from weft.ledger.read.session_list import SessionFilter as SessionFilter
    from weft.ledger.read.session_list import SessionList as SessionList
    from weft.ledger.read.session_list import Touch as Touch
    from weft.ledger.read.session_list import WantedPath as WantedPath
    from weft.ledger.read.session_list import has_title as has_title
    from weft.ledger.read.session_list import message_passages as message_passages
    from weft.ledger.read.session_list import typed_command as typed_command
    from weft.ledger.read.sessions import Page as Page
    from weft.ledger.read.sessions import RepositoryOf as RepositoryOf
    from weft.ledger.read.sessions import agent_names as agent_names
    from weft.ledger.read.sessions import project_of as project_of
    from weft.ledger.read.sessions import repository_name as repository_name
    from weft.ledger.read.turn_lookups import QueryWord as QueryWord
    from weft.ledger.read.turn_lookups import RelatedTurn as RelatedTurn
    from weft.ledger.read.turn_lookups import RelatedTurns as RelatedTurns
    from weft.ledger.read.turns import ThreadDiff as ThreadDiff
    from weft.ledger.read.turns import calls_of as calls_of
    from weft.ledger.reports.audit import GROUPS as GROUPS
    from weft.ledger.reports.audit import ActorEvent as ActorEvent
    from weft.ledger.reports.audit import AuditFinding as AuditFinding
    from weft.ledger.reports.audit import AuditSeverity as AuditSeverity
    from weft.ledger.reports.audit import AuditTally as AuditTally
    from weft.ledger.reports.audit import FindingKind as FindingKind
    from weft.ledger.reports.audit import SuggestedGrant as SuggestedGrant
    from weft.ledger.reports.audit import used_rights as used_rights
    from weft.ledger.reports.prices import EMBEDDED_PROVIDER as EMBEDDED_PROVIDER
    from weft.ledger.reports.prices import FREE as FREE
    from weft.ledger.reports.prices import PriceTable as PriceTable
    from weft.ledger.reports.prices import Spending as Spending
    from weft.ledger.reports.prices import TokenPrice as TokenPrice
    from weft.ledger.reports.prices import UnpricedModel as UnpricedModel
    from weft.ledger.reports.prices import UsageRow as UsageRow
    from weft.ledger.reports.prices import kept_prices as kept_prices
    from weft.ledger.reports.prices import prices_from as prices_from
    from weft.ledger.reports.prices import shipped_context_window as shipped_context_window
    from weft.ledger.reports.prices import shipped_model_names as shipped_model_names
    from weft.ledger.reports.prices import shipped_prices as shipped_prices
    from weft.ledger.reports.usage import BY as BY
    from weft.ledger.reports.usage import PERIODS as PERIODS
    from weft.ledger.reports.usage import UNKNOWN as UNKNOWN
    from weft.ledger.reports.usage import AbandonedUsage as AbandonedUsage
    from weft.ledger.reports.usage import BranchUsage as BranchUsage
    from weft.ledger.reports.usage import ProjectWork as ProjectWork
    from weft.ledger.reports.usage import SessionWork as SessionWork
    from weft.ledger.reports.usage import TurnUsage as TurnUsage
    from weft.ledger.reports.usage import UsageReport as UsageReport
    from weft.ledger.reports.usage import UsageTree as UsageTree
    from weft.ledger.reports.usage import WorkerUsage as WorkerUsage
    from weft.ledger.reports.usage import WorkReport as WorkReport
    from weft.ledger.resource_changes import BusyResource as BusyResource
    from weft.ledger.resource_changes import ResourceFork as ResourceFork
    from weft.ledger.resource_changes import UndoneMove as UndoneMove
    from weft.ledger.resource_reading import KeptReference as KeptReference
    from weft.ledger.resource_reading import KeptState as KeptState
    from weft.ledger.resource_reading import NewResource as NewResource
    from weft.ledger.resource_reading import NewSnapshot as NewSnapshot
    from weft.ledger.resource_reading import Owner as Owner
    from weft.ledger.resource_reading import PlannedResource as PlannedResource
    from weft.ledger.resource_reading import Resource as Resource
    from weft.ledger.resource_reading import ResourceFailure as ResourceFailure
    from weft.ledger.resource_reading import ResourceHandle as ResourceHandle
    from weft.ledger.resource_reading import ResourceRestore as ResourceRestore
    from weft.ledger.resource_reading import Snapshot as Snapshot
    from weft.ledger.room_posting import cancel_deliveries_to as cancel_deliveries_to
    from weft.ledger.room_reading import OpenAnswer as OpenAnswer
    from weft.ledger.room_reading import RoomFeed as RoomFeed
    from weft.ledger.room_reading import RoomNews as RoomNews
    from weft.ledger.room_records import AgentProfile as AgentProfile
    from weft.ledger.room_records import Invitation as Invitation
    from weft.ledger.room_records import Participant as Participant
    from weft.ledger.room_records import PersonProfile as PersonProfile
    from weft.ledger.room_records import PostedMessage as PostedMessage
    from weft.ledger.room_records import ReachedAgent as ReachedAgent
    from weft.ledger.room_records import Room as Room
    from weft.ledger.room_records import RoomHit as RoomHit
    from weft.ledger.room_records import RoomMessage as RoomMessage
    from weft.ledger.room_records import find_conversation as find_conversation
    from weft.ledger.room_records import load_conversation as load_conversation
    from weft.ledger.secrets import SecretMatch as SecretMatch
    from weft.ledger.secrets import SecretPlace as SecretPlace
    from weft.ledger.secrets import SecretReport as SecretReport
    from weft.ledger.secrets import SecretScanner as SecretScanner
    from weft.ledger.triggers import CursorMove as CursorMove
    from weft.ledger.triggers import EventPlace as EventPlace
    from weft.ledger.triggers import Firing as Firing
    from weft.ledger.triggers import FiringOutcome as FiringOutcome
    from weft.ledger.triggers import MissedTimes as MissedTimes
    from weft.ledger.triggers import NewFiring as NewFiring
    from weft.ledger.triggers import RoomTarget as RoomTarget
    from weft.ledger.triggers import TriggerCursor as TriggerCursor
    from weft.ledger.triggers import TriggerOccasion as TriggerOccasion
    from weft.ledger.triggers import TriggerStanding as TriggerStanding
    from weft.ledger.triggers import listed_firings as listed_firings
    from weft.ledger.triggers import listed_gaps as listed_gaps
    from weft.ledger.upkeep.ledger_copy import CopyResult as CopyResult
    from weft.ledger.upkeep.ledger_copy import PackResult as PackResult
    from weft.ledger.upkeep.ledger_copy import SalvageResult as SalvageResult
    from weft.ledger.upkeep.verify import Problem as Problem
    from weft.ledger.views.rows import Lease as Lease
    from weft.ledger.views.rows import LeaseKind as LeaseKind
    from weft.ledger.views.rows import StoredEvent as StoredEvent
    from weft.ledger.views.rows import place_of_event as place_of_event
    from weft.ledger.views.rows import stream_of as stream_of
    from weft.ledger.write.approvals import POLICY_URI as POLICY_URI
    from weft.ledger.write.approvals import Approval as Approval
    from weft.ledger.write.approvals import CallDecision as CallDecision
    from weft.ledger.write.approvals import Policy as Policy
    from weft.ledger.write.approvals import digest_of_source as digest_of_source
    from weft.ledger.write.approvals import ensure_activatable as ensure_activatable
    from weft.ledger.write.approvals import ensure_person as ensure_person
    from weft.ledger.write.approvals import ensure_replaced as ensure_replaced
    from weft.ledger.write.session_merges import Provenance as Provenance
    from weft.ledger.write.session_merges import Unification as Unification
    from weft.ledger.write.turn_events import RunConfig as RunConfig

_NAMES = {
    "weft.ledger.write.approvals": (
        "Approval CallDecision POLICY_URI Policy digest_of_source ensure_activatable ensure_person ensure_replaced"
    ),
    "weft.ledger.room_records": (
        "AgentProfile Invitation Participant PersonProfile PostedMessage ReachedAgent Room RoomHit RoomMessage "
        "find_conversation load_conversation"
    ),
    "weft.ledger.broker.inbox": (
        "AddMessage Admission ApprovalAsked Entry FinishedRun have_same_rights InboxMessage is_limited ModelAnswered "
        "ModelAsked ParkedRun own_queue principals_of queued_messages QueueLimits RecordedEvent retry_of "
        "RunInterruption RunRecord SessionStanding TakeMessage Then ToolAsked ToolDecision ToolEnded TurnRetry "
        "WaitingSession"
    ),
    "weft.ledger.room_reading": "OpenAnswer RoomFeed RoomNews",
    "weft.ledger.broker.session_stream": (
        "AnswerEnded AnswerStarted AttemptReset ITEMS MessageAdded MessageQueued MessageSettled OtherEvent "
        "PartialReply StreamCursor StreamItem StreamPosition TextAdded ToolFinished ToolStarted TurnEnded "
        "TurnInterrupted TurnParked TurnSessions TurnStarted parse_position"
    ),
    "weft.ledger.broker.run_writer": "RunWriter",
    "weft.ledger.room_posting": "cancel_deliveries_to",
    "weft.ledger.broker.workers": (
        "end_worker have_answered MAX_WORKER_DEPTH NewWorker WorkerReply WorkerSession WorkerState"
    ),
    "weft.ledger.read.contexts": (
        "CUT_PARAMETER Context ContextCut InputChain NO_CUT PromptChange PromptPart VouchedMessage Voucher as_sent "
        "counted_tokens cut_from sent_text shortened translate_by"
    ),
    "weft.ledger.write.turn_events": "RunConfig",
    "weft.ledger.api.base": (
        "LedgerBase is_recorded_here open_thread_facts owner_of patience_of store_of vouch_content writer_of"
    ),
    "weft.ledger.api.ledger": "Ledger",
    "weft.ledger.api.broker": "Runs",
    "weft.ledger.api.resources": "ResourceLog Resources",
    "weft.ledger.resource_changes": "BusyResource ResourceFork UndoneMove",
    "weft.ledger.resource_reading": (
        "KeptReference KeptState NewResource NewSnapshot Owner PlannedResource Resource ResourceFailure "
        "ResourceHandle ResourceRestore Snapshot"
    ),
    "weft.ledger.api.rooms": "TriggerLog",
    "weft.ledger.triggers": (
        "CursorMove EventPlace Firing FiringOutcome MissedTimes NewFiring TriggerOccasion RoomTarget TriggerCursor "
        "TriggerStanding listed_firings listed_gaps"
    ),
    "weft.ledger.broker.admission": "MessageTarget",
    "weft.ledger.api.reading": "PARTIAL_POLL_SECONDS SessionStream",
    "weft.ledger.erasing": "Erasure ErasurePlan",
    "weft.ledger.read.content_uses": "Tombstone",
    "weft.ledger.imports.sources": "ProvisionalTurn SourceRange",
    "weft.ledger.read.access": "is_private session_owner shared_with system_kind_of users_of_agent",
    "weft.ledger.read.full_threads": (
        "BranchPoint FullThreads FullTurn Item MessageReply StepGroup TurnLine TurnRange is_from_tool sections"
    ),
    "weft.ledger.read.session_list": (
        "HERE ListedSession MessagePassage SessionFilter SessionList Touch WantedPath has_title message_passages "
        "typed_command"
    ),
    "weft.ledger.read.sessions": "Page RepositoryOf agent_names project_of repository_name",
    "weft.ledger.read.turns": "ThreadDiff calls_of",
    "weft.ledger.read.revisions": "read_moment",
    "weft.ledger.reports.audit": (
        "ActorEvent AuditFinding AuditSeverity AuditTally FindingKind GROUPS SuggestedGrant used_rights"
    ),
    "weft.ledger.reports.prices": (
        "EMBEDDED_PROVIDER FREE TokenPrice PriceTable Spending UnpricedModel UsageRow kept_prices prices_from "
        "shipped_context_window shipped_model_names shipped_prices"
    ),
    "weft.ledger.reports.usage": (
        "AbandonedUsage BY BranchUsage PERIODS ProjectWork SessionWork TurnUsage UNKNOWN UsageReport UsageTree "
        "WorkReport WorkerUsage"
    ),
    "weft.ledger.read.search_matches": "Hit",
    "weft.ledger.read.turn_lookups": "QueryWord RelatedTurn RelatedTurns",
    "weft.ledger.secrets": "SecretMatch SecretPlace SecretReport SecretScanner",
    "weft.ledger.write.session_merges": "Provenance Unification",
    "weft.ledger.upkeep.ledger_copy": "CopyResult PackResult SalvageResult",
    "weft.ledger.upkeep.verify": "Problem",
    "weft.ledger.views.rows": "Lease LeaseKind StoredEvent place_of_event stream_of",
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
