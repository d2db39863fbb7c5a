"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.import_writer import ImportDesk
from weft.ledger.imports.kept_sources import KeptStretch, RawBytes, RawFile, kept_stretches
from weft.ledger.imports.provisional import ProvisionalItem, ProvisionalTurn, Tail, provisional_turns
from weft.ledger.imports.secret import adopt_secret, import_secret
from weft.ledger.imports.sources import ImportCounts, ImportSource, Landed

__all__ = [
    "ImportCounts",
    "ImportDesk",
    "ImportSource",
    "KeptStretch",
    "Landed",
    "ProvisionalItem",
    "ProvisionalTurn",
    "RawBytes",
    "RawFile",
    "Tail",
    "adopt_secret",
    "import_secret",
    "kept_stretches",
    "provisional_turns",
]
