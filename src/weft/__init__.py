"""Weft: version control for AI agents, and the runtime that goes with it.

Every name below is loaded when it is first used, so that `import weft` stays quick. What the verbs return is all here.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; `typing` would be most of what loading this takes
if TYPE_CHECKING:
    from typing import Any

    from weft.graph.edge_reader import Ancestry as Ancestry
    from weft.graph.edge_reader import AncestryStep as AncestryStep
    from weft.graph.edge_reader import CallPair as CallPair
    from weft.graph.edge_reader import GraphEdge as GraphEdge
    from weft.graph.edge_reader import GraphNode as GraphNode
    from weft.graph.edge_reader import GraphPath as GraphPath
    from weft.graph.edge_reader import GraphWalk as GraphWalk
    from weft.graph.edge_reader import Neighbours as Neighbours
    from weft.graph.edge_reader import PathsFound as PathsFound
    from weft.graph.edge_reader import PolicyStep as PolicyStep
    from weft.graph.edge_reader import ResourceState as ResourceState
    from weft.graph.edge_reader import RunHistory as RunHistory
    from weft.graph.event_lines import IngestedEvents as IngestedEvents
    from weft.graph.graph import Graph as Graph
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
    from weft.kernel.errors import Advice as Advice
    from weft.kernel.errors import ApprovalNeeded as ApprovalNeeded
    from weft.kernel.errors import WeftError as WeftError
    from weft.kernel.events import Event as Event
    from weft.kernel.events import PolicyTests as PolicyTests
    from weft.kernel.events import Receipt as Receipt
    from weft.kernel.events import UnknownEvent as UnknownEvent
    from weft.kernel.events import Usage as Usage
    from weft.ledger.api.inbox import Approvals as Approvals
    from weft.ledger.api.inbox import Inbox as Inbox
    from weft.ledger.api.inbox import Policies as Policies
    from weft.ledger.api.ledger import Ledger as Ledger
    from weft.ledger.api.merges import Compactions as Compactions
    from weft.ledger.api.merges import Imports as Imports
    from weft.ledger.api.merges import Merges as Merges
    from weft.ledger.api.reading import Tree as Tree
    from weft.ledger.api.recording import Heads as Heads
    from weft.ledger.api.recording import Labels as Labels
    from weft.ledger.api.reports import AuditReports as AuditReports
    from weft.ledger.api.reports import UsageReports as UsageReports
    from weft.ledger.api.resources import Resources as Resources
    from weft.ledger.api.rooms import Rooms as Rooms
    from weft.ledger.api.upkeep import Erasures as Erasures
    from weft.ledger.api.upkeep import Secrets as Secrets
    from weft.ledger.api.upkeep import Upkeep as Upkeep
    from weft.ledger.broker.inbox import Admission as Admission
    from weft.ledger.broker.inbox import InboxMessage as InboxMessage
    from weft.ledger.broker.inbox import QueueLimits as QueueLimits
    from weft.ledger.broker.session_stream import AnswerEnded as AnswerEnded
    from weft.ledger.broker.session_stream import AnswerStarted as AnswerStarted
    from weft.ledger.broker.session_stream import AttemptReset as AttemptReset
    from weft.ledger.broker.session_stream import MessageAdded as MessageAdded
    from weft.ledger.broker.session_stream import MessageQueued as MessageQueued
    from weft.ledger.broker.session_stream import MessageSettled as MessageSettled
    from weft.ledger.broker.session_stream import OtherEvent as OtherEvent
    from weft.ledger.broker.session_stream import StreamItem as StreamItem
    from weft.ledger.broker.session_stream import StreamPosition as StreamPosition
    from weft.ledger.broker.session_stream import TextAdded as TextAdded
    from weft.ledger.broker.session_stream import ToolFinished as ToolFinished
    from weft.ledger.broker.session_stream import ToolStarted as ToolStarted
    from weft.ledger.broker.session_stream import TurnEnded as TurnEnded
    from weft.ledger.broker.session_stream import TurnInterrupted as TurnInterrupted
    from weft.ledger.broker.session_stream import TurnParked as TurnParked
    from weft.ledger.broker.session_stream import TurnStarted as TurnStarted
    from weft.ledger.erasing import AffectedSession as AffectedSession
    from weft.ledger.erasing import ContentToErase as ContentToErase
    from weft.ledger.erasing import Erasure as Erasure
    from weft.ledger.erasing import ErasurePlan as ErasurePlan
    from weft.ledger.erasing import SharedContent as SharedContent
    from weft.ledger.erasing import SharedTurn as SharedTurn
    from weft.ledger.erasing import UntaggedNode as UntaggedNode
    from weft.ledger.imports.import_writer import ImportWriter as ImportWriter
    from weft.ledger.imports.imported_turns import NativeCall as NativeCall
    from weft.ledger.imports.imported_turns import NativeCompaction as NativeCompaction
    from weft.ledger.imports.imported_turns import NativeLink as NativeLink
    from weft.ledger.imports.imported_turns import NativeMessage as NativeMessage
    from weft.ledger.imports.imported_turns import NativeTurn as NativeTurn
    from weft.ledger.imports.imported_turns import Tokens as Tokens
    from weft.ledger.imports.sources import ImportSource as ImportSource
    from weft.ledger.imports.sources import ProvisionalItem as ProvisionalItem
    from weft.ledger.imports.sources import ProvisionalTurn as ProvisionalTurn
    from weft.ledger.imports.sources import SourceRange as SourceRange
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
    from weft.ledger.read.content_uses import Tombstone as Tombstone
    from weft.ledger.read.contexts import Context as Context
    from weft.ledger.read.contexts import ContextCut as ContextCut
    from weft.ledger.read.contexts import PromptChange as PromptChange
    from weft.ledger.read.contexts import PromptPart as PromptPart
    from weft.ledger.read.contexts import VouchedMessage as VouchedMessage
    from weft.ledger.read.contexts import Voucher as Voucher
    from weft.ledger.read.contexts import VoucherKind as VoucherKind
    from weft.ledger.read.full_threads import BranchPoint as BranchPoint
    from weft.ledger.read.full_threads import FullThreads as FullThreads
    from weft.ledger.read.full_threads import FullTurn as FullTurn
    from weft.ledger.read.full_threads import MessageReply as MessageReply
    from weft.ledger.read.full_threads import ThreadsSpan as ThreadsSpan
    from weft.ledger.read.full_threads import TurnLine as TurnLine
    from weft.ledger.read.full_threads import TurnRange as TurnRange
    from weft.ledger.read.search_matches import Hit as Hit
    from weft.ledger.read.session_list import ListedSession as ListedSession
    from weft.ledger.read.session_list import ListReader as ListReader
    from weft.ledger.read.session_list import SessionList as SessionList
    from weft.ledger.read.session_list import Touch as Touch
    from weft.ledger.read.sessions import Page as Page
    from weft.ledger.read.turn_lookups import QueryWord as QueryWord
    from weft.ledger.read.turn_lookups import RelatedTurn as RelatedTurn
    from weft.ledger.read.turn_lookups import RelatedTurns as RelatedTurns
    from weft.ledger.read.turns import Thread as Thread
    from weft.ledger.read.turns import ThreadDiff as ThreadDiff
    from weft.ledger.reports.audit import ActorEvent as ActorEvent
    from weft.ledger.reports.audit import AuditFinding as AuditFinding
    from weft.ledger.reports.audit import AuditSeverity as AuditSeverity
    from weft.ledger.reports.audit import FindingKind as FindingKind
    from weft.ledger.reports.audit import SuggestedGrant as SuggestedGrant
    from weft.ledger.reports.prices import KindCosts as KindCosts
    from weft.ledger.reports.prices import RecordedCosts as RecordedCosts
    from weft.ledger.reports.prices import Spending as Spending
    from weft.ledger.reports.prices import UnpricedModel as UnpricedModel
    from weft.ledger.reports.prices import UsageRow as UsageRow
    from weft.ledger.reports.usage import AbandonedRow as AbandonedRow
    from weft.ledger.reports.usage import AbandonedUsage as AbandonedUsage
    from weft.ledger.reports.usage import BranchUsage as BranchUsage
    from weft.ledger.reports.usage import FileWork as FileWork
    from weft.ledger.reports.usage import ProjectWork as ProjectWork
    from weft.ledger.reports.usage import SessionWork as SessionWork
    from weft.ledger.reports.usage import TurnUsage as TurnUsage
    from weft.ledger.reports.usage import UsageReport as UsageReport
    from weft.ledger.reports.usage import UsageTree as UsageTree
    from weft.ledger.reports.usage import WorkerUsage as WorkerUsage
    from weft.ledger.reports.usage import WorkReport as WorkReport
    from weft.ledger.resource_reading import Owner as Owner
    from weft.ledger.resource_reading import Resource as Resource
    from weft.ledger.resource_reading import ResourceHandle as ResourceHandle
    from weft.ledger.resource_reading import ResourcePart as ResourcePart
    from weft.ledger.resource_reading import ResourceUse as ResourceUse
    from weft.ledger.resource_reading import Snapshot as Snapshot
    from weft.ledger.room_records import AgentProfile as AgentProfile
    from weft.ledger.room_records import Invitation as Invitation
    from weft.ledger.room_records import Participant as Participant
    from weft.ledger.room_records import PersonProfile as PersonProfile
    from weft.ledger.room_records import PostedMessage as PostedMessage
    from weft.ledger.room_records import ReachedAgent as ReachedAgent
    from weft.ledger.room_records import Room as Room
    from weft.ledger.room_records import RoomHit as RoomHit
    from weft.ledger.room_records import RoomLimits as RoomLimits
    from weft.ledger.room_records import RoomMention as RoomMention
    from weft.ledger.room_records import RoomMessage as RoomMessage
    from weft.ledger.secrets.findings import SecretFinding as SecretFinding
    from weft.ledger.secrets.findings import SecretMatch as SecretMatch
    from weft.ledger.secrets.findings import SecretPlace as SecretPlace
    from weft.ledger.secrets.findings import SecretReport as SecretReport
    from weft.ledger.secrets.scan import SecretScan as SecretScan
    from weft.ledger.triggers import Firing as Firing
    from weft.ledger.triggers import MissedTimes as MissedTimes
    from weft.ledger.upkeep.facts_file import ImportedFacts as ImportedFacts
    from weft.ledger.upkeep.ledger_copy import CopyResult as CopyResult
    from weft.ledger.upkeep.ledger_copy import KnownCopy as KnownCopy
    from weft.ledger.upkeep.ledger_copy import PackResult as PackResult
    from weft.ledger.upkeep.ledger_copy import SalvageResult as SalvageResult
    from weft.ledger.upkeep.verify import Problem as Problem
    from weft.ledger.views.edges import EdgeType as EdgeType
    from weft.ledger.views.rows import Lease as Lease
    from weft.ledger.views.rows import StoredEvent as StoredEvent
    from weft.ledger.write.approvals import Approval as Approval
    from weft.ledger.write.approvals import CallDecision as CallDecision
    from weft.ledger.write.approvals import Policy as Policy
    from weft.ledger.write.session_merges import Provenance as Provenance
    from weft.ledger.write.session_merges import Unification as Unification
    from weft.ledger.write.turn_writer import TurnWriter as TurnWriter
    from weft.programs.lookups import Node as Node
    from weft.programs.program_changes import PlannedProgram as PlannedProgram
    from weft.programs.program_records import CriterionVerdict as CriterionVerdict
    from weft.programs.program_records import Difference as Difference
    from weft.programs.program_records import PendingItem as PendingItem
    from weft.programs.program_records import PersonRequest as PersonRequest
    from weft.programs.program_records import Program as Program
    from weft.programs.program_records import ProgramChange as ProgramChange
    from weft.programs.program_records import RecordedVerdict as RecordedVerdict
    from weft.programs.program_records import TaggedNode as TaggedNode
    from weft.programs.program_records import UnvouchedName as UnvouchedName
    from weft.programs.programs import Programs as Programs
    from weft.programs.similarity import Embedded as Embedded
    from weft.programs.similarity import ModelCount as ModelCount
    from weft.programs.similarity import Similar as Similar
    from weft.programs.similarity import Similarity as Similarity
    from weft.runtime.egress.credentials import Credential as Credential
    from weft.runtime.egress.execution_context import ExecutionContext as ExecutionContext
    from weft.runtime.egress.execution_context import current_context as current_context
    from weft.runtime.egress.execution_context import run_with_context as run_with_context
    from weft.runtime.invoke.invocation import InvocationResult as InvocationResult
    from weft.runtime.resources.turn_files import ForkedResources as ForkedResources
    from weft.runtime.resources.turn_files import PlanLine as PlanLine
    from weft.runtime.tool.tool_contract import Answer as Answer
    from weft.runtime.tool.tool_contract import DeclaredTool as DeclaredTool
    from weft.runtime.tool.tool_contract import PendingCall as PendingCall
    from weft.runtime.tool.tool_contract import allow as allow
    from weft.runtime.tool.tool_contract import deny as deny
    from weft.runtime.tool.tool_contract import tool as tool
    from weft.store.port import Diagnosis as Diagnosis
    from weft.store.port import DiagnosisSeverity as DiagnosisSeverity
    from weft.store.replicas import LedgerIdentity as LedgerIdentity
    from weft.store.replicas import TrustedLedger as TrustedLedger
    from weft.store.replicas import TrustStore as TrustStore
    from weft.store.sqlite.examination import RestoreResult as RestoreResult
    from weft.surfaces.acting_ledger import AnsweredTurn as AnsweredTurn
    from weft.surfaces.acting_ledger import user_trust as user_trust
    from weft.surfaces.cli.work.sandbox_access import ActingResources as ActingResources
    from weft.surfaces.opening import OpenLedger as OpenLedger
    from weft.surfaces.opening import context_from_env as context_from_env
    from weft.surfaces.opening import copy as copy
    from weft.surfaces.opening import examine as examine
    from weft.surfaces.opening import open as open
    from weft.surfaces.opening import restore as restore
    from weft.surfaces.opening import salvage as salvage
    from weft.surfaces.program_handles import LedgerPrograms as LedgerPrograms
    from weft.surfaces.program_handles import ProgramHandle as ProgramHandle

__version__ = "0.1.0"

_NAMES = {
    "weft.kernel.errors": "Advice ApprovalNeeded WeftError",
    "weft.kernel.authority": "Authority Layer LedgerTrust Principal PrincipalKind Rights",
    "weft.kernel.enums": (
        "AgentRole EventClass FileKind HandleCapability LinkReason LintSeverity MessageRole MessageSource MountMode "
        "ResourceCapability ResourceKind ResourceLiveness SnapshotConsistency SnapshotState SubresourcePart "
        "ToolCallStatus"
    ),
    "weft.kernel.events": "Event PolicyTests Receipt UnknownEvent Usage",
    "weft.graph.graph": "Graph",
    "weft.graph.event_lines": "IngestedEvents",
    "weft.graph.edge_reader": (
        "Ancestry AncestryStep CallPair GraphEdge GraphNode GraphPath GraphWalk Neighbours PathsFound PolicyStep "
        "ResourceState RunHistory"
    ),
    "weft.ledger.views.edges": "EdgeType",
    "weft.ledger.api.inbox": "Approvals Inbox Policies",
    "weft.ledger.write.approvals": "Approval CallDecision Policy",
    "weft.ledger.api.resources": "Resources",
    "weft.ledger.resource_reading": "Owner Resource ResourceHandle ResourcePart ResourceUse Snapshot",
    "weft.ledger.api.rooms": "Rooms",
    "weft.ledger.room_records": (
        "AgentProfile Invitation Participant PersonProfile PostedMessage ReachedAgent Room RoomHit RoomLimits "
        "RoomMention RoomMessage"
    ),
    "weft.ledger.triggers": "Firing MissedTimes",
    "weft.ledger.api.reports": "AuditReports UsageReports",
    "weft.ledger.api.merges": "Compactions Imports Merges",
    "weft.ledger.api.upkeep": "Erasures Secrets Upkeep",
    "weft.ledger.api.recording": "Heads Labels",
    "weft.ledger.api.ledger": "Ledger",
    "weft.ledger.api.reading": "Tree",
    "weft.ledger.erasing": "AffectedSession ContentToErase Erasure ErasurePlan SharedContent SharedTurn UntaggedNode",
    "weft.ledger.imports.import_writer": "ImportWriter",
    "weft.ledger.imports.sources": "ImportSource ProvisionalItem ProvisionalTurn SourceRange TranscriptTurn",
    "weft.ledger.broker.inbox": "Admission InboxMessage QueueLimits",
    "weft.ledger.imports.imported_turns": "NativeCall NativeCompaction NativeLink NativeMessage NativeTurn Tokens",
    "weft.ledger.model": (
        "AppliedSubstitution Branch Codeblock Compaction FileNote HeadMove ImagePart LintNote Message NewError "
        "NewMessage NewToolCall ReasoningPart RecordedTurn RevisionTarget Session SessionAlias SessionMove "
        "StoredContent TextPart ToolCall ToolResultPart ToolUsePart Turn"
    ),
    "weft.ledger.read.contexts": "Context ContextCut PromptChange PromptPart VouchedMessage Voucher VoucherKind",
    "weft.ledger.read.full_threads": "BranchPoint FullThreads FullTurn MessageReply ThreadsSpan TurnLine TurnRange",
    "weft.ledger.read.session_list": "ListReader ListedSession SessionList Touch",
    "weft.ledger.read.sessions": "Page",
    "weft.ledger.read.turns": "Thread ThreadDiff",
    "weft.ledger.read.content_uses": "Tombstone",
    "weft.ledger.reports.audit": "ActorEvent AuditFinding AuditSeverity FindingKind SuggestedGrant",
    "weft.ledger.reports.prices": "KindCosts RecordedCosts Spending UnpricedModel UsageRow",
    "weft.ledger.reports.usage": (
        "AbandonedRow AbandonedUsage BranchUsage FileWork ProjectWork SessionWork TurnUsage UsageReport UsageTree "
        "WorkReport WorkerUsage"
    ),
    "weft.ledger.broker.session_stream": (
        "AnswerEnded AnswerStarted AttemptReset MessageAdded MessageQueued MessageSettled OtherEvent StreamItem "
        "StreamPosition TextAdded ToolFinished ToolStarted TurnEnded TurnInterrupted TurnParked TurnStarted"
    ),
    "weft.ledger.read.search_matches": "Hit",
    "weft.ledger.read.turn_lookups": "QueryWord RelatedTurn RelatedTurns",
    "weft.ledger.secrets.findings": "SecretFinding SecretMatch SecretPlace SecretReport",
    "weft.ledger.secrets.scan": "SecretScan",
    "weft.ledger.write.session_merges": "Provenance Unification",
    "weft.ledger.upkeep.ledger_copy": "CopyResult KnownCopy PackResult SalvageResult",
    "weft.ledger.upkeep.facts_file": "ImportedFacts",
    "weft.ledger.upkeep.verify": "Problem",
    "weft.ledger.views.rows": "Lease StoredEvent",
    "weft.ledger.write.turn_writer": "TurnWriter",
    "weft.surfaces.cli.work.sandbox_access": "ActingResources",
    "weft.surfaces.opening": "OpenLedger context_from_env copy examine open restore salvage",
    "weft.runtime.resources.turn_files": "ForkedResources PlanLine",
    "weft.surfaces.acting_ledger": "AnsweredTurn user_trust",
    "weft.surfaces.program_handles": "LedgerPrograms ProgramHandle",
    "weft.programs.program_changes": "PlannedProgram",
    "weft.programs.program_records": (
        "CriterionVerdict Difference PendingItem PersonRequest Program ProgramChange RecordedVerdict TaggedNode "
        "UnvouchedName"
    ),
    "weft.programs.lookups": "Node",
    "weft.programs.programs": "Programs",
    "weft.programs.similarity": "Embedded ModelCount Similar Similarity",
    "weft.runtime.egress.credentials": "Credential",
    "weft.runtime.egress.execution_context": "ExecutionContext current_context run_with_context",
    "weft.runtime.invoke.invocation": "InvocationResult",
    "weft.runtime.tool.tool_contract": "Answer DeclaredTool PendingCall allow deny tool",
    "weft.store.port": "Diagnosis DiagnosisSeverity",
    "weft.store.sqlite.examination": "RestoreResult",
    "weft.store.replicas": "LedgerIdentity TrustStore TrustedLedger",
}
"""By module; the block above says the same to type checkers, and a test compares the two."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "verbs":
        return import_module("weft.verbs")
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """All names, also those that are not loaded yet."""
    return sorted({*globals(), *__all__})
