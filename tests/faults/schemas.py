"""A ledger's future, made up: schemas that a later program might bring."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier

from msgspec.structs import replace

from tests.faults.processes import Say
from tests.faults.tripwires import Tripwire, watch_disk, watch_statements
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.migrations import Migration, Schema, shipped_schema

STEPS = (
    "CREATE TABLE novelty (n INTEGER PRIMARY KEY, text TEXT NOT NULL); INSERT INTO novelty(text) VALUES ('once');",
    "ALTER TABLE novelty ADD COLUMN size INTEGER; UPDATE novelty SET size = length(text);"
    "CREATE TABLE copied AS SELECT n, events FROM log; CREATE INDEX novelty_size ON novelty (size);",
)


def newer_schema(steps: int = len(STEPS)) -> Schema:
    """The shipped schema, so many steps later."""
    shipped = shipped_schema()
    added = tuple(Migration(shipped.number + i, sql) for i, sql in enumerate(STEPS[:steps], 1))
    return replace(shipped, migrations=shipped.migrations + added)


def open_newer(say: Say, path: str, start: Barrier) -> None:
    """Open with the newer schema, together with others."""
    start.wait()
    SqliteStore(path, schema=newer_schema()).close()
    say("open")


def die_while_migrating(say: Say, path: str, k: int, torn: bool, at_statements: bool) -> None:
    """Open with the newer schema; killed at the k-th step of it."""
    tripwire = Tripwire(k, torn=torn)
    if at_statements:
        watch_statements(tripwire)
    vfs = None if at_statements else watch_disk(tripwire)
    tripwire.armed = True
    store = SqliteStore(path, schema=newer_schema())
    tripwire.disarm(say)
    store.close()
    if vfs is not None:
        vfs.unregister()


def leave_newer_unclosed(say: Say, path: str) -> None:
    """A ledger of a newer program that was killed: its write-ahead log still lies there."""
    store = SqliteStore(path, schema=newer_schema())
    tripwire = Tripwire(1)
    tripwire.armed = True
    store.write(lambda txn: txn.sql.run("INSERT INTO novelty(text, size) VALUES ('twice', 5)"))
    tripwire.step()
