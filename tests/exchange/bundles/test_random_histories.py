"""Bundles of whatever was done in whatever order: both verifiers agree, and a stranger reads the same thread."""

import random
import tracemalloc
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import rule

import weft
from tests.exchange.bundles.reading import verified
from tests.kernel.event_strategies import events
from tests.ledger.histories import problems, texts
from tests.ledger.test_state_machine import FIRST_SEED, LedgerMachine, picks, run_steps
from tests.sizes import sized
from weft.exchange.bundles import create_bundle, import_bundle, verify_bundle
from weft.exchange.bundles.verification import references
from weft.kernel.events import Event, encode
from weft.kernel.foreign_input import KINDS, is_digest
from weft.ledger.api.base import open_thread_facts
from weft.ledger.api.ledger import Ledger
from weft.ledger.read import thread_events
from weft.ledger.read.content_uses import references as typed_references
from weft.ledger.read.thread_events import ThreadFacts

STEPS = sized(test=60, prove=4_000)
TURNS = sized(test=200, prove=100_000)
MiB = 1024 * 1024


class Bundling(LedgerMachine):
    """The machine of all ledgers, that now and then puts some of its threads into a bundle."""

    @rule(first=picks, second=picks, at=picks)
    def put_into_a_bundle(self, first: int, second: int, at: int) -> None:
        ledger = self.ledger(False)
        if not self.plain.turns:
            return
        inside = ledger.events(self.turn_at(second).id)
        heads = [self.turn_at(first).id, inside[at % len(inside)].id]
        target = Path(self.path).with_name("threads.weft")
        with open_thread_facts(ledger, heads) as facts:
            assert [*facts.events()] == _walked(facts)
        create_bundle(ledger, heads, target)
        report = verified(target)
        assert {head.event for head in report.heads} <= {ledger.turn(heads[0]).digest, heads[1]}
        with weft.open(":memory:") as other:
            import_bundle(other, target)
            for head in heads:
                assert _read(other, head) == _read(ledger, head)
            assert problems(other) == []
        target.unlink()


def _walked(facts: ThreadFacts) -> list[tuple[int, bytes]]:
    """The same events, looked for in every row of the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_events, "rows_at", lambda log, *_: log.rows())
        return [*facts.events()]


def _read(ledger: Ledger, name: str) -> tuple[str, list[str], list[str]]:
    thread = ledger.thread(name)
    return thread.digest, list(thread.ancestry), texts(thread.messages)


@pytest.mark.slow("makes and opens dozens of bundles")
def test_threads_of_random_histories_go_through_bundles_unchanged(memory_folder: Path | None) -> None:
    steps, _ = run_steps(STEPS, FIRST_SEED + 77, memory_folder, Bundling)
    assert steps >= STEPS


@given(st.sampled_from(list(KINDS.kinds.values())).flatmap(events))
def test_the_references_of_an_event_are_found_without_knowing_its_kind(event: Event) -> None:
    """The verifiers do not know kinds. What they take for a reference is one, or a name that looks just like one."""
    found = {ref for _, ref in references(orjson.loads(encode(event)))}
    typed = {ref for _, ref in typed_references(event)}
    if event.__struct_config__.tag != "content_erased":
        assert typed <= found
    names = {text for text in _texts(orjson.loads(encode(event))) if is_digest(text)}
    assert found <= names


def _texts(value: object) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()))
    if isinstance(value, list):
        return set().union(*map(_texts, value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.slow("counts every allocation while a bundle is made")
def test_memory_stays_the_same_however_long_a_thread_is(tmp_path: Path) -> None:
    """Made, verified: a long thread takes no more than a short one and some caches."""
    chance = random.Random(5)
    with weft.open(tmp_path / "ledger.db") as ledger:
        for _ in range(TURNS):
            text = chance.randbytes(40).hex()
            ledger.record_turn(session="main", query=text, response=text[::-1])
        ledger.upkeep.catch_up()
        tracemalloc.start()
        short = create_bundle(ledger, [f"main~{TURNS - 100}"], tmp_path / "short.weft")
        small = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        long = create_bundle(ledger, ["main"], tmp_path / "long.weft")
        verify_bundle(tmp_path / "long.weft")
        large = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (short.report.turns, long.report.turns) == (100, TURNS)
    assert large < small + 4 * MiB
