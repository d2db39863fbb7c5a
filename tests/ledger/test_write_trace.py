"""How many modules one recorded turn passes through, from the public verb to the committed row."""

from pathlib import Path

import weft
from tests.module_trace import ModuleTrace

MOST_MODULES = 20


def test_one_recorded_turn_executes_a_limited_number_of_modules(tmp_path: Path) -> None:
    call = {"id": "c1", "name": "read", "arguments": {"path": "a"}, "result": "text"}
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="first", response="one", model="m")
        with ModuleTrace() as trace:
            ledger.record_turn(session="main", query="second", response="two", model="m", tool_calls=[call])
    print(len(trace.modules), *sorted(trace.modules), sep="\n")
    assert {"weft.ledger.write.record_turn", "weft.store.fact_log"} <= trace.modules
    assert len(trace.modules) <= MOST_MODULES
