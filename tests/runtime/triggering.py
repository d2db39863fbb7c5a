"""A ledger with triggers and a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import weft
from weft.kernel.authority import LOCAL
from weft.kernel.clock import FixedClock
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import TextPart
from weft.programs import Programs
from weft.programs.triggers import single_time_ms
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.invoke.trigger_firing import TriggerSender
from weft.runtime.invoke.trigger_job import TriggerJob

T = TypeVar("T")
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
NOON = single_time_ms("2026-11-16T12:00:00Z")


class DirectCrossing:
    """Calls at once."""

    def __init__(self) -> None:
        self.shared: dict[Any, Any] = {}

    async def run(self, call: Callable[[], T]) -> T:
        return call()


class TriggerWorld:
    """One ledger, its programs, and brokers' jobs that are run by hand."""

    def __init__(self, ledger: Ledger, clock: FixedClock) -> None:
        self.ledger, self.clock, self.programs = ledger, clock, Programs(ledger)
        self.person = ExecutionContext(authority=LOCAL)

    def job(self) -> TriggerJob:
        return TriggerJob(self.sender(), DirectCrossing())

    def sender(self) -> TriggerSender:
        return TriggerSender(self.programs, self.person, self.clock)

    def create(self, name: str, **config: Any) -> str:
        return self.programs.create("trigger", name, config).id

    def at(self, ms: int) -> int:
        self.clock.set(ms)
        return ms

    def record(self, text: str, session: str) -> str:
        """A turn that was answered; its id."""
        return self.ledger.record_turn(query=text, response="yes", session=session, model="test").id

    def texts(self, session: str | None = None) -> list[str]:
        """What waits in inboxes, in order."""
        messages = self.ledger.inbox.list(session=session, limit=100_000)
        return [
            "".join(str(part.text) for part in message.content if isinstance(part, TextPart)) for message in messages
        ]


def open_world(where: Path | str) -> TriggerWorld:
    clock = FixedClock(NOON)
    return TriggerWorld(weft.open(where, clock=clock), clock)
