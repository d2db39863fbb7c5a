"""Three ledgers that record, erase, settle and sync in any order, over connections that are cut at any byte.

Whatever happened, once everybody has synced with everybody: the same facts and digests everywhere, every head that
anybody left is still shown, and what was erased somewhere is not back there. WEFT_PROVE=1 makes 20,000 steps.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import weft
from tests.exchange.sync.wire import contents, digests, events, heads, husks, pull, push, tips
from tests.ledger.histories import problems
from tests.sizes import PROVING, points
from weft.kernel.clock import FixedClock
from weft.kernel.errors import ConnectionCut, NotApplicable, NotFound, WeftError
from weft.ledger.api.ledger import Ledger

SHARDS = 40
FIRST_SEED = int(os.environ.get("WEFT_SEED", "4000"))
SETTINGS = settings(
    max_examples=10 if PROVING else 4,
    stateful_step_count=50,
    database=None,
    deadline=None,
    derandomize=False,
    phases=[Phase.generate],  # a step syncs whole ledgers: shrinking would take longer than reading what happened
    suppress_health_check=list(HealthCheck),
)
who, picks = st.integers(0, 2), st.integers(0, 999)
names = st.sampled_from("ant bee cat".split())
cuts = st.one_of(st.none(), st.integers(0, 30_000))


class SyncMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.clock = FixedClock(1_794_700_800_000)
        self.ledgers = [weft.open(":memory:", clock=self.clock) for _ in range(3)]
        self.gone: list[set[bytes]] = [set(), set(), set()]
        self.said = 0

    def teardown(self) -> None:
        if hasattr(self, "ledgers"):
            try:
                self.converge()
            finally:
                for ledger in self.ledgers:
                    ledger.close()

    def ledger(self, i: int) -> Ledger:
        self.clock.tick()
        return self.ledgers[i]

    def session_of(self, i: int, pick: int) -> str | None:
        found = self.ledger(i).sessions()
        return found[pick % len(found)].label if found else None

    def turn_of(self, i: int, pick: int) -> str | None:
        found = self.ledger(i).log(50)
        return found[pick % len(found)].id if found else None

    @rule(i=who, name=names, calls=st.integers(0, 1))
    def record(self, i: int, name: str, calls: int) -> None:
        self.said += 1
        pending = [{"id": "c1", "name": "t", "status": "interrupted"}] * calls
        try:
            is_archived = self.ledger(i).session(name).status == "archived"
        except NotFound:
            is_archived = False
        if not is_archived:
            self.ledgers[i].record_turn(session=name, query=f"say {self.said}", response="so", tool_calls=pending)

    @rule(i=who, pick=picks)
    def go_on(self, i: int, pick: int) -> None:
        if session := self.session_of(i, pick):
            self.said += 1
            self.ledger(i).record_turn(session=session, query=f"say {self.said}")

    @rule(i=who, pick=picks, name=names)
    def fork(self, i: int, pick: int, name: str) -> None:
        if turn := self.turn_of(i, pick):
            self.said += 1
            self.ledger(i).fork(turn, label=f"{name} {self.said}")

    @rule(i=who, pick=picks, other=picks)
    def move(self, i: int, pick: int, other: int) -> None:
        session, turn = self.session_of(i, pick), self.turn_of(i, other)
        if session and turn:
            self.ledger(i).move_head(session, new=turn)

    @rule(i=who, pick=picks, what=st.sampled_from("rename alias archive delete reset compact unify".split()))
    def change(self, i: int, pick: int, what: str) -> None:
        session, ledger = self.session_of(i, pick), self.ledger(i)
        if session is None:
            return
        self.said += 1
        if what == "rename":
            ledger.labels.rename(session, f"new {self.said}")
        elif what == "alias":
            ledger.labels.add_alias(f"also {self.said}", session)
        elif what == "archive":
            ledger.labels.archive(session)
        elif what == "delete":
            ledger.labels.delete(session)
        elif what == "reset":
            ledger.heads.reset(session)
        elif what == "unify":
            self.unify(ledger, session, self.session_of(i, pick + 1) or session)
        elif ledger.session(session).head is not None:
            ledger.compactions.record(session=session, summary=f"sum {self.said}")

    def unify(self, ledger: Ledger, session: str, into: str) -> None:
        try:
            unified = ledger.merges.unify(session, into=into)
        except NotApplicable:
            return  # the same session, or one with several branches
        assert {ledger.session(name).id for name in unified.names} == {unified.session.id}
        if self.said % 3 == 0:
            separated = ledger.merges.separate(unified.archived.id)
            assert {ledger.session(name).id for name in unified.names} == {separated.id}

    @rule(i=who, pick=picks)
    def come_late(self, i: int, pick: int) -> None:
        if turn := self.turn_of(i, pick):
            try:
                self.ledger(i).record_late_result(turn, "c1", "at last")
            except WeftError:
                return  # it had no call that waits

    @rule(i=who, pick=picks)
    def erase(self, i: int, pick: int) -> None:
        if turn := self.turn_of(i, pick):
            self.ledger(i).erasure.erase(turn, reason="asked for")
            self.gone[i] |= husks(self.ledgers[i])

    @rule(i=who)
    def apply_erasures(self, i: int) -> None:
        waiting = [found.ref for found in self.ledger(i).erasure.pending()]
        if waiting:
            self.ledger(i).erasure.erase(waiting, reason="theirs")
            self.gone[i] |= husks(self.ledgers[i])

    @rule(i=who, to=who, cut=cuts, pushes=st.booleans())
    def sync(self, i: int, to: int, cut: int | None, pushes: bool) -> None:
        if i != to:
            try:
                (push if pushes else pull)(self.ledger(i), self.ledgers[to], *(() if cut is None else (cut,)))
            except ConnectionCut:
                assert cut is not None

    @rule(i=who, to=who, pick=picks)
    def push_some(self, i: int, to: int, pick: int) -> None:
        session = self.session_of(i, pick)
        if i != to and session:
            push(self.ledger(i), self.ledgers[to], sessions=[session])

    @precondition(lambda self: any(ledger.merges.branches() for ledger in self.ledgers))
    @rule(i=who, pick=picks, how=st.sampled_from("ours theirs fork turn".split()))
    def settle(self, i: int, pick: int, how: str) -> None:
        ledger, branches = self.ledger(i), self.ledgers[i].merges.branches()
        if not branches:
            return
        branch = branches[pick % len(branches)]
        self.said += 1
        try:
            if how == "fork":
                ledger.merges.settle(branch.session_id, fork=f"split {self.said}")
            elif how == "turn" and branch.head:
                ledger.merges.settle(branch.session_id, to=branch.head)
            else:
                ledger.merges.settle(branch.session_id, ours=how != "theirs", theirs=how == "theirs")
        except NotApplicable:
            return  # several branches at different turns, or one without a head

    @invariant()
    def what_was_erased_is_not_back(self) -> None:
        for ledger, gone in zip(getattr(self, "ledgers", ()), getattr(self, "gone", ()), strict=True):
            assert not gone & contents(ledger)

    def converge(self) -> None:
        places = set().union(*(heads(ledger) for ledger in self.ledgers))
        self.sync_all()
        one, *others = self.ledgers
        for other in others:
            assert events(other) == events(one)
            assert digests(other) == digests(one)
            assert tips(other) == tips(one)
            assert heads(other) == heads(one)
        self.check_contents()
        assert {turn for _, turn in places if turn} <= set(digests(one))
        self.settle_all()
        self.what_was_erased_is_not_back()
        assert [problems(ledger) for ledger in self.ledgers] == [[], [], []]

    def sync_all(self) -> None:
        for _ in range(2):
            for i, here in enumerate(self.ledgers):
                for there in self.ledgers[i + 1 :]:
                    pull(here, there)
                    push(here, there)
        for i, here in enumerate(self.ledgers):
            for there in self.ledgers[i + 1 :]:
                assert pull(here, there)[0].events == push(here, there)[0].events == 0

    def check_contents(self) -> None:
        """The same everywhere, but for what somebody has erased."""
        tombs = {bytes.fromhex(found.ref) for ledger in self.ledgers for found in ledger.erasure.done()}
        everything = [contents(ledger) - tombs for ledger in self.ledgers]
        assert everything[0] == everything[1] == everything[2]

    def settle_all(self) -> None:
        """One replica settles, and all agree."""
        for session in {branch.session_id for branch in self.ledgers[0].merges.branches()}:
            self.ledgers[0].merges.settle(session, ours=True)
        self.sync_all()
        stands = [{s.id: (s.head, s.status) for s in ledger.sessions(every=True)} for ledger in self.ledgers]
        assert [ledger.merges.branches() for ledger in self.ledgers] == [[], [], []]
        assert stands[0] == stands[1] == stands[2]


@pytest.mark.slow("syncs three ledgers some hundred times")
@pytest.mark.parametrize("shard", points(SHARDS, test=1))
def test_ledgers_that_synced_hold_the_same_whatever_happened_before(shard: int) -> None:
    run_machine(seed(FIRST_SEED + shard)(SyncMachine), settings=SETTINGS)
