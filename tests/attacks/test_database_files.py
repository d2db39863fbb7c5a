"""A ledger file from a stranger: what its schema says is neither run nor migrated, and its facts can still be had."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import zstandard

import weft
from tests.sizes import share
from weft.kernel.errors import Action, NotALedger, UnknownObjects
from weft.store.fact_log import unpacked
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.connection import READ_WRITE, connect, digest_of, normal_form, quoted, read_objects
from weft.store.sqlite.migrations import OBJECT_DIGESTS, Schema, migrate, objects_of, shipped_schema

FIXTURES = Path(__file__).parents[1] / "upgrades"
FORGED = "PRAGMA writable_schema = ON; {}; PRAGMA writable_schema = RESET"
STRANGE_OBJECTS = {
    "view": "CREATE VIEW spy AS SELECT * FROM log",
    "trigger": "CREATE TRIGGER spy AFTER INSERT ON log BEGIN DELETE FROM log; END",
    "table": "CREATE TABLE spy (x)",
    "index on an expression": "CREATE INDEX spy ON local (upper(value))",
    "virtual table": "CREATE VIRTUAL TABLE spy USING fts5(x)",
    "generated column": "ALTER TABLE local ADD COLUMN spy TEXT AS (hex(value))",
    "check of a function": FORGED.format(
        "UPDATE sqlite_schema SET sql = replace(sql, 'value TEXT NOT NULL',"
        " 'value TEXT NOT NULL CHECK (length(value) < 1e6)') WHERE name = 'local'"
    ),
    "view in a table's place": "ALTER TABLE watermark RENAME TO spy; CREATE VIEW watermark AS SELECT * FROM spy",
    "another text of a view": "DROP VIEW turns; CREATE VIEW turns AS SELECT * FROM turn",
    "a table of the index of words with a default": FORGED.format(
        "UPDATE sqlite_schema SET sql = replace(sql, 'block BLOB', 'block BLOB DEFAULT (randomblob(9))')"
        " WHERE name = 'word_data'"
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    with weft.open(file) as ledger:
        ledger.record_turn(session="main", query="hello", response="hi")
    return file


def change(path: Path, sql: str) -> None:
    """What a stranger does with a plain connection."""
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def asked(path: Path, sql: str) -> object:
    """The first value of an answer."""
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()[0][0]
    finally:
        connection.close()


def older_ledger(folder: Path) -> Path:
    """A real ledger of an earlier version, which the next opening for writing would migrate."""
    path = folder / "ledger.db"
    path.write_bytes(gzip.decompress((FIXTURES / "schema-0011" / "ledger.db.gz").read_bytes()))
    return path


def contents_of(folder: Path) -> dict[str, bytes]:
    """All that is told apart from nothing: SQLite's readers may leave an empty log and its index."""
    files = (file for file in folder.iterdir() if not file.name.endswith(("-shm", "-lock")) and file.stat().st_size)
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", share(list(STRANGE_OBJECTS), test=5))
@pytest.mark.parametrize("opening", [weft.open, lambda path: weft.open(path, read_only=True)], ids=["write", "read"])
def test_an_object_that_is_not_ours_is_refused_by_name(
    path: Path, name: str, opening: Callable[[Path], object]
) -> None:
    change(path, STRANGE_OBJECTS[name])
    before = contents_of(path.parent)
    with pytest.raises(UnknownObjects) as refused:
        opening(path)
    assert any(word in str(refused.value) for word in ("'spy'", "'local'", "'watermark'", "'turns'", "'word_data'"))
    assert refused.value.action is Action.RESTORE_OR_SALVAGE
    assert contents_of(path.parent) == before


def test_a_view_whose_name_is_a_statement_writes_no_file_when_an_older_ledger_is_migrated(tmp_path: Path) -> None:
    path, target = older_ledger(tmp_path), tmp_path / "written.db"
    name = f"y\"; ROLLBACK; \x1b[31m ATTACH '{target}' AS a; CREATE TABLE a.b (c); --"
    change(path, f"CREATE VIEW {quoted(name)} AS SELECT 1")
    with pytest.raises(UnknownObjects) as refused:
        weft.open(path)
    assert not target.exists()
    assert r"\x1b[31m" in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert asked(path, "PRAGMA user_version") == 11


def test_a_step_drops_a_view_by_its_whole_name(tmp_path: Path) -> None:
    """The comparison comes first; the statement itself holds as well."""
    schema, target = shipped_schema(), tmp_path / "written.db"
    connection = connect(":memory:", READ_WRITE)
    migrate(connection, ":memory:", Schema(schema.migrations[:-1], schema.surface))
    connection.execute(f"""CREATE VIEW "y""; ROLLBACK; ATTACH '{target}' AS a; CREATE TABLE a.b (c); --" AS SELECT 1""")
    migrate(connection, str(tmp_path / "copied.db"), schema)
    assert not target.exists()
    assert {found.name: found for found in read_objects(connection)} == objects_of(schema)
    connection.close()


def test_a_trigger_in_an_older_ledger_is_refused_before_any_step(tmp_path: Path) -> None:
    path = older_ledger(tmp_path)
    change(path, "CREATE TRIGGER spy AFTER INSERT ON program BEGIN DELETE FROM log; END")
    with pytest.raises(UnknownObjects, match="trigger 'spy'"):
        weft.open(path)
    assert not list(tmp_path.glob("*.backup"))


def test_views_of_an_older_ledger_are_replaced_unread(tmp_path: Path) -> None:
    path = older_ledger(tmp_path)
    change(path, "DROP VIEW turns; CREATE VIEW turns AS SELECT hex(randomblob(1)) AS id")
    with weft.open(path) as ledger:
        assert list(ledger.verify()) == []
    assert "randomblob" not in str(asked(path, "SELECT sql FROM sqlite_schema WHERE name = 'turns'"))


def test_the_facts_of_a_file_with_a_strange_object_can_be_taken_out(path: Path, tmp_path: Path) -> None:
    change(path, STRANGE_OBJECTS["trigger"])
    found = next(one for one in weft.examine(path) if one.check == "objects")
    assert "trigger 'spy'" in found.what
    assert found.grade == "error"
    program = Path(sys.executable).with_name("weft")
    refused = subprocess.run(
        [program, "--ledger", path, "log"], check=False, env={"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert "weft recover" in refused.stderr
    weft.salvage(path, tmp_path / "new.db")
    with weft.open(tmp_path / "new.db") as ledger:
        assert [message.text for message in ledger.thread("main").messages] == ["hello", "hi"]
        assert list(ledger.verify()) == []


def test_an_object_added_while_the_ledger_is_open_stops_the_next_write(path: Path) -> None:
    with weft.open(path) as ledger:
        change(path, STRANGE_OBJECTS["trigger"])
        with pytest.raises(UnknownObjects, match="trigger 'spy'"):
            ledger.record_turn(session="main", query="more", response="no")
        change(path, "DROP TRIGGER spy")
        ledger.record_turn(session="main", query="more", response="yes")


def test_a_trigger_does_not_run_on_a_connection_of_ours(path: Path) -> None:
    change(path, "CREATE TRIGGER spy AFTER INSERT ON local BEGIN DELETE FROM local; END")
    connection = connect(str(path), READ_WRITE)
    connection.execute("INSERT INTO local(key, value) VALUES ('a', 'b')")
    assert connection.execute("SELECT count(*) FROM local WHERE key = 'replica'").fetchall() == [(1,)]
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = ''",
        "DELETE FROM word_data",
        "CREATE TEMP VIEW v AS SELECT load_extension('x'); SELECT * FROM v",
    ],
)
def test_a_connection_of_ours_refuses_what_changes_the_structure_or_trusts_the_schema(
    path: Path, statement: str
) -> None:
    connection = connect(str(path), READ_WRITE)
    with pytest.raises(apsw.Error):
        connection.execute(statement).fetchall()
    assert connection.pragma("trusted_schema") == 0
    assert connection.pragma("cell_size_check") == 1
    connection.close()


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_a_place_that_holds_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/null") if kind == "device" else tmp_path / "ledger.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(NotALedger, match="not a regular file"):
        SqliteStore(path, read_only=True)


# --- what is compared, and what is not --------------------------------------------------------------------------


def test_statistics_and_blanks_do_not_matter(path: Path) -> None:
    change(path, "ANALYZE")
    change(path, FORGED.format("UPDATE sqlite_schema SET sql = sql || ' -- made by hand' WHERE name = 'turns'"))
    with weft.open(path) as ledger:
        assert list(ledger.verify()) == []


def test_tables_of_the_index_of_words_may_be_spelled_by_another_version_of_the_engine(path: Path) -> None:
    sql = "UPDATE sqlite_schema SET sql = replace(sql, 'id INTEGER PRIMARY KEY', 'id INTEGER  PRIMARY KEY NOT NULL')"
    change(path, FORGED.format(sql + " WHERE name = 'word_data'"))
    with weft.open(path) as ledger:
        assert list(ledger.verify()) == []


def test_a_normal_form_keeps_what_is_quoted() -> None:
    assert normal_form("CREATE  TABLE a ( b, -- it's\n c /* , */ TEXT)") == "CREATE TABLE a(b,c TEXT)"
    assert normal_form("SELECT 'a  , b', \"c  d\" , x") == "SELECT 'a  , b',\"c  d\",x"
    assert normal_form("SELECT 'a,b'") != normal_form("SELECT 'a , b'")


@pytest.mark.parametrize("number", sorted(OBJECT_DIGESTS))
def test_the_known_digests_are_those_of_real_ledgers(number: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(gzip.decompress((FIXTURES / f"schema-{number:04}" / "ledger.db.gz").read_bytes()))
    connection = apsw.Connection(f"{path.as_uri()}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    assert digest_of(connection) == OBJECT_DIGESTS[number]
    connection.close()


def test_the_present_schema_has_a_known_digest(path: Path) -> None:
    """Else every opening would build the schema anew to compare it."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    assert digest_of(connection) == OBJECT_DIGESTS[shipped_schema().number]
    connection.close()


def test_a_pack_that_states_a_huge_size_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(256 * 1024 * 1024))
    assert len(bomb) < 100_000
    with pytest.raises(zstandard.ZstdError, match="states more than"):
        unpacked(bomb)
