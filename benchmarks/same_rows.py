"""The floor below Weft's own rows: the statements of its appends, run again on a bare connection.

A twin ledger records each turn before the clock starts, and every statement it runs is written down with its values.
What is timed is the engine alone, writing the same rows, indexes and views in the same commit: nothing is hashed,
encoded, checked or decided.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from benchmarks.measure import Action
from benchmarks.peers.bare import PRAGMAS
from benchmarks.subject import durability
from benchmarks.weft_subject import LEDGER, WeftLedger
from benchmarks.workload import Turn

Statement = tuple[str, Any]


class SameRows:
    def __init__(self, directory: Path) -> None:
        self._written: list[Statement] = []
        twin, rows = directory / "twin", directory / "rows.db"
        twin.mkdir(exist_ok=True)
        if not rows.exists():
            WeftLedger(twin).close()
            shutil.copy(twin / LEDGER, rows)
        with _hooked(self._watch):
            self._twin = WeftLedger(twin)
        self._connection = apsw.Connection(str(rows), statementcachesize=512)
        self._connection.execute(PRAGMAS)

    def _watch(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._note

    def _note(self, _: object, sql: str, values: Any) -> bool:
        self._written.append((sql, values))
        return True

    def appender(self, turn: Turn) -> Action:
        self._written.clear()
        self._twin.appender(turn)()
        statements, execute = list(self._written), self._connection.execute

        def run_again() -> None:
            for sql, values in statements:
                execute(sql, values)

        return run_again

    def forker(self) -> Action | None:
        return None

    def rejoin(self) -> None: ...

    def load(self) -> int:
        return len(list(self._connection.execute("select turn, seq, text from message")))

    def settings(self) -> str:
        pragma = self._connection.pragma
        return durability(pragma("journal_mode"), pragma("synchronous"))

    def close(self) -> None:
        self._twin.close()
        self._connection.close()


@contextmanager
def _hooked(hook: Callable[[apsw.Connection], None]) -> Iterator[None]:
    """Every connection that is made meanwhile is shown to the hook."""
    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)
