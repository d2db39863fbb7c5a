"""Packing: cold trees take less room and stay what they were."""

from pathlib import Path
from typing import Any

import pytest

from tests.ledger.canaries import CANARY, files_with_canary, record_everywhere, told
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import (
    change,
    copy_in_memory,
    exported,
    grow,
    grow_at_once,
    import_into,
    problems,
    select,
    texts,
)
from tests.ledger.imported import native_turn, take
from weft.kernel.clock import FixedClock, system_random
from weft.kernel.contents import ERASED
from weft.kernel.errors import FactDamaged, NotApplicable, NotFound
from weft.ledger.api.ledger import Ledger

LONG = "a sentence that says much the same as the one before it. " * 40
DAY = 86_400_000


def answers(ledger: Ledger) -> list[Any]:
    """What every reader says."""
    turns = ledger.log()
    messages = [message for turn in turns for message in ledger.messages(turn.id)]
    return [
        turns, messages, [ledger.tool_calls(turn.id) for turn in turns], ledger.sessions(every=True),
        [list(ledger.thread(turn.id).messages) for turn in ledger.tree.heads()],
        [ledger.context(turn.id) for turn in turns],
        [ledger.codeblocks(message.id) for message in messages], ledger.listing().subjects([turn.id for turn in turns]),
        ledger.usage.report("day"), exported(ledger),
    ]  # fmt: skip


@pytest.mark.slow("reads and exports everything twice, and verifies two ledgers")
def test_every_reader_and_every_export_says_the_same_of_a_packed_tree(ledger: Ledger) -> None:
    grow(ledger, "main", *(f"{i} {LONG}" for i in range(30)))
    record_everywhere(ledger)
    grow(ledger, "hot", LONG)
    ledger.upkeep.catch_up()
    before = answers(ledger)
    done = ledger.upkeep.pack("main")
    assert done.contents > 60
    assert done.packed_bytes < done.bytes / 4
    assert answers(ledger) == before
    assert problems(ledger) == []
    assert ledger.upkeep.rebuild() == 0
    assert (ledger.upkeep.stats()["packed_contents"], ledger.upkeep.stats()["packed_bytes"]) == (
        done.contents,
        done.bytes,
    )
    with copy_in_memory(ledger) as other:
        assert other.upkeep.stats()["log"] == ledger.upkeep.stats()["log"]
        assert problems(other) == []


def test_unpacking_puts_every_byte_back_where_it_was(disk: Ledger, path: Path) -> None:
    grow(disk, "main", *(f"{i} {LONG}" for i in range(8)))
    record_everywhere(disk)
    tables = ["SELECT * FROM content ORDER BY n", "SELECT * FROM content_part ORDER BY content, idx"]
    before = [select(path, table) for table in tables]
    packed = disk.upkeep.pack("main")
    assert [select(path, table) for table in tables] != before
    back = disk.upkeep.unpack()
    assert (back.contents, back.bytes, back.packed_bytes) == (packed.contents, packed.bytes, packed.packed_bytes)
    assert [select(path, table) for table in tables] == before
    assert disk.upkeep.stats()["bytes_of_packs"] == 0
    assert problems(disk) == []


def test_the_file_shrinks(disk: Ledger, path: Path) -> None:
    grow_at_once(disk, "main", *(f"{i} {LONG * 4}" for i in range(300)))
    disk.upkeep.pack("main")
    before = path.stat().st_size
    disk.upkeep.unpack("main")
    after = path.stat().st_size
    assert before < after / 3


def test_a_dry_run_says_what_packing_would_do_and_does_nothing(disk: Ledger, path: Path) -> None:
    grow(disk, "main", *(f"{i} {LONG}" for i in range(8)))
    before = select(path, "SELECT * FROM content")
    would = disk.upkeep.pack("main", dry_run=True)
    assert select(path, "SELECT * FROM content") == before
    assert disk.upkeep.pack("main") == would
    assert disk.upkeep.pack("main").contents == 0


def test_only_trees_are_packed_in_which_nothing_happened_since(open_ledger: OpenLedger, clock: FixedClock) -> None:
    ledger = open_ledger()
    grow(ledger, "old", f"old {LONG}")
    grow(ledger, "revived", f"revived {LONG}")
    clock.tick(100 * DAY)
    grow(ledger, "revived", f"today {LONG}")
    done = ledger.upkeep.pack(older_than="90 days ago")
    assert (done.trees, done.contents) == (1, 2)
    assert ledger.upkeep.pack(older_than=NOON).trees == 0
    assert ledger.upkeep.pack().trees == 2


def test_what_a_tree_that_is_not_packed_uses_too_stays_as_it_is(ledger: Ledger) -> None:
    take(ledger, "one", native_turn("a", f"in both {LONG}"), native_turn("b", f"in one {LONG}", parent=0))
    take(ledger, "two", native_turn("c", f"in both {LONG}"), file="b.jsonl")
    done = ledger.upkeep.pack("one")
    assert done.contents == 1
    assert done.shared > 1
    assert ledger.upkeep.pack().contents == 1, "packed together, they share it"
    assert problems(ledger) == []


def test_a_packed_tree_goes_on(ledger: Ledger) -> None:
    (first,) = grow(ledger, "main", LONG)
    ledger.upkeep.pack("main")
    grow(ledger, "main", LONG, "and on")
    ledger.fork(first, label="alt")
    grow(ledger, "alt", f"elsewhere {LONG}")
    assert texts(ledger.thread("main").messages)[:4] == [LONG, f"re: {LONG}"] * 2
    assert ledger.upkeep.stats()["packed_contents"] == 2
    assert problems(ledger) == []


def test_a_content_that_is_erased_leaves_its_pack(disk: Ledger, path: Path) -> None:
    grow(disk, "main", *(f"{i} {LONG}" for i in range(4)))
    secret = disk.record_turn(session="main", query=told("query") + LONG, response=told("answer") + LONG).id
    grow(disk, "main", f"last {LONG}")
    disk.upkeep.pack("main")
    disk.erasure.erase(secret, reason="asked for")
    assert texts(disk.messages(secret)) == [ERASED, ERASED]
    assert texts(disk.messages("main")) == [f"last {LONG}", f"re: last {LONG}"]
    stored = [bytes(row["bytes"]) for row in select(path, "SELECT bytes FROM pack")]
    (path.parent / "packs").write_bytes(b"".join(stored))
    assert files_with_canary(path.parent) == []
    assert disk.upkeep.stats()["packed_contents"] == 10
    assert problems(disk) == []


def test_a_pack_that_holds_only_what_is_erased_is_gone(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", f"{CANARY} {LONG}")
    ledger.upkeep.pack("main")
    ledger.erasure.erase(turn, reason="asked for")
    assert ledger.upkeep.stats()["bytes_of_packs"] == 0
    assert problems(ledger) == []


def test_large_contents_are_packed_part_by_part(ledger: Ledger) -> None:
    large = b"".join(f"line {i} of a long log\n".encode() for i in range(150_000))
    stored = ledger.put_content(large)
    noise = ledger.put_content(system_random(3 * 1024 * 1024))
    ledger.record_turn(session="main", query=stored, response="ok")
    ledger.record_turn(session="main", query=noise, response="ok")
    done = ledger.upkeep.pack("main")
    assert (done.contents, done.bytes) == (1, len(large))
    pieces = list(ledger.read_content(stored.ref))
    assert (b"".join(pieces), max(map(len, pieces))) == (large, 1024 * 1024)
    ledger.upkeep.unpack("main")
    assert b"".join(ledger.read_content(stored.ref)) == large
    assert problems(ledger) == []


def test_a_tree_that_is_being_recorded_is_not_packed(ledger: Ledger) -> None:
    grow(ledger, "main", LONG)
    with ledger.begin_turn(session="main") as turn:
        with pytest.raises(NotApplicable):
            ledger.upkeep.pack("main")
        assert ledger.upkeep.pack().trees == 0
        turn.finish()
    assert ledger.upkeep.pack().contents == 2


def test_what_is_not_there_is_not_packed(ledger: Ledger) -> None:
    ledger.create_session("empty")
    for name in ("nobody", "empty"):
        with pytest.raises(NotFound):
            ledger.upkeep.pack(name)
    assert ledger.upkeep.pack().contents == 0
    assert ledger.upkeep.unpack().contents == 0


def test_a_plain_shell_is_told_that_a_text_is_packed(disk: Ledger, path: Path) -> None:
    disk.record_turn(
        session="main", query=LONG, response="short", tool_calls=[{"id": "c1", "name": "t", "result": LONG}]
    )
    disk.upkeep.pack("main")
    (message, reply) = select(path, "SELECT content, parts_json FROM messages ORDER BY sequence")
    assert (message["content"], reply["content"]) == (None, "short")
    (call,) = select(path, "SELECT id, call_id, result_json FROM tool_calls")
    assert (call["call_id"], call["result_json"]) == ("c1", None)
    marks = select(path, "SELECT count(*) AS n FROM content_text WHERE packed AND text IS NULL")
    assert marks == [{"n": 2}]


@pytest.mark.parametrize(
    ("damage", "told_as"),
    [
        ("UPDATE pack SET bytes = x'00'", "cannot be unpacked"),
        ("UPDATE packed SET start = start + 1 WHERE content = (SELECT max(content) FROM packed)", "hash"),
        ("DELETE FROM packed WHERE content = (SELECT max(content) FROM packed)", "not in this ledger"),
        ("DELETE FROM pack", "not here"),
        ("INSERT INTO pack(n, size, bytes) VALUES (99, 0, x'')", "holds nothing"),
    ],
)
def test_a_damaged_pack_is_noticed(disk: Ledger, path: Path, damage: str, told_as: str) -> None:
    grow(disk, "main", *(f"{i} {LONG}" for i in range(3)))
    disk.upkeep.pack("main")
    change(path, damage)
    assert any(told_as in problem for problem in problems(disk))


def test_nothing_else_is_shown_in_the_place_of_a_damaged_pack(disk: Ledger, path: Path) -> None:
    grow(disk, "main", LONG)
    disk.upkeep.pack("main")
    change(path, "UPDATE pack SET bytes = x'28b52ffd'")
    with pytest.raises(FactDamaged):
        disk.messages("main")


def test_facts_that_come_again_find_what_is_packed(ledger: Ledger) -> None:
    grow(ledger, "main", LONG)
    before = exported(ledger)
    ledger.upkeep.pack("main")
    assert import_into(ledger, before)[:2] == (0, 0)
    assert problems(ledger) == []
