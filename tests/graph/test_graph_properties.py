"""Over random histories: edges and their validity are those of a plain replay at every instant and for every state of
knowledge, and every question has the answer of its plain form. Both engines have the same edges.

WEFT_PROVE=1 makes the histories longer and more of them.
"""

import json
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.conftest import NewPostgresLedger
from tests.graph.histories import PASSED, TREE, new
from tests.graph.plain_graph import PlainEvent, PlainGraph
from tests.ledger.histories import problems, select
from tests.ledger.twins import in_order
from tests.sizes import PROVING, points
from weft.graph.edge_reader import GraphEdge
from weft.kernel.clock import FixedClock, ms_from_iso
from weft.kernel.errors import WeftError
from weft.kernel.events import event_id
from weft.ledger.api.resources import ResourceLog
from weft.ledger.views import edges
from weft.programs import Programs
from weft.store.postgres.connection import parse_address
from weft.surfaces.opening import OpenLedger

NOON = 1_794_700_800_000
STEPS = 60 if PROVING else 14
SETTINGS = settings(
    max_examples=150 if PROVING else 8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VERBS = (
    "turn", "tools", "fork", "declare", "migrate", "discard", "attach", "detach", "mount", "unmount", "add_part",
    "remove_part", "snapshot", "discard_snapshot", "propose", "activate", "reject", "roll_back", "refer", "wait",
)  # fmt: skip
stories = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=STEPS)
Step = tuple[str, int, int]


class Story:
    """Does random things to a ledger; what cannot be done is left out."""

    def __init__(self, ledger: OpenLedger, clock: FixedClock) -> None:
        self.ledger, self.clock, self.log = ledger, clock, ResourceLog(ledger)
        self.programs = Programs(ledger)
        self.sessions, self.turns, self.resources, self.policies, self.snapshots = (list[Any]() for _ in range(5))
        for number in range(2):
            self.turn(number, 0)
            self.declare(number, 0)
            self.propose(number, 0)

    def tell(self, steps: list[Step]) -> None:
        for verb, one, other in steps:
            try:
                getattr(self, verb)(one, other)
            except (WeftError, IndexError):
                continue

    def turn(self, one: int, other: int) -> None:
        label = f"s{one}"
        self.turns.append(self.ledger.record_turn(session=label, query="q", response="a").id)
        if label not in self.sessions:
            self.sessions.append(label)

    def tools(self, one: int, other: int) -> None:
        with self.ledger.begin_turn(session=f"s{one}") as turn:
            question = turn.message("look")
            turn.request("m", input=[question])
            turn.response("I look")
            for number in range(other):
                turn.tool_call("ls", id=f"c{number}")
                turn.tool_result(f"c{number}", "ok")
        self.turns.append(turn.id)

    def fork(self, one: int, other: int) -> None:
        label = f"f{len(self.ledger.sessions())}"
        self.ledger.fork(_pick(self.turns, one), label=label)
        self.sessions.append(label)

    def wait(self, one: int, other: int) -> None:
        self.clock.tick(1 + 1000 * one)

    def declare(self, one: int, other: int) -> None:
        name = f"r{len(self.resources)}"
        self.resources.append(self.log.declare(new(name, session=_pick(self.sessions, one))).id)

    def migrate(self, one: int, other: int) -> None:
        self.ledger.resources.migrate(_pick(self.resources, one), session=_pick(self.sessions, other))

    def discard(self, one: int, other: int) -> None:
        self.ledger.resources.discard(_pick(self.resources, one))

    def attach(self, one: int, other: int) -> None:
        self.ledger.resources.attach(_pick(self.resources, one), session=_pick(self.sessions, other), mode="ro")

    def detach(self, one: int, other: int) -> None:
        self.ledger.resources.detach(_pick(self.resources, one), session=_pick(self.sessions, other))

    def mount(self, one: int, other: int) -> None:
        self.log.mount(_pick(self.resources, one), "/data", run=_pick(self.turns, other))

    def unmount(self, one: int, other: int) -> None:
        self.log.unmount(_pick(self.resources, one), run=_pick(self.turns, other))

    def add_part(self, one: int, other: int) -> None:
        if one != other:
            self.log.add_part(_pick(self.resources, one), _pick(self.resources, other), role="volume")

    def remove_part(self, one: int, other: int) -> None:
        self.log.remove_part(_pick(self.resources, one), _pick(self.resources, other))

    def snapshot(self, one: int, other: int) -> None:
        taken = self.log.record_snapshot(_pick(self.resources, one), TREE, run=_pick(self.turns, other))
        self.snapshots.append(taken.id)

    def discard_snapshot(self, one: int, other: int) -> None:
        self.log.discard_snapshot(_pick(self.snapshots, one))

    def propose(self, one: int, other: int) -> None:
        self.policies.append(self.ledger.policies.propose(f"p{len(self.policies)}", f"print({one})"))

    def activate(self, one: int, other: int) -> None:
        policy = _pick(self.policies, one)
        self.ledger.policies.activate(policy.id, digest=policy.digest, tests=PASSED)

    def reject(self, one: int, other: int) -> None:
        self.ledger.policies.reject(_pick(self.policies, one).id)

    def roll_back(self, one: int, other: int) -> None:
        policy = _pick(self.policies, one)
        self.ledger.policies.roll_back(policy.id, digest=policy.digest)

    def refer(self, one: int, other: int) -> None:
        """An agent names other models than before."""
        for name in (f"m{one}", f"m{other}"):
            if not self.programs.all("provider"):
                self.programs.create("provider", "p", {"providerType": "cloudflare-ai-gateway"})
            if name not in [program.name for program in self.programs.all("model")]:
                self.programs.create("model", name, {"modelId": "x", "provider": "@(p)"})
        config = {"systemPrompt": "s", "defaultModel": f"@(m{one})"}
        if "a" in [program.name for program in self.programs.all("agent")]:
            self.programs.configure("a", config)
        else:
            self.programs.create("agent", "a", config)


def _pick(things: list[Any], number: int) -> Any:
    return things[number % len(things)] if things else things[number]


def plain_events(ledger: OpenLedger) -> list[PlainEvent]:
    found = []
    for recorded in ledger.changes():
        fields = json.loads(recorded.line)
        found.append(PlainEvent(recorded.n, event_id(recorded.line), ms_from_iso(fields["ts"]), fields))
    return found


def seen(edge: GraphEdge) -> tuple[Any, ...]:
    opened, closed = edge.opened_by, edge.closed_by
    return (edge.type.value, edge.source, edge.target, edge.valid_from, edge.valid_to, opened, closed)


def all_edges(ledger: OpenLedger, at: int | None, known_at: int | None, names: set[str]) -> Counter[tuple[Any, ...]]:
    """Every edge, found from the node that it leads from."""
    found: Counter[tuple[Any, ...]] = Counter()
    for name in names:
        answer = ledger.graph.neighbours(name, direction="out", at=at, known_at=known_at, limit=10_000)
        found.update(map(seen, answer.edges))
    return found


def names_in(graph: PlainGraph) -> set[str]:
    return {end for edge in graph.edges for end in (edge.source, edge.target)}


@pytest.mark.slow("asks for all edges of random histories at several instants")
@SETTINGS
@given(steps=stories)
def test_edges_are_those_of_a_plain_replay_at_every_instant(steps: list[Step]) -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger:
        Story(ledger, clock).tell(steps)
        events = plain_events(ledger)
        graph = PlainGraph().replay(events)
        sources = {edge.source for edge in graph.edges}
        assert all_edges(ledger, None, None, sources) == Counter(edge.seen() for edge in graph.edges)
        times = sorted({event.when for event in events})
        for at in {times[0] - 1, times[0], times[len(times) // 2], times[-1]}:
            held = Counter(edge.seen() for edge in graph.edges if edge.holds(at))
            assert all_edges(ledger, at, None, sources) == held
        for known_at in {times[0], times[len(times) // 2]}:
            known = PlainGraph().replay(event for event in events if event.when <= known_at)
            assert all_edges(ledger, None, known_at, sources) == Counter(edge.seen() for edge in known.edges)
        assert problems(ledger) == []


@pytest.mark.slow("asks every question of eight histories")
@SETTINGS
@given(steps=stories, picks=st.lists(st.integers(0, 10**6), min_size=2, max_size=6))
def test_every_question_has_the_answer_of_its_plain_form(steps: list[Step], picks: list[int]) -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger:
        Story(ledger, clock).tell(steps)
        graph = PlainGraph().replay(plain_events(ledger))
        names = sorted(names_in(graph))
        chosen = [names[pick % len(names)] for pick in picks]
        for name in chosen:
            around = ledger.graph.neighbours(name, limit=10_000)
            assert Counter(map(seen, around.edges)) == Counter(edge.seen() for edge in graph.of(name))
            walk = ledger.graph.lineage(name, limit=10_000)
            assert {(edge.source, edge.target) for edge in walk.edges} == graph.lineage(name)
        for start, end in pairwise(chosen):
            for longest in (2, 12):
                found = ledger.graph.path(start, end, limit=1000, longest=longest)
                assert not found.is_cut
                cost, ways = graph.cheapest(start, end, longest) or (0, set())
                assert {path.nodes for path in found.paths} == ways
                assert {path.cost for path in found.paths} <= {cost}
        check_conveniences(ledger, graph, clock.now_ms())


def check_conveniences(ledger: OpenLedger, graph: PlainGraph, now: int) -> None:
    """Histories, calls, resources and policies."""
    for run in {edge.target for edge in graph.edges if edge.type == "AGENT_HAS_RUN"}:
        events = [edge.target for edge in graph.edges if edge.type == "RUN_HAS_EVENT" and edge.source == run]
        assert [event.name for event in ledger.graph.history(run).events] == events
        calls = {edge.target for edge in graph.edges if edge.type == "CALLS_TOOL"}
        returns = [edge for edge in graph.edges if edge.type == "RETURNS_RESULT"]
        pairs = [
            (call, [edge.target for edge in returns if edge.source == call])
            for call in (event.replace("event:", "tool_call:") for event in events)
            if call in calls
        ]
        answer = [(pair.call.name, [one.name for one in pair.results]) for pair in ledger.graph.calls(run)]
        assert answer == pairs
    for state in ledger.graph.resources():
        owners = [edge for edge in graph.of(state.resource.name, now) if edge.type == "OWNS_RESOURCE"]
        assert ([] if state.owner is None else [state.owner.source]) == [edge.source for edge in owners]
        for type, shown in (("ATTACHED_TO", state.attached), ("HAS_SUBRESOURCE", state.parts)):
            plain = [edge for edge in graph.of(state.resource.name, now) if edge.type == type]
            mine = [edge.seen() for edge in plain if edge.source == state.resource.name]
            assert [seen(edge) for edge in shown] == mine
    steps = [edge for edge in graph.edges if edge.type in ("PROPOSES_POLICY", "ACTIVATES_POLICY")]
    assert [seen(step.edge) for step in ledger.graph.policies()] == [edge.seen() for edge in steps]


def asked_everything(ledger: OpenLedger, story: Story) -> list[Any]:
    """What every verb answers, of now and of a while ago."""
    graph, earlier = ledger.graph, NOON + 2000
    answers: list[Any] = [graph.resources(), graph.policies()]
    answers += [graph.resources(at=earlier, known_at=earlier), graph.policies(at=earlier, known_at=earlier)]
    for turn in story.turns[:4]:
        answers += [graph.node(turn), graph.history(turn), graph.lineage(turn), graph.calls(turn)]
        answers += [graph.neighbours(turn), graph.neighbours(turn, at=earlier, known_at=earlier)]
        answers += [graph.path(turn, story.resources[0])]
    return answers + [graph.ancestry(session) for session in story.sessions[:4]]


@pytest.mark.slow("asks every question of a history on two engines")
@pytest.mark.parametrize("seed", points(20, test=1))
def test_both_engines_have_the_same_edges(seed: int, new_postgres_ledger: NewPostgresLedger) -> None:
    choose, address = Random(seed), new_postgres_ledger()
    steps = [(choose.choice(VERBS), choose.randrange(4), choose.randrange(4)) for _ in range(4 * STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        answers = []
        for where in (path, address):
            clock = FixedClock(NOON)
            with weft.open(where, clock=clock, random_bytes=Random(f"{seed}").randbytes) as ledger:
                story = Story(ledger, clock)
                story.tell(steps)
                edges.catch_up(ledger._store)
                answers.append(asked_everything(ledger, story))
        assert answers[0] == answers[1]
        named = parse_address(address)
        with psycopg.connect(named.conninfo, row_factory=psycopg.rows.dict_row) as connection:
            theirs = connection.execute(f"SELECT * FROM {named.quoted}.edge".encode()).fetchall()
        ours = select(path, "SELECT * FROM edge")
        assert len(ours) > 50
        assert in_order(ours) == in_order(theirs)
