"""Taking in other tools' history: chains, sightings, versions and links."""

from weft.ledger.imports.import_writer import ImportWriter, PreparedTranscript, prepare_session
from weft.ledger.imports.sources import (
    ImportCounts,
    ImportSource,
    OpenTail,
    ProvisionalItem,
    ProvisionalTurn,
    RawBytes,
    RawFile,
    SourceRange,
    TranscriptTurn,
    adopt_secret,
    import_secret,
    kept_stretches,
    provisional_turns,
    whole_turn,
)
from weft.ledger.read.search_index import PreparedWords, TextWords

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
