"""JSON of some megabytes that would take hundreds of them once it is parsed."""

from pathlib import Path

import pytest

from tests.attacks.confined import run_confined
from tests.sizes import share
from weft.exchange.importers.foreign_files import read_document
from weft.exchange.importers.foreign_values import SOURCE_LIMITS, json_in_text, json_value

MANY = b"[" + b"[]," * (SOURCE_LIMITS.values + 1) + b"[]]"
IMPORTED = """
import sys
from pathlib import Path
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import SystemClock
summary = ImportRun(None, load_importers(sys.argv[1]), SystemClock(), force=True).run([Path(sys.argv[2])])
print(sum(totals.counts.turns for totals in summary.origins.values()), [problem.what for problem in summary.problems])
"""


def test_a_document_of_many_values_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="the values of a JSON text"):
        json_value(MANY)
    document = read_document(MANY)
    assert document.value is None
    assert "the values of a JSON text" in (document.damage or "")
    assert json_in_text(MANY.decode()) == MANY.decode()


SOURCES = [
    ("pi", "a.jsonl", b'{"type":"session","id":"a","x":', b"}\n"),
    ("openhands", "a.json", b"", b""),
    ("opencode", "a.json", b'{"info":{"id":"a"},"messages":', b"}"),
    ("codex", "a.json", b'{"session":{"id":"a"},"items":', b"}"),
]


@pytest.mark.slow("a process reads megabytes of values in as much memory as it may have")
@pytest.mark.parametrize(("origin", "name", "before", "after"), share(SOURCES, test=2))
def test_no_importer_takes_the_memory_that_a_source_asks_for(
    tmp_path: Path, origin: str, name: str, before: bytes, after: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(before + MANY + after)
    done = run_confined(IMPORTED, origin, path, megabytes=450)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.startswith("0 [")
    assert len(done.stdout) > len("0 []\n")
