"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.import_writer import ImportWriter
from weft.ledger.imports.kept_sources import RawBytes, RawFile, SourceRange, kept_stretches
from weft.ledger.imports.prepared_turns import PreparedTranscript, prepare_session
from weft.ledger.imports.provisional import OpenTail, ProvisionalItem, ProvisionalTurn, provisional_turns
from weft.ledger.imports.sources import (
    ImportCounts,
    ImportSource,
    TranscriptTurn,
    adopt_secret,
    import_secret,
    whole_turn,
)
from weft.ledger.search.prepared_words import PreparedWords, TextWords

__all__ = [
    "ImportCounts",
    "ImportSource",
    "ImportWriter",
    "OpenTail",
    "PreparedTranscript",
    "PreparedWords",
    "ProvisionalItem",
    "ProvisionalTurn",
    "RawBytes",
    "RawFile",
    "SourceRange",
    "TextWords",
    "TranscriptTurn",
    "adopt_secret",
    "import_secret",
    "kept_stretches",
    "prepare_session",
    "provisional_turns",
    "whole_turn",
]
