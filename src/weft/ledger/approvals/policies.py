"""Approval policies: proposed by anybody, activated, rejected and rolled back by people.

What a policy is activated with is the digest of the source that the person read: another source under the same id
cannot come to be in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.approval_events import PolicyActivated, PolicyProposed, PolicyRejected, PolicyRolledBack
from weft.kernel.clock import is_ulid_ending
from weft.kernel.contents import ROW_BYTES
from weft.kernel.enums import PolicyState, ProgramKind
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound
from weft.kernel.fields import PolicyTests
from weft.ledger.approvals.model import NewPolicy, Policy
from weft.ledger.approvals.people import ensure_person, stream_of_person
from weft.ledger.read.access import access_of
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.values import text_of
from weft.ledger.write.append import Append, EventStream, LedgerWriter
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn
from weft.store.sql import Row

POLICY_URI = "resource://approval-policy/policy.py"
"""Where an agent reads the policy that is in force for it."""
PROPOSE, ACTIVATE = "policy:propose", "policy:activate"
_COLUMNS = (
    "y.id, y.n, y.state, y.agent, y.name, y.source, y.digest, y.docstring, y.notes, y.tests_total, y.tests_passed,"
    " y.tests_failed, y.replica, y.proposed_by, y.proposed_at, y.decided_by, y.decided_at, y.reason"
)
_SELECT = (
    f"SELECT {_COLUMNS}, a.name, p.name, d.name FROM policy y LEFT JOIN persona a ON a.id = y.agent"
    " LEFT JOIN persona p ON p.id = y.proposed_by LEFT JOIN persona d ON d.id = y.decided_by"
)


def digest_of_source(source: str) -> str:
    return sha256(source.encode()).hexdigest()


def listed_policies(txn: ReadTxn, states: Sequence[str] = ()) -> list[Policy]:
    """Policies in these states, or all; the oldest first."""
    where = f" WHERE y.state IN ({', '.join('?' * len(states))})" if states else ""
    rows = txn.sql.all(f"{_SELECT}{where} ORDER BY y.n", tuple(states))
    return [_to_policy(txn, row) for row in rows if _may_read(txn, row[3])]


def _may_read(txn: ReadTxn, agent: str | None) -> bool:
    """A policy for a private agent is shown to those who may read the agent."""
    row = None if agent is None else load_program(txn.sql, agent)
    return row is None or access_of(txn).may_read_program(row)


def active_policy(txn: ReadTxn, agent: str | None) -> Policy | None:
    """The policy in force for an agent, by its id, or the one for all agents."""
    condition = "y.agent IS NULL" if agent is None else "y.agent = ?"
    rows = txn.sql.all(
        f"{_SELECT} WHERE y.state = ? AND {condition} ORDER BY y.decided_n DESC",
        (PolicyState.ACTIVE.value, *(() if agent is None else (agent,))),
    )
    return next((policy for policy in (_to_policy(txn, row) for row in rows) if policy.is_own), None)


def load_policy(txn: ReadTxn, name: str) -> Policy:
    """By its id or the end of it, else the newest of its name."""
    text, rows = name.strip(), list[Row]()
    if is_ulid_ending(text):
        rows = txn.sql.all(f"{_SELECT} WHERE y.id LIKE ? ORDER BY y.n LIMIT 3", (f"%{text.upper()}",))
    rows = [row for row in rows if _may_read(txn, row[3])]
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
        stream.add(PolicyRejected, policy_ref=found.id, reason=_words(append, reason))
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
            reason=_words(append, reason),
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


def _words(append: Append, text: str | None) -> Any:
    return UNSET if text is None else append.put_text(text, "reason")


def _agent_id(append: Append, name: str) -> str:
    row = append.sql.one(
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
