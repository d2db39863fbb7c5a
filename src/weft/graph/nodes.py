"""Nodes: what is known of the things that edges join, in the shapes of the agent graph's
schema; and that schema's questions: neighbours, a run's history, calls and their results,
resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct

from weft.graph.edge_reader import (
    Ancestry,
    AncestryStep,
    CallPair,
    Direction,
    EdgeReader,
    EdgeRow,
    EdgeWalk,
    GraphEdge,
    GraphNode,
    GraphWalk,
    Neighbours,
    PolicyStep,
    ResourceState,
    RunHistory,
)
from weft.kernel import events as kernel_events
from weft.kernel import ledger_events as own
from weft.kernel.clock import iso_from_ms
from weft.kernel.contents import MAX_INTEGER
from weft.kernel.enums import MessageRole, PolicyState, ResourceLiveness
from weft.kernel.errors import InvalidInput, NotApplicable, quoted
from weft.kernel.events import Event, MessageFact, UnknownEvent, Words, kind_of
from weft.kernel.foreign_input import KINDS, field_types, markers
from weft.ledger.model import OWN_SERVER
from weft.ledger.read.contexts import inputs_of_request
from weft.ledger.read.sessions import to_session
from weft.ledger.read.turns import to_turn
from weft.ledger.resource_reading import find_resource, find_snapshot
from weft.ledger.views import edges as kinds
from weft.ledger.views.edges import EdgeType, node_key
from weft.ledger.views.rows import (
    fields_of,
    json_of,
    load_program,
    load_session,
    load_turn,
    name_of,
    shown_text,
    text_of,
    usage_total,
)
from weft.ledger.write.approvals import load_policy
from weft.store.port import ReadTxn

# --- Events in the shapes of the agent graph's schema, with texts in the place of references; and back.

JSON_CONTENTS = frozenset(
    "params tools_spec args result details metadata constraints config permissions_granted permissions_used context"
    " thinking_config effective_config input output skipped overrides route plan subjects state data payload observed"
    " schema value native_config".split()
)
"""Fields whose content is JSON; all others are text."""
_STREAM_IDS = {
    "run": "run_id",
    "session": "session_id",
    "program": "program_id",
    "conversation": "conversation_id",
    "resource": "resource_id",
}


class ContentTexts(Protocol):
    """Where the contents of events are read."""

    def text(self, ref: str) -> str: ...

    def json(self, ref: str) -> Any: ...


class NewContents(Protocol):
    """Where the contents of new events are put; each gives the reference."""

    def put_text(self, text: str) -> str: ...

    def put_json(self, value: Any) -> str: ...

    def put_name(self, name: str) -> str | None:
        """None for a name that stands in the event itself."""


# --- from events ---------------------------------------------------------------------------------------------------


def shape_of(contents: ContentTexts, n: int, event_id: str, line: bytes, event: Event | UnknownEvent) -> dict[str, Any]:
    """An event as the schema has it: `run_id` and `agent_id` in the place of its stream and actor, which stay too."""
    fields = fields_of(n, line)
    shown = _resolved_shape(contents, fields, type(event)) if isinstance(event, Event) else fields
    shape: dict[str, Any] = {"kind": fields.get("kind"), "event_id": event_id, "ts": fields.get("ts")}
    stream, _, id = str(fields.get("stream", "")).partition(":")
    if stream in _STREAM_IDS:
        shape[_STREAM_IDS[stream]] = id
    shape["agent_id"] = fields.get("actor")
    renamed = {**shown}
    _rename_fields(renamed)
    shape.update((name, value) for name, value in renamed.items() if name not in shape)
    return shape


def _rename_fields(shape: dict[str, Any]) -> None:
    """The schema's names beside ours where they differ."""
    if isinstance(request := shape.get("input"), dict) and shape["kind"] == "model_request":
        shape["input_refs"] = list(request.get("then", ()))
    for name, wanted in (("output", "output_ref"), ("message", "message_ref")):
        if isinstance(message := shape.get(name), dict) and "id" in message:
            shape[wanted] = message["id"]
    if isinstance(usage := shape.get("usage"), dict):
        shape["usage"] = {**usage, **_usage_of(usage)}
    for name, wanted in (("run", "run_id"), ("session", "session_id")):
        if isinstance(shape.get(name), str):
            shape.setdefault(wanted, shape[name])


def _usage_of(usage: dict[str, Any]) -> dict[str, int]:
    """Tokens as the schema counts them: what was sent, with what a cache held of it, and what came back."""
    sent = [usage.get(name) for name in ("input_tokens", "cached_input_tokens", "cache_write_tokens")]
    counted = {}
    if any(count is not None for count in sent):
        counted["prompt_tokens"] = sum(count or 0 for count in sent)
    if usage.get("output_tokens") is not None:
        counted["completion_tokens"] = usage["output_tokens"]
    return counted


def message_shape(contents: ContentTexts, message: Struct, created_at: str | None) -> dict[str, Any]:
    """A message as the schema has it."""
    shown = _resolved_shape(contents, msgspec.to_builtins(message), type(message))
    shown["content"] = shown.pop("parts", [])
    return {**shown, "created_at": created_at}


def _resolved_shape(contents: ContentTexts, value: dict[str, Any], record: type[Struct]) -> dict[str, Any]:
    types = field_types(record)
    return {
        name: _shown_value(contents, name, item, types[name]) if name in types else item for name, item in value.items()
    }


def _shown_value(contents: ContentTexts, name: str, value: Any, annotation: Any) -> Any:
    if isinstance(value, str):
        if markers(annotation) != {"content"}:
            return value
        return contents.json(value) if name in JSON_CONTENTS else contents.text(value)
    if isinstance(value, list | tuple):  # `to_builtins` leaves tuples as they are
        return [_shown_value(contents, name, item, annotation) for item in value]
    if not isinstance(value, dict):
        return value
    record = _record_of(annotation, value)
    if record is Words:
        return contents.text(value["content"])
    return value if record is None else _resolved_shape(contents, value, record)


def _records_in(annotation: Any) -> list[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _records_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [record for part in get_args(annotation) for record in _records_in(part)]
    return []


def _record_of(annotation: Any, value: dict[str, Any]) -> type[Struct] | None:
    """Which of the structures that a field may hold a value is: by its tag, else by its fields."""
    records = _records_in(annotation)
    tagged = [record for record in records if record.__struct_config__.tag == value.get("type")]
    if tagged and "type" in value:
        return tagged[0]
    fitting = [record for record in records if value.keys() <= set(record.__struct_fields__)]
    return fitting[0] if fitting else None


# --- to events -----------------------------------------------------------------------------------------------------


def event_from_shape(shape: dict[str, Any], contents: NewContents, **envelope: Any) -> Event:
    """The event that a shape of the schema tells of; `envelope` has `stream`, `prev` and what else an event's envelope
    needs. The id is not read: it comes from the event."""
    kind = KINDS.kinds.get(str(shape.get("kind")))
    if kind is None:
        raise InvalidInput(f"{quoted(shape.get('kind'))} is no kind of event", "use one of docs/events.md")
    given = dict(shape)
    is_told = "input" not in given and given.get("input_observed") is not False
    if kind_of(kind) == "model_request" and "input_refs" in given and is_told:
        given["input"] = {"base": None, "keep": 0, "then": given.pop("input_refs")}
    types = field_types(kind)
    fields: dict[str, Any] = {"kind": kind_of(kind), "ts": shape.get("ts"), "actor": shape.get("agent_id"), **envelope}
    for name, value in given.items():
        if name in types and name not in fields:
            fields[name] = _stored_value(contents, name, value, types[name])
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the shape is no {kind_of(kind)}: {error}", "see docs/events.md for its fields") from error


def _stored_value(contents: NewContents, name: str, value: Any, annotation: Any) -> Any:
    if markers(annotation) == {"content"} and (name in JSON_CONTENTS or isinstance(value, str)):
        return contents.put_json(value) if name in JSON_CONTENTS else contents.put_text(value)
    if isinstance(value, list):
        return [_stored_value(contents, name, item, annotation) for item in value]
    if isinstance(value, str) and Words in _records_in(annotation):
        ref = contents.put_name(value)
        return value if ref is None else {"content": ref}
    if isinstance(value, dict):
        record = _record_of(annotation, value)
        if record is not None:
            types = field_types(record)
            return {
                key: _stored_value(contents, key, item, types[key]) if key in types else item
                for key, item in value.items()
            }
    return value


# --- Nodes: what is known of the things that edges join, in the shapes of the agent graph's schema.

Properties = dict[str, Any]
POLICY_URI = "resource://approval-policy/policy.py"
PROPOSALS_URI = "resource://approval-policy/proposals/"
"""Before the id of a policy that is not active."""
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

    def _content_number(self, ref: str) -> int:
        return self._txn.facts.find_content(bytes.fromhex(ref)) or 0

    def text(self, ref: str) -> str:
        return shown_text(self._txn.facts, self._content_number(ref))

    def json(self, ref: str) -> Any:
        return json_of(self._txn, self._content_number(ref))


def inputs_shown(txn: ReadTxn, event: kernel_events.ModelRequest, event_id: str) -> Properties:
    """All that a request was sent; the event itself holds what is new since the request before."""
    stream, _, run = event.stream.partition(":")
    if stream != kinds.RUN or load_turn(txn.sql, run) is None:
        return {}
    inputs = inputs_of_request(txn, run, event_id, event.input)
    if inputs is None:
        return {}
    shown: Properties = {"input_refs": [msgspec.to_builtins(ref) for ref in inputs.refs]}
    if not inputs.is_recorded:
        shown["input_observed"] = False
    return {**shown, "input_refs_missing": inputs.missing} if inputs.missing else shown


def _server_of(tool: str) -> str:
    """Where a tool ran whose call names no server: other programs write `mcp__SERVER__TOOL`; all else is their own."""
    prefix, _, rest = tool.partition("__")
    server, separator, _ = rest.partition("__")
    return server if prefix == "mcp" and separator and server else OWN_SERVER


def run_of_original(txn: ReadTxn, event: kernel_events.Substitution) -> Properties:
    """The run that a substitution is about: the event itself stands in the ledger's own stream."""
    n = txn.facts.find_event(bytes.fromhex(event.original_event.event_id))
    line = None if n is None else txn.facts.line(n)
    if n is None or line is None:
        return {}
    stream, _, run = str(fields_of(n, line).get("stream", "")).partition(":")
    return {"run_id": run} if stream == kinds.RUN else {}


class NodeReader:
    """Nodes by their keys, in the transaction of an `EdgeReader`. Whoever asks has made sure that they may be seen.
    `views`: what the rows of the views were when the newest event came that the reader knows of, if not as they are."""

    def __init__(self, reader: EdgeReader, views: ReadTxn | None = None) -> None:
        self._reader, self._txn = reader, reader.txn if views is None else views
        self._contents = ReadableContents(reader.txn)
        self._readers: dict[str, Callable[[str], tuple[str, Properties]]] = {
            kinds.PROGRAM: self._program_properties,
            kinds.RUN: self._run_properties,
            kinds.SESSION: self._session_properties,
            kinds.MESSAGE: self._message_properties,
            kinds.RESOURCE: self._resource_properties,
            kinds.URI: self._uri_properties,
            kinds.SNAPSHOT: self._snapshot_properties,
            kinds.HANDLE: self._handle_properties,
            kinds.POLICY: self._policy_properties,
            kinds.MATERIALIZATION: self._materialization_properties,
        }

    def node(self, key: str) -> GraphNode:
        kind, _, id = key.partition(":")
        read = self._readers.get(kind)
        type, properties = self._event_node(kind, id) if read is None else read(id)
        since, until = (None, None) if properties.get("missing") else self._validity(kind, id)
        name = self._reader.name_of(key)
        return GraphNode(name=name, type=type, properties=properties, valid_from=since, valid_to=until)

    def _validity(self, kind: str, id: str) -> tuple[int | None, int | None]:
        """Since when and until when the events of a node say that it holds."""
        match kind:
            case kinds.PROGRAM:
                program = load_program(self._txn.sql, id)
                if program is None or not program.created_at:
                    return None, None
                return program.created_at, program.updated_at if program.deleted else None
            case kinds.POLICY:
                rows = self._reader.of(node_key(kind, id), (EdgeType.ACTIVATES_POLICY,), "in")
                active = [self._reader.to_edge(row) for row in rows]
                return (active[0].valid_from, active[-1].valid_to) if active else (None, None)
            case kinds.RESOURCE:
                resource = find_resource(self._txn, id)
                if resource is None:
                    return None, None
                is_dead = resource.liveness is ResourceLiveness.DEAD
                return resource.declared_at or None, resource.probed_at if is_dead else None
            case kinds.HANDLE:
                query = "SELECT opened_at, closed_at FROM resource_handle WHERE id = ?"
                row = self._txn.sql.fetch_row(query, (id,))
                return (None, None) if row is None else (row[0], row[1])
        return None, None

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
        if isinstance(event, kernel_events.RunStarted) and not self._reader.access.may_see_prompt(n):
            shape.pop("effective_config", None)
        if isinstance(event, kernel_events.ModelRequest):
            shape.update(inputs_shown(self._txn, event, shape["event_id"]))
        if isinstance(event, kernel_events.Substitution):
            shape.update(run_of_original(self._txn, event))
        if isinstance(event, kernel_events.ModelResponse) and event.usage is not UNSET and shape["usage"]:
            shape["usage"].setdefault("total_tokens", usage_total(event.usage))
        if isinstance(event, kernel_events.ToolCallRequested):
            shape.setdefault("server", _server_of(str(shape.get("tool"))))
        return type, shape

    def _program_properties(self, id: str) -> tuple[str, Properties]:
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

    def _run_properties(self, id: str) -> tuple[str, Properties]:
        row = load_turn(self._txn.sql, id)
        if row is None:
            return "Run", {"run_id": id, "missing": True}
        turn = to_turn(self._txn, row)
        shown = msgspec.to_builtins(turn)
        return "Run", {"run_id": id, "agent_id": row.persona, **shown}

    def _session_properties(self, id: str) -> tuple[str, Properties]:
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

    def _message_properties(self, id: str) -> tuple[str, Properties]:
        """By the first event that brought it and may be seen."""
        access = self._reader.access
        for source in self._producing_events(f"message:{id}"):
            if access.may_see(source):
                event = self._reader.event(int(source.partition(":")[2]))
                shape = self._message_in(event)
                if shape is not None:
                    return "Message", {**shape, "id": id}
        return "Message", {"id": id, "missing": True}

    def _producing_events(self, key: str) -> list[str]:
        """The events that brought a node, as far as they are known."""
        sources = self._reader.access.producers(key)
        return [source for source in sources if int(source.partition(":")[2]) <= self._reader.newest]

    def _message_in(self, event: Event | UnknownEvent) -> Properties | None:
        ts = event.ts if isinstance(event.ts, str) else None
        match event:
            case kernel_events.HistoryAppend():
                return message_shape(self._contents, event.message, ts)
            case kernel_events.ModelResponse() if event.output is not UNSET:
                return message_shape(self._contents, event.output, ts)
            case own.MessageAdmitted():
                fact = MessageFact(id=event.message, role=MessageRole.USER, parts=event.parts)
                return message_shape(self._contents, fact, ts)
            case kernel_events.MessagePosted():
                fact = MessageFact(id=event.message, role=MessageRole.USER, parts=event.parts)
                return {**message_shape(self._contents, fact, ts), "conversation_id": event.stream.partition(":")[2]}
        return None

    def _resource_properties(self, id: str) -> tuple[str, Properties]:
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

    def _uri_properties(self, ref: str) -> tuple[str, Properties]:
        if next(self._reader.of(f"{kinds.URI}:{ref}", direction="in"), None) is None:
            return "Resource", {"id": ref, "kind": "uri", "missing": True}
        text = self._contents.text(ref)
        return "Resource", {"id": ref, "kind": "uri", "name": text, "capabilities": []}

    def _snapshot_properties(self, id: str) -> tuple[str, Properties]:
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

    def _handle_properties(self, id: str) -> tuple[str, Properties]:
        row = self._txn.sql.fetch_row(
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

    def _policy_properties(self, id: str) -> tuple[str, Properties]:
        if self._txn.sql.fetch_row("SELECT 1 FROM policy WHERE id = ?", (id,)) is None:
            return "Policy", {"id": id, "missing": True}
        policy = load_policy(self._txn, id)
        shown: Properties = msgspec.to_builtins(policy)
        is_active = policy.state == PolicyState.ACTIVE.value
        shown["kind"] = "active" if is_active else "proposal"
        shown["source_digest"] = shown.pop("digest", None)
        shown["path_or_uri"] = {"uri": POLICY_URI if is_active else f"{PROPOSALS_URI}{id}/policy.py"}
        tests = {word: shown.pop(f"tests_{word}") for word in ("total", "passed", "failed")}
        if tests["total"] is not None:
            shown["tests_summary"] = tests
        return "Policy", {name: value for name, value in shown.items() if value is not None}

    def _materialization_properties(self, id: str) -> tuple[str, Properties]:
        for source in self._producing_events(f"{kinds.MATERIALIZATION}:{id}"):
            event = self._reader.event(int(source.partition(":")[2]))
            if isinstance(event, kernel_events.SnapshotMaterialized) and self._reader.access.may_see(source):
                kind = event.content_ref.kind
                place = kind if isinstance(kind, str) else self._contents.text(kind.content)
                shown = {"id": id, "content_ref": {"kind": place, "id": self._contents.text(event.content_ref.id)}}
                return "Materialization", shown if event.run is UNSET else {**shown, "run_id": event.run}
        return "Materialization", {"id": id, "missing": True}


# --- The questions of the agent graph's schema: neighbours, a run's history, calls and their results, resources and
# policies at a time.

_OF_RESOURCES = (EdgeType.OWNS_RESOURCE, EdgeType.ATTACHED_TO, EdgeType.MOUNTS_RESOURCE)
_OF_POLICIES = (EdgeType.PROPOSES_POLICY, EdgeType.ACTIVATES_POLICY)


class GraphQueries:
    """One transaction's graph, with the nodes at the ends of its edges."""

    def __init__(self, reader: EdgeReader) -> None:
        self.reader, self.nodes = reader, NodeReader(reader)

    def edges(self, rows: Iterable[EdgeRow]) -> tuple[GraphEdge, ...]:
        return tuple(self.reader.to_edge(row) for row in rows)

    def node(self, key: str) -> GraphNode:
        return self.nodes.node(key)

    def neighbours(self, key: str, types: Sequence[EdgeType], direction: Direction, limit: int) -> Neighbours:
        rows = list(islice(self.reader.of(key, types, direction), limit + 1))
        shown = rows[:limit]
        keys = self.reader.keys_of(key)
        ends = [row.target if row.source in keys else row.source for row in shown]
        return Neighbours(
            node=self.node(key), edges=self.edges(shown), nodes=self.nodes.nodes(ends), is_cut=len(rows) > limit
        )

    def walk(self, start: str, walk: EdgeWalk) -> GraphWalk:
        ends = [start, *(end for row in walk.edges for end in (row.source, row.target))]
        return GraphWalk(
            start=self.reader.name_of(start),
            edges=self.edges(walk.edges),
            nodes=self.nodes.nodes(ends),
            is_cut=walk.is_cut,
        )

    def ancestry(self, start: str, walk: EdgeWalk) -> Ancestry:
        name_of = self.reader.name_of
        ends = [start, *(end for row, parent in walk.steps for end in (row.source, row.target, parent) if end)]
        return Ancestry(
            start=name_of(start),
            steps=tuple(
                AncestryStep(edge=self.reader.to_edge(row), parent=None if parent is None else name_of(parent))
                for row, parent in walk.steps
            ),
            nodes=self.nodes.nodes(ends),
            is_cut=walk.is_cut,
        )

    # --- runs ---------------------------------------------------------------------------------------------------

    def history(self, run: str, limit: int) -> RunHistory:
        """The events of a run, in the order of its stream."""
        self._ensure_kind(run, (kinds.RUN,), "a turn has a history")
        rows = list(islice(self.reader.of(run, (EdgeType.RUN_HAS_EVENT,), "out"), limit + 1))
        events = tuple(self.node(row.target) for row in rows[:limit])
        return RunHistory(run=self.node(run), events=events, is_cut=len(rows) > limit)

    def calls(self, key: str, limit: int) -> list[CallPair]:
        """The tool calls of a run or of a generation, or one call, each with its results."""
        return [self._call_pair(call) for call in islice(self._calls_of(key), limit)]

    def _calls_of(self, key: str) -> Iterator[str]:
        kind = key.partition(":")[0]
        if kind == kinds.TOOL_CALL:
            yield key
        elif kind == kinds.TOOL_RESULT:
            yield from (row.source for row in self.reader.of(key, (EdgeType.RETURNS_RESULT,), "in"))
        elif kind == kinds.GENERATION:
            yield from (row.target for row in self.reader.of(key, (EdgeType.CALLS_TOOL,), "out"))
        else:
            self._ensure_kind(key, (kinds.RUN,), "a turn, an answer or a tool call has calls")
            for row in self.reader.of(key, (EdgeType.RUN_HAS_EVENT,), "out"):
                n = row.target.partition(":")[2]
                if isinstance(self.reader.event(int(n)), kernel_events.ToolCallRequested):
                    yield node_key(kinds.TOOL_CALL, n)

    def _call_pair(self, call: str) -> CallPair:
        asked = next(self.reader.of(call, (EdgeType.CALLS_TOOL,), "in"), None)
        results = self.reader.of(call, (EdgeType.RETURNS_RESULT,), "out")
        return CallPair(
            call=self.node(call),
            requested_by=None if asked is None else self.reader.name_of(asked.source),
            results=tuple(self.node(row.target) for row in results),
        )

    def _ensure_kind(self, key: str, wanted: tuple[str, ...], hint: str) -> None:
        if key.partition(":")[0] not in wanted:
            raise NotApplicable(f"{self.reader.name_of(key)} has none", hint)

    # --- resources and policies ---------------------------------------------------------------------------------

    def resources(self, key: str | None, limit: int) -> list[ResourceState]:
        """Resources at the time that is asked about: all of them, one, or those that somebody owned or used."""
        keys = self._all_resources() if key is None else self._resources_of(key)
        return [self._resource_state(resource) for resource in islice(keys, limit)]

    def _all_resources(self) -> Iterator[str]:
        query = "SELECT id FROM resource WHERE n <= ? AND declared_at <= ? ORDER BY n"
        for (id,) in self.reader.txn.sql.fetch_rows(query, (self.reader.newest, self._declared_until)):
            key = node_key(kinds.RESOURCE, id)
            if self.reader.access.may_see(key):
                yield key

    @property
    def _declared_until(self) -> int:
        """Resources that were declared after this time were not there yet."""
        return MAX_INTEGER if self.reader.at is None else self.reader.at

    def _resources_of(self, key: str) -> Iterator[str]:
        kind, _, id = key.partition(":")
        if kind == kinds.RESOURCE:
            query = "SELECT 1 FROM resource WHERE id = ? AND n <= ? AND declared_at <= ?"
            if self.reader.txn.sql.fetch_row(query, (id, self.reader.newest, self._declared_until)) is not None:
                yield key
            return
        self._ensure_kind(key, (kinds.RUN, kinds.SESSION, kinds.PROGRAM), "a turn, a session or an agent has resources")
        rows = list(self.reader.of(key, _OF_RESOURCES))
        yield from dict.fromkeys(row.source if row.target == key else row.target for row in rows)

    def _resource_state(self, key: str) -> ResourceState:
        owners = list(self.reader.of(key, (EdgeType.OWNS_RESOURCE,), "in", newest_first=True))
        return ResourceState(
            resource=self.node(key),
            owner=self.reader.to_edge(owners[0]) if owners else None,
            attached=self.edges(self.reader.of(key, (EdgeType.ATTACHED_TO,), "out")),
            mounted=self.edges(self.reader.of(key, (EdgeType.MOUNTS_RESOURCE,), "in")),
            parts=self.edges(self.reader.of(key, (EdgeType.HAS_SUBRESOURCE,), "out")),
        )

    def policies(self, key: str | None, limit: int) -> list[PolicyStep]:
        """What was proposed and what became active, in order: of all policies, of one, or of one agent's."""
        rows = [row for policy in self._policies_of(key) for row in self.reader.of(policy, _OF_POLICIES, "in")]
        rows.sort(key=lambda row: row.id)
        return [PolicyStep(policy=self.node(row.target), edge=self.reader.to_edge(row)) for row in rows[:limit]]

    def _policies_of(self, key: str | None) -> Iterator[str]:
        if key is not None and key.partition(":")[0] == kinds.POLICY:
            yield key
            return
        agent = None
        if key is not None:
            self._ensure_kind(key, (kinds.PROGRAM,), "name a policy or an agent")
            agent = key.partition(":")[2]
        where, values = ("", ()) if agent is None else (" AND agent = ?", (agent,))
        query = f"SELECT id FROM policy WHERE n <= ?{where} ORDER BY n"
        for (id,) in self.reader.txn.sql.fetch_rows(query, (self.reader.newest, *values)):
            policy = node_key(kinds.POLICY, id)
            if self.reader.access.may_see(policy):
                yield policy
