"""The inbox: messages admitted, listed, cancelled, sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.enums import InboxState, InterruptionReason, MessageRole, QueueMode
from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import (
    as_messages,
    checked_count,
    checked_label,
    checked_member,
    checked_members,
    checked_number,
    checked_text,
)
from weft.ledger.model import Message, MessagesInput, NewMessage
from weft.ledger.read.access import Access, access_of
from weft.ledger.read.listing import load_files
from weft.ledger.read.revisions import require
from weft.ledger.read.turns import placed_messages
from weft.ledger.runs.admission import MessageTarget, NewAdmission, admit, again, cancel
from weft.ledger.runs.inbox import listed_messages, load_message, taken_messages
from weft.ledger.runs.model import DEFAULT_LIMITS, Admission, InboxMessage, QueueLimits, TurnRetry
from weft.ledger.runs.turn_commands import interrupt, retry
from weft.ledger.runs.worker_answers import notify_spawner
from weft.ledger.views.rows import load_session, load_turn
from weft.ledger.write.append import requires
from weft.store.port import ReadTxn

WAITING = (InboxState.QUEUED.value, InboxState.TAKEN.value)


class Inbox(LedgerPart):
    """`ledger.inbox`: messages that wait for a turn, and what became of them."""

    @requires("turn:record")
    def admit(
        self,
        message: MessagesInput,
        *,
        session: str | None = None,
        turn: str | None = None,
        persona: str | None = None,
        mode: str = "followup",
        priority: int = 0,
        overrides: Any = None,
        route: Any = None,
        source_event_id: str | None = None,
        key: str | None = None,
        limits: QueueLimits = DEFAULT_LIMITS,
    ) -> Admission:
        """Write a message to an inbox, durably: that of a session, made if there is none; of the session whose head a
        turn is, else of a new one that begins there; or of an agent, where it works or in its main session.

        `overrides` say how the model is asked for this message. With `key`, a retry key, it is admitted once.
        """
        messages = as_messages(message, MessageRole.USER, "message")
        if len(messages) != 1:
            raise InvalidInput(f"message is a list of {len(messages)}", "admit one message at a time")
        target = MessageTarget(
            session=None if session is None else checked_label(session, "session"),
            turn=None if turn is None else self._ledger.resolve(checked_text(turn, "turn")),
            persona=None if persona is None else checked_text(persona, "persona"),
        )
        outgoing = NewAdmission(
            message=_plain_message(messages[0]),
            target=target,
            mode=checked_member(QueueMode, mode, "mode"),
            priority=checked_number(priority, "priority"),
            overrides=overrides,
            route=route,
            source_event_id=source_event_id,
        )
        return admit(self._writer, outgoing, key=key, limits=limits)

    def get(self, message: str) -> InboxMessage:
        with self._store.read() as txn:
            found = load_message(txn, checked_text(message, "message"))
            session = load_session(txn.sql, found.session_id)
            if session is None or not access_of(txn).may_read(session):
                raise NotFound("message", message, Action.LIST_INBOX)
            return found

    def list(
        self,
        *,
        session: str | None = None,
        states: Sequence[str] = WAITING,
        limit: int = 100,
        after: int = 0,
    ) -> list[InboxMessage]:
        """Messages in these states, the oldest first; `after` is the arrival number of the last one of a page."""
        wanted = [state.value for state in checked_members(InboxState, states, "state")]
        limit, after = checked_count(limit, "limit"), checked_number(after, "after")
        with self._store.read() as txn:
            access = access_of(txn)
            row = None if session is None else require(txn, session)
            messages = listed_messages(txn, wanted, None if row is None else row.n, limit, after)
            return [one for one in messages if access.is_unlimited or _is_readable(txn, access, one)]

    @requires("turn:record")
    def cancel(self, message: str, *, reason: str | None = None) -> None:
        """Take a message out of its inbox that no turn has taken yet."""
        cancel(self._writer, checked_text(message, "message"), reason, notify_spawner)

    @requires("turn:record")
    def send_again(self, message: str, *, key: str | None = None, limits: QueueLimits = DEFAULT_LIMITS) -> Admission:
        """Send a dead message once more, to the same session."""
        return again(self._writer, self.get(message), key=key, limits=limits)

    @requires("turn:record")
    def interrupt(self, session: str, *, reason: str = "canceled") -> str:
        """Ask for the turn that a broker runs in a session, in any process, to be cut short; the turn's id. It ends
        with what it has, as soon as its broker hears of it. Raises NotApplicable where none runs there."""
        why = checked_member(InterruptionReason, reason, "reason")
        return interrupt(self._writer, self._ledger.session(session).id, why)

    @requires("turn:record")
    def retry(
        self,
        turn: str,
        *,
        afresh: bool = False,
        key: str | None = None,
        limits: QueueLimits = DEFAULT_LIMITS,
    ) -> Admission:
        """Have a failed turn tried again: by a child of it, which sees its results, or `afresh` by one beside it.
        What it was asked is admitted once more: to its session, or to a fork where something came after it."""
        if not isinstance(afresh, bool):
            raise InvalidInput(f"afresh is {quoted(afresh)}", "give True or False")
        failed = self._ledger.resolve(checked_text(turn, "turn"))
        with self._store.read() as txn:
            asked = taken_messages(txn, failed) or _user_messages(txn, failed)
            files = load_files(txn, [message.id for message in asked])
        return retry(self._writer, TurnRetry(failed, afresh), asked, files, key=key, limits=limits)


def _user_messages(txn: ReadTxn, turn: str) -> Sequence[Message]:
    row = load_turn(txn.sql, turn)
    placed = () if row is None else placed_messages(txn, row.segment, row.depth, None)
    return [one.message for one in placed if one.message.role == "user"]


def _is_readable(txn: ReadTxn, access: Access, message: InboxMessage) -> bool:
    session = load_session(txn.sql, message.session_id)
    return session is not None and access.may_read(session)


def _plain_message(message: NewMessage) -> NewMessage:
    """Without the fields that a provider's dialect may have brought along."""
    return NewMessage(
        role=message.role,
        content=message.content,
        source=message.source,
        context=message.context,
        metadata=message.metadata,
        files=message.files,
    )
