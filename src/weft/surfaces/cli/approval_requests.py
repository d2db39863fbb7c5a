"""Tool calls that wait for a person, among what else people are asked.

`weft human` lists and answers both. A tool call is asked of everybody who may approve, so its request names nobody
until somebody answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.enums import InboxState, QueueMode
from weft.kernel.errors import NotFound
from weft.surfaces.cli.approval_text import how_to_answer, waiting_words
from weft.surfaces.cli.figures import counted

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Approval, Ledger
    from weft.programs import Programs
    from weft.programs.program_records import PersonRequest, Program

ULID_LETTERS = 26
ANYBODY = "*"
_STATUSES = {"open": "pending", "granted": "approved", "denied": "rejected", "void": "void"}
_APPROVALS = 10_000
"""So many are listed among other requests; `weft approvals --all` lists all of them."""


def tool_requests(programs: Programs, name: str | None, status: str | None) -> list[PersonRequest]:
    """Requests about tool calls, as requests to people: all of them, or what one person answered or may answer."""
    person = None if name is None else programs.get(name, "human")
    approvals = programs.ledger.approvals.list(states=tuple(_STATUSES), limit=_APPROVALS)
    requests = [request_of(approval) for approval in approvals]
    return [
        request
        for request in requests
        if (status is None or request.status == status) and (person is None or _concerns(request, person))
    ]


def request_of(approval: Approval, human: str | None = None) -> PersonRequest:
    """A tool call's request in the form of other requests; without what the tool would be used on."""
    from weft.programs.program_records import PersonRequest

    return PersonRequest(
        id=approval.id,
        human=human or approval.answered_by or ANYBODY,
        text=waiting_words(approval),
        asks=True,
        status=_STATUSES[approval.state],
        asked_by=approval.agent,
        asked_at=approval.requested_at,
        decided_at=approval.answered_at,
        reason=approval.reason,
    )


def waiting_call(programs: Programs, id: str) -> Approval | None:
    """The tool call's request of this id; None where another request has it, or nothing does."""
    try:
        return programs.ledger.approvals.get(id)
    except NotFound:
        return None


def notice_of(approval: Approval, human: str) -> PersonRequest:
    """What a person is told by their channel: who wants what and why, and how to answer."""
    from msgspec.structs import replace

    request = request_of(approval, human)
    return replace(request, text=f"{request.text}. {how_to_answer(approval)}")


class QueueBefore(Struct, frozen=True):
    """What comes before a message in its session: the turn that is open there, messages that are answered earlier, and
    the requests to people that the open turn and its workers wait for."""

    has_turn: bool = False
    messages: int = 0
    approvals: tuple[Approval, ...] = ()

    @property
    def words(self) -> str:
        """What comes first; empty where nothing does."""
        earlier = [counted(self.messages, "earlier message")] if self.messages else []
        return " and ".join([*(["the turn that is open"] if self.has_turn else []), *earlier])


def queue_before(ledger: Ledger, admission: Admission) -> QueueBefore:
    """Nothing where the message waits no more, or interrupts what runs. Requests are those that the reader may see."""
    from weft.ledger.api import Runs

    runs = Runs(ledger)
    if runs.message_state(admission.message)[0] != InboxState.QUEUED:
        return QueueBefore()
    standing = runs.standing(admission.session_id)
    ids = [message.id for message in standing.queued]
    place = ids.index(admission.message) if admission.message in ids else len(ids)
    mode = standing.queued[place].mode if place < len(ids) else QueueMode.FOLLOWUP
    if mode == QueueMode.INTERRUPT:
        return QueueBefore()
    if standing.open_turn is None:
        return QueueBefore(messages=place)
    approvals = tuple(runs.open_requests(admission.session_id))
    if mode == QueueMode.STEER:  # it enters the open turn
        return QueueBefore(approvals=approvals)
    return QueueBefore(has_turn=True, messages=place, approvals=approvals)


def _concerns(request: PersonRequest, person: Program) -> bool:
    from weft.runtime.invoke.handlers import may_approve

    return request.human == person.name or (request.human == ANYBODY and may_approve(person))
