"""Statements are planned once, while a ledger is new and has no statistics: none may read a table that grows."""

import time

import psycopg

import weft
from tests.postgres import shared_server
from weft.ledger.api import Runs
from weft.store.postgres.connection import parse_address

GROWING = ("content", "log", "turn", "message", "tool_call", "history", "session", "lookup_content", "lookup_event")
SCANNED = (
    "SELECT relname FROM pg_stat_user_tables"
    " WHERE schemaname = %s AND relname = ANY(%s) AND seq_tup_read > %s ORDER BY relname"
)
"""Whoever opens a ledger looks whether it has a row."""
LEDGERS = 2


def test_writers_and_readers_of_a_new_ledger_read_no_whole_table() -> None:
    with shared_server().ledger() as address:
        with weft.open(address) as one, weft.open(address) as other:
            call = {"id": "c1", "name": "ls", "arguments": {"in": "."}, "result": "a"}
            for number in range(8):
                for name, ledger in (("one", one), ("other", other)):
                    turn = ledger.record_turn(session=name, query=f"{name} {number}", response="yes", tool_calls=[call])
                    assert len(ledger.context(session=name).messages) == 4 * (number + 1)
                    assert ledger.turn(turn.id).id == turn.id
                    ledger.inbox.admit(f"more of {number}", session=name)
            refs = [content for (content,) in _asked(address, "SELECT encode(ref, 'hex') FROM content ORDER BY n")]
            assert all(Runs(one).text(str(ref)) for ref in refs)
        named = parse_address(address)
        assert _asked(address, SCANNED, named.ledger, list(GROWING), LEDGERS) == []


def test_a_turn_writes_its_session_again_without_a_change_to_any_index() -> None:
    turns = 8
    with shared_server().ledger() as address:
        with weft.open(address) as ledger:
            for number in range(turns):
                ledger.record_turn(session="main", query=f"{number}")
        counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = %s"
        ((updated, in_place),) = _asked(address, counted, parse_address(address).ledger, "session")
        while updated == 0:  # the server counts what a connection did when it notices that this has ended
            time.sleep(0.01)
            ((updated, in_place),) = _asked(address, counted, parse_address(address).ledger, "session")
        assert updated == in_place == turns - 1


def _asked(address: str, question: str, *values: object) -> list[tuple[object, ...]]:
    """By a connection of its own. The server counts what a connection read when that has ended."""
    named = parse_address(address)
    with psycopg.connect(named.conninfo) as connection:
        connection.execute(f"SET search_path TO {named.quoted}; SET enable_seqscan TO off".encode())
        return connection.execute(question.encode(), values or None).fetchall()
