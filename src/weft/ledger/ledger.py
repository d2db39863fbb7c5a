"""The ledger: the public face of recording, forking, reading and verifying. Thread-safe."""

from __future__ import annotations

from types import TracebackType

from weft.ledger.faces.auditing import Auditing
from weft.ledger.faces.erasing import Erasing
from weft.ledger.faces.finding import Finding
from weft.ledger.faces.importing import Importing
from weft.ledger.faces.keeping import Keeping
from weft.ledger.faces.merging import Merging
from weft.ledger.faces.packing import Packing
from weft.ledger.faces.reading import Reading
from weft.ledger.faces.recording import Recording
from weft.ledger.faces.searching import MOMENT
from weft.ledger.faces.secrets import Secrets
from weft.ledger.faces.sessions import Sessions
from weft.ledger.faces.spending import Spending
from weft.ledger.leases import give_up


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
