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

from weft.kernel.advice import Action
from weft.kernel.authority import Authority, Principal, PrincipalKind
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.labels import normal_form
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.views.rows import find_session, load_session
from weft.store.sql import Sql

ACTING_KINDS = ("agent", "human")
"""Kinds of program in whose name events are written."""
_KINDS = {PrincipalKind.AGENT: ("agent",), PrincipalKind.HUMAN: ("human",), PrincipalKind.PROGRAM: ACTING_KINDS}


class Attribution:
    """An authority as ids. Looked up when the first event is begun."""

    def __init__(self, sql: Sql, authority: Authority) -> None:
        self._sql, self._authority = sql, authority

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Of whoever acts, then of those on whose behalf, the nearest first."""
        return tuple(self._id(principal) for principal in reversed(self._authority.chain))

    def of(self, stream: str, agent: str) -> tuple[str, tuple[str, ...] | UnsetType]:
        """Actor and `on_behalf_of` of the events of a stream that belongs to an agent."""
        if self._authority.is_local:
            return agent, UNSET
        principal, *others = self.ids
        if stream.startswith("run:") and agent != principal:
            return agent, self.ids
        return principal, tuple(others) or UNSET

    def _id(self, principal: Principal) -> str:
        if principal.id == DEFAULT_AGENT:
            return DEFAULT_AGENT
        if principal.id == IMPORTED_AGENT:
            raise NotApplicable(f"{IMPORTED_AGENT!r} stands for imported history and does not act", "act as another")
        if principal.kind is PrincipalKind.SESSION:
            session = find_session(self._sql, principal.id) or load_session(self._sql, principal.id)
            if session is None:
                raise NotFound("session", principal.id, Action.LIST_SESSIONS)
            return session.id
        return self._program(principal)

    def _program(self, principal: Principal) -> str:
        query = "SELECT id, kind FROM program WHERE (name = ? OR id = ?) AND deleted = 0 ORDER BY name = ? DESC"
        row = self._sql.one(query, (normal_form(principal.id),) * 3)
        if row is None or row[1] not in _KINDS.get(principal.kind, ()):
            raise NotFound("agent or person", principal.id, "who acts is a person, an agent, or 'local'")
        return str(row[0])
