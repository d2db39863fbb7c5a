"""Requests to people about tool calls: listed, and answered once.

An answer stands in the stream of the turn that asked. It needs no lease, since it neither runs the call nor says how it
ended: whoever works on the turn reads it there, now or after a crash. It is refused where the request is over, and says
which hash of what would run was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.approval_events import ApprovalDenied, ApprovalGranted
from weft.kernel.enums import ApprovalState, GrantScope
from weft.kernel.errors import AmbiguousName, NotApplicable, NotFound
from weft.kernel.fields import EventRef
from weft.ledger.approvals.model import Approval, CallDecision
from weft.ledger.approvals.people import ensure_person, stream_of_person
from weft.ledger.read.access import access_of
from weft.ledger.read.room_members import is_beside_agent
from weft.ledger.views.rows import load_turn
from weft.ledger.views.values import json_of, name_of, text_of
from weft.ledger.write.append import Append, LedgerWriter
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn

SHORTEST_ID = 6
APPROVE = "approve"
_COLUMNS = (
    "a.request, a.n, a.turn, s.label, p.name, t.persona, a.call, c.tool, c.params, a.bound, a.shown, a.rationale,"
    " a.state, a.used, a.requested_at, a.expires_at, a.answered_by, a.answered_at, a.scope, a.reason, a.replica,"
    " q.name, a.subjects"
)
_SELECT = (
    f"SELECT {_COLUMNS} FROM approval a JOIN turn t ON t.id = a.turn LEFT JOIN session s ON s.n = a.session"
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
    query = f"{_SELECT} WHERE {where} ORDER BY a.n LIMIT ?"
    approvals: list[Approval] = []
    while len(approvals) < limit:
        rows = txn.sql.all(query, (*states, after, *(() if session is None else (session,)), limit))
        readable = (_to_approval(txn, row) for row in rows if _may_read(txn, row))
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
        rows = txn.sql.all(f"{_SELECT} WHERE a.request LIKE ? ORDER BY a.n LIMIT 3", (f"{text}%",))
    approvals = [_to_approval(txn, row) for row in rows if _may_read(txn, row)]
    if not approvals:
        raise NotFound("approval", name, Action.LIST_APPROVALS)
    if len(approvals) > 1:
        raise AmbiguousName(name, [approval.id for approval in approvals])
    return approvals[0]


def decisions_of(txn: ReadTxn, turn: str) -> list[CallDecision]:
    """What was decided about the calls of a turn, in order."""
    rows = txn.sql.all(_DECISIONS, (turn,))
    return [
        CallDecision(
            n=n,
            turn=of,
            call=bytes(call).hex(),
            tool=name_of(txn, tool) or "",
            decision=decision,
            by=source,
            bound=bound,
            policy=policy,
            approval=approval,
            rationale=text_of(txn, rationale),
            decided_at=at,
        )
        for n, of, call, tool, decision, source, bound, policy, approval, rationale, at in rows
    ]


def session_grants(txn: ReadTxn, session: str) -> list[Approval]:
    """What people allowed for the rest of a session, by its id."""
    rows = txn.sql.all(
        f"{_SELECT} WHERE s.id = ? AND a.scope = ? AND a.state = ?",
        (session, GrantScope.SESSION.value, ApprovalState.GRANTED.value),
    )
    return [_to_approval(txn, row) for row in rows if is_written_here(txn.sql, row[1], row[20])]


def answer_approval(
    writer: LedgerWriter,
    name: str,
    *,
    is_granted: bool,
    bound: str | None = None,
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
        _ensure_open(append, approval, bound)
        stream = stream_of_person(append, f"run:{turn.id}", turn.digest, person)
        words = UNSET if reason is None else append.contents_of(turn.root).put_text(reason, "reason")
        request = EventRef(approval.id)
        if is_granted:
            stream.add(ApprovalGranted, request=request, bound=approval.bound, reason=words, scope=scope)
        else:
            stream.add(ApprovalDenied, request=request, abort=abort, reason=words)
        append.seal()
        return approval.id

    return writer.write(work)


def _ensure_open(append: Append, approval: Approval, bound: str | None) -> None:
    """Late, doubled and foreign answers are refused, and so is one that means another call than the one that waits."""
    short = approval.id[:12]
    if approval.state != ApprovalState.OPEN:
        raise NotApplicable(f"approval {short} is {approval.state} already", Action.LIST_APPROVALS)
    if approval.expires_at is not None and append.now_ms >= approval.expires_at:
        raise NotApplicable(f"approval {short} has expired", Action.LIST_APPROVALS)
    if bound is not None and bound != approval.bound:
        raise NotApplicable(f"approval {short} is for another call than the one that was shown", "look at it again")
    row = append.sql.one("SELECT n, replica FROM approval WHERE request = ?", (approval.id,))
    if row is None or not is_written_here(append.sql, row[0], row[1]):
        raise NotApplicable(f"approval {short} was asked for in another ledger", "answer it there")


def _may_read(txn: ReadTxn, request: Sequence[Any]) -> bool:
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
    (request, n, turn, label, agent, persona, call, tool, params, bound, shown, rationale) = row[:12]
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
        bound=bound,
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
