"""What MCP servers say of their resources, in the ledger's own stream: it concerns no turn and may come at any time."""

from __future__ import annotations

from weft.kernel.dag_events import McpResourceListChanged, McpResourceUpdated
from weft.ledger.write.append import Append, LedgerWriter


def record_resource_change(writer: LedgerWriter, server: str, uri: str | None) -> str:
    """A server said that a resource changed, or without `uri` that its list of them did. Returns the event's id."""

    def work(append: Append) -> str:
        stream, contents = append.ledger_stream(), append.ledger_contents
        named = contents.named(server, "server")
        if uri is None:
            event = stream.add(McpResourceListChanged, server=named)
        else:
            event = stream.add(McpResourceUpdated, server=named, uri=contents.put_text(uri))
        append.seal()
        return event

    return writer.write(work)
