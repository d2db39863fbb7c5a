"""Nodes: what is known of the things that edges join, in the shapes of the agent graph's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from weft.graph.edge_reader import EdgeReader
from weft.graph.model import GraphNode
from weft.graph.shapes import message_shape, shape_of
from weft.kernel import conversation_events as rooms
from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import MessageRole, PolicyState
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import MessageFact
from weft.ledger.approvals.policies import load_policy
from weft.ledger.read.sessions import to_session
from weft.ledger.read.turns import to_turn
from weft.ledger.resources.reading import find_resource
from weft.ledger.resources.snapshot_reading import find_snapshot
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.rows import load_session, load_turn
from weft.ledger.views.values import json_of, name_of, shown_text, text_of
from weft.store.port import ReadTxn

Properties = dict[str, Any]
POLICY_URI = "resource://approval-policy/policy.py"
_EVENT_TYPES = {
    kinds.EVENT: "Event",
    kinds.GENERATION: "Generation",
    kinds.TOOL_CALL: "ToolCall",
    kinds.TOOL_RESULT: "ToolResult",
    kinds.SUMMARY: "Summary",
}
NODE_EVENTS: dict[str, tuple[str, ...]] = {
    "Agent": ("agent_created",),
    "Program": ("`NAME_created` of its kind",),
    "Run": ("run_started",),
    "Branch": ("session_created",),
    "Subagent": ("session_created",),
    "Event": ("every event",),
    "Message": ("history_append", "model_response", "message_admitted", "message_posted"),
    "Generation": ("model_response",),
    "ToolCall": ("tool_call",),
    "ToolResult": ("tool_result",),
    "Summary": ("compaction_recorded",),
    "Resource": ("resource_declared", "mcp.resource_updated"),
    "Snapshot": ("snapshot_created",),
    "Handle": ("handle_opened",),
    "Policy": ("policy_proposed",),
    "Materialization": ("snapshot_materialized",),
}
"""By type of node the kinds of event that there is one for."""
NODE_KINDS_OF: dict[str, tuple[str, ...]] = {
    "Agent": ("agent", kinds.PROGRAM),
    "Program": (kinds.PROGRAM,),
    "Run": (kinds.RUN,),
    "Branch": (kinds.SESSION,),
    "Subagent": (kinds.SESSION,),
    "Event": (kinds.EVENT,),
    "Message": (kinds.MESSAGE,),
    "Generation": (kinds.GENERATION,),
    "ToolCall": (kinds.TOOL_CALL,),
    "ToolResult": (kinds.TOOL_RESULT,),
    "Summary": (kinds.SUMMARY,),
    "Resource": (kinds.RESOURCE, kinds.URI),
    "Snapshot": (kinds.SNAPSHOT,),
    "Handle": (kinds.HANDLE,),
    "Policy": (kinds.POLICY,),
    "Materialization": (kinds.MATERIALIZATION,),
}
"""How nodes of a type are named: these words, a colon, and a name or an id."""


class ReadableContents:
    """The contents of events, as readers show them. Content that is erased or not here shows the word for that."""

    def __init__(self, txn: ReadTxn) -> None:
        self._txn = txn

    def _number(self, ref: str) -> int:
        return self._txn.facts.find_content(bytes.fromhex(ref)) or 0

    def text(self, ref: str) -> str:
        return shown_text(self._txn.facts, self._number(ref))

    def json(self, ref: str) -> Any:
        return json_of(self._txn, self._number(ref))


class NodeReader:
    """Nodes by their keys, in the transaction of an `EdgeReader`. Whoever asks has made sure that they may be seen.
    `views`: what the rows of the views were when the newest event came that the reader knows of, if not as they are."""

    def __init__(self, reader: EdgeReader, views: ReadTxn | None = None) -> None:
        self._reader, self._txn = reader, reader.txn if views is None else views
        self._contents = ReadableContents(reader.txn)
        self._readers: dict[str, Callable[[str], tuple[str, Properties]]] = {
            kinds.PROGRAM: self._program,
            kinds.RUN: self._run,
            kinds.SESSION: self._session,
            kinds.MESSAGE: self._message,
            kinds.RESOURCE: self._resource,
            kinds.URI: self._uri,
            kinds.SNAPSHOT: self._snapshot,
            kinds.HANDLE: self._handle,
            kinds.POLICY: self._policy,
            kinds.MATERIALIZATION: self._materialization,
        }

    def node(self, key: str) -> GraphNode:
        kind, _, id = key.partition(":")
        read = self._readers.get(kind)
        type, properties = self._event_node(kind, id) if read is None else read(id)
        return GraphNode(name=self._reader.name_of(key), type=type, properties=properties)

    def nodes(self, keys: Iterable[str]) -> dict[str, GraphNode]:
        """By their names."""
        return {node.name: node for node in (self.node(key) for key in dict.fromkeys(keys))}

    def exists(self, key: str) -> bool:
        """Whether anything is known of a node."""
        return not self.node(key).properties.get("missing", False)

    # --- by kind ------------------------------------------------------------------------------------------------

    def _event_node(self, kind: str, id: str) -> tuple[str, Properties]:
        type = _EVENT_TYPES.get(kind, kind)
        n = int(id) if id.isdecimal() and len(id) < 16 else 0
        line = self._txn.facts.line(n) if 0 < n <= self._reader.newest else None
        if line is None:
            return type, {"event_id": id, "missing": True}
        event = self._reader.event(n)
        shape = shape_of(self._contents, n, self._reader.event_id(n), line, event)
        if isinstance(event, dag.RunStarted) and not self._reader.access.may_see_prompt(n):
            shape.pop("effective_config", None)
        return type, shape

    def _program(self, id: str) -> tuple[str, Properties]:
        row = load_program(self._txn.sql, id)
        if row is None:
            is_later = load_program(self._reader.txn.sql, id) is not None
            return "Agent", {"id": id, **({"missing": True} if is_later else {"name": id})}
        properties = {
            "id": id,
            "kind": row.kind,
            "name": row.name,
            "state": row.state,
            "version": row.version,
            "created_by": row.created_by,
            "created_at": iso_from_ms(row.created_at),
            "config": None if row.config is None else json_of(self._txn, row.config),
        }
        return "Agent" if row.kind == "agent" else "Program", properties

    def _run(self, id: str) -> tuple[str, Properties]:
        row = load_turn(self._txn.sql, id)
        if row is None:
            return "Run", {"run_id": id, "missing": True}
        turn = to_turn(self._txn, row)
        shown = msgspec.to_builtins(turn)
        return "Run", {"run_id": id, "agent_id": row.persona, **shown}

    def _session(self, id: str) -> tuple[str, Properties]:
        row = load_session(self._txn.sql, id)
        if row is None:
            return "Branch", {"id": id, "missing": True}
        shown = {"id": id, **msgspec.to_builtins(to_session(self._txn, row))}
        spawned = next(self._reader.of(f"session:{id}", (EdgeType.SPAWNED_FROM,), "out"), None)
        if spawned is None:
            return "Branch", shown
        event = self._reader.event(spawned.opened)
        constraints = event.constraints if isinstance(event, own.SessionCreated) else UNSET
        if constraints is not UNSET:
            shown["constraints"] = self._contents.json(constraints)
        return "Subagent", {**shown, "parent_agent_id": spawned.target.partition(":")[2]}

    def _message(self, id: str) -> tuple[str, Properties]:
        """By the first event that brought it and may be seen."""
        access = self._reader.access
        for source in self._producers(f"message:{id}"):
            if access.may_see(source):
                event = self._reader.event(int(source.partition(":")[2]))
                shape = self._message_in(event)
                if shape is not None:
                    return "Message", {**shape, "id": id}
        return "Message", {"id": id, "missing": True}

    def _producers(self, key: str) -> list[str]:
        """The events that brought a node, as far as they are known."""
        sources = self._reader.access.producers(key)
        return [source for source in sources if int(source.partition(":")[2]) <= self._reader.newest]

    def _message_in(self, event: Event | UnknownEvent) -> Properties | None:
        ts = event.ts if isinstance(event.ts, str) else None
        match event:
            case dag.HistoryAppend():
                return message_shape(self._contents, event.message, ts)
            case dag.ModelResponse() if event.output is not UNSET:
                return message_shape(self._contents, event.output, ts)
            case own.MessageAdmitted():
                fact = MessageFact(id=event.message, role=MessageRole.USER, parts=event.parts)
                return message_shape(self._contents, fact, ts)
            case rooms.MessagePosted():
                fact = MessageFact(id=event.message, role=MessageRole.USER, parts=event.parts)
                return {**message_shape(self._contents, fact, ts), "conversation_id": event.stream.partition(":")[2]}
        return None

    def _resource(self, id: str) -> tuple[str, Properties]:
        resource = find_resource(self._txn, id)
        if resource is None:
            return "Resource", {"id": id, "missing": True}
        shown: Properties = msgspec.to_builtins(resource)
        for relation in ("owner", "parts", "uses", "handles"):  # edges tell of these
            shown.pop(relation, None)
        probed = shown.pop("probed_at", None)
        liveness = {"status": shown.pop("liveness", "unknown")}
        shown["liveness"] = liveness if probed is None else {**liveness, "last_probe_ts": iso_from_ms(probed)}
        scope = {f"{word}_id": value for word, value in (shown.pop("scope", None) or {}).items()}
        return "Resource", {**shown, **({"scope": scope} if scope else {})}

    def _uri(self, ref: str) -> tuple[str, Properties]:
        if next(self._reader.of(f"{kinds.URI}:{ref}", direction="in"), None) is None:
            return "Resource", {"id": ref, "kind": "uri", "missing": True}
        text = self._contents.text(ref)
        return "Resource", {"id": ref, "kind": "uri", "name": text, "capabilities": []}

    def _snapshot(self, id: str) -> tuple[str, Properties]:
        snapshot = find_snapshot(self._txn, id)
        if snapshot is None:
            return "Snapshot", {"id": id, "missing": True}
        shown: Properties = msgspec.to_builtins(snapshot)
        kind, external = shown.pop("external_kind", None), shown.pop("external_id", None)
        if kind is not None:
            shown["external_ref"] = {"kind": kind, "id": external}
        shown["resource_ref"] = shown.pop("resource")
        shown["created_at"] = iso_from_ms(shown["created_at"])
        return "Snapshot", {name: value for name, value in shown.items() if value is not None}

    def _handle(self, id: str) -> tuple[str, Properties]:
        row = self._txn.sql.one(
            "SELECT resource, provider, provider_id, capabilities, opened_at, closed_at FROM resource_handle"
            " WHERE id = ?",
            (id,),
        )
        if row is None:
            return "Handle", {"id": id, "missing": True}
        resource, provider, provider_id, capabilities, opened_at, closed_at = row
        shown = {
            "id": id,
            "resource_ref": resource,
            "provider": name_of(self._txn, provider),
            "provider_id": text_of(self._txn, provider_id),
            "restorable": False,
            "capabilities": capabilities.split(),
            "opened_at": iso_from_ms(opened_at),
        }
        return "Handle", shown if closed_at is None else {**shown, "closed_at": iso_from_ms(closed_at)}

    def _policy(self, id: str) -> tuple[str, Properties]:
        if self._txn.sql.one("SELECT 1 FROM policy WHERE id = ?", (id,)) is None:
            return "Policy", {"id": id, "missing": True}
        policy = load_policy(self._txn, id)
        shown: Properties = msgspec.to_builtins(policy)
        shown["kind"] = shown.get("state")
        shown["source_digest"] = shown.pop("digest", None)
        if policy.state == PolicyState.ACTIVE.value:
            shown["path_or_uri"] = {"uri": POLICY_URI}
        tests = {word: shown.pop(f"tests_{word}") for word in ("total", "passed", "failed")}
        if tests["total"] is not None:
            shown["tests_summary"] = tests
        return "Policy", {name: value for name, value in shown.items() if value is not None}

    def _materialization(self, id: str) -> tuple[str, Properties]:
        for source in self._producers(f"{kinds.MATERIALIZATION}:{id}"):
            event = self._reader.event(int(source.partition(":")[2]))
            if isinstance(event, dag.SnapshotMaterialized) and self._reader.access.may_see(source):
                kind = event.content_ref.kind
                place = kind if isinstance(kind, str) else self._contents.text(kind.content)
                shown = {"id": id, "content_ref": {"kind": place, "id": self._contents.text(event.content_ref.id)}}
                return "Materialization", shown if event.run is UNSET else {**shown, "run_id": event.run}
        return "Materialization", {"id": id, "missing": True}
