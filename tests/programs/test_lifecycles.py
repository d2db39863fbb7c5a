"""Every lifecycle driven by random verbs, on both backends: only what the tables allow happens, each step is an event,
and the views are what a rebuild makes of the facts. WEFT_PROVE=1 takes more steps."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import weft
from tests.ledger.histories import lines, problems
from tests.postgres import shared_server
from tests.programs.conftest import NOON
from tests.sizes import PROVING
from weft.kernel.clock import FixedClock
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import IllegalTransition, NotApplicable
from weft.programs import Programs

EDGES: dict[str, set[tuple[str, str]]] = {
    "provider": {("draft", "published"), ("published", "deprecated")},
    "session": {("created", "active"), ("active", "paused"), ("paused", "active"), ("active", "completed"),
                ("paused", "completed")},
    "task": {("pending", "active"), ("active", "completed"), ("active", "failed"), ("active", "blocked"),
             ("blocked", "active")},
    "information": {("draft", "validated"), ("validated", "active"), ("active", "archived"), ("archived", "active")},
    "human": {("available", "busy"), ("busy", "available"), ("available", "away"), ("away", "available"),
              ("available", "offline"), ("busy", "offline"), ("away", "offline"), ("offline", "available"),
              ("busy", "away")},
}  # fmt: skip
WORK = {"idle", "thinking", "executing", "waiting", "error", "paused"}
AGENT_EDGES = (
    {("idle", "thinking"), ("thinking", "executing"), ("executing", "thinking"), ("thinking", "waiting")}
    | {("waiting", "thinking"), ("executing", "waiting")}
    | {(state, "paused") for state in WORK}
    | {("paused", state) for state in WORK}
    | {(state, "error") for state in WORK}
    | {(state, "idle") for state in WORK}
)
"""Written out again by hand, so that the tables are held against something."""
AGENT_VERBS = ("think", "execute", "wait", "pause", "resume", "complete", "reset")
KINDS = ("provider", "session", "agent", "task", "information", "human")
picks = st.integers(0, 99)


class Lifecycles(RuleBasedStateMachine):
    address: ClassVar[Callable[[], str]]

    @initialize()
    def open(self) -> None:
        self.clock = FixedClock(NOON)
        self.ledger = weft.open(type(self).address(), clock=self.clock)
        self.programs = Programs(self.ledger)
        self.names: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self.states: dict[str, str] = {}
        self.made = 0
        for kind in self.names:
            self.create(kind, 0)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            assert problems(self.ledger) == []
            assert self.ledger.upkeep.rebuild() == 0
            self.ledger.close()

    @rule(kind=st.sampled_from(KINDS), pick=picks)
    def create(self, kind: str, pick: int) -> None:
        self.made += 1
        name = f"{kind}-{self.made}"
        if kind == "session":
            self.programs.create_session(name)
        else:
            configs: dict[str, Any] = {
                "provider": {"providerType": "x"},
                "agent": {"soul": "s"},
                "task": {"title": name, "dependencies": self._some_tasks(pick)},
                "information": {"infoType": "fact", "content": {"n": pick}},
                "human": {"permissions": ["approve"]},
            }
            self.programs.create(kind, name, configs[kind], draft=True)
        self.names[kind].append(name)
        self.states[name] = self.programs.get(name).state

    def _some_tasks(self, pick: int) -> list[str]:
        return self.names["task"][pick % 3 : pick % 3 + pick % 2]

    def _step(self, kind: str, pick: int, verb: str, call: Callable[[str], Any]) -> None:
        """Done or refused: done means one of the edges, and events; refused means that nothing happened."""
        self.clock.tick()
        name = self.names[kind][pick % len(self.names[kind])]
        before, count = self.states[name], len(lines(self.ledger))
        refusal: NotApplicable | None = None
        try:
            call(name)
        except NotApplicable as refused:
            refusal = refused
        if isinstance(refusal, IllegalTransition):
            assert refusal.state == before
            assert verb not in refusal.legal
        assert (len(lines(self.ledger)) > count) == (refusal is None)
        self._note(ProgramKind(kind), name, before, self.programs.get(name).state)
        assert refusal is None or self.states[name] == before

    def _note(self, kind: ProgramKind, name: str, before: str, after: str) -> None:
        edges = AGENT_EDGES if kind is ProgramKind.AGENT else EDGES[kind]
        between = {middle for start, middle in edges if start == before}
        assert before == after or (before, after) in edges or any((one, after) in edges for one in between)
        self.states[name] = after

    @rule(pick=picks, verb=st.sampled_from(["publish", "deprecate"]))
    def step_provider(self, pick: int, verb: str) -> None:
        self._step("provider", pick, verb, getattr(self.programs, verb))

    @rule(pick=picks, verb=st.sampled_from(["pause", "resume", "complete"]))
    def step_session(self, pick: int, verb: str) -> None:
        self._step("session", pick, verb, lambda name: self.programs.step_session(name, verb))

    @rule(pick=picks)
    def record(self, pick: int) -> None:
        def call(name: str) -> Any:
            self.ledger.record_turn(session=name, query="q")
            return self.programs.get(name)

        self._step("session", pick, "begin", call)

    @rule(pick=picks, verb=st.sampled_from(AGENT_VERBS))
    def step_agent(self, pick: int, verb: str) -> None:
        self._step("agent", pick, verb, lambda name: self.programs.step_agent(name, verb))

    @rule(pick=picks)
    def fail_agent(self, pick: int) -> None:
        self._step("agent", pick, "fail", lambda name: self.programs.fail_agent(name, "broken"))

    @rule(pick=picks, verb=st.sampled_from(["start_task", "complete_task", "fail_task"]))
    def step_task(self, pick: int, verb: str) -> None:
        self._step("task", pick, verb.partition("_")[0], getattr(self.programs, verb))
        for name in self.names["task"]:
            self._note(ProgramKind.TASK, name, self.states[name], self.programs.get(name).state)

    @rule(pick=picks, verb=st.sampled_from(["validate", "activate", "archive"]))
    def step_information(self, pick: int, verb: str) -> None:
        self._step("information", pick, verb, getattr(self.programs, verb))

    @rule(pick=picks, presence=st.sampled_from(["available", "busy", "away", "offline"]))
    def set_presence(self, pick: int, presence: str) -> None:
        self._step("human", pick, presence, lambda name: self.programs.set_presence(name, presence))

    @invariant()
    def states_are_those_that_the_steps_led_to(self) -> None:
        if hasattr(self, "states"):
            now = {one.name: one.state for one in self.programs.all()}
            assert now == self.states

    @invariant()
    def a_blocked_task_waits_for_one_that_is_not_done(self) -> None:
        for name in self.names["task"] if hasattr(self, "states") else ():
            task = self.programs.get(name)
            needs = [self.states[one[2:-1]] for one in task.config.get("dependencies", [])]
            waiting = any(state != "completed" for state in needs)
            assert task.state != "blocked" or waiting
            assert task.state != "active" or not waiting


class OnMemory(Lifecycles):
    address = staticmethod(lambda: ":memory:")


class OnPostgres(Lifecycles):
    address = staticmethod(lambda: shared_server().address())


@pytest.mark.slow("takes hundreds of random steps, and verifies the ledgers")
@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [(OnMemory, 500 if PROVING else 6, 60 if PROVING else 40), (OnPostgres, 40 if PROVING else 1, 30)],
    ids=["memory", "postgres"],
)
def test_random_verbs_lead_only_where_the_lifecycles_do(machine: type[Lifecycles], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
