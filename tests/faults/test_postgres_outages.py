"""A PostgreSQL server that is killed, stopped, busy or in the way."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from typing import Any

import psycopg
import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.processes import Process
from tests.faults.scenarios import Ack, ack
from tests.faults.writers import write_whatever_happens
from tests.postgres import Server, new_name, shared_server
from tests.sizes import SEED, Record, chance, sized
from weft.kernel.clock import FixedClock
from weft.kernel.errors import StoreFailed, WeakDurability
from weft.store.postgres.connection import parse_address
from weft.store.postgres.store import ATTEMPTS

CYCLES = sized(test=2, prove=60)
WRITERS = 3
NOON = 1_794_700_800_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that may be hurt."""
    made = Server()
    yield made
    made.remove()


def kill_and_start(server: Server, writers: list[Process], enough: int, pause: float) -> list[Any]:
    """Let them write, kill the server at some moment, start it again, and return what callers heard meanwhile."""
    heard: list[Any] = []
    while len(heard) < enough:
        ready = wait([writer.heard for writer in writers])
        heard += [writer.hear() for writer in writers if writer.heard in ready]
    time.sleep(pause)  # the random moment itself; nothing waits for it
    server.kill()
    server.start()
    return heard


@pytest.mark.slow("starts a server three times, and three writers")
@pytest.mark.usefixtures("turn_path")
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: Server, record_property: Record) -> None:
    dice, address, heard = chance("postmaster"), server.address(), list[Any]()
    weft.open(address).close()
    writers = [Process(write_whatever_happens, address, f"writer {k}") for k in range(WRITERS)]
    assert [writer.hear() for writer in writers] == ["open"] * WRITERS
    for _ in range(CYCLES):
        heard += kill_and_start(server, writers, dice.randint(5, 40), dice.uniform(0, 0.01))
    for writer in writers:
        writer.kill()
    for writer in writers:
        heard += writer.hear_all()
        writer.end()
    with weft.open(address) as ledger:
        assert_kept(ledger, [told for _, _, told in heard if isinstance(told, Ack)])
        sessions = [session.label for session in ledger.sessions()]
        found = Counter(m.text for label in sessions for m in ledger.thread(label).messages if m.role == "user")
        for _, text, told in heard:
            assert found[text] == 1 if isinstance(told, Ack) else found[text] <= (told is None), (text, told)
        assert max(found.values()) == 1
        assert len(ledger.tree.heads()) == len(sessions)
        assert list(ledger.verify()) == []
    kinds = Counter("acknowledged" if isinstance(told, Ack) else told or "unknown" for _, _, told in heard)
    record_property("measured", f"{CYCLES} kills, {dict(kinds)}, seed {SEED}")


def test_a_server_that_is_down_is_said_to_be_and_used_again_once_it_is_back(server: Server) -> None:
    with weft.open(server.address(), clock=FixedClock(NOON)) as ledger:
        ledger.record_turn(session="main", query="before", response="yes")
        for _ in range(2):
            server.stop()
            with pytest.raises(StoreFailed, match=r"postgresql://.*ledger=") as refused:
                ledger.record_turn(session="main", query="while it is down", response="no")
            assert "connects again by itself" in refused.value.hint
            with pytest.raises(StoreFailed):
                ledger.sessions()
            with pytest.raises(StoreFailed):
                weft.open(server.address())
            server.start()
            assert [session.label for session in ledger.sessions()] == ["main"]
            made = ledger.record_turn(session="main", query="after", response="yes")
            assert_kept(ledger, [ack(made)])
        texts = [message.text for message in ledger.thread("main").messages if message.role == "user"]
        assert texts == ["before", "after", "after"]
        assert list(ledger.verify()) == []


def test_whoever_waits_for_changes_hears_of_them_after_an_outage(server: Server) -> None:
    address = server.address()
    with weft.open(address) as ledger, weft.open(address) as watching, ThreadPoolExecutor(1) as pool:
        seen = ledger.record_turn(session="main", query="before").receipt.n
        waiting = pool.submit(watching._store.changes, seen, 120.0)
        server.stop()
        server.start()
        ledger.record_turn(session="main", query="after")
        assert waiting.result()


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_does_not_keep_what_it_says_is_refused(server: Server, setting: str) -> None:
    address = server.address()
    weft.open(address).close()
    server.stop()
    server.start(**{setting: "off"})
    try:
        for read_only in (False, True):
            with pytest.raises(WeakDurability) as refused:
                weft.open(address, read_only=read_only)
            assert refused.value.setting == setting
    finally:
        server.stop()
        server.start()
    weft.open(address).close()


@pytest.fixture
def address() -> str:
    return shared_server().address()


def ask_server(address: str, *statements: str) -> list[Any]:
    named = parse_address(address)
    with psycopg.connect(named.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {named.quoted}".encode())
        for statement in statements[:-1]:
            connection.execute(statement.encode())
        cursor = connection.execute(statements[-1].encode())
        return cursor.fetchall() if cursor.description else []


def fail_at(address: str, code: str, times: int) -> None:
    """The next so many appends fail with this code, as they would under load."""
    ask_server(
        address,
        "CREATE SEQUENCE IF NOT EXISTS failures",
        "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END IF;"
        " RETURN NEW; END $$",
        "CREATE TRIGGER fails BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION fail()",
    )


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_a_failure_that_passes_is_tried_again_so_often_and_no_more(address: str, code: str) -> None:
    with weft.open(address, clock=FixedClock(NOON)) as ledger:
        ledger.record_turn(session="main", query="before", response="yes")
        fail_at(address, code, ATTEMPTS - 1)
        made = ledger.record_turn(session="main", query="at last", response="yes")
        assert_kept(ledger, [ack(made)])
        assert ask_server(address, "SELECT last_value FROM failures") == [(ATTEMPTS,)]
        ask_server(address, "DROP TRIGGER fails ON log", "ALTER SEQUENCE failures RESTART")
        fail_at(address, code, 1_000)
        with pytest.raises(StoreFailed):
            ledger.record_turn(session="main", query="never", response="no")
        assert ask_server(address, "SELECT last_value FROM failures") == [(ATTEMPTS,)]
        ask_server(address, "DROP TRIGGER fails ON log")
        ledger.record_turn(session="main", query="again", response="yes")
        assert len(ledger.log()) == 3
        assert list(ledger.verify()) == []


def test_a_real_deadlock_is_survived(address: str) -> None:
    """Somebody holds a row that the writer needs, and then wants the ledger's lock."""
    named = parse_address(address)
    with weft.open(address) as ledger, psycopg.connect(named.conninfo) as other, ThreadPoolExecutor(1) as pool:
        turn = ledger.begin_turn(session="main")
        other.execute("SET deadlock_timeout TO '1h'")  # the writer notices it, not this one
        other.execute(f"UPDATE {named.quoted}.lease SET beat = beat".encode())
        renewing = pool.submit(turn.renew)
        while not other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
            time.sleep(0.005)
        other.execute(f"SELECT pg_advisory_xact_lock({named.lock})".encode())
        other.rollback()
        renewing.result()
        turn.message("hello")
        turn.finish()
        assert list(ledger.verify()) == []


def test_a_server_without_room_for_more_connections_is_waited_for(address: str) -> None:
    role, named = f"few_{new_name()}", parse_address(address)
    ask_server(address, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3", f"GRANT CREATE ON DATABASE postgres TO {role}")
    with weft.open(address.replace("weft@", f"{role}@")) as ledger:
        ledger.record_turn(session="main", query="hello", response="yes")
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: [session.label for session in ledger.sessions()], range(60)))
        assert found == [["main"]] * 60
    ask_server(address, f"DROP SCHEMA {named.quoted} CASCADE", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_writer_that_hangs_inside_its_transaction_is_ended_by_the_server(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock goes with it, others go on, and when it comes back its work is done again."""
    runs: list[str] = []
    with weft.open(address) as hanging, weft.open(address) as other, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr("weft.store.postgres.store.WRITER_IDLE", "200ms")
        hanging._store._discard_writer()  # type: ignore[attr-defined]  # the next one is given that time

        def work(txn: Any) -> int:
            runs.append("hangs" if not runs else "goes on")
            if len(runs) == 1:
                monkeypatch.undo()  # the one after that has the usual time, however busy the machine is
                waiting = pool.submit(lambda: other.record_turn(session="other", query="meanwhile"))
                waiting.result()  # only once this transaction's lock is gone
            return int(txn.facts.tip().n)

        assert hanging._store.write(work) > 0
        assert runs == ["hangs", "goes on"]
        assert [session.label for session in hanging.sessions()] == ["other"]
        assert list(other.verify()) == []
