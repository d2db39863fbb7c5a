"""What triggers take and give when they fire."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.enums import MessageSource
from weft.ledger.model import NewMessage
from weft.ledger.runs.admission import MessageTarget
from weft.ledger.runs.model import Admission

MAX_HOPS = 8
"""So many firings may lie between a firing and what no trigger caused."""
MOST_CAUSED_FIRINGS = 64
CAUSED_PERIOD_MS = 3_600_000
"""So often in such a time a trigger fires for what triggers caused."""


class Occasion(Struct, frozen=True, kw_only=True):
    """What a trigger fires for. Equal digests of one trigger are one occasion."""

    digest: str
    source: MessageSource
    due_ms: int | None = None
    cause: str | None = None
    """The id of the turn, message or program whose event it is."""
    hops: int = 0
    payload: Any = None


class RoomTarget(Struct, frozen=True):
    """A conversation that the message is posted to, and the agent in it that is to answer."""

    room: str
    agent: str


class CursorMove(Struct, frozen=True):
    """How far a trigger has looked, and what it remembers. One that `is_compared` is made only if the trigger remembers
    `expected` at the same position until now."""

    version: int
    position: int
    state: str | None = None
    expected: str | None = None
    is_compared: bool = False
    is_set_back: bool = False
    """Whether the position may lie before the one that is remembered."""


class NewFiring(Struct, frozen=True, kw_only=True):
    """A trigger that is to fire, as one version of its configuration says."""

    trigger: str
    """Its id."""
    version: int
    occasion: Occasion
    message: NewMessage
    target: MessageTarget | RoomTarget
    principals: tuple[str, ...]
    """On whose behalf it fires."""
    is_untrusted: bool
    """Whether a stranger wrote some of the message."""
    route: Any = None
    breaker: int
    cursor: CursorMove | None = None


class Firing(Struct, frozen=True, kw_only=True):
    """What a trigger did for one occasion."""

    trigger: str
    occasion: str
    source: str
    fired_at: int
    due: int | None = None
    message: str | None = None
    """The message that it sent, in the inbox of a session."""
    posted: str | None = None
    """The message of a conversation that it posted."""
    cause: str | None = None
    hops: int = 0
    error: str | None = None
    error_code: str | None = None
    state: str | None = None
    """What became of the message: queued, taken, answered, dead or cancelled."""
    turn: str | None = None


class FiringOutcome(Struct, frozen=True, kw_only=True):
    """What came of an attempt to fire. `is_new` is false where it had fired for this occasion before."""

    firing: Firing | None
    is_new: bool
    admission: Admission | None = None
    paused: str | None = None
    """Why the trigger was paused instead."""


class MissedTimes(Struct, frozen=True, kw_only=True):
    """Times of a schedule at which a trigger did not fire."""

    trigger: str
    count: int
    first: int
    last: int
    reason: str | None = None
    noted_at: int = 0


class TriggerCursor(Struct, frozen=True):
    """How far a trigger has looked."""

    version: int
    position: int
    state: str | None


class TriggerStanding(Struct, frozen=True, kw_only=True):
    """A trigger as this ledger counts it: which version of its configuration, since when, and in whose name."""

    id: str
    version: int
    since_n: int
    since_ms: int
    """When it was configured or resumed last: what was before sets it off no more."""
    principals: tuple[str, ...]
    """Whoever wrote the configuration that counts, and whoever created it, with those on whose behalf."""
    owner: str
    """Whoever created it; where that does not count here, whoever configured it."""
    cursor: TriggerCursor | None = None
