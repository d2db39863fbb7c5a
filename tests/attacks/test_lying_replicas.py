"""Random histories over three replicas of which one lies: it forges, replays, reorders, truncates, contradicts itself
and speaks under the names of the others.

Whatever it does: the honest ones can always sync again after at most a few refusals. Each holds what the other has, but
for what it refused. What it refused is the liar's, contradicts the liar's, or builds on that. Nothing that an honest
one wrote apart from it is missing, and no content that was here is gone. WEFT_PROVE=1 makes longer histories.
"""

import os
from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import weft
from tests.attacks.lying_peer import (
    Batch,
    changed,
    hello_as,
    ids_of,
    place_after,
    pull_from_liar,
    push_from_liar,
    rechained,
    stream_in,
)
from tests.exchange.sync.wire import contents, events, pull, push
from tests.ledger.histories import lines, problems
from tests.sizes import PROVING
from weft.exchange import sync
from weft.exchange.sync.fact_transfer import BatchEnd
from weft.exchange.sync.synced_ledgers import ENDING_REFUSALS_LIMIT
from weft.kernel import contents as kernel_contents
from weft.kernel.clock import FixedClock
from weft.kernel.errors import ReplicaDiverged, WeftError
from weft.ledger.api.ledger import Ledger

SHARDS = 20 if PROVING else 2
FIRST_SEED = int(os.environ.get("WEFT_SEED", "7000"))
SETTINGS = settings(
    max_examples=20 if PROVING else 3,
    stateful_step_count=60 if PROVING else 25,
    database=None,
    deadline=None,
    derandomize=False,
    phases=[Phase.generate],  # a step syncs whole ledgers: shrinking would take longer than reading what happened
    suppress_health_check=list(HealthCheck),
)
LIAR = "01M7E81W00RGHTHTD1FJHKE0KC"
JUNK = "cd" * 32
who, picks = st.integers(0, 1), st.integers(0, 999)
names = st.sampled_from("ant bee cat".split())
REFUSALS_LIMIT = 2 * (ENDING_REFUSALS_LIMIT + 2)
"""Of one sync in both directions: each side may refuse what was forged, what contradicts it, and the other's memory."""


class LyingMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.clock = FixedClock(1_794_700_800_000)
        self.honest = [weft.open(":memory:", clock=self.clock) for _ in range(2)]
        self.written: set[bytes] = set()
        self.lies: set[bytes] = set()
        self.contents: list[set[bytes]] = [set(), set()]
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "honest"):
            try:
                self.converge()
            finally:
                for ledger in self.honest:
                    ledger.close()

    # --- what honest ones do

    @rule(i=who, name=names)
    def record(self, i: int, name: str) -> None:
        self.count += 1
        self.clock.tick()
        before = events(self.honest[i])
        self.honest[i].record_turn(session=name, query=f"say {self.count}", response="so")
        self.written |= events(self.honest[i]) - before

    @rule(i=who, pick=picks)
    def fork(self, i: int, pick: int) -> None:
        turns = self.honest[i].log(50)
        if turns:
            self.count += 1
            before = events(self.honest[i])
            self.honest[i].fork(turns[pick % len(turns)].id, label=f"fork {self.count}")
            self.written |= events(self.honest[i]) - before

    @rule(i=who, pushes=st.booleans())
    def sync(self, i: int, pushes: bool) -> None:
        for _ in range(REFUSALS_LIMIT):
            try:
                (push if pushes else pull)(self.honest[i], self.honest[1 - i])
            except ReplicaDiverged:
                continue
            return
        raise AssertionError("refused for ever")

    # --- what the liar does

    def lie(self, i: int, as_whom: int, batches: list[Batch], pushes: bool) -> None:
        """Under its own name, under that of the other, or under that of the one it speaks to."""
        name = (LIAR, self.honest[1 - i].replica, self.honest[i].replica)[as_whom]
        before = events(self.honest[i])
        with suppress(WeftError):  # most are refused; what matters is what stays
            (push_from_liar if pushes else pull_from_liar)(self.honest[i], hello_as(name), *batches)
        self.lies |= events(self.honest[i]) - before - self.written

    def lines_known(self, pick: int) -> list[bytes]:
        """Everything that anybody wrote, as a liar who syncs with everybody has it."""
        return lines(self.honest[pick % 2])

    @rule(i=who, as_whom=st.integers(0, 2), pick=picks, other=picks, mark=st.integers(0, 3), pushes=st.booleans())
    def replay(self, i: int, as_whom: int, pick: int, other: int, mark: int, pushes: bool) -> None:
        """True events: some of them, again, in another order, without their beginnings."""
        known = self.lines_known(pick)
        first, last = sorted((pick % (len(known) + 1), other % (len(known) + 1)))
        some = known[first:last]
        told = [some, some[::-1], known[:last], some * 2][other % 4]
        self.lie(i, as_whom, [Batch(told, self.marked(mark, told, known))] if told else [], pushes)

    @rule(i=who, as_whom=st.integers(0, 2), pick=picks, mark=st.integers(0, 3), pushes=st.booleans(), keeps=picks)
    def contradict(self, i: int, as_whom: int, pick: int, mark: int, pushes: bool, keeps: int) -> None:
        """A turn of somebody, changed from its first event on or from a later one, with what it grows from."""
        known = self.lines_known(pick)
        streams = sorted({stream_in(line) for line in known if stream_in(line).startswith("run:")})
        if not streams:
            return
        run = [line for line in known if stream_in(line) == streams[pick % len(streams)]]
        self.count += 1
        twin = rechained(run, keeps % len(run), ts=self.later())
        told = [*known[: known.index(run[0])], *twin] if keeps % 2 else twin
        self.lie(i, as_whom, [Batch(told, self.marked(mark, told, known))], pushes)

    @rule(i=who, as_whom=st.integers(0, 2), pick=picks, writer=st.integers(0, 2), mark=st.integers(0, 3), more=picks)
    def forge(self, i: int, as_whom: int, pick: int, writer: int, mark: int, more: int) -> None:
        """Moves of a session that say that an honest one, or somebody else, wrote them."""
        known = self.lines_known(pick)
        moves = [line for line in known if b'"kind":"session_moved"' in line]
        if not moves:
            return
        replica = (self.honest[0].replica, self.honest[1].replica, LIAR)[writer]
        told = [moves[pick % len(moves)]]
        for _ in range(1 + more % 3):
            self.count += 1
            prev = sha256(told[-1]).hexdigest()
            told.append(changed(told[-1], prev=prev, replica=replica, ts=self.later()))
        self.lie(i, as_whom, [Batch(told[1:], self.marked(mark, told, known))], bool(more % 2))

    @rule(i=who, pick=picks, writer=st.integers(0, 2), pushes=st.booleans())
    def forge_erasure(self, i: int, pick: int, writer: int, pushes: bool) -> None:
        """A tombstone for what somebody said."""
        known = self.lines_known(pick)
        texts = [part["text"] for line in known for part in _parts(line)]
        if not texts:
            return
        self.count += 1
        replica = (self.honest[0].replica, self.honest[1].replica, LIAR)[writer]
        tomb = {
            "kind": "content_erased", "v": 1, "stream": f"ledger:{replica}", "prev": None, "actor": "local",
            "content": texts[pick % len(texts)], "reason": "cd" * 32, "ts": self.later(), "replica": replica,
        }  # fmt: skip
        self.lie(i, 0, [Batch([kernel_contents.dumps(tomb)])], pushes)

    def later(self) -> str:
        return f"2027-01-01T00:{self.count // 60 % 60:02}:{self.count % 60:02}.000Z"

    def marked(self, kind: int, told: list[bytes], known: list[bytes]) -> BatchEnd:
        """No place, one that is made up, the true end of an honest log, or one that the events prove."""
        made_up = BatchEnd(n=1 << 30, chain=JUNK)
        return (BatchEnd(), made_up, place_after(known), place_after(told))[kind]

    # --- what must hold

    @invariant()
    def no_content_that_was_here_is_gone(self) -> None:
        for i, ledger in enumerate(getattr(self, "honest", ())):
            assert self.contents[i] <= contents(ledger)
            self.contents[i] = contents(ledger)

    def converge(self) -> None:
        for _ in range(2):
            for i in (0, 1):
                self.sync(i, False)
                self.sync(i, True)
        one, other = self.honest
        for here, there in ((one, other), (other, one)):
            pull(here, there)
            assert {sha256(line).hexdigest() for line in events(there) - events(here)} <= refused_by(here)
            assert problems(here) == []
        tainted = self.tainted()
        for ledger in self.honest:
            assert self.written - tainted <= events(ledger)

    def tainted(self) -> set[bytes]:
        """The liar's events, what stands in a stream that it told otherwise, and what builds on any of that."""
        everything = events(self.honest[0]) | events(self.honest[1])
        ids = {id.hex().encode() for id in ids_of(list(self.lies))}
        streams = {stream_in(line) for line in self.lies}
        tainted = {line for line in everything if stream_in(line) in streams}
        while True:
            ids |= {id.hex().encode() for id in ids_of(list(tainted))}
            turns = {stream_in(line)[4:].encode() for line in tainted if stream_in(line).startswith("run:")}
            more = {line for line in everything - tainted if any(name in line for name in ids | turns)}
            if not more:
                return tainted
            tainted |= more


def refused_by(ledger: Ledger) -> set[str]:
    return {event.event for event in sync.refused_events(ledger)}


def _parts(line: bytes) -> list[dict[str, str]]:
    message = kernel_contents.loads(line).get("message")
    return [part for part in message["parts"] if "text" in part] if isinstance(message, dict) else []


@pytest.mark.parametrize("shard", range(SHARDS))
def test_honest_replicas_converge_and_nobody_is_locked_out_whatever_one_liar_tells(shard: int) -> None:
    run_machine(seed(FIRST_SEED + shard)(LyingMachine), settings=SETTINGS)
