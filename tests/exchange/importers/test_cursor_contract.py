"""The importers' contract, for Cursor: transcripts are appended to, databases and exports are rewritten."""

from pathlib import Path

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.cursor.sessions import (
    COMPOSER,
    EXPORT,
    TEXT,
    answer,
    chat_items,
    composer_items,
    dialogue,
    session_rows,
    store_messages,
    transcript_lines,
    transcript_path,
    user,
    write_lines,
    write_state,
    write_store,
)
from weft.exchange.importers.cursor import Cursor


class TestCursorTranscripts(OwnImporterContract):
    importer = Cursor()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        text = folder / "projects" / "shop" / "agent-transcripts" / "old.txt"
        paths = [write_lines(transcript_path(folder, COMPOSER), transcript_lines()), text]
        text.write_text(TEXT)
        return paths


class TestCursorDatabases(OwnImporterContract):
    importer = Cursor()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        chat = chat_items(
            {"type": "user", "id": "u1", "text": "Hello?"}, {"type": "ai", "id": "a1", "text": "Yes.", "modelType": "m"}
        )
        older = composer_items(user("c1", "Do it."), answer("c2", "Done."))
        export = folder / "cursor_find_the_bug.md"
        export.write_text(EXPORT)
        orphan = {f"bubbleId:{COMPOSER}:lost": user("lost", "Never mind.")}
        return [
            write_state(folder, session_rows(*dialogue()) | orphan),
            write_state(folder, {}, chat | older, name="old.vscdb"),
            write_store(folder, store_messages()),
            export,
        ]
