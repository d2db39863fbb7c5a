"""Rows wait for each other, and nobody can tell but by the number of statements."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.postgres import shared_server
from weft.kernel.errors import IdCollision
from weft.store.port import Store, WriteTxn
from weft.store.postgres import PostgresStore
from weft.store.sql import MAX_ROWS, Insert, RowsRefused, WriteBuffer
from weft.store.sqlite.connection import SqliteSql
from weft.store.sqlite.store import MemoryStore, SqliteStore

NAME = Insert("name", ("k", "word"))
RENAME = Insert("name", ("k", "word"), ("k",), ("word",))
OTHER = Insert("other", ("k",))
PROGRAM = Insert("program", ("id", "kind", "name"))


class Watched:
    """A database with two tables, and every statement that reached it."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.execute("CREATE TABLE name(k INTEGER PRIMARY KEY, word TEXT UNIQUE); CREATE TABLE other(k)")
        self.connection.execute("BEGIN")
        self.statements: list[str] = []
        self.connection.exec_trace = self._trace
        self.sql = SqliteSql(self.connection)

    def _trace(self, cursor: object, sql: str, values: object) -> bool:
        self.statements.append(sql)
        return True

    def words(self) -> list[Any]:
        return [word for (word,) in self.sql.fetch_rows("SELECT word FROM name ORDER BY k")]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def numbered(count: int, start: int = 0) -> list[tuple[Any, ...]]:
    return [(k, f"w{k}") for k in range(start, start + count)]


def test_rows_go_down_in_few_statements_whatever_their_number(watched: Watched) -> None:
    watched.sql.add(NAME, numbered(70))
    watched.sql.add(NAME, numbered(30, 70))
    assert watched.statements == []
    watched.sql.buffer.write_rows()
    assert [sql.count("(?,?)") for sql in watched.statements] == [64, 32, 4]
    assert watched.words() == [f"w{k}" for k in range(100)]


def test_a_read_finds_every_row_that_was_added(watched: Watched) -> None:
    watched.sql.add(NAME, numbered(3))
    assert watched.sql.fetch_row("SELECT count(*) FROM name") == (3,)
    watched.sql.add(NAME, numbered(2, 3))
    assert watched.words() == ["w0", "w1", "w2", "w3", "w4"]


def test_statements_on_one_table_keep_their_order(watched: Watched) -> None:
    watched.sql.add(RENAME, [(1, "early")])
    watched.sql.add(NAME, [(2, "new")])
    watched.sql.add(RENAME, [(2, "newer")])
    watched.sql.run("UPDATE name SET word = word || '!'")
    watched.sql.add(RENAME, [(1, "last")])
    assert watched.words() == ["last", "newer!"]


def test_of_several_changes_to_one_row_the_last_counts(watched: Watched) -> None:
    watched.sql.add(RENAME, [(1, "a"), (2, "b"), (1, "c")])
    watched.sql.add(RENAME, [(2, "d")])
    assert watched.words() == ["c", "d"]
    assert len(watched.statements) == 2  # one for both rows, and the question


def test_work_that_only_adds_rows_needs_no_savepoint_and_is_undone_by_forgetting_them(watched: Watched) -> None:
    buffer = watched.sql.buffer
    for k, keeps in enumerate([True, False, True]):
        buffer.begin()
        watched.sql.add(NAME, numbered(1, k))
        watched.sql.add(OTHER, [(k,)])
        buffer.keep() if keeps else buffer.undo()
    assert watched.words() == ["w0", "w2"]
    assert watched.sql.fetch_rows("SELECT k FROM other") == [(0,), (2,)]
    assert not any("SAVEPOINT" in sql for sql in watched.statements)


@pytest.mark.parametrize("reaches", ["a statement", "a read", "many rows", "another statement on its table"])
def test_work_that_reached_the_database_is_undone_alone(watched: Watched, reaches: str) -> None:
    buffer, sql = watched.sql.buffer, watched.sql
    buffer.begin()
    sql.add(NAME, numbered(1))
    buffer.keep()
    buffer.begin()
    sql.add(NAME, numbered(1, 1))
    if reaches == "a statement":
        sql.run("UPDATE name SET word = word || '!'")
    elif reaches == "a read":
        assert watched.words() == ["w0", "w1"]
    elif reaches == "many rows":
        sql.add(NAME, numbered(MAX_ROWS, 2))
    else:
        sql.add(RENAME, [(0, "renamed")])
    assert "SAVEPOINT job" in watched.statements
    buffer.undo()
    assert watched.words() == ["w0"]
    buffer.begin()
    sql.add(NAME, numbered(1, 5))
    buffer.keep()
    assert watched.words() == ["w0", "w5"]


def test_a_reader_whose_neighbours_rows_do_not_fit_is_not_blamed(watched: Watched) -> None:
    buffer = watched.sql.buffer
    for _ in range(2):
        buffer.begin()
        watched.sql.add(NAME, [(1, "same")])
        buffer.keep()
    buffer.begin()
    with pytest.raises(RowsRefused) as refused:
        watched.words()
    assert isinstance(refused.value.__cause__, apsw.ConstraintError)


def test_work_whose_own_rows_do_not_fit_is_told_so(watched: Watched) -> None:
    watched.sql.buffer.begin()
    watched.sql.add(NAME, [(1, "same"), (2, "same")])
    with pytest.raises(apsw.ConstraintError):
        watched.words()


def test_a_buffer_knows_no_engine() -> None:
    told: list[tuple[str, Sequence[Any]]] = []
    buffer = WriteBuffer(lambda sql, values: told.append((sql, values)))
    buffer.add(RENAME, [(1, "a"), (2, "b")])
    buffer.write_rows()
    sql = "INSERT INTO name(k, word) VALUES (?,?),(?,?) ON CONFLICT (k) DO UPDATE SET word = excluded.word"
    assert told == [(sql, [1, "a", 2, "b"])]


# --- in a store -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["disk", "memory", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    if request.param == "server":
        made = PostgresStore(shared_server().address())
    else:
        made = SqliteStore(tmp_path / "ledger.db") if request.param == "disk" else MemoryStore()
    yield made
    made.close()


def together(store: Any, works: Sequence[Callable[[WriteTxn], Any]]) -> list[Any]:
    """What each of these came to, run in one commit."""
    outcomes: list[Any] = [None] * len(works)

    def write(k: int) -> None:
        try:
            outcomes[k] = store.write(works[k])
        except BaseException as error:
            outcomes[k] = error

    with _one_at_work(store):
        threads = [threading.Thread(target=write, args=(k,)) for k in range(len(works))]
        for k, thread in enumerate(threads):
            thread.start()
            while len(store._jobs._waiting) <= k:
                pass
    for thread in threads:
        thread.join()
    return outcomes


@contextmanager
def _one_at_work(store: Any) -> Iterator[None]:
    begun, let_go = threading.Event(), threading.Event()

    def work(txn: WriteTxn) -> None:
        begun.set()
        let_go.wait()

    first = threading.Thread(target=store.write, args=(work,))
    first.start()
    begun.wait()
    yield
    let_go.set()
    first.join()


def adds(name: str, id: str | None = None, then: Callable[[WriteTxn], Any] | None = None) -> Callable[[WriteTxn], Any]:
    def work(txn: WriteTxn) -> Any:
        txn.facts.append([name.encode()], [name.encode()])
        txn.sql.add(PROGRAM, [(id or name, "agent", name)])
        return then(txn) if then else txn.facts.tip().n

    return work


class Refused(Exception):
    pass


def fails(txn: WriteTxn) -> None:
    raise Refused


def names(store: Store) -> list[str]:
    with store.read() as txn:
        assert [line.decode() for _, line in txn.facts.lines()] == [
            name for (name,) in txn.sql.fetch_rows("SELECT name FROM program ORDER BY name")
        ]
        return [name for (name,) in txn.sql.fetch_rows("SELECT name FROM program ORDER BY name")]


def test_one_that_fails_among_many_leaves_nothing_and_harms_nobody(store: Store) -> None:
    came_to = together(store, [adds("a"), adds("b", then=fails), adds("c"), adds("d", then=fails), adds("e")])
    assert [type(outcome) for outcome in came_to] == [int, Refused, int, Refused, int]
    assert [came_to[0], came_to[2], came_to[4]] == [1, 2, 3]
    assert names(store) == ["a", "c", "e"]


def test_one_whose_row_does_not_fit_is_found_among_many(store: Store) -> None:
    came_to = together(store, [adds("a"), adds("b"), adds("c", id="b"), adds("d")])
    assert [type(outcome) for outcome in came_to] == [int, int, IdCollision, int]
    assert names(store) == ["a", "b", "d"]
    assert store.write(adds("e")) == 4


def test_one_whose_row_has_no_form_in_a_table_is_found_among_many(store: Store) -> None:
    for k, name in enumerate(("\ud800", "\0" if isinstance(store, PostgresStore) else 2**70)):

        def add_odd(txn: WriteTxn, name: object = name) -> None:
            txn.sql.add(PROGRAM, [("odd", "agent", name)])

        came_to = together(store, [adds(f"{k}a"), add_odd, adds(f"{k}b")])
        assert isinstance(came_to[1], Exception)
        assert [came_to[0], came_to[2]] == [2 * k + 1, 2 * k + 2]
    assert names(store) == ["0a", "0b", "1a", "1b"]


def test_one_that_reads_sees_the_rows_of_those_before_it_and_its_own(store: Store) -> None:
    def count(txn: WriteTxn) -> Any:
        return txn.sql.fetch_rows("SELECT name FROM program ORDER BY name")

    came_to = together(store, [adds("a"), adds("b", then=count), adds("c", then=fails), adds("d", then=count)])
    assert came_to[1] == [("a",), ("b",)]
    assert came_to[3] == [("a",), ("b",), ("d",)]
    assert names(store) == ["a", "b", "d"]


def test_many_rows_of_one_piece_of_work_are_written_and_undone_like_few(store: Store) -> None:
    rows = [(f"p{k:05}", "agent", f"p{k:05}") for k in range(3 * MAX_ROWS + 1)]

    def work(txn: WriteTxn, then: Callable[[WriteTxn], Any] | None = None) -> None:
        for row in rows:
            txn.sql.add(PROGRAM, [row])
        if then:
            then(txn)

    with pytest.raises(Refused):
        store.write(lambda txn: work(txn, fails))
    with store.read() as txn:
        assert txn.sql.fetch_rows("SELECT id, kind, name FROM program ORDER BY id") == []
    store.write(work)
    with store.read() as txn:
        assert txn.sql.fetch_rows("SELECT id, kind, name FROM program ORDER BY id") == rows
