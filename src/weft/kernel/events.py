"""Events: the envelope, the kinds of value that an event may hold, the registry of kinds and
the bytes that are the fact; and the kinds that tell of runs (what an agent asked, was told, did and
had), of decisions about tool calls, and of conversations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from hashlib import sha256
from threading import Thread
from typing import Annotated, Any, ClassVar, Literal, Union, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from weft.kernel.enums import (
    AgentRole,
    CompactionTrigger,
    Decision,
    DecisionSource,
    EventClass,
    FileKind,
    GrantScope,
    ImageDetail,
    InterruptionReason,
    LintSeverity,
    MessageRole,
    MessageSource,
    ParticipantKind,
    ReferenceField,
    RoomHistory,
    RoomMessageKind,
    RoomNotice,
    RunExit,
    RunReason,
    ToolCallStatus,
    TurnType,
    VolumeMode,
)

# --- The kinds of value an event may hold, and the small structures made of them.

NAME_PATTERN = r"[A-Za-z0-9_.:/-]{1,128}"
is_name = lru_cache(maxsize=1024)(re.compile(NAME_PATTERN).fullmatch)

Ulid = Annotated[str, Meta(extra={"is": "ulid"})]
Digest = Annotated[str, Meta(extra={"is": "digest"})]
Content = Annotated[str, Meta(extra={"is": "content"})]
Name = Annotated[str, Meta(extra={"is": "name"})]
Time = Annotated[str, Meta(extra={"is": "time"})]
NodeId = Annotated[str, Meta(extra={"is": "node"})]


class Words(Struct, frozen=True, gc=False, kw_only=True):
    """A name that does not look like one (spaces, other letters) and is therefore kept as a content."""

    content: Content


Named = Name | Words


class EventRef(Struct, frozen=True, gc=False):
    """A reference to an event inside another one."""

    event_id: Digest


class UriRef(Struct, frozen=True, gc=False):
    uri: Content


class PathRef(Struct, frozen=True, gc=False):
    path: Content


class ExtRef(Struct, frozen=True, gc=False):
    """A reference to something outside of the graph: its kind and its id."""

    kind: Named
    id: Content


class ForkPoint(Struct, frozen=True, gc=False):
    """The event of the parent turn that a run grows from: normally the last one."""

    turn: Ulid
    event: Digest


class ErrorFact(Struct, frozen=True, gc=False, kw_only=True):
    """An error inside an event: its kind, and its text as a content."""

    code: Named
    message: Content
    details: Content | UnsetType = UNSET


class Usage(Struct, frozen=True, gc=False, kw_only=True):
    """Tokens in disjoint parts: input excludes cache reads and writes. Reasoning lies inside output, and what
    is written to the cache for an hour inside what is written to it."""

    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    cached_input_tokens: int | UnsetType = UNSET
    cache_write_tokens: int | UnsetType = UNSET
    cache_write_1h_tokens: int | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET


class TextFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="text"):
    """A text part inside an event."""

    text: Content


class ImageFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="image_url"):
    """An image part inside an event."""

    url: Content
    detail: ImageDetail | Words | UnsetType = UNSET


class ToolUseFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool use part inside an event."""

    id: Content
    name: Named
    input: Content


class ToolResultFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="tool_result"):
    """A tool result part inside an event."""

    tool_call_id: Content
    output: Content
    is_error: bool | UnsetType = UNSET


class ReasoningFact(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning part inside an event."""

    text: Content


PartFact = TextFact | ImageFact | ToolUseFact | ToolResultFact | ReasoningFact


class PolicyTests(Struct, frozen=True, gc=False, kw_only=True):
    """How the own tests of a policy ended."""

    total: int
    passed: int
    failed: int


class FileFact(Struct, frozen=True, gc=False, kw_only=True):
    """A file note inside an event."""

    kind: FileKind
    path: Content
    line_start: int | UnsetType = UNSET
    line_end: int | UnsetType = UNSET


class LintFact(Struct, frozen=True, gc=False, kw_only=True):
    """A linter's note inside an event."""

    path: Content | UnsetType = UNSET
    message: Content | UnsetType = UNSET
    source: Named | UnsetType = UNSET
    start_line: int | UnsetType = UNSET
    start_col: int | UnsetType = UNSET
    end_line: int | UnsetType = UNSET
    end_col: int | UnsetType = UNSET
    severity: LintSeverity | UnsetType = UNSET


class CodeblockFact(Struct, frozen=True, gc=False, kw_only=True):
    language: Named | UnsetType = UNSET
    content: Content
    path: Content | UnsetType = UNSET
    line_start: int | UnsetType = UNSET
    line_end: int | UnsetType = UNSET


class MessageFact(Struct, frozen=True, gc=False, kw_only=True):
    """One message: an ordered list of parts, with everything that was recorded beside it."""

    id: Ulid
    role: MessageRole
    parts: tuple[PartFact, ...]
    native: Content | UnsetType = UNSET
    source: MessageSource | UnsetType = UNSET
    parent: Ulid | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    thinking_config: Content | UnsetType = UNSET
    context: Content | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET
    codeblocks: tuple[CodeblockFact, ...] | UnsetType = UNSET


class SeenContext(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that was injected beside a message; several of one `name` with `listed` make a list."""

    name: Named
    value: Content
    listed: bool | UnsetType = UNSET


class SeenMessage(Struct, frozen=True, gc=False, kw_only=True):
    """What a source tells of the `k`-th message of an imported turn (from 0) beside what it says."""

    k: int
    at: int | UnsetType = UNSET
    literal_time: Content | UnsetType = UNSET
    source: MessageSource | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    provider: Named | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    finish_reason: Named | UnsetType = UNSET
    context: tuple[SeenContext, ...] | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET


class SeenCall(Struct, frozen=True, gc=False, kw_only=True):
    """The same of its `k`-th tool call; `detail` is what the origin keeps beside what the model was given."""

    k: int
    at: int | UnsetType = UNSET
    done: int | UnsetType = UNSET
    detail: Content | UnsetType = UNSET
    spawned: Ulid | UnsetType = UNSET


class SeenCompaction(Struct, frozen=True, gc=False, kw_only=True):
    """The same of the compaction that a turn is."""

    model: Named | UnsetType = UNSET
    trigger: CompactionTrigger | UnsetType = UNSET
    tokens_before: int | UnsetType = UNSET
    tokens_after: int | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET


class MentionFact(Struct, frozen=True, gc=False, kw_only=True):
    """A person or an agent that a message mentions."""

    kind: ParticipantKind
    id: Name | Ulid


class RequestInput(Struct, frozen=True, gc=False, kw_only=True):
    """What a model was sent: the first `keep` entries of an earlier request, then these.

    A whole list per request would store every ancestor again with every turn.
    """

    base: Digest | None
    keep: int
    then: tuple[Ulid | EventRef, ...]


class VolumePlan(Struct, frozen=True, gc=False, kw_only=True):
    """What a fork does with one resource, as the fact has it."""

    resource: NodeId
    mode: VolumeMode
    kept_by: Ulid | UnsetType = UNSET
    snapshot_ref: ExtRef | UnsetType = UNSET


class ResourceScope(Struct, frozen=True, gc=False, kw_only=True):
    """For whom a resource is there; as its owner, one of them."""

    agent: Name | Ulid | UnsetType = UNSET
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET


class Reference(Struct, frozen=True, gc=False, kw_only=True):
    """A program that a configuration names, and as what; with `version` that version of it."""

    field: ReferenceField
    program: Ulid
    version: int | UnsetType = UNSET


# --- Events: the envelope, the registry of kinds, and the bytes that are the fact.


class Event(Struct, frozen=True, gc=False, kw_only=True, tag_field="kind"):
    """The envelope. A run's events carry its turn id in `stream`, its agent in `actor`.

    `ts` says when it happened; null when the origin gave no usable time, absent in imported
    chains, unless their origin tells of events, and so is `replica`.
    `on_behalf_of` names everybody for whom the actor acted, the nearest first; absent where it acted for itself.
    """

    about: ClassVar[str]
    category: ClassVar[EventClass]

    v: Literal[1] = 1
    ts: Time | UnsetType | None = UNSET
    stream: str
    prev: Digest | None
    actor: Name | Ulid
    replica: Ulid | UnsetType = UNSET
    on_behalf_of: tuple[Name | Ulid, ...] | UnsetType = UNSET


class UnknownEvent(Struct, frozen=True, gc=False):
    """An event of a kind this program does not know: kept, chained, shown raw."""

    kind: str
    stream: str
    prev: str | None
    fields: dict[str, Any]
    ts: str | None = None
    actor: str = ""


_encoder = msgspec.json.Encoder(order="sorted")
encode = _encoder.encode


def event_id(line: bytes) -> str:
    return sha256(line).hexdigest()


def run_stream(turn: str) -> str:
    return "run:" + turn


def session_stream(session: str) -> str:
    return "session:" + session


def program_stream(program: str) -> str:
    return "program:" + program


def conversation_stream(conversation: str) -> str:
    return "conversation:" + conversation


def resource_stream(resource: str) -> str:
    return "resource:" + resource


def ledger_stream(replica: str) -> str:
    return "ledger:" + replica


def import_stream(subject: str) -> str:
    """What sources tell of an imported turn or session: a set, in which no event follows another."""
    return "import:" + subject


STREAM_KINDS = ("run", "session", "program", "conversation", "resource", "ledger", "import")


LINES_BY_KIND = 500
"""So many lines are decoded each by the decoder of its kind, before one for all kinds is made, which is quicker."""


class _LineKind(Struct, frozen=True, gc=False):
    kind: str


_kind_of_line = msgspec.json.Decoder(_LineKind).decode


def made_decoder(kinds: Any) -> Callable[[bytes], Any]:
    """Made in a thread of its own: msgspec looks types up in a way that swallows what is raised meanwhile, and Ctrl-C
    is raised in the main thread, which waits here and hears it. What goes wrong there is raised here."""
    made: list[Callable[[bytes], Any]] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            made.append(msgspec.json.Decoder(kinds).decode)
        except BaseException as error:  # of whatever kind: it is raised where it is waited for
            failed.append(error)

    making = Thread(target=make)
    making.start()
    making.join()
    if failed:
        raise failed[0]
    return made[0]


class Registry:
    """All kinds of event by name; decodes stored lines into their types."""

    def __init__(self, *unions: Any) -> None:
        kinds = [kind for union in unions for kind in get_args(union)]
        self.kinds: dict[str, type[Event]] = {kind_of(kind): kind for kind in kinds}
        self._lines_by_kind, self._kind_decoders = LINES_BY_KIND, dict[str, Callable[[bytes], Any]]()

    def decode(self, line: bytes) -> Event | UnknownEvent:
        try:
            event: Event = self._decoder_for(line)(line)
        except msgspec.ValidationError:
            return self._decode_loosely(line)
        return event

    def _decoder_for(self, line: bytes) -> Callable[[bytes], Any]:
        """One decoder for all kinds takes a tenth of a second to make: whoever reads a few lines starts without it."""
        if self._lines_by_kind <= 0:  # threads may count two lines at once, or one twice
            return self._any_decoder
        self._lines_by_kind -= 1
        kind = _kind_of_line(line).kind
        if kind not in self.kinds:
            raise msgspec.ValidationError(f"no event is of kind {kind}")
        if kind not in self._kind_decoders:
            self._kind_decoders[kind] = made_decoder(self.kinds[kind])
        return self._kind_decoders[kind]

    @cached_property
    def _any_decoder(self) -> Callable[[bytes], Any]:
        return made_decoder(Union[tuple(self.kinds.values())])  # noqa: UP007

    def _decode_loosely(self, line: bytes) -> UnknownEvent:
        """Kinds and values of a newer program: keep the envelope, leave the rest as it is."""
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict):
            raise msgspec.ValidationError("an event is an object")
        known = {name: fields.get(name) for name in ("kind", "stream", "prev", "ts", "actor")}
        return msgspec.convert({**known, "actor": known["actor"] or "", "fields": fields}, UnknownEvent)


def kind_of(event: Event | type[Event]) -> str:
    return str(event.__struct_config__.tag)


GENESIS = bytes(32)


def extend(chain: bytes, event_ids: Iterable[bytes]) -> bytes:
    """`log_n = sha256(log_{n-1} + event_id)`, once per event in order of arrival."""
    for event_id in event_ids:
        chain = sha256(chain + event_id).digest()
    return chain


class Receipt(Struct, frozen=True, gc=False):
    """What a caller may keep: a ledger that was cut, rolled back or edited cannot answer for it."""

    replica: str
    n: int
    log: str
    digest: str


# --- The agent DAG's kinds: what an agent asked, was told, did and had.


class ModelRequest(Event, frozen=True, gc=False, kw_only=True, tag="model_request"):
    """A model was asked, with which parameters and input."""

    about: ClassVar[str] = "A model is asked. Without `input`, what it was sent was not observed."
    category: ClassVar[EventClass] = EventClass.INTENT

    model: Named
    correlation_id: Ulid
    provider: Named | UnsetType = UNSET
    params: Content | UnsetType = UNSET
    input: RequestInput | UnsetType = UNSET
    tools_spec: Content | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    vendor: Named | UnsetType = UNSET
    """Whose model it is, where `provider` names a program."""


BROKEN_OFF = "error"
"""The finish reason of an answer that broke off."""


class ModelResponse(Event, frozen=True, gc=False, kw_only=True, tag="model_response"):
    """A model answered, with usage and the response message."""

    about: ClassVar[str] = (
        "A model answered. `stream_ref` is set where another program's events tell it: of an answer that came here in"
        " pieces `output` is kept, not the pieces. Without `output` and with the finish reason `error` it says what an"
        " answer cost that broke off."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    correlation_id: Ulid
    request_id: Digest | UnsetType = UNSET
    output: MessageFact | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    finish_reason: Named | UnsetType = UNSET
    reasoning_ref: Ulid | UnsetType = UNSET
    stream_ref: ExtRef | UnsetType = UNSET
    latency_ms: int | UnsetType = UNSET

    @property
    def is_broken_off(self) -> bool:
        """Whether it tells only what an answer cost that broke off: another request follows, or the turn has ended."""
        return self.output is UNSET and self.finish_reason == BROKEN_OFF


class HistoryAppend(Event, frozen=True, gc=False, kw_only=True, tag="history_append"):
    """A message became part of a run."""

    about: ClassVar[str] = "A message entered a history."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    list: Named
    message: MessageFact
    admitted: Ulid | UnsetType = UNSET
    """The message of the session's inbox that this is."""
    untrusted: bool | UnsetType = UNSET


class ToolCallRequested(Event, frozen=True, gc=False, kw_only=True, tag="tool_call"):
    """A tool call was requested, with its arguments."""

    about: ClassVar[str] = "A tool is to be run."
    category: ClassVar[EventClass] = EventClass.INTENT

    tool: Named
    call_id: Content
    args: Content
    correlation_id: Ulid
    server: Named | UnsetType = UNSET
    number: int | UnsetType = UNSET
    requested_by: EventRef | UnsetType = UNSET
    message: Ulid | UnsetType = UNSET


class ToolResult(Event, frozen=True, gc=False, kw_only=True, tag="tool_result"):
    """A tool call ended, with its result or error."""

    about: ClassVar[str] = (
        "A tool ended; `call` is the event that asked for it. `sent` is what models are sent in the place of the"
        " result, or of the error's message: `secret_rules` found secrets, which are marked there. `untrusted`: a"
        " stranger may have written what it gave."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    call: EventRef
    call_id: Content
    status: ToolCallStatus
    correlation_id: Ulid
    result: Content | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    sent: Content | UnsetType = UNSET
    """What models are sent in the place of the result, or of the message of the error: secrets are marked in it."""
    secret_rules: Named | UnsetType = UNSET
    """The rules that found them."""
    spawned: Ulid | UnsetType = UNSET
    awaited: tuple[Ulid, ...] | UnsetType = UNSET
    """The turns of workers whose answers it brings."""
    duration_ms: int | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET
    untrusted: bool | UnsetType = UNSET

    @property
    def shown_result(self) -> str | UnsetType:
        """The content that whoever reads the turn is shown as its result: what models are sent."""
        return self.result if self.sent is UNSET or self.error is not UNSET else self.sent

    @property
    def shown_error(self) -> str | UnsetType:
        """The same of the message of its error."""
        if self.error is UNSET:
            return UNSET
        return self.error.message if self.sent is UNSET else self.sent


class McpResourceUpdated(Event, frozen=True, gc=False, kw_only=True, tag="mcp.resource_updated"):
    about: ClassVar[str] = "An MCP server said that a resource changed; `run` is the turn whose call it came in."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    server: Named
    uri: Content
    run: Ulid | UnsetType = UNSET
    """The turn whose call of the server it came in."""
    etag: Content | UnsetType = UNSET
    hash: Content | UnsetType = UNSET
    summary: Content | UnsetType = UNSET


class McpResourceListChanged(Event, frozen=True, gc=False, kw_only=True, tag="mcp.resource_list_changed"):
    about: ClassVar[str] = (
        "An MCP server said that its list of resources changed; `run` is the turn whose call it came in."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    server: Named
    run: Ulid | UnsetType = UNSET


class Interruption(Event, frozen=True, gc=False, kw_only=True, tag="interruption"):
    """A run was interrupted, and why."""

    about: ClassVar[str] = (
        "Something under way was cut short; `affects` names the open calls. `goes_on`: calls ended by it, and the turn"
        " goes on."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    reason: InterruptionReason
    affects: tuple[EventRef, ...]
    goes_on: bool | UnsetType = UNSET
    """Calls ended by it, and the turn goes on without whoever performed them."""


class Substitution(Event, frozen=True, gc=False, kw_only=True, tag="substitution"):
    """Later readers should take one event in place of another."""

    about: ClassVar[str] = "Later readers should take one event in place of another."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    original_event: EventRef
    replacement_event: EventRef
    reason: Content | UnsetType = UNSET


class AgentForked(Event, frozen=True, gc=False, kw_only=True, tag="agent_forked"):
    """A session began at an event of a turn; its head stands there."""

    about: ClassVar[str] = "A new session began at an event of a turn; its head stands there."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    to_branch: Ulid
    at_event: EventRef
    at_turn: Ulid
    from_branch: Ulid | UnsetType = UNSET
    volume_plan: tuple[VolumePlan, ...] | UnsetType = UNSET


class RunStarted(Event, frozen=True, gc=False, kw_only=True, tag="run_started"):
    """A run began: its session, fork point, agent and circumstances."""

    about: ClassVar[str] = "A turn begins; `fork` is the event of its parent that it grows from, absent for a root."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    turn_type: TurnType
    role: AgentRole
    fork: ForkPoint | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    reason: RunReason | UnsetType = UNSET
    compaction: Ulid | UnsetType = UNSET
    toolset: Named | UnsetType = UNSET
    tools: tuple[Named, ...] | UnsetType = UNSET
    permissions_granted: Content | UnsetType = UNSET
    thinking_config: Content | UnsetType = UNSET
    effective_config: Content | UnsetType = UNSET
    workspace: Content | UnsetType = UNSET
    source_event: Content | UnsetType = UNSET
    origin: Name | UnsetType = UNSET
    mapping: Name | UnsetType = UNSET
    source: Digest | UnsetType = UNSET
    native: Content | UnsetType = UNSET


class RunFinished(Event, frozen=True, gc=False, kw_only=True, tag="run_finished"):
    """A run ended, and how."""

    about: ClassVar[str] = "A turn ended; its id is the thread digest."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    exit: RunExit
    response: Ulid | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    permissions_used: Content | UnsetType = UNSET
    summary_ref: ExtRef | UnsetType = UNSET


class SnapshotMaterialized(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_materialized"):
    about: ClassVar[str] = "A summary or transcript was made for showing (a Materialization, a cache only)."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    materialization: NodeId
    content_ref: ExtRef
    run: Ulid | UnsetType = UNSET


DagEvent = (
    ModelRequest
    | ModelResponse
    | HistoryAppend
    | ToolCallRequested
    | ToolResult
    | McpResourceUpdated
    | McpResourceListChanged
    | Interruption
    | Substitution
    | AgentForked
    | RunStarted
    | RunFinished
    | SnapshotMaterialized
)


# --- What was decided about tool calls and by whom, and the programs that decide: approval policies.


class ToolDecided(Event, frozen=True, gc=False, kw_only=True, tag="tool_decided"):
    """The event that says what may be done with a tool call."""

    about: ClassVar[str] = (
        "What may be done with a tool call was decided; `bound` is the hash of exactly what would run, `plan` that"
        " itself where it can be done again after a crash, `grant` the person's answer that is used up by it."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    call: EventRef
    decision: Decision
    by: DecisionSource
    bound: Digest | UnsetType = UNSET
    policy: NodeId | UnsetType = UNSET
    grant: EventRef | UnsetType = UNSET
    rationale: Content | UnsetType = UNSET
    plan: Content | UnsetType = UNSET


class ApprovalRequested(Event, frozen=True, gc=False, kw_only=True, tag="approval_requested"):
    """The event that asks a person about a tool call."""

    about: ClassVar[str] = (
        "A person is asked; `bound` is the hash of exactly what would run, `shown` what they are shown of it,"
        " `subjects` what the tool would be used on."
    )
    category: ClassVar[EventClass] = EventClass.INTENT

    call: EventRef
    bound: Digest
    rationale: Content | UnsetType = UNSET
    shown: Content | UnsetType = UNSET
    subjects: Content | UnsetType = UNSET
    expires: Time | UnsetType = UNSET


class ApprovalGranted(Event, frozen=True, gc=False, kw_only=True, tag="approval_granted"):
    """The event of a person who allows a tool call, once."""

    about: ClassVar[str] = "A person allowed it, once; `scope` says whether the same use may follow without asking."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    request: EventRef
    bound: Digest
    reason: Content | UnsetType = UNSET
    scope: GrantScope | UnsetType = UNSET


class ApprovalDenied(Event, frozen=True, gc=False, kw_only=True, tag="approval_denied"):
    """The event of a person who refuses a tool call."""

    about: ClassVar[str] = "A person refused it."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    request: EventRef
    abort: bool
    reason: Content | UnsetType = UNSET


class PolicyProposed(Event, frozen=True, gc=False, kw_only=True, tag="policy_proposed"):
    about: ClassVar[str] = "An approval policy was proposed, for one agent or for all."
    category: ClassVar[EventClass] = EventClass.INTENT

    policy_ref: NodeId
    source: Content
    notes: Content | UnsetType = UNSET
    name: Content | UnsetType = UNSET
    agent: Ulid | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    docstring: Content | UnsetType = UNSET
    uri: Content | UnsetType = UNSET
    """Under which it can be read while it is active."""
    tests: PolicyTests | UnsetType = UNSET


class PolicyRejected(Event, frozen=True, gc=False, kw_only=True, tag="policy_rejected"):
    about: ClassVar[str] = "A proposed policy was refused."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    reason: Content | UnsetType = UNSET


class PolicyActivated(Event, frozen=True, gc=False, kw_only=True, tag="policy_activated"):
    about: ClassVar[str] = (
        "An approval policy became the active one; `digest` is that of the source that was read. People do that outside"
        " of turns; `run` is the one in which another program did it."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    notes: Content | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    tests: PolicyTests | UnsetType = UNSET
    run: Ulid | UnsetType = UNSET


class PolicyRolledBack(Event, frozen=True, gc=False, kw_only=True, tag="policy_rolled_back"):
    about: ClassVar[str] = "An earlier policy is active again."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    policy_ref: NodeId
    to: NodeId
    reason: Content | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET


ApprovalEvent = (
    ToolDecided
    | ApprovalRequested
    | ApprovalGranted
    | ApprovalDenied
    | PolicyProposed
    | PolicyRejected
    | PolicyActivated
    | PolicyRolledBack
)


# --- What happens in a conversation: who takes part, what is said, and whom it mentions.


class ConversationCreated(Event, frozen=True, gc=False, kw_only=True, tag="conversation_created"):
    """The event with which a conversation begins."""

    about: ClassVar[str] = (
        "A conversation of people and agents begins; `history` says what those read who join later, `forked_from` and"
        " `at_message` where it goes on from another one."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    title: Content | UnsetType = UNSET
    history: RoomHistory | UnsetType = UNSET
    forked_from: Ulid | UnsetType = UNSET
    at_message: Ulid | UnsetType = UNSET


class ConversationRetitled(Event, frozen=True, gc=False, kw_only=True, tag="conversation_retitled"):
    """The event with which a conversation gets another title."""

    about: ClassVar[str] = "A conversation has another title."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    title: Content


class ConversationArchived(Event, frozen=True, gc=False, kw_only=True, tag="conversation_archived"):
    about: ClassVar[str] = "A conversation takes no more messages and leaves the lists."
    category: ClassVar[EventClass] = EventClass.TRANSITION


class ConversationRestored(Event, frozen=True, gc=False, kw_only=True, tag="conversation_restored"):
    about: ClassVar[str] = "An archived conversation takes messages again."
    category: ClassVar[EventClass] = EventClass.TRANSITION


class ParticipantAdded(Event, frozen=True, gc=False, kw_only=True, tag="participant_added"):
    about: ClassVar[str] = (
        "A person or an agent takes part; `session` is the one that an agent answers in, `message` the one that brought"
        " them in. `since` and `seen` are positions: what they read begins behind the one, and what an agent was sent"
        " ends with the other."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    participant: Ulid
    participant_kind: ParticipantKind
    node: Name | Ulid
    session: Ulid | UnsetType = UNSET
    message: Ulid | UnsetType = UNSET
    since: int | UnsetType = UNSET
    seen: int | UnsetType = UNSET


class ParticipantRemoved(Event, frozen=True, gc=False, kw_only=True, tag="participant_removed"):
    about: ClassVar[str] = "A person or an agent takes part no longer; whoever left removed themselves."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    participant: Ulid


class ParticipantInvited(Event, frozen=True, gc=False, kw_only=True, tag="participant_invited"):
    about: ClassVar[str] = "A person who takes no part was mentioned: a participant may confirm the invitation."
    category: ClassVar[EventClass] = EventClass.INTENT

    node: Name | Ulid
    message: Ulid | UnsetType = UNSET


class InvitationDeclined(Event, frozen=True, gc=False, kw_only=True, tag="invitation_declined"):
    about: ClassVar[str] = "An invitation is over without anybody joining."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    node: Name | Ulid


class MessagePosted(Event, frozen=True, gc=False, kw_only=True, tag="message_posted"):
    """The event with which something is said in a conversation."""

    about: ClassVar[str] = (
        "Somebody said something in a conversation, or the system did. `root` is the person's message that it goes back"
        " to, `hops` how many answers lie between, `answers` the message that an agent's `turn` was begun for."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    message: Ulid
    message_kind: RoomMessageKind
    parts: tuple[PartFact, ...]
    author: Ulid | UnsetType = UNSET
    mentions: tuple[MentionFact, ...] | UnsetType = UNSET
    notice: RoomNotice | UnsetType = UNSET
    meta: Content | UnsetType = UNSET
    root: Ulid | UnsetType = UNSET
    hops: int | UnsetType = UNSET
    answers: Ulid | UnsetType = UNSET
    turn: Ulid | UnsetType = UNSET


ConversationEvent = (
    ConversationCreated
    | ConversationRetitled
    | ConversationArchived
    | ConversationRestored
    | ParticipantAdded
    | ParticipantRemoved
    | ParticipantInvited
    | InvitationDeclined
    | MessagePosted
)
