"""Records what servers say of their resources while a broker runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weft.ledger.api import Runs
from weft.runtime.turns.ledger_port import Crossing

if TYPE_CHECKING:
    from weft.runtime.mcp.connection import OnNotice, ResourceNotice


def notice_recorder(runs: Runs, crossing: Crossing) -> OnNotice:
    """For `McpServers`: each notice becomes an event of the ledger's own stream. A notice is
    not written again while the same one is being written."""
    writing: set[ResourceNotice] = set()

    async def record(notice: ResourceNotice) -> None:
        if notice in writing:
            return
        writing.add(notice)
        try:
            await crossing.run(partial(runs.record_resource_change, notice.server, notice.uri))
        finally:
            writing.remove(notice)

    return record
