"""The importers' contract, for opencode."""

from pathlib import Path

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.opencode.sessions import (
    dialogue,
    every_kind,
    export,
    info,
    newer_export,
    write_database,
    write_export,
    write_folder,
    write_newer,
)
from tests.exchange.importers.test_opencode_containers import everything
from weft.exchange.importers.opencode import Opencode


class TestOpencode(OwnImporterContract):
    importer = Opencode()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write_export(folder, export(everything())),
            write_folder(folder, dialogue(), info(id="ses_two")),
            write_database(folder, everything()),
        ]


class TestOpencode2(OwnImporterContract):
    importer = Opencode()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write_newer(folder, every_kind()),
            write_export(folder, newer_export([row | {"id": f"{row['id']}x"} for row in every_kind()])),
        ]
