"""Opening and keeping a ledger file: what is refused, with which word, and what stays untouched."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import apsw
import pytest

from weft.kernel.errors import (
    Damaged,
    LedgerMissing,
    NotALedger,
    ReadOnlyLedger,
    StoreError,
    StoreFailed,
    WeakDurability,
)
from weft.store.sql_store import LARGE_LAG
from weft.store.sqlite import MemoryStore, SqliteStore
from weft.store.sqlite.connection import make_durable
from weft.store.testing import append, ask, assert_sound, feed, lines_of, put

FORKED = """
import os, sys
from weft.store.sqlite import SqliteStore
from weft.store.testing import append, assert_sound, feed, lines_of
from weft.kernel.errors import Unsupported
store = SqliteStore(sys.argv[1])
append(store, "parent")
if os.fork() == 0:
    refused = 0
    opening = (lambda: SqliteStore(sys.argv[1]), lambda: SqliteStore(sys.argv[1], read_only=True))
    for use in (lambda: append(store, "child"), lambda: feed(store), *opening):
        try:
            use()
        except Unsupported:
            refused += 1
    store.close()
    from weft.store import private_files
    device = os.stat(sys.argv[1]).st_dev
    private_files._inherited.update((device, n) for n in range(2**20))  # as if numbers were used again
    another = SqliteStore(sys.argv[1] + "-of-the-child")
    append(another, "child")
    another.close()
    os._exit(0 if refused == 4 else 1)
status = os.wait()[1]
append(store, "parent again")
store.close()
if os.fork() == 0:
    again = SqliteStore(sys.argv[1])
    append(again, "child of one that has closed it")
    again.close()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(status) or os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_ledger_that_is_not_there_is_made_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerMissing):
        SqliteStore(path, create=False)
    with pytest.raises(LedgerMissing):
        SqliteStore(path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    SqliteStore(path).close()
    SqliteStore(path, create=False).close()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder"):
        SqliteStore(tmp_path / "nowhere" / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "folder.db")


def test_an_empty_file_becomes_a_ledger_but_holds_none_yet(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(LedgerMissing):
        SqliteStore(path, read_only=True)
    store = SqliteStore(path)
    assert append(store, "a") == 1
    store.close()


def test_a_refused_opening_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not a database" * 100)
    for _ in range(5):
        with pytest.raises(NotALedger):
            SqliteStore(path)
    assert open_files(tmp_path) == set()
    with path.open():
        assert open_files(tmp_path) == {str(path)}


def test_nothing_is_made_beside_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    notes, table = tmp_path / "notes.txt", tmp_path / "table.db"
    notes.write_text("these are notes, not a database" * 100)
    foreign = apsw.Connection(str(table))
    foreign.execute("CREATE TABLE books (title TEXT)")
    foreign.close()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = {path: path.read_bytes() for path in (notes, table)}
    for path in (notes, table, pipe):
        with pytest.raises(NotALedger) as refused:
            SqliteStore(path)
        assert refused.value.hint == "name a file that does not exist yet, or another ledger"
    assert set(tmp_path.iterdir()) == {notes, table, pipe}
    assert {path: path.read_bytes() for path in before} == before


def open_files(folder: Path) -> set[str]:
    """Those of the folder that this process holds open. Threads of other tests may open theirs meanwhile."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not tell which files are open")
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(descriptor))
    return {name for name in held if name.startswith(f"{folder.resolve()}/")}


def test_after_a_rush_of_readers_only_a_few_connections_stay_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    append(store, "a")
    with ExitStack() as readers:
        for _ in range(50):
            readers.enter_context(store.read())
        assert connections(store.path) > 50
    assert connections(store.path) < 12
    assert len(feed(store)) == 1
    store.close()
    assert connections(store.path) == 0


def connections(path: str) -> int:
    return sum(connection.filename == path for connection in apsw.connections())


def test_a_closed_ledger_is_one_file_that_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    append(store, "a", 3)
    store.close()
    assert not Path(f"{path}-wal").exists()
    path.rename(tmp_path / "moved.db")
    moved = SqliteStore(tmp_path / "moved.db")
    assert len(feed(moved)) == 3
    moved.close()


def test_every_connection_syncs_every_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    settings = store.write(
        lambda txn: [txn.sql.fetch_row("PRAGMA journal_mode"), txn.sql.fetch_row("PRAGMA synchronous")]
    )
    assert settings == [("wal",), (2,)]
    store.close()


def test_a_database_that_would_not_keep_the_promise_is_refused() -> None:
    with pytest.raises(WeakDurability) as refused:
        make_durable(apsw.Connection(":memory:"))
    assert (refused.value.setting, refused.value.found) == ("journal_mode", "memory")
    assert refused.value.hint


def test_a_reader_cannot_write_even_by_sql(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    append(store, "a")
    with pytest.raises(ReadOnlyLedger), store.read() as txn:
        txn.sql.run("DELETE FROM log")
    assert len(feed(store)) == 1
    store.close()


def test_a_plain_shell_may_read_while_the_ledger_is_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    shell = apsw.Connection(store.path, apsw.SQLITE_OPEN_READONLY)
    for k in range(5):
        append(store, f"{k}")
        assert shell.execute("SELECT count(*) FROM log").fetchall() == [(k + 1,)]
    shell.close()
    store.close()


def test_a_ledger_is_not_used_across_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    assert subprocess.run([sys.executable, "-c", FORKED, str(path)], check=False).returncode == 0
    store = SqliteStore(path)
    assert len(feed(store)) == 3
    store.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StoreFailed, match="Permission"):
        SqliteStore(tmp_path / "locked" / "ledger.db")


def test_a_log_whose_end_makes_no_sense_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    append(store, "kept")
    store.put_stream([b"a content"], 0)
    store.close()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE content SET ref = 'no bytes'")
    connection.close()
    store = SqliteStore(path)
    with pytest.raises(Damaged):
        append(store, "next")
    store.close()


def test_a_log_that_has_lost_its_numbers_is_damaged(tmp_path: Path) -> None:
    """One letter of the schema, and the rows are no longer found by them."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    append(store, "kept")
    store.close()
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'INTEGER PRIMARY', 'INTEGEZ PRIMARY') WHERE name = 'log'"
    )
    connection.close()
    with pytest.raises(Damaged):
        SqliteStore(path)


def test_what_is_left_in_the_log_cannot_be_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "origin.db")
    append(store, "kept")
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{store.path}{suffix}", f"{tmp_path}/ledger.db{suffix}")
    store.close()
    monkeypatch.setattr("weft.store.sqlite.store.os.access", lambda path, mode: False)
    with pytest.raises(StoreFailed) as refused:
        SqliteStore(tmp_path / "ledger.db", read_only=True)
    assert "copy both files" in refused.value.hint


def test_what_a_backup_left_aside_when_it_was_cut_short_is_replaced(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    append(store, "a")
    (tmp_path / "copy.db.partial").write_text("half of a backup")
    seen = []
    store.backup(tmp_path / "copy.db", lambda done, of: seen.append((done, of)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert not (tmp_path / "copy.db.partial").exists()
    copy = SqliteStore(tmp_path / "copy.db")
    assert feed(copy) == feed(store)
    assert copy.replica != store.replica
    copy.close()
    store.close()


def test_stores_in_memory_know_nothing_of_each_other() -> None:
    one, two = MemoryStore(), MemoryStore()
    append(one, "a")
    assert feed(two) == []
    assert one.replica != two.replica
    one.close()
    two.close()


@pytest.mark.parametrize("kind", [SqliteStore, MemoryStore])
def test_a_writer_that_failed_is_discarded_before_anybody_else_can_have_it(
    kind: type[SqliteStore] | type[MemoryStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "l.db") if kind is SqliteStore else MemoryStore()
    discard, free = store._discard_writer, list[bool]()

    def seen() -> None:
        with ThreadPoolExecutor(1) as pool:
            free.append(pool.submit(store._alone.acquire, blocking=False).result())
        discard()

    def fail(*_: object) -> None:
        raise apsw.IOError("the disk is gone")

    monkeypatch.setattr(store, "_discard_writer", seen)
    monkeypatch.setattr(store, "_run_all", fail)
    with pytest.raises(StoreError, match="the disk is gone"):
        store.write(lambda txn: None)
    assert free == [False]
    monkeypatch.undo()
    append(store, "and goes on")
    assert_sound(store)
    store.close()


def test_closing_while_others_write_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")

    def write(k: int) -> list[bytes]:
        kept: list[bytes] = []
        while True:
            name = f"{k}-{len(kept)}"
            try:
                append(store, name)
            except StoreError:
                return kept
            kept += lines_of(name)

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, k) for k in range(4)]
        assert store.changes(40, 60.0)
        store.close()
        acknowledged = [line for future in writing for line in future.result()]
    again = SqliteStore(tmp_path / "ledger.db")
    assert sorted(line for _, line in feed(again)) == sorted(acknowledged)
    assert_sound(again)
    again.close()


def test_a_ledger_in_a_folder_that_nobody_can_write_to_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only disk, say: the files that SQLite's readers and writers share cannot be made there."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    append(store, "kept")
    known = feed(store)
    store.close()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("weft.store.sqlite.store.os.access", lambda path, mode: False)
    store = SqliteStore(path, read_only=True)
    assert feed(store) == known
    assert sorted(tmp_path.iterdir()) == before
    store.close()


def test_lookup_views_that_lack_a_few_facts_are_left_and_those_that_lack_many_are_filled(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "ledger.db")) as store:
        store.write(lambda txn: [txn.facts.put(f"{i}".encode(), 1) for i in range(LARGE_LAG)])
        store.catch_up_if_far_behind()
        assert ask(store, lambda facts: facts.watermark("lookup_content")) == 0
        put(store, b"one more")
        store.catch_up_if_far_behind()
        assert ask(store, lambda facts: facts.watermark("lookup_content")) == LARGE_LAG + 1
