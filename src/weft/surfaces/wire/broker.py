"""Answers about messages on their way, and about brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from weft.kernel.events import Receipt, Usage


class SentMessage(Struct, frozen=True, kw_only=True):
    """`send`, `retry`: a message of an inbox, and the answer where it was waited for. `is_fork` says that a session was
    made for it at a turn; `route` how the session was found; `runs_by_itself` has the files that the turn changed and
    that some program runs by itself, each with what runs it."""

    message: str
    session: str
    session_id: str
    is_fork: bool
    state: str
    route: Any
    receipt: Receipt | None
    turn: str | None = None
    text: str | None = None
    thinking: str | None = None
    model: str | None = None
    model_id: str | None = None
    provider: str | None = None
    finish: str | None = None
    usage: Usage | None = None
    cost: int | None = None
    """Millionths of a US dollar."""
    runs_by_itself: dict[str, str] = {}
    not_kept: list[str] = []
    """What the turn could change without asking and `undo` does not give back."""
    git_changes: list[str] = []
    """Where `HEAD`, a branch, a tag or the index is not what it was before the turn, in a folder trusted for work."""


class InterruptedTurn(Struct, frozen=True, kw_only=True):
    """`interrupt`: the turn that was asked to stop."""

    session: str
    turn: str


class BrokerReady(Struct, frozen=True, kw_only=True):
    """`broker`: printed once it takes messages. `waiting` counts the sessions that it found something to do for."""

    ready: bool
    pid: int
    replica: str
    capacity: int
    waiting: int
