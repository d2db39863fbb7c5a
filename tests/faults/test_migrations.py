"""Schema steps go forward only, behind a backup, whatever interrupts them; what a program does not know it leaves."""

import resource
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import assert_sound, copy_ledger
from tests.faults.processes import KILLED, Process, Say, assert_swept, barrier, count_steps, run, run_well, was_killed
from tests.faults.schemas import die_while_migrating, leave_newer_unclosed, newer_schema, open_newer
from tests.sizes import Record, points
from weft.kernel.errors import LedgerTooNew, NotALedger, StoreFailed
from weft.store.fact_log import FactReader
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.migrations import shipped_schema
from weft.store.testing import append, ask, feed

SHIPPED = shipped_schema().number
ROOMS = (0, 4_096, 50_000, 240_000)  # bytes that a file may have: too few for the backup, or for the log


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of today's program, which was killed."""
    path = tmp_path_factory.mktemp("base") / "ledger.db"
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    return path


@pytest.fixture
def path(tmp_path: Path, base: Path) -> Path:
    return copy_ledger(base, tmp_path / "ledger.db")


def backup_of(path: Path, number: int = SHIPPED) -> Path:
    return Path(f"{path}.schema-{number}.backup")


def hashes(folder: Path) -> dict[str, str]:
    """What lies there, byte for byte; SQLite's shared memory, our lock and an empty log hold no data."""
    files = [file for file in folder.iterdir() if not file.name.endswith("-shm") and file.stat().st_size]
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def assert_upgraded(path: Path, facts: list[tuple[int, bytes]]) -> None:
    """Every step was taken exactly once, nothing is lost, and the next append works."""
    store = SqliteStore(path, schema=newer_schema())
    with store.read() as txn:
        assert txn.sql.fetch_rows("PRAGMA user_version") == [(SHIPPED + 2,)]
        assert txn.sql.fetch_rows("SELECT text, size FROM novelty") == [("once", 4)]
        assert txn.sql.fetch_row("SELECT count(*) FROM turns") == (2,)
    assert feed(store) == facts
    assert append(store, "next") == len(facts) + 1
    store.close()


def facts_in(path: Path) -> list[tuple[int, bytes]]:
    store = SqliteStore(path)
    found = feed(store)
    store.close()
    return found


def schema_in(path: Path) -> list[tuple[object, ...]]:
    shell = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    try:
        made = shell.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        return [*made, (shell.pragma("user_version"), shell.pragma("application_id"))]
    finally:
        shell.close()


def test_a_new_ledger_has_the_schema_of_one_that_took_every_step(path: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    for each in (path, new):
        SqliteStore(each, schema=newer_schema()).close()
    assert schema_in(new) == schema_in(path)


def test_an_upgrade_makes_a_backup_first_that_today_s_program_opens(path: Path) -> None:
    before = facts_in(path)
    assert_upgraded(path, before)
    assert facts_in(backup_of(path)) == before
    assert_sound(backup_of(path))


def test_an_upgrade_in_several_goes_keeps_a_backup_of_each(path: Path) -> None:
    before = facts_in(path)
    SqliteStore(path, schema=newer_schema(1)).close()
    assert_upgraded(path, before)
    assert backup_of(path).exists()
    assert backup_of(path, SHIPPED + 1).exists()


def test_the_backup_is_of_the_moment_before_the_upgrade_even_where_an_older_one_lies(path: Path) -> None:
    with weft.open(path) as ledger:
        ledger.upkeep.backup(backup_of(path))
        ledger.record_turn(session="main", query="after the first backup")
    before = facts_in(path)
    SqliteStore(path, schema=newer_schema()).close()
    assert facts_in(backup_of(path)) == before


@pytest.mark.parametrize(
    ("torn", "at_statements"),
    [(False, True), (False, False), (True, False)],
    ids=["at statements", "between writes", "inside a write"],
)
def test_an_upgrade_killed_at_any_point_is_finished_by_the_next_open(
    tmp_path: Path, base: Path, torn: bool, at_statements: bool, record_property: Record
) -> None:
    facts, work, kills = facts_in(copy_ledger(base, tmp_path / "before.db")), die_while_migrating, 0

    def check(path: Path) -> None:
        assert_upgraded(path, facts)
        assert facts_in(backup_of(path)) == facts

    whole = copy_ledger(base, tmp_path / "whole.db")
    steps, _ = count_steps(work, str(whole), 0, torn, at_statements)
    check(whole)
    taken = points(steps, test=4)
    for k in taken:
        path = copy_ledger(base, tmp_path / f"{k}.db")
        code, _ = run(work, str(path), k + 1, torn, at_statements)
        check(path)
        kills += was_killed(code)
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")


def upgrade_without_room(say: Say, path: str) -> None:
    for room in ROOMS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            SqliteStore(path, schema=newer_schema()).close()
        except StoreFailed:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            say(facts_in(Path(path)))


def test_an_upgrade_that_finds_no_room_leaves_the_older_schema_and_is_made_once_there_is_some(path: Path) -> None:
    facts = facts_in(path)
    assert run_well(upgrade_without_room, str(path)) == [facts] * len(ROOMS)
    assert_upgraded(path, facts)


def test_two_programs_that_upgrade_at_once_both_open_and_upgrade_once(path: Path) -> None:
    facts, start = facts_in(path), barrier(4)
    openers = [Process(open_newer, str(path), start) for _ in range(4)]
    assert [opener.hear() for opener in openers] == ["open"] * 4
    assert [opener.end() for opener in openers] == [0] * 4
    assert_upgraded(path, facts)


def test_many_programs_that_make_a_ledger_at_once_make_one(tmp_path: Path) -> None:
    path, start = tmp_path / "new.db", barrier(8)
    openers = [Process(open_newer, str(path), start) for _ in range(8)]
    assert [opener.hear() for opener in openers] == ["open"] * 8
    assert [opener.end() for opener in openers] == [0] * 8
    store = SqliteStore(path, schema=newer_schema())
    with store.read() as txn:
        assert txn.sql.fetch_rows("SELECT text FROM novelty") == [("once",)]
        assert txn.sql.fetch_row("SELECT count(*) FROM local WHERE key = 'replica'") == (1,)
    store.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("closed", [True, False])
def test_an_older_program_refuses_a_newer_ledger_and_touches_nothing(path: Path, closed: bool, read_only: bool) -> None:
    if closed:
        SqliteStore(path, schema=newer_schema()).close()
    else:
        assert run(leave_newer_unclosed, str(path))[0] == KILLED
    before = hashes(path.parent)
    with pytest.raises(LedgerTooNew) as refused:
        weft.open(path, read_only=read_only)
    assert (refused.value.found, refused.value.known) == (SHIPPED + 2, SHIPPED)
    assert "upgrade" in refused.value.hint
    assert hashes(path.parent) == before


def test_a_program_that_was_running_when_the_ledger_was_upgraded_writes_no_more(path: Path) -> None:
    with weft.open(path) as fresh, weft.open(path) as older:
        older.record_turn(session="main", query="before")
        SqliteStore(path, schema=newer_schema()).close()
        facts = feed(older._store)
        for ledger in (older, fresh, older):
            with pytest.raises(LedgerTooNew) as refused:
                ledger.record_turn(session="main", query="after")
            assert (refused.value.found, refused.value.known) == (SHIPPED + 2, SHIPPED)
        assert feed(older._store) == facts
    newer = SqliteStore(path, schema=newer_schema())
    assert append(newer, "next") == len(facts) + 1
    newer.close()


def foreign_database(path: Path, journal: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode = {journal}").fetchall()
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    return connection


@pytest.mark.parametrize("read_only", [False, True])
def test_another_program_s_database_is_refused_and_not_touched(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "theirs.db"
    foreign_database(path, "DELETE").close()
    before = hashes(tmp_path)
    with pytest.raises(NotALedger):
        weft.open(path, read_only=read_only)
    assert hashes(tmp_path) == before


def test_another_program_s_unfinished_database_keeps_its_log(tmp_path: Path) -> None:
    origin = foreign_database(tmp_path / "origin.db", "WAL")
    (tmp_path / "copy").mkdir()
    path = copy_ledger(tmp_path / "origin.db", tmp_path / "copy" / "theirs.db")
    before = hashes(path.parent)
    assert "theirs.db-wal" in before
    with pytest.raises(NotALedger):
        weft.open(path)
    assert hashes(path.parent) == before
    origin.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("text", ["hello\n", "x" * 5000, "SQLite format 3"])
def test_a_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path, text: str, read_only: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    before = hashes(tmp_path)
    with pytest.raises(NotALedger):
        weft.open(path, read_only=read_only)
    assert hashes(tmp_path) == before


def test_a_step_that_fails_leaves_the_older_schema(path: Path) -> None:
    broken = newer_schema()
    last = broken.migrations[-1]
    failing = type(broken)(
        (*broken.migrations[:-1], type(last)(last.number, last.sql + "SELECT nonsense;")), broken.surface
    )
    facts = facts_in(path)
    with pytest.raises(weft.WeftError):
        SqliteStore(path, schema=failing)
    store = SqliteStore(path, schema=newer_schema(1))
    assert ask(store, FactReader.tip).n == len(facts)
    store.close()
    assert_upgraded(path, facts)
