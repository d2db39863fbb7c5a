"""People: whether they are there, what they are told and asked, and what they answer. Delivery is not done here."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.enums import Presence, ProgramKind
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.program_events import HumanApproved, HumanNotified, HumanPresence, HumanRejected
from weft.ledger.arguments import checked_flag
from weft.ledger.views.program_rows import ProgramRow, RequestRow, load_request
from weft.programs.program_writer import ProgramWriter


def presence(clerk: ProgramWriter, human: ProgramRow, wanted: str) -> ProgramRow:
    clerk.permit("configure", f"say that {human.name!r} is {wanted}", human.id)
    if wanted not in tuple(Presence):
        raise InvalidInput(f"presence is {wanted!r:.80}", f"one of {', '.join(Presence)}")
    clerk.ensure_legal(human, wanted)
    return clerk.add(human, HumanPresence, presence=Presence(wanted))


def notify(
    clerk: ProgramWriter, human: ProgramRow, text: str, *, asks: bool, program: str | None = None, data: Any = None
) -> str:
    """What a person is to be told or asked, kept before anybody tries to reach them. Returns the request's id."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("there is nothing to tell", "give text")
    request = clerk.append.ulids.mint()
    clerk.add(
        human,
        HumanNotified,
        request=request,
        text=clerk.append.put_text(text, "text"),
        asks=checked_flag(asks, "asks"),
        program=UNSET if program is None else clerk.require(program).id,
        data=UNSET if data is None else clerk.append.put_json(data, "data"),
    )
    return request


def answer(clerk: ProgramWriter, request: str, approved: bool, reason: str | None) -> str:
    """Yes or no, once, by the very person who was asked, who must have the right to."""
    row = _pending(clerk, request)
    human = clerk.require(row.human, ProgramKind.HUMAN)
    what = f"{'approve' if approved else 'reject'} what {human.name!r} was asked"
    if clerk.actor != human.id or "approve" not in clerk.config_of(human).get("permissions", []):
        raise clerk.not_allowed("approve", what)
    kind = HumanApproved if approved else HumanRejected
    clerk.add(human, kind, request=row.id, reason=clerk.reason(reason))
    return row.id


def _pending(clerk: ProgramWriter, request: str) -> RequestRow:
    if not isinstance(request, str):
        raise InvalidInput(f"request is {request!r:.80}", "give its id")
    found = clerk.sql.all("SELECT id FROM human_request WHERE id LIKE ?", (f"%{_plain(request)}",))
    row = load_request(clerk.sql, found[0][0]) if len(found) == 1 else None
    if row is None:
        raise NotFound("request", request, Action.LIST_REQUESTS)
    if row.status != "pending":
        raise NotApplicable(f"request {row.id} is {row.status}", "it takes one answer; ask again")
    return row


def _plain(text: str) -> str:
    """Letters of an id alone: a sign of SQL's patterns is none."""
    return "".join(letter for letter in text.upper() if letter.isalnum()) or "?"
