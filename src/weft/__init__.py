"""Weft: version control for AI agents, and the runtime that goes with it.

Every name below is loaded when it is first used, so that `import weft` stays quick. What the verbs return is all here.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; `typing` would be most of what loading this takes
if TYPE_CHECKING:
    from typing import Any

    from weft.graph.graph import Graph as Graph
    from weft.graph.model import Ancestry as Ancestry
    from weft.graph.model import AncestryStep as AncestryStep
    from weft.graph.model import CallPair as CallPair
    from weft.graph.model import GraphEdge as GraphEdge
    from weft.graph.model import GraphNode as GraphNode
    from weft.graph.model import GraphPath as GraphPath
    from weft.graph.model import GraphWalk as GraphWalk
    from weft.graph.model import Neighbours as Neighbours
    from weft.graph.model import PathsFound as PathsFound
    from weft.graph.model import PolicyStep as PolicyStep
    from weft.graph.model import ResourceState as ResourceState
    from weft.graph.model import RunHistory as RunHistory
    from weft.kernel.advice import Advice as Advice
    from weft.kernel.authority import Authority as Authority
    from weft.kernel.authority import Layer as Layer
    from weft.kernel.authority import LedgerTrust as LedgerTrust
    from weft.kernel.authority import Principal as Principal
    from weft.kernel.authority import PrincipalKind as PrincipalKind
    from weft.kernel.authority import Rights as Rights
    from weft.kernel.enums import AgentRole as AgentRole
    from weft.kernel.enums import EventClass as EventClass
    from weft.kernel.enums import FileKind as FileKind
    from weft.kernel.enums import HandleCapability as HandleCapability
    from weft.kernel.enums import LinkReason as LinkReason
    from weft.kernel.enums import LintSeverity as LintSeverity
    from weft.kernel.enums import MessageRole as MessageRole
    from weft.kernel.enums import MessageSource as MessageSource
    from weft.kernel.enums import MountMode as MountMode
    from weft.kernel.enums import ResourceCapability as ResourceCapability
    from weft.kernel.enums import ResourceKind as ResourceKind
    from weft.kernel.enums import ResourceLiveness as ResourceLiveness
    from weft.kernel.enums import SnapshotConsistency as SnapshotConsistency
    from weft.kernel.enums import SnapshotState as SnapshotState
    from weft.kernel.enums import SubresourcePart as SubresourcePart
    from weft.kernel.enums import ToolCallStatus as ToolCallStatus
    from weft.kernel.errors import WeftError as WeftError
    from weft.kernel.events import Event as Event
    from weft.kernel.events import Receipt as Receipt
    from weft.kernel.events import UnknownEvent as UnknownEvent
    from weft.kernel.fields import PolicyTests as PolicyTests
    from weft.kernel.fields import Usage as Usage
    from weft.ledger.api.approvals import Approvals as Approvals
    from weft.ledger.api.approvals import Policies as Policies
    from weft.ledger.api.audit import AuditReports as AuditReports
    from weft.ledger.api.compactions import Compactions as Compactions
    from weft.ledger.api.erasure import Erasures as Erasures
    from weft.ledger.api.imports import Imports as Imports
    from weft.ledger.api.inbox import Inbox as Inbox
    from weft.ledger.api.labels import Heads as Heads
    from weft.ledger.api.labels import Labels as Labels
    from weft.ledger.api.ledger import Ledger as Ledger
    from weft.ledger.api.merges import Merges as Merges
    from weft.ledger.api.resources import Resources as Resources
    from weft.ledger.api.rooms import Rooms as Rooms
    from weft.ledger.api.secrets import Secrets as Secrets
    from weft.ledger.api.tree import Tree as Tree
    from weft.ledger.api.upkeep import Upkeep as Upkeep
    from weft.ledger.api.usage import UsageReports as UsageReports
    from weft.ledger.approvals.model import Approval as Approval
    from weft.ledger.approvals.model import CallDecision as CallDecision
    from weft.ledger.approvals.model import Policy as Policy
    from weft.ledger.erasing.erasure import Erasure as Erasure
    from weft.ledger.erasing.plan import AffectedSession as AffectedSession
    from weft.ledger.erasing.plan import ContentToErase as ContentToErase
    from weft.ledger.erasing.plan import ErasurePlan as ErasurePlan
    from weft.ledger.erasing.plan import SharedContent as SharedContent
    from weft.ledger.erasing.plan import SharedTurn as SharedTurn
    from weft.ledger.erasing.plan import UntaggedNode as UntaggedNode
    from weft.ledger.imports.import_writer import ImportWriter as ImportWriter
    from weft.ledger.imports.kept_sources import SourceRange as SourceRange
    from weft.ledger.imports.natives import NativeCall as NativeCall
    from weft.ledger.imports.natives import NativeCompaction as NativeCompaction
    from weft.ledger.imports.natives import NativeLink as NativeLink
    from weft.ledger.imports.natives import NativeMessage as NativeMessage
    from weft.ledger.imports.natives import NativeTurn as NativeTurn
    from weft.ledger.imports.natives import Tokens as Tokens
    from weft.ledger.imports.provisional import ProvisionalItem as ProvisionalItem
    from weft.ledger.imports.provisional import ProvisionalTurn as ProvisionalTurn
    from weft.ledger.imports.sources import ImportSource as ImportSource
    from weft.ledger.imports.sources import TranscriptTurn as TranscriptTurn
    from weft.ledger.model import AppliedSubstitution as AppliedSubstitution
    from weft.ledger.model import Branch as Branch
    from weft.ledger.model import Codeblock as Codeblock
    from weft.ledger.model import Compaction as Compaction
    from weft.ledger.model import FileNote as FileNote
    from weft.ledger.model import HeadMove as HeadMove
    from weft.ledger.model import ImagePart as ImagePart
    from weft.ledger.model import LintNote as LintNote
    from weft.ledger.model import Message as Message
    from weft.ledger.model import NewError as NewError
    from weft.ledger.model import NewMessage as NewMessage
    from weft.ledger.model import NewToolCall as NewToolCall
    from weft.ledger.model import ReasoningPart as ReasoningPart
    from weft.ledger.model import RecordedTurn as RecordedTurn
    from weft.ledger.model import RevisionTarget as RevisionTarget
    from weft.ledger.model import Session as Session
    from weft.ledger.model import SessionAlias as SessionAlias
    from weft.ledger.model import SessionMove as SessionMove
    from weft.ledger.model import StoredContent as StoredContent
    from weft.ledger.model import TextPart as TextPart
    from weft.ledger.model import ToolCall as ToolCall
    from weft.ledger.model import ToolResultPart as ToolResultPart
    from weft.ledger.model import ToolUsePart as ToolUsePart
    from weft.ledger.model import Turn as Turn
    from weft.ledger.read.context_cuts import ContextCut as ContextCut
    from weft.ledger.read.contexts import Context as Context
    from weft.ledger.read.full_threads import BranchPoint as BranchPoint
    from weft.ledger.read.full_threads import FullThreads as FullThreads
    from weft.ledger.read.full_threads import FullTurn as FullTurn
    from weft.ledger.read.full_threads import MessageReply as MessageReply
    from weft.ledger.read.full_threads import ThreadsSpan as ThreadsSpan
    from weft.ledger.read.full_threads import TurnLine as TurnLine
    from weft.ledger.read.full_threads import TurnRange as TurnRange
    from weft.ledger.read.listing import ListedSession as ListedSession
    from weft.ledger.read.listing import ListReader as ListReader
    from weft.ledger.read.listing import SessionList as SessionList
    from weft.ledger.read.pages import Page as Page
    from weft.ledger.read.threads import Thread as Thread
    from weft.ledger.read.threads import ThreadDiff as ThreadDiff
    from weft.ledger.read.tombstones import Tombstone as Tombstone
    from weft.ledger.read.vouchers import VouchedMessage as VouchedMessage
    from weft.ledger.read.vouchers import Voucher as Voucher
    from weft.ledger.read.vouchers import VoucherKind as VoucherKind
    from weft.ledger.reports.actor_history import ActorEvent as ActorEvent
    from weft.ledger.reports.audit import AuditFinding as AuditFinding
    from weft.ledger.reports.audit import AuditSeverity as AuditSeverity
    from weft.ledger.reports.audit import FindingKind as FindingKind
    from weft.ledger.reports.audit import SuggestedGrant as SuggestedGrant
    from weft.ledger.reports.file_touches import Touch as Touch
    from weft.ledger.reports.spending import KindCosts as KindCosts
    from weft.ledger.reports.spending import RecordedCosts as RecordedCosts
    from weft.ledger.reports.spending import Spending as Spending
    from weft.ledger.reports.spending import UnpricedModel as UnpricedModel
    from weft.ledger.reports.spending import UsageRow as UsageRow
    from weft.ledger.reports.usage import AbandonedRow as AbandonedRow
    from weft.ledger.reports.usage import AbandonedUsage as AbandonedUsage
    from weft.ledger.reports.usage import BranchUsage as BranchUsage
    from weft.ledger.reports.usage import UsageReport as UsageReport
    from weft.ledger.reports.usage_tree import TurnUsage as TurnUsage
    from weft.ledger.reports.usage_tree import UsageTree as UsageTree
    from weft.ledger.reports.usage_tree import WorkerUsage as WorkerUsage
    from weft.ledger.reports.work import FileWork as FileWork
    from weft.ledger.reports.work import ProjectWork as ProjectWork
    from weft.ledger.reports.work import SessionWork as SessionWork
    from weft.ledger.reports.work import WorkReport as WorkReport
    from weft.ledger.resources.model import Owner as Owner
    from weft.ledger.resources.model import Resource as Resource
    from weft.ledger.resources.model import ResourceHandle as ResourceHandle
    from weft.ledger.resources.model import ResourcePart as ResourcePart
    from weft.ledger.resources.model import ResourceUse as ResourceUse
    from weft.ledger.resources.model import Snapshot as Snapshot
    from weft.ledger.rooms.model import AgentProfile as AgentProfile
    from weft.ledger.rooms.model import Invitation as Invitation
    from weft.ledger.rooms.model import Participant as Participant
    from weft.ledger.rooms.model import PersonProfile as PersonProfile
    from weft.ledger.rooms.model import PostedMessage as PostedMessage
    from weft.ledger.rooms.model import ReachedAgent as ReachedAgent
    from weft.ledger.rooms.model import Room as Room
    from weft.ledger.rooms.model import RoomHit as RoomHit
    from weft.ledger.rooms.model import RoomLimits as RoomLimits
    from weft.ledger.rooms.model import RoomMention as RoomMention
    from weft.ledger.rooms.model import RoomMessage as RoomMessage
    from weft.ledger.runs.model import Admission as Admission
    from weft.ledger.runs.model import InboxMessage as InboxMessage
    from weft.ledger.runs.model import QueueLimits as QueueLimits
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
    from weft.ledger.search.hits import Hit as Hit
    from weft.ledger.search.related_passages import QueryWord as QueryWord
    from weft.ledger.search.related_turns import RelatedTurn as RelatedTurn
    from weft.ledger.search.related_turns import RelatedTurns as RelatedTurns
    from weft.ledger.secrets.matches import SecretMatch as SecretMatch
    from weft.ledger.secrets.places import SecretPlace as SecretPlace
    from weft.ledger.secrets.report import SecretFinding as SecretFinding
    from weft.ledger.secrets.report import SecretReport as SecretReport
    from weft.ledger.secrets.scan import SecretScan as SecretScan
    from weft.ledger.sessions.merging import Provenance as Provenance
    from weft.ledger.sessions.unifying import Unification as Unification
    from weft.ledger.triggers.model import Firing as Firing
    from weft.ledger.triggers.model import MissedTimes as MissedTimes
    from weft.ledger.upkeep.copy_register import KnownCopy as KnownCopy
    from weft.ledger.upkeep.facts_file import ImportedFacts as ImportedFacts
    from weft.ledger.upkeep.ledger_copy import CopyResult as CopyResult
    from weft.ledger.upkeep.packing import PackResult as PackResult
    from weft.ledger.upkeep.salvage import SalvageResult as SalvageResult
    from weft.ledger.upkeep.verify import Problem as Problem
    from weft.ledger.views.edge_types import EdgeType as EdgeType
    from weft.ledger.views.lease_rows import Lease as Lease
    from weft.ledger.views.recorded_events import StoredEvent as StoredEvent
    from weft.ledger.write.turn_writer import TurnWriter as TurnWriter
    from weft.open_ledger import OpenLedger as OpenLedger
    from weft.opening import copy as copy
    from weft.opening import examine as examine
    from weft.opening import open as open
    from weft.opening import restore as restore
    from weft.opening import salvage as salvage
    from weft.program_handles import LedgerPrograms as LedgerPrograms
    from weft.program_handles import ProgramHandle as ProgramHandle
    from weft.programs.apply import PlannedProgram as PlannedProgram
    from weft.programs.model import CriterionVerdict as CriterionVerdict
    from weft.programs.model import Difference as Difference
    from weft.programs.model import PendingItem as PendingItem
    from weft.programs.model import PersonRequest as PersonRequest
    from weft.programs.model import Program as Program
    from weft.programs.model import ProgramChange as ProgramChange
    from weft.programs.model import RecordedVerdict as RecordedVerdict
    from weft.programs.model import TaggedNode as TaggedNode
    from weft.programs.model import UnvouchedName as UnvouchedName
    from weft.programs.programs import Programs as Programs
    from weft.runtime.invoke.invocation import InvocationResult as InvocationResult
    from weft.store.diagnosis import Diagnosis as Diagnosis
    from weft.store.diagnosis import DiagnosisSeverity as DiagnosisSeverity
    from weft.store.sqlite.restore import RestoreResult as RestoreResult
    from weft.store.trust_store import LedgerIdentity as LedgerIdentity
    from weft.store.trust_store import TrustedLedger as TrustedLedger
    from weft.store.trust_store import TrustStore as TrustStore

__version__ = "0.1.0"

_NAMES = {
    "weft.kernel.advice": "Advice",
    "weft.kernel.authority": "Authority Layer LedgerTrust Principal PrincipalKind Rights",
    "weft.kernel.enums": (
        "AgentRole EventClass FileKind HandleCapability LinkReason LintSeverity MessageRole MessageSource MountMode"
        " ResourceCapability ResourceKind ResourceLiveness SnapshotConsistency SnapshotState SubresourcePart"
        " ToolCallStatus"
    ),
    "weft.kernel.errors": "WeftError",
    "weft.kernel.events": "Event Receipt UnknownEvent",
    "weft.kernel.fields": "PolicyTests Usage",
    "weft.graph.graph": "Graph",
    "weft.graph.model": (
        "Ancestry AncestryStep CallPair GraphEdge GraphNode GraphPath GraphWalk Neighbours PathsFound PolicyStep"
        " ResourceState RunHistory"
    ),
    "weft.ledger.views.edge_types": "EdgeType",
    "weft.ledger.api.approvals": "Approvals Policies",
    "weft.ledger.approvals.model": "Approval CallDecision Policy",
    "weft.ledger.api.resources": "Resources",
    "weft.ledger.resources.model": "Owner Resource ResourceHandle ResourcePart ResourceUse Snapshot",
    "weft.ledger.api.rooms": "Rooms",
    "weft.ledger.rooms.model": "AgentProfile Invitation Participant PersonProfile PostedMessage ReachedAgent Room"
    " RoomHit"
    " RoomLimits RoomMention RoomMessage",
    "weft.ledger.triggers.model": "Firing MissedTimes",
    "weft.ledger.api.audit": "AuditReports",
    "weft.ledger.api.compactions": "Compactions",
    "weft.ledger.api.erasure": "Erasures",
    "weft.ledger.api.imports": "Imports",
    "weft.ledger.api.labels": "Heads Labels",
    "weft.ledger.api.ledger": "Ledger",
    "weft.ledger.api.merges": "Merges",
    "weft.ledger.api.secrets": "Secrets",
    "weft.ledger.api.tree": "Tree",
    "weft.ledger.api.upkeep": "Upkeep",
    "weft.ledger.api.usage": "UsageReports",
    "weft.ledger.erasing.erasure": "Erasure",
    "weft.ledger.erasing.plan": "AffectedSession ContentToErase ErasurePlan SharedTurn SharedContent UntaggedNode",
    "weft.ledger.imports.import_writer": "ImportWriter",
    "weft.ledger.imports.kept_sources": "SourceRange",
    "weft.ledger.api.inbox": "Inbox",
    "weft.ledger.runs.model": "Admission InboxMessage QueueLimits",
    "weft.ledger.imports.natives": "NativeCall NativeCompaction NativeLink NativeMessage NativeTurn Tokens",
    "weft.ledger.imports.provisional": "ProvisionalItem ProvisionalTurn",
    "weft.ledger.imports.sources": "ImportSource TranscriptTurn",
    "weft.ledger.model": (
        "Branch Codeblock Compaction FileNote HeadMove ImagePart LintNote Message NewError "
        "NewMessage NewToolCall RevisionTarget ReasoningPart RecordedTurn Session SessionAlias SessionMove"
        " StoredContent "
        "AppliedSubstitution TextPart ToolCall ToolResultPart ToolUsePart Turn"
    ),
    "weft.ledger.read.context_cuts": "ContextCut",
    "weft.ledger.read.contexts": "Context",
    "weft.ledger.read.full_threads": "BranchPoint FullThreads FullTurn MessageReply TurnRange ThreadsSpan TurnLine",
    "weft.ledger.read.listing": "ListedSession ListReader SessionList",
    "weft.ledger.read.pages": "Page",
    "weft.ledger.read.threads": "Thread ThreadDiff",
    "weft.ledger.read.tombstones": "Tombstone",
    "weft.ledger.read.vouchers": "VouchedMessage Voucher VoucherKind",
    "weft.ledger.reports.actor_history": "ActorEvent",
    "weft.ledger.reports.audit": "AuditFinding FindingKind AuditSeverity SuggestedGrant",
    "weft.ledger.reports.file_touches": "Touch",
    "weft.ledger.reports.spending": "KindCosts RecordedCosts Spending UnpricedModel UsageRow",
    "weft.ledger.reports.usage": "AbandonedRow AbandonedUsage BranchUsage UsageReport",
    "weft.ledger.reports.usage_tree": "TurnUsage UsageTree WorkerUsage",
    "weft.ledger.reports.work": "FileWork ProjectWork SessionWork WorkReport",
    "weft.ledger.runs.stream_items": (
        "AnswerEnded AnswerStarted AttemptReset MessageAdded MessageQueued MessageSettled OtherEvent StreamItem "
        "StreamPosition TextAdded ToolFinished ToolStarted TurnEnded TurnInterrupted TurnParked TurnStarted"
    ),
    "weft.ledger.search.hits": "Hit",
    "weft.ledger.search.related_passages": "QueryWord",
    "weft.ledger.search.related_turns": "RelatedTurn RelatedTurns",
    "weft.ledger.secrets.matches": "SecretMatch",
    "weft.ledger.secrets.places": "SecretPlace",
    "weft.ledger.secrets.report": "SecretFinding SecretReport",
    "weft.ledger.secrets.scan": "SecretScan",
    "weft.ledger.sessions.merging": "Provenance",
    "weft.ledger.sessions.unifying": "Unification",
    "weft.ledger.upkeep.copy_register": "KnownCopy",
    "weft.ledger.upkeep.facts_file": "ImportedFacts",
    "weft.ledger.upkeep.ledger_copy": "CopyResult",
    "weft.ledger.upkeep.packing": "PackResult",
    "weft.ledger.upkeep.salvage": "SalvageResult",
    "weft.ledger.upkeep.verify": "Problem",
    "weft.ledger.views.lease_rows": "Lease",
    "weft.ledger.views.recorded_events": "StoredEvent",
    "weft.ledger.write.turn_writer": "TurnWriter",
    "weft.open_ledger": "OpenLedger",
    "weft.opening": "copy examine open restore salvage",
    "weft.program_handles": "LedgerPrograms ProgramHandle",
    "weft.programs.apply": "PlannedProgram",
    "weft.programs.model": (
        "RecordedVerdict CriterionVerdict Difference PendingItem Program ProgramChange PersonRequest TaggedNode"
        " UnvouchedName"
    ),
    "weft.programs.programs": "Programs",
    "weft.runtime.invoke.invocation": "InvocationResult",
    "weft.store.diagnosis": "Diagnosis DiagnosisSeverity",
    "weft.store.sqlite.restore": "RestoreResult",
    "weft.store.trust_store": "LedgerIdentity TrustStore TrustedLedger",
}
"""By module; the block above says the same to type checkers, and a test compares the two."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """All names, also those that are not loaded yet."""
    return sorted({*globals(), *__all__})
