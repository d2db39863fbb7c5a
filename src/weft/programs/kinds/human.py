"""People: whether they are there, what they are told and asked, and what they answer. Delivery is not done here."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import program_events
from weft.kernel.clock import is_ulid_ending
from weft.kernel.enums import Presence, ProgramKind
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound, quoted
from weft.kernel.program_events import HumanApproved, HumanNotified, HumanPresence, HumanRejected
from weft.ledger.arguments import checked_flag
from weft.ledger.views.rows import ProgramRow, RequestRow, load_request
from weft.programs.answers import counted_request
from weft.programs.config_fields import Fields, email, filled, member, right_patterns
from weft.programs.kinds.kind import KindRow
from weft.programs.machine_names import CHANNEL, COMMAND, NOTHING, URL
from weft.programs.program_writer import ProgramWriter
from weft.store.sql import Row

CHANNELS = ("terminal", "command", "webhook")

HUMAN = KindRow(
    facts=program_events.HUMAN,
    fields={
        "permissions": right_patterns,
        "email": email,
        "image": filled,
        "preferences": Fields({"notificationChannel": member(*CHANNELS), "command": filled, "webhook": filled}),
    },
    machine={
        **dict.fromkeys(("permissions", "email", "image"), NOTHING),
        "preferences.notificationChannel": CHANNEL,
        "preferences.command": COMMAND,
        "preferences.webhook": URL,
    },
)


def presence(writer: ProgramWriter, human: ProgramRow, wanted: str) -> ProgramRow:
    if writer.append.acting_ids != (human.id,):
        writer.permit_configuring(f"say that {human.name!r} is {wanted}", human)
    if wanted not in tuple(Presence):
        raise InvalidInput(f"presence is {quoted(wanted)}", f"one of {', '.join(Presence)}")
    writer.ensure_legal(human, wanted)
    return writer.add(human, HumanPresence, presence=Presence(wanted))


def notify(
    writer: ProgramWriter, human: ProgramRow, message: str, *, asks: bool, program: str | None = None, data: Any = None
) -> str:
    """What a person is to be told or asked, kept before anybody tries to reach them. Returns the request's id."""
    if not isinstance(message, str) or not message.strip():
        raise InvalidInput("there is nothing to tell", "give text")
    request = writer.append.ulids.mint()
    writer.add(
        human,
        HumanNotified,
        request=request,
        text=writer.append.put_text(message, "text"),
        asks=checked_flag(asks, "asks"),
        program=UNSET if program is None else writer.require(program).id,
        data=UNSET if data is None else writer.append.put_json(data, "data"),
    )
    return request


def answer(writer: ProgramWriter, request: str, approved: bool, reason: str | None) -> str:
    """Yes or no, once, by the very person who was asked, who must have the right to."""
    row = _pending(writer, request)
    human = writer.require(row.human, ProgramKind.HUMAN)
    what = f"{'approve' if approved else 'reject'} what {human.name!r} was asked"
    if writer.actor != human.id or "approve" not in writer.config_of(human).get("permissions", []):
        raise writer.not_allowed("approve", what)
    kind = HumanApproved if approved else HumanRejected
    writer.add(human, kind, request=row.id, reason=writer.reason(reason))
    return row.id


def _pending(writer: ProgramWriter, request: str) -> RequestRow:
    if not isinstance(request, str):
        raise InvalidInput(f"request is {quoted(request)}", "give its id")
    ids = _ids_ending(writer, request)
    row = load_request(writer.sql, ids[0][0]) if len(ids) == 1 else None
    if row is None:
        raise NotFound("request", request, Action.LIST_REQUESTS)
    row, _ = counted_request(writer.reading, row)
    if row.status != "pending":
        raise NotApplicable(f"request {row.id} is {row.status}", "it takes one answer; ask again")
    return row


def _ids_ending(writer: ProgramWriter, end: str) -> list[Row]:
    """Of at most two requests: whole ids, or the last letters of one. A sign of SQL's patterns is no letter."""
    if not is_ulid_ending(end):
        return []
    return writer.sql.all("SELECT id FROM human_request WHERE id LIKE ? LIMIT 2", (f"%{end.upper()}",))
