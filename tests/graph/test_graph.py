"""Questions about the graph: nodes, neighbours, ways, histories, lineage, calls, resources, policies, ancestry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.graph.histories import new, tell_everything
from tests.ledger.histories import grow, problems
from tests.ledger.imported import native_turn, rich_import, take
from weft.graph import edge_reader
from weft.graph.edge_reader import GraphEdge
from weft.kernel.clock import FixedClock
from weft.kernel.errors import AmbiguousName, InvalidInput, NotApplicable, NotFound
from weft.kernel.events import PolicyTests, ToolCallRequested, ToolResult
from weft.ledger.api.resources import ResourceLog
from weft.ledger.views.edges import EdgeType
from weft.surfaces.opening import OpenLedger

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
    assert ("FORKED_FROM", "session", "run") in [brief(step.edge) for step in fork.steps]
    assert f"run:{names['turn']}" in fork.nodes
    main = f"session:{ledger.session('main').id}"
    assert {step.parent for step in fork.steps} == {main}
    assert fork.nodes[main].properties["label"] == "main"
    worker = next(session for session in ledger.sessions() if session.label.startswith("worker:"))
    walk = ledger.graph.ancestry(worker.label)
    assert {"FORKED_FROM", "SPAWNED_FROM"} == {step.edge.type.value for step in walk.steps}
    parents = {step.parent for step in walk.steps if step.edge.type.value == "FORKED_FROM"}
    assert parents == {f"session:{ledger.session('led').id}"}
    assert ledger.graph.node(f"session:{worker.label}").type == "Subagent"


def test_a_way_between_two_nodes_joins_them_edge_by_edge(told: Told) -> None:
    ledger, names = told
    found = ledger.graph.path(names["request"], names["folder"])
    assert found.paths
    assert len({path.cost for path in found.paths}) == 1
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


def test_imported_turns_belong_to_the_sessions_whose_sources_hold_them(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        rich_import(ledger)
        for turn in ledger.log():
            (edge,) = ledger.graph.neighbours(f"run:{turn.id}", ["SESSION_HAS_RUN"]).edges
            assert edge.source == f"session:{turn.session_id}"
            assert (edge.valid_from, edge.is_synthesised) == (turn.started_at, True)
        copied = native_turn("t1", started=1_000, ended=2_000, end=10)
        take(ledger, "copy", copied, native_turn("t9", parent=0, started=9_000, offset=10, end=20), file="c.jsonl")
        first = next(turn for turn in ledger.log() if turn.started_at == 1_000)
        holders = [edge.source for edge in ledger.graph.neighbours(f"run:{first.id}", ["SESSION_HAS_RUN"]).edges]
        assert holders == [f"session:{ledger.session(label).id}" for label in ("main", "copy")]
        assert ledger.graph.ancestry(first.id).start == f"session:{ledger.turn(first.id).session_id}" == holders[1]
        assert problems(ledger) == []


def test_an_imported_subagent_began_when_its_source_says(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        rich_import(ledger)
        forks = ledger.graph.neighbours("session:main/child", ["FORKED_FROM", "SPAWNED_FROM"], direction="out").edges
        times = {edge.target.partition(":")[0]: edge.valid_from for edge in forks}
        assert times == {"run": 2_500, "session": 2_400, "program": 2_400}
        (main,) = ledger.graph.neighbours("session:main", ["AGENT_HAS_SESSION"]).edges
        assert (main.valid_from, main.is_synthesised) == (1_000, True)
        assert {step.parent for step in ledger.graph.ancestry("main/child").steps} == {main.target, None}


def test_a_way_goes_by_what_two_nodes_have_to_do_with_each_other_and_not_by_what_everything_has() -> None:
    with weft.open(":memory:") as ledger:
        first, *_, last = grow(ledger, "main", *"abcde")
        for number in range(30):
            grow(ledger, f"s{number}", "x", "y")
        (path,) = ledger.graph.path(first, last).paths
        assert [edge.type.value for edge in path.edges] == ["DERIVED_FROM"] * 4
        assert path.cost == 4
        assert ledger.graph.path(first, last, longest=2).paths[0].cost > 4
        assert ledger.graph.path(first, last, ["AGENT_HAS_RUN"]).paths[0].nodes[1] == "program:local"


def test_a_way_that_would_take_too_many_edges_to_find_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_reader, "PATH_EDGES", 10)
    with weft.open(":memory:") as ledger:
        first, *_, last = grow(ledger, "main", *"abcde")
        found = ledger.graph.path(first, last)
        assert (found.paths, found.is_cut) == ((), True)


def test_edges_are_counted_as_they_are_read(told: Told) -> None:
    ledger, names = told
    ledger.graph.history(names["turn"])  # a question fills the view of edges
    with ledger._store.read() as txn:
        ends = txn.sql.fetch_rows("SELECT DISTINCT source, type FROM edge UNION SELECT target, type FROM edge")
        ((middle,),) = txn.sql.fetch_rows("SELECT at FROM log ORDER BY n LIMIT 1 OFFSET 5")
    assert len(ends) > 20
    directions: tuple[Literal["out", "in"], ...] = ("out", "in")
    for at, known_at in ((None, None), (None, middle), (middle, None)):
        with ledger.graph._queries_at(at, known_at) as (queries, _):
            for key, type in ends:
                for direction in directions:
                    read = len(list(queries.reader.of(key, (EdgeType(type),), direction)))
                    counted = [queries.reader.count(key, EdgeType(type), direction, most) for most in (1024, 2)]
                    assert counted == [read, min(read, 2)]


def test_a_session_names_its_resources_and_those_of_later_are_not_listed() -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger:
        grow(ledger, "main", "one")
        ResourceLog(ledger).declare(new("early"))
        clock.tick(HOUR)
        ResourceLog(ledger).declare(new("late"))
        assert [state.resource.properties["name"] for state in ledger.graph.resources("main")] == ["early", "late"]
        assert [state.resource.properties["name"] for state in ledger.graph.resources(at=NOON)] == ["early"]
        assert ledger.graph.resources("late", at=NOON) == []
        assert len(ledger.graph.resources("late")) == 1


def test_a_node_is_as_it_was_known_at_a_time(tmp_path: Path) -> None:
    clock = FixedClock(NOON)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        grow(ledger, "main", "one")
        policy = ledger.policies.propose("careful", "print(1)")
        turn = ledger.begin_turn(session="main")
        message = turn.message("look")
        clock.tick(HOUR)
        turn.response("there")
        turn.finish()
        ledger.policies.activate(policy.id, digest=policy.digest, tests=PolicyTests(total=1, passed=1, failed=0))
        (later,) = grow(ledger, "later", "two")
        graph = ledger.graph
        assert graph.node("policy:careful").properties["state"] == "active"
        assert graph.node("policy:careful", known_at=NOON).properties["state"] == "proposal"
        states = [graph.node(turn.id, known_at=when).properties["status"] for when in (NOON, None)]
        assert states == ["pending", "completed"]
        assert graph.node(f"message:{message}", known_at=NOON) == graph.node(f"message:{message}")
        for name in (f"run:{later}", "session:later", f"event:{list(ledger.events(turn.id))[-1].id}"):
            assert graph.node(name, known_at=NOON + HOUR) == graph.node(name)
            with pytest.raises(NotFound) as refused:
                graph.node(name, known_at=NOON)
            assert "did not know it then" in str(refused.value.hint)


def test_what_was_known_is_well_defined_where_the_clock_went_back(tmp_path: Path) -> None:
    clock = FixedClock(NOON)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        turns = []
        for when in (NOON, NOON + 2 * HOUR, NOON + HOUR, NOON + 3 * HOUR):
            clock.set(when)
            turns += grow(ledger, "main", "next")
        known = {
            hours: [bool(ledger.graph.neighbours(f"run:{turn}", known_at=NOON + hours * HOUR).edges) for turn in turns]
            for hours in (-1, 0, 1, 2, 3)
        }
        assert known == {
            -1: [False, False, False, False],
            0: [True, False, False, False],
            1: [True, True, True, False],
            2: [True, True, True, False],
            3: [True, True, True, True],
        }


def sent_with(ledger: OpenLedger, turn: str) -> list[list[object]]:
    """What each request of a turn was sent, as the graph shows it."""
    nodes = [ledger.graph.node(f"event:{event.id}") for event in ledger.events(turn)]
    return [node.properties["input_refs"] for node in nodes if node.properties["kind"] == "model_request"]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_request_shows_all_that_it_was_sent(
    engine: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    with weft.open(tmp_path / "ledger.db" if engine == "sqlite" else new_postgres_ledger()) as ledger:
        earlier = grow(ledger, "main", "a", "b")
        said: list[object] = [message.id for turn in earlier for message in ledger.messages(turn)]
        with ledger.begin_turn(session="main") as writer:
            asked = writer.message("c")
            writer.request("m")
            answer = writer.response("I look")
            writer.tool_result(writer.tool_call("look", {}), "seen")
            writer.request("m")
            writer.response("done")
            writer.finish()
        calls: list[object] = [
            {"event_id": event.id}
            for event in ledger.events(writer.id)
            if isinstance(event.event, ToolCallRequested | ToolResult)
        ]
        first, second = sent_with(ledger, writer.id)
        assert first == [*said, asked]
        assert second == [*said, asked, answer, *calls]
        context = ledger.context(writer.id)
        assert context.observed
        assert [message.id for message in context.messages] == first
        with ledger.begin_turn(session="main") as writer:
            more = writer.message("d")
            writer.request("m", input=[more])
            writer.message("e", role="system")
            writer.request("m")
            writer.finish()
        first, second = sent_with(ledger, writer.id)
        assert first == [more]
        assert len(second) == 2
        assert problems(ledger) == []


def test_a_request_that_does_not_say_what_it_was_sent_shows_what_its_turn_saw(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        first, second = grow(ledger, "main", "a", "b")
        (sent,) = sent_with(ledger, second)
        assert sent == [*(message.id for message in ledger.messages(first)), ledger.messages(second)[0].id]
        (request,) = (
            event for event in ledger.graph.history(second).events if event.properties["kind"] == "model_request"
        )
        assert request.properties["input_observed"] is False


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_policy_is_active_or_a_proposal_and_says_where_its_source_is_and_how_its_tests_ended(
    engine: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    with weft.open(tmp_path / "ledger.db" if engine == "sqlite" else new_postgres_ledger()) as ledger:
        first = ledger.policies.propose("first", "print(1)", docstring="Asks about all.")
        second = ledger.policies.propose("second", "print(2)")
        third = ledger.policies.propose("third", "print(3)")
        ledger.policies.reject(third.id, reason="no")

        def shown(name: str) -> tuple[object, ...]:
            node = ledger.graph.node(f"policy:{name}").properties
            assert node["source_digest"] == ledger.policies.get(node["id"]).digest
            return node["kind"], node["state"], node["path_or_uri"]["uri"], node.get("tests_summary")

        of_proposals = "resource://approval-policy/proposals"
        assert shown("first") == ("proposal", "proposal", f"{of_proposals}/{first.id}/policy.py", None)
        assert shown("third") == ("proposal", "rejected", f"{of_proposals}/{third.id}/policy.py", None)
        passed = PolicyTests(total=3, passed=3, failed=0)
        ledger.policies.activate(first.id, digest=first.digest, tests=passed)
        counted = {"total": 3, "passed": 3, "failed": 0}
        assert shown("first") == ("active", "active", "resource://approval-policy/policy.py", counted)
        ledger.policies.activate(second.id, digest=second.digest, tests=passed)
        assert shown("first") == ("proposal", "replaced", f"{of_proposals}/{first.id}/policy.py", counted)
        assert ledger.graph.node("policy:first").properties["docstring"] == "Asks about all."
