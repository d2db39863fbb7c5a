"""A scratch database that is kept for the next time is as empty as a new one."""

import os

import apsw
import pytest

from tests.scratch_databases import MADE_ANEW, MOST_AT_REST, ScratchDatabases
from weft.store.sqlite.connection import SqliteSql, read_objects
from weft.store.sqlite.migrations import shipped_schema

SCHEMA = shipped_schema()
Dump = tuple[list[object], list[object]]


def dump(sql: SqliteSql) -> Dump:
    """The objects of a database, and every row of every table."""
    objects = read_objects(sql.connection)
    tables = sorted(found.name for found in objects if found.kind == "table")
    rows = [(table, sql.fetch_rows(f'SELECT * FROM "{table}"')) for table in tables]
    return [*objects], [*rows, sql.fetch_row("PRAGMA user_version"), sql.fetch_row("PRAGMA page_count")]


def fill(sql: SqliteSql) -> None:
    sql.run("INSERT INTO local(key, value) VALUES ('k', ?)", ("long " * 10_000,))
    sql.run("CREATE TABLE more(n)")
    sql.run("DELETE FROM watermark")


def test_what_was_written_is_gone_the_next_time() -> None:
    databases = ScratchDatabases()
    with MADE_ANEW(SCHEMA) as new:
        expected = dump(new)
    with databases.lent(SCHEMA) as sql:
        assert dump(sql) == expected
        fill(sql)
        assert dump(sql) != expected
        first = sql.connection
    with databases.lent(SCHEMA) as sql:
        assert sql.connection is first
        assert dump(sql) == expected


def test_two_at_once_are_two_and_few_are_kept() -> None:
    databases, before = ScratchDatabases(), len(apsw.connections())
    with (
        databases.lent(SCHEMA) as one,
        databases.lent(SCHEMA) as another,
        databases.lent(SCHEMA) as third,
    ):
        fill(one)
        assert another.fetch_row("SELECT 1 FROM local WHERE key = 'k'") is None
        assert len({one.connection, another.connection, third.connection}) == 3
    assert len(apsw.connections()) - before == MOST_AT_REST


def fail(sql: SqliteSql) -> None:
    fill(sql)
    raise LookupError("in the middle")


def commit(sql: SqliteSql) -> None:
    fill(sql)
    sql.run("COMMIT")


def test_one_that_failed_or_was_committed_is_not_kept() -> None:
    databases, before = ScratchDatabases(), len(apsw.connections())
    with pytest.raises(LookupError), databases.lent(SCHEMA) as sql:
        fail(sql)
    with databases.lent(SCHEMA) as sql:
        commit(sql)
    assert len(apsw.connections()) == before
    with databases.lent(SCHEMA) as sql:
        assert sql.fetch_row("SELECT 1 FROM local WHERE key = 'k'") is None


def test_a_process_that_was_forked_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    databases, process = ScratchDatabases(), os.getpid()
    with databases.lent(SCHEMA) as sql:
        kept = sql.connection
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with databases.lent(SCHEMA) as sql:
        assert sql.connection is not kept
