"""The importers' contract, for pi."""

from pathlib import Path

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.pi.sessions import dialogue, write
from tests.exchange.importers.test_pi_damage import EVERY
from tests.exchange.importers.test_pi_turns import DSH
from weft.exchange.importers.pi import Pi


class TestPi(OwnImporterContract):
    importer = Pi()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, *EVERY, name="every.jsonl"),
            write(folder, {**dialogue()[0], "id": "other"}, *dialogue()[1:], name="copy.jsonl"),
            write(folder, *DSH, name="dsh.jsonl"),
        ]
