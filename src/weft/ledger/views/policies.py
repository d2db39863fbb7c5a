"""What events mean for approval policies.

Of one agent, and of all agents together, one policy is active at a time. Only what this ledger decided counts here:
a policy that was activated elsewhere stays a proposal.
"""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel import approval_events as approvals
from weft.kernel.enums import PolicyState
from weft.kernel.events import Event
from weft.kernel.fields import PolicyTests
from weft.ledger.views.projector import OTHERS, Moment, Projector, handles, plain

ACTIVE, PROPOSAL, REJECTED = PolicyState.ACTIVE.value, PolicyState.PROPOSAL.value, PolicyState.REJECTED.value
REPLACED = PolicyState.REPLACED.value


@handles(approvals.PolicyProposed, OTHERS)
def _policy_proposed(view: Projector, moment: Moment, event: approvals.PolicyProposed) -> None:
    tests = None if event.tests is UNSET else event.tests
    view.sql.run(
        "INSERT INTO policy(id, n, state, agent, name, source, digest, notes, docstring, tests_total, tests_passed,"
        " tests_failed, replica, proposed_by, proposed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        (
            event.policy_ref,
            moment.n,
            PROPOSAL,
            plain(event.agent),
            view.number(event.name),
            view.contents.number(event.source),
            plain(event.digest),
            view.number(event.notes),
            view.number(event.docstring),
            *_counts(tests),
            plain(event.replica),
            event.actor,
            moment.when,
        ),
    )


def _counts(tests: PolicyTests | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tests is None else (tests.total, tests.passed, tests.failed)


@handles(approvals.PolicyRejected, OTHERS)
def _policy_rejected(view: Projector, moment: Moment, event: approvals.PolicyRejected) -> None:
    if _is_own(view, event, event.policy_ref):
        _decide(view, moment, event, event.policy_ref, REJECTED, view.number(event.reason))


@handles(approvals.PolicyActivated, OTHERS)
def _policy_activated(view: Projector, moment: Moment, event: approvals.PolicyActivated) -> None:
    if not _is_own(view, event, event.policy_ref, event.digest):
        return
    _replace(view, event.policy_ref)
    _decide(view, moment, event, event.policy_ref, ACTIVE, view.number(event.notes))
    if event.tests is not UNSET:
        view.sql.run(
            "UPDATE policy SET tests_total = ?, tests_passed = ?, tests_failed = ? WHERE id = ?",
            (*_counts(event.tests), event.policy_ref),
        )


@handles(approvals.PolicyRolledBack, OTHERS)
def _policy_rolled_back(view: Projector, moment: Moment, event: approvals.PolicyRolledBack) -> None:
    if not _is_own(view, event, event.to, event.digest):
        return
    _replace(view, event.to)
    _decide(view, moment, event, event.to, ACTIVE, view.number(event.reason))


def _is_own(view: Projector, event: Event, policy: str, digest: object = UNSET) -> bool:
    """Whether the replica that proposed it decides, and means the source that was proposed."""
    row = view.sql.one("SELECT replica, digest FROM policy WHERE id = ?", (policy,))
    return row is not None and row[0] == plain(event.replica) and (digest is UNSET or digest == row[1])


def _replace(view: Projector, policy: str) -> None:
    """The one of the same ledger that was active for the same agent, or for all, is not any longer."""
    view.sql.run(
        "UPDATE policy SET state = ? WHERE state = ? AND EXISTS (SELECT 1 FROM policy other WHERE other.id = ?"
        " AND coalesce(other.agent, '') = coalesce(policy.agent, '') AND other.replica = policy.replica)",
        (REPLACED, ACTIVE, policy),
    )


def _decide(view: Projector, moment: Moment, event: Event, policy: str, state: str, reason: int | None) -> None:
    view.sql.run(
        "UPDATE policy SET state = ?, decided_by = ?, decided_at = ?, decided_n = ?, reason = ? WHERE id = ?",
        (state, event.actor, moment.when, moment.n, reason, policy),
    )
