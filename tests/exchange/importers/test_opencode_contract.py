"""The importers' contract, for opencode."""

from pathlib import Path

import weft
from tests.exchange.fixtures.opencode.sessions import dialogue, export, info, write_database, write_export, write_folder
from tests.exchange.importers.test_opencode_containers import everything
from weft.exchange.importers.opencode import Opencode
from weft.exchange.testing import ImporterContract


class TestOpencode(ImporterContract):
    importer = Opencode()
    open = staticmethod(weft.open)
    whole = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            write_export(folder, export(everything())),
            write_folder(folder, dialogue(), info(id="ses_two")),
            write_database(folder, everything()),
        ]
