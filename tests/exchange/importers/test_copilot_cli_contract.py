"""The importers' contract, and damaged sessions, for Copilot CLI."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.copilot_cli.events import COPILOT, dialogue, everything, lines, start, write
from tests.exchange.mutating import spoiled
from tests.exchange.reading import read
from weft.exchange.importers.testing import as_source

EVERY = json.loads(json.dumps(everything()))


class TestCopilotCli(OwnImporterContract):
    importer = COPILOT
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        copy = [start(sessionId="other"), *dialogue()[1:]]
        return [write(folder, *everything(), name="every.jsonl"), write(folder, *copy, name="copy.jsonl")]


def read_bytes(folder: Path, data: bytes) -> tuple[list[Any], Any]:
    path = folder / "session.jsonl"
    path.write_bytes(data)
    COPILOT.recognises(as_source(path))
    return read(COPILOT, path)


@given(spoiled(EVERY))
def test_events_with_other_values_are_never_fatal_and_always_counted(records: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), "".join(f"{json.dumps(record)}\n" for record in records).encode())


@given(st.integers(0, 8000), st.binary(max_size=4))
def test_bytes_put_in_anywhere_are_never_fatal(at: int, junk: bytes) -> None:
    data = lines(*EVERY)
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at:])


def test_glued_lines_are_two_records(tmp_path: Path) -> None:
    (found,), report = read_bytes(tmp_path, lines(*dialogue()).replace(b"}\n", b"}", 3))
    assert len(found.turns) == 2
    assert report.damaged == 0
