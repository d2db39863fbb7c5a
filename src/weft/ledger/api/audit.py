"""Auditing: what was used against what was allowed, and everything an actor did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.read.moments import read_moment
from weft.ledger.reports import audit
from weft.ledger.reports.actor_history import ActorEvent, deeds
from weft.ledger.reports.audit import AuditChoice, AuditFinding, AuditTally, SuggestedGrant
from weft.ledger.write.append import reads_whole


class AuditReports(LedgerPart):
    """`ledger.audit`: what agents did, and whether it was allowed."""

    @reads_whole
    def findings(
        self, *names: str, tally: AuditTally | None = None, **only: Unpack[AuditChoice]
    ) -> Iterator[AuditFinding]:
        """Tools used without being allowed, as they are met; then, by session, turn or persona, what was not known and
        what was granted or there and never used. `names` are sessions (the turns they made) or turns; none: all.
        `tally` is told what was looked at."""
        if tally is not None and not isinstance(tally, AuditTally):
            raise InvalidInput(f"tally is {type(tally).__name__}", "give an AuditTally, or none")
        return audit.audit(self._store, self._audit_scope(names, only), AuditTally() if tally is None else tally)

    @reads_whole
    def suggest(self, *names: str, **only: Unpack[AuditChoice]) -> list[SuggestedGrant]:
        """The smallest grant that the calls of each agent would have needed."""
        return audit.suggest(self._store, self._audit_scope(names, only))

    def _audit_scope(self, names: tuple[str, ...], only: AuditChoice) -> audit.Scope:
        if unknown := set(only) - set(AuditChoice.__annotations__):
            raise InvalidInput(
                f"audit knows no {quoted(min(unknown))}", f"known: {', '.join(AuditChoice.__annotations__)}"
            )
        now, zone = self._clock.now_ms(), self._zone
        moments = (
            read_moment(only.get("since"), "since", now, zone),
            read_moment(only.get("until"), "until", now, zone),
        )
        with self._store.read() as txn:
            return audit.scope_of(txn, names, moments, only, self._parse_time)

    @reads_whole
    def actor_history(
        self, actor: str | None = None, *, since: int | str | None = None, until: int | str | None = None
    ) -> Iterator[ActorEvent]:
        """Every event by an actor, an agent's name or id, in order of arrival; None: by anybody."""
        now, zone = self._clock.now_ms(), self._zone
        first = read_moment(since, "since", now, zone)
        last = read_moment(until, "until", now, zone)
        if actor is not None:
            with self._store.read() as txn:
                actor = audit.actor_id(txn, actor)
        return deeds(self._store, actor, first, last)
