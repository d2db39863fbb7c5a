"""Messages of inboxes read back, and what a broker can do now; what a turn that ends in this
transaction answered; with the records that inboxes and runs take and give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import orjson
from msgspec import UNSET, Struct, UnsetType, to_builtins

from weft.kernel.authority import Rights
from weft.kernel.enums import (
    Decision,
    DecisionSource,
    InboxState,
    InterruptionReason,
    OpenRunState,
    RunExit,
    ToolCallStatus,
)
from weft.kernel.errors import Action, FactDamaged, NotFound
from weft.kernel.events import (
    Event,
    HistoryAppend,
    MessageFact,
    ModelResponse,
    Receipt,
    RequestInput,
    UnknownEvent,
    Usage,
    run_stream,
)
from weft.kernel.ledger_events import MessageAdmitted
from weft.ledger.model import DEFAULT_AGENT, FileNote, LintNote, NewError, NewMessage, Part, RecordedTurn, SentResult
from weft.ledger.read.access import is_private, users_of_agent
from weft.ledger.read.sessions import on_behalf_of
from weft.ledger.read.turns import to_part
from weft.ledger.resource_reading import KeptState
from weft.ledger.views.rows import (
    LEASE_COLUMNS,
    Lease,
    LeaseKind,
    TurnRow,
    decoded,
    fields_of,
    load_program,
    load_session,
    text_of,
)
from weft.ledger.views.turns import part_columns
from weft.ledger.write.transaction import Append, LeasePatience
from weft.store.fact_log import FactReader
from weft.store.port import ReadTxn
from weft.store.replicas import is_dead, is_written_here, last_copied_event, own_names
from weft.store.sql import Sql

# --- What the inbox and the runs of a ledger take and give.


class Admission(Struct, frozen=True, kw_only=True):
    """The receipt for a message: where it went, and the proof that it was written."""

    message: str
    session: str
    session_id: str
    is_fork: bool
    """Whether a session was made for it at a turn that is not the head of exactly one session."""
    receipt: Receipt | None
    """The same again where the same key admits it again; None where the log was cut since."""
    is_new_session: bool = False
    """Whether its session was made for it, by forking or because there was none of that name."""


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


RIGHTS = "rights"
"""The field of a message's overrides with the layers of rights that its sender was limited to, as with a token."""


def limited_overrides(overrides: Any, rights: Rights) -> Any:
    """How a message is answered that somebody with these rights sends: by a turn that has no others. The layers stand
    with the message, since any broker may answer it; what the sender is recorded as says only who they are."""
    if not rights.layers or not isinstance(overrides, dict | None):
        return overrides
    fields: dict[str, Any] = overrides or {}
    before = fields.get(RIGHTS, [])
    if not isinstance(before, list):
        return overrides
    layers = to_builtins(rights.layers)
    return {**fields, RIGHTS: [*before, *(layer for layer in layers if layer not in before)]}


def is_limited(message: InboxMessage) -> bool:
    """Whether a message is answered with fewer rights than those have in whose names it was sent."""
    return isinstance(message.overrides, dict) and RIGHTS in message.overrides


def have_same_rights(message: InboxMessage, other: InboxMessage) -> bool:
    """Whether two messages were sent in the same names and with the same limits: one turn may answer both."""
    if principals_of(message) != principals_of(other) or is_limited(message) != is_limited(other):
        return False
    return not is_limited(message) or message.overrides[RIGHTS] == other.overrides[RIGHTS]


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
    vendor: str | None = None
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
    plan_digest: str | None = None
    policy: str | None = None
    grant: str | None = None
    rationale: str | None = None
    plan: Any = None
    kept: tuple[KeptState, ...] = ()
    """What resources were like before it ran."""


class ApprovalAsked(Struct, frozen=True, kw_only=True):
    """The request that a person allows a call; `shown` is all that they are shown of it."""

    call: str
    plan_digest: str
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


class RunInterruption(Struct, frozen=True):
    """Something under way was cut short: open calls, or a request that nobody will answer. `goes_on`: calls ended by
    it, and the turn goes on."""

    reason: InterruptionReason
    affects: tuple[str, ...] = ()
    goes_on: bool = False


class ParkedRun(Struct, frozen=True, kw_only=True):
    """The turn waits for the outcome of these calls, or until a time in Unix milliseconds."""

    calls: tuple[str, ...] = ()
    until: int | None = None
    why: str | None = None
    awaits: tuple[str, ...] = ()
    """The sessions of the workers whose answers the one call waits for."""
    is_any: bool = False
    """Whether the answer of one of them is enough."""


class FinishedRun(Struct, frozen=True, kw_only=True):
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
    | RunInterruption
    | ParkedRun
    | FinishedRun
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


# --- Messages of inboxes read back, and what a broker can do now.

_SELECT = (
    "SELECT i.message, i.n, s.label, s.id, i.state, i.mode, i.priority, i.sender, i.source, i.turn, i.admitted_at,"
    " i.settled_at, i.error, i.again FROM inbox i JOIN session s ON s.n = i.session"
)
_ORDER = "ORDER BY i.priority DESC, i.n"
QUEUE_SHOWN = 256
"""So many waiting messages of a session are looked at together."""


def load_message(txn: ReadTxn, message: str) -> InboxMessage:
    row = txn.sql.fetch_row(f"{_SELECT} WHERE i.message = ?", (message,))
    if row is None:
        raise NotFound("message", message, Action.LIST_INBOX)
    return _to_message(txn, row)


def message_state(txn: ReadTxn, message: str) -> tuple[str, bool]:
    """The state of a message, and whether it waits for another ledger's brokers."""
    row = txn.sql.fetch_row("SELECT state, n, replica FROM inbox WHERE message = ?", (message,))
    if row is None:
        raise NotFound("message", message, Action.LIST_INBOX)
    state, n, replica = row
    return state, state == InboxState.QUEUED and not _is_answered_here(txn, n, replica)


def answering_turn(txn: ReadTxn, message: str) -> str | None:
    """The turn that took a message; None where none did."""
    row = txn.sql.fetch_row("SELECT turn FROM inbox WHERE message = ?", (message,))
    return None if row is None else row[0]


def queued_messages(txn: ReadTxn, session: int, most: int) -> list[InboxMessage]:
    """What waits in a session, in the order in which it is answered; only what was admitted here. At most so many of
    each name of this ledger, unless one of them interrupts."""
    query = f"{_SELECT} WHERE i.session = ? AND i.state = 'queued' AND i.replica = ? AND i.n > ? {_ORDER}"
    messages: list[InboxMessage] = []
    after = last_copied_event(txn.sql)
    for replica, last in own_names(txn.sql).items():
        interrupting = txn.sql.fetch_row(
            "SELECT 1 FROM inbox"
            " WHERE session = ? AND state = 'queued' AND mode = 'interrupt' AND replica = ? AND n > ?",
            (session, replica, after),
        )
        limit = "" if interrupting else f" LIMIT {most}"  # an interrupting message takes all with it
        rows = txn.sql.fetch_rows(query + limit, (session, replica, after))
        messages += [_to_message(txn, row) for row in rows if last is None or row[1] <= last]
    return sorted(messages, key=lambda message: (-message.priority, message.n))


def taken_messages(txn: ReadTxn, turn: str) -> list[InboxMessage]:
    """What a turn was begun for or took up, in order of arrival."""
    return [_to_message(txn, row) for row in txn.sql.fetch_rows(f"{_SELECT} WHERE i.turn = ? ORDER BY i.n", (turn,))]


def listed_messages(
    txn: ReadTxn, states: Sequence[str], session: int | None, limit: int, after: int
) -> list[InboxMessage]:
    """Messages in some states, the oldest first, behind an arrival number."""
    marks = ", ".join("?" * len(states))
    where = f"i.state IN ({marks}) AND i.n > ?" + (" AND i.session = ?" if session is not None else "")
    values = (*states, after, *(() if session is None else (session,)), limit)
    return [
        _to_message(txn, row) for row in txn.sql.fetch_rows(f"{_SELECT} WHERE {where} ORDER BY i.n LIMIT ?", values)
    ]


def admission_event(facts: FactReader, n: int) -> MessageAdmitted:
    """The event of this number, which admitted a message."""
    line = facts.line(n)
    event = None if line is None else decoded(n, line)
    if not isinstance(event, MessageAdmitted):
        raise FactDamaged("event number", str(n), "it admits no message")
    return event


def ensure_works_for(txn: ReadTxn, agent: str, message: str) -> None:
    """Refuse an agent that does not work for everybody in whose name a message was sent, as one that does not exist."""
    row, admitted = load_program(txn.sql, agent), txn.sql.fetch_row("SELECT n FROM inbox WHERE message = ?", (message,))
    if row is None or admitted is None:
        return
    event = admission_event(txn.facts, admitted[0])
    senders = {event.actor, *(() if event.on_behalf_of is UNSET else event.on_behalf_of)}
    senders -= {DEFAULT_AGENT, event.trigger}  # a trigger has no rights of its own: whoever it acts for is asked
    if is_private(txn, row) and not users_of_agent(txn, row).issuperset(senders):
        raise NotFound("agent", row.name, Action.LIST_PROGRAMS)


def _to_message(txn: ReadTxn, row: Sequence[Any]) -> InboxMessage:
    message, n, label, session, state, mode, priority, sender, source, turn, at, settled, error, again = row
    event = admission_event(txn.facts, n)
    return InboxMessage(
        id=message,
        n=n,
        session=label,
        session_id=session,
        state=state,
        is_elsewhere=state == InboxState.QUEUED and not _is_answered_here(txn, n, event.replica),
        mode=mode,
        priority=priority,
        sender=sender,
        on_behalf_of=() if event.on_behalf_of is UNSET else event.on_behalf_of,
        source=source,
        content=tuple(to_part(txn, part_columns(ReferenceNumbers(txn), part)) for part in event.parts),
        files=_file_notes(txn, event),
        context=_json_of_ref(txn, event.context),
        metadata=_json_of_ref(txn, event.metadata),
        overrides=_json_of_ref(txn, event.overrides),
        route=_json_of_ref(txn, event.route),
        trigger=None if event.trigger is UNSET else event.trigger,
        source_event_id=_text_of_ref(txn, event.source_event),
        turn=turn,
        admitted_at=at,
        settled_at=settled,
        error=text_of(txn, error),
        again=again,
    )


class ReferenceNumbers:
    """Contents by their references, for whoever makes columns of parts."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn

    def number(self, ref: str) -> int:
        return self._txn.facts.find_content(bytes.fromhex(ref)) or 0


def _file_notes(txn: ReadTxn, event: MessageAdmitted) -> tuple[FileNote, ...]:
    return tuple(
        FileNote(
            kind=file.kind,
            path=_text_of_ref(txn, file.path) or "",
            line_start=None if file.line_start is UNSET else file.line_start,
            line_end=None if file.line_end is UNSET else file.line_end,
        )
        for file in (() if event.files is UNSET else event.files)
    )


def _text_of_ref(txn: ReadTxn, ref: str | UnsetType) -> str | None:
    return None if ref is UNSET else text_of(txn, ReferenceNumbers(txn).number(ref))


def _json_of_ref(txn: ReadTxn, ref: str | UnsetType) -> Any:
    text = _text_of_ref(txn, ref)
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:  # erased: what is left of it is no JSON
        return None


def _is_answered_here(txn: ReadTxn, n: int, replica: object) -> bool:
    """Whether event `n` asks this ledger for something. In a copy that its origin is asked for is the origin's."""
    return n > last_copied_event(txn.sql) and is_written_here(txn.sql, n, replica)


def own_queue(sql: Sql, alias: str) -> tuple[str, tuple[Any, ...]]:
    """A condition on rows of the inbox, or of open runs as `o`, that are this ledger's to answer."""
    names = own_names(sql)
    number = "(SELECT begun.n FROM turn begun WHERE begun.id = o.turn)" if alias == "o" else f"{alias}.n"
    return f"{alias}.replica IN ({', '.join('?' * len(names))}) AND {number} > ?", (*names, last_copied_event(sql))


_RUN = "o.turn, o.state, o.until, t.interrupted, t.n"


def own_run(sql: Sql, session: int) -> tuple[Any, ...] | None:
    """The turn that a broker of this ledger has open in a session: its id, state and time limit, why it is to stop,
    and the arrival number of the event that began it."""
    condition, values = own_queue(sql, "o")
    return sql.fetch_row(
        f"SELECT {_RUN} FROM open_run o JOIN turn t ON t.id = o.turn WHERE o.session = ? AND {condition}",
        (session, *values),
    )


_LEASE = ", ".join(f"l.{column}" for column in LEASE_COLUMNS)


def run_principals(facts: FactReader, n: int) -> tuple[str, ...]:
    """In whose names a turn runs, as the event of this number says, which began it."""
    line = facts.line(n)
    return () if line is None else on_behalf_of(decoded(n, line))


def standing(txn: ReadTxn, session: str, is_stale: Callable[[Lease], bool], most: int) -> SessionStanding:
    """A session, by its id, as it is now, with the first `most` messages that wait there."""
    row = load_session(txn.sql, session)
    if row is None:
        raise NotFound("session", session, Action.LIST_SESSIONS)
    condition, values = own_queue(txn.sql, "o")
    found = txn.sql.fetch_row(
        f"SELECT (SELECT max(n) FROM erasure), (SELECT max(n) FROM substitution), {_RUN}, {_LEASE} FROM session s"
        f" LEFT JOIN open_run o ON o.session = s.n AND {condition} LEFT JOIN turn t ON t.id = o.turn"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id WHERE s.n = ?",
        (*values, LeaseKind.SESSION.value, row.n),
    )
    assert found is not None, "the session was just read"
    erasures, substitutions, turn, state, until, stop, since, *columns = found
    lease = Lease(*columns) if columns[0] is not None else None
    is_held = turn is None and lease is not None and lease.purpose is not None and not is_stale(lease)
    return SessionStanding(
        id=row.id,
        label=row.label,
        persona=row.persona,
        lifecycle=row.lifecycle,
        status=row.status,
        head=row.head,
        head_events=row.head_events,
        compaction=row.compaction,
        erasures=erasures or 0,
        substitutions=substitutions or 0,
        open_turn=turn,
        open_since=since,
        open_principals=() if since is None else run_principals(txn.facts, since),
        is_parked=state == OpenRunState.PARKED,
        parked_until=until,
        stop=stop,
        lease=lease if is_held else None,
        queued=tuple(queued_messages(txn, row.n, most)),
    )


def waiting_sessions(
    txn: ReadTxn, now_ms: int, limit: int, patience: LeasePatience, own_turns: dict[str, bool]
) -> list[WaitingSession]:
    """Sessions with a turn that can go on or is to be cut short, then sessions where messages wait and no turn is
    open. Only what was begun or admitted here counts; `own_turns` keeps that of open turns between calls."""
    is_gone = cache(is_dead)

    def is_stale(lease: Lease) -> bool:
        return patience.judge_stale(lease, is_gone)

    return [
        *_waiting_turns(txn, now_ms, limit, is_stale, own_turns),
        *_waiting_queues(txn, limit, is_stale, is_gone),
    ]


def _waiting_turns(
    txn: ReadTxn, now_ms: int, limit: int, is_stale: Callable[[Lease], bool], own_turns: dict[str, bool]
) -> list[WaitingSession]:
    own_runs, run_values = own_queue(txn.sql, "o")
    own_messages, message_values = own_queue(txn.sql, "i")
    runs = txn.sql.fetch_rows(
        f"SELECT s.id, o.turn, t.n, {_LEASE} FROM open_run o"
        " JOIN session s ON s.n = o.session JOIN turn t ON t.id = o.turn"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id"
        f" WHERE {own_runs} AND (o.state = 'running' OR o.until <= ? OR EXISTS (SELECT 1 FROM inbox i"
        f" WHERE i.session = o.session AND i.state = 'queued' AND i.mode = 'interrupt' AND i.n > t.n"
        f" AND {own_messages})) ORDER BY +t.n LIMIT ?",  # not by the index, along all turns: few of them are open
        (LeaseKind.SESSION.value, *run_values, now_ms, *message_values, limit),
    )
    was_own = dict(own_turns)
    own_turns.clear()
    waiting: list[WaitingSession] = []
    for session, turn, n, *lease in runs:
        is_held = _is_held(turn, lease, is_stale)
        if not is_held:
            own_turns[turn] = was_own[turn] if turn in was_own else _run_is_own(txn, n)
        if is_held or own_turns[turn]:
            waiting.append(WaitingSession(session, turn, 0, n, is_held, served_by=lease[2] if is_held else None))
    return waiting


def parked_turns(txn: ReadTxn, limit: int, is_stale: Callable[[Lease], bool]) -> list[tuple[WaitingSession, int]]:
    """Sessions whose turn is parked without a time limit, and that nobody holds, with how many events it has."""
    condition, values = own_queue(txn.sql, "o")
    runs = txn.sql.fetch_rows(
        f"SELECT s.id, o.turn, t.n, t.events, {_LEASE} FROM open_run o"
        " JOIN session s ON s.n = o.session JOIN turn t ON t.id = o.turn"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id"
        f" WHERE {condition} AND o.state = 'parked' AND o.until IS NULL ORDER BY +t.n LIMIT ?",
        (LeaseKind.SESSION.value, *values, limit),
    )
    return [
        (WaitingSession(session, turn, 0, n), events)
        for session, turn, n, events, *lease in runs
        if not _is_held(turn, lease, is_stale) and _run_is_own(txn, n)
    ]


def _waiting_queues(
    txn: ReadTxn, limit: int, is_stale: Callable[[Lease], bool], is_gone: Callable[[str], bool]
) -> list[WaitingSession]:
    own_runs, run_values = own_queue(txn.sql, "o")
    waiting: list[WaitingSession] = []
    for replica, last in own_names(txn.sql).items():
        queues = txn.sql.fetch_rows(
            f"SELECT s.id, q.priority, q.n, q.amount, {_LEASE} FROM"
            " (SELECT session, max(priority) AS priority, min(n) AS n, count(*) AS amount FROM inbox"
            " WHERE state = 'queued' AND replica = ? AND n > ? GROUP BY session) q"
            " JOIN session s ON s.n = q.session LEFT JOIN lease l ON l.kind = ? AND l.key = s.id"
            f" WHERE s.lifecycle <> 'paused' AND s.status = 'active' AND NOT EXISTS (SELECT 1 FROM open_run o"
            f" WHERE o.session = s.n AND {own_runs}) ORDER BY q.priority DESC, q.n LIMIT ?",
            (replica, last_copied_event(txn.sql), LeaseKind.SESSION.value, *run_values, limit),
        )
        for session, priority, n, amount, *columns in queues:
            if last is not None and n > last:
                continue
            is_held, served_by = False, None
            if columns[0] is not None:
                lease = Lease(*columns)
                served_by = None if is_gone(lease.owner) else lease.owner
                is_held = lease.purpose is not None and not is_stale(lease)
            waiting.append(WaitingSession(session, None, priority, n, is_held, amount, served_by))
    return waiting


def _is_held(turn: str, columns: Sequence[Any], is_stale: Callable[[Lease], bool]) -> bool:
    """Whether somebody who is alive works on an open turn, or has its session for something else."""
    if columns[-1] is None:  # no lease, or nobody holds it
        return False
    lease = Lease(*columns)
    return lease.purpose != turn or not is_stale(lease)


def is_left(txn: ReadTxn, turn: str, is_stale: Callable[[Lease], bool]) -> bool:
    """Whether a broker's turn could go on, and nobody who is alive works on it."""
    lease = txn.sql.fetch_row(
        f"SELECT {_LEASE} FROM open_run o JOIN session s ON s.n = o.session"
        " LEFT JOIN lease l ON l.kind = ? AND l.key = s.id WHERE o.turn = ? AND o.state = 'running'",
        (LeaseKind.SESSION.value, turn),
    )
    return lease is not None and not _is_held(turn, lease, is_stale)


def sessions_to_attend(txn: ReadTxn, sessions: Sequence[str]) -> list[str]:
    """Those of the sessions, by their ids, where a message wants to enter or to interrupt the open turn, or somebody
    asked for it to be cut short."""
    marks = ", ".join("?" * len(sessions))
    rows = txn.sql.fetch_rows(
        f"SELECT s.id FROM session s WHERE s.id IN ({marks}) AND ("
        "EXISTS (SELECT 1 FROM inbox i WHERE i.session = s.n AND i.state = 'queued'"
        " AND i.mode IN ('interrupt', 'steer'))"
        " OR EXISTS (SELECT 1 FROM open_run o JOIN turn t ON t.id = o.turn WHERE o.session = s.n"
        " AND t.interrupted IS NOT NULL))",
        tuple(sessions),
    )
    return [str(session) for (session,) in rows]


def _run_is_own(txn: ReadTxn, n: int) -> bool:
    line = txn.facts.line(n)
    return line is not None and is_written_here(txn.sql, n, fields_of(n, line).get("replica"))


def next_due(txn: ReadTxn) -> int | None:
    """When the next parked turn can go on by itself."""
    condition, values = own_queue(txn.sql, "o")
    row = txn.sql.fetch_row(
        f"SELECT min(o.until) FROM open_run o WHERE o.state = 'parked' AND o.until IS NOT NULL AND {condition}",
        values,
    )
    return None if row is None or row[0] is None else int(row[0])


# --- What a turn that ends in this transaction answered, as its events have it.


def response_of(append: Append, turn: str, fresh: Sequence[RecordedEvent] = ()) -> MessageFact | None:
    """The last message of a turn in which the agent said something. `fresh` are events that this transaction wrote."""
    row = append.view.turn(turn)
    newest = (recorded.event for recorded in reversed(fresh))
    return _message_of(newest, row.response) or _message_of(_stored_events(append, row), row.response)


def _stored_events(append: Append, turn: TurnRow) -> Iterator[Event | UnknownEvent]:
    """The events of the turn that earlier transactions wrote."""
    stream = run_stream(turn.id)
    mark = f'"stream":"{stream}"'.encode()
    for n, line in append.txn.facts.lines(turn.n - 1):
        if mark in line and (event := decoded(n, line)).stream == stream:
            yield event


def _message_of(events: Iterable[Event | UnknownEvent], message: str | None) -> MessageFact | None:
    for event in events:
        fact = None
        if isinstance(event, ModelResponse) and event.output is not UNSET:
            fact = event.output
        elif isinstance(event, HistoryAppend):
            fact = event.message
        if fact is not None and fact.id == message:
            return fact
    return None
