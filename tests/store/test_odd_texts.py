"""Texts that no table can hold are not found, on either engine, and harm nobody who writes at the same time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.postgres import shared_server
from weft.kernel.errors import NotFound, StoreFailed
from weft.store.port import Store, WriteTxn
from weft.store.postgres import PostgresStore
from weft.store.sqlite import SqliteStore

ODD = ["a\0b", "a\ud800b", "\udcff"]
QUESTION = "SELECT count(*) FROM local WHERE key = ?"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    is_file = request.param == "sqlite"
    made: Store = SqliteStore(tmp_path / "ledger.db") if is_file else PostgresStore(shared_server().address())
    yield made
    made.close()


@pytest.mark.parametrize("text", ODD)
def test_whoever_asks_for_one_is_told_that_there_is_none(store: Store, text: str) -> None:
    with store.read() as txn:
        assert txn.sql.fetch_row(QUESTION, (text,)) == (0,)
        assert txn.sql.fetch_rows(QUESTION, (text,)) == [(0,)]
        assert list(txn.sql.iterate_rows(QUESTION, (text,))) == [(0,)]
        assert txn.sql.fetch_row(QUESTION, ("replica",)) == (1,)
    assert store.write(lambda txn: txn.sql.fetch_row(QUESTION, (text,)), ahead=[(QUESTION, (text,))]) == (0,)


@pytest.mark.parametrize("text", ODD[1:])
def test_on_a_server_one_that_is_written_is_refused_and_costs_no_connection(text: str) -> None:
    store = PostgresStore(shared_server().address())
    connection = store._write_sql

    def work(txn: WriteTxn) -> None:
        txn.sql.run("INSERT INTO local(key, value) VALUES (?, ?)", ("odd", text))
        txn.sql.fetch_row("SELECT 1 FROM local")

    with pytest.raises(StoreFailed, match="lone surrogate"):
        store.write(work)
    store.write(lambda txn: txn.sql.run("INSERT INTO local(key, value) VALUES (?, ?)", ("even", "x")))
    assert store._write_sql is connection
    with store.read() as txn:
        assert txn.sql.fetch_rows("SELECT key FROM local WHERE key IN ('odd', 'even')") == [("even",)]
    store.close()


@pytest.mark.parametrize("text", ODD)
def test_a_program_of_such_a_name_is_not_found(text: str) -> None:
    with weft.open(":memory:") as ledger, pytest.raises(NotFound):
        ledger.programs.get(text)
