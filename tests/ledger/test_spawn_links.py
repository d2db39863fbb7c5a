"""A subagent's session and the tool call that started it name each other, whichever came first."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import change, grow, problems, select
from tests.ledger.imported import native_call, native_turn, take
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports import ImportCounts
from weft.ledger.imports.imported_turns import NativeSession
from weft.ledger.views.rows import RowMemory
from weft.store.sqlite.connection import SqliteSql

JOIN = (
    "SELECT s.label, c.turn_id, c.call_id, c.spawned_session_label, s.parent_session_label, s.parent_turn_id,"
    " s.is_subagent FROM sessions s JOIN tool_calls c ON c.id = s.spawn_tool_call_id ORDER BY s.label"
)


def calls(id: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": "other", "name": "read"}, {"id": id, "name": "spawn", **more}]


def the_call_first(ledger: Ledger) -> str:
    return ledger.record_turn(session="main", tool_calls=calls("c~1", spawned_session="worker")).id


def the_session_first(ledger: Ledger) -> str:
    grow(ledger, "worker", "dig")
    return ledger.record_turn(session="main", tool_calls=calls("c~1", spawned_session="worker")).id


def the_session_names_a_call_of_its_parent(ledger: Ledger) -> str:
    turn = ledger.record_turn(session="main", tool_calls=calls("c~1")).id
    grow(ledger, "main", "and on")
    ledger.create_session("worker", parent_session="main", spawn_tool_call_id="c~1")
    return turn


def the_session_names_a_call_of_a_turn(ledger: Ledger) -> str:
    turn = ledger.record_turn(session="main", tool_calls=calls("c~1")).id
    ledger.create_session("worker", parent_turn_id=turn, spawn_tool_call_id="c~1")
    return turn


def the_session_names_a_call_that_is_to_come(ledger: Ledger) -> str:
    grow(ledger, "main", "before")
    ledger.create_session("worker", parent_session="main", spawn_tool_call_id="c~1")
    ledger.record_turn(session="main", tool_calls=calls("another"))
    return ledger.record_turn(session="main", tool_calls=calls("c~1")).id


def the_session_is_made_while_its_turn_is_under_way(ledger: Ledger) -> str:
    with ledger.begin_turn(session="main") as writer:
        ledger.create_session("worker", parent_turn_id=writer.id, spawn_tool_call_id="c~1")
        call = writer.tool_call("spawn", id="c~1")
        writer.tool_result(call, "ok")
        writer.finish()
    return writer.id


ORDERS: list[Callable[[Ledger], str]] = [
    the_call_first, the_session_first, the_session_names_a_call_of_its_parent, the_session_names_a_call_of_a_turn,
    the_session_names_a_call_that_is_to_come, the_session_is_made_while_its_turn_is_under_way,
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_a_session_and_its_call_join_in_plain_sql(disk: Ledger, path: Path, order: Callable[[Ledger], str]) -> None:
    turn = order(disk)
    assert [list(row.values()) for row in select(path, JOIN)] == [["worker", turn, "c~1", "worker", "main", turn, 1]]
    assert disk.session("worker").spawn_tool_call_id == next(
        call.id for call in disk.tool_calls(turn) if call.spawned_session == "worker"
    )
    assert problems(disk) == []


@pytest.mark.parametrize("order", ["kp", "pk"])
def test_an_imported_session_that_alone_names_its_call_joins_it(disk: Ledger, path: Path, order: str) -> None:
    for file in order:
        if file == "k":
            take(disk, "kid", native_turn("k1", end=1), file="k", parent="p", spawn_call="c9")
        else:
            take(disk, "p", native_turn("t1", calls=[native_call("c9")], end=9), file="p")
    head = disk.session("p").head
    assert [list(row.values()) for row in select(path, JOIN)] == [["kid", head, "c9", "kid", "p", head, 1]]
    assert problems(disk) == []


def test_every_call_that_started_a_session_names_it(disk: Ledger, path: Path) -> None:
    first = the_call_first(disk)
    again = disk.record_turn(session="main", tool_calls=calls("c3", spawned_session="worker")).id
    rows = select(path, "SELECT turn_id FROM tool_calls WHERE spawned_session_label = 'worker' ORDER BY turn_id")
    assert [row["turn_id"] for row in rows] == [first, again]
    assert disk.session("worker").parent_turn_id == first


def test_nobody_is_the_subagent_of_itself_or_of_its_own_subagent(disk: Ledger) -> None:
    disk.record_turn(session="main", tool_calls=calls("c1", spawned_session="main"))
    disk.record_turn(session="main", tool_calls=calls("c2", spawned_session="worker"))
    disk.record_turn(session="worker", tool_calls=calls("c3", spawned_session="main"))
    assert not disk.session("main").is_subagent
    assert disk.session("worker").parent_session == "main"
    assert problems(disk) == []


def test_a_link_outlives_the_erasure_of_the_calls_id_but_not_its_words(disk: Ledger, path: Path) -> None:
    take(disk, "p", native_turn("t1", calls=[native_call("secret call", spawned="kid")], end=9), file="p")
    take(disk, "kid", native_turn("k1", end=1), file="k", parent="p")
    head = disk.resolve("p")
    assert disk.session("kid").spawn_tool_call_id == f"{head}:secret call"
    disk.erasure.erase(head, reason="asked for")
    assert b"secret call" not in path.read_bytes()
    assert [(row["label"], row["turn_id"], row["call_id"]) for row in select(path, JOIN)] == [("kid", head, "[erased]")]
    assert problems(disk) == []


TOUCHING = {"content": "q", "files": [{"kind": "read", "path": "a"}]}
UNLINKED = """
UPDATE session SET spawn_call_name = NULL, has_subagents = NULL;
UPDATE tool_call SET spawned = NULL;
DELETE FROM thread_key; DELETE FROM persona; DELETE FROM lookup_text;
"""


def test_a_rebuild_makes_links_and_keys_anew(disk: Ledger, path: Path, open_ledger: OpenLedger) -> None:
    turn = the_session_names_a_call_of_its_parent(disk)
    disk.record_turn(session="main", source_event_id="event 7", query=TOUCHING)
    disk.close()
    for statement in filter(str.strip, UNLINKED.split(";")):
        change(path, statement)
    ledger = open_ledger()
    assert problems(ledger) != []
    ledger.upkeep.rebuild()
    assert problems(ledger) == []
    assert [row["turn_id"] for row in select(path, JOIN)] == [turn]
    assert select(path, "SELECT turn_id FROM threads WHERE thread_key = 'main#1'") == [{"turn_id": turn}]


ONE_SIDED = """
DELETE FROM local WHERE key = 'view_rules';
DELETE FROM spawn;
UPDATE tool_call SET spawned = NULL WHERE spawned = (SELECT n FROM session WHERE label = 'told');
UPDATE session SET parent_turn = NULL, parent_session = NULL, spawn_call = NULL WHERE label = 'worker';
"""


def test_an_upgrade_links_both_sides(disk: Ledger, path: Path, open_ledger: OpenLedger) -> None:
    first = the_session_first(disk)
    second = disk.record_turn(session="main", tool_calls=calls("c2")).id
    disk.create_session("told", parent_session="main", parent_turn_id=second, spawn_tool_call_id="c2")
    disk.record_turn(session="main", source_event_id="event 7", query=TOUCHING)
    disk.close()
    for statement in ONE_SIDED.split(";")[:-1]:  # as the upgrade leaves a file of a version that linked one side alone
        change(path, statement)
    ledger = open_ledger()
    assert [(row["label"], row["turn_id"], row["spawned_session_label"]) for row in select(path, JOIN)] == [
        ("told", second, "told"), ("worker", first, "worker")
    ]  # fmt: skip
    assert problems(ledger) == []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows every query of a SQLite ledger has answered."""
    answers: list[int] = []
    fetch_row, fetch_rows = SqliteSql.fetch_row, SqliteSql.fetch_rows

    def count_row(connection: SqliteSql, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        answers.append(1)
        return fetch_row(connection, sql, values)

    def count_rows(connection: SqliteSql, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows = fetch_rows(connection, sql, values)
        answers.append(len(rows))
        return rows

    monkeypatch.setattr(SqliteSql, "fetch_row", count_row)
    monkeypatch.setattr(SqliteSql, "fetch_rows", count_rows)
    return answers


def work_of(reads: list[int], write: Callable[[], object]) -> tuple[int, int]:
    """How many queries a verb asks, and how many rows it reads."""
    reads.clear()
    write()
    return len(reads), sum(reads)


def test_a_call_and_its_subagent_take_the_same_work_however_many_there_are(disk: Ledger, reads: list[int]) -> None:
    work: list[tuple[int, int]] = []
    with disk.begin_turn(session="boss") as writer:
        for k in range(12):
            work.append(work_of(reads, partial(writer.tool_call, "spawn", id=f"c{k}")))
            disk.create_session(f"kid {k}", parent_session="boss", spawn_tool_call_id=f"c{k}")
        writer.interrupt()
    assert work[3] == work[11]
    assert [disk.session(f"kid {k}").parent_turn_id for k in range(12)] == [writer.id] * 12


def test_subagents_whose_call_never_comes_cost_a_later_call_nothing(disk: Ledger, reads: list[int]) -> None:
    grow(disk, "boss", "before")

    def record() -> object:
        return disk.record_turn(session="boss", tool_calls=[{"id": f"c{k}", "name": "read"} for k in range(4)])

    def wait(children: int) -> tuple[int, int]:
        for k in range(children):
            disk.create_session(
                f"kid {children}.{k}", parent_session="boss", spawn_tool_call_id=f"never {children}.{k}"
            )
        record()
        return work_of(reads, record)

    assert wait(1) == wait(12)


def test_a_call_joins_those_that_wait_for_it_alone(ledger: Ledger) -> None:
    grow(ledger, "main", "before")
    grow(ledger, "other", "before")
    for child, parent, call in [("a", "main", "c1"), ("b", "main", "c2"), ("c", "other", "c1"), ("d", "main", "c1")]:
        ledger.create_session(child, parent_session=parent, spawn_tool_call_id=call)
    first = ledger.record_turn(session="main", tool_calls=calls("c1")).id
    again = ledger.record_turn(session="main", tool_calls=calls("c1")).id
    assert {child: ledger.session(child).parent_turn_id for child in "abcd"} == {
        "a": first,
        "b": None,
        "c": None,
        "d": first,
    }
    assert [call.spawned_session for call in ledger.tool_calls(first)] == [None, "a"]
    assert [call.spawned_session for call in ledger.tool_calls(again)] == [None, None]
    assert problems(ledger) == []


def test_a_second_call_of_one_id_in_a_turn_started_nothing(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        ledger.create_session("worker", parent_turn_id=writer.id, spawn_tool_call_id="c1")
        for _ in range(2):
            writer.tool_result(writer.tool_call("spawn", id="c1"), "ok")
        writer.finish()
    assert [call.spawned_session for call in ledger.tool_calls(writer.id)] == ["worker", None]
    assert ledger.session("worker").spawn_tool_call_id == f"{writer.id}:c1"


def test_what_a_writer_remembers_of_noted_texts_is_bounded() -> None:
    memory = RowMemory()
    memory.lookup_texts.update(range(RowMemory.LIMIT))
    memory.shrink()
    assert len(memory.lookup_texts) == RowMemory.LIMIT
    memory.lookup_texts.add(-1)
    memory.shrink()
    assert memory.lookup_texts == set()


@pytest.mark.parametrize("mine_first", [True, False])
def test_a_call_in_a_strangers_file_does_not_adopt_my_session(ledger: Ledger, mine_first: bool) -> None:
    """It names sessions of mine: one that is nobody's subagent, one that is another's, and one that says whose it is
    though nothing of that session is here."""
    started = native_call("c1", spawned="sub")
    mine = [
        partial(take, ledger, "mine", native_turn("m1", end=1), file="mine"),
        partial(take, ledger, "boss", native_turn("b1", calls=[started], end=1), file="boss"),
        partial(take, ledger, "sub", native_turn("s1", end=1), file="sub", parent="boss"),
        partial(take, ledger, "orphan", native_turn("o1", end=1), file="orphan", parent="gone"),
    ]
    named = [native_call(f"x-{name}", spawned=name) for name in ("mine", "sub", "orphan")]
    stranger = partial(take, ledger, "stranger", native_turn("x1", calls=named, end=1), file="stranger")
    for run in [*mine, stranger] if mine_first else [stranger, *mine]:
        run()
    parents = {name: ledger.session(name).parent_session for name in ("mine", "boss", "sub", "orphan")}
    assert parents == {"mine": None, "boss": None, "sub": "boss", "orphan": ledger.session("orphan").parent_session}
    assert parents["orphan"] != "stranger"
    assert [ledger.session(name).parent_turn_id for name in ("mine", "orphan")] == [None, None]
    assert [call.spawned_session for call in ledger.tool_calls("stranger")] == [None, None, None]
    assert [call.spawned_session for call in ledger.tool_calls("boss")] == ["sub"]
    assert problems(ledger) == []


def test_a_session_of_another_origin_claims_no_call(ledger: Ledger) -> None:
    """Forged facts may name any id; `other` is an origin with ids of its own."""
    take(ledger, "boss", native_turn("b1", calls=[native_call("c1")], end=1), file="boss")
    writer = ledger.imports.writer("other", 1)
    boss, find = ledger.session("boss").id, writer.secret.session_id
    writer.secret.session_id = lambda native: boss if native == "boss" else find(native)  # type: ignore[method-assign]
    claim = NativeSession(id="claimant", parent="boss", spawn_call="c1")
    writer.take(claim, [native_turn("k1", end=1)], "claim", ImportCounts())
    assert ledger.session("claimant").parent_turn_id is None
    assert [call.spawned_session for call in ledger.tool_calls("boss")] == [None]
    assert problems(ledger) == []
