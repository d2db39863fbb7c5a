"""What `weft approve` and `weft reject` answer, and what is said of a tool call that waits for them."""

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


class WaitingCall(Struct, frozen=True, kw_only=True):
    """A tool call that a turn waits for, without what it would be used on. `approve` and `reject` are the command lines
    that answer it; the first shows it and asks."""

    approval: str
    agent: str
    session: str | None
    tool: str
    why: str | None
    approve: str
    reject: str


class WaitingDocument(Struct, frozen=True, kw_only=True):
    """`send`, `retry`, `agent run`, `task run`, `broker`: what stands on standard error while a turn waits for a
    person."""

    waiting: WaitingCall
