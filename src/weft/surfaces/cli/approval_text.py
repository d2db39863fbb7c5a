"""How a tool call that waits for a person is shown: all of it, with every character that cannot be seen escaped.

What a person reads has two parts: what the call does, for reading, and exactly what would run, as the JSON document
that the approval is bound to by its hash. A call whose document is missing, or has another hash, is shown as one that
nobody can approve.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from weft.kernel.errors import NotApplicable, without_credentials
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import exact_json, exact_lines

if TYPE_CHECKING:
    from weft.ledger.api import Approval
    from weft.surfaces.wire.approvals import WaitingDocument

SHORT_ID_LETTERS = 12
EXACTLY = "  exactly"
_READ, _EXACT = "  | ", "    "
_STYLES = {"open": "warn", "granted": "good", "denied": "bad", "void": "dim", "expired": "dim"}
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def short_id(approval: Approval) -> str:
    return approval.id[:SHORT_ID_LETTERS]


def state_of(approval: Approval, now_ms: int) -> Span:
    """What became of it; an open one whose time is over can be answered no more."""
    is_late = approval.state == "open" and approval.expires_at is not None and approval.expires_at <= now_ms
    state = "expired" if is_late else approval.state
    return Span(state, _STYLES.get(state, ""))


def age_of(approval: Approval, now_ms: int) -> str:
    """How long ago it was asked: `5 min`."""
    seconds = max(0, (now_ms - approval.requested_at) // 1000)
    return next((f"{seconds // length} {unit}" for unit, length in _UNITS if seconds >= length), "0 s")


def waiting_words(approval: Approval) -> str:
    """Who wants to use which tool, where and why, in one line without what the tool is used on."""
    place = f" in session {approval.session!r}" if approval.session else ""
    why = f": {approval.rationale}" if approval.rationale else ""
    return without_credentials(f"{approval.agent!r} wants to use {approval.tool!r}{place}{why}")


def how_to_answer(approval: Approval) -> str:
    id = short_id(approval)
    return f"`weft approve {shell_word(id)}` shows and allows it, `weft reject {shell_word(id)}` refuses it"


def waiting_document(approval: Approval) -> WaitingDocument:
    """The same for programs."""
    from weft.surfaces.wire.approvals import WaitingCall, WaitingDocument

    id = shell_word(short_id(approval))
    return WaitingDocument(
        waiting=WaitingCall(
            approval=approval.id,
            agent=approval.agent,
            session=approval.session,
            tool=approval.tool,
            why=None if approval.rationale is None else without_credentials(approval.rationale),
            approve=f"weft approve {id}",
            reject=f"weft reject {id}",
        )
    )


def exact_document(approval: Approval) -> str:
    """The JSON document that the approval is bound to, as it was recorded. Raises NotApplicable where it is not what
    would run."""
    document = (approval.shown or "").rpartition("\n\n")[2]
    if sha256(document.encode()).hexdigest() != approval.bound:
        raise NotApplicable(f"what approval {short_id(approval)} would run cannot be shown", "reject it")
    return document


def approval_lines(approval: Approval, now_ms: int) -> list[Line]:
    """Everything that a person decides by."""
    at = f"{local_time(approval.requested_at)} ({age_of(approval, now_ms)} ago)"
    facts: list[tuple[str, Span | str | None]] = [
        ("agent", Span(approval.agent, "label")),
        ("session", approval.session),
        ("tool", Span(approval.tool, "tool")),
        ("why", approval.rationale),
        ("asked", at),
        ("expires", None if approval.expires_at is None else local_time(approval.expires_at)),
        ("answered", _answered(approval)),
        ("reason", approval.reason),
    ]
    lines: list[Line] = [["approval ", Span(short_id(approval), "id"), " is ", state_of(approval, now_ms)]]
    lines += [[Span(f"  {name:<9}", "dim"), value] for name, value in facts if value is not None]
    return [*lines, *call_lines(approval)]


def _answered(approval: Approval) -> str | None:
    if approval.answered_at is None:
        return None
    scope = f", for {approval.scope}" if approval.scope not in (None, "once") else ""
    return f"by {approval.answered_by}, {local_time(approval.answered_at)}{scope}"


def call_lines(approval: Approval) -> list[Line]:
    """What the call does, each line behind a mark that the text itself cannot leave; then exactly what would run."""
    try:
        document = exact_document(approval)
    except NotApplicable as error:
        return [[Span(f"  {error}", "bad")]]
    readable = (approval.shown or "").rpartition("\n\n")[0]
    lines: list[Line] = [[Span(_READ, "dim"), line] for line in exact_lines(readable)] if readable else []
    return [*lines, [Span(f"{EXACTLY} (sha256 {approval.bound})", "dim")], [_EXACT, Span(exact_json(document), "code")]]
