"""A ledger in which tool calls wait for a person, without a model: brokers run their turns up to the question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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


def waiting(ledger: Ledger, *tools: str, worlds: Sequence[str] = ("quiet",) * 3) -> tuple[Gated, str]:
    """A turn that waits for a person about these calls, and its message. `worlds` are what the tools light, door and
    send are used on."""
    gated = Gated(ledger, FixedClock(SystemClock().now_ms()), Decision.ASK, saying("", *tools), saying("Hi"))
    for tool, world in zip(gated.tools.values(), worlds, strict=True):
        tool.world = world
    message = gated.bench.admit()
    asyncio.run(gated.serve(message))
    return gated, message
