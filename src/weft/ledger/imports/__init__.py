"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.desk import ImportCounts, ImportDesk, ImportSource
from weft.ledger.imports.secret import adopt_secret, import_secret

__all__ = ["ImportCounts", "ImportDesk", "ImportSource", "adopt_secret", "import_secret"]
