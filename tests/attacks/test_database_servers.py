"""A ledger in a server where somebody else may create objects: what is not ours takes no part in reading or writing."""

import psycopg
import pytest

import weft
from tests.postgres import shared_server
from tests.sizes import share
from weft.kernel.errors import Action, UnknownObjects
from weft.store.postgres.connection import parse_address

SPY = "CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
STRANGE_OBJECTS = {
    "trigger": (f"{SPY}; CREATE TRIGGER drops BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION spy()", "trigger"),
    "rule": ("CREATE RULE drops AS ON INSERT TO log DO INSTEAD NOTHING", "rule 'drops'"),
    "policy": ("CREATE POLICY hides ON log USING (false)", "policy 'hides'"),
    "row security": ("ALTER TABLE log ENABLE ROW LEVEL SECURITY", "row security of 'log'"),
    "view": ("CREATE VIEW spy AS SELECT 1 AS one", "view 'spy'"),
    "view that is stored": ("CREATE MATERIALIZED VIEW spy AS SELECT 1 AS one", "relation 'spy'"),
    "table": ("CREATE TABLE spy (x int)", "table 'spy'"),
    "child table": ("CREATE SCHEMA {0}_other; CREATE TABLE {0}_other.more () INHERITS (log)", "child table 'more'"),
    "function": ("CREATE FUNCTION length(text) RETURNS int LANGUAGE sql AS 'SELECT 1'", "function 'length'"),
    "operator": (
        "CREATE FUNCTION spy(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true';"
        " CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = spy)",
        "operator '='",
    ),
    "check": ("ALTER TABLE log ADD CONSTRAINT small CHECK (n < 1000000)", "constraint 'small'"),
    "index on an expression": ("CREATE INDEX spy ON log (abs(n))", "index 'spy'"),
    "default that calls a function": (
        "CREATE SCHEMA {0}_other; CREATE FUNCTION {0}_other.spy() RETURNS text LANGUAGE sql AS 'SELECT ''x''';"
        " ALTER TABLE program ALTER COLUMN state SET DEFAULT {0}_other.spy()",
        "call of 'spy'",
    ),
    "index of ours that calls a function": (
        "CREATE SCHEMA {0}_other;"
        " CREATE FUNCTION {0}_other.spy(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT ''x''';"
        " DROP INDEX turn_role; CREATE INDEX turn_role ON turn ({0}_other.spy(role))",
        "call of 'spy'",
    ),
    "a name for the terminal": ('CREATE TABLE "\x1b[31m""; DROP" (x int)', r"\x1b[31m"),
}


@pytest.fixture
def address() -> str:
    place = shared_server().address()
    with weft.open(place) as ledger:
        ledger.record_turn(session="main", query="hello", response="hi")
    return place


def change(address: str, sql: str) -> None:
    """What somebody else does who may create objects there."""
    named = parse_address(address)
    with psycopg.connect(named.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {named.quoted}".encode())
        connection.execute(sql.replace("{0}", named.ledger).encode())


@pytest.mark.parametrize("name", share(list(STRANGE_OBJECTS), test=6))
def test_an_object_in_the_schema_that_is_not_ours_is_refused_by_name(address: str, name: str) -> None:
    sql, shown = STRANGE_OBJECTS[name]
    change(address, sql)
    for read_only in (False, True):
        with pytest.raises(UnknownObjects) as refused:
            weft.open(address, read_only=read_only)
        assert shown in str(refused.value)
        assert refused.value.action is Action.REMOVE_OBJECTS
        assert "\x1b" not in str(refused.value)


def test_tables_of_the_same_name_elsewhere_do_not_shadow_ours(address: str) -> None:
    """Neither in the default schema nor, for a connection that is ours, in the temporary one."""
    change(address, "CREATE TABLE IF NOT EXISTS public.log (n int)")
    try:
        with weft.open(address) as ledger:
            with ledger._store.read() as txn:
                assert txn.sql.fetch_rows("SHOW search_path") == [(f"{parse_address(address).ledger}, pg_temp",)]
            ledger.record_turn(session="main", query="more")
            assert len(ledger.log()) == 2
    finally:
        change(address, "DROP TABLE public.log")


def test_views_of_others_over_our_tables_stay_theirs(address: str) -> None:
    """They change nothing of what is read or written here."""
    change(address, "CREATE SCHEMA {0}_other; CREATE VIEW {0}_other.report AS SELECT count(*) FROM log")
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="more")
        assert list(ledger.verify()) == []
