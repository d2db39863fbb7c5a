"""Leases as the table keeps them: who holds what, and for which work."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from weft.store.sql import Question, Sql


class LeaseKind(StrEnum):
    """What a lease is for; its key is the id of the session, turn, program or resource."""

    SESSION = "session"
    """Purpose: the turn that is being recorded there."""
    TURN = "turn"
    """A turn without a session. Purpose: the turn itself."""
    AGENT = "agent"
    """Purpose: the task that the agent works on, else `run`."""
    RESOURCE = "resource"
    """Purpose: `work`."""


class Lease(Struct, frozen=True, gc=False):
    """A row of the table. Whoever took it keeps a copy: what they write is refused once the row has another owner,
    epoch or purpose."""

    kind: str
    key: str
    owner: str
    epoch: int
    beat: int
    purpose: str | None
    """What the holder does; None: nobody holds it."""


LEASE_COLUMNS = Lease.__struct_fields__
_SELECT = f"SELECT {', '.join(LEASE_COLUMNS)} FROM lease"


def find_lease(sql: Sql, kind: LeaseKind, key: str) -> Lease | None:
    """The lease as it is, held or released; None where it was never taken."""
    row = sql.one(*lease_question(kind, key))
    return None if row is None else Lease(*row)


def lease_question(kind: LeaseKind, key: str) -> Question:
    """What `find_lease` asks."""
    return f"{_SELECT} WHERE kind = ? AND key = ?", (kind.value, key)


def held_leases(sql: Sql, *kinds: LeaseKind) -> list[Lease]:
    """Every lease of these kinds that somebody holds; of all kinds where none is named."""
    wanted = [kind.value for kind in kinds or LeaseKind]
    rows = sql.all(
        f"{_SELECT} WHERE purpose IS NOT NULL AND kind IN ({', '.join('?' * len(wanted))}) ORDER BY kind, key", wanted
    )
    return [Lease(*row) for row in rows]
