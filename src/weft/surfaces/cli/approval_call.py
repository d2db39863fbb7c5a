"""How a person answers for a tool call on the command line: it is shown whole, then granted or denied with its hash."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.approval_text import approval_lines, exact_document, short_id, state_of
from weft.surfaces.cli.questions import confirm
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.approvals import AnsweredApproval

if TYPE_CHECKING:
    from weft.ledger.api import Approval, Ledger
    from weft.surfaces.cli.call import Call


TAKEN_UP_SECONDS = 1.5
LOOK_SECONDS = 0.1


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """What a person says to a request. `scope` is how far a yes reaches; with `abort` a no ends the turn."""

    is_granted: bool
    scope: str = "once"
    abort: bool = False
    reason: str | None = None


def answer_shown(ledger: Ledger, approval: Approval, answer: ApprovalAnswer) -> AnsweredApproval:
    """Record a person's answer to a request as it was shown. A rule is proposed after the grant, and not without it."""
    if not answer.is_granted:
        denied = ledger.approvals.deny(approval.id, abort=answer.abort, reason=answer.reason)
        return AnsweredApproval(approval=denied)
    from weft.runtime.policies.rule_proposals import propose_rules, rule_proposals

    exact_document(approval)
    proposals = rule_proposals(ledger, approval) if answer.scope == "rule" else []
    granted = ledger.approvals.grant(approval.id, bound=approval.bound, scope=answer.scope, reason=answer.reason)
    policies = propose_rules(ledger, approval, proposals)
    return AnsweredApproval(approval=granted, proposed=tuple(policy.id for policy in policies))


def decide(call: Call, ledger: Ledger, approval: Approval, answer: ApprovalAnswer, *, is_sure: bool) -> None:
    """Show a request, have the person who was shown it confirm a yes, and record the answer. `is_sure`: they did so on
    the command line."""
    if not call.json:
        call.screen.page(approval_lines(approval, SystemClock().now_ms()))
    if answer.is_granted:
        exact_document(approval)
        if state_of(approval, SystemClock().now_ms()).text == "open":  # any other is refused, whatever is answered
            _confirm(call, approval, is_sure=is_sure)
    answered = answer_shown(ledger, approval, answer)
    call.answer(answered, answered_line(answered))
    note_proposals(call, answered)
    if not (call.json or call.quiet) and _stays_left(ledger, approval.turn):
        call.note("no process works on the turn: `weft broker` goes on with it")


def _confirm(call: Call, approval: Approval, *, is_sure: bool) -> None:
    """Ask the person at the terminal, who was shown the request there."""
    hint = f"read it with `weft approvals {shell_word(short_id(approval))}`, then say --yes"
    if not is_sure and not call.screen.terminal:
        raise InvalidInput("nobody was shown what would be allowed", hint)
    confirm(call, "allow exactly this?", hint, is_sure=is_sure)


def _stays_left(ledger: Ledger, turn: str) -> bool:
    """Whether nobody goes on with a turn for so long after an answer: who waits for it looks
    several times a second."""
    from weft.ledger.api import Runs

    clock, runs = SystemClock(), Runs(ledger)
    until = clock.monotonic() + TAKEN_UP_SECONDS
    while runs.is_left(turn):
        if clock.monotonic() >= until:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def answered_line(answered: AnsweredApproval) -> Line:
    approval = answered.approval
    scope = " for this session" if approval.scope == "session" else ""
    return ["approval ", Span(short_id(approval), "id"), " is ", state_of(approval, 0), scope]


def note_proposals(call: Call, answered: AnsweredApproval) -> None:
    for policy in answered.proposed:
        call.note(proposal_words(policy))


def proposal_words(policy: str) -> str:
    """What a person is told of a rule that was proposed with their answer."""
    return (
        f"a rule is proposed: `weft policy show {shell_word(policy)}` shows it,"
        f" `weft policy activate {shell_word(policy)}` puts it in force"
    )
