"""What MCP servers say of their resources, in the ledger's own stream: it concerns no turn and may come at any time."""

from __future__ import annotations

from weft.kernel.dag_events import McpResourceListChanged, McpResourceUpdated
from weft.kernel.events import ledger_stream
from weft.ledger.write.append import Append, LedgerWriter


def record_resource_change(writer: LedgerWriter, server: str, uri: str | None) -> str:
    """A server said that a resource changed, or without `uri` that its list of them did. Returns the event's id."""

    def work(append: Append) -> str:
        name = ledger_stream(append.replica)
        tip = append.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        stream = append.stream(name, bytes(tip[0]).hex() if tip else None)
        contents = append.ledger_contents
        named = contents.named(server, "server")
        if uri is None:
            event = stream.add(McpResourceListChanged, server=named)
        else:
            event = stream.add(McpResourceUpdated, server=named, uri=contents.put_text(uri))
        append.seal()
        return event

    return writer.write(work)
