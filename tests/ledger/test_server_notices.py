"""What MCP servers say of their resources: events of the ledger's own stream, which verify and survive a rebuild."""

from __future__ import annotations

import orjson

import weft
from tests.ledger.histories import exported
from weft.kernel.events import ledger_stream
from weft.ledger.api.broker import Runs


def test_changes_of_resources_are_events_of_the_ledgers_own_stream() -> None:
    with weft.open(":memory:") as ledger:
        runs = Runs(ledger)
        first = runs.record_resource_change("github", "repo://acme/\u202eweft")
        second = runs.record_resource_change("github")
        lines = [orjson.loads(line) for line in exported(ledger).splitlines() if b'"mcp.' in line]
        events = [line.get("event", line) for line in lines]
        stream = ledger_stream(ledger.replica)
        assert [(event["kind"], event["server"], event["stream"]) for event in events] == [
            ("mcp.resource_updated", "github", stream),
            ("mcp.resource_list_changed", "github", stream),
        ]
        assert events[1]["prev"] == first != second
        assert runs.text(events[0]["uri"]) == "repo://acme/\u202eweft"
        assert list(ledger.verify()) == []
        assert ledger.upkeep.rebuild() == 0
