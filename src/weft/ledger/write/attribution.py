"""Whose ids stand in the events of one append: who acted, and on whose behalf.

The ledger's owner acting alone leaves events as they are: an event names the agent that its stream belongs to. Anybody
else is named. A turn is the work of the agent that answers, so that agent stays the actor of the run's events, and the
principals follow as those on whose behalf it was done. Of every other event the principal is the actor.

Principals are looked up in the append itself: an agent or a person that was deleted meanwhile writes nothing. Only ids
of programs and sessions of this ledger enter an event, never a name that somebody gave.
"""

from __future__ import annotations

from functools import cached_property

from msgspec import UNSET, UnsetType

from weft.kernel.authority import Authority
from weft.ledger.read.access import chain_ids
from weft.store.port import ReadTxn


def _attributed(ids: tuple[str, ...], stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
    principal, *others = ids
    if stream.startswith("run:") and agent != principal:
        return agent, ids
    return principal, tuple(others) or UNSET


class FixedAttribution:
    """Principals whose ids are known already: whoever acts, then those on whose behalf, the nearest first."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    def of(self, stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
        return _attributed(self.ids, stream, agent)


class Attribution:
    """An authority that is not the ledger's own user, as ids. Looked up when the first event is begun."""

    def __init__(self, txn: ReadTxn, authority: Authority) -> None:
        self._txn, self._authority = txn, authority

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Of whoever acts, then of those on whose behalf, the nearest first."""
        return tuple(reversed(chain_ids(self._txn, self._authority)))

    def of(self, stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
        """Actor and `on_behalf_of` of the events of a stream that belongs to an agent."""
        return _attributed(self.ids, stream, agent)
