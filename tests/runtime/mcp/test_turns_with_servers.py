"""Turns of a broker whose model calls tools of MCP servers: shared, restarted, recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

import weft
from tests.ledger.histories import exported
from tests.runtime.broker.bench import Bench, run, saying
from tests.runtime.mcp.configured import Workplace, scripted
from weft.kernel.clock import FixedClock
from weft.ledger.api import Runs, SessionStanding
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.tools.mcp_servers import notice_recorder


@pytest.mark.slow("starts three servers in sandboxes")
def test_two_turns_share_a_server_one_that_dies_is_started_again_and_notices_are_recorded() -> None:
    with weft.open(":memory:", clock=FixedClock(1_700_000_000_000), lease_ttl=1) as ledger:
        bench = Bench(ledger, saying("", "other/say"), saying("one"), saying("", "dying/say"), saying("two"))
        recorder = notice_recorder(Runs(ledger), bench.crossing)

        async def body() -> None:
            servers = (scripted("notices"), scripted("dies", "dying"))
            async with Workplace(*servers, on_notice=recorder) as place:
                await place.approve()

                async def planner(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
                    bench.options["tools"] = await place.tools()
                    return await bench.plan(standing, messages)

                broker = bench.broker(planner)
                await bench.answered(bench.admit(), broker)
                assert [tool.name for tool in bench.provider.requests[0].tools] == ["other/say", "dying/say"]
                assert bench.provider.sent(1)[-1] == "noticed"
                assert place.servers.starts == 2
                message = bench.admit("again")
                await bench.answered(message, broker)
                assert "ended with code 3: luck" in bench.provider.sent(3)[-1]
                assert list(await place.tools()) == ["other/say", "dying/say"]
                assert place.servers.starts == 3

        run(body())
        lines = [orjson.loads(line) for line in exported(ledger).splitlines() if b'"mcp.' in line]
        kinds = [line.get("event", line)["kind"] for line in lines]
        assert kinds == ["mcp.resource_updated", "mcp.resource_list_changed"]
        first = ledger.turn("main~1")
        nodes = [ledger.graph.node(f"event:{line['event_id']}").properties for line in lines]
        assert [(node["run_id"], node["agent_id"]) for node in nodes] == [(first.id, "local")] * 2
        assert list(ledger.verify()) == []
