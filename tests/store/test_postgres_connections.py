"""The connections of a store on PostgreSQL: readers that are shared, statements that wait for each other, claims."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast

import psycopg
import pytest

from tests.postgres import shared_server
from weft.store.port import WriteTxn
from weft.store.postgres import PostgresStore
from weft.store.postgres import connection as postgres_connection
from weft.store.postgres import store as postgres_store
from weft.store.postgres.connection import (
    FLUSH,
    KEPT_READERS,
    PostgresSql,
    ReaderPool,
    changed_table,
    connect,
    parse_address,
)
from weft.store.postgres.store import NameAnnouncements, SideConnection
from weft.store.sql import RowsRefused


@pytest.fixture
def sql() -> Iterator[PostgresSql]:
    made = connect(parse_address(shared_server().address("public")))
    made.script("CREATE TEMPORARY TABLE thing(name TEXT PRIMARY KEY, amount BIGINT)")
    yield made
    made.close()


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    made = PostgresStore(shared_server().address())
    yield made
    made.close()


# --- readers --------------------------------------------------------------------------------------------------------


class Opened:
    """A stand-in for a connection: it is only lent and closed."""

    def __init__(self) -> None:
        self.broken = False

    def close(self) -> None:
        self.broken = True


def test_a_reader_is_kept_for_the_next_and_those_of_a_rush_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "PATIENCE_SECONDS", 0.0)
    opened: list[Any] = []
    pool = ReaderPool(lambda: opened.append(Opened()) or opened[-1])  # type: ignore[func-returns-value]
    pool.take_back(pool.lend())
    assert pool.lend() is opened[0]
    lent = [opened[0], *(pool.lend() for _ in range(KEPT_READERS + 1))]
    for one in lent:
        pool.take_back(one)
    assert sum(not one.broken for one in opened) == KEPT_READERS
    pool.close()
    assert all(one.broken for one in opened)


def test_whoever_finds_all_of_them_lent_waits_for_one_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "PATIENCE_SECONDS", 60.0)
    opened: list[Any] = []
    pool = ReaderPool(lambda: opened.append(Opened()) or opened[-1])  # type: ignore[func-returns-value]
    begun = threading.Event()

    def wait_for_one() -> object:
        begun.set()
        return pool.lend()

    with ThreadPoolExecutor(1) as other:
        lent = [pool.lend() for _ in range(KEPT_READERS)]
        assert pool.lend() is opened[-1]  # whoever has one already does not wait
        waiting = other.submit(wait_for_one)
        begun.wait()
        pool.take_back(opened[-1])
        pool.take_back(lent[0])
        assert waiting.result() is lent[0]
    assert len(opened) == KEPT_READERS + 1


def test_many_readers_at_once_leave_a_few_connections(store: PostgresStore) -> None:
    def read(_: int) -> int:
        with store.read() as outer, store.read() as inner:
            return outer.facts.tip().n + inner.facts.tip().n

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(read, range(100))) == {0}
    assert len(store._readers._free) <= KEPT_READERS
    assert not store._readers._lent


def test_a_snapshot_that_is_not_durable_yet_is_flushed_without_a_reader_of_its_own(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_durable = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT coalesce(max(n), 0) + 1, false FROM log"
    monkeypatch.setattr(postgres_store, "SNAPSHOT", not_durable)
    flushed: list[str] = []
    script = store._side.script

    def noted(text: str) -> Any:
        flushed.append(text)
        return script(text)

    monkeypatch.setattr(store._side, "script", noted)
    with store.read(), store.read():
        assert flushed == [FLUSH]  # what was durable for one is so for all
    assert len(store._readers._free) == 2


def test_rows_that_nobody_reads_to_the_end_disturb_no_later_reader(store: PostgresStore) -> None:
    with store.read() as txn:
        first, rows = txn.sql, txn.sql.iterate_rows("SELECT generate_series(1, 1000)")
        assert next(rows) == (1,)
    with store.read() as txn:
        assert txn.sql is first
        own = txn.sql.iterate_rows("SELECT generate_series(1, 1000)")
        assert next(own) == (1,)
        rows.close()  # type: ignore[attr-defined]
        assert txn.sql.fetch_row("SELECT 2") == (2,)
        assert len(list(own)) == 999
        assert txn.sql.fetch_rows("SELECT name FROM pg_cursors WHERE name LIKE 'each%'") == []


def test_a_reader_that_is_interrupted_at_its_end_is_lent_no_longer(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = PostgresSql.script

    def interrupted(sql: PostgresSql, text: str) -> Any:
        if text == "COMMIT":
            raise KeyboardInterrupt
        return script(sql, text)

    def read() -> None:
        with store.read():
            monkeypatch.setattr(PostgresSql, "script", interrupted)

    with pytest.raises(KeyboardInterrupt):
        read()
    monkeypatch.undo()
    assert not store._readers._lent
    with store.read() as txn:
        assert txn.sql.fetch_row("SELECT 2") == (2,)


# --- statements that wait -------------------------------------------------------------------------------------------


def test_a_statement_waits_for_the_next_question_and_is_there_then(sql: PostgresSql) -> None:
    sql.script("BEGIN")
    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", 1))
    assert sql._later
    assert sql.fetch_rows("SELECT name, amount FROM thing") == [("a", 1)]
    assert not sql._later
    sql.run("UPDATE thing SET amount = ? WHERE name = ?", (2, "a"))
    assert list(sql.iterate_rows("SELECT amount FROM thing")) == [(2,)]
    sql.run("DELETE FROM thing")
    assert sql.script("SELECT count(*) FROM thing") == [(0,)]


def test_what_was_foreseen_is_forgotten_where_its_table_changes(sql: PostgresSql) -> None:
    amount, other = ("SELECT amount FROM thing WHERE name = ?", ("a",)), ("SELECT 1", ())
    sql.remember_answers([amount, other], [[(7,)], [(8,)]])
    sql.run("SAVEPOINT job")
    assert sql.fetch_row(*amount) == (7,)
    sql.drop()
    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", 1))
    assert (sql.fetch_row(*amount), sql.fetch_row(*other)) == ((1,), (8,))
    statements = ("INSERT INTO thing VALUES (1)", "UPDATE thing SET a", "DELETE FROM thing", "RELEASE job")
    assert [changed_table(one) for one in statements] == ["thing", "thing", "thing", None]


def test_what_was_foreseen_is_forgotten_when_its_transaction_ends(sql: PostgresSql) -> None:
    amount = ("SELECT amount FROM thing WHERE name = ?", ("a",))
    for end in (lambda: sql.conclude(["COMMIT"]), lambda: sql.script("ROLLBACK")):
        sql.script("BEGIN")
        sql.remember_answers([amount], [[(7,)]])
        assert sql.fetch_row(*amount) == (7,)
        end()
        assert sql.fetch_row(*amount) is None


def test_a_refused_statement_is_told_to_whoever_asks_next(sql: PostgresSql) -> None:
    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", 1))
    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", 2))
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.fetch_row("SELECT 1 FROM thing")
    sql.buffer.works_done = 1
    sql._later = [("INSERT INTO thing VALUES (?, ?)", ("b", 1), 0), ("INSERT INTO thing VALUES (?, ?)", ("b", 1), 1)]
    with pytest.raises(RowsRefused):
        sql.flush()


def test_of_many_statements_only_so_many_wait(sql: PostgresSql) -> None:
    for number in range(1000):
        sql.run("INSERT INTO thing VALUES (?, ?)", (str(number), number))
        assert len(sql._later) < 128
    assert sql.fetch_row("SELECT count(*) FROM thing") == (1000,)


def test_of_large_statements_only_so_many_bytes_wait(sql: PostgresSql) -> None:
    sql.script("CREATE TEMPORARY TABLE large(piece BYTEA)")
    for number in range(21):
        sql.run("INSERT INTO large VALUES (?)", (bytes([number]) * 300_000,))
        assert sum(len(values[0]) for _, values, _ in sql._later) < 1024 * 1024
    assert sql._later
    assert sql.fetch_row("SELECT count(*), sum(length(piece)) FROM large") == (21, 6_300_000)


def test_a_caller_whose_statement_is_refused_alone_hears_of_it(store: PostgresStore) -> None:
    def insert(value: str) -> Any:
        def work(txn: WriteTxn) -> str:
            txn.sql.run("INSERT INTO local(key, value) VALUES (?, ?)", (value, "x"))
            return value

        return work

    store.write(insert("one"))
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(store.write, insert(f"key{number % 4}")) for number in range(16)]
        failed = [future for future in made if future.exception() is not None]
    assert len(failed) == 12
    with store.read() as txn:
        assert txn.sql.fetch_row("SELECT count(*) FROM local WHERE key LIKE 'key%'") == (4,)


def test_a_statement_is_prepared_once_and_stays_so_where_another_is_refused(sql: PostgresSql) -> None:
    def prepared() -> list[str]:
        return [text for (text,) in sql.script("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")]

    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", 1))
    sql.run("INSERT INTO thing VALUES (?, ?)", ("a", None))
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.fetch_rows("SELECT name FROM thing WHERE amount > ?", (0,))
    assert prepared() == ["INSERT INTO thing VALUES ($1, $2)"]
    sql.run("INSERT INTO thing VALUES (?, ?)", ("b", 1))
    assert sql.fetch_rows("SELECT name FROM thing WHERE amount > ?", (0,)) == [("b",)]
    assert len(prepared()) == 2


def test_beyond_the_kept_statements_each_is_prepared_anew(sql: PostgresSql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "KEPT_STATEMENTS", 2)
    for _ in range(2):
        assert [sql.fetch_row(f"SELECT {number}, ?", ("x",)) for number in range(5)] == [(n, "x") for n in range(5)]
        together = sql.ask_together([(f"SELECT {number}, ?", ("y",)) for number in range(5)])
        assert together == [[(number, "y")] for number in range(5)]
    assert sql.script("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == [(2,)]


def test_statements_beyond_the_kept_ones_are_not_taken_for_each_other(
    sql: PostgresSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "KEPT_STATEMENTS", 0)
    sql.script("CREATE TEMPORARY TABLE other(name TEXT, amount BIGINT)")
    for number in range(3):
        sql.run("INSERT INTO thing VALUES (?, ?)", (f"a{number}", number))
        sql.run("INSERT INTO other VALUES (?, ?)", (f"b{number}", number))
    assert sql.fetch_rows("SELECT name FROM thing ORDER BY amount") == [("a0",), ("a1",), ("a2",)]
    assert sql.fetch_rows("SELECT name FROM other ORDER BY amount") == [("b0",), ("b1",), ("b2",)]


def test_values_travel_as_their_columns_have_them(sql: PostgresSql) -> None:
    sql.script("CREATE TEMPORARY TABLE kinds(a BIGINT, b TEXT, c BYTEA, d DOUBLE PRECISION, e BOOLEAN, f BIGINT)")
    for row in ((1, "ä", b"\0\xff", 0.1, True, None), (-(2**63), "", b"", 1e300, False, True)):
        sql.run("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?)", row)
    assert sql.fetch_rows("SELECT * FROM kinds") == [
        (1, "ä", b"\0\xff", 0.1, 1, None),
        (-(2**63), "", b"", 1e300, 0, 1),
    ]
    with pytest.raises(psycopg.DataError, match="no value of a statement: object"):
        sql.fetch_row("SELECT ?", (object(),))
    sql.run("INSERT INTO kinds(b) VALUES (?)", ("a\0b",))
    with pytest.raises(psycopg.DataError, match="NUL"):
        sql.flush()


# --- one question, once ---------------------------------------------------------------------------------------------


def test_a_reader_asks_for_local_state_once(store: PostgresStore) -> None:
    question = ("SELECT value FROM local WHERE key = ?", ("note",))
    with store.read() as txn:
        assert txn.sql.fetch_row(*question) is None
        store.write(lambda write: write.sql.run("INSERT INTO local(key, value) VALUES ('note', '1')"))
        assert txn.sql.fetch_row(*question) is None
    with store.read() as txn:
        assert txn.sql.fetch_row(*question) == ("1",)
        assert txn.sql.fetch_rows(*question) == [("1",)]


# --- claims ---------------------------------------------------------------------------------------------------------


def test_claims_end_with_the_connection_that_has_them(store: PostgresStore) -> None:
    again = PostgresStore(store.path)
    assert store.claim("a")
    store._side._sql.close()  # type: ignore[union-attr]
    with pytest.raises(psycopg.Error):
        store._side.script("SELECT 1")
    assert again.claim("a")
    assert not store.claim("a")
    store.give_back("a")
    again.give_back("a")
    assert store.claim("a")
    again.close()


def test_the_server_is_asked_to_notice_soon_that_the_side_connections_machine_is_gone() -> None:
    class Scripted:
        scripts: ClassVar[list[str]] = []

        def script(self, text: str) -> list[tuple[int]]:
            self.scripts.append(text)
            if text == "broken":
                raise psycopg.OperationalError
            return [(1,)]

        def close(self) -> None:
            self.scripts.append("closed")

    side = SideConnection(lambda: cast(PostgresSql, Scripted()))
    for text in ("one", "two"):
        assert side.script(text) == [(1,)]
    with pytest.raises(psycopg.Error):
        side.script("broken")
    side.script("three")
    assert [text.split(" ")[0] for text in Scripted.scripts] == [
        *("SET", "one", "two", "broken", "closed"),
        *("SET", "three"),
    ]
    assert [option in Scripted.scripts[0] for option in ("keepalives_idle", "_interval", "_count")] == [True] * 3


def test_a_name_whose_connection_is_lost_at_that_moment_is_announced_by_the_next_call() -> None:
    class Lost:
        number = 0
        asked = 0

        def numbered_script(self, text: str) -> tuple[list[tuple[bool]], int]:
            """Another thread's statement fails before this one's is looked at."""
            connection, Lost.number, Lost.asked = Lost.number, 1, Lost.asked + 1
            return [(True,)], connection

        def script(self, text: str) -> list[tuple[bool]]:
            return self.numbered_script(text)[0]

    names = NameAnnouncements(cast(SideConnection, Lost()))
    names.announce(7)
    names.announce(7)
    names.announce(7)
    assert Lost.asked == 2


def test_a_name_that_was_not_announced_for_a_look_at_that_moment_is_announced_by_the_next_call() -> None:
    class LookedAt:
        number = 0
        answers: ClassVar = [False, True]

        def numbered_script(self, text: str) -> tuple[list[tuple[bool]], int]:
            return [(self.answers.pop(0),)], self.number

    names = NameAnnouncements(cast(SideConnection, LookedAt()))
    names.announce(7)
    names.announce(7)
    names.announce(7)
    assert LookedAt.answers == []
    assert names.is_announced(7)
