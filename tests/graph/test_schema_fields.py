"""Every field of the agent graph's schema, in the shape that a question about the graph answers with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.graph.histories import TREE, new, tell_everything
from tests.ledger.test_workers import calling, spawned
from weft.graph.edge_reader import EdgeReader
from weft.graph.nodes import NodeReader
from weft.kernel.enums import ResourceKind, VolumeMode
from weft.kernel.events import PolicyTests
from weft.ledger.api.resources import ResourceLog
from weft.ledger.broker.run_writer import record_resource_change
from weft.ledger.resource_reading import PlannedResource, ResourceFailure
from weft.ledger.views.edges import EdgeType
from weft.surfaces.opening import OpenLedger

OF_EVENT, OF_RUN = "event_id ts agent_id", "event_id ts run_id agent_id"
EVENT_FIELDS = {
    "model_request": f"{OF_RUN} model params input_refs tools_spec correlation_id",
    "model_response": f"{OF_RUN} request_id output_ref usage finish_reason",
    "history_append": f"{OF_RUN} list message_ref",
    "mcp.resource_updated": f"{OF_RUN} server uri",
    "mcp.resource_list_changed": f"{OF_RUN} server",
    "tool_call": f"{OF_RUN} server tool call_id args requested_by",
    "tool_result": f"{OF_RUN} call_id status result error",
    "snapshot_created": f"{OF_EVENT} resource_ref snapshot_ref outcome error",
    "resource_attached": f"{OF_RUN} resource_ref mode",
    "resource_detached": f"{OF_RUN} resource_ref",
    "resource_liveness_probe": "event_id ts resource_ref status",
    "restore_attempted": f"{OF_EVENT} snapshot_ref outcome new_resource_ref",
    "policy_activated": f"{OF_EVENT} policy_ref notes",
    "agent_forked": f"{OF_EVENT} from_branch to_branch at_event volume_plan",
    "interruption": f"{OF_RUN} reason affects",
    "substitution": f"{OF_RUN} original_event replacement_event reason",
    "run_started": f"{OF_RUN} reason",
    "run_finished": f"{OF_RUN} exit summary_ref",
    "snapshot_materialized": f"{OF_EVENT} run_id content_ref",
}
NODE_FIELDS = {
    "Message": "id role content created_at",
    "Policy": "id kind path_or_uri docstring tests_summary source_digest",
    "Resource": "id kind name capabilities imperative scope liveness metadata",
    "Snapshot": "id resource_ref method external_ref consistency size_bytes created_at restorable",
    "Handle": "id resource_ref provider provider_id restorable capabilities",
    "Subagent": "id parent_agent_id constraints",
    "Materialization": "id run_id content_ref",
}
PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "a text"},
    {"type": "image_url", "url": "https://host/a.png", "detail": "low"},
    {"type": "tool_use", "id": "c9", "name": "exec", "input": {"cmd": "ls"}},
    {"type": "tool_result", "tool_call_id": "c9", "output": {"rc": 0}, "is_error": False},
    {"type": "reasoning", "text": "a thought"},
]


def tell_fields(ledger: OpenLedger) -> None:
    """What fills the optional fields."""
    log = ResourceLog(ledger)
    with ledger.begin_turn(session="main", reason="user") as turn:
        asked = turn.message({"content": PARTS})
        turn.request("m", provider="openai", params={"temperature": 0.2}, tools_spec=[{"name": "exec"}], input=[asked])
        usage = {"input_tokens": 3, "cached_input_tokens": 2, "output_tokens": 4}
        turn.response("I look", usage=usage, finish_reason="tool_use")
        turn.tool_call("exec", {"cmd": "ls"}, id="c1", server="runtime")
        turn.tool_result("c1", {"rc": 1}, error={"code": "failed", "message": "no", "details": {"at": 3}})
        turn.tool_call("exec", {"cmd": "sleep"}, id="c2")
        record_resource_change(ledger._writer, "runtime", "resource://plans", turn.id)
        record_resource_change(ledger._writer, "runtime", None, turn.id)
        turn.interrupt("timeout")
    ledger.substitute("main", "other words", reason="a slip")
    site, _ = log.declare(new("site")), log.declare(new("notes"))
    live = new("live", ResourceKind.DOCKER_CONTAINER)
    box = log.declare(replace(live, metadata={"image": "web"}, imperative=True))
    log.record_probe(box.id, "alive")
    log.declare(new("of nobody", session=None))
    ledger.resources.attach(site.id, run=turn.id)
    ledger.resources.detach(site.id, run=turn.id)
    taken = log.record_snapshot(site.id, TREE, run=turn.id)
    log.record_snapshot(site.id, ResourceFailure("disk_full", "no room"))
    copied = PlannedResource(resource="site", mode=VolumeMode.SNAPSHOT, snapshot=taken.id, place="/work/alt")
    kept = PlannedResource(resource="notes", mode=VolumeMode.KEEP, is_kept_by_fork=True)
    log.fork("main", [copied, kept], label="alt")
    policy = ledger.policies.propose("told", "print(3)", docstring="Asks about all.")
    passed = PolicyTests(total=2, passed=2, failed=0)
    ledger.policies.activate(policy.id, digest=policy.digest, tests=passed, notes="stricter")
    run, (call,) = calling(ledger, "lead", "spawn")
    spawned(ledger, run, call, constraints={"tools": ["read"]})


@pytest.fixture(scope="module")
def told() -> Iterator[OpenLedger]:
    with weft.open(":memory:") as ledger:
        tell_everything(ledger)
        tell_fields(ledger)
        ledger.graph.catch_up()
        yield ledger


def events_of(ledger: OpenLedger, kind: str) -> list[dict[str, Any]]:
    shapes = (ledger.graph.node(f"event:{event.id}").properties for event in ledger.changes())
    return [shape for shape in shapes if shape["kind"] == kind]


@pytest.mark.parametrize("kind", EVENT_FIELDS)
def test_an_event_has_the_fields_of_the_schema(told: OpenLedger, kind: str) -> None:
    shapes = events_of(told, kind)
    filled = {name for shape in shapes for name, value in shape.items() if value is not None}
    assert set(EVENT_FIELDS[kind].split()) - filled == set()


@pytest.mark.parametrize("type", NODE_FIELDS)
def test_a_node_has_the_fields_of_the_schema(told: OpenLedger, type: str) -> None:
    with told._store.read() as txn:
        rows = txn.sql.fetch_rows("SELECT source, target FROM edge")
        nodes = NodeReader(EdgeReader(txn, txn.sql)).nodes(end for row in rows for end in row).values()
    filled = {
        name for node in nodes if node.type == type for name, value in node.properties.items() if value is not None
    }
    assert set(NODE_FIELDS[type].split()) - filled == set()


def test_a_message_has_content_parts_of_every_type_with_their_texts(told: OpenLedger) -> None:
    (asked,) = [event for event in events_of(told, "history_append") if event["message"]["parts"] == PARTS]
    assert told.graph.node(f"message:{asked['message_ref']}").properties["content"] == PARTS


def test_a_resource_says_for_whom_it_is_and_when_it_was_looked_at(told: OpenLedger) -> None:
    live, notes = (told.graph.node(f"resource:{name}").properties for name in ("live", "of nobody"))
    assert live["scope"] == {"session_id": told.session("main").id}
    assert (live["liveness"]["status"], live["liveness"].keys()) == ("alive", {"status", "last_probe_ts"})
    assert notes["scope"] == {"agent_id": "local"}


def test_references_have_the_forms_of_the_schema(told: OpenLedger) -> None:
    (call, *_) = [event for event in events_of(told, "tool_call") if event["tool"] == "exec"]
    assert call["requested_by"].keys() == {"event_id"}
    assert told.graph.node("policy:told").properties["path_or_uri"].keys() == {"uri"}
    (snapshot, *_) = [event for event in events_of(told, "snapshot_created") if event["outcome"] == "ok"]
    assert snapshot["external_ref"] == {"kind": "git", "id": "4b825dc6"}


def test_a_failed_call_says_what_went_wrong(told: OpenLedger) -> None:
    (failed,) = [event for event in events_of(told, "tool_result") if event["status"] == "error"]
    assert failed["error"] == {"code": "failed", "message": "no", "details": {"at": 3}}


def test_usage_counts_as_the_schema_does(told: OpenLedger) -> None:
    (answer,) = [event for event in events_of(told, "model_response") if "usage" in event]
    counted = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert {**answer["usage"], **counted} == answer["usage"]


def test_a_fork_says_of_each_resource_what_becomes_of_it(told: OpenLedger) -> None:
    (fork,) = [event for event in events_of(told, "agent_forked") if "volume_plan" in event]
    plan = {line["mode"]: line for line in fork["volume_plan"]}
    assert plan["snapshot"]["snapshot_ref"].keys() == {"kind", "id"}
    assert plan["keep"]["kept_by"] == fork["to_branch"]
    assert all("resource" in line for line in plan.values())


EDGE_ATTRIBUTES = {
    "RUN_HAS_EVENT": "seq",
    "APPENDED_TO_HISTORY": "list",
    "MCP_RESOURCE_UPDATED": "uri",
    "MOUNTS_RESOURCE": "mount mode",
    "ATTACHED_TO": "mode",
}


@pytest.mark.parametrize("type", EDGE_ATTRIBUTES)
def test_an_edge_has_the_attributes_of_the_schema(told: OpenLedger, type: str) -> None:
    with told._store.read() as txn:
        sources = {source for (source,) in txn.sql.fetch_rows("SELECT source FROM edge WHERE type = ?", (type,))}
        reader = EdgeReader(txn, txn.sql)
        rows = [row for source in sources for row in reader.of(source, (EdgeType(type),), "out")]
        attributes = {name: value for row in rows for name, value in reader.to_edge(row).attributes.items()}
    assert set(EDGE_ATTRIBUTES[type].split()) <= attributes.keys()
    assert attributes.get("uri", "resource://plans").startswith("resource://")
