"""OpenAI Agents SDK: `AdvancedSQLiteSession`, the one of its sessions that can branch.

A turn is one `add_items` with its four items, in one commit; the SDK's own runner makes several. Usage is
kept by a second call that wants a finished run, and is left out. A branch copies the rows that point at the
messages before it, and the session moves to it.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Action
from benchmarks.subject import durability
from benchmarks.workload import Turn


class AdvancedSession:
    def __init__(self, directory: Path) -> None:
        session_type: Any = import_module("agents.extensions.memory").AdvancedSQLiteSession
        self._path = directory / "session.db"
        self._session = session_type(session_id="main", db_path=self._path, create_tables=True)
        self._runner = asyncio.Runner()
        self._turns = len(self._runner.run(self._session.get_conversation_turns()))

    def appender(self, turn: Turn) -> Action:
        items = _items(turn)

        def append() -> None:
            self._runner.run(self._session.add_items(items))
            self._turns += 1

        return append

    def forker(self) -> Action | None:
        turn = self._turns
        return lambda: self._runner.run(self._session.create_branch_from_turn(turn))

    def rejoin(self) -> None:
        self._runner.run(self._session.switch_to_branch("main"))

    def load(self) -> int:
        return len(self._runner.run(self._session.get_items()))

    def settings(self) -> str:
        """It sets only the journal's mode, so a new connection of the same library runs with the same."""
        with closing(sqlite3.connect(self._path)) as connection:
            (journal,) = connection.execute("pragma journal_mode").fetchone()
            (synchronous,) = connection.execute("pragma synchronous").fetchone()
        return durability(journal, synchronous)

    def close(self) -> None:
        self._session.close()
        self._runner.close()


def _items(turn: Turn) -> list[dict[str, Any]]:
    arguments = json.dumps(turn.arguments)
    return [
        {"role": "user", "content": turn.query},
        {"type": "function_call", "call_id": turn.call, "name": turn.tool, "arguments": arguments},
        {"type": "function_call_output", "call_id": turn.call, "output": turn.result},
        {"role": "assistant", "content": turn.response},
    ]
