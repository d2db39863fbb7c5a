"""A store that is closed while somebody is at it, and locks and connections where something fails or is interrupted."""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import apsw
import psycopg
import pytest

from tests.postgres import shared_server
from tests.store.test_buffer import PROGRAM, together
from weft.kernel.clock import SystemClock
from weft.kernel.errors import NotApplicable, ReadOnlyLedger, StoreError, StoreFailed
from weft.store.fact_log import RecentContents
from weft.store.port import Store, WriteTxn
from weft.store.postgres.connection import parse_address
from weft.store.postgres.store import PostgresStore
from weft.store.sql_store import FILL_AGAIN_SECONDS
from weft.store.sqlite import connection
from weft.store.sqlite.store import MemoryStore, SqliteStore

TREE = 7


@pytest.fixture(params=["disk", "memory", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    opened: Any
    if request.param == "server":
        opened = PostgresStore(shared_server().address())
    else:
        opened = SqliteStore(tmp_path / "ledger.db") if request.param == "disk" else MemoryStore()
    yield opened
    opened.close()


def put(store: Store, data: bytes) -> None:
    store.write(lambda txn: txn.facts.put(data, TREE))


def outcome_of(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:
        return error


class Beside(threading.Thread):
    """Work in a thread of its own, and what it came to."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self._outcome = work, None
        self.start()

    def run(self) -> None:
        self._outcome = outcome_of(self._work)

    def outcome(self) -> Any:
        self.join()
        return self._outcome


def test_a_write_that_comes_while_the_store_is_closed_is_refused(store: Any) -> None:
    is_checked, is_closed, submit = threading.Event(), threading.Event(), store._jobs.submit

    def submit_late(*args: Any) -> Any:
        is_checked.set()
        is_closed.wait()
        return submit(*args)

    store._jobs.submit = submit_late
    writer = Beside(lambda: put(store, b"late"))
    is_checked.wait()
    store.close()
    is_closed.set()
    assert isinstance(writer.outcome(), StoreError)


def test_closing_waits_for_a_rewriting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    is_begun, may_go_on, ensure = threading.Event(), threading.Event(), store._ensure_in_place

    def ensure_slowly() -> None:
        is_begun.set()
        may_go_on.wait()
        ensure()

    monkeypatch.setattr(store, "_ensure_in_place", ensure_slowly)
    rewriting = Beside(store.rewrite)
    is_begun.wait()
    closing = Beside(store.close)
    while not store._closed:
        pass
    may_go_on.set()
    assert rewriting.outcome() is True
    assert closing.outcome() is None
    with pytest.raises(StoreError, match="closed"):
        store.empty_log()
    assert store._file_lock is not None
    assert store._file_lock._fd < 0


def test_a_store_that_is_read_only_neither_rewrites_nor_empties_its_log(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "ledger.db").close()
    store = SqliteStore(tmp_path / "ledger.db", read_only=True)
    for verb in (store.rewrite, store.empty_log):
        with pytest.raises(ReadOnlyLedger):
            verb()
    store.close()


def test_an_interrupt_as_the_lock_is_taken_lets_it_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, flock = SqliteStore(tmp_path / "ledger.db"), fcntl.flock

    def interrupted(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if operation == fcntl.LOCK_EX:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            put(store, b"interrupted")
    with (tmp_path / "ledger.db-lock").open("rb") as another:
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    put(store, b"later")
    store.close()


def test_a_lock_that_the_file_system_refuses_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(descriptor: int, operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks available")

    store = SqliteStore(tmp_path / "ledger.db")
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refused)
        with pytest.raises(StoreFailed, match="cannot be locked"):
            put(store, b"refused")
    put(store, b"later")
    store.close()


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT"])
def test_a_reader_whose_transaction_fails_leaves_no_snapshot_open(
    tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    reader, run = store._reader(), connection.SqliteSql.run
    store._pool[:] = [reader]

    def fail(sql: connection.SqliteSql, text: str, values: Any = ()) -> None:
        if text == statement:
            raise apsw.IOError("no reading")
        run(sql, text, values)

    with monkeypatch.context() as patched:
        patched.setattr(connection.SqliteSql, "run", fail)
        with pytest.raises(StoreFailed), store.read() as txn:
            txn.facts.tip()
    kept = [sql for sql in store._pool if sql is reader]
    assert not any(sql.connection.in_transaction for sql in kept)
    if not kept:
        with pytest.raises(apsw.ConnectionClosedError):
            reader.connection.in_transaction  # noqa: B018
    store.close()


def test_what_was_streamed_is_read_by_the_same_work(store: Store) -> None:
    def work(txn: WriteTxn) -> bytes:
        return txn.facts.content(txn.facts.put_stream(iter([b"one ", b"two"]), TREE).n)

    assert store.write(work) == b"one two"


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    """SQLite then gives up the whole transaction, with the savepoint of the work."""
    store: Any = SqliteStore(tmp_path / "ledger.db")
    pages = store._write_sql.connection.pragma("page_count")
    store._write_sql.connection.pragma("max_page_count", pages + 8)
    with pytest.raises(StoreFailed, match="the disk is full"):
        store.write(lambda txn: txn.facts.put_stream(iter([b"x" * 1_000_000]), TREE))
    put(store, b"small")
    store.close()


def test_a_store_is_not_rewritten_inside_a_write(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.db")
    for verb in (store.rewrite, store.empty_log):
        with pytest.raises(NotApplicable):
            store.write(lambda txn, verb=verb: verb())  # type: ignore[misc]
    put(store, b"later")
    store.close()


class StandingClock(SystemClock):
    """Time stands, but for what a test adds."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed


def test_lookup_views_are_filled_again_a_while_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecentContents, "LIMIT", 4)
    clock = StandingClock()
    store, tries = MemoryStore(clock=clock), list[int]()

    def fail() -> NoReturn:
        tries.append(1)
        raise StoreFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "catch_up", fail)
        for k in range(8):
            put(store, b"%d" % k)
        assert len(tries) == 1
    put(store, b"too early")
    assert len(store._recent.by_key) == 9
    clock.passed = FILL_AGAIN_SECONDS
    put(store, b"again")
    assert not store._recent.is_long
    store.close()


# --- a server -------------------------------------------------------------------------------------------------------


def test_a_claim_that_is_given_back_after_closing_connects_nowhere() -> None:
    with shared_server().ledger() as address:
        store = PostgresStore(address)
        assert store.claim("name")
        store.close()
        store.give_back("name")
        assert store._side._sql is None


def test_waiting_for_changes_ends_also_where_every_listener_dies() -> None:
    with shared_server().ledger() as address:
        store = PostgresStore(address)
        wait = store._listeners.wait

        def die(sql: Any, seconds: float) -> bool:
            with psycopg.connect(parse_address(address).conninfo, autocommit=True) as ending:
                ending.execute("SELECT pg_terminate_backend(%s, 60000)", (sql.connection.info.backend_pid,))
            return wait(sql, seconds)

        store._listeners.wait = die  # type: ignore[method-assign]
        assert not store.changes(10**9, 0.3)
        store.close()


def test_nobody_is_called_for_those_who_have_stopped_waiting() -> None:
    with shared_server().ledger() as address:
        store, locks = (
            PostgresStore(address),
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s",
        )
        assert not store.changes(10**9, 0.0001)
        assert len(store._listeners._pool) == 1
        with psycopg.connect(parse_address(address).conninfo, autocommit=True) as asking:
            key = store.address.listening & 0xFFFFFFFF
            assert asking.execute(locks, (key,)).fetchone() == (0,)
        assert not store.changes(10**9, 0.0001)
        store.close()


def test_a_listener_that_is_given_back_while_the_store_is_closed_stays_open_nowhere() -> None:
    with shared_server().ledger() as address:
        store = PostgresStore(address)
        listener = store._listeners.borrow()
        script = listener.script

        def close_meanwhile(text: str) -> Any:
            store.close()
            return script(text)

        listener.script = close_meanwhile  # type: ignore[method-assign]
        store._listeners.give_back(listener)
        assert listener.broken
        assert store._listeners._pool == []


def test_a_row_without_a_form_is_found_also_where_rows_are_sent_early() -> None:
    def add(name: str) -> Callable[[WriteTxn], Any]:
        return lambda txn: txn.sql.add(PROGRAM, [(name, "agent", name)])

    def add_much(txn: WriteTxn) -> None:
        for k in range(5):
            txn.facts.put(b"%d" % k * 300_000, TREE)

    with shared_server().ledger() as address:
        store = PostgresStore(address)
        odd, sound, large = together(store, [add("\0"), add("sound"), add_much])
        assert isinstance(odd, psycopg.DataError | StoreError)
        assert (sound, large) == (None, None)
        with store.read() as txn:
            assert txn.sql.fetch_rows("SELECT name FROM program") == [("sound",)]
        store.close()
