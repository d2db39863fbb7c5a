"""The importers' contract, for the importer that the tests themselves use."""

import json
from pathlib import Path

import weft
from tests.exchange.toy import Toy
from weft.exchange.importers.testing import ImporterContract


class TestToy(ImporterContract):
    importer = Toy()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        lines = [
            {"session": "s1", "title": "First"},
            {"id": "t1", "ask": "hi", "answer": "yo", "at": 1_700_000_000_000, "model": "m", "tokens": {"input": 5}},
            {"what": "unknown"},
            {
                "id": "t2",
                "parent": "t1",
                "ask": "and?",
                "answer": "so",
                "calls": [{"id": "c1", "name": "r", "result": 1}],
            },
            {"id": "t3", "parent": "t1", "ask": "or?", "answer": "x" * 5_000},
        ]
        path = folder / "a.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [path]
