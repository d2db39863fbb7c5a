"""The importers' contract, for both forms of Gemini CLI's chats."""

from pathlib import Path

import weft
from tests.exchange.fixtures.gemini_cli.chats import dialogue, everything, write, write_document
from weft.exchange.importers.gemini_cli import GeminiCli
from weft.exchange.importers.testing import ImporterContract

MESSAGES = [line for line in everything() if "type" in line]


class TestLog(ImporterContract):
    importer = GeminiCli()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, *everything()),
            write(folder, {**dialogue()[0], "sessionId": "other"}, *dialogue()[1:], name="copy.jsonl"),
        ]


class TestDocument(ImporterContract):
    importer = GeminiCli()
    open = staticmethod(weft.open)
    whole = True

    def samples(self, folder: Path) -> list[Path]:
        return [write_document(folder, *MESSAGES)]
