"""Thread digests commit to the whole ancestry; receipts hold a ledger to what it acknowledged."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import change, grow, lines
from weft.kernel.clock import FixedClock
from weft.kernel.events import GENESIS, event_id, extend
from weft.ledger.api.ledger import Ledger

FIRST: dict[str, Any] = {
    "query": "q", "response": "r", "system": "s", "model": "m", "provider": "p", "params": {"t": 1}, "role": "worker",
    "reason": "user", "usage": {"input_tokens": 1}, "workspace": "/w", "toolset": "full", "tools_available": ["a", "b"],
    "permissions_granted": ["x"], "permissions_used": ["x"], "thinking_config": {"b": 1}, "effective_config": {"c": 1},
    "source_event_id": "e", "finish_reason": "stop", "tools_spec": [{"name": "a"}], "persona": "ann",
    "tool_calls": [{"id": "c", "name": "a", "arguments": {"x": 1}, "result": 1, "duration_ms": 1, "server": "f"}],
}  # fmt: skip
CHANGES: dict[str, Any] = {
    "query": "q ", "response": {"content": [{"type": "reasoning", "text": "r"}]}, "system": None, "model": "m2",
    "provider": None, "params": {"t": 1.0}, "role": "manager", "reason": None, "usage": {"input_tokens": 2},
    "workspace": "/v", "toolset": "fuller", "tools_available": ["b", "a"], "permissions_granted": ["y"],
    "permissions_used": [], "thinking_config": {"b": None}, "effective_config": None, "source_event_id": "f",
    "finish_reason": "length", "tools_spec": [], "persona": "local",
    "tool_calls": [{"id": "c", "name": "a", "arguments": {"x": 1}, "result": "1", "duration_ms": 1, "server": "f"}],
}  # fmt: skip


class Dice:
    """The same bytes in every run."""

    def __init__(self) -> None:
        self.rolled = 0

    def __call__(self, size: int) -> bytes:
        self.rolled += 1
        return sha256(b"%d" % self.rolled).digest()[:size]


def tip_over(first: dict[str, Any], started: int = NOON) -> str:
    """The digest of the third turn of a thread whose first turn is this one; the two others never differ."""
    clock = FixedClock(started)
    with weft.open(":memory:", clock=clock, random_bytes=Dice()) as ledger:
        ledger.record_turn(session="main", **first)
        clock.set(NOON + 5000)
        grow(ledger, "main", "second", "third")
        return ledger.thread("main").digest


def test_the_same_history_has_the_same_digest() -> None:
    assert tip_over(FIRST) == tip_over(FIRST)


@pytest.mark.parametrize("field", FIRST)
def test_changing_anything_in_an_ancestor_changes_the_digest(field: str) -> None:
    assert tip_over({**FIRST, field: CHANGES[field]}) != tip_over(FIRST)


def test_the_time_of_an_ancestor_is_part_of_the_digest() -> None:
    assert tip_over(FIRST, NOON + 1) != tip_over(FIRST)


def test_every_field_of_a_turn_has_its_change() -> None:
    assert FIRST.keys() == CHANGES.keys()


def test_a_chain_runs_from_the_root_to_the_last_event(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c")
    last: str | None = None
    for turn in turns:
        events = ledger.events(turn)
        fork = json.loads(events[0].line).get("fork")
        assert (fork and fork["event"]) == last
        before: str | None = None
        for found in events:
            assert found.event.prev == before
            assert found.id == event_id(found.line) == sha256(found.line).hexdigest()
            before = found.id
        last = before
        assert ledger.turn(turn).digest == ledger.thread(turn).digest == last


def test_what_comes_after_a_turn_does_not_change_its_digest(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    digest = ledger.thread(turn).digest
    ledger.fork(turn, label="alt")
    ledger.compactions.record(session="main", summary="s")
    ledger.labels.rename("main", "trunk")
    assert ledger.thread(turn).digest == digest


def test_two_turns_that_say_the_same_have_two_digests(ledger: Ledger) -> None:
    first, second = ledger.record_turn(query="q"), ledger.record_turn(query="q")
    assert first.digest != second.digest


def test_a_receipt_is_the_place_in_the_log_and_its_hash(ledger: Ledger) -> None:
    receipts = [ledger.record_turn(session=f"{i % 2}", query="q").receipt for i in range(4)]
    for receipt in receipts:
        ids = [sha256(line).digest() for line in lines(ledger)[: receipt.n]]
        assert receipt.log == extend(GENESIS, ids).hex()
        assert receipt.replica == ledger.replica
        assert list(ledger.verify(facts=False, views=False, receipt=receipt)) == []
    assert ledger.upkeep.stats()["log"] == receipts[-1].log


def test_a_receipt_that_the_ledger_cannot_answer_for_is_a_problem(ledger: Ledger) -> None:
    receipt = ledger.record_turn(session="main", query="q").receipt

    def answer(**other: Any) -> list[str]:
        found = ledger.verify(facts=False, views=False, receipt=replace(receipt, **other))
        return [problem.what for problem in found]

    assert answer() == []
    assert answer(n=receipt.n + 1) == ["receipt"]
    assert answer(n=receipt.n - 1) == ["receipt"]
    assert answer(log="0" * 64) == ["receipt"]
    assert answer(replica="01ARZ3NDEKTSV4RRFFQ69G5FAV") == ["receipt"]


def test_a_log_that_was_rewritten_cannot_answer_for_an_old_receipt(disk: Ledger, path: Path) -> None:
    receipt = disk.record_turn(session="main", query="q").receipt
    disk.record_turn(session="main", query="r")
    change(path, "UPDATE log SET chain = zeroblob(32) WHERE n = ?", receipt.n)
    assert [problem.what for problem in disk.verify(facts=False, views=False, receipt=receipt)] == ["receipt"]
