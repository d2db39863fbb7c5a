"""An ordinary turn's one call to the server, ended at each of its statements: the turn is there whole, or not at all.

A statement is reached when the call waits for a table that somebody else has locked. A table of which earlier
statements have a plan stops the call at the first of them.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.scenarios import ack
from tests.postgres import shared_server
from tests.sizes import share
from weft.store.postgres.connection import parse_address

LONG_WAIT = 60.0
TABLES = ("log", "session", "lease", "turn", "content", "message", "tool_call", "history", "thread_key")
"""Those that the call reads or writes."""
CALL = {"id": "c", "name": "ls", "arguments": {"in": "."}, "result": "nothing"}
WAITING = (
    "SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE NOT l.granted AND l.relation = %s::regclass AND a.query LIKE '%%append_turn%%'"
)
RECORD = """
import sys, weft
with weft.open(sys.argv[1]) as ledger:
    for query in sys.stdin:
        call = {"id": "c", "name": "ls", "arguments": {}, "result": query}
        ledger.record_turn(session="main", query=query.strip(), tool_calls=[call])
        print(query, end="", flush=True)
"""


class LockedTable:
    """A table of a ledger that nobody else can use while it is locked."""

    def __init__(self, address: str, table: str) -> None:
        named = parse_address(address)
        self._name = f"{named.quoted}.{table}"
        self._holder = psycopg.connect(named.conninfo)
        self._other = psycopg.connect(named.conninfo, autocommit=True)
        self._holder.execute(f"LOCK TABLE {self._name}".encode())

    def waiting(self) -> int:
        """Whose call has come to it."""
        return self._patiently(lambda: self._other.execute(WAITING, (self._name,)).fetchone())[0]

    def end(self, pid: int) -> None:
        self._other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def wait_until_gone(self, pid: int) -> None:
        gone = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)"
        self._patiently(lambda: self._other.execute(gone, (pid,)).fetchone())

    def _patiently(self, ask: Callable[[], tuple[int, ...] | None]) -> tuple[int, ...]:
        """The first answer there is; what never comes would hang the whole suite."""
        until = time.monotonic() + LONG_WAIT
        while time.monotonic() < until:
            if (found := ask()) is not None:
                return found
            time.sleep(0.005)
        raise AssertionError(f"nothing of the kind at {self._name}")

    def release(self) -> None:
        self._holder.rollback()

    def close(self) -> None:
        self._holder.close()
        self._other.close()


@pytest.fixture
def address() -> Iterator[str]:
    with shared_server().ledger() as made:
        yield made


@pytest.mark.parametrize("table", share(TABLES, test=3))
def test_a_call_whose_connection_is_ended_inside_it_is_made_once(address: str, table: str) -> None:
    with weft.open(address) as ledger, ThreadPoolExecutor(1) as pool:
        before = [ledger.record_turn(session="main", query=f"{k}", tool_calls=[CALL]) for k in range(2)]
        locked = LockedTable(address, table)
        try:
            made = pool.submit(lambda: ledger.record_turn(session="main", query="2", tool_calls=[CALL]))
            locked.end(locked.waiting())
            locked.release()
            turn = made.result()
        finally:
            locked.close()
        assert [message.text for message in ledger.thread("main").messages if message.role == "user"] == ["0", "1", "2"]
        assert_kept(ledger, [ack(each) for each in (*before, turn)])
        assert list(ledger.verify()) == []


@pytest.mark.parametrize("table", share(TABLES, test=3))
def test_a_caller_that_is_killed_inside_its_call_leaves_the_turn_whole_or_not_at_all(address: str, table: str) -> None:
    with weft.open(address) as ledger:
        ledger.record_turn(session="main", query="first", tool_calls=[CALL])
    command, pipe = [sys.executable, "-c", RECORD, address], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as caller:
        assert caller.stdin is not None
        assert caller.stdout is not None
        for query in ("second\n", "third\n"):  # whose session is known then: the next one is a call
            caller.stdin.write(query)
            assert caller.stdout.readline() == query
        locked = LockedTable(address, table)
        try:
            caller.stdin.write("fourth\n")
            pid = locked.waiting()
            caller.send_signal(signal.SIGKILL)
            caller.wait()
            locked.release()
            locked.wait_until_gone(pid)
        finally:
            locked.close()
    with weft.open(address) as ledger:
        said = [message.text for message in ledger.thread("main").messages if message.role == "user"]
        assert said in (["first", "second", "third"], ["first", "second", "third", "fourth"])
        assert list(ledger.verify()) == []
        ledger.record_turn(session="main", query="last", tool_calls=[CALL])
        assert list(ledger.verify()) == []
