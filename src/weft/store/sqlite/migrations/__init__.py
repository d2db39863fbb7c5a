"""Numbered schema steps: forward only, a backup first, each in one transaction with its number.

A new ledger takes none of them itself: they are taken once in memory, and what came of it is copied in one transaction.
A process that dies inside a step leaves the older schema; two that start at once meet at the writers' lock and the
second finds the work done. A ledger with a higher number than this program knows is refused and not touched, also where
it was opened before the number rose.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import apsw
from msgspec import Struct

from weft.kernel.errors import LedgerTooNew, NotALedger
from weft.store.atomic_files import aside_of, put_in_place
from weft.store.sqlite.copies import mark_as_copy

APPLICATION_ID = 0x57454654  # "WEFT"


class Migration(Struct, frozen=True):
    """A step that both engines take, and what each of them alone does beside it."""

    number: int
    sql: str
    own: str = ""


class Schema(Struct, frozen=True):
    """What a program knows: the steps so far, and the readable surface that belongs to the last one."""

    migrations: tuple[Migration, ...]
    surface: str

    @property
    def number(self) -> int:
        return self.migrations[-1].number


@cache
def shipped_schema() -> Schema:
    folder = files(__name__)
    steps = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    migrations = tuple(
        Migration(int(name[:4]), folder.joinpath(name).read_text(), own_part(folder, name[:4])) for name in steps
    )
    return Schema(migrations, folder.joinpath("surface.sql").read_text())


def own_part(folder: Traversable, number: str) -> str:
    """What one engine alone does at a step."""
    file = folder.joinpath(f"own_{number}.sql")
    return file.read_text() if file.is_file() else ""


def check_version(connection: apsw.Connection, path: str, schema: Schema) -> int:
    """The ledger's schema number, 0 for an empty file; anything else that is not a ledger of ours is refused."""
    found = int(connection.pragma("user_version") or 0)
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    if found == 0 and tables == 0:
        return 0
    if connection.pragma("application_id") != APPLICATION_ID:
        raise NotALedger(path, "it is another program's database")
    refuse_newer(connection, schema)
    return found


def refuse_newer(connection: apsw.Connection, schema: Schema) -> None:
    found = int(connection.pragma("user_version") or 0)
    if found > schema.number:
        raise LedgerTooNew(found, schema.number)


def migrate(connection: apsw.Connection, path: str, schema: Schema) -> None:
    """Bring the open database to `schema`. The caller holds the writers' lock."""
    found = check_version(connection, path, schema)
    if found == schema.number:
        return
    if not found:
        _make(connection, schema)
        return
    back_up_before(connection, Path(f"{path}.schema-{found}.backup"))
    for step in schema.migrations:
        if step.number > found:
            _apply(connection, step, schema)


def _make(connection: apsw.Connection, schema: Schema) -> None:
    made = apsw.Connection(":memory:")
    try:
        made.deserialize("main", _image(schema))
        with connection.backup("main", made, "main") as copying:
            copying.step()
    finally:
        made.close()


@cache
def _image(schema: Schema) -> bytes:
    """A database that has taken every step and holds no row of anybody's."""
    connection = apsw.Connection(":memory:")
    try:
        for step in schema.migrations:
            _apply(connection, step, schema)
        return connection.serialize("main")
    finally:
        connection.close()


@cache
def parts_of(schema: Schema) -> frozenset[str]:
    """The names of all tables, views and indexes that a ledger of this schema has."""
    connection = apsw.Connection(":memory:")
    try:
        connection.deserialize("main", _image(schema))
        rows = connection.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'").fetchall()
        return frozenset(f"{kind} {name}" for kind, name in rows)
    finally:
        connection.close()


def missing_parts(connection: apsw.Connection, schema: Schema) -> list[str]:
    """What somebody has dropped from a ledger of this very schema, in words."""
    if int(connection.pragma("user_version") or 0) != schema.number:
        return []
    there = {f"{kind} {name}" for kind, name in connection.execute("SELECT type, name FROM sqlite_schema")}
    return [f"{part} is missing" for part in sorted(parts_of(schema) - there)]


def _apply(connection: apsw.Connection, step: Migration, schema: Schema) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for name in [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]:
            connection.execute(f'DROP VIEW "{name}"')
        connection.execute(step.sql).fetchall()  # to the end, also past a statement that answers
        connection.execute(step.own).fetchall()
        if step.number == schema.number:
            connection.execute(schema.surface)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {step.number}")
        connection.execute("COMMIT")
    except BaseException:  # also an interrupt must not leave a half-made schema in this connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def back_up_before(connection: apsw.Connection, target: Path) -> None:
    """A whole copy, made aside and renamed: either it is complete or it is not there. One of an earlier attempt gives
    way, since the ledger may have grown after it."""
    aside = aside_of(target)
    aside.unlink(missing_ok=True)
    connection.execute("VACUUM INTO ?", (str(aside),))
    copy = apsw.Connection(str(aside))
    try:
        mark_as_copy(copy)
    finally:
        copy.close()
    put_in_place(aside, target)
