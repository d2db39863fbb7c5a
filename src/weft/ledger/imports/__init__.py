"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.desk import ImportDesk
from weft.ledger.imports.kept import KeptStretch, kept_stretches
from weft.ledger.imports.provisional import ProvisionalItem, ProvisionalTurn, Tail, provisional_turns
from weft.ledger.imports.raw import RawBytes, RawFile
from weft.ledger.imports.secret import adopt_secret, import_secret
from weft.ledger.imports.tasks import ImportCounts, ImportSource, Landed

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
