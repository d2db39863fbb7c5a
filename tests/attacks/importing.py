"""One import of hostile files beside honest ones."""

from pathlib import Path

import weft
from tests.exchange.toy import Toy
from weft.exchange.importers.port import Importer
from weft.exchange.importing.run import ImportRun, ImportSummary
from weft.kernel.clock import Clock, SystemClock


def imported(
    tmp_path: Path, *sources: Path, importer: Importer | None = None, clock: Clock | None = None
) -> tuple[ImportSummary, int]:
    """What came of it, and how many turns the ledger has now."""
    with weft.open(tmp_path / "ledger.db") as ledger:
        summary = ImportRun(ledger, [importer or Toy()], clock or SystemClock()).run(sources)
        return summary, sum(1 for _ in ledger.log())
