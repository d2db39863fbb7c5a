"""The ledger: the public class, its verbs and its groups of verbs, each loaded when it is first used. Thread-safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.kernel.errors import InvalidInput, StoreError
from weft.kernel.events import Receipt
from weft.kernel.typed_names import Site
from weft.ledger.api.reading import MOMENT, ReadingLedger, StreamVerbs
from weft.ledger.api.recording import RecordVerbs, SessionVerbs
from weft.ledger.arguments import checked_progress
from weft.ledger.read.search_index import catch_up_if_far_behind
from weft.ledger.upkeep import verify as upkeep_verify
from weft.ledger.upkeep.verify import Problem
from weft.ledger.views import turns
from weft.ledger.write.transaction import reads_whole
from weft.ledger.write.turn_events import give_up

if TYPE_CHECKING:
    from weft.ledger.api.inbox import Approvals, Inbox, Policies
    from weft.ledger.api.merges import Compactions, Imports, Merges
    from weft.ledger.api.reading import Tree
    from weft.ledger.api.recording import Heads, Labels
    from weft.ledger.api.reports import AuditReports, UsageReports
    from weft.ledger.api.resources import Resources
    from weft.ledger.api.rooms import Rooms
    from weft.ledger.api.upkeep import Erasures, Secrets, Upkeep


class Ledger(RecordVerbs, SessionVerbs, StreamVerbs, ReadingLedger):
    """One ledger, open. Use it as a context manager, or close it."""

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Turns that this ledger began and nobody ended become `failed`; their sessions are free at once. What
        `acting_as` gave is not closed by itself: it ends with the ledger that it came from."""
        if self._closed_with is not None:
            self._closed_with.close()
        if not self._is_original:
            return
        try:
            give_up(self._writer)
            catch_up_if_far_behind(self._store, MOMENT, self._clock.monotonic)
            self._show_codeblocks(MOMENT)
        finally:
            self._store.close()

    def _show_codeblocks(self, seconds: float) -> None:
        """Let a plain SQL shell see the code blocks of what was recorded, as far as they are read out in this time."""
        if Site.of(self.path) is not Site.MEMORY:
            with suppress(StoreError):  # what was acknowledged is durable, so a failure here is nobody's
                turns.catch_up_lightly(self._store, seconds, self._clock.monotonic)

    @reads_whole
    def verify(
        self, *, facts: bool = True, views: bool = True, receipt: Receipt | None = None, progress: Any = None
    ) -> Iterator[Problem]:
        """Every problem there is; an empty list is a sound ledger."""
        report = checked_progress(progress) or upkeep_verify.silent
        if receipt is not None:
            if not isinstance(receipt, Receipt):
                raise InvalidInput(f"receipt is {type(receipt).__name__}", "give the receipt of a recorded turn")
            yield from upkeep_verify.verify_receipt(self._store, receipt)
        if facts:
            yield from upkeep_verify.verify_facts(self._store, report)
        if views:
            from weft.ledger.reports import usage_totals

            yield from upkeep_verify.verify_views(self._store, report, usage_totals.found_in)

    @cached_property
    def heads(self) -> Heads:
        from weft.ledger.api.recording import Heads

        return Heads(self)

    @cached_property
    def labels(self) -> Labels:
        from weft.ledger.api.recording import Labels

        return Labels(self)

    @cached_property
    def tree(self) -> Tree:
        from weft.ledger.api.reading import Tree

        return Tree(self)

    @cached_property
    def compactions(self) -> Compactions:
        from weft.ledger.api.merges import Compactions

        return Compactions(self)

    @cached_property
    def merges(self) -> Merges:
        from weft.ledger.api.merges import Merges

        return Merges(self)

    @cached_property
    def imports(self) -> Imports:
        from weft.ledger.api.merges import Imports

        return Imports(self)

    @cached_property
    def usage(self) -> UsageReports:
        from weft.ledger.api.reports import UsageReports

        return UsageReports(self)

    @cached_property
    def audit(self) -> AuditReports:
        from weft.ledger.api.reports import AuditReports

        return AuditReports(self)

    @cached_property
    def secrets(self) -> Secrets:
        from weft.ledger.api.upkeep import Secrets

        return Secrets(self)

    @cached_property
    def erasure(self) -> Erasures:
        from weft.ledger.api.upkeep import Erasures

        return Erasures(self)

    @cached_property
    def inbox(self) -> Inbox:
        from weft.ledger.api.inbox import Inbox

        return Inbox(self)

    @cached_property
    def approvals(self) -> Approvals:
        from weft.ledger.api.inbox import Approvals

        return Approvals(self)

    @cached_property
    def policies(self) -> Policies:
        from weft.ledger.api.inbox import Policies

        return Policies(self)

    @cached_property
    def rooms(self) -> Rooms:
        from weft.ledger.api.rooms import Rooms

        return Rooms(self)

    @cached_property
    def resources(self) -> Resources:
        from weft.ledger.api.resources import Resources

        return Resources(self)

    @cached_property
    def upkeep(self) -> Upkeep:
        from weft.ledger.api.upkeep import Upkeep

        return Upkeep(self)
