"""The graph in its plainest form: every event is looked at in order, and every edge that stands is looked through.

Written from docs/concepts.md, without the code it is compared with. It knows the kinds of event that `stories` tells.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log2
from typing import Any

Fields = dict[str, Any]


@dataclass
class PlainEvent:
    n: int
    id: str
    when: int
    fields: Fields


@dataclass
class PlainEdge:
    type: str
    source: str
    target: str
    attributes: Fields
    since: int
    opened: str
    until: int | None = None
    closed: str | None = None

    def seen(self) -> tuple[Any, ...]:
        return (self.type, self.source, self.target, self.since, self.until, self.opened, self.closed)

    def holds(self, at: int | None) -> bool:
        return at is None or (self.since <= at and (self.until is None or at < self.until))


THINGS = {
    "model_response": "generation",
    "tool_call": "tool_call",
    "tool_result": "tool_result",
    "compaction_recorded": "summary",
}


@dataclass
class PlainGraph:
    edges: list[PlainEdge] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    """Policies, and the agent each is for."""
    parts: dict[str, int] = field(default_factory=dict)

    def replay(self, events: Iterable[PlainEvent]) -> "PlainGraph":
        for event in events:
            self.take(event)
            self.kinds[event.id] = event.fields["kind"]
        return self

    def thing(self, id: str) -> str:
        return f"{THINGS.get(self.kinds.get(id, ''), 'event')}:{id}"

    def open(self, event: PlainEvent, type: str, source: str, target: str, **attributes: Any) -> None:
        self.edges.append(PlainEdge(type, source, target, attributes, event.when, event.id))

    def close(self, event: PlainEvent, type: str, source: str | None = None, target: str | None = None) -> None:
        for edge in self.edges:
            fits = edge.type == type and edge.closed is None
            if fits and source in (None, edge.source) and target in (None, edge.target):
                edge.until, edge.closed = event.when, event.id

    def take(self, event: PlainEvent) -> None:
        fields = event.fields
        if fields["stream"].startswith("run:"):
            run = fields["stream"]
            self.parts[run] = self.parts.get(run, -1) + 1
            self.open(event, "RUN_HAS_EVENT", run, f"event:{event.id}", seq=self.parts[run])
        handler = getattr(self, fields["kind"].replace(".", "_"), None)
        if handler is not None:
            handler(event, fields, f"event:{event.id}")
        if "references" in fields or fields["kind"].endswith(("_created", "_configured", "information_updated")):
            self.references(event, fields)

    def references(self, event: PlainEvent, fields: Fields) -> None:
        if not fields["stream"].startswith("program:"):
            return
        wanted = [(f"program:{one['program']}", one["field"]) for one in fields.get("references", [])]
        for edge in self.edges:
            if edge.type == "REFERS_TO" and edge.source == fields["stream"] and edge.closed is None:
                if (edge.target, edge.attributes["field"]) in wanted:
                    wanted.remove((edge.target, edge.attributes["field"]))
                else:
                    edge.until, edge.closed = event.when, event.id
        for target, name in dict.fromkeys(wanted):
            self.open(event, "REFERS_TO", fields["stream"], target, field=name)

    def run_started(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.open(event, "AGENT_HAS_RUN", f"program:{fields['actor']}", fields["stream"])
        if "session" in fields:
            self.open(event, "SESSION_HAS_RUN", f"session:{fields['session']}", fields["stream"])
        if "fork" in fields:
            self.open(event, "DERIVED_FROM", fields["stream"], f"run:{fields['fork']['turn']}")

    def history_append(self, event: PlainEvent, fields: Fields, here: str) -> None:
        message = f"message:{fields['message']['id']}"
        self.open(event, "EVENT_PRODUCES", here, message)
        self.open(event, "APPENDED_TO_HISTORY", fields["stream"], message, list=fields["list"])

    def model_request(self, event: PlainEvent, fields: Fields, here: str) -> None:
        for entry in dict.fromkeys(fields.get("input", {}).get("then", ())):
            self.open(event, "EVENT_CONSUMES", here, f"message:{entry}")

    def model_response(self, event: PlainEvent, fields: Fields, here: str) -> None:
        self.open(event, "EVENT_PRODUCES", here, f"generation:{event.id}")
        if "output" in fields:
            self.open(event, "EVENT_PRODUCES", here, f"message:{fields['output']['id']}")
        if "request_id" in fields:
            self.open(event, "DERIVED_FROM", f"generation:{event.id}", f"event:{fields['request_id']}")

    def tool_call(self, event: PlainEvent, fields: Fields, here: str) -> None:
        asked = fields.get("requested_by")
        self.open(
            event, "CALLS_TOOL", here if asked is None else self.thing(asked["event_id"]), f"tool_call:{event.id}"
        )

    def tool_result(self, event: PlainEvent, fields: Fields, here: str) -> None:
        call = self.thing(fields["call"]["event_id"])
        self.open(event, "EVENT_PRODUCES", here, f"tool_result:{event.id}")
        self.open(event, "EVENT_CONSUMES", here, call)
        self.open(event, "RETURNS_RESULT", call, f"tool_result:{event.id}", status=fields["status"])

    def session_created(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.open(event, "AGENT_HAS_SESSION", f"program:{fields['persona']}", fields["stream"])

    def agent_forked(self, event: PlainEvent, fields: Fields, _: str) -> None:
        session = f"session:{fields['to_branch']}"
        self.open(event, "FORKED_FROM", session, f"event:{fields['at_event']['event_id']}")
        self.open(event, "FORKED_FROM", session, f"run:{fields['at_turn']}")

    def resource_owned(self, event: PlainEvent, fields: Fields, _: str) -> None:
        resource = f"resource:{fields['resource_ref']}"
        self.close(event, "OWNS_RESOURCE", target=resource)
        owner = fields["owner"]
        if owner is not None:
            kind = next(kind for kind in ("session", "agent", "run") if kind in owner)
            self.open(event, "OWNS_RESOURCE", f"{'program' if kind == 'agent' else kind}:{owner[kind]}", resource)

    def _user(self, fields: Fields) -> str:
        if "container" in fields:
            return f"resource:{fields['container']}"
        if "run" in fields:
            return f"run:{fields['run']}"
        return f"session:{fields['session']}" if "session" in fields else f"program:{fields['actor']}"

    def resource_attached(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.resource_detached(event, fields, _)
        self.open(event, "ATTACHED_TO", f"resource:{fields['resource_ref']}", self._user(fields), mode=fields["mode"])

    def resource_detached(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.close(event, "ATTACHED_TO", f"resource:{fields['resource_ref']}", self._user(fields))

    def resource_mounted(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.resource_unmounted(event, fields, _)
        self.open(event, "MOUNTS_RESOURCE", self._user(fields), f"resource:{fields['resource_ref']}")

    def resource_unmounted(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.close(event, "MOUNTS_RESOURCE", self._user(fields), f"resource:{fields['resource_ref']}")

    def subresource_added(self, event: PlainEvent, fields: Fields, _: str) -> None:
        whole, part = f"resource:{fields['resource_ref']}", f"resource:{fields['part_ref']}"
        standing = [edge for edge in self.edges if edge.type == "HAS_SUBRESOURCE" and edge.closed is None]
        if not [edge for edge in standing if (edge.source, edge.target) == (whole, part)]:
            self.open(event, "HAS_SUBRESOURCE", whole, part)

    def subresource_removed(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.close(event, "HAS_SUBRESOURCE", f"resource:{fields['resource_ref']}", f"resource:{fields['part_ref']}")

    def snapshot_created(self, event: PlainEvent, fields: Fields, here: str) -> None:
        snapshot, resource = f"snapshot:{fields['snapshot_ref']}", f"resource:{fields['resource_ref']}"
        self.open(event, "EVENT_PRODUCES", here, snapshot)
        self.open(event, "EVENT_CONSUMES", here, resource)
        self.open(event, "SNAPSHOT_OF", snapshot, resource)
        if "after" in fields:
            self.open(event, "DERIVED_FROM", snapshot, f"event:{fields['after']['event_id']}")
        elif "run" in fields:
            self.open(event, "DERIVED_FROM", snapshot, f"run:{fields['run']}")

    def snapshot_discarded(self, event: PlainEvent, fields: Fields, _: str) -> None:
        self.close(event, "SNAPSHOT_OF", source=f"snapshot:{fields['snapshot_ref']}")

    def policy_proposed(self, event: PlainEvent, fields: Fields, here: str) -> None:
        self.scopes[f"policy:{fields['policy_ref']}"] = fields.get("agent", "")
        self.open(event, "PROPOSES_POLICY", here, f"policy:{fields['policy_ref']}")

    def policy_rejected(self, event: PlainEvent, fields: Fields, _: str) -> None:
        for type in ("PROPOSES_POLICY", "ACTIVATES_POLICY"):
            self.close(event, type, target=f"policy:{fields['policy_ref']}")

    def policy_activated(self, event: PlainEvent, fields: Fields, here: str) -> None:
        self._activate(event, f"policy:{fields['policy_ref']}", here)

    def policy_rolled_back(self, event: PlainEvent, fields: Fields, here: str) -> None:
        self._activate(event, f"policy:{fields['to']}", here)

    def _activate(self, event: PlainEvent, policy: str, here: str) -> None:
        for other, scope in self.scopes.items():
            if scope == self.scopes[policy]:
                self.close(event, "ACTIVATES_POLICY", target=other)
        self.close(event, "PROPOSES_POLICY", target=policy)
        self.open(event, "ACTIVATES_POLICY", here, policy)

    # --- questions ----------------------------------------------------------------------------------------------

    def of(self, name: str, at: int | None = None) -> list[PlainEdge]:
        return [edge for edge in self.edges if name in (edge.source, edge.target) and edge.holds(at)]

    def lineage(self, start: str) -> set[tuple[str, str]]:
        found, waiting = set[tuple[str, str]](), [start]
        while waiting:
            here = waiting.pop()
            for edge in self.edges:
                if edge.type == "DERIVED_FROM" and edge.source == here and (here, edge.target) not in found:
                    found.add((here, edge.target))
                    waiting.append(edge.target)
        return found

    def cost(self, edge: PlainEdge) -> int:
        """1, and for each end the binary logarithm of how many edges of this type lead the same way there."""
        alike = [other for other in self.edges if other.type == edge.type]
        leaving = sum(1 for other in alike if other.source == edge.source)
        arriving = sum(1 for other in alike if other.target == edge.target)
        return 1 + int(log2(leaving)) + int(log2(arriving))

    def cheapest(self, start: str, end: str, longest: int) -> tuple[int, set[tuple[str, ...]]] | None:
        """What the cheapest ways cost, and of these the ones with the fewest edges: all ways are made longer, step by
        step, and of those to one node the cheapest are kept."""
        steps: dict[str, dict[str, int]] = {}
        for edge in self.edges:
            price = self.cost(edge)
            for here, there in ((edge.source, edge.target), (edge.target, edge.source)):
                known = steps.setdefault(here, {})
                known[there] = min(price, known.get(there, price))
        ways: dict[str, tuple[int, set[tuple[str, ...]]]] = {start: (0, {(start,)})}
        best = ways.get(end)
        for _ in range(longest):
            longer: dict[str, tuple[int, set[tuple[str, ...]]]] = {}
            for here, (so_far, nodes) in ways.items():
                for there, price in steps.get(here, {}).items():
                    cost, kept = longer.get(there, (so_far + price, set()))
                    if so_far + price <= cost:
                        kept = kept if so_far + price == cost else set()
                        longer[there] = so_far + price, kept | {(*way, there) for way in nodes}
            ways = longer
            if end in ways and (best is None or ways[end][0] < best[0]):
                best = ways[end]
        return best
