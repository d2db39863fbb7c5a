"""What waits for an agent or for a person: messages in inboxes, turns that are to be cut short, and tool calls that a
person allows or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

from weft.kernel.enums import ApprovalState, InboxState
from weft.ledger.api import Approval, InboxMessage
from weft.verbs.answers import AnsweredApproval, InterruptedTurn, Listing, exact_document
from weft.verbs.declaration import (
    SESSION,
    Names,
    OpenMode,
    PageCursor,
    PageLimit,
    Reason,
    RequestError,
    SessionName,
    arg,
    opt,
    verb,
)

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

ANSWER = "approval:answer"
RECORD = "turn:record"
PAGE_RECORDS = 500


# --- Lists that are read page by page, by arrival.


class Arrived(Protocol):
    @property
    def n(self) -> int:
        """The arrival number."""


A = TypeVar("A", bound=Arrived)


def page_of(
    read: Callable[[int, int], Sequence[A]], limit: int | None, after: str | None
) -> tuple[list[A], str | None]:
    """So many records behind a cursor, or all; and the cursor of the next page. `read` takes how many at most, and
    behind which arrival number."""
    if after is not None and not (after.isascii() and after.isdecimal()):
        raise RequestError("{after} is no cursor of this list")
    if limit == 0:
        return [], after
    records: list[A] = []
    position = int(after or 0)
    while limit is None or len(records) <= limit:  # one more than asked for tells whether there is a next page
        page = read(PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit + 1 - len(records)), position)
        if not page:
            return records, None
        records += page
        position = page[-1].n
    return records[:limit], str(records[limit - 1].n)


# --- The messages that wait, and those that could not be answered.


def _check_inbox(dead: bool, session: str | None, cancel: str | None, again: str | None) -> None:
    if (cancel is not None or again is not None) and ((cancel is not None and again is not None) or dead or session):
        raise RequestError("{cancel} and {again} stand alone")


@verb(
    "inbox",
    right=RECORD,
    method="inbox.cancel",
    opens=OpenMode.WRITING,
    reads_without=("cancel", "again"),
    check=_check_inbox,
)
def inbox(
    ledger: Ledger,
    dead: Annotated[
        bool, opt("List messages whose turn failed instead: with the error, and what can be done.")
    ] = False,
    session: Annotated[str | None, opt("Only those of this session.", metavar="SESSION", names=SESSION)] = None,
    cancel: Annotated[
        str | None, opt("Cancel a message that waits.", metavar="ID", names=Names("message", ("queued",)))
    ] = None,
    again: Annotated[
        str | None,
        opt("Send a message again that is dead, or waits elsewhere.", metavar="ID", names=Names("message", ("dead",))),
    ] = None,
    limit: PageLimit = None,
    after: PageCursor = None,
) -> Listing[InboxMessage] | InboxMessage:
    """List the messages that wait, and those that failed.

    They stand in the order in which each session answers them. A message is `taken` while a turn answers it, and gone
    from the list once it is answered. One whose turn failed is dead: it waits for a person, and stops nobody else. One
    that waits `elsewhere` was sent to the ledger that this one is a copy of, or that it came from.
    """
    if cancel is not None:
        ledger.inbox.cancel(cancel, reason="cancelled by hand")
        return ledger.inbox.get(cancel)
    if again is not None:
        return ledger.inbox.get(ledger.inbox.send_again(again).message)
    states = (InboxState.DEAD,) if dead else (InboxState.QUEUED, InboxState.TAKEN)
    messages, following = page_of(
        lambda most, arrived: ledger.inbox.list(session=session, states=states, limit=most, after=arrived), limit, after
    )
    return Listing(items=messages if dead else _in_order(messages), next=following)


def _in_order(messages: list[InboxMessage]) -> list[InboxMessage]:
    """Session by session; within one, what a turn has, then the rest as it is answered."""
    first: dict[str, int] = {}
    for message in messages:
        first.setdefault(message.session_id, message.n)
    return sorted(
        messages,
        key=lambda message: (first[message.session_id], message.state == "queued", -message.priority, message.n),
    )


# --- A turn that runs in any process is cut short.


@verb("interrupt", right=RECORD, method="inbox.interrupt", opens=OpenMode.WRITING)
def interrupt(ledger: Ledger, session: SessionName) -> InterruptedTurn:
    """Interrupt the turn that runs in a session.

    Whichever process runs it ends it with what it has: open tool calls are interrupted, what came of the answer is
    kept, and the session goes on from there. Messages that wait are answered next.

    A session where no turn runs says so.
    """
    label = ledger.session(session).label
    return InterruptedTurn(session=label, turn=ledger.inbox.interrupt(label))


# --- Tool calls that wait for a person.

ApprovalId = Annotated[
    str | None, arg("A tool call that waits: its id, or the beginning of it.", names=Names("approval"))
]


def _check_approvals(id: str | None, every: bool, session: str | None) -> None:
    if id is not None and (every or session is not None):
        raise RequestError("an ID stands alone")


@verb("approvals", check=_check_approvals)
def approvals(
    ledger: Ledger,
    id: ApprovalId = None,
    every: Annotated[bool, opt("Also those that were answered.", "--all")] = False,
    session: Annotated[str | None, opt("Only those of this session.", metavar="SESSION", names=SESSION)] = None,
    limit: PageLimit = None,
    after: PageCursor = None,
) -> Listing[Approval] | Approval:
    """List the tool calls that wait for approval.

    With an ID that one is shown whole: what it would do, and exactly what would run. An approval allows that once, and
    nothing else: if anything of it changes before it runs, it does not run.

    A row is id, agent, session, tool, how long ago it was asked, until when it can be answered, and why. See
    docs/permissions.md#approvals.
    """
    if id is not None:
        return ledger.approvals.get(id)
    states = tuple(ApprovalState) if every else (ApprovalState.OPEN,)
    listed, following = page_of(
        lambda most, arrived: ledger.approvals.list(session=session, states=states, limit=most, after=arrived),
        limit,
        after,
    )
    return Listing(items=listed, next=following)


def _named(ledger: Ledger, id: str | None) -> Approval:
    if id is None:
        raise RequestError("name the tool call that is meant")
    return ledger.approvals.get(id)


def _check_approve(session_scope: bool, rule: bool) -> None:
    if session_scope and rule:
        raise RequestError("{session_scope} and {rule} exclude each other")


@verb("approve", right=ANSWER, method="approvals.grant", opens=OpenMode.WRITING, check=_check_approve)
def approve(
    ledger: Ledger,
    id: ApprovalId = None,
    session_scope: Annotated[bool, opt("Also allow the same use of the tool in this session from now on.")] = False,
    rule: Annotated[bool, opt("Allow it once, and propose a policy that allows it from then on.")] = False,
    reason: Reason = None,
    digest: Annotated[
        str | None,
        opt("Only if this is the digest of what was shown; else it is refused.", metavar="SHA256", is_hidden=True),
    ] = None,
) -> AnsweredApproval:
    """Approve a tool call that waits for a person.

    The call is shown in full first, and you are asked. The answer counts for exactly what was shown, once: if anything
    of it changes before it runs, it does not run. Without ID what waits is listed, and nothing is allowed.

    Where nobody is at a terminal nothing is allowed without --yes. Another person than the ledger's owner answers with
    `weft human approve`, or is named with `weft --as NAME approve`.
    """
    from weft.runtime.policies.policy_decisions import propose_rules, rule_proposals

    approval = _named(ledger, id)
    exact_document(approval)
    proposals = rule_proposals(ledger, approval) if rule else []
    granted = ledger.approvals.grant(
        approval.id,
        plan_digest=digest or approval.plan_digest,
        scope="session" if session_scope else "rule" if rule else "once",
        reason=reason,
    )
    policies = propose_rules(ledger, approval, proposals)  # after the grant, and not without it
    return AnsweredApproval(approval=granted, proposed=tuple(policy.id for policy in policies))


@verb("reject", right=ANSWER, method="approvals.deny", opens=OpenMode.WRITING)
def reject(
    ledger: Ledger,
    id: ApprovalId = None,
    abort: Annotated[bool, opt("End the agent's turn, too.")] = False,
    reason: Annotated[str | None, opt("Why; the model is told.", metavar="TEXT")] = None,
) -> AnsweredApproval:
    """Reject a tool call that waits for a person.

    It never runs. The model is told so and goes on; with --abort its turn ends. Without ID what waits is listed.
    """
    return AnsweredApproval(approval=ledger.approvals.deny(_named(ledger, id).id, abort=abort, reason=reason))
