"""Erasing: what would go, and letting it go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.kernel.errors import ErasureChanged, InvalidInput
from weft.ledger import erasing
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.arguments import checked_flag, checked_progress, checked_text
from weft.ledger.erasing import Erasure, ErasurePlan, Tombstone
from weft.ledger.upkeep.recompute import silent
from weft.ledger.write.append import reads_whole, requires

ATTEMPTS = 5


class Erasures(LedgerPart):
    """`ledger.erasure`: takes contents away for good."""

    def __init__(self, ledger: LedgerBase) -> None:
        super().__init__(ledger)
        self._plans: list[ErasurePlan] = []
        """Made here for somebody who may not erase everything: no other plan is carried out for them."""

    def plan(
        self, what: str | Sequence[str], *, tree: bool = False, everywhere: bool = False, progress: Any = None
    ) -> ErasurePlan:
        """What `erase` would take, what it would leave and why, and which copies hold it.

        A content is named by its reference, a session by its label or id, a turn by any name of it. `tree` means all
        turns of the tree and the sessions in it; `everywhere` also takes contents that other turns use too.
        """
        if checked_flag(everywhere, "everywhere"):
            self._writer.ensure_whole("content:erase")
        plan = erasing.make_plan(
            self._store,
            what,
            self._resolve,
            tree=checked_flag(tree, "tree"),
            everywhere=everywhere,
            report=checked_progress(progress) or silent,
        )
        if not self._writer.authority.is_unlimited:
            self._plans.append(plan)
        return plan

    @requires("content:erase")
    def erase(
        self,
        what: str | Sequence[str] | ErasurePlan,
        *,
        reason: str,
        tree: bool = False,
        everywhere: bool = False,
        remainders: Mapping[str, str] | None = None,
        progress: Any = None,
    ) -> Erasure:
        """Erase contents for good. A plan is carried out as it stands, or refused if it no longer holds. `remainders`
        are texts, by the reference of the content that each is shown in place of."""
        if not checked_text(reason, "reason").strip():
            raise InvalidInput("an erasure needs a reason", "say why, without saying what")
        texts = _checked_remainders(remainders)
        if isinstance(what, ErasurePlan):
            if what not in self._plans:
                self._writer.ensure_whole("content:erase")
            return erasing.erase(self._writer, what, reason, texts)
        for _ in range(ATTEMPTS - 1):
            try:
                plan = self.plan(what, tree=tree, everywhere=everywhere, progress=progress)
                return erasing.erase(self._writer, plan, reason, texts)
            except ErasureChanged:
                continue
        plan = self.plan(what, tree=tree, everywhere=everywhere, progress=progress)
        return erasing.erase(self._writer, plan, reason, texts)

    @requires("content:erase", whole=True)
    def finish(self) -> bool:
        """Go on with an erasure that could not be finished, since somebody read what was there before. True when
        nothing is left to be done; opening a ledger for writing tries it, too."""
        return erasing.finish(self._store)

    @reads_whole
    def done(self) -> list[Tombstone]:
        """Who erased what, when and why; the newest first."""
        with self._store.read() as txn:
            return erasing.tombstones(txn)

    @reads_whole
    def pending(self) -> list[Tombstone]:
        """Erasures of other ledgers that came with their facts, of contents that are still here."""
        self._store.catch_up()
        with self._store.read() as txn:
            return erasing.pending(txn)


def _checked_remainders(remainders: Any) -> dict[str, str]:
    if remainders is None:
        return {}
    if not isinstance(remainders, Mapping):
        raise InvalidInput(f"remainders is {type(remainders).__name__}", "give texts by the references of contents")
    return {checked_text(ref, "reference"): checked_text(text, "remainder") for ref, text in remainders.items()}
