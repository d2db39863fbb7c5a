"""What lies in a ledger's schema of a server, compared with what a ledger has there.

Whoever may create objects in the schema, or owns one of its tables, could have a trigger, a rule, a policy, a child
table or a function of their own take part in what Weft reads and writes. One question to the catalogue, once for each
opening, lists all of these; what a ledger does not have is refused by name. Views are compared by name: Weft reads none
of them and makes them anew with every step.
"""

from __future__ import annotations

import re
from functools import cache

from weft.kernel.advice import Action
from weft.kernel.errors import UnknownObjects
from weft.store.postgres.address import PostgresAddress
from weft.store.postgres.connection import PostgresSql
from weft.store.sqlite.migrations import Schema

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
    unknown = set(sql.all(_OBJECTS, (address.ledger,))) - _expected(schema, number, own)
    if unknown:
        titles = [f"{kind} {name[:NAME_CHARACTERS]!r}" for kind, name in sorted(unknown)]
        raise UnknownObjects(address.shown, titles, Action.REMOVE_OBJECTS)


@cache
def _expected(schema: Schema, number: int, own: str) -> frozenset[tuple[str, str]]:
    names = _names(own)
    for step in schema.migrations:
        if step.number <= number:
            names = _names(step.own, _names(step.sql, names))
    return _names(schema.surface, names)


def _names(script: str, before: frozenset[tuple[str, str]] = frozenset()) -> frozenset[tuple[str, str]]:
    """Kinds and names of what there is once a script of ours was run."""
    names = set(before)
    for verb, kind, name in _MADE.findall(script):
        if verb == "CREATE":
            names.add((kind.lower(), name))
        else:
            names.discard((kind.lower(), name))
    return frozenset(names)
