"""Sessions of Cursor: four generations of databases, and the transcripts and exports it writes."""

from weft.exchange.importers.cursor.importer import Cursor

__all__ = ["Cursor"]
