"""What `weft approve` and `weft reject` answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from weft.ledger.api import Approval


class AnsweredApproval(Struct, frozen=True, kw_only=True):
    """`approve`, `reject`: a tool call that a person answered for. `proposed` are the ids of the policies that were
    proposed with it."""

    approval: Approval
    proposed: tuple[str, ...] = ()
