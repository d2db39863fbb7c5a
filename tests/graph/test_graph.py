"""Questions about the graph: nodes, neighbours, ways, histories, lineage, calls, resources, policies, ancestry."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.graph.histories import new, tell_everything
from tests.ledger.histories import grow
from tests.ledger.imported import rich_import
from weft.graph.model import GraphEdge
from weft.kernel.clock import FixedClock
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound
from weft.ledger.api.resources import ResourceLog
from weft.open_ledger import OpenLedger

NOON = 1_794_700_800_000
HOUR = 3_600_000


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OpenLedger, dict[str, str]]]:
    with weft.open(tmp_path_factory.mktemp("graph") / "ledger.db") as ledger:
        yield ledger, tell_everything(ledger)


def brief(edge: GraphEdge) -> tuple[str, str, str]:
    return edge.type.value, edge.source.partition(":")[0], edge.target.partition(":")[0]


Told = tuple[OpenLedger, dict[str, str]]


def test_the_history_of_a_run_is_its_events_in_order(told: Told) -> None:
    ledger, names = told
    history = ledger.graph.history(names["turn"])
    assert [event.properties["event_id"] for event in history.events] == [
        event.id for event in ledger.events(names["turn"])
    ]
    assert history.run.name == f"run:{names['turn']}"
    cut = ledger.graph.history(names["turn"], limit=2)
    assert (cut.events, cut.is_cut) == (history.events[:2], True)


def test_calls_come_with_their_results_and_with_what_asked_for_them(told: Told) -> None:
    ledger, names = told
    (pair,) = ledger.graph.calls(names["turn"])
    assert pair.call.properties["args"] == {"path": "."}
    assert pair.results[0].properties["result"] == {"rc": 0, "stdout": "a\n"}
    assert pair.requested_by is not None
    assert pair.requested_by.startswith("generation:")
    for name in (pair.call.name, pair.results[0].name, pair.requested_by):
        assert ledger.graph.calls(name) == [pair]


def test_lineage_follows_what_was_derived_from_what(told: Told) -> None:
    ledger, names = told
    walk = ledger.graph.lineage(names["again"])
    assert [(edge.source, edge.target) for edge in walk.edges] == [
        (f"event:{names['again']}", f"event:{names['request']}")
    ]
    of_run = ledger.graph.lineage("main")
    assert [edge.target for edge in of_run.edges][-1] == f"run:{names['turn']}"
    assert ledger.graph.lineage("main", limit=1).is_cut


def test_resources_have_their_owner_and_uses_of_the_time_that_is_asked_about(tmp_path: Path) -> None:
    clock = FixedClock(NOON)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        grow(ledger, "main", "one")
        grow(ledger, "other", "two")
        folder = ResourceLog(ledger).declare(new("folder"))
        ledger.resources.attach(folder.id, session="main")
        clock.tick(HOUR)
        ledger.resources.detach(folder.id, session="main")
        ledger.resources.migrate(folder.id, session="other")
        sessions = {label: f"session:{ledger.session(label).id}" for label in ("main", "other")}
        (now,) = ledger.graph.resources()
        (before,) = ledger.graph.resources("folder", at=NOON + 1)
        assert now.owner is not None
        assert before.owner is not None
        assert (now.owner.source, before.owner.source) == (sessions["other"], sessions["main"])
        assert (len(now.attached), len(before.attached)) == (0, 1)
        assert before.owner.valid_to == NOON + HOUR
        assert ledger.graph.resources("session:other") == [now]
        (known,) = ledger.graph.resources("folder", known_at=NOON + 1)
        assert known.owner is not None
        assert (known.owner.source, known.owner.valid_to) == (sessions["main"], None)
        assert ledger.graph.resources(known_at=NOON - 1) == []


def test_policies_tell_what_was_proposed_and_active_and_for_how_long(told: Told) -> None:
    ledger, names = told
    steps = ledger.graph.policies()
    assert [(step.edge.type.value, step.policy.properties["name"], step.edge.closed_by is None) for step in steps] == [
        ("PROPOSES_POLICY", "careful", False),
        ("PROPOSES_POLICY", "careless", False),
        ("ACTIVATES_POLICY", "careful", False),
        ("ACTIVATES_POLICY", "careless", False),
        ("ACTIVATES_POLICY", "careful", True),
    ]
    assert {step.policy.name for step in ledger.graph.policies("careless")} == {f"policy:{names['careless']}"}


def test_ancestry_leads_from_a_fork_and_from_a_subagent_to_where_they_came_from(told: Told) -> None:
    ledger, names = told
    fork = ledger.graph.ancestry("other")
    assert ("FORKED_FROM", "session", "run") in map(brief, fork.edges)
    assert f"run:{names['turn']}" in fork.nodes
    worker = next(session for session in ledger.sessions() if session.label.startswith("worker:"))
    walk = ledger.graph.ancestry(worker.label)
    assert {"FORKED_FROM", "SPAWNED_FROM"} == {edge.type.value for edge in walk.edges}
    assert ledger.graph.node(f"session:{worker.label}").type == "Subagent"


def test_a_way_between_two_nodes_is_the_shortest(told: Told) -> None:
    ledger, names = told
    found = ledger.graph.path(names["request"], names["folder"])
    assert found.paths
    lengths = {len(path.edges) for path in found.paths}
    assert len(lengths) == 1
    for path in found.paths:
        assert len(path.nodes) == len(path.edges) + 1
        for left, edge, right in zip(path.nodes[:-1], path.edges, path.nodes[1:], strict=True):
            assert {left, right} == {edge.source, edge.target}
    assert ledger.graph.path("main", "main").paths[0].edges == ()
    assert ledger.graph.path(names["request"], names["folder"], longest=1).paths == ()


def test_neighbours_can_be_asked_for_by_type_and_direction(told: Told) -> None:
    ledger, names = told
    every = ledger.graph.neighbours(names["turn"])
    out = ledger.graph.neighbours(names["turn"], direction="out")
    into = ledger.graph.neighbours(names["turn"], direction="in")
    assert len(every.edges) == len(out.edges) + len(into.edges)
    assert {edge.type for edge in ledger.graph.neighbours(names["turn"], ["agent-has-run"]).edges} == {"AGENT_HAS_RUN"}
    assert set(every.nodes) == {end for edge in every.edges for end in (edge.source, edge.target)} - {every.node.name}
    assert ledger.graph.neighbours(names["turn"], limit=1).is_cut


def test_what_an_answer_shows_is_what_every_verb_takes(told: Told) -> None:
    ledger, names = told
    seen, waiting = set[str](), [f"run:{names['turn']}", "resource:folder", "policy:careful", "agent:researcher"]
    while waiting and len(seen) < 150:
        node = ledger.graph.neighbours(waiting.pop(), limit=20)
        seen.add(node.node.name)
        assert ledger.graph.node(node.node.name) == node.node
        waiting += [name for name in node.nodes if name not in seen]
    assert {name.partition(":")[0] for name in seen} >= {"run", "event", "message", "session", "program", "resource"}


def test_names_of_several_kinds_must_say_which(told: Told) -> None:
    ledger, _ = told
    grow(ledger, "careful", "one")
    with pytest.raises(AmbiguousName, match="policy:"):
        ledger.graph.node("careful")
    assert ledger.graph.node("policy:careful").type == "Policy"
    assert ledger.graph.node("run:careful").type == "Run"


def test_what_is_no_node_is_refused_with_what_to_do(told: Told) -> None:
    ledger, names = told
    for name in ("nobody", "event:0000000", f"tool_call:{names['request']}", "message:01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        if name.startswith("message:"):
            assert ledger.graph.node(name).properties["missing"]
            continue
        with pytest.raises(NotFound):
            ledger.graph.node(name)
    with pytest.raises(InvalidInput, match="type of edge"):
        ledger.graph.neighbours("main", ["KNOWS"])
    with pytest.raises(InvalidInput, match="direction"):
        ledger.graph.neighbours("main", direction="up")
    with pytest.raises(InvalidInput, match="limit"):
        ledger.graph.neighbours("main", limit=0)
    with pytest.raises(NotApplicable):
        ledger.graph.history("policy:careful")


def test_an_empty_ledger_has_an_empty_graph() -> None:
    with weft.open(":memory:") as ledger:
        assert (ledger.graph.resources(), ledger.graph.policies()) == ([], [])
        assert ledger.graph.node("local").type == "Agent"
        assert ledger.graph.neighbours("local").edges == ()


def test_imported_turns_have_the_times_of_their_sources_and_say_so(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        rich_import(ledger)
        turn = next(iter(ledger.log()))
        edges = ledger.graph.neighbours(turn.id, ["RUN_HAS_EVENT"]).edges
        assert edges
        assert all(edge.is_synthesised and edge.valid_from == turn.started_at for edge in edges)
        assert ledger.graph.neighbours(turn.id, ["RUN_HAS_EVENT"], at=turn.started_at).edges == edges


def test_a_ledger_that_cannot_be_written_answers_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with weft.open(path) as ledger:
        grow(ledger, "main", "one")
        expected = ledger.graph.neighbours("main")
        grow(ledger, "main", "two")
        head = ledger.resolve("main")
    with weft.open(path, read_only=True) as ledger:
        assert ledger.graph.neighbours("main~1", direction="out").edges
        assert ledger.graph.neighbours("main").node.name == f"run:{head}"
        assert expected.node.name in ledger.graph.neighbours("main", ["DERIVED_FROM"]).nodes
