"""Small histories that tests share, and how to look at them."""

import io
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import weft
from weft.ledger.ledger import Ledger
from weft.ledger.model import Message


def grow(ledger: Ledger, session: str | None, *queries: str, **fields: Any) -> list[str]:
    """One turn per query, each answered with its echo; returns their ids."""
    return [ledger.record_turn(session=session, query=q, response=f"re: {q}", **fields).id for q in queries]


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
    ledger.export_facts(out)
    return out.getvalue()


def import_into(ledger: Ledger, facts: bytes) -> tuple[int, int, int]:
    brought = ledger.import_facts(io.BytesIO(facts))
    return brought.events, brought.contents, brought.known


@contextmanager
def copy_in_memory(ledger: Ledger) -> Iterator[Ledger]:
    """An empty ledger that got all facts of this one."""
    with weft.open(":memory:") as other:
        import_into(other, exported(ledger))
        yield other


def select(path: str | Path, sql: str, *values: object) -> list[dict[str, Any]]:
    """What a plain reader sees, with the sqlite3 of the standard library."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, values)]


def change(path: str | Path, sql: str, *values: object) -> int:
    """Change the database behind the ledger's back; returns how many rows were hit."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).rowcount
