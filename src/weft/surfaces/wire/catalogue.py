"""Every record that has a JSON form, by family, and the keys of each form with their types.

docs/json.md is written from this list, and tests hold it against the records that the public verbs return. Nothing of
it is loaded when a form is made.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, UnsetType

from weft.chat.room_stream import ROOM_ITEMS, RoomItem
from weft.exchange.bundles.verification import BundleReport
from weft.exchange.exporters.export import Exported
from weft.exchange.importers.port import Problem as SourceProblem
from weft.exchange.importing import watch
from weft.exchange.importing.run import OriginTotals
from weft.exchange.importing.sources import FoundPlace
from weft.exchange.resuming.session_files import Resume
from weft.exchange.sync.commands import Synced
from weft.exchange.sync.synced_ledgers import Remote
from weft.graph import edge_reader as graph_model
from weft.graph.event_lines import IngestedEvents
from weft.kernel.events import Event, Receipt, UnknownEvent, Usage
from weft.ledger import model
from weft.ledger.api import (
    ITEMS,
    AbandonedUsage,
    ActorEvent,
    Admission,
    AgentProfile,
    Approval,
    AuditFinding,
    BranchUsage,
    CallDecision,
    Context,
    CopyResult,
    Erasure,
    ErasurePlan,
    Firing,
    Hit,
    InboxMessage,
    Invitation,
    ListedSession,
    MissedTimes,
    Owner,
    PackResult,
    Participant,
    PersonProfile,
    Policy,
    PostedMessage,
    Problem,
    PromptChange,
    Provenance,
    ProvisionalTurn,
    ReachedAgent,
    RelatedTurns,
    Resource,
    ResourceFork,
    ResourceRestore,
    Room,
    RoomHit,
    RoomMessage,
    SalvageResult,
    SecretMatch,
    SecretReport,
    Snapshot,
    SourceRange,
    Spending,
    StoredEvent,
    StreamItem,
    StreamPosition,
    SuggestedGrant,
    ThreadDiff,
    Tombstone,
    Touch,
    TurnUsage,
    Unification,
    UsageReport,
    UsageTree,
    VouchedMessage,
    Voucher,
    WorkerUsage,
    WorkReport,
)
from weft.ledger.upkeep.facts_file import ImportedFacts
from weft.programs import program_records as programs_model
from weft.programs.lookups import Node
from weft.programs.program_changes import PlannedProgram
from weft.programs.program_records import ProgramReach
from weft.programs.similarity import Embedded, ModelCount, Similar
from weft.runtime.agent_work import CriterionState, WorkProgress
from weft.runtime.assembly.compaction import ComparedCompaction
from weft.runtime.egress.credentials import Credential
from weft.runtime.invoke.invocation import InvocationResult
from weft.runtime.invoke.message_routes import RouteChoice
from weft.runtime.policies.policy_tests import Backtest
from weft.runtime.resources.workspace_snapshots import KeptFolder
from weft.runtime.sandbox.toolchains import HiddenProgram, ToolchainRow
from weft.runtime.thread_replay import BisectResult, PolicyReplayReport, ReplayReport
from weft.runtime.tool.toolsets import WithheldTools
from weft.runtime.tools.mcp_server_settings import DefinitionState, McpServer
from weft.store.port import Diagnosis
from weft.store.replicas import TrustedFolder, TrustedLedger
from weft.surfaces.wire import forms
from weft.verbs import answers, exchange_answers, program_answers

FAMILIES: Mapping[str, Sequence[type[Struct]]] = {
    "Sessions and turns": (
        answers.SessionEntry, answers.ListedTurn, answers.ShownTurn, answers.ShownContext, answers.ReadTurn,
        answers.UnfinishedTurn,
        answers.PickedTurn, answers.SummaryTurn, answers.ChatReply, answers.NodeTags,
        answers.SentMessage, answers.InterruptedTurn, answers.BrokerReady, answers.ServerReady, answers.ServedCaller,
        answers.InvitedPerson, answers.LoggedRequest, ListedSession,
        model.Session, model.Turn, model.RecordedTurn, model.Message, model.ToolCall, model.Codeblock, model.Compaction,
        model.Branch, model.SessionAlias, model.HeadMove, model.SessionMove, model.RevisionTarget,
        model.AppliedSubstitution, Provenance,
        Unification, ProvisionalTurn, Context,
        VouchedMessage, Voucher, ThreadDiff, Hit, RelatedTurns, RouteChoice, StoredEvent, ComparedCompaction,
        Admission, InboxMessage,
        Receipt, Usage,
    ),
    "Files of turns": (
        exchange_answers.ForkedSession, exchange_answers.ForkPlan, exchange_answers.PlannedCopy,
        exchange_answers.CheckedOutFiles,
        exchange_answers.ReconstructedFiles, exchange_answers.ReconstructionGap,
        exchange_answers.FilesDiff, exchange_answers.ChangedFile, exchange_answers.UndoneTurn,
        exchange_answers.PlannedUndo,
        exchange_answers.UndoneFiles, exchange_answers.MergedBranch, exchange_answers.MergeObstacle,
    ),
    "Triggers": (
        program_answers.ListedTrigger, program_answers.ShownTrigger, program_answers.FiredTrigger, Firing, MissedTimes,
    ),
    "Resources": (
        Resource, Snapshot, ResourceFork, program_answers.ShownResource, program_answers.ProbedResource,
        program_answers.ResourceOwnership,
        program_answers.RestoredSnapshot, program_answers.ReconciledResources, program_answers.HandleOutput,
        program_answers.KilledResource,
    ),
    "Rooms": (
        Room, program_answers.ShownRoom, program_answers.RoomMember, RoomMessage, program_answers.AnsweredPost,
        Invitation,
        program_answers.DeclinedInvitation, AgentProfile, PersonProfile, RoomHit,
    ),
    "Streams": (StreamItem, *ITEMS, StreamPosition, RoomItem, *ROOM_ITEMS),
    "Tool calls": (
        Approval, answers.AnsweredApproval, answers.WaitingDocument, answers.WaitingCall, CallDecision,
    ),
    "Reports": (
        exchange_answers.LedgerFigures, exchange_answers.ProjectTotals, exchange_answers.AuditAnswer,
        answers.BlamedLine, UsageReport,
        BranchUsage, UsageTree, TurnUsage, WorkerUsage, AbandonedUsage,
        Spending, WorkReport, AuditFinding, SuggestedGrant, ActorEvent, Touch,
    ),
    "Programs": (
        programs_model.Program, programs_model.ProgramChange, programs_model.Difference, programs_model.PersonRequest,
        programs_model.RecordedVerdict, programs_model.CriterionVerdict, programs_model.TaggedNode,
        programs_model.PendingItem,
        PlannedProgram, InvocationResult, Credential, Node, Embedded, Similar, ModelCount,
        program_answers.EmbeddedNodes,
        program_answers.ForgottenVectors, program_answers.FetchableModel, answers.ConfiguredTurn,
        program_answers.SandboxRun,
        answers.JsonValue, McpServer, program_answers.ListedServer, program_answers.ListedTool,
        program_answers.ApprovedTools, program_answers.ConfiguredAgent,
        program_answers.AgentRun, program_answers.AgentStatus, WorkProgress,
        CriterionState, program_answers.ListedToolset,
        program_answers.OfferedTools,
        answers.TokenForm, answers.RevokedToken, answers.RotatedKey,
    ),
    "The agent graph": (
        graph_model.GraphNode, graph_model.GraphEdge, graph_model.Neighbours, graph_model.GraphWalk,
        graph_model.Ancestry, graph_model.PathsFound, graph_model.RunHistory, graph_model.CallPair,
        graph_model.ResourceState, graph_model.PolicyStep, IngestedEvents,
    ),
    "Approval policies": (
        Policy, program_answers.PolicySource, program_answers.TestedPolicy, Backtest,
    ),
    "Replay and bisect": (ReplayReport, PolicyReplayReport, BisectResult),
    "Imports, exports, bundles and other ledgers": (
        exchange_answers.ImportAnswer, exchange_answers.ImportStatus, exchange_answers.NoImport,
        exchange_answers.EndedWatch, watch.WatchBegan,
        watch.WatchCaughtUp, watch.SourceImported, watch.SourceTroubled, watch.SourceGone, KeptFolder, FoundPlace,
        SourceRange,
        exchange_answers.ExportedFile,
        exchange_answers.ResumedSession, exchange_answers.BundleFile, exchange_answers.SignedBundle,
        exchange_answers.ImportedBundle, BundleReport,
        exchange_answers.KeyForm, exchange_answers.DeletedKey, exchange_answers.ClonedLedger, Remote,
        exchange_answers.ListedRemote, Synced,
        exchange_answers.Removed, exchange_answers.RepinnedRemote, ImportedFacts,
    ),
    "Upkeep and erasing": (
        answers.CreatedLedger, answers.TrustAnswer, answers.RevokedTrust, TrustedLedger, TrustedFolder,
        answers.RevokedFolder, answers.ShownSecret, answers.ReplicaName,
        answers.Verification, answers.Examination, answers.RebuiltViews,
        answers.BackupFile, answers.FactsFile, answers.PackAnswer, answers.RecoveryAnswer, answers.SalvageAnswer,
        answers.CopiedLedger,
        SecretReport, SecretMatch, answers.IgnoredSecret, answers.PlannedErasure, Erasure, Tombstone,
        answers.NothingToErase, answers.FinishedErasure,
    ),
    "Errors and the program itself": (
        forms.ErrorDocument, program_answers.ProgramVersion, program_answers.HelpText, program_answers.ShellScript,
    ),
}  # fmt: skip
"""What each family answers. Records inside these are found by their fields."""

NAMES: Mapping[str, Any] = {
    "Sequence": collections.abc.Sequence,
    "Mapping": collections.abc.Mapping,
    "SourceProblem": SourceProblem,
    **{
        record.__name__: record
        for record in (
            Approval, AuditFinding, BundleReport, Context, CopyResult, ErasurePlan, answers.CarriedFilesForm,
            Firing, MissedTimes, Diagnosis, Exported, Invitation,
            ListedSession, OriginTotals, PackResult, Participant, PostedMessage, Problem,
            PromptChange, Provenance, ProvisionalTurn, ProgramReach, ReachedAgent, Receipt, Remote,
            Owner, Resource, ResourceRestore, Resume, Room, RoomMessage, SalvageResult,
            Snapshot, Spending, Synced, Usage, WorkProgress, programs_model.Program,
            model.Compaction, model.Message, model.AppliedSubstitution,
            model.ToolCall,
            model.Turn,
            DefinitionState, HiddenProgram, McpServer, ToolchainRow, WithheldTools,
        )
    },
}  # fmt: skip
"""What the annotations of this package's records name; those modules load these for type checking alone."""

SEED_5: Mapping[str, Mapping[str, str]] = {
    "Program": {
        "id": "text: its name",
        "type": "`program`",
        "programType": "text: its kind",
        "lifecycle": "text; of agents, tasks and people `state` instead",
        "config": "any JSON: its configuration, as its kind has it",
        "version": "number",
        "tags": "list of text",
        "ulid": "text: its id",
        "createdAt": "time",
        "updatedAt": "time",
        "createdBy": "text",
        "deleted": "true; absent otherwise",
        "foreign": "true where only another ledger configured it, and nobody here has taken that over",
        "pendingVersion": "number: the newest version, where another ledger wrote it and nobody here took it over",
        "result": "any JSON; absent where there is none",
        "sharedWith": "list of text: for whom a private agent works beside its creator; absent where there is nobody",
    },
    "AgentStatus": {
        "…": "the keys of Program",
        "work": "[WorkProgress](#workprogress); null where it has no task",
    },
    "InvocationResult": {"program": "text", "programType": "text", "result": "any JSON"},
    "StreamPosition": {},
}
"""Forms in the spelling of seed 5; a position in a stream is no object, but text."""


def field_types(record: type[Struct]) -> dict[str, Any]:
    return get_type_hints(record, localns=dict(NAMES))


def records_in(annotation: Any) -> Iterator[type[Struct]]:
    """The records that an annotation names, but for events."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        if not issubclass(annotation, Event | UnknownEvent):
            yield annotation
        return
    for part in get_args(annotation):
        yield from records_in(part)


def records() -> dict[str, list[type[Struct]]]:
    """Every record by family, each once: what is answered first, then what stands inside it."""
    listed = {record for family in FAMILIES.values() for record in family}
    families: dict[str, list[type[Struct]]] = {}
    for title, roots in FAMILIES.items():
        family = families[title] = list(roots)
        for record in family:  # grows as records are found inside
            new = [part for part in dict.fromkeys(inside(record)) if part not in listed]
            listed.update(new)
            family += new
    return families


def inside(record: type[Struct]) -> Iterator[type[Struct]]:
    """The records that stand in a record's form."""
    if record.__name__ in SEED_5:
        return
    hidden = forms.HIDDEN.get(record.__name__, ())
    for field, annotation in field_types(record).items():
        if field not in hidden:
            yield from records_in(annotation)


def title(record: type[Struct]) -> str:
    """What a record is called on the page; two records have one name, each in its own layer."""
    return "SourceProblem" if record is SourceProblem else record.__name__


def spread(record: type[Struct]) -> type[Struct] | None:
    """The record whose keys stand among those of another, if it has one."""
    field = forms.FLAT.get(record.__name__)
    return None if field is None else next(records_in(field_types(record)[field]), None)


def keys(record: type[Struct]) -> dict[str, str]:
    """The keys of a record's form, each with its type in words."""
    name = record.__name__
    if name in SEED_5:
        return dict(SEED_5[name])
    if name == "StoredEvent":
        return {"n": "number", "id": "text", "event": "event, as events.md has it"}
    if name == "Diagnosis":
        return {**_plain_keys(record, frozenset({"advice"})), **ADVICE_KEYS}
    beyond = dict.fromkeys(forms.BEYOND_FIELDS.get(name, ()), "list of text")
    return {**_plain_keys(record, frozenset(forms.HIDDEN.get(name, ()))), **beyond}


ADVICE_KEYS = {"mend": "text", "action": "text: a code", "arguments": "object of text or number"}


def _plain_keys(record: type[Struct], hidden: frozenset[str]) -> dict[str, str]:
    tag, flat = record.__struct_config__.tag, forms.FLAT.get(record.__name__)
    listed = {} if tag is None else {"type": f"`{tag}`"}
    keys_of_fields = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    for field, annotation in field_types(record).items():
        if field == flat:
            part = spread(record)
            listed |= {"…": "a number or a text each, by what it counts"} if part is None else keys(part)
        elif field not in hidden:
            listed[keys_of_fields[field]] = type_words(annotation, is_time=forms.is_time(field))
    return listed


def type_words(annotation: Any, *, is_time: bool = False) -> str:
    """An annotation as JSON has it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(parts[0], is_time=is_time)
    if origin is Literal:
        return " or ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in parts)
    if origin in (Union, UnionType):
        words = dict.fromkeys(type_words(part, is_time=is_time) for part in parts if part is not UnsetType)
        return " or ".join(words) + ("; may be absent" if UnsetType in parts else "")
    if origin in (list, tuple, frozenset, collections.abc.Sequence):
        return f"list of {type_words(parts[0])}"
    if origin in (dict, collections.abc.Mapping):
        return f"object of {type_words(parts[1])}"
    return _class_words(annotation, is_time)


def _class_words(kind: Any, is_time: bool) -> str:
    if not isinstance(kind, type) or isinstance(kind, ForwardRef):
        return "any JSON"
    if issubclass(kind, Struct):
        return f"[{title(kind)}](#{title(kind).lower()})"
    if issubclass(kind, Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    if kind is int and is_time:
        return "time"
    plain = {int: "number", float: "number", bool: "true or false", NoneType: "null", str: "text"}
    plain |= {list: "list", bytes: "base64"}
    return plain.get(kind, "any JSON")
