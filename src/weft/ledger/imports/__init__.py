"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.import_writer import ImportWriter
from weft.ledger.imports.kept_sources import KeptStretch, RawBytes, RawFile, kept_stretches
from weft.ledger.imports.provisional import OpenTail, ProvisionalItem, ProvisionalTurn, provisional_turns
from weft.ledger.imports.sources import ImportCounts, ImportSource, Landed, adopt_secret, import_secret

__all__ = [
    "ImportCounts",
    "ImportSource",
    "ImportWriter",
    "KeptStretch",
    "Landed",
    "OpenTail",
    "ProvisionalItem",
    "ProvisionalTurn",
    "RawBytes",
    "RawFile",
    "adopt_secret",
    "import_secret",
    "kept_stretches",
    "provisional_turns",
]
