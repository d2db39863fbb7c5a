"""The groups `usage` and `audit`: what was spent, what was used against what was allowed, and
everything an actor did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Unpack

from weft.kernel.errors import InvalidInput, ReadOnlyLedger, StoreFailed, quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import checked_flag
from weft.ledger.read.revisions import read_moment
from weft.ledger.reports import audit, usage, usage_totals
from weft.ledger.reports.audit import ActorEvent, AuditChoice, AuditFinding, AuditTally, SuggestedGrant, deeds
from weft.ledger.reports.usage import (
    AbandonedUsage,
    BranchUsage,
    Prices,
    UsageChoice,
    UsageReport,
    UsageTree,
    WorkReport,
    usage_tree,
    work_report,
)
from weft.ledger.write.transaction import reads_whole

# --- What was spent.


class UsageReports(LedgerPart):
    """`ledger.usage`: tokens and cost."""

    def _catch_up(self) -> None:
        # A disk that is full or cannot be written keeps the totals behind: each report counts what they lack. Damage,
        # or a ledger that is elsewhere now, is said.
        with suppress(StoreFailed, ReadOnlyLedger):
            usage_totals.catch_up(self._store)

    @reads_whole
    def lag(self) -> int:
        """How many events the totals that reports read have not counted. Reports count these by themselves; one that
        may write lets the totals catch up first."""
        return usage_totals.lag_of(self._store)

    @reads_whole
    def report(self, by: str = "day", **only: Unpack[UsageChoice]) -> UsageReport:
        """What was spent, by day, week, month, project, session, model or origin; every response counts once."""
        self._catch_up()
        with self._store.read() as txn:
            return usage.report(txn, by, only, self._clock.now_ms(), self._zone, self._repository_of)

    @reads_whole
    def work(
        self,
        *,
        since: int | str | None = None,
        until: int | str | None = None,
        prices: Prices = None,
        about: bool = True,
    ) -> WorkReport:
        """What was worked on in a period: projects, sessions, agents, files and cost, the latest first. Without `about`
        nothing is told of what each session is called, was asked to do and spent: that takes the longest."""
        is_told = checked_flag(about, "about")
        self._catch_up()
        with self._store.read() as txn:
            now, zone = self._clock.now_ms(), self._zone
            return work_report(txn, since, until, now, zone, prices, self._repository_of, about=is_told)

    @reads_whole
    def branch(self, session: str, *, prices: Prices = None) -> BranchUsage:
        with self._store.read() as txn:
            return usage.branch_usage(txn, session, prices)

    @reads_whole
    def tree(self, turn: str, *, prices: Prices = None) -> UsageTree:
        """What a turn has cost, with its workers' turns and those of their workers."""
        with self._store.read() as txn:
            return usage_tree(txn, self._resolve(txn, turn).turn, prices)

    @reads_whole
    def abandoned(self, *, prices: Prices = None) -> AbandonedUsage:
        with self._store.read() as txn:
            return usage.abandoned_usage(txn, prices)


# --- Auditing: what was used against what was allowed, and everything an actor did.


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

    def _audit_scope(self, names: tuple[str, ...], only: AuditChoice) -> audit.AuditScope:
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
