"""A turn that several imported sessions hold belongs to the earliest of them, in every ledger."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft
from tests.ledger.histories import change, exported, import_into, problems
from tests.ledger.imported import native_call, native_turn, take
from weft import Ledger

Transcript = tuple[str, list[Any], dict[str, Any]]


def owners(ledger: Ledger, *turns: str) -> list[str | None]:
    """The native id of each turn's session, by the turn's own."""
    sessions = {turn.native_id: turn.session_id for turn in ledger.log(limit=500)}
    return [ledger.session(str(sessions[turn])).origin_session_id for turn in turns]


def together(pair: int) -> list[Transcript]:
    """Two sessions that begin with copies of one turn."""
    shared = native_turn(f"t{pair}", started=1_000, ended=1_100, end=9)
    later = native_turn(f"u{pair}", parent=0, started=9_000 - pair, offset=9, end=18)
    return [(f"{pair}-one", [shared], {}), (f"{pair}-two", [shared, later], {})]


def linked(pair: int) -> list[Transcript]:
    """A session, and one whose file begins in the middle of it."""
    first = native_turn(f"r{pair}", started=500, ended=600, end=5)
    shared = native_turn(f"t{pair}", started=1_000, ended=1_100, offset=5, end=9)
    later = native_turn(f"u{pair}", parent=0, started=3_000, offset=9, end=18)
    return [(f"{pair}-zwei", [first, shared], {}), (f"{pair}-eins", [shared, later], {})]


def told(pair: int) -> list[Transcript]:
    """Sessions that tell when they were made, after their turns."""
    transcripts = [(f"{pair}-zwei", {"created": 900}), (f"{pair}-eins", {"created": 8_000})]
    shared = native_turn(f"t{pair}", started=1_000, ended=1_100, calls=[native_call("c", spawned=f"{pair}-sub")], end=9)
    return [(name, [shared], more) for name, more in transcripts]


@pytest.mark.parametrize("pairs", [together, linked, told])
def test_a_shared_turn_belongs_to_the_earlier_session_whatever_came_first(ledger: Ledger, pairs: Any) -> None:
    """Ten pairs: by chance, all would be right in one of a thousand ledgers."""
    expected = []
    for pair in range(10):
        transcripts = pairs(pair)
        expected.append(transcripts[0][0])
        for name, turns, more in transcripts if pair % 2 else transcripts[::-1]:
            take(ledger, name, *turns, file=name, **more)
        take(ledger, f"{pair}-sub", native_turn(f"k{pair}", end=1), file=f"{pair}-sub", parent=transcripts[1][0])
    assert owners(ledger, *(f"t{pair}" for pair in range(10))) == expected
    costs = {line.key: line.responses for line in ledger.usage.report("session").rows if line.key in expected}
    assert costs == dict.fromkeys(expected, 2 if pairs is linked else 1)
    if pairs is told:
        subagents = [ledger.session(f"{pair}-sub") for pair in range(10)]
        assert [child.parent_session for child in subagents] == [f"{pair}-eins" for pair in range(10)]
        assert all(child.parent_turn_id and child.spawn_tool_call_id for child in subagents)
    assert problems(ledger) == []


def test_a_response_in_two_turns_counts_for_the_earlier_session(ledger: Ledger) -> None:
    """A copy that lies behind another turn is another turn; the provider's id tells that it is one response."""
    for pair in range(10):
        apart = native_turn(f"r{pair}", started=2_000, end=5)
        alone = native_turn(f"t{pair}", started=3_000, end=9)
        behind = native_turn(f"t{pair}", parent=0, started=3_000, offset=5, end=9)
        for reply in (alone, behind):
            reply.items = (reply.items[0], msgspec.structs.replace(reply.items[1], at=3_500))
        transcripts = [(f"{pair}-zwei", [apart, behind]), (f"{pair}-eins", [alone])]
        for name, turns in transcripts if pair % 2 else transcripts[::-1]:
            take(ledger, name, *turns, file=name)
    responses = {row.key: row.responses for row in ledger.usage.report("session").rows}
    assert responses == {f"{pair}-zwei": 2 for pair in range(10)}


def test_ledgers_that_exchange_facts_agree_on_owners(tmp_path: Path) -> None:
    one, two = (weft.open(tmp_path / f"{name}.db") for name in ("one", "two"))
    two.imports.share_with(one)
    for ledger, step in ((one, 1), (two, -1)):
        for name, turns, more in [each for pair in (0, 1) for each in told(pair)][::step]:
            take(ledger, name, *turns, file=name, **more)
    facts = [exported(ledger) for ledger in (one, two)]
    for ledger, other in ((one, facts[1]), (two, facts[0])):
        import_into(ledger, other)
        assert owners(ledger, "t0", "t1") == ["0-zwei", "1-zwei"]
        assert problems(ledger) == []


def test_an_older_ledger_learns_the_owners_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    with weft.open(path) as ledger:
        for name, turns, _ in together(0):
            take(ledger, name, *turns, file=name)
    change(path, "UPDATE turn SET session = 2")
    change(path, "UPDATE local SET value = '3' WHERE key = 'view_rules'")
    with weft.open(path) as ledger:
        assert owners(ledger, "t0", "u0") == ["0-one", "0-two"]
        assert problems(ledger) == []


def test_a_session_whose_name_was_erased_comes_after_those_that_began_with_it(disk: Ledger) -> None:
    for name, turns, _ in together(0):
        take(disk, name, *turns, file=name)
    assert owners(disk, "t0") == ["0-one"]
    disk.erasure.erase("0-one", reason="test", everywhere=True)
    disk.upkeep.catch_up()
    assert owners(disk, "t0", "u0") == ["0-two", "0-two"]
    assert problems(disk) == []
