"""Who may decide: people, and the owner of the ledger. An agent decides nothing, in nobody's name."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotAllowed
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.views.program_rows import load_program
from weft.ledger.write.append import Append, EventStream


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
