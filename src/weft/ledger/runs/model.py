"""What the inbox and the runs of a ledger take and give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import Decision, DecisionSource, InterruptionReason, RunExit, ToolCallStatus
from weft.kernel.events import Event, Receipt
from weft.kernel.fields import RequestInput, Usage
from weft.ledger.model import DEFAULT_AGENT, FileNote, LintNote, NewError, NewMessage, Part, RecordedTurn, SentResult
from weft.ledger.resources.model import KeptState
from weft.ledger.views.lease_rows import Lease


class Admission(Struct, frozen=True, kw_only=True):
    """The receipt for a message: where it went, and the proof that it was written."""

    message: str
    session: str
    session_id: str
    is_fork: bool
    """Whether a session was made for it at a turn that is not the head of exactly one session."""
    receipt: Receipt | None
    """The same again where the same key admits it again; None where the log was cut since."""


class InboxMessage(Struct, frozen=True, kw_only=True):
    """A message of an inbox, and what became of it."""

    id: str
    n: int
    session: str
    session_id: str
    state: str
    is_elsewhere: bool = False
    """Whether it waits in another ledger: one that this is a copy of, or that it came from. Nobody here answers it."""
    mode: str
    priority: int
    sender: str
    on_behalf_of: tuple[str, ...] = ()
    source: str | None
    content: tuple[Part, ...]
    files: tuple[FileNote, ...] = ()
    """The files that it carries or refers to."""
    context: Any = None
    metadata: Any = None
    overrides: Any = None
    route: Any = None
    source_event_id: str | None = None
    trigger: str | None = None
    """The id of the trigger that sent it."""
    turn: str | None
    admitted_at: int
    settled_at: int | None
    error: str | None
    again: str | None


def principals(sender: str, on_behalf_of: tuple[str, ...]) -> tuple[str, ...]:
    """Everybody in whose name something was sent, the sender first; nobody where that is the ledger's owner alone."""
    return () if sender == DEFAULT_AGENT and not on_behalf_of else (sender, *on_behalf_of)


def principals_of(message: InboxMessage) -> tuple[str, ...]:
    """The same of a message. Each of them narrows the rights that it is answered with."""
    return principals(message.sender, message.on_behalf_of)


class TurnRetry(Struct, frozen=True):
    """A failed turn that is tried again: as its child, or afresh beside it."""

    of: str
    afresh: bool = False


def retry_of(message: InboxMessage) -> TurnRetry | None:
    """The turn that a message was admitted to try again."""
    route = message.route.get("retry") if isinstance(message.route, dict) else None
    if not isinstance(route, dict) or not isinstance(route.get("of"), str):
        return None
    return TurnRetry(route["of"], bool(route.get("afresh")))


class WaitingSession(Struct, frozen=True):
    """A session that a broker can do something for."""

    session: str
    """Its id."""
    turn: str | None
    """The turn to go on with; None where messages wait for a new one."""
    priority: int
    oldest: int
    """The arrival number of the message that waits longest."""
    is_held: bool = False
    """Whether somebody works on the turn, or has the session for something else: it can be gone on with should that
    end."""
    amount: int = 0
    """How many messages wait, where no turn is open."""
    served_by: str | None = None
    """Who had the session last, by the name under which turns are worked on there; None where nobody had it, or that
    one is gone."""


class BrokerLook(Struct, frozen=True):
    """What there is to do for a broker at one moment."""

    waiting: list[WaitingSession]
    """Sessions with a turn that can go on, then those where messages wait and no turn is open."""
    to_attend: list[str]
    """Those of its sessions, by their ids, whose open turn is to be told of something."""
    next_due: int | None
    """When the next parked turn can go on by itself, in Unix milliseconds."""


class SessionStanding(Struct, frozen=True, kw_only=True):
    """A session at one moment: where it stands, what waits there, what its next request depends on."""

    id: str
    label: str
    persona: str
    lifecycle: str
    status: str
    head: str | None
    head_events: int | None
    compaction: str | None
    erasures: int
    """How far erasing had come: words that were read before it may be gone."""
    substitutions: int = 0
    """The last substitution: words that were read before it may have been replaced."""
    open_turn: str | None
    open_since: int | None = None
    """The arrival number of the event that began the open turn."""
    open_principals: tuple[str, ...] = ()
    """In whose names the open turn runs; empty where that is the ledger's owner alone."""
    is_parked: bool = False
    """Whether the open turn waits for something from outside."""
    parked_until: int | None = None
    """When a parked turn can go on by itself, in Unix milliseconds."""
    stop: str | None = None
    """Why somebody asked for the open turn to be cut short."""
    lease: Lease | None = None
    """Of whoever has the session while no broker's turn is open in it, such as a program that records a turn: nobody
    else can begin one now."""
    queued: tuple[InboxMessage, ...]
    """In the order in which they are answered: by priority, then by arrival."""


class RecordedEvent(Struct, frozen=True):
    """An event of a run, with its id."""

    id: str
    event: Event


class TakeMessage(Struct, frozen=True):
    """A message of the inbox enters the turn."""

    message: str


class AddMessage(Struct, frozen=True):
    """Another message enters the turn, such as a system prompt."""

    message: NewMessage


class ModelAsked(Struct, frozen=True, kw_only=True):
    """The intent to ask a model."""

    model: str
    provider: str | None = None
    params: Any = None
    input: RequestInput | UnsetType = UNSET
    tools_spec: Any = None
    attempt: int = 1


class ModelAnswered(Struct, frozen=True, kw_only=True):
    """What a model answered to a request."""

    request: str
    correlation: str
    message: NewMessage | None
    usage: Usage | UnsetType = UNSET
    finish_reason: str | None = None
    model: str | None = None
    latency_ms: int | None = None


class ToolAsked(Struct, frozen=True, kw_only=True):
    """The intent to run a tool, for a call that the last answer of this batch, or `answer`, asks for."""

    name: str
    arguments: Any
    call_id: str
    correlation: str
    answer: str | None = None
    message: str | None = None
    server: str | None = None


class ToolDecision(Struct, frozen=True, kw_only=True):
    """What may be done with a tool call, and what says so. `grant` is the person's answer that is used up by it."""

    call: str
    decision: Decision
    by: DecisionSource
    bound: str | None = None
    policy: str | None = None
    grant: str | None = None
    rationale: str | None = None
    plan: Any = None
    kept: tuple[KeptState, ...] = ()
    """What resources were like before it ran."""


class ApprovalAsked(Struct, frozen=True, kw_only=True):
    """The request that a person allows a call; `shown` is all that they are shown of it."""

    call: str
    bound: str
    shown: str
    subjects: tuple[str, ...] | None = None
    rationale: str | None = None
    expires: int | None = None
    """When the request ends by itself, in Unix milliseconds."""


class ToolEnded(Struct, frozen=True, kw_only=True):
    """The outcome of a tool."""

    call: str
    """The event that asked for it."""
    call_id: str
    """The reference of the provider's id, as that event has it."""
    correlation: str
    status: ToolCallStatus
    result: Any = UNSET
    error: NewError | None = None
    duration_ms: int | None = None
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()
    is_untrusted: bool = False
    """Whether a stranger may have written what it gave."""
    spawned: str | None = None
    """The session of the worker that it started."""
    awaited: tuple[str, ...] = ()
    """The answers of workers that it brings."""
    kept: tuple[KeptState, ...] = ()
    """What resources were like after it."""
    sent: SentResult | None = None
    """What models are sent in the place of its result."""


class Interrupted(Struct, frozen=True):
    """Something under way was cut short: open calls, or a request that nobody will answer."""

    reason: InterruptionReason
    affects: tuple[str, ...] = ()


class Parked(Struct, frozen=True, kw_only=True):
    """The turn waits for the outcome of these calls, or until a time in Unix milliseconds."""

    calls: tuple[str, ...] = ()
    until: int | None = None
    why: str | None = None
    awaits: tuple[str, ...] = ()
    """The sessions of the workers whose answers the one call waits for."""
    is_any: bool = False
    """Whether the answer of one of them is enough."""


class Finished(Struct, frozen=True, kw_only=True):
    """The turn is over. A failed one leaves the head where it is, and its messages are dead."""

    exit: RunExit = RunExit.SUCCESS
    error: NewError | None = None
    permissions_used: Any = None


Entry = (
    TakeMessage
    | AddMessage
    | ModelAsked
    | ModelAnswered
    | ToolAsked
    | ToolDecision
    | ApprovalAsked
    | ToolEnded
    | Interrupted
    | Parked
    | Finished
)
Then = Callable[[Sequence[RecordedEvent]], Sequence[Entry]]
"""Called inside the transaction with the events so far; what it gives is recorded in the same one, until it gives
nothing. It may be called again from the start where an id turned out to be taken."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """What one transaction added to a run."""

    events: tuple[RecordedEvent, ...]
    n: int
    """The arrival number of the last of them."""
    ended: RecordedTurn | None = None


class QueueLimits(Struct, frozen=True, kw_only=True):
    """How many messages may wait before others are refused."""

    session: int = 1000
    ledger: int = 100_000


DEFAULT_LIMITS = QueueLimits()


class EndedRun(Struct, frozen=True, kw_only=True):
    """A turn that ends in this transaction, or messages for which none could be begun."""

    session: str
    turn: str | None
    messages: tuple[str, ...]
    """The messages of the inbox that it took, in order."""
    principals: tuple[str, ...]
    """In whose names it ran; nobody where that is the ledger's owner alone."""
    exit: RunExit
    error: str | None = None
    events: tuple[RecordedEvent, ...] = ()
    """Those that its last transaction wrote."""
