"""The groups `inbox`, `approvals` and `policies`: messages admitted, listed, cancelled, sent
again; decisions about tool calls, requests to people with their answers, and the policies that
decide whether to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from weft.kernel.enums import (
    ApprovalState,
    GrantScope,
    InboxState,
    InterruptionReason,
    MessageRole,
    PolicyState,
    QueueMode,
)
from weft.kernel.errors import Action, InvalidInput, NotFound, quoted
from weft.kernel.events import PolicyTests
from weft.kernel.typed_names import name_in_address
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import (
    agent_named,
    as_messages,
    checked_count,
    checked_label,
    checked_member,
    checked_members,
    checked_number,
    checked_text,
)
from weft.ledger.broker.admission import MessageTarget, NewAdmission, admit, again, cancel, interrupt, retry
from weft.ledger.broker.inbox import (
    DEFAULT_LIMITS,
    Admission,
    InboxMessage,
    QueueLimits,
    TurnRetry,
    listed_messages,
    load_message,
    taken_messages,
)
from weft.ledger.broker.workers import notify_spawner
from weft.ledger.model import Message, MessagesInput, NewMessage
from weft.ledger.read.access import Access, access_of
from weft.ledger.read.revisions import require
from weft.ledger.read.session_list import load_files
from weft.ledger.read.turns import placed_messages
from weft.ledger.views.rows import load_session, load_turn
from weft.ledger.write import approvals
from weft.ledger.write.approvals import (
    Approval,
    CallDecision,
    NewPolicy,
    Policy,
    answer_approval,
    decisions_of,
    listed_approvals,
    load_approval,
)
from weft.ledger.write.transaction import requires
from weft.store.port import ReadTxn

# --- The inbox: messages admitted, listed, cancelled, sent again.

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
        agent: str | None = None,
        mode: str = "followup",
        priority: int = 0,
        overrides: Any = None,
        route: Any = None,
        source_event_id: str | None = None,
        key: str | None = None,
        limits: QueueLimits = DEFAULT_LIMITS,
        persona: str | None = None,
    ) -> Admission:
        """Write a message to an inbox, durably: that of a session, made if there is none; of the session whose head a
        turn is, else of a new one that begins there; or of an agent, where it works or in its main session.

        `overrides` say how the model is asked for this message. With `key`, a retry key, it is admitted once.
        `persona` is an earlier spelling of `agent`.
        """
        persona = agent_named(agent, persona)
        messages = as_messages(message, MessageRole.USER, "message")
        if len(messages) != 1:
            raise InvalidInput(f"message is a list of {len(messages)}", "admit one message at a time")
        target = MessageTarget(
            session=None
            if session is None
            else checked_label(name_in_address(checked_text(session, "session")), "session"),
            turn=None if turn is None else self._ledger.resolve(checked_text(turn, "turn")),
            persona=None if persona is None else checked_text(persona, "agent"),
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
            messages: list[InboxMessage] = []
            while len(messages) < limit:  # a page on which nothing may be read is not the last one
                page = listed_messages(txn, wanted, None if row is None else row.n, limit, after)
                readable = (one for one in page if access.is_unlimited or _is_readable(txn, access, one))
                messages += islice(readable, limit - len(messages))
                if len(page) < limit:
                    break
                after = page[-1].n
            return messages

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


# --- Decisions about tool calls: requests to people and their answers, and the approval policies.

OPEN = (ApprovalState.OPEN.value,)


class Approvals(LedgerPart):
    """`ledger.approvals`: tool calls that wait for a person, and what people answered."""

    def get(self, approval: str) -> Approval:
        """A request by its id, or the beginning of it."""
        with self._store.read() as txn:
            return load_approval(txn, checked_text(approval, "approval"))

    def decisions(self, turn: str) -> list[CallDecision]:
        """What was decided about the tool calls of a turn, in order."""
        id = self._ledger.resolve(checked_text(turn, "turn"))
        with self._store.read() as txn:
            return decisions_of(txn, id)

    def list(
        self, *, session: str | None = None, states: Sequence[str] = OPEN, limit: int = 100, after: int = 0
    ) -> list[Approval]:
        """Requests in these states, the oldest first; `after` is the arrival number of the last one of a page."""
        values = [state.value for state in checked_members(ApprovalState, states, "state")]
        count, position = checked_count(limit, "limit"), checked_count(after, "after")
        with self._store.read() as txn:
            row = None if session is None else require(txn, session)
            number = None if row is None else row.n
            return listed_approvals(txn, values, session=number, limit=count, after=position)

    @requires("approval:answer")
    def grant(
        self, approval: str, *, plan_digest: str | None = None, scope: str = "once", reason: str | None = None
    ) -> Approval:
        """Allow the call, once. `plan_digest` is the hash that was shown: another one is refused. With the scope
        `session` the same use of the tool needs no answer for the rest of the session. Only people answer."""
        self._ledger.trust.ensure("take an approval")
        id = answer_approval(
            self._writer,
            self.get(approval).id,
            is_granted=True,
            plan_digest=None if plan_digest is None else checked_text(plan_digest, "plan_digest"),
            scope=checked_member(GrantScope, scope, "scope"),
            reason=None if reason is None else checked_text(reason, "reason"),
        )
        return self.get(id)

    @requires("approval:answer")
    def deny(self, approval: str, *, abort: bool = False, reason: str | None = None) -> Approval:
        """Refuse the call. The model is told so and goes on; with `abort` its turn ends. Only people answer."""
        if not isinstance(abort, bool):
            raise InvalidInput(f"abort is {quoted(abort)}", "give True or False")
        self._ledger.trust.ensure("take an answer")
        id = answer_approval(
            self._writer,
            self.get(approval).id,
            is_granted=False,
            abort=abort,
            reason=None if reason is None else checked_text(reason, "reason"),
        )
        return self.get(id)


class Policies(LedgerPart):
    """`ledger.policies`: the programs that decide about tool calls."""

    def list(self, *, states: Sequence[str] = ()) -> list[Policy]:
        """Policies in these states, or all; the oldest first."""
        values = [state.value for state in checked_members(PolicyState, states, "state")]
        with self._store.read() as txn:
            return approvals.listed_policies(txn, values)

    def get(self, policy: str) -> Policy:
        """A policy by its id or the end of it, else the newest of its name."""
        with self._store.read() as txn:
            return approvals.load_policy(txn, checked_text(policy, "policy"))

    def active(self, agent: str | None = None) -> Policy | None:
        """The policy in force for an agent, by its id; without an agent the one for all of them."""
        with self._store.read() as txn:
            return approvals.active_policy(txn, None if agent is None else checked_text(agent, "agent"))

    @requires("policy:propose")
    def propose(
        self,
        name: str,
        source: str,
        *,
        agent: str | None = None,
        docstring: str | None = None,
        notes: str | None = None,
        tests: PolicyTests | None = None,
    ) -> Policy:
        """Propose a policy, for one agent or for all; `tests` says how its own tests ended."""
        proposal = NewPolicy(
            name=checked_label(name, "name"),
            source=checked_text(source, "source"),
            docstring=docstring,
            notes=notes,
            agent=None if agent is None else checked_text(agent, "agent"),
        )
        return self.get(approvals.propose(self._writer, proposal, _checked_tests(tests)))

    @requires("policy:activate", whole=True)
    def activate(self, policy: str, *, digest: str, tests: PolicyTests, notes: str | None = None) -> Policy:
        """Put a policy in force in place of the one before. `digest` is that of the source that was read; `tests` must
        have passed. Only people do that."""
        self._ledger.trust.ensure("activate a policy")
        counts = _checked_tests(tests)
        if counts is None:
            raise InvalidInput("tests are missing", "run the policy's own tests first")
        name = checked_text(policy, "policy")
        approvals.activate(self._writer, name, checked_text(digest, "digest"), counts, notes)
        return self.get(name)

    @requires("policy:activate", whole=True)
    def reject(self, policy: str, *, reason: str | None = None) -> Policy:
        """Refuse a proposed policy. Only people do that."""
        name = checked_text(policy, "policy")
        approvals.reject(self._writer, name, reason)
        return self.get(name)

    @requires("policy:activate", whole=True)
    def roll_back(self, policy: str, *, digest: str, reason: str | None = None) -> Policy:
        """Put a policy in force again that was replaced. Only people do that."""
        self._ledger.trust.ensure("activate a policy")
        name = checked_text(policy, "policy")
        approvals.roll_back(self._writer, name, checked_text(digest, "digest"), reason)
        return self.get(name)


def _checked_tests(tests: PolicyTests | None) -> PolicyTests | None:
    if tests is not None and not isinstance(tests, PolicyTests):
        raise InvalidInput(f"tests are {quoted(tests)}", "give PolicyTests")
    return tests
