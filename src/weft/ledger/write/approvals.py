"""Requests to people about tool calls, listed and answered once; and the approval policies that
decide whether to ask: proposed by anybody, activated, rejected and rolled back by people.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.clock import is_ulid_ending
from weft.kernel.contents import ROW_BYTES
from weft.kernel.enums import ApprovalState, GrantScope, PolicyState, ProgramKind, RoomHistory
from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import (
    ApprovalDenied,
    ApprovalGranted,
    EventRef,
    PolicyActivated,
    PolicyProposed,
    PolicyRejected,
    PolicyRolledBack,
    PolicyTests,
)
from weft.kernel.typed_names import name_in_address
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import json_of, load_program, load_turn, name_of, text_of
from weft.ledger.write.transaction import Append, EventStream, LedgerWriter
from weft.store.port import ReadTxn
from weft.store.replicas import OwnEvents, is_written_here
from weft.store.sql import Row, Sql

# --- Who takes part in the conversation that an agent's session belongs to.

NO_END = 2**62
"""Behind every event."""


def is_beside_agent(sql: Sql, session: int | None, node: str, *, since: int | None = None) -> bool:
    """Whether somebody takes part in the conversation whose agent answers in this session, by its number; a worker's
    session stands for that of its spawner. With `since`, an arrival number: whether they may also read what was there
    then."""
    if session is None:
        return False
    session = _spawner_session(sql, session)
    rows = sql.fetch_rows(
        "SELECT p.n, p.replica FROM session s JOIN participant a ON a.session = s.id"
        " JOIN participant p ON p.conversation = a.conversation AND p.node = ?"
        " JOIN conversation c ON c.id = a.conversation"
        " WHERE s.n = ? AND a.removed_n IS NULL AND p.removed_n IS NULL AND (p.n < ? OR c.history = ?)",
        (node, session, NO_END if since is None else since, RoomHistory.ALL.value),
    )
    own = OwnEvents(sql) if rows else None
    return own is not None and any(own.has(n, replica) for n, replica in rows)


def _spawner_session(sql: Sql, session: int) -> int:
    """The number of the session that spawned a worker's, or its spawner's, and so on; any other stands for itself."""
    query = (
        "SELECT p.n, w.n, w.replica FROM session s JOIN worker w ON w.session = s.id"
        " JOIN session p ON p.id = w.parent_session WHERE s.n = ?"
    )
    own = OwnEvents(sql)
    while (row := sql.fetch_row(query, (session,))) is not None and own.has(row[1], row[2]) and row[0] < session:
        session = int(row[0])
    return session


# --- What is told of decisions, requests to people and approval policies.


class Approval(Struct, frozen=True, kw_only=True, rename={"plan_digest": "bound"}):
    """A request that a person allows a tool call, and what became of it."""

    id: str
    n: int
    turn: str
    session: str | None
    agent: str
    call: str
    """The event that asks for the call."""
    tool: str
    arguments: Any = None
    plan_digest: str
    """The hash of exactly what would run."""
    shown: str | None
    """All that a person is shown of it; None where it was erased."""
    subjects: tuple[str, ...] | None = None
    """What the tool would be used on, as patterns are compared with it; None where that cannot be told."""
    rationale: str | None
    state: str
    is_used: bool
    """Whether what follows from the answer was recorded: a grant counts once."""
    requested_at: int
    expires_at: int | None
    answered_by: str | None
    answered_at: int | None
    scope: str | None
    reason: str | None


class CallDecision(Struct, frozen=True, kw_only=True, rename={"plan_digest": "bound"}):
    """What was decided about a tool call, and by what."""

    n: int
    turn: str
    call: str
    tool: str
    decision: str
    by: str
    plan_digest: str | None
    policy: str | None
    approval: str | None
    rationale: str | None
    decided_at: int


class Policy(Struct, frozen=True, kw_only=True):
    """An approval policy, as far as it has come. Without an agent it is for all of them."""

    id: str
    name: str
    state: str
    agent: str | None
    source: str | None
    """None where it was erased."""
    digest: str
    docstring: str | None
    notes: str | None
    tests_total: int | None
    tests_passed: int | None
    tests_failed: int | None
    is_own: bool
    """Whether it was proposed in this ledger; one that came from elsewhere can be read, and not activated."""
    proposed_by: str
    proposed_at: int
    decided_by: str | None
    decided_at: int | None
    reason: str | None


class NewPolicy(Struct, frozen=True, kw_only=True):
    """A policy to propose; `tests` says how its own tests ended."""

    name: str
    source: str
    docstring: str | None = None
    notes: str | None = None
    agent: str | None = None


# --- Who may decide: people, and the owner of the ledger.


def ensure_person(append: Append, right: str, what: str) -> str:
    """The id of the person who acts. Raises NotAllowed where anybody in the chain is no person."""
    for principal in append.acting_ids:
        row = load_program(append.sql, principal)
        if principal != DEFAULT_AGENT and (row is None or row.kind != ProgramKind.HUMAN or row.deleted):
            name = principal if row is None else row.name
            raise NotAllowed(right, [name], what, "a person must do it")
    return append.acting_ids[0]


def stream_of_person(append: Append, name: str, prev: str | None, person: str) -> EventStream:
    """The end of a stream whose next event a person is the actor of."""
    return EventStream(append, name, prev, person, UNSET, False)


# --- Approval policies: proposed by anybody, activated, rejected and rolled back by people.

POLICY_URI = "resource://approval-policy/policy.py"
"""Where an agent reads the policy that is in force for it."""
PROPOSE, ACTIVATE = "policy:propose", "policy:activate"
_POLICY_COLUMNS = (
    "y.id, y.n, y.state, y.agent, y.name, y.source, y.digest, y.docstring, y.notes, y.tests_total, y.tests_passed,"
    " y.tests_failed, y.replica, y.proposed_by, y.proposed_at, y.decided_by, y.decided_at, y.reason"
)
_POLICY_SELECT = (
    f"SELECT {_POLICY_COLUMNS}, a.name, p.name, d.name FROM policy y LEFT JOIN persona a ON a.id = y.agent"
    " LEFT JOIN persona p ON p.id = y.proposed_by LEFT JOIN persona d ON d.id = y.decided_by"
)


def digest_of_source(source: str) -> str:
    return sha256(source.encode()).hexdigest()


def listed_policies(txn: ReadTxn, states: Sequence[str] = ()) -> list[Policy]:
    """Policies in these states, or all; the oldest first."""
    where = f" WHERE y.state IN ({', '.join('?' * len(states))})" if states else ""
    rows = txn.sql.fetch_rows(f"{_POLICY_SELECT}{where} ORDER BY y.n", tuple(states))
    return [_to_policy(txn, row) for row in rows if _may_read_policy(txn, row[3])]


def _may_read_policy(txn: ReadTxn, agent: str | None) -> bool:
    """A policy for a private agent is shown to those who may read the agent."""
    row = None if agent is None else load_program(txn.sql, agent)
    return row is None or access_of(txn).may_read_program(row)


def active_policy(txn: ReadTxn, agent: str | None) -> Policy | None:
    """The policy in force for an agent, by its id, or the one for all agents."""
    condition = "y.agent IS NULL" if agent is None else "y.agent = ?"
    rows = txn.sql.fetch_rows(
        f"{_POLICY_SELECT} WHERE y.state = ? AND {condition} ORDER BY y.decided_n DESC",
        (PolicyState.ACTIVE.value, *(() if agent is None else (agent,))),
    )
    return next((policy for policy in (_to_policy(txn, row) for row in rows) if policy.is_own), None)


def load_policy(txn: ReadTxn, name: str) -> Policy:
    """By its id or the end of it, else the newest of its name."""
    text, rows = name_in_address(name.strip()), list[Row]()
    if is_ulid_ending(text):
        rows = txn.sql.fetch_rows(f"{_POLICY_SELECT} WHERE y.id LIKE ? ORDER BY y.n LIMIT 3", (f"%{text.upper()}",))
    rows = [row for row in rows if _may_read_policy(txn, row[3])]
    if len(rows) > 1:
        raise AmbiguousName(name, [row[0] for row in rows])
    policies = [_to_policy(txn, row) for row in rows]
    if not policies:
        policies = [policy for policy in reversed(listed_policies(txn)) if policy.name == text]
    if not policies:
        raise NotFound("policy", name, Action.LIST_POLICIES)
    return policies[0]


def propose(writer: LedgerWriter, proposal: NewPolicy, tests: PolicyTests | None) -> str:
    """Record a policy that somebody wants to be in force; its id."""
    if not proposal.source.strip():
        raise InvalidInput("the policy is empty", "give the source of a program")
    if len(proposal.source.encode()) > ROW_BYTES:
        raise InvalidInput(f"the policy is larger than {ROW_BYTES} bytes", "make it shorter")

    def work(append: Append) -> str:
        id = append.ulids.mint()
        agent = None if proposal.agent is None else _agent_id(append, proposal.agent)
        text = append.put_text
        append.ledger_stream().add(
            PolicyProposed,
            policy_ref=id,
            source=text(proposal.source, "source"),
            name=text(proposal.name, "name"),
            notes=UNSET if proposal.notes is None else text(proposal.notes, "notes"),
            agent=UNSET if agent is None else agent,
            digest=digest_of_source(proposal.source),
            docstring=UNSET if proposal.docstring is None else text(proposal.docstring, "docstring"),
            uri=text(POLICY_URI, "uri"),
            tests=UNSET if tests is None else tests,
        )
        append.seal()
        return id

    return writer.write(work)


def activate(writer: LedgerWriter, policy: str, digest: str, tests: PolicyTests, notes: str | None) -> None:
    """Put a proposed policy in force, for whose source of this digest all own tests passed."""
    if tests.failed or tests.passed != tests.total or not tests.total:
        raise NotApplicable(
            f"{tests.passed} of {tests.total} tests of the policy passed",
            "a policy is activated when all of its tests do",
        )

    def work(append: Append) -> None:
        stream, found = _person_stream(append, policy, digest, "activate")
        ensure_activatable(found)
        words = UNSET if notes is None else append.put_text(notes, "notes")
        stream.add(PolicyActivated, policy_ref=found.id, notes=words, digest=found.digest, tests=tests)
        append.seal()

    writer.write(work)


def ensure_activatable(policy: Policy) -> None:
    """Raises NotApplicable where a policy cannot be put in force: it is already, was rejected, or is another
    ledger's."""
    _ensure_own(policy)
    if policy.state not in (PolicyState.PROPOSAL, PolicyState.REPLACED):
        raise NotApplicable(f"policy {policy.name!r} is {policy.state}", Action.LIST_POLICIES)


def ensure_replaced(policy: Policy) -> None:
    """Raises NotApplicable where a policy cannot be rolled back to: it is in force, never was, or is another
    ledger's."""
    _ensure_own(policy)
    if policy.state == PolicyState.ACTIVE:
        raise NotApplicable(f"policy {policy.name!r} is in force", "name one that was replaced, or `default`")
    if policy.state != PolicyState.REPLACED:
        raise NotApplicable(f"policy {policy.name!r} is {policy.state}: it was never in force", Action.LIST_POLICIES)


def _ensure_own(policy: Policy) -> None:
    if not policy.is_own:
        raise NotApplicable(f"policy {policy.name!r} came from another ledger", "propose its source here to use it")


def reject(writer: LedgerWriter, policy: str, reason: str | None) -> None:
    def work(append: Append) -> None:
        stream, found = _person_stream(append, policy, None, "reject")
        if found.state != PolicyState.PROPOSAL:
            raise NotApplicable(f"policy {found.name!r} is {found.state}, no proposal", Action.LIST_POLICIES)
        stream.add(PolicyRejected, policy_ref=found.id, reason=_reason_content(append, reason))
        append.seal()

    writer.write(work)


def roll_back(writer: LedgerWriter, to: str, digest: str, reason: str | None) -> None:
    """Put the policy in force again that was before."""

    def work(append: Append) -> None:
        stream, earlier = _person_stream(append, to, digest, "roll back to")
        ensure_replaced(earlier)
        agent = None if earlier.agent is None else _agent_id(append, earlier.agent)
        present = active_policy(ReadTxn(append.sql, append.txn.facts), agent)
        if present is None:
            raise NotApplicable("no policy is in force", "activate one")
        stream.add(
            PolicyRolledBack,
            policy_ref=present.id,
            to=earlier.id,
            digest=earlier.digest,
            reason=_reason_content(append, reason),
        )
        append.seal()

    writer.write(work)


def _person_stream(append: Append, name: str, digest: str | None, verb: str) -> tuple[EventStream, Policy]:
    found = load_policy(ReadTxn(append.sql, append.txn.facts), name)
    person = ensure_person(append, ACTIVATE, f"{verb} the policy {found.name!r}")
    _ensure_own(found)
    if digest is not None and digest != found.digest:
        raise NotApplicable(f"policy {found.name!r} is not the source that was read", "read it again")
    end = append.ledger_stream()
    return stream_of_person(append, end.name, end.prev, person), found


def _reason_content(append: Append, text: str | None) -> Any:
    return UNSET if text is None else append.put_text(text, "reason")


def _agent_id(append: Append, name: str) -> str:
    row = append.sql.fetch_row(
        "SELECT id FROM program WHERE kind = ? AND deleted = 0 AND (name = ? OR id = ?)",
        (ProgramKind.AGENT.value, name, name),
    )
    if row is None:
        raise NotFound("agent", name, Action.LIST_PROGRAMS)
    append.access.ensure_agent(row[0], name)
    return str(row[0])


def _to_policy(txn: ReadTxn, row: Sequence[Any]) -> Policy:
    (id, n, state, agent, name, source, digest, docstring, notes, total, passed, failed) = row[:12]
    (replica, proposed_by, proposed_at, decided_by, decided_at, reason, agent_name, proposer, decider) = row[12:]
    text = text_of(txn, source)
    is_whole = text is not None and digest_of_source(text) == digest
    return Policy(
        id=id,
        name=text_of(txn, name) or id,
        state=state,
        agent=agent_name or agent,
        source=text if is_whole else None,
        digest=digest or "",
        docstring=text_of(txn, docstring),
        notes=text_of(txn, notes),
        tests_total=total,
        tests_passed=passed,
        tests_failed=failed,
        is_own=is_written_here(txn.sql, n, replica),
        proposed_by=proposer or proposed_by,
        proposed_at=proposed_at,
        decided_by=decider or decided_by,
        decided_at=decided_at,
        reason=text_of(txn, reason),
    )


# --- Requests to people about tool calls: listed, and answered once.

SHORTEST_ID = 6
APPROVE = "approve"
_REQUEST_COLUMNS = (
    "a.request, a.n, a.turn, s.label, p.name, t.persona, a.call, c.tool, c.params, a.bound, a.shown, a.rationale,"
    " a.state, a.used, a.requested_at, a.expires_at, a.answered_by, a.answered_at, a.scope, a.reason, a.replica,"
    " q.name, a.subjects"
)
_REQUEST_SELECT = (
    f"SELECT {_REQUEST_COLUMNS} FROM approval a JOIN turn t ON t.id = a.turn LEFT JOIN session s ON s.n = a.session"
    " LEFT JOIN persona p ON p.id = t.persona LEFT JOIN persona q ON q.id = a.answered_by"
    " LEFT JOIN tool_call c ON c.turn = t.n AND c.event = a.call"
)
_DECISIONS = (
    "SELECT d.n, d.turn, d.call, c.tool, d.decision, d.source, d.bound, d.policy, d.approval, d.rationale, d.decided_at"
    " FROM tool_decision d JOIN turn t ON t.id = d.turn"
    " LEFT JOIN tool_call c ON c.turn = t.n AND c.event = d.call WHERE d.turn = ? ORDER BY d.n"
)


def listed_approvals(
    txn: ReadTxn, states: Sequence[str], *, session: int | None = None, limit: int = 100, after: int = 0
) -> list[Approval]:
    """The first requests in these states that the reader may see behind an arrival number, the oldest first."""
    marks = ", ".join("?" * len(states))
    where = f"a.state IN ({marks}) AND a.n > ?" + ("" if session is None else " AND a.session = ?")
    query = f"{_REQUEST_SELECT} WHERE {where} ORDER BY a.n LIMIT ?"
    approvals: list[Approval] = []
    while len(approvals) < limit:
        rows = txn.sql.fetch_rows(query, (*states, after, *(() if session is None else (session,)), limit))
        readable = (_to_approval(txn, row) for row in rows if _may_read_request(txn, row))
        approvals += islice(readable, limit - len(approvals))
        if len(rows) < limit:
            break
        after = rows[-1][1]
    return approvals


def load_approval(txn: ReadTxn, name: str) -> Approval:
    """A request by its id, or the beginning of it."""
    text = name.strip().lower()
    rows = []
    if len(text) >= SHORTEST_ID and all(letter in "0123456789abcdef" for letter in text):
        rows = txn.sql.fetch_rows(f"{_REQUEST_SELECT} WHERE a.request LIKE ? ORDER BY a.n LIMIT 3", (f"{text}%",))
    approvals = [_to_approval(txn, row) for row in rows if _may_read_request(txn, row)]
    if not approvals:
        raise NotFound("approval", name, Action.LIST_APPROVALS)
    if len(approvals) > 1:
        raise AmbiguousName(name, [approval.id for approval in approvals])
    return approvals[0]


def decisions_of(txn: ReadTxn, turn: str) -> list[CallDecision]:
    """What was decided about the calls of a turn, in order."""
    rows = txn.sql.fetch_rows(_DECISIONS, (turn,))
    return [
        CallDecision(
            n=n,
            turn=of,
            call=bytes(call).hex(),
            tool=name_of(txn, tool) or "",
            decision=decision,
            by=source,
            plan_digest=plan_digest,
            policy=policy,
            approval=approval,
            rationale=text_of(txn, rationale),
            decided_at=at,
        )
        for n, of, call, tool, decision, source, plan_digest, policy, approval, rationale, at in rows
    ]


def session_grants(txn: ReadTxn, session: str) -> list[Approval]:
    """What people allowed for the rest of a session, by its id."""
    rows = txn.sql.fetch_rows(
        f"{_REQUEST_SELECT} WHERE s.id = ? AND a.scope = ? AND a.state = ?",
        (session, GrantScope.SESSION.value, ApprovalState.GRANTED.value),
    )
    return [_to_approval(txn, row) for row in rows if is_written_here(txn.sql, row[1], row[20])]


def answer_approval(
    writer: LedgerWriter,
    name: str,
    *,
    is_granted: bool,
    plan_digest: str | None = None,
    scope: GrantScope = GrantScope.ONCE,
    abort: bool = False,
    reason: str | None = None,
) -> str:
    """Record a person's answer; the id of the request."""

    def work(append: Append) -> str:
        approval = load_approval(ReadTxn(append.sql, append.txn.facts), name)
        turn = append.view.turn(approval.turn)
        what = f"answer for the call of {approval.tool!r}"
        person = ensure_person(append, APPROVE, what)
        if not append.access.permits(APPROVE):
            raise append.refusal(APPROVE, what)
        _ensure_open(append, approval, plan_digest)
        stream = stream_of_person(append, f"run:{turn.id}", turn.digest, person)
        words = UNSET if reason is None else append.contents_of(turn.root).put_text(reason, "reason")
        request = EventRef(approval.id)
        if is_granted:
            stream.add(ApprovalGranted, request=request, bound=approval.plan_digest, reason=words, scope=scope)
        else:
            stream.add(ApprovalDenied, request=request, abort=abort, reason=words)
        append.seal()
        return approval.id

    return writer.write(work)


def _ensure_open(append: Append, approval: Approval, plan_digest: str | None) -> None:
    """Late, doubled and foreign answers are refused, and so is one that means another call than the one that waits."""
    short = approval.id[:12]
    if approval.state != ApprovalState.OPEN:
        raise NotApplicable(f"approval {short} is {approval.state} already", Action.LIST_APPROVALS)
    if approval.expires_at is not None and append.now_ms >= approval.expires_at:
        raise NotApplicable(f"approval {short} has expired", Action.LIST_APPROVALS)
    if plan_digest is not None and plan_digest != approval.plan_digest:
        raise NotApplicable(f"approval {short} is for another call than the one that was shown", "look at it again")
    row = append.sql.fetch_row("SELECT n, replica FROM approval WHERE request = ?", (approval.id,))
    if row is None or not is_written_here(append.sql, row[0], row[1]):
        raise NotApplicable(f"approval {short} was asked for in another ledger", "answer it there")


def _may_read_request(txn: ReadTxn, request: Sequence[Any]) -> bool:
    """Whoever may read the turn; and in a conversation everybody who takes part beside the agent that asks. What was
    asked before they came they read while it is open, or where they answered it themselves."""
    turn, access = load_turn(txn.sql, request[2]), access_of(txn)
    if turn is None or access.may_read_turn(turn):
        return turn is not None
    is_open, answered_by = request[12] == ApprovalState.OPEN, request[16]
    return bool(access.ids) and all(
        is_beside_agent(txn.sql, turn.session, id, since=None if is_open or id == answered_by else request[1])
        for id in access.ids
    )


def _to_approval(txn: ReadTxn, row: Sequence[Any]) -> Approval:
    (request, n, turn, label, agent, persona, call, tool, params, plan_digest, shown, rationale) = row[:12]
    (state, used, at, expires, by, answered_at, scope, reason, _, answered_by, subjects) = row[12:]
    listed = json_of(txn, subjects)
    return Approval(
        id=request,
        n=n,
        turn=turn,
        session=label,
        agent=agent or persona,
        call=bytes(call).hex(),
        tool=name_of(txn, tool) or "",
        arguments=json_of(txn, params),
        plan_digest=plan_digest,
        shown=text_of(txn, shown),
        rationale=text_of(txn, rationale),
        subjects=tuple(map(str, listed)) if isinstance(listed, list) else None,
        state=state,
        is_used=bool(used),
        requested_at=at,
        expires_at=expires,
        answered_by=answered_by or by,
        answered_at=answered_at,
        scope=scope,
        reason=text_of(txn, reason),
    )
