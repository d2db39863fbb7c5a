"""The importers' contract, and damaged histories, for aider."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.aider.histories import AIDER, answer, dialogue, everything, header, output, prompt, write
from tests.exchange.importers.test_aider import TestInputHistory, TestLlmHistory
from tests.exchange.reading import read
from weft.exchange.importers.testing import as_source


class TestAider(OwnImporterContract):
    importer = AIDER
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [
            write(folder, everything()),
            write(folder / "b", dialogue().replace("2026", "2025")),
            write(folder / "c", TestLlmHistory.LOG, ".aider.llm.history"),
            write(folder / "d", TestInputHistory.INPUTS, "my.aider.input.history"),
        ]


def read_bytes(folder: Path, data: bytes) -> None:
    path = folder / "history.md"
    path.write_bytes(data)
    AIDER.recognises(as_source(path))
    read(AIDER, path)


LINES = st.sampled_from(
    [
        header(),
        prompt("Hi"),
        prompt("/add x"),
        answer("So."),
        output("Added x to the chat"),
        "> cut\n",
        "#### cut\n",
        "\n",
        "x  \n",
        ">\n",
        "####\n",
        "> Tokens: 1.k sent, ..M received. Cost: $1.2.3 message\n",
        "> Model: \n",
        "TO LLM 2026-01-01T00:00:00\n",
    ]
)


@given(st.lists(LINES, max_size=20), st.integers(0, 400), st.binary(max_size=3))
def test_lines_in_any_order_are_never_fatal_and_always_counted(lines: list[str], at: int, junk: bytes) -> None:
    data = "".join(lines).encode()
    with TemporaryDirectory() as folder:
        read_bytes(Path(folder), data[:at] + junk + data[at:])
