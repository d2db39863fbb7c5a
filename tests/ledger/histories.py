"""Small histories that tests share, and how to look at them."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

import weft
from tests.sizes import PROVING
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import Message

PROPERTY_SCALE = 75 if PROVING else 1


def grow(ledger: Ledger, session: str | None, *queries: str, **fields: Any) -> list[str]:
    """One turn per query, each answered with its echo; returns their ids."""
    return [ledger.record_turn(session=session, query=q, response=f"re: {q}", **fields).id for q in queries]


def grow_at_once(ledger: Ledger, session: str, *queries: str) -> list[str]:
    """The same in one commit: for tests that need a long thread, however it was written."""
    turns = [{"session": session, "query": query, "response": f"re: {query}"} for query in queries]
    return [turn.id for turn in ledger.record_turns(turns)]


def large_bytes(size: int, random_bytes: Callable[[int], bytes] = os.urandom) -> bytes:
    """Bytes that are no text, most of them without a word that search would keep."""
    return random_bytes(1_000) + random_bytes(size // 2).hex().encode()


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


def queries(ledger: Ledger, name: str) -> list[str]:
    """What people said in a thread."""
    return [message.text for message in ledger.thread(name).messages if message.role == "user"]


def lines(ledger: Ledger) -> list[bytes]:
    return [recorded.line for recorded in ledger.changes()]


def kinds(ledger: Ledger, turn: str) -> list[str]:
    """The kinds of a turn's events, in order."""
    return [str(recorded.event.__struct_config__.tag) for recorded in ledger.events(turn)]


def problems(ledger: Ledger) -> list[str]:
    return [str(problem) for problem in ledger.verify()]


def exported(ledger: Ledger) -> bytes:
    out = io.BytesIO()
    ledger.upkeep.export_facts(out)
    return out.getvalue()


def import_into(ledger: Ledger, facts: bytes) -> tuple[int, int, int]:
    brought = ledger.upkeep.import_facts(io.BytesIO(facts))
    return brought.events, brought.contents, brought.known


@contextmanager
def copy_in_memory(ledger: Ledger) -> Iterator[Ledger]:
    """An empty ledger that got all facts of this one."""
    with weft.open(":memory:") as other:
        import_into(other, exported(ledger))
        yield other


@contextmanager
def plain_reader(path: str | Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """What a plain reader sees: asks each statement, with its values, by one connection. A connection reads the whole
    schema before its first statement, which takes longer than most of them.

    By the SQLite that the ledger uses: a second copy of the library, such as Python's own sqlite3, would drop this
    process's locks on the file when it closes it.
    """
    with closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as connection:

        def ask(sql: str, *values: Any) -> list[dict[str, Any]]:
            cursor = connection.execute(sql, values)
            return [dict(zip((name for name, _ in cursor.get_description()), row, strict=True)) for row in cursor]

        yield ask


def select(path: str | Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    """What a plain reader sees of one statement."""
    with plain_reader(path) as ask:
        return ask(sql, *values)


def change(path: str | Path, sql: str, *values: Any) -> int:
    """Change the database behind the ledger's back; returns how many rows were hit."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql, values)
        return connection.changes()
