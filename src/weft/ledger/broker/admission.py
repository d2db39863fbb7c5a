"""Admitting messages to inboxes, cancelling them, and sending dead ones again; and what people
ask of turns: to cut a running one short, to try a failed one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.clock import decode
from weft.kernel.enums import InboxState, InterruptionReason, MessageRole, MessageSource, QueueMode, SessionStatus
from weft.kernel.errors import Action, InboxFull, InvalidInput, NotApplicable, NotFound, quoted
from weft.kernel.events import AgentForked, EventRef, PartFact, Receipt, session_stream
from weft.kernel.ledger_events import MessageAdmitted, MessageCancelled
from weft.kernel.typed_names import normal_form
from weft.ledger.arguments import checked_whole
from weft.ledger.broker.inbox import (
    Admission,
    InboxMessage,
    QueueLimits,
    TurnRetry,
    admission_event,
    limited_overrides,
    own_queue,
    own_run,
)
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT, FileNote, Message, NewMessage
from weft.ledger.views.rows import PROGRAM, ProgramRow, SessionRow, TurnRow, agent_id, find_by_name, load_session
from weft.ledger.write.record_turn import weigh
from weft.ledger.write.sessions import new_fork_label, stream_of
from weft.ledger.write.transaction import (
    MESSAGE_ROOM,
    Append,
    CommandAnswer,
    ContentWriter,
    LedgerWriter,
    keyed_command,
    run_once,
)
from weft.ledger.write.turn_events import (
    MAIN_KEY,
    TurnEvents,
    agent_of_key,
    context_beside,
    create_session,
    ensure_session,
    load_parent,
    main_session,
)
from weft.store.replicas import last_copied_event
from weft.store.sql import Sql

# --- Admitting messages to inboxes, cancelling them, and sending dead ones again.

MAX_PRIORITY = 1000


class MessageTarget(Struct, frozen=True, kw_only=True):
    """Where a message is sent: exactly one of a session's name, a turn, or an agent's name."""

    session: str | None = None
    turn: str | None = None
    persona: str | None = None


class NewAdmission(Struct, frozen=True, kw_only=True):
    """A message on its way into an inbox, and how it shall be answered."""

    message: NewMessage
    target: MessageTarget
    mode: QueueMode = QueueMode.FOLLOWUP
    priority: int = 0
    overrides: Any = None
    route: Any = None
    source_event_id: str | None = None
    again: str | None = None
    """The dead message that is sent again by this one."""
    waits_elsewhere: str | None = None
    """The message that is sent again by this one, and waits in the ledger that this one is a copy of."""


def checked_admission(new: NewAdmission) -> NewAdmission:
    """Refuse what no session could take."""
    target = new.target
    named = [name for name in (target.session, target.turn) if name is not None]
    if len(named) > 1 or not (named or target.persona):
        raise InvalidInput("a message needs one target", "name a session, a turn or an agent")
    if abs(new.priority) > MAX_PRIORITY:
        raise InvalidInput(f"priority is {new.priority}", f"it lies between -{MAX_PRIORITY} and {MAX_PRIORITY}")
    if new.message.role != "user":
        raise InvalidInput(f"the message's role is {new.message.role}", "an inbox takes messages of users")
    return new


def admit(writer: LedgerWriter, new: NewAdmission, *, key: str | None, limits: QueueLimits) -> Admission:
    """Write a message to the inbox that its target leads to. The same key again gives the same answer."""
    new = checked_admission(new)
    if not isinstance(limits, QueueLimits):
        raise InvalidInput(f"limits are {quoted(limits)}", "give QueueLimits")
    command = keyed_command("admit_message", key, [new], writer.authority)
    message = writer.ulids.mint(MESSAGE_ROOM + 1)
    weight = weigh([new.message], ())
    if weight.large:
        writer.put_large(weight.large, scope_of(message))

    def work(append: Append) -> Admission:
        answer = run_once(append, command, partial(_admit_message, append, message, new, key, limits))
        append.seal()
        return admission_of(append, answer)

    return writer.write(work, weight.size)


FORKED, MADE, THERE = "fork", "new", "-"
"""Where the session of a message comes from, as the answer that is kept for its key says it."""


def admission_of(append: Append, answer: CommandAnswer) -> Admission:
    """What the command that admitted a message answered, the first time and every time."""
    digest, n, session_id, origin = (answer.details or "").split(" ")
    log = append.txn.facts.chain_at(int(n))
    return Admission(
        message=answer.node,
        session=append.view.session(session_id).label,
        session_id=session_id,
        is_fork=origin == FORKED,
        receipt=None if log is None else Receipt(append.replica, int(n), log.hex(), digest),
        is_new_session=origin in (FORKED, MADE),
    )


def scope_of(message: str) -> int:
    """A scope of its own for its words: erasing them, or equal words elsewhere, touches nothing else."""
    return -(decode(message) % 2**62) - 1


def _admit_message(
    append: Append, message: str, new: NewAdmission, key: str | None, limits: QueueLimits
) -> CommandAnswer:
    session, origin = resolve_target(append, new.target)
    if new.again is None:
        refuse_worker(append, session)
    return add_message(append, session, message, new, key=key, limits=limits, origin=origin)


def refuse_worker(append: Append, session: SessionRow) -> None:
    """A worker's session takes messages of its spawner alone."""
    if append.sql.fetch_row("SELECT 1 FROM worker WHERE session = ?", (session.id,)) is not None:
        raise NotApplicable(f"session {session.label!r} is a worker's: it answers whoever spawned it", "fork it")


def add_message(
    append: Append,
    session: SessionRow,
    message: str,
    new: NewAdmission,
    *,
    key: str | None,
    limits: QueueLimits,
    origin: str,
    trigger: str | None = None,
    is_untrusted: bool = False,
) -> CommandAnswer:
    """Write a message to the inbox of a session that has room for it. `trigger` is the id of the trigger that sends
    it; `is_untrusted` says that a stranger wrote some of it."""
    if session.lifecycle == "completed":
        raise NotApplicable(f"session {session.label!r} is completed", "fork it, or make a new session")
    append.access.ensure_session_agent(session)
    ensure_room(append, session, limits)
    event = _add_event(append, session, message, new, key, trigger, is_untrusted)
    n = append.first + len(append.lines) - 1
    return CommandAnswer(message, f"{event} {n} {session.id} {origin}")


def _add_event(
    append: Append,
    session: SessionRow,
    message: str,
    new: NewAdmission,
    key: str | None,
    trigger: str | None,
    is_untrusted: bool,
) -> str:
    contents = append.contents_of(scope_of(message))
    fields = _message_fields(TurnEvents(append, message, actor=DEFAULT_AGENT, scope=scope_of(message)), new)
    optional: dict[str, str | UnsetType] = {
        "key": UNSET if key is None else contents.put_text(key, "key"),
        "overrides": _json_content(contents, limited_overrides(new.overrides, append.authority.rights), "overrides"),
        "route": _json_content(contents, new.route, "route"),
        "source_event": UNSET
        if new.source_event_id is None
        else contents.put_text(new.source_event_id, "source event id"),
        "again": new.again or UNSET,
        "posted": _posted_message(append, new.waits_elsewhere),
        "trigger": trigger or UNSET,
    }
    earlier = _earlier_admission(append, new.again or new.waits_elsewhere)
    if earlier is not None and earlier.trigger is not UNSET:
        optional["trigger"], is_untrusted = earlier.trigger, earlier.untrusted is True
    with append.in_name_of(_sender_ids(append, earlier)):
        return stream_of(append, session, DEFAULT_AGENT).add(
            MessageAdmitted,
            message=message,
            mode=new.mode,
            priority=checked_whole(new.priority, "priority") if new.priority else UNSET,
            untrusted=is_untrusted or UNSET,
            **fields,
            **optional,
        )


def _posted_message(append: Append, message: str | None) -> str | UnsetType:
    """The message of a conversation that an agent was sent with a message of an inbox: its answer goes there."""
    query = "SELECT posted FROM room_delivery WHERE message = ?"
    row = None if message is None else append.sql.fetch_row(query, (message,))
    return UNSET if row is None else str(row[0])


def _earlier_admission(append: Append, again: str | None) -> MessageAdmitted | None:
    """What admitted a message of a conversation or of a trigger that whoever opened the ledger sends again."""
    if again is None or not append.access.is_unlimited:
        return None
    query = "SELECT i.n, d.posted FROM inbox i LEFT JOIN room_delivery d ON d.message = i.message WHERE i.message = ?"
    row = append.sql.fetch_row(query, (again,))
    event = None if row is None else admission_event(append.txn.facts, row[0])
    if row is None or event is None or (row[1] is None and event.trigger is UNSET):
        return None
    return event


def _sender_ids(append: Append, earlier: MessageAdmitted | None) -> tuple[str, ...]:
    """In whose name a message is admitted: that of whoever acts. A message of a conversation or of a trigger that is
    sent again stays its author's, with the author's rights."""
    if earlier is None:
        return append.acting_ids
    return (earlier.actor, *(() if earlier.on_behalf_of is UNSET else earlier.on_behalf_of))


class RoomDelivery(Struct, frozen=True, kw_only=True):
    """A message of a conversation on its way to an agent's session there: the parts that the agent is sent, and in
    whose name, whoever wrote it first."""

    posted: str
    parts: tuple[PartFact, ...]
    senders: tuple[str, ...]
    source: MessageSource
    context: Any
    scope: int
    route: Any = None
    mode: QueueMode = QueueMode.FOLLOWUP
    is_untrusted: bool = False
    trigger: str | None = None
    source_event_id: str | None = None


def deliver(
    append: Append, session: SessionRow, delivery: RoomDelivery, limits: QueueLimits, *, message: str | None = None
) -> str:
    """Write a message of a conversation to the inbox of a session; the id that it has there, the given one if any."""
    ensure_room(append, session, limits)
    message, contents = message or append.ulids.mint(MESSAGE_ROOM + 1), append.contents_of(delivery.scope)
    with append.in_name_of(delivery.senders):
        stream_of(append, session, DEFAULT_AGENT).add(
            MessageAdmitted,
            message=message,
            mode=delivery.mode,
            parts=delivery.parts,
            source=delivery.source,
            context=_json_content(contents, delivery.context, "context"),
            route=_json_content(contents, delivery.route, "route"),
            overrides=_json_content(contents, limited_overrides(None, append.authority.rights), "overrides"),
            posted=delivery.posted,
            untrusted=delivery.is_untrusted or UNSET,
            trigger=delivery.trigger or UNSET,
            source_event=UNSET
            if delivery.source_event_id is None
            else contents.put_text(delivery.source_event_id, "source event id"),
        )
    return message


def _json_content(contents: ContentWriter, value: Any, what: str) -> str | UnsetType:
    return UNSET if value is None else contents.put_json(value, what)


def _message_fields(turn_events: TurnEvents, new: NewAdmission) -> dict[str, Any]:
    message, contents = new.message, turn_events.contents
    return {
        "parts": turn_events.parts(message.content),
        "source": _message_source(turn_events.append, message.source),
        "context": _json_content(contents, context_beside(message), "context"),
        "metadata": _json_content(contents, message.metadata, "metadata"),
        "files": turn_events.annotations(message).get("files", UNSET),
    }


def _message_source(append: Append, given: MessageSource | None) -> MessageSource:
    """Who started it: as the sender says, else a person. What an agent sends is never a person's."""
    return append.message_source(given) or MessageSource.HUMAN


def resolve_target(append: Append, target: MessageTarget) -> tuple[SessionRow, str]:
    """The session whose inbox takes the message, and whether it was there, is forked or is made for it. Nobody becomes
    an agent by being sent a message."""
    if target.persona is not None:
        _ensure_agent_is_there(append, target.persona)
    if target.turn is not None:
        session, is_fork = _session_at(append, load_parent(append, target.turn), target.persona)
        return session, FORKED if is_fork else THERE
    before = len(append.lines)
    if target.session is not None:
        addressed = _agent_addressed(append, target)
        working = None if addressed is None else _task_session(append, addressed)
        session = working or ensure_session(append, target.session, target.persona or DEFAULT_AGENT)
    else:
        assert target.persona is not None
        session = _session_of_agent(append, target.persona)
    is_made = len(append.lines) > before
    if is_made and session.label.startswith(MAIN_KEY):
        raise NotFound("agent", session.label.removeprefix(MAIN_KEY), Action.LIST_PROGRAMS)
    return session, MADE if is_made else THERE


MOST_NEAR = 3


def _ensure_agent_is_there(append: Append, name: str) -> None:
    if name in (DEFAULT_AGENT, IMPORTED_AGENT) or agent_id(append.sql, name) is not None:
        return
    from difflib import get_close_matches

    rows = append.sql.fetch_rows(f"{PROGRAM.select} WHERE kind = 'agent' AND deleted = 0 ORDER BY name")
    names = [row.name for row in (ProgramRow(*values) for values in rows) if append.access.may_use(row)]
    near = get_close_matches(normal_form(name), names, MOST_NEAR)
    raise NotFound("agent", name, f"did you mean {' or '.join(map(repr, near))}?" if near else Action.LIST_PROGRAMS)


def _agent_addressed(append: Append, target: MessageTarget) -> str | None:
    """The agent that a message to `persona:NAME` is for, where nothing has that name itself."""
    key = target.session
    if key is None or target.persona is not None or find_by_name(append.view, key) is not None:
        return None
    return agent_of_key(append, key)


def _session_of_agent(append: Append, name: str) -> SessionRow:
    """That of the task that it works on, else its main one."""
    agent = agent_id(append.sql, name)
    if agent is not None:
        append.access.ensure_agent(agent, name)
    return _task_session(append, name) or ensure_session(append, main_session(name), name)


def _task_session(append: Append, name: str) -> SessionRow | None:
    """The session of the task that an agent works on."""
    session = task_session(append.sql, name)
    return None if session is None else ensure_session(append, session.label)


def task_session(sql: Sql, name: str) -> SessionRow | None:
    """The session of the task that an agent works on, as it is found; nobody is asked whether they may write there."""
    row = sql.fetch_row(
        "SELECT session FROM program"
        " WHERE (name = ? AND deleted = 0 OR id = ?) AND kind = 'agent' AND task IS NOT NULL",
        (name, name),
    )
    session = None if row is None or row[0] is None else load_session(sql, row[0])
    if session is None or session.status != SessionStatus.ACTIVE or session.lifecycle == "completed":
        return None
    return session


def _session_at(append: Append, turn: TurnRow, persona: str | None) -> tuple[SessionRow, bool]:
    """The session whose head this turn is, where it is that of exactly one; else a new one that begins there."""
    rows = append.sql.fetch_rows(
        "SELECT id FROM session WHERE n IN (SELECT session FROM history WHERE turn = ?) AND head = ?"
        " AND head_events IS NULL AND status = 'active' AND lifecycle <> 'completed' LIMIT 2",
        (turn.id, turn.id),
    )
    heads = [append.view.session(str(id)) for (id,) in rows]
    if len(heads) == 1 and append.access.may("turn:record", heads[0]):
        return heads[0], False
    return fork_at(append, turn, persona), True


def fork_at(append: Append, turn: TurnRow, persona: str | None = None, label: str | None = None) -> SessionRow:
    """A new session that begins at a turn. With a label it is the ledger's own."""
    actor = None if label is None else DEFAULT_AGENT
    label = label or new_fork_label(append)
    branch = None if turn.session is None else append.view.session_of_number(turn.session)
    session = create_session(append, label, persona=persona or turn.persona, actor=actor)
    append.stream(session_stream(session.id), bytes(session.last_event).hex(), session.persona).add(
        AgentForked,
        to_branch=session.id,
        at_event=EventRef(turn.digest),
        at_turn=turn.id,
        from_branch=branch.id if branch else UNSET,
    )
    return append.view.session(session.id)


def ensure_room(append: Append, session: SessionRow, limits: QueueLimits) -> None:
    """Refuse a message where too many wait. What waits in the ledger that this one is a copy of takes no room here."""
    after = last_copied_event(append.sql)
    queued = "SELECT 1 FROM inbox WHERE state = 'queued' AND n > ?"
    (waiting,) = append.sql.fetch_row(
        f"SELECT count(*) FROM ({queued} AND session = ?) waiting", (after, session.n)
    ) or (0,)
    if waiting >= limits.session:
        raise InboxFull(f"{waiting} messages wait in session {session.label!r}")
    (all_waiting,) = append.sql.fetch_row(
        f"SELECT count(*) FROM ({queued} LIMIT ?) waiting", (after, limits.ledger)
    ) or (0,)
    if all_waiting >= limits.ledger:
        raise InboxFull(f"{all_waiting} messages wait in this ledger")


def cancel(writer: LedgerWriter, message: str, reason: str | None, on_cancelled: Callable[[Append, str], None]) -> None:
    """Take a message out of its inbox that no turn has taken yet. `on_cancelled` hears of it, with the session's id, in
    the same transaction."""

    def work(append: Append) -> None:
        row = append.sql.fetch_row(
            "SELECT i.state, s.id FROM inbox i JOIN session s ON s.n = i.session WHERE i.message = ?", (message,)
        )
        if row is None:
            raise NotFound("message", message, Action.LIST_INBOX)
        state, session_id = row
        session = append.view.session(session_id)
        if not append.access.may("turn:record", session) and not append.access.may_read(session):
            raise NotFound("message", message, Action.LIST_INBOX)
        append.access.ensure("turn:record", session, session.label)
        if state == InboxState.CANCELLED:
            return
        if state != InboxState.QUEUED:
            raise NotApplicable(f"message {message} is {state}", Action.INTERRUPT_SESSION.of(session=session.label))
        stream_of(append, session, DEFAULT_AGENT).add(
            MessageCancelled,
            message=message,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        on_cancelled(append, session.id)
        append.seal()

    writer.write(work)


def again(writer: LedgerWriter, dead: InboxMessage, *, key: str | None, limits: QueueLimits) -> Admission:
    """Send a message once more, to the same session: a dead one, or one that waits in another ledger."""
    if dead.state != InboxState.DEAD and not dead.is_elsewhere:
        raise NotApplicable(f"message {dead.id} is {dead.state}", "only a dead message is sent again")
    message = NewMessage(
        role=MessageRole.USER,
        content=dead.content,
        source=None if dead.source is None else MessageSource(dead.source),
        context=dead.context,
        metadata=dead.metadata,
        files=dead.files,
    )
    new = NewAdmission(
        message=message,
        target=MessageTarget(session=dead.session_id),
        mode=QueueMode(dead.mode),
        priority=dead.priority,
        overrides=dead.overrides,
        route={"again": dead.id},
        source_event_id=dead.source_event_id,
        again=None if dead.is_elsewhere else dead.id,
        waits_elsewhere=dead.id if dead.is_elsewhere else None,
    )
    return admit(writer, new, key=key, limits=limits)


# --- What people ask of turns: to cut a running one short, to try a failed one again.


def interrupt(writer: LedgerWriter, session: str, reason: InterruptionReason) -> str:
    """Ask for the turn that a broker runs in a session, by its id, to be cut short; the turn's id. Raises NotApplicable
    where no broker has one open there."""

    def work(append: Append) -> str:
        row = append.view.session(session)
        append.access.ensure("turn:record", row, row.label)
        turn = cut_open_turn(append, row, reason)
        if turn is None:
            raise NotApplicable(f"no turn runs in session {row.label!r}", "there is nothing to interrupt")
        append.seal()
        return turn

    return writer.write(work)


def interrupt_answer(writer: LedgerWriter, message: str, reason: InterruptionReason) -> bool:
    """Ask for the turn that took a message to be cut short, by the message's id. False where that is not the open turn
    of its session: it is over, and what runs there now answers somebody else."""

    def work(append: Append) -> bool:
        row = append.sql.fetch_row(
            "SELECT i.turn, s.id FROM inbox i JOIN session s ON s.n = i.session WHERE i.message = ?", (message,)
        )
        if row is None:
            raise NotFound("message", message, Action.LIST_INBOX)
        turn, session_id = row
        session = append.view.session(session_id)
        append.access.ensure("turn:record", session, session.label)
        run = own_run(append.sql, session.n)
        if run is None or run[0] != turn:
            return False
        cut_open_turn(append, session, reason)
        append.seal()
        return True

    return writer.write(work)


def cut_open_turn(append: Append, session: SessionRow, reason: InterruptionReason) -> str | None:
    """Ask for the turn that a broker has open in a session to be cut short; None where none is open."""
    run = own_run(append.sql, session.n)
    if run is None:
        return None
    turn = append.view.turn(run[0])
    if turn.interrupted is None:
        events = TurnEvents(
            append, turn.id, actor=turn.persona, prev=turn.digest, messages=turn.messages, scope=turn.root
        )
        events.interruption(reason, ())
    return turn.id


def retry(
    writer: LedgerWriter,
    retried: TurnRetry,
    messages: Sequence[InboxMessage | Message],
    files: Mapping[str, Sequence[FileNote]],
    *,
    key: str | None,
    limits: QueueLimits,
) -> Admission:
    """Admit what a failed turn was asked once more, for a turn that is its child, or its sibling. It goes on in the
    session where it failed if nothing came after it and nothing waits there, else in a fork. `files` are those that
    messages carry which came through no inbox, by their ids."""
    if not isinstance(limits, QueueLimits):
        raise InvalidInput(f"limits are {quoted(limits)}", "give QueueLimits")
    outgoing = [_outgoing_message(message, retried, files.get(message.id, ())) for message in messages]
    command = keyed_command("retry_turn", key, [retried], writer.authority)
    ids = [writer.ulids.mint(MESSAGE_ROOM + 1) for _ in outgoing]
    for id, one in zip(ids, outgoing, strict=True):
        if large := weigh([one.message], ()).large:
            writer.put_large(large, scope_of(id))

    def work(append: Append) -> Admission:
        answer = run_once(append, command, partial(_admit_retry, append, retried, ids, outgoing, key, limits))
        append.seal()
        return admission_of(append, answer)

    return writer.write(work, sum(weigh([one.message], ()).size for one in outgoing))


def _outgoing_message(message: InboxMessage | Message, retried: TurnRetry, files: Sequence[FileNote]) -> NewAdmission:
    admitted = message if isinstance(message, InboxMessage) else None
    is_dead = admitted is not None and admitted.state == InboxState.DEAD
    return NewAdmission(
        message=NewMessage(
            role=MessageRole.USER,
            content=message.content,
            source=None if message.source is None else MessageSource(message.source),
            context=message.context,
            metadata=message.metadata,
            files=tuple(files) if admitted is None else admitted.files,
        ),
        target=MessageTarget(),
        priority=0 if admitted is None else admitted.priority,
        overrides=None if admitted is None else admitted.overrides,
        source_event_id=None if admitted is None else admitted.source_event_id,
        route={"retry": {"of": retried.of, "afresh": retried.afresh}},
        again=message.id if is_dead else None,
    )


def _admit_retry(
    append: Append,
    retried: TurnRetry,
    ids: Sequence[str],
    outgoing: Sequence[NewAdmission],
    key: str | None,
    limits: QueueLimits,
) -> CommandAnswer:
    turn = load_parent(append, retried.of)
    _ensure_failed(turn)
    _ensure_not_waiting(append, turn)
    session, is_fork = _session_for(append, turn, afresh=retried.afresh)
    own = None if turn.session is None else append.view.session_of_number(turn.session)
    may_resend = own is not None and append.access.may("turn:record", own)
    answer: CommandAnswer | None = None
    for id, one in zip(ids, outgoing, strict=True):
        if not may_resend:
            one = replace(one, again=None)
        answer = add_message(append, session, id, one, key=key, limits=limits, origin=FORKED if is_fork else THERE)
    if answer is None:
        raise NotApplicable(f"turn {turn.id} has no message of a user", "send a message to its session")
    return answer


def _ensure_failed(turn: TurnRow) -> None:
    if not turn.closed:
        raise NotApplicable(f"turn {turn.id} is still {turn.status}", "wait for its end, or interrupt it")
    if turn.status != "failed":
        raise NotApplicable(f"turn {turn.id} is {turn.status}, not failed", "fork at the turn before it to ask again")


def _ensure_not_waiting(append: Append, turn: TurnRow) -> None:
    condition, values = own_queue(append.sql, "i")
    row = append.sql.fetch_row(
        "SELECT i.message FROM inbox i JOIN inbox dead ON dead.message = i.again"
        f" WHERE dead.turn = ? AND i.state IN ('queued', 'taken') AND {condition} LIMIT 1",
        (turn.id, *values),
    )
    if row is not None:
        raise NotApplicable(f"turn {turn.id} is being retried already, by message {row[0]}", Action.LIST_INBOX)


def _session_for(append: Append, turn: TurnRow, *, afresh: bool) -> tuple[SessionRow, bool]:
    session = None if turn.session is None else append.view.session_of_number(turn.session)
    if session is not None and _is_next(append, session, turn):
        return session, False
    if not afresh:
        return fork_at(append, turn), True
    if turn.parent is not None:
        return fork_at(append, load_parent(append, turn.parent)), True
    label = f"retry-{append.ulids.mint().lower()}"
    return create_session(append, label, persona=turn.persona), True


def _is_next(append: Append, session: SessionRow, failed: TurnRow) -> bool:
    """Whether the session stands where this turn began, or at failed ones after that, and nobody comes before."""
    is_open = session.status == SessionStatus.ACTIVE and session.lifecycle != "completed"
    if not is_open or not append.access.may("turn:record", session) or session.head_events is not None:
        return False
    condition, values = own_queue(append.sql, "i")
    waiting = f"SELECT 1 FROM inbox i WHERE i.session = ? AND i.state IN ('queued', 'taken') AND {condition}"
    if append.sql.fetch_row(waiting, (session.n, *values)):
        return False
    turn: TurnRow | None = failed
    while turn is not None and turn.status == "failed":
        if turn.parent == session.head:
            return True
        turn = None if turn.parent is None else append.view.find_turn(turn.parent)
    return False
