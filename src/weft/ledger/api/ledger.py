"""The ledger: the public face of recording, forking, reading and verifying. Thread-safe."""

from __future__ import annotations

from types import TracebackType

from weft.ledger.api.audit import Auditing
from weft.ledger.api.erasure import Erasing
from weft.ledger.api.imports import Importing
from weft.ledger.api.lookups import Finding
from weft.ledger.api.merges import Merging
from weft.ledger.api.packing import Packing
from weft.ledger.api.reading import Reading
from weft.ledger.api.recording import Recording
from weft.ledger.api.search import MOMENT
from weft.ledger.api.secrets import Secrets
from weft.ledger.api.sessions import Sessions
from weft.ledger.api.upkeep import Keeping
from weft.ledger.api.usage import Spending
from weft.ledger.write.leases import give_up


class Ledger(
    Recording, Sessions, Merging, Reading, Finding, Importing, Spending, Auditing, Keeping, Erasing, Packing, Secrets
):
    """One ledger, open. Use it as a context manager, or close it."""

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Turns that this ledger began and nobody ended become `failed`; their sessions are free at once."""
        try:
            give_up(self._desk)
            self.index_if_behind(seconds=MOMENT)
            self._show_codeblocks(MOMENT)
        finally:
            self._store.close()
