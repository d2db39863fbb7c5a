"""Packing: what is cold takes less room, and stays what it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ledger.api.base import LedgerBase
from weft.ledger.arguments import checked_flag, checked_names, checked_progress
from weft.ledger.upkeep import packing
from weft.ledger.upkeep.packing import Packed
from weft.ledger.upkeep.recompute import silent


class PackVerbs(LedgerBase):
    """What compresses cold trees."""

    def pack(
        self,
        what: str | Sequence[str] = (),
        *,
        older_than: int | str | None = None,
        dry_run: bool = False,
        progress: Any = None,
    ) -> Packed:
        """Compress the contents of whole trees: of those that these names lead to, or of all; with `older_than` (Unix
        ms, or words such as '90 days ago') only where nothing happened since. Everything reads as before."""
        return packing.pack(
            self._store,
            checked_names(what, "name"),
            None if older_than is None else self._moment(older_than, "older_than"),
            self._resolve,
            dry_run=checked_flag(dry_run, "dry_run"),
            report=checked_progress(progress) or silent,
        )

    def unpack(self, what: str | Sequence[str] = (), *, progress: Any = None) -> Packed:
        """Put contents back where a plain SQL shell reads them: of these trees, or all."""
        return packing.unpack(
            self._store, checked_names(what, "name"), self._resolve, checked_progress(progress) or silent
        )
