"""What was spent."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

from weft.kernel.errors import ReadOnlyLedger, StoreFailed
from weft.ledger.api.base import LedgerPart
from weft.ledger.arguments import checked_flag
from weft.ledger.reports import usage, usage_totals
from weft.ledger.reports.usage import AbandonedUsage, BranchUsage, Prices, UsageChoice, UsageReport
from weft.ledger.reports.usage_tree import UsageTree, usage_tree
from weft.ledger.reports.work import WorkReport, work_report
from weft.ledger.write.append import reads_whole


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
