"""Weft behind the protocol, and the operations that only Weft has: many writers, typed reading, verifying."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft
from benchmarks.measure import Action
from benchmarks.workload import Turn

SESSION = "main"
LEDGER = "ledger.db"


class WeftLedger:
    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER
        self.ledger = weft.open(self.path)
        self._forks = 0

    def appender(self, turn: Turn) -> Action:
        fields = as_fields(turn)
        return lambda: self.ledger.record_turn(session=SESSION, **fields)

    def forker(self) -> Action | None:
        self._forks += 1
        tip, label = self.tip, f"fork-{self._forks}"
        return lambda: self.ledger.fork(tip, label=label)

    def rejoin(self) -> None: ...

    def load(self) -> int:
        return len(list(self.ledger.thread(self.tip).messages))

    def settings(self) -> str:
        return "wal, synchronous=full"

    def close(self) -> None:
        self.ledger.close()

    @property
    def tip(self) -> Any:
        return self.ledger.session(SESSION).head

    def texts(self) -> list[tuple[str, str]]:
        """The main thread as (role, text), to be read again without Weft."""
        return [(str(message.role), message.text) for message in self.ledger.thread(self.tip).messages]

    def read(self) -> int:
        """Every message of the main thread, typed, with its text in hand."""
        return len([(message.role, message.text) for message in self.ledger.thread(self.tip).messages])

    def fork_sessions(self, labels: Sequence[str]) -> None:
        tip = self.tip
        for label in labels:
            self.ledger.fork(tip, label=label)

    def events(self) -> int:
        return int(self.ledger.stats()["events"])

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
