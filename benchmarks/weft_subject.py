"""Weft behind the protocol, and the operations that only Weft has: many writers, typed reading, verifying."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft
from benchmarks.measure import Action
from benchmarks.subject import durability
from benchmarks.workload import Turn
from weft import Message, TextPart, ToolResultPart, ToolUsePart
from weft.store.sql import rows_in

SESSION = "main"
LEDGER = "ledger.db"


class WeftLedger:
    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER
        self._open(str(self.path), SESSION)

    def _open(self, address: str, session: str) -> None:
        self.ledger = weft.open(address)
        self._session = session
        self._forks = 0

    def forget(self) -> None:
        """Nothing that was read before is at hand but what the database itself keeps, as the peers' databases do."""
        self.ledger._kept_turns.clear()

    def appender(self, turn: Turn) -> Action:
        fields = as_fields(turn)
        return lambda: self.ledger.record_turn(session=self._session, **fields)

    def forker(self) -> Action | None:
        self._forks += 1
        tip, label = self.tip, f"fork-{self._forks}"
        return lambda: self.ledger.fork(tip, label=label)

    def rejoin(self) -> None: ...

    def load(self) -> int:
        """Queries, calls, results and responses, as the next turn would be given them."""
        return len(self.ledger.context(session=SESSION).messages)

    def settings(self) -> str:
        """Opening reads both back and refuses a file that would not keep them."""
        return durability("wal", 2)

    def close(self) -> None:
        self.ledger.close()

    @property
    def tip(self) -> str:
        head = self.ledger.session(SESSION).head
        assert head is not None, "it is asked for after the first turn"
        return head

    def thread(self) -> list[Message]:
        """The messages that the main thread keeps, typed: queries and responses."""
        return list(self.ledger.thread(SESSION).messages)

    def context(self) -> list[Message]:
        """The same with the tool calls and their results in place."""
        return list(self.ledger.context(session=SESSION).messages)

    def fork_sessions(self, labels: Sequence[str]) -> None:
        tip = self.tip
        for label in labels:
            self.ledger.fork(tip, label=label)

    def events(self) -> int:
        return int(self.ledger.upkeep.stats()["events"])

    def verify_facts(self) -> None:
        _expect_clean(list(self.ledger.verify(views=False)))

    def verify_views(self) -> None:
        _expect_clean(list(self.ledger.verify(facts=False)))

    def record_together(self, work: Sequence[tuple[str, Sequence[Turn]]]) -> Action:
        """One writer a session. The action lets all of them go and waits for the last."""
        start = threading.Barrier(len(work) + 1)
        failures: list[BaseException] = []

        def write(session: str, fields: list[dict[str, Any]]) -> None:
            start.wait()
            try:
                for each in fields:
                    self.ledger.record_turn(session=session, **each)
            except Exception as error:  # raised again in the timing thread
                failures.append(error)

        prepared = [(session, [as_fields(turn) for turn in turns]) for session, turns in work]
        writers = [threading.Thread(target=write, args=each) for each in prepared]
        for writer in writers:
            writer.start()

        def together() -> None:
            start.wait()
            for writer in writers:
                writer.join()
            if failures:
                raise failures[0]

        return together


class WeftServer(WeftLedger):
    """A ledger in PostgreSQL."""

    def __init__(self, address: str, session: str = SESSION) -> None:
        self._open(address, session)

    def settings(self) -> str:
        """Opening asserts both."""
        return "fsync=on, synchronous_commit=on"

    def lock_held_ms(self) -> float | None:
        """How long the last turns held the writers' lock: from when they took it to their commit, both by the server's
        clock. None where no turn went straight."""
        locks: dict[int, int] = dict(self.ledger._store._straight.locks)  # type: ignore[attr-defined]
        if not locks:
            return None
        with self.ledger._store.read() as txn:
            asked = "SELECT n, CAST(extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000 AS BIGINT) FROM log"
            ends: dict[int, int] = dict(rows_in(txn.sql, f"{asked} WHERE n IN", locks))
        return sum(ends[n] - began for n, began in locks.items()) / len(locks) / 1e3


def columns(messages: Sequence[Message]) -> list[tuple[str | int | None, ...]]:
    """Each as the public columns of `messages`, `content` being all that is written in it, to be read without Weft."""
    return [_columns(each, "".join(_text(part) for part in each.content)) for each in messages]


def _columns(each: Message, text: str) -> tuple[str | int | None, ...]:
    made = (each.id, each.id[:26], str(each.role), text, each.source, each.sequence, each.created_at)
    return (*made, each.thinking, None, None)


def _text(part: object) -> str:
    if isinstance(part, TextPart):
        return str(part.text)
    if isinstance(part, ToolUsePart):
        return json.dumps(part.input)
    return str(part.output) if isinstance(part, ToolResultPart) else ""


def as_fields(turn: Turn) -> dict[str, Any]:
    call = {"id": turn.call, "name": turn.tool, "arguments": turn.arguments, "result": turn.result}
    return {
        "query": turn.query,
        "response": turn.response,
        "model": turn.model,
        "usage": turn.usage,
        "tool_calls": [call],
    }


def _expect_clean(findings: list[Any]) -> None:
    if findings:
        raise AssertionError(f"verify found {len(findings)} differences, the first: {findings[0]}")
