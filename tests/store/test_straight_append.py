"""An ordinary turn in one call: the same rows and the same bytes as on the general way, which is its oracle."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

import msgspec
import psycopg
import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.scenarios import ack
from tests.postgres import shared_server
from tests.sizes import points
from weft import NewMessage
from weft.kernel.clock import FixedClock
from weft.kernel.enums import MessageRole
from weft.kernel.errors import HeadMoved, LedgerTooNew, NotApplicable, SessionBusy
from weft.ledger.api.ledger import Ledger
from weft.ledger.views.rows import CALL, HISTORY, MESSAGE, SESSION, THREAD_KEYS, TURN
from weft.store.postgres import straight_append
from weft.store.postgres.connection import parse_address
from weft.store.postgres.straight_append import CONTENTS_FROM, EVENTS_FROM, StraightAppends

NOON = 1_794_700_800_000
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace ORDER BY 1"
OWN_AFFAIRS = ("outcome",)
"""Who tried to commit what is each server connection's own."""


def verdicts(ledger: Ledger) -> Any:
    return ledger._store._straight.verdicts  # type: ignore[attr-defined]


def every_row(address: str) -> dict[str, list[Any]]:
    named = parse_address(address)
    with psycopg.connect(named.conninfo) as connection:
        names = [name for (name,) in connection.execute(TABLES, (named.ledger,)) if name not in OWN_AFFAIRS]
        found = {name: connection.execute(f"SELECT * FROM {named.quoted}.{name}".encode()).fetchall() for name in names}
    found["local"] = [row for row in found["local"] if row[0] != "place"]
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def _words(dice: Random) -> str:
    return dice.choice(["yes", "no", "hello", f"word {dice.randrange(40)}", "ä\u2028 \"'\\", "x" * 3000])


def some_turn(dice: Random) -> dict[str, Any]:
    """Mostly ordinary ones, and now and then one that has something about it."""
    turn: dict[str, Any] = {"session": dice.choice(["a", "b", "c"]), "query": _words(dice), "response": _words(dice)}
    if dice.random() < 0.5:
        turn["model"], turn["usage"] = "m-1", {"input_tokens": dice.randrange(9), "output_tokens": 3}
    if dice.random() < 0.3:
        turn["system"] = dice.choice(["be good", "be better"])
    if dice.random() < 0.5:
        turn["tool_calls"] = [
            {"id": dice.choice(["c1", "c2"]), "name": "ls", "arguments": {"in": _words(dice)}, "result": _words(dice)}
            for _ in range(dice.randint(1, 3))
        ]
    match dice.randrange(12):
        case 0:
            turn["error"] = "it broke"
        case 1:
            turn["model"] = "a model of many words"
        case 2:
            turn["query"] = [NewMessage(role=MessageRole.USER, content="hi", metadata={"k": 1})]
        case 3:
            turn["key"] = f"key {dice.randrange(1000)}"
    return turn


@pytest.fixture
def addresses() -> Iterator[tuple[str, str]]:
    with shared_server().ledger() as one, shared_server().ledger() as other:
        yield one, other


@pytest.mark.parametrize("seed", points(4, test=1))
def test_both_ways_leave_the_same_rows_also_while_others_write(
    addresses: tuple[str, str], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers in turn on each of two ledgers. On the second one everything goes the general way."""
    clocks = FixedClock(NOON), FixedClock(NOON)
    with ExitStack() as stack:
        ledgers = [
            [
                stack.enter_context(weft.open(address, clock=clock, random_bytes=Random(f"{seed} {k}").randbytes))
                for k in range(2)
            ]
            for address, clock in zip(addresses, clocks, strict=True)
        ]
        for ledger in ledgers[1]:
            monkeypatch.setattr(ledger._store._straight, "make_provisional", lambda *_: None)  # type: ignore[attr-defined]
        dice = Random(f"turns {seed}")
        for _ in range(60):
            turn, writer = some_turn(dice), dice.randrange(2)
            if dice.random() < 0.7:
                turn["session"] += str(writer)
            for clock in clocks:
                clock.tick(7)
            made = [writers[writer].record_turn(**turn) for writers in ledgers]
            assert made[0] == made[1]
            if dice.random() < 0.05:
                for writers in ledgers:
                    writers[writer]._store.catch_up()
        assert every_row(addresses[0]) == every_row(addresses[1])
        assert list(ledgers[0][0].verify()) == list(ledgers[1][0].verify()) == []
        assert not any(verdicts(ledger)["failed"] for ledger in ledgers[0])
        taken = sum(verdicts(ledger)["done"] for ledger in ledgers[0])
        assert taken > 20
        assert not any(verdicts(ledger) for ledger in ledgers[1])


def test_the_ordinary_turn_of_a_session_goes_straight_and_others_do_not(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as ledger:
        ledger.record_turn(session="main", query="first", response="a session begins")
        assert verdicts(ledger) == {}
        call = {"id": "c", "name": "ls", "arguments": {"in": "."}, "result": "nothing"}
        made = [ledger.record_turn(session="main", query=f"{k}", tool_calls=[call]) for k in range(3)]
        assert verdicts(ledger) == {"done": 3}
        ledger.record_turn(session="main", query="a failed one", error="it broke")
        assert verdicts(ledger) == {"done": 3, "unusual": 1}
        assert_kept(ledger, [ack(turn) for turn in made])
        assert list(ledger.verify()) == []


def test_a_session_that_somebody_else_moved_goes_the_general_way(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as one, weft.open(addresses[0]) as other:
        one.record_turn(session="main", query="1")
        one.record_turn(session="main", query="2")
        other.record_turn(session="main", query="3")
        one.record_turn(session="main", query="4")
        assert verdicts(one) == {"done": 1, "moved": 1}
        assert [m.text for m in one.thread("main").messages] == ["1", "2", "3", "4"]
        assert len(one.tree.heads()) == 1
        assert list(one.verify()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session SET title = title WHERE label = 'main'",
        "UPDATE turn SET status = status WHERE id = (SELECT head FROM session WHERE label = 'main')",
        "INSERT INTO lease(kind, key, owner, epoch, beat) SELECT 'session', id, '', 0, 0 FROM session",
    ],
)
def test_a_row_that_was_written_again_is_not_taken_for_the_remembered_one(
    addresses: tuple[str, str], statement: str
) -> None:
    """Whatever it says now: who wrote it is compared."""
    named = parse_address(addresses[0])
    with weft.open(addresses[0]) as ledger, psycopg.connect(named.conninfo, autocommit=True) as server:
        for k in range(2):
            ledger.record_turn(session="main", query=f"{k}")
        server.execute(f"SET search_path TO {named.quoted}".encode())
        server.execute(statement.encode())
        ledger.record_turn(session="main", query="2")
        assert verdicts(ledger) == {"done": 1, "moved": 1}


def test_the_call_has_the_values_that_the_function_takes(addresses: tuple[str, str]) -> None:
    types = (
        "SELECT format_type(t, NULL) FROM pg_proc, unnest(proargtypes) WITH ORDINALITY AS a(t, place)"
        " WHERE proname = 'append_turn' AND pronamespace = %s::regnamespace ORDER BY place"
    )
    named = parse_address(addresses[0])
    with weft.open(addresses[0]), psycopg.connect(named.conninfo) as server:
        taken = [name for (name,) in server.execute(types.encode(), (named.ledger,)).fetchall()]
    assert [name == "bytea" for name in taken] == list(straight_append.IS_BINARY)
    assert [name for name in taken if name == "xid"] == ["xid"] * straight_append.VERSIONS


def test_rows_are_sent_in_the_order_of_the_columns(addresses: tuple[str, str]) -> None:
    named = parse_address(addresses[0])
    columns = (
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum"
    )
    with weft.open(addresses[0]) as ledger, psycopg.connect(named.conninfo) as server:
        ledger.record_turn(session="main", query="1")
        sent = [(table.name, table.columns) for table in (TURN, MESSAGE, CALL, SESSION, HISTORY)]
        for name, expected in (*sent, (THREAD_KEYS.table, THREAD_KEYS.columns)):
            found = server.execute(columns.encode(), (f"{named.ledger}.{name}",)).fetchall()
            assert tuple(column for (column,) in found) == tuple(expected)


def test_every_text_of_a_row_arrives_as_it_was_sent(addresses: tuple[str, str]) -> None:
    texts = (
        "",
        " ",
        ",",
        "()",
        '"',
        "\\",
        '\\"',
        "{a}",
        "NULL",
        "'",
        "ä\u2028\U0001f600",
        "a\nb\tc",
        'l "s" \\ (a, b)',
    )
    rows = [(k, text, f"{text}{text}", bytes([k, 34, 92]), None) for k, text in enumerate(texts)]
    columns, cast = ("k", "one", "two", "raw", "empty"), "(k BIGINT, one TEXT, two TEXT, raw BYTEA, empty TEXT)"
    with psycopg.connect(parse_address(addresses[0]).conninfo) as server:
        server.execute(f"CREATE TYPE pg_temp.sent AS {cast}".encode())
        sent = straight_append._array_text(
            straight_append._quoted_value(straight_append._composite_text(columns, row, frozenset())) for row in rows
        )
        assert server.execute(b"SELECT (u).* FROM unnest(%s::pg_temp.sent[]) u", (sent,)).fetchall() == rows
    for text in ("a\0b", str(EVENTS_FROM + 1), str(CONTENTS_FROM + 1)):
        with pytest.raises(straight_append.UnusualTurn):
            straight_append._composite_text(("one",), (text,), frozenset())


def test_a_session_that_is_held_by_another_is_not_written_to(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as one, weft.open(addresses[0]) as other:
        one.record_turn(session="main", query="1")
        one.record_turn(session="main", query="2")
        turn = other.begin_turn(session="main")
        with pytest.raises(SessionBusy):
            one.record_turn(session="main", query="not now")
        assert verdicts(one)["moved"] == 1
        turn.message("3")
        turn.finish()
        one.record_turn(session="main", query="4")
        assert [m.text for m in one.thread("main").messages] == ["1", "2", "3", "4"]


def test_contents_that_others_stored_meanwhile_are_stored_once(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as one, weft.open(addresses[0]) as other:
        one.record_turn(session="main", query="1")
        one.record_turn(session="main", query="2")
        one.fork("main", label="side")
        one.record_turn(session="side", query="3")
        one.record_turn(session="side", query="4")
        other.record_turn(session="main", query="a text of both")
        one.record_turn(session="side", query="a text of both")
        assert verdicts(one)["known"] == 1
        with one._store.read() as txn:
            bytes_of = "SELECT count(*) FROM content WHERE bytes = ?"
            assert txn.sql.fetch_row(bytes_of, (b"a text of both",)) == (1,)
        assert list(one.verify()) == []


def test_erasing_and_a_newer_schema_send_a_turn_the_general_way(addresses: tuple[str, str]) -> None:
    named = parse_address(addresses[0])
    with weft.open(addresses[0]) as ledger, psycopg.connect(named.conninfo, autocommit=True) as server:
        server.execute(f"SET search_path TO {named.quoted}".encode())
        for k in range(2):
            ledger.record_turn(session="main", query=f"{k}")
        server.execute("INSERT INTO watermark(view, n) VALUES ('erasing', 1)")
        ledger.record_turn(session="main", query="erased meanwhile")
        assert verdicts(ledger) == {"done": 1, "erased": 1}
        ledger.record_turn(session="main", query="and on")
        assert verdicts(ledger)["done"] == 2
        server.execute("UPDATE weft_schema SET number = number + 1")
        with pytest.raises(LedgerTooNew):
            ledger.record_turn(session="main", query="too new")
        assert verdicts(ledger)["schema"] == 1


def test_no_provisional_number_is_ever_stored(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0], random_bytes=Random(7).randbytes) as ledger:
        dice = Random(7)
        for _ in range(40):
            ledger.record_turn(**some_turn(dice))
        assert verdicts(ledger)["done"] > 10
    stored = repr(every_row(addresses[0]))
    assert str(EVENTS_FROM)[:12] not in stored
    assert str(CONTENTS_FROM)[:12] not in stored


def test_an_interrupt_that_comes_with_the_answer_leaves_the_turn_there_once(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = StraightAppends.send

    def interrupted(*arguments: Any) -> Any:
        send(*arguments)
        raise KeyboardInterrupt

    with weft.open(addresses[0]) as ledger:
        ledger.record_turn(session="main", query="1")
        with monkeypatch.context() as patch:
            patch.setattr(StraightAppends, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ledger.record_turn(session="main", query="2")
        ledger.record_turn(session="main", query="3")
        assert [m.text for m in ledger.thread("main").messages] == ["1", "2", "3"]
        assert list(ledger.verify()) == []


def test_commits_are_announced_only_where_somebody_listens(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as ledger, weft.open(addresses[0]) as other:
        straight, listeners = ledger._store._straight, other._store._listeners  # type: ignore[attr-defined]
        for k in range(2):
            ledger.record_turn(session="main", query=f"{k}")
        assert verdicts(ledger) == {"done": 1}
        assert not straight.is_heard
        listener = listeners.borrow()
        ledger.record_turn(session="main", query="heard")
        assert straight.is_heard
        assert listeners.wait(listener, 60)
        listener.close()
        ledger.record_turn(session="main", query="unheard")
        assert verdicts(ledger) == {"done": 3}


def test_a_call_that_the_connection_has_forgotten_is_prepared_again(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as ledger:
        for k in range(2):
            ledger.record_turn(session="main", query=f"{k}")
        ledger._store._write_sql.script("DEALLOCATE ALL")  # type: ignore[attr-defined]
        ledger.record_turn(session="main", query="2")
        assert verdicts(ledger) == {"done": 2}
        assert [message.text for message in ledger.thread("main").messages] == ["0", "1", "2"]


@pytest.mark.parametrize("flush", ["SELECT nothing_of_this_name(), true", "SELECT 1 / 0, true"])
def test_a_turn_is_there_once_whose_flush_is_refused(addresses: tuple[str, str], flush: str) -> None:
    with weft.open(addresses[0]) as ledger:
        ledger.record_turn(session="main", query="1")
        straight = ledger._store._straight  # type: ignore[attr-defined]
        straight.call = msgspec.structs.replace(straight.call, after=flush)
        receipt = ledger.record_turn(session="main", query="2")
        assert [message.text for message in ledger.thread("main").messages] == ["1", "2"]
        assert ledger.session("main").head == receipt.id
        assert verdicts(ledger) == {}
        assert list(ledger.verify()) == []


def test_a_turn_that_is_too_large_for_one_message_goes_the_general_way(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight_append, "MOST_BYTES", 10_000)
    calls = [{"id": f"c{k}", "name": "ls", "arguments": {}, "result": f"{k}" * 4_000} for k in range(3)]
    with weft.open(addresses[0]) as ledger:
        for k in range(2):
            ledger.record_turn(session="main", query=f"{k}", response="yes")
        ledger.record_turn(session="main", query="large", response="yes", tool_calls=calls)
        assert verdicts(ledger) == {"done": 1, "unusual": 1}
        assert [m.text for m in ledger.thread("main").messages if m.role == "user"] == ["0", "1", "large"]
        assert list(ledger.verify()) == []


def test_a_turn_whose_flush_the_connection_has_forgotten_is_there_once(addresses: tuple[str, str]) -> None:
    with weft.open(addresses[0]) as ledger:
        for query in ("one", "two"):
            ledger.record_turn(session="a", query=query)
        sql = ledger._store._write_sql  # type: ignore[attr-defined]
        ((name,),) = sql.script(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%emit_message%advisory%'"
        )
        sql.script(f"DEALLOCATE {name}")
        ledger.record_turn(session="a", query="three")
        assert sql.broken  # nobody knew how far it came, so the server was asked
        assert [message.text for message in ledger.thread("a").messages] == ["one", "two", "three"]
        assert list(ledger.verify()) == []


def test_a_session_is_read_anew_though_a_refused_turn_had_asked_for_it(addresses: tuple[str, str]) -> None:
    """One commit is shared by a turn that is refused and by a content; then another program archives the session."""
    named = parse_address(addresses[0])
    with (
        weft.open(addresses[0]) as ledger,
        weft.open(addresses[0]) as other,
        psycopg.connect(named.conninfo, autocommit=True) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        for session in ("main", "side", "main", "side"):
            ledger.record_turn(session=session, query="q", response="r")
        elsewhere = ledger.session("side").head
        jobs: Any = ledger._store._jobs  # type: ignore[attr-defined]
        server.execute(f"SELECT pg_advisory_lock({named.lock})".encode())
        first = threads.submit(ledger.record_turn, session="side", query="first", response="r")
        while not server.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
            time.sleep(0.01)
        refused = threads.submit(ledger.record_turn, session="main", query="no", expected=elsewhere, wait=0)
        content = threads.submit(ledger.put_content, b"some bytes")
        while len(jobs._waiting) < 2:
            time.sleep(0.01)
        server.execute(f"SELECT pg_advisory_unlock({named.lock})".encode())
        first.result()
        content.result()
        assert isinstance(refused.exception(), HeadMoved)
        other.labels.archive("main")
        with pytest.raises(NotApplicable):
            ledger.record_turn(session="main", query="into an archived session", response="r")
        assert list(ledger.verify()) == []
