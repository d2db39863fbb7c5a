"""The schema of a PostgreSQL ledger: the steps of SQLite in PostgreSQL's words, what lies in
the schema compared with what a ledger has there, its soundness, its tables written anew, and a
backup as a SQLite file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import apsw
import psycopg
from msgspec.structs import replace

from weft.kernel.errors import Action, LedgerTooNew, NotALedger, StoreFailed, UnknownObjects
from weft.kernel.typed_names import IN_MEMORY
from weft.store.port import Diagnosis, Progress, error, good
from weft.store.postgres.connection import GRANT, PostgresAddress, PostgresSql, server_message
from weft.store.private_files import put_in_place
from weft.store.sqlite.connection import FtsIndex, SqliteSql, make_aside, mark_as_copy, quoted
from weft.store.sqlite.migrations import Schema, own_part, package_folder, parts_of
from weft.store.sqlite.migrations import migrate as run_migrations
from weft.store.sqlite.migrations import shipped_schema as sqlite_schema

# --- What lies in a ledger's schema of a server, compared with what a ledger has there.

NAME_CHARACTERS = 60
_MADE = re.compile(
    r"(?:^|;)\s*(CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:UNIQUE\s+)?(TABLE|INDEX|VIEW|SEQUENCE|FUNCTION)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    r"(\w+)",
    re.MULTILINE,
)
_FIRST_OID_OF_USERS = 16_384
_OBJECTS = f"""
WITH ledger AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = ?),
relation AS (SELECT c.* FROM pg_catalog.pg_class c JOIN ledger ON c.relnamespace = ledger.oid),
object AS (
    SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index'
        ELSE 'relation' END AS kind, relname AS name FROM relation
        WHERE relkind <> 'i' OR NOT EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k WHERE k.conindid = relation.oid)
    UNION ALL SELECT 'row security of', relname FROM relation WHERE relrowsecurity
    UNION ALL SELECT 'trigger', t.tgname FROM pg_catalog.pg_trigger t JOIN relation ON relation.oid = t.tgrelid
        WHERE NOT t.tgisinternal
    UNION ALL SELECT 'rule', r.rulename FROM pg_catalog.pg_rewrite r JOIN relation ON relation.oid = r.ev_class
        WHERE r.rulename <> '_RETURN'
    UNION ALL SELECT 'policy', p.polname FROM pg_catalog.pg_policy p JOIN relation ON relation.oid = p.polrelid
    UNION ALL SELECT 'child table', c.relname FROM pg_catalog.pg_inherits i
        JOIN relation ON relation.oid = i.inhparent JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    UNION ALL SELECT 'constraint', k.conname FROM pg_catalog.pg_constraint k JOIN relation ON relation.oid = k.conrelid
        WHERE k.contype IN ('c', 'f', 't', 'x')
    UNION ALL SELECT 'function', p.proname FROM pg_catalog.pg_proc p JOIN ledger ON p.pronamespace = ledger.oid
        WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d
            WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e')
    UNION ALL SELECT 'operator', o.oprname FROM pg_catalog.pg_operator o JOIN ledger ON o.oprnamespace = ledger.oid
    UNION ALL SELECT 'type', t.typname FROM pg_catalog.pg_type t JOIN ledger ON t.typnamespace = ledger.oid
        WHERE t.typrelid = 0 AND t.typelem = 0
    UNION ALL SELECT 'call of', p.proname FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
        WHERE p.oid >= {_FIRST_OID_OF_USERS} AND p.pronamespace <> (SELECT oid FROM ledger) AND (
            d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid IN (SELECT oid FROM relation)
            OR d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid IN (
                SELECT a.oid FROM pg_catalog.pg_attrdef a JOIN relation ON relation.oid = a.adrelid))
)
SELECT kind, name::text FROM object
"""


def check_objects(sql: PostgresSql, address: PostgresAddress, schema: Schema, number: int, own: str) -> None:
    """Refuse a ledger of this number in whose schema lies what Weft did not make. `own` made what only servers have."""
    unknown = set(sql.fetch_rows(_OBJECTS, (address.ledger,))) - _expected_objects(schema, number, own)
    if unknown:
        titles = [f"{kind} {name[:NAME_CHARACTERS]!r}" for kind, name in sorted(unknown)]
        raise UnknownObjects(address.shown, titles, Action.REMOVE_OBJECTS)


@cache
def _expected_objects(schema: Schema, number: int, own: str) -> frozenset[tuple[str, str]]:
    names = _names_after_script(own)
    for step in schema.migrations:
        if step.number <= number:
            names = _names_after_script(step.own, _names_after_script(step.sql, names))
    return _names_after_script(schema.surface, names)


def _names_after_script(script: str, before: frozenset[tuple[str, str]] = frozenset()) -> frozenset[tuple[str, str]]:
    """Kinds and names of what there is once a script of ours was run."""
    names = set(before)
    for verb, kind, name in _MADE.findall(script):
        if verb == "CREATE":
            names.add((kind.lower(), name))
        else:
            names.discard((kind.lower(), name))
    return frozenset(names)


# --- The schema steps of SQLite in PostgreSQL's words: forward only, all that are missing in one transaction.

MARK = "weft_schema"
"""The table that says that a schema is a ledger, and of which number."""
OWN = f"""
CREATE TABLE {MARK} (number BIGINT NOT NULL);
INSERT INTO {MARK} VALUES (0);
CREATE SEQUENCE writes;
CREATE TABLE outcome (writer TEXT COLLATE "C" PRIMARY KEY, mark BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now());
"""
"""What PostgreSQL alone needs: who wrote last, and how a commit without events is told from one that failed."""
_SHORT = {
    "text_of": "(SELECT text FROM content_text WHERE n = {0})",
    "json_of": "(SELECT json FROM content_json WHERE n = {0})",
    "name_of": "CASE WHEN {0} LIKE '#%' THEN (SELECT text FROM content_text"
    " WHERE n = CAST(substr({0}, 2) AS BIGINT)) ELSE {0} END",
}
_TYPES = {"INTEGER": "BIGINT", "BLOB": "BYTEA", "TEXT": 'TEXT COLLATE "C"', "WITHOUT ROWID": ""}
_WORDS = re.compile(r"--[^\n]*|\bWITHOUT ROWID\b|\bINTEGER\b|\bBLOB\b|\bTEXT\b")


def shipped_schema() -> Schema:
    folder = package_folder("weft.store.postgres", __file__)
    steps = (replace(step, own=own_part(folder, f"{step.number:04}")) for step in sqlite_schema().migrations)
    return Schema(tuple(steps), spelled_out(folder.joinpath("surface.sql").read_text()))


def spelled_out(surface: str) -> str:
    """The surface's short words, each with the question that it is short for in its place."""
    for word, question in _SHORT.items():
        while (at := surface.find(f"{word}(")) >= 0:
            asked = _inside_brackets(surface, at + len(word))
            surface = surface[:at] + question.format(asked) + surface[at + len(f"{word}({asked})") :]
    return surface


def _inside_brackets(text: str, at: int) -> str:
    """What stands between the bracket that opens here and the one that closes it."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[at + 1 : end]
    raise AssertionError("a bracket is left open")


def in_postgres(step: str) -> str:
    return _WORDS.sub(lambda word: _TYPES.get(word[0], ""), step)


def schema_number(sql: PostgresSql, address: PostgresAddress) -> int | None:
    """The ledger's schema number; 0 where the schema is empty, None where there is none; else it is no ledger."""
    may_look = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = ?"
    row = sql.fetch_row(may_look, (address.ledger,))
    if row is None:
        return None
    if not row[0]:  # the server then says of its tables that they do not exist
        raise StoreFailed(f"{address.shown}: permission denied for schema {address.ledger}", GRANT)
    things = sql.fetch_rows(
        "SELECT relname FROM pg_catalog.pg_class WHERE relnamespace = (SELECT oid FROM pg_catalog.pg_namespace"
        " WHERE nspname = ?)",
        (address.ledger,),
    )
    if not things:
        return 0
    if (MARK,) not in things:
        raise NotALedger(address.shown, f"the schema {address.ledger} is another program's")
    row = sql.fetch_row(f"SELECT number FROM {MARK}")
    return int(row[0]) if row else 0


def refuse_newer(number: int, schema: Schema) -> None:
    if number > schema.number:
        raise LedgerTooNew(number, schema.number)


def migrate(sql: PostgresSql, address: PostgresAddress, schema: Schema) -> None:
    """Inside a transaction that holds the writers' lock: bring the ledger to `schema`."""
    number = schema_number(sql, address)
    if number is None:
        sql.script(f"CREATE SCHEMA {address.quoted}")
    if not number:
        sql.script(OWN)
        number = 0
    refuse_newer(number, schema)
    check_objects(sql, address, schema, number, OWN)
    if number == schema.number:
        return
    for (view,) in sql.fetch_rows("SELECT viewname FROM pg_catalog.pg_views WHERE schemaname = ?", (address.ledger,)):
        sql.script(f"DROP VIEW IF EXISTS {quoted(view)} CASCADE")  # others go with it
    for step in schema.migrations:
        if step.number > number:
            sql.script(in_postgres(step.sql))
            if step.own:
                sql.script(step.own)
    sql.script(schema.surface)
    sql.script(f"UPDATE {MARK} SET number = {schema.number}")


# --- What PostgreSQL itself can tell about the soundness of a ledger's tables.

_RELATIONS = (
    "SELECT c.relname, c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam"
    " WHERE n.nspname = ? AND c.relkind = ? AND (c.relkind <> 'i' OR a.amname = 'btree') ORDER BY c.relname"
)


_PARTS = (
    "SELECT CASE c.relkind WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view ' ELSE 'index ' END || c.relname"
    " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = ? AND c.relkind IN ('r', 'v', 'i')"
)
_NOT_HERE = re.compile("table word_.*")
"""What only SQLite's index of words consists of."""


def examine_schema(sql: PostgresSql, address: PostgresAddress) -> Iterator[Diagnosis]:
    """Is everything there that a ledger of this program has?"""
    number = schema_number(sql, address) or 0
    yield good("schema", f"schema {number}")
    missing = missing_parts(sql, address)
    for part in missing:
        yield error("structure", part, "somebody has dropped it", Action.COPY_BACKUP)
    if not missing:
        yield good("structure", "every table, view and index is there")


def missing_parts(sql: PostgresSql, address: PostgresAddress) -> list[str]:
    """Tables, views and indexes that a ledger has and that somebody has dropped from this one, in words."""
    if schema_number(sql, address) != sqlite_schema().number:
        return []
    expected = {part for part in parts_of(sqlite_schema()) if _NOT_HERE.fullmatch(part) is None}
    there = {part for (part,) in sql.fetch_rows(_PARTS, (address.ledger,))}
    return [f"{part} is missing" for part in sorted(expected - there)]


def find_damage(sql: PostgresSql, address: PostgresAddress) -> list[str]:
    """Every row of every table is read, so that a page that is not what was written fails; where the `amcheck`
    extension is installed, every index that it knows is held against its table as well."""
    damage = missing_parts(sql, address)
    for table, _ in sql.fetch_rows(_RELATIONS, (address.ledger, "r")):
        damage += _try(sql, table, f"SELECT count(*) FROM {quoted(table)} t WHERE t::text IS NULL")
    amcheck = sql.fetch_row(
        "SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'amcheck'"
    )
    if amcheck is not None:
        for index, oid in sql.fetch_rows(_RELATIONS, (address.ledger, "i")):
            damage += _try(sql, index, f"SELECT {quoted(amcheck[0])}.bt_index_check({oid}::regclass, true)")
    return damage


def _try(sql: PostgresSql, name: str, question: str) -> list[str]:
    """The transaction goes on after a failure: what else is wrong is wanted too."""
    sql.script("SAVEPOINT look")
    try:
        sql.script(question)
    except psycopg.errors.InsufficientPrivilege:
        sql.script("ROLLBACK TO look")
        return []
    except psycopg.DatabaseError as error:
        if sql.broken:
            raise
        sql.script("ROLLBACK TO look")
        return [f"{name}: {server_message(error)}"]
    sql.script("RELEASE look")
    return []


# --- Writing a ledger's tables anew, so that no file of theirs holds what was deleted.

CAN_FORGET_STATISTICS = 180_000

_MAY_HOLD_BYTES = (
    "SELECT c.relname FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace ="
    " (SELECT oid FROM pg_namespace WHERE nspname = ?)"
    " AND (pg_relation_size(c.oid) > 0 OR c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0"
    " OR EXISTS (SELECT 1 FROM pg_stats s WHERE s.schemaname = ? AND s.tablename = c.relname)"
    " OR EXISTS (SELECT 1 FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam"
    " WHERE i.indrelid = c.oid AND (m.amname <> 'btree' OR pg_relation_size(x.oid) > 8192)))"
    " ORDER BY c.relname"
)
"""All but tables that never held a row: an index of theirs is its first page, and the planner knows nothing of them. An
emptied one may have left keys in an index."""

_EMPTY_BUT_KNOWN = (
    "SELECT s.tablename, s.attname FROM pg_stats s JOIN pg_class c ON c.relname = s.tablename"
    " JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname"
    " WHERE s.schemaname = ? AND pg_relation_size(c.oid) = 0"
)


def rewrite_tables(sql: PostgresSql, address: PostgresAddress, patience: float) -> bool:
    """Table by table, while writers wait for the ledger's lock. False where a reader of a table does not end in time;
    what was rewritten until then is clean.

    What the planner knows of a table are values out of its rows, so it is told anew, and the catalog that holds it is
    rewritten as well; the server passes over that, with a warning, where the database is not the user's own.
    """
    sql.script(f"SET lock_timeout TO '{max(1, int(patience * 1000))}ms'")
    try:
        sql.script(f"SELECT pg_advisory_lock({address.lock})")
        for (table,) in sql.fetch_rows(_MAY_HOLD_BYTES, (address.ledger, address.ledger)):
            sql.script(f'VACUUM (FULL, ANALYZE) "{table}"')
        _forget_the_emptied(sql, address)
        sql.script("VACUUM (FULL) pg_catalog.pg_statistic")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _forget_the_emptied(sql: PostgresSql, address: PostgresAddress) -> None:
    """Of a table without rows the planner learns nothing, and remembers what it knew."""
    if sql.connection.info.server_version < CAN_FORGET_STATISTICS:
        return
    for table, column in sql.fetch_rows(_EMPTY_BUT_KNOWN, (address.ledger,)):
        sql.fetch_rows("SELECT pg_clear_attribute_stats(?, ?, ?, false)", (address.ledger, table, column))


# --- A backup of a PostgreSQL ledger is a ledger file: every table of one snapshot, row by row, in a SQLite database.

PLACE = "place"
"""Local state: the cluster, database and schema that the ledger lies in; elsewhere it is a copy."""
AT_ONCE = 256
_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'word%'"
    " ORDER BY name"
)


def write_copy(
    sql: PostgresSql, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Aside, then renamed: either it is complete or it is not there. `beside` is called before it is renamed."""
    aside = make_aside(target)
    connection = apsw.Connection(str(aside))
    try:
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536")
        run_migrations(connection, IN_MEMORY, sqlite_schema())
        _copy_tables(sql, connection, progress)
        _copy_words(sql, connection)
        connection.execute("DELETE FROM local WHERE key = ?", (PLACE,))
        mark_as_copy(connection)
    finally:
        connection.close()
    if beside is not None:
        beside()
    put_in_place(aside, target)


def _copy_words(sql: PostgresSql, into: apsw.Connection) -> None:
    """The index of words is each engine's own; its words are the same."""
    rows = sql.iterate_rows("SELECT n, array_to_string(tsvector_to_array(words), ' ') FROM word")
    index = FtsIndex(SqliteSql(into))
    while some := list(islice(rows, AT_ONCE)):
        with into:
            index.put((n, words) for n, words in some)


def _copy_tables(sql: PostgresSql, into: apsw.Connection, progress: Progress | None) -> None:
    tables = [name for (name,) in into.execute(_TABLES)]
    counts = {name: (sql.fetch_row(f"SELECT count(*) FROM {name}") or (0,))[0] for name in tables}
    done, total = 0, sum(counts.values())
    for name in tables:
        columns = [f'"{row[1]}"' for row in into.execute(f"PRAGMA table_info({name})")]
        names = ", ".join(columns)
        insert = f"INSERT INTO {name}({names}) VALUES ({', '.join('?' * len(columns))})"
        rows = sql.iterate_rows(f"SELECT {names} FROM {name}")
        while some := list(islice(rows, AT_ONCE)):
            with into:
                into.executemany(insert, some)
            done += len(some)
            if progress is not None:
                progress(done, total)
