"""Answers about triggers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from weft.ledger.api import Firing, MissedTimes


class ListedTrigger(Struct, frozen=True, kw_only=True):
    """`trigger list`: a trigger with what it did last and does next. `on` is what sets it off; `missed` is how many
    times of its schedule it did not fire since it was last configured or resumed. Times are Unix milliseconds."""

    id: str
    name: str
    state: str
    version: int
    foreign: bool
    on: Mapping[str, Any]
    to: Mapping[str, Any]
    next_due: int | None
    fired: Firing | None
    missed: int
    reason: str | None
    """Why it is paused."""
    fault: str | None
    """Why its configuration cannot be read, in which case it never fires: another ledger wrote it."""


class ShownTrigger(ListedTrigger, frozen=True, kw_only=True):
    """`trigger show`: the same with all of its configuration and the times that it missed."""

    config: Any
    gaps: tuple[MissedTimes, ...]


class FiredTrigger(Struct, frozen=True, kw_only=True):
    """`trigger run` and `trigger deliver`: what came of it. `is_new` is false where it had fired for the same occasion
    before; `paused` is why it was paused instead."""

    trigger: str
    is_new: bool
    message: str | None
    session: str | None
    posted: str | None
    paused: str | None
