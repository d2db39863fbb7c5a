"""What PostgreSQL alone brings with it: addresses, schemas, settings, names, and who else is in the database."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import weft
from tests.postgres import Server, new_name, shared_server
from weft.kernel.clock import FixedClock
from weft.kernel.errors import (
    Damaged,
    IdCollision,
    InvalidInput,
    LedgerMissing,
    LedgerTooNew,
    NotALedger,
    NotFound,
    StoreError,
    StoreFailed,
    Unsupported,
)
from weft.store.fact_log import FactReader
from weft.store.port import Store, WriteTxn
from weft.store.postgres import PostgresStore
from weft.store.postgres.connection import PostgresSql, parse_address, translate
from weft.store.postgres.migrations import in_postgres, shipped_schema, spelled_out
from weft.store.sql import Question, Row
from weft.store.sqlite.migrations import Migration, Schema
from weft.store.testing import append, ask, feed

SHIPPED = shipped_schema()


@pytest.fixture
def server() -> Server:
    return shared_server()


@pytest.fixture
def address(server: Server) -> str:
    return server.address()


def execute(address: str, *statements: str) -> list[tuple[object, ...]]:
    """Behind the ledger's back."""
    named = parse_address(address)
    with psycopg.connect(named.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {named.quoted}".encode())
        for statement in statements[:-1]:
            connection.execute(statement.encode())
        cursor = connection.execute(statements[-1].encode())
        return cursor.fetchall() if cursor.description else []


# --- addresses ------------------------------------------------------------------------------------------------------


def test_an_address_names_a_database_and_a_ledger_in_it() -> None:
    found = parse_address("postgres://ann:secret@db.example:5433/work?ledger=team&sslmode=require")
    assert found.conninfo == "postgresql://ann:secret@db.example:5433/work?sslmode=require"
    assert found.ledger == "team"
    assert found.shown == "postgresql://ann@db.example:5433/work?ledger=team"
    assert parse_address("postgresql:///work").ledger == "weft"
    assert (
        parse_address("postgresql:///work?password=secret&host=/run").shown
        == "postgresql:///work?host=/run&ledger=weft"
    )


@pytest.mark.parametrize("name", ["", "1st", "a b", "a;b", 'a"b', "pg_mine", "information_schema", "é", "x" * 64])
def test_a_name_that_would_have_to_be_escaped_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a ledger"):
        parse_address(f"postgresql:///work?ledger={name}")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql:///work?ledger=a&ledger=b",
        "postgresql://[::1/work",
        "postgresql:///work?nonsense",
        "postgresql://ann:sec ret@host/work",
        "postgresql://ann:sec%ret@host/work",
        "postgresql://ann:sec@ret@host/work",
        "postgresql://ann:sec/ret@host/work",
        "postgresql://ann:12/ret@host/work",
        "postgresql://ann:sec?ret@host/work?ledger=a",
        "postgresql://ann:12?ret@host/work?ledger=a",
        "postgresql://ann:sec#ret@host/work",
        "postgresql:///a\n",
    ],
)
def test_an_address_that_is_none_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_address(text)
    assert not [piece for piece in ("sec", "ret", "nonsense") if piece in str(refused.value)]


def test_several_hosts_and_ports_make_an_address() -> None:
    for text in ("postgresql://ann@one:1,two:2/work", "postgresql://[::1]:5433/work", "postgresql://ann:a%40b@one/w"):
        assert parse_address(text).conninfo == text


def test_an_option_that_libpq_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="colour"):
        weft.open("postgresql:///work?colour=red")


def test_a_password_is_told_to_nobody(server: Server) -> None:
    with pytest.raises(StoreFailed) as refused:
        weft.open(f"postgresql://nobody:hunter2@/postgres?host={server.folder}")
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"
    with weft.open(server.address().replace("weft@", "weft:hunter2@")) as ledger:
        assert "hunter2" not in ledger.path


def test_without_psycopg_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['psycopg'] = None; import weft; weft.open('postgresql:///work')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "Unsupported: a ledger in PostgreSQL needs psycopg" in done.stderr
    script = "import weft, sys; weft.open(':memory:'); assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_another_kind_of_address_has_no_backend() -> None:
    with pytest.raises(Unsupported, match="mysql"):
        weft.open("mysql://work")


# --- statements -----------------------------------------------------------------------------------------------------


def test_values_are_numbered_and_quoted_marks_are_left_alone() -> None:
    assert translate("SELECT '?' || ?, \"a?b\" FROM t WHERE x = ? AND y LIKE '%'") == (
        b"SELECT '?' || $1, \"a?b\" FROM t WHERE x = $2 AND y LIKE '%'"
    )
    assert translate("SELECT CAST(? AS BLOB)") == b"SELECT CAST($1 AS BYTEA)"


def test_types_are_called_by_postgresql_s_names() -> None:
    step = "CREATE TABLE t (n INTEGER PRIMARY KEY, -- TEXT\n b BLOB, t TEXT) WITHOUT ROWID;"
    assert in_postgres(step).split() == 'CREATE TABLE t (n BIGINT PRIMARY KEY, b BYTEA, t TEXT COLLATE "C") ;'.split()


def test_short_words_of_the_surface_are_spelled_out() -> None:
    assert spelled_out("quoted(text_of((j ->> 'x')::bigint))") == (
        "quoted((SELECT text FROM content_text WHERE n = (j ->> 'x')::bigint))"
    )
    assert "_of(" not in SHIPPED.surface
    with pytest.raises(AssertionError, match="left open"):
        spelled_out("text_of(x")


def test_values_come_back_as_sqlite_gives_them(address: str) -> None:
    with weft.open(address) as ledger, ledger._store.read() as txn:
        row = txn.sql.fetch_row("SELECT CAST(? AS BIGINT), CAST(? AS BLOB), CAST(? AS TEXT), 1 = 1, ?, sum(n) FROM"
                          " (VALUES (1), (2)) AS v(n)", (2**53, b"\0\xff", "é", None))  # fmt: skip
        assert row == (2**53, b"\0\xff", "é", 1, None, 3)
        assert [type(value) for value in row[:4]] == [int, bytes, str, int]
        assert type(row[5]) is int


def test_a_name_with_a_nul_is_nobody_s(address: str) -> None:
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="hello")
        for name in ("ma\0in", "main\0", "\0"):
            for ask in (ledger.session, ledger.resolve, ledger.turn):
                with pytest.raises(NotFound):
                    ask(name)
        with pytest.raises(InvalidInput):
            ledger.create_session("ma\0in")
        with pytest.raises(StoreFailed):
            ledger._store.write(lambda txn: txn.sql.run("INSERT INTO local(key, value) VALUES (?, '')", ("a\0b",)))


def test_many_rows_are_read_a_few_at_a_time_and_others_in_between(address: str) -> None:
    with weft.open(address) as ledger, ledger._store.read() as txn:
        rows = txn.sql.iterate_rows("SELECT n, ? FROM generate_series(1, 5000) n", ("x",))
        found = []
        for n, _ in rows:
            found.append(n)
            assert txn.sql.fetch_row("SELECT 1") == (1,)
        assert found == list(range(1, 5001))
        left = txn.sql.iterate_rows("SELECT 1 FROM generate_series(1, 5000)")
        assert next(left) == (1,)
        left.close()  # type: ignore[attr-defined]
        assert txn.sql.fetch_rows("SELECT name FROM pg_cursors WHERE name <> ''") == []


def test_a_failed_question_of_one_caller_harms_none_that_shares_its_commit(address: str) -> None:
    """The server gives up the whole transaction; the others go again."""
    store = PostgresStore(address)

    def bad(txn: WriteTxn) -> None:
        txn.sql.fetch_rows("SELECT 1 / 0")

    def write(k: int) -> None:
        for i in range(10):
            if k % 2:
                with pytest.raises(StoreFailed, match="division by zero"):
                    store.write(bad)
            else:
                append(store, f"w{k}-{i}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(feed(store)) == 40
    store.close()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("INSERT INTO program(id, kind, name) VALUES ('P', 'agent', 'other')", IdCollision),
        ("INSERT INTO program(id, kind, name) VALUES ('Q', 'agent', 'mine')", Damaged),
        ("INSERT INTO segment(n, root, base) VALUES (1, 1, 1)", Damaged),
        ("INSERT INTO segment(n, root) VALUES (2, 1)", Damaged),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_by_the_rule(address: str, statement: str, error: type[Exception]) -> None:
    store = PostgresStore(address)

    def prepare(txn: WriteTxn) -> None:
        txn.sql.run("INSERT INTO program(id, kind, name) VALUES ('P', 'agent', 'mine')")
        txn.sql.run("INSERT INTO segment(n, root, base) VALUES (1, 1, 1)")

    store.write(prepare)
    with pytest.raises(error):
        store.write(lambda txn: txn.sql.run(statement))
    store.close()


def test_ids_that_collide_are_minted_anew(address: str) -> None:
    def constant(count: int) -> bytes:
        return b"\x07" * count

    with (
        weft.open(address, clock=FixedClock(1), random_bytes=constant) as one,
        weft.open(address, clock=FixedClock(1), random_bytes=constant) as two,
    ):
        made = [ledger.record_turn(session=f"s{k}", query=f"{k}").id for k in range(3) for ledger in (one, two)]
        assert len(set(made)) == len(made)
        assert list(one.verify()) == []


# --- ledgers in a database ------------------------------------------------------------------------------------------


def test_the_first_write_of_an_opener_reads_no_content_that_the_lookup_view_has(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresStore(address)) as store:
        store.write(lambda txn: [txn.facts.put(b"content %d" % k, 1) for k in range(300)])
        append(store, "before")
        store.catch_up()
    sizes: list[int] = []
    ask_together = PostgresSql.ask_together

    def counted(sql: PostgresSql, questions: Sequence[Question]) -> list[list[Row]]:
        answers = ask_together(sql, questions)
        sizes.append(sum(map(len, answers)))
        return answers

    monkeypatch.setattr(PostgresSql, "ask_together", counted)
    with closing(PostgresStore(address)) as store:
        known = store.write(lambda txn: txn.facts.put(b"content 7", 1))
        assert known.n == 8
        append(store, "after")
    assert max(sizes) < 10, "a ledger of any size would be read while the writers' lock is held"


def test_two_ledgers_of_one_database_know_nothing_of_each_other(server: Server) -> None:
    with weft.open(server.address()) as one, weft.open(server.address()) as two:
        one.record_turn(session="main", query="mine")
        assert two.sessions() == []
        assert one.replica != two.replica


def test_a_ledger_that_is_not_there_is_not_made_unless_asked_for(address: str) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(LedgerMissing):
            weft.open(address, **options)  # type: ignore[arg-type]
    name = parse_address(address).ledger
    assert execute(address, f"SELECT count(*) FROM pg_namespace WHERE nspname = '{name}'") == [(0,)]


def test_another_program_s_schema_is_refused_and_not_touched(address: str) -> None:
    named = parse_address(address)
    execute(address, f"CREATE SCHEMA {named.quoted}", f"CREATE TABLE {named.quoted}.theirs (x int)")
    for read_only in (False, True):
        with pytest.raises(NotALedger):
            weft.open(address, read_only=read_only)
    found = execute(address, f"SELECT relname FROM pg_class WHERE relnamespace = '{named.ledger}'::regnamespace")
    assert found == [("theirs",)]


def test_an_empty_schema_becomes_a_ledger(address: str) -> None:
    execute(address, f"CREATE SCHEMA {parse_address(address).quoted}")
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="hello")
        assert list(ledger.verify()) == []


def test_many_programs_that_make_a_ledger_at_once_make_one(address: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        ledgers = list(pool.map(lambda _: weft.open(address), range(6)))
    assert len({ledger.replica for ledger in ledgers}) == 1
    for ledger in ledgers:
        ledger.close()


def grown(*steps: str, number: int | None = None) -> Schema:
    """A later program's schema."""
    last = SHIPPED.number
    more = tuple(Migration((number or last + 1) + k, step) for k, step in enumerate(steps))
    return Schema((*SHIPPED.migrations, *more), SHIPPED.surface)


def test_a_later_program_takes_its_steps_once_and_an_earlier_one_is_refused(address: str) -> None:
    running = PostgresStore(address)
    append(running, "before")
    later = grown("CREATE TABLE fresh (n INTEGER); INSERT INTO fresh VALUES (1)", "INSERT INTO fresh VALUES (2)")
    with ThreadPoolExecutor(3) as pool:
        for store in pool.map(lambda _: PostgresStore(address, schema=later), range(3)):
            assert ask(store, lambda facts: facts.sql.fetch_rows("SELECT n FROM fresh ORDER BY n")) == [(1,), (2,)]
            store.close()
    with pytest.raises(LedgerTooNew):
        append(running, "after")
    for read_only in (False, True):
        with pytest.raises(LedgerTooNew):
            PostgresStore(address, read_only=read_only)
    assert len(feed(running)) == 1
    running.close()


def test_a_step_that_fails_leaves_the_older_schema(address: str) -> None:
    store = PostgresStore(address)
    append(store, "before")
    broken = grown("CREATE TABLE fresh (n INTEGER)", "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(StoreError, match="nowhere"):
        PostgresStore(address, schema=broken)
    assert execute(address, "SELECT to_regclass('fresh'), count(*) FROM sessions") == [(None, 0)]
    append(store, "after")
    assert len(feed(store)) == 2
    store.close()


def test_a_table_that_lost_all_its_rows_leaves_them_neither_in_its_indexes_nor_with_the_planner(address: str) -> None:
    store = PostgresStore(address)
    ledger = parse_address(address).ledger
    execute(
        address,
        "INSERT INTO node_tag(node, tag, tagged_at) SELECT 'node ' || i, 'canary', 1 FROM generate_series(1, 400) i",
        "ANALYZE node_tag",
        "DELETE FROM node_tag",
        "VACUUM node_tag",
    )
    left = (
        "SELECT pg_relation_size('node_tag'), pg_indexes_size('node_tag') > 8192 * count(*) FROM pg_index"
        " WHERE indrelid = 'node_tag'::regclass"
    )
    known = f"SELECT count(*) > 0 FROM pg_stats WHERE schemaname = '{ledger}' AND tablename = 'node_tag'"
    assert execute(address, left) == [(0, True)]
    assert execute(address, known) == [(True,)]
    assert store.rewrite()
    assert execute(address, left) == [(0, False)]
    assert execute(address, known) == [(False,)]
    store.close()


def test_a_table_that_never_held_a_row_is_not_rewritten(address: str) -> None:
    store = PostgresStore(address)
    append(store, "something")
    files = "SELECT pg_relation_filenode('node_tag'), pg_relation_filenode('log')"
    ((untouched, before),) = execute(address, files)
    assert store.rewrite()
    ((same, after),) = execute(address, files)
    assert same == untouched
    assert after != before
    store.close()


@pytest.mark.prove
def test_a_database_of_another_encoding_is_refused(server: Server, address: str) -> None:
    name = new_name()
    execute(address, f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(Unsupported, match="SQL_ASCII"):
        weft.open(f"postgresql://weft@/{name}?host={server.folder}")
    execute(address, f"DROP DATABASE {name}")


def test_text_is_ordered_by_its_bytes_whatever_the_database_s_language_is(address: str) -> None:
    named = parse_address(address)
    weft.open(address).close()
    found = execute(
        address,
        "SELECT DISTINCT collation_name FROM information_schema.columns JOIN information_schema.tables"
        f" USING (table_schema, table_name) WHERE table_schema = '{named.ledger}' AND data_type = 'text'"
        " AND table_type = 'BASE TABLE'",
    )
    assert found == [("C",)]


def test_a_role_that_would_not_wait_for_the_disk_waits_here(server: Server, address: str) -> None:
    role = f"hasty_{new_name()}"
    execute(address, f"CREATE ROLE {role} SUPERUSER LOGIN", f"ALTER ROLE {role} SET synchronous_commit TO off")
    with weft.open(address.replace("weft@", f"{role}@")) as ledger:
        found = ledger._store.write(lambda txn: txn.sql.fetch_row("SHOW synchronous_commit"))
        assert found == ("on",)
    execute(address, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_a_reader_needs_no_right_to_write(server: Server, address: str) -> None:
    role, named = f"reader_{new_name()}", parse_address(address)
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="hello", response="yes")
    execute(address, f"CREATE ROLE {role} LOGIN")
    reading = address.replace("weft@", f"{role}@")
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreFailed, match="denied for schema"):
            weft.open(reading, **options)  # type: ignore[arg-type]
    assert [found.what for found in weft.examine(reading) if "not whole" in found.what] == []
    execute(
        address,
        f"GRANT USAGE ON SCHEMA {named.quoted} TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {named.quoted} TO {role}",
    )
    with weft.open(reading, read_only=True) as ledger:
        assert [message.text for message in ledger.thread("main").messages] == ["hello", "yes"]
        assert list(ledger.verify()) == []
    with pytest.raises(StoreFailed, match="denied"):
        weft.open(reading)
    execute(address, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_copy_that_pg_dump_made_goes_by_a_name_of_its_own(server: Server, address: str) -> None:
    named, moved = parse_address(address), new_name()
    with weft.open(address) as ledger:
        receipt = ledger.record_turn(session="main", query="hello").receipt
    reach = ("-h", str(server.folder), "-U", "weft")
    dumped = server.run("pg_dump", *reach, "-n", named.ledger, "postgres")
    execute(address, f"ALTER SCHEMA {named.quoted} RENAME TO {moved}")
    server.run("psql", "-Xq", *reach, "-v", "ON_ERROR_STOP=1", "postgres", given=dumped)
    with weft.open(address) as copy:
        assert copy.replica != ledger.replica
        assert list(copy.verify(receipt=receipt)) == []
        copy.record_turn(session="main", query="goes on")
        assert list(copy.verify()) == []
    with weft.open(server.address(moved)) as again:
        assert again.replica == ledger.replica


def test_indexes_are_held_against_their_tables_where_amcheck_is_installed(server: Server, address: str) -> None:
    store = PostgresStore(address)
    append(store, "a")
    execute(address, "CREATE EXTENSION IF NOT EXISTS amcheck SCHEMA public")
    assert store.check_integrity() == []
    execute(
        address,
        "SET allow_system_table_mods TO on",
        "UPDATE pg_class SET reltuples = 0, relfilenode = (SELECT relfilenode FROM pg_class WHERE oid ="
        " 'watermark_pkey'::regclass) WHERE oid = 'log_pkey'::regclass",
    )
    assert any(found.startswith("log_pkey") for found in store.check_integrity())
    store.close()


def test_what_was_rolled_back_is_noticed_by_a_receipt(address: str) -> None:
    """There is no head file beside a server's database."""
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="kept")
        lost = ledger.record_turn(session="main", query="lost").receipt
    execute(address, f"DELETE FROM log WHERE n = {lost.n}")
    with weft.open(address) as ledger:
        assert [problem.what for problem in ledger.verify(views=False, receipt=lost)] == ["receipt"]


def test_a_listener_is_told_by_another_store(address: str) -> None:
    one, two = PostgresStore(address), PostgresStore(address)
    with ThreadPoolExecutor(1) as pool:
        for k in range(5):
            waiting = pool.submit(two.changes, k, 60.0)
            append(one, f"a{k}")
            assert waiting.result() is True
    assert two.changes(5, 0.05) is False
    one.close()
    two.close()


def test_nothing_stays_behind_in_the_server_when_a_store_is_closed(server: Server, address: str) -> None:
    store = PostgresStore(address.replace("?", "?application_name=watched&"))
    append(store, "a")
    store.changes(1, 0.01)
    ask(store, FactReader.tip)
    store.close()
    gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'watched'"
    while execute(address, gone) != [(0,)]:
        pass


def test_a_backup_that_fails_leaves_no_file(address: str, tmp_path: Path) -> None:
    store: Store = PostgresStore(address)
    append(store, "a")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.backup(tmp_path / "copy.db", interrupt)
    assert not (tmp_path / "copy.db").exists()
    assert append(store, "b") == 2
    store.close()
