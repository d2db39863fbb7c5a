"""Numbered schema steps: forward only, a backup first, each in one transaction with its number.

A new ledger takes none of them itself: they are taken once in memory, and what came of it is copied in one transaction.
A process that dies inside a step leaves the older schema; two that start at once meet at the writers' lock and the
second finds the work done. A ledger with a higher number than this program knows is refused and not touched, also where
it was opened before the number rose. Before anything else is asked of a file, its objects are compared with those of
its number: what Weft did not make is refused by name, and no step is taken over it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
from msgspec import Struct

from weft.kernel.errors import Damaged, LedgerTooNew, NotALedger, UnknownObjects
from weft.store.private_files import put_in_place
from weft.store.sqlite.connection import (
    READ_WRITE,
    SchemaObject,
    connect,
    digest_of,
    make_aside,
    mark_as_copy,
    quoted,
    read_objects,
    unknown_objects,
)

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

APPLICATION_ID = 0x57454654  # "WEFT"
OBJECT_DIGESTS = {
    11: "4afca72d8dc4b1a91ba4a764a8f0c5577706d15ea6b3fa2f9bb3727e10c85766",
    12: "49aaecf674bfe3773f4e4902ff3553585cb09b0e5a67b3a9f3d1af635f90d00f",
    14: "90e27cd28774302eba5cb203b6288cb7a7493501010ec1423cf1e15f07914ad7",
    15: "0a5719da53e92bf4e8e4613f337aed2b9da6242a8b72f409418cf71460777ab8",
    16: "e724603f02231cbc4b73ed2ebe6d5f496774c312d8664b3d619762cea3a27eb3",
    17: "dbe6bcba2563d812d506eef5fd9d998cb614fd88f00defe691dc5904c3934132",
    18: "cea140dc030100b383d1991268eb3138936ad3b8bb77331e6e535ef773cf53c7",
    19: "eebe6a2f1cc7eb846cccf888389909735a30dd36eb7b0e324ef09cee145c43c7",
    20: "31c6c2d12e074fe219f93ba5e2cef85ab9c911126d62779a769e9615595da72d",
    21: "31c6c2d12e074fe219f93ba5e2cef85ab9c911126d62779a769e9615595da72d",
    22: "517f2882bec85c6efcdecb34669ecba326e719e4ba2aa3a1e8e7b8563fecc5e5",
    23: "73b6a6476629b4b6ef5bb3c618ff80eeda1968200287259683840f741c212200",
    24: "8c9556b05df3fbbde28f25edf27a3d77156d96278a83f283f6ac0ab4f41f1f8d",
    25: "3b4fb528ec602d402e1c51a7b7fb2134adf7ca940dbff067a1c964c74d7126ff",
    26: "515e48f1c8814e47634f1bbb82e262c48c899c3a40e5d50a9fc8e4deb09e79d2",
    27: "795e034c80d3f1a9524c3b235fa427888f9901abe014ca15e06a78d3b8bd3c1a",
}
"""What `digest_of` gives for a ledger of these numbers. Other files are compared object by object, which is slower."""


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
    folder = package_folder(__name__, __file__)
    steps = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    migrations = tuple(
        Migration(int(name[:4]), folder.joinpath(name).read_text(), own_part(folder, name[:4])) for name in steps
    )
    return Schema(migrations, folder.joinpath("surface.sql").read_text())


def package_folder(package: str, file: str) -> Path | Traversable:
    """Where the files of a package lie. What could also read them in an archive takes long to load, and is asked only
    where they are in one."""
    folder = Path(file).parent
    if folder.is_dir():
        return folder
    from importlib.resources import files

    return files(package)


def own_part(folder: Path | Traversable, number: str) -> str:
    """What one engine alone does at a step."""
    file = folder.joinpath(f"own_{number}.sql")
    return file.read_text() if file.is_file() else ""


def check_version(connection: apsw.Connection, path: str, schema: Schema) -> int:
    """The ledger's schema number, 0 for an empty file; anything else that is not a ledger of ours is refused."""
    found = int(connection.pragma("user_version") or 0)
    if found == 0 and not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
        return 0
    if connection.pragma("application_id") != APPLICATION_ID:
        raise NotALedger(path, "it is another program's database")
    refuse_newer(connection, schema)
    check_objects(connection, path, schema)
    return found


def check_objects(connection: apsw.Connection, path: str, schema: Schema) -> None:
    """Refuse a ledger, of this schema or an older one, that holds objects which Weft did not make. Missing ones are
    reported by whoever needs them. Views of an older one are compared by name alone: they are dropped unread."""
    number = int(connection.pragma("user_version") or 0)
    try:
        if digest_of(connection) == OBJECT_DIGESTS.get(number):
            return
        objects = read_objects(connection)
    except UnicodeDecodeError as error:
        raise Damaged(f"{path}: the schema is not whole (a text is not UTF-8: {error})") from error
    known_steps = tuple(step for step in schema.migrations if step.number <= number)
    is_older = number < schema.number
    expected = objects_of(Schema(known_steps, "" if is_older else schema.surface))
    views = frozenset(found.name for found in objects_of(schema).values() if found.kind == "view")
    unknown = unknown_objects(objects, expected, views if is_older else frozenset())
    if unknown:
        raise UnknownObjects(path, sorted(found.title for found in unknown))


def refuse_newer(connection: apsw.Connection, schema: Schema) -> None:
    found = int(connection.pragma("user_version") or 0)
    if found > schema.number:
        raise LedgerTooNew(found, schema.number)


def migrate(connection: apsw.Connection, path: str, schema: Schema) -> None:
    """Bring the open database, which `check_version` has let pass, to `schema`. The caller holds the writers' lock."""
    found = int(connection.pragma("user_version") or 0)
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
def objects_of(schema: Schema) -> dict[str, SchemaObject]:
    """All objects that a ledger of this schema has, by name."""
    connection = apsw.Connection(":memory:")
    try:
        if schema.migrations:
            connection.deserialize("main", _image(schema))
        return {found.name: found for found in read_objects(connection)}
    finally:
        connection.close()


@cache
def parts_of(schema: Schema) -> frozenset[str]:
    """The names of all tables, views and indexes that a ledger of this schema has."""
    parts = (found for found in objects_of(schema).values() if not found.name.startswith("sqlite"))
    return frozenset(f"{part.kind} {part.name}" for part in parts)


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
            connection.execute(f"DROP VIEW {quoted(name)}")
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
    aside = make_aside(target)
    connection.execute("VACUUM INTO ?", (str(aside),))
    copy = connect(str(aside), READ_WRITE)
    try:
        mark_as_copy(copy)
    finally:
        copy.close()
    put_in_place(aside, target)
