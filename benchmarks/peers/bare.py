"""The floor: one row a turn, the turn's JSON already encoded, in one commit of the engine below Weft."""

from pathlib import Path

import apsw
import orjson

from benchmarks.measure import Action
from benchmarks.subject import durability
from benchmarks.workload import Turn

PRAGMAS = """
pragma journal_mode = wal;
pragma synchronous = full;
pragma cache_size = -32768;
pragma wal_autocheckpoint = 4000;
"""
"""As Weft sets them."""


SEED_COLUMNS = "id, turn_id, role, content, source, sequence, created_at, thinking, context_json, metadata_json"
MessageColumns = tuple[str | int | None, ...]


class BareInsert:
    def __init__(self, directory: Path) -> None:
        self._connection = apsw.Connection(str(directory / "bare.db"))
        self._connection.execute(PRAGMAS)
        self._connection.execute("create table if not exists turn (seq integer primary key, body text)")

    def appender(self, turn: Turn) -> Action:
        body = as_json(turn)
        execute = self._connection.execute
        return lambda: execute("insert into turn (body) values (?)", (body,))

    def forker(self) -> Action | None:
        return None

    def rejoin(self) -> None: ...

    def load(self) -> int:
        rows = self._connection.execute("select seq, body from turn order by seq")
        return len([(seq, body) for seq, body in rows])

    def settings(self) -> str:
        pragma = self._connection.pragma
        return durability(pragma("journal_mode"), pragma("synchronous"))

    def close(self) -> None:
        self._connection.close()


class BareServer:
    """The same floor on a PostgreSQL server: one INSERT, committed."""

    def __init__(self, address: str, session: str = "") -> None:
        import psycopg

        self._server = psycopg.connect(address, autocommit=True)
        self._server.execute(
            "create table if not exists bare_turn (seq bigserial primary key, session text, body text)"
        )
        self._session = session

    def appender(self, turn: Turn) -> Action:
        row = (self._session, as_json(turn))
        execute = self._server.execute
        return lambda: execute("insert into bare_turn (session, body) values (%s, %s)", row)

    def forker(self) -> Action | None:
        return None

    def rejoin(self) -> None: ...

    def load(self) -> int:
        rows = self._server.execute("select seq, body from bare_turn where session = %s order by seq", (self._session,))
        return len(rows.fetchall())

    def settings(self) -> str:
        shown = [self._server.execute(f"show {name}").fetchone() for name in ("fsync", "synchronous_commit")]
        return "fsync={}, synchronous_commit={}".format(*((row or ("?",))[0] for row in shown))

    def close(self) -> None:
        self._server.close()


class BareScan:
    """A table with the public columns of `messages`: what reading the same rows costs with nothing around them."""

    def __init__(self, path: Path, messages: list[MessageColumns]) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute(PRAGMAS)
        self._connection.execute(f"create table messages (seq integer primary key, {SEED_COLUMNS})")
        with self._connection:
            self._connection.executemany(
                f"insert into messages ({SEED_COLUMNS}) values ({', '.join('?' * 10)})", messages
            )

    def scan(self) -> int:
        rows = self._connection.execute(f"select {SEED_COLUMNS} from messages order by seq")
        return len(list(rows))

    def close(self) -> None:
        self._connection.close()


def as_json(turn: Turn) -> str:
    call = {"id": turn.call, "name": turn.tool, "arguments": turn.arguments, "result": turn.result}
    body = {
        "query": turn.query,
        "response": turn.response,
        "model": turn.model,
        "usage": turn.usage,
        "calls": [call],
    }
    return orjson.dumps(body).decode()
