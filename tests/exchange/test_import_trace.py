"""How many modules one imported file passes through: a reader who follows it has to open each of them."""

import os
from pathlib import Path

import weft
from tests.exchange.fixtures.claude_code.lines import Lines, use
from tests.module_trace import ModuleTrace
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock

MOST_MODULES = 51
WRITTEN_SECONDS = 1_000_000_000
IMPORTED_MS = 10_000_000_000_000


def test_one_claude_code_import_executes_a_limited_number_of_modules(tmp_path: Path) -> None:
    source = tmp_path / "b4a2.jsonl"
    lines = Lines("b4a2").user("p1", "one").answer("a1", use("c1")).result("r1", "c1").answer("a2", "done")
    source.write_bytes(lines.bytes())
    os.utime(source, (WRITTEN_SECONDS, WRITTEN_SECONDS))  # long ago: its last turn is closed
    importers = load_importers("claude-code")
    with weft.open(tmp_path / "ledger.db") as ledger:
        run = ImportRun(ledger, importers, FixedClock(IMPORTED_MS))
        with ModuleTrace() as trace:
            summary = run.run([source])
        assert summary.origins["claude-code"].counts.turns == 1
    print(len(trace.modules), *sorted(trace.modules), sep="\n")
    assert "weft.exchange.importers.claude_code.turns" in trace.modules
    assert len(trace.modules) <= MOST_MODULES
