"""A ledger in which tool calls wait for a person, without a model: brokers run their turns up to the question."""

from __future__ import annotations

import asyncio
from typing import Any

import weft
from tests.runtime.broker.bench import saying
from tests.runtime.broker.test_gated_calls import Gated
from tests.surfaces.shell import Shell
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.enums import Decision
from weft.ledger.api import Ledger

LEDGER = ".weft/ledger.db"


def opened(shell: Shell) -> Ledger:
    ledger: Ledger = weft.open(shell.folder / LEDGER)
    return ledger


def waiting(ledger: Ledger, *tools: str, world: str = "quiet", **options: Any) -> tuple[Gated, str]:
    """A turn that waits for a person about these calls, and its message."""
    gated = Gated(ledger, FixedClock(SystemClock().now_ms()), Decision.ASK, saying("", *tools), saying("Hi"), **options)
    for tool in gated.tools.values():
        tool.world = world
    message = gated.bench.admit()
    asyncio.run(gated.serve(message))
    return gated, message
