"""What people ask of turns: to cut a running one short, to try a failed one again.

Asking to stop is an `interruption` without open calls, in the stream of the turn itself. It is the only place that
every broker reads that can have the turn: the one that runs it hears of new events, and one that goes on with it after
a crash folds the event with the others. It needs no lease, since it neither ends the turn nor says how a call ended:
whoever holds the session does that. A message to the inbox would be answered by a turn of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from weft.kernel.advice import Action
from weft.kernel.enums import InboxState, InterruptionReason, MessageRole, MessageSource, SessionStatus
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.model import FileNote, Message, NewMessage
from weft.ledger.runs.admission import MessageTarget, NewAdmission, add_message, admission_of, fork_at, scope_of
from weft.ledger.runs.inbox import own_queue, own_run
from weft.ledger.runs.model import Admission, InboxMessage, QueueLimits, TurnRetry
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.write.append import MESSAGE_ROOM, Append, LedgerWriter
from weft.ledger.write.commands import Answer, keyed_command, once
from weft.ledger.write.new_turn import weigh
from weft.ledger.write.placement import create_session, load_parent
from weft.ledger.write.turn_events import TurnEvents


def interrupt(writer: LedgerWriter, session: str, reason: InterruptionReason) -> str:
    """Ask for the turn that a broker runs in a session, by its id, to be cut short; the turn's id. Raises NotApplicable
    where no broker has one open there."""

    def work(append: Append) -> str:
        row = append.view.session(session)
        append.access.ensure("turn:record", row, row.label)
        turn = cut_open_turn(append, row, reason)
        if turn is None:
            raise NotApplicable(f"no turn runs in session {row.label!r}", Action.LIST_INBOX)
        append.seal()
        return turn

    return writer.write(work)


def interrupt_answer(writer: LedgerWriter, message: str, reason: InterruptionReason) -> bool:
    """Ask for the turn that took a message to be cut short, by the message's id. False where that is not the open turn
    of its session: it is over, and what runs there now answers somebody else."""

    def work(append: Append) -> bool:
        row = append.sql.one(
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
    outgoing = [_outgoing(message, retried, files.get(message.id, ())) for message in messages]
    command = keyed_command("retry_turn", key, [retried], writer.authority)
    ids = [writer.ulids.mint(MESSAGE_ROOM + 1) for _ in outgoing]
    for id, one in zip(ids, outgoing, strict=True):
        if large := weigh([one.message], ()).large:
            writer.put_large(large, scope_of(id))

    def work(append: Append) -> Admission:
        answer = once(append, command, partial(_retried, append, retried, ids, outgoing, key, limits))
        append.seal()
        return admission_of(append, answer)

    return writer.write(work, sum(weigh([one.message], ()).size for one in outgoing))


def _outgoing(message: InboxMessage | Message, retried: TurnRetry, files: Sequence[FileNote]) -> NewAdmission:
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


def _retried(
    append: Append,
    retried: TurnRetry,
    ids: Sequence[str],
    outgoing: Sequence[NewAdmission],
    key: str | None,
    limits: QueueLimits,
) -> Answer:
    turn = load_parent(append, retried.of)
    _ensure_failed(turn)
    _ensure_not_waiting(append, turn)
    session, is_fork = _session_for(append, turn, afresh=retried.afresh)
    own = None if turn.session is None else append.view.session_of_number(turn.session)
    may_resend = own is not None and append.access.may("turn:record", own)
    answer: Answer | None = None
    for id, one in zip(ids, outgoing, strict=True):
        if not may_resend:
            one = replace(one, again=None)
        answer = add_message(append, session, id, one, key=key, limits=limits, is_fork=is_fork)
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
    row = append.sql.one(
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
    if append.sql.one(waiting, (session.n, *values)):
        return False
    turn: TurnRow | None = failed
    while turn is not None and turn.status == "failed":
        if turn.parent == session.head:
            return True
        turn = None if turn.parent is None else append.view.find_turn(turn.parent)
    return False
