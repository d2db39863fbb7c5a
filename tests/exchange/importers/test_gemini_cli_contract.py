"""The importers' contract, for both forms of Gemini CLI's chats."""

from pathlib import Path

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.gemini_cli.chats import dialogue, everything, write, write_document
from weft.exchange.importers.gemini_cli import GeminiCli

MESSAGES = [line for line in everything() if "type" in line]


class TestLog(OwnImporterContract):
    importer = GeminiCli()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, *everything()),
            write(folder, {**dialogue()[0], "sessionId": "other"}, *dialogue()[1:], name="copy.jsonl"),
        ]


class TestDocument(OwnImporterContract):
    importer = GeminiCli()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [write_document(folder, *MESSAGES)]
