"""The ledger: the public face of recording, forking, reading and verifying. Thread-safe."""

from __future__ import annotations

from types import TracebackType

from weft.ledger.api.audit import AuditVerbs
from weft.ledger.api.erasure import ErasureVerbs
from weft.ledger.api.imports import ImportVerbs
from weft.ledger.api.lookups import LookupVerbs
from weft.ledger.api.merges import MergeVerbs
from weft.ledger.api.packing import PackVerbs
from weft.ledger.api.reading import ReadVerbs
from weft.ledger.api.recording import RecordVerbs
from weft.ledger.api.search import MOMENT
from weft.ledger.api.secrets import SecretVerbs
from weft.ledger.api.sessions import SessionVerbs
from weft.ledger.api.upkeep import UpkeepVerbs
from weft.ledger.api.usage import UsageVerbs
from weft.ledger.write.leases import give_up


class Ledger(
    RecordVerbs,
    SessionVerbs,
    MergeVerbs,
    ReadVerbs,
    LookupVerbs,
    ImportVerbs,
    UsageVerbs,
    AuditVerbs,
    UpkeepVerbs,
    ErasureVerbs,
    PackVerbs,
    SecretVerbs,
):
    """One ledger, open. Use it as a context manager, or close it."""

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Turns that this ledger began and nobody ended become `failed`; their sessions are free at once."""
        try:
            give_up(self._writer)
            self.index_if_behind(seconds=MOMENT)
            self._show_codeblocks(MOMENT)
        finally:
            self._store.close()
