"""Statements on their way to the server: several at once, each prepared when it is first sent.

They go past psycopg's cursors, which take as long for one statement as the server does, and use what is below them: the
connection, its way of waiting, and its loaders for what comes back. Statements are the same as SQLite's. Each is
translated once: `?` becomes `$1`, `$2`, and a BLOB is a BYTEA. Whole numbers travel as text of no declared type, so
that the server takes each for what its column is, and one prepared statement serves a row whichever of its values are
null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from weft.store.sql import Question, Row

KEPT_STATEMENTS = 512
"""So many statements stay prepared on a connection; one more is prepared each time that it is sent."""
_BYTES = 17
_DONE, _ENDED = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK), pq.ExecStatus.PIPELINE_SYNC
_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY
_QUOTED = re.compile(r"""('[^']*'|"[^"]*")""")
_BLOB = re.compile(r"\bBLOB\b")
Prepared = tuple[str, tuple[bool, ...]]
"""A statement, and which of its values are bytes."""


@lru_cache(maxsize=4096)
def translate(sql: str) -> bytes:
    """A statement of the port in PostgreSQL's words."""
    pieces = _QUOTED.split(sql)  # every second piece is quoted
    count = 0
    for i in range(0, len(pieces), 2):
        plain = _BLOB.sub("BYTEA", pieces[i]).split("?")
        numbered = [plain[0]]
        for piece in plain[1:]:
            count += 1
            numbered.append(f"${count}{piece}")
        pieces[i] = "".join(numbered)
    return "".join(pieces).encode()


def dumped(value: Any) -> bytes | None:
    """A value as it travels. As in SQLite a truth value is 1 or 0, which PostgreSQL takes for a number too."""
    if isinstance(value, str):
        if "\0" in value:
            raise psycopg.DataError("no text in PostgreSQL holds a NUL")
        return value.encode()
    if isinstance(value, int):
        return b"%d" % value
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, float):
        return repr(value).encode()
    raise psycopg.ProgrammingError(f"no value of a statement: {type(value).__name__}")


class Statements:
    """The statements of one connection."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection, self._loaders = connection, Transformer(connection)
        self._names: dict[Prepared, bytes] = {}
        self._named = 0

    def send(self, statements: Sequence[Question], last: Sequence[str] = ()) -> list[PGresult]:
        """All of them, then the last, which are sent as they are written, for one way to the server and back. The
        server runs none behind one that it refuses; that is raised. After anything else that is raised the connection
        is closed: nobody knows how far the server came."""
        pgconn = self._connection.pgconn
        values = [[dumped(value) for value in each] for _, each in statements]
        new: dict[Prepared, bytes] = {}
        sent: list[Prepared | None] = []
        """In their order, what is prepared, and None for each statement that is run."""
        try:
            pgconn.enter_pipeline_mode()
            for (sql, given), parameters in zip(statements, values, strict=True):
                binary = tuple([isinstance(value, bytes | bytearray | memoryview) for value in given])
                key = (sql, binary)
                name = self._names.get(key) or new.get(key)
                if name is None:
                    name = self._prepare(key)
                    sent.append(key)
                    new[key] = name
                formats = [_BINARY if is_binary else _TEXT for is_binary in binary]
                pgconn.send_query_prepared(name, parameters, formats, _BINARY)
                sent.append(None)
            for statement in last:
                pgconn.send_query_params(statement.encode(), None)
                sent.append(None)
            pgconn.pipeline_sync()
            results = self._connection.wait(_results(pgconn))
            pgconn.exit_pipeline_mode()
        except BaseException:  # an interrupt too
            self._connection.close()
            raise
        return self._answers(results, sent, new)

    def _prepare(self, key: Prepared) -> bytes:
        sql, binary = key
        name = b"weft_%d" % self._named if len(self._names) < KEPT_STATEMENTS else b""
        self._named += 1
        self._connection.pgconn.send_prepare(name, translate(sql), [_BYTES if one else 0 for one in binary])
        return name

    def _answers(
        self, results: Sequence[PGresult], sent: Sequence[Prepared | None], new: Mapping[Prepared, bytes]
    ) -> list[PGresult]:
        """What was prepared stays so, also where a statement behind it was refused."""
        answers: list[PGresult] = []
        for result, key in zip(results, sent, strict=True):
            if result.status not in _DONE:
                raise error_from_result(result)
            if key is None:
                answers.append(result)
            elif new[key]:
                self._names[key] = new[key]
        return answers

    def rows(self, result: PGresult) -> list[Row]:
        """None of a statement that has none."""
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._loaders.set_pgresult(result)
        return self._loaders.load_rows(0, result.ntuples, tuple)


def _results(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """What came back, one for each, up to where the server says that this was all."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while (result := (yield from generators.fetch(pgconn))) is None or result.status != _ENDED:
        if result is not None:
            results.append(result)
        if pgconn.status == pq.ConnStatus.BAD:
            raise error_from_result(results[-1]) if results else psycopg.OperationalError("the connection is lost")
    return results
