"""Statements on their way to the server: several at once, each prepared when it is first sent.

They go past psycopg's cursors, which take as long for one statement as the server does, and use what is below them: the
connection, its way of waiting, and its loaders for what comes back. Statements are the same as SQLite's. Each is
translated once: `?` becomes `$1`, `$2`, and a BLOB is a BYTEA. Whole numbers travel as text of no declared type, so
that the server takes each for what its column is, and one prepared statement serves a row whichever of its values are
null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
from msgspec import Struct, field
from psycopg import generators, pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
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


class NoForm(psycopg.DataError):
    """A value that no column holds, noticed before anything was sent; `place` is that of its statement."""

    place = 0


def dumped(value: Any) -> bytes | None:
    """A value as it travels. As in SQLite a truth value is 1 or 0, which PostgreSQL takes for a number too."""
    if isinstance(value, str):
        if "\0" in value:
            raise NoForm("no text in PostgreSQL holds a NUL")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise NoForm("no text in PostgreSQL holds a lone surrogate") from error
    if isinstance(value, int):
        return b"%d" % value
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, float):
        return repr(value).encode()
    raise NoForm(f"no value of a statement: {type(value).__name__}")


def _all_dumped(statements: Sequence[Question]) -> list[list[bytes | None]]:
    parameters: list[list[bytes | None]] = []
    try:
        for _, values in statements:
            parameters.append([dumped(value) for value in values])
    except NoForm as error:
        error.place = len(parameters)
        raise
    return parameters


class ServerCall(Struct, frozen=True):
    """A statement with values in these formats, by the name under which it is prepared, and one without any that comes
    after its commit."""

    name: bytes
    statement: str
    is_binary: tuple[bool, ...]
    after: str


class StatementBatch(Struct):
    """Statements that go to the server together."""

    prepared: dict[Prepared, bytes] = field(default_factory=dict)
    """What is prepared with them, by name."""
    sent: list[Prepared | None] = field(default_factory=list)
    """In their order, what is prepared, and None for each statement that is run."""


class Statements:
    """The statements of one connection."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection, self._loaders = connection, Transformer(connection)
        self._names: dict[Prepared, bytes] = {}
        self._named = 0

    def send(self, statements: Sequence[Question], last: Sequence[str] = ()) -> list[PGresult]:
        """All of them, then the last, which are sent as they are written, for one way to the server and back. The
        server runs none behind one that it refuses; that is raised. A value that no column holds is raised
        before anything is sent. After anything else that is raised the connection is closed: nobody knows how far the
        server came."""
        pgconn, batch = self._connection.pgconn, StatementBatch()
        values = _all_dumped(statements)
        try:
            pgconn.enter_pipeline_mode()
            for (sql, given), parameters in zip(statements, values, strict=True):
                key = (sql, tuple([isinstance(value, bytes | bytearray | memoryview) for value in given]))
                self._add(batch, key, parameters)
            for statement in last:
                pgconn.send_query_params(statement.encode(), None)
                batch.sent.append(None)
            results = self._received(1)
        except BaseException:  # an interrupt too
            self._connection.close()
            raise
        return self._answers(results, batch)

    def call(self, call: ServerCall, values: Sequence[Buffer | None]) -> list[bytes | None]:
        """A statement and, once that is committed, the one after it: each a transaction of its own, for one way to the
        server and back. Returns their rows, one after the other, in the server's binary form. An error that leaves the
        connection open is the server's refusal of the first: nothing has happened. After any other it is closed."""
        try:
            return self._call(call, values)
        except InvalidSqlStatementName:  # the server has forgotten it, as after DEALLOCATE ALL
            if self._connection.closed:  # it was the second, and the first is done
                raise
            return self._call(call, values)

    def _call(self, call: ServerCall, values: Sequence[Buffer | None]) -> list[bytes | None]:
        pgconn, batch = self._connection.pgconn, StatementBatch()
        try:
            pgconn.enter_pipeline_mode()
            self._add(batch, (call.statement, call.is_binary), values, call.name)
            pgconn.pipeline_sync()
            committing = len(batch.sent)
            self._add(batch, (call.after, ()), ())
            results = self._received(2)
            if all(result.status in _DONE for result in results[:committing]):
                for result in results[committing:]:
                    if result.status not in _DONE:
                        raise error_from_result(result)
        except BaseException:  # an interrupt too
            self._connection.close()
            raise
        answers = self._answers(results, batch)
        return [result.get_value(0, column) for result in answers for column in range(result.nfields)]

    def _add(
        self, batch: StatementBatch, key: Prepared, parameters: Sequence[Buffer | None], name: bytes | None = None
    ) -> None:
        """A statement is put on its way, and prepared before if it is not."""
        pgconn, (sql, binary) = self._connection.pgconn, key
        known = self._names.get(key) or batch.prepared.get(key)
        if not known:  # one without a name lasts no longer than until the next such
            self._named += 1
            known = name or (b"weft_%d" % self._named if len(self._names) < KEPT_STATEMENTS else b"")
            pgconn.send_prepare(known, translate(sql), [_BYTES if one else 0 for one in binary])
            batch.sent.append(key)
            batch.prepared[key] = known
        formats = [_BINARY if is_binary else _TEXT for is_binary in binary]
        pgconn.send_query_prepared(known, parameters, formats, _BINARY)
        batch.sent.append(None)

    def _received(self, transactions: int) -> list[PGresult]:
        """The results of all that was put on its way, in so many transactions of its own; the last ends here."""
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        results = self._connection.wait(_results(pgconn, transactions))
        pgconn.exit_pipeline_mode()
        return results

    def _answers(self, results: Sequence[PGresult], batch: StatementBatch) -> list[PGresult]:
        """What was prepared stays so, also where a statement behind it was refused."""
        answers: list[PGresult] = []
        for result, key in zip(results, batch.sent, strict=True):
            if result.status not in _DONE:
                error = error_from_result(result)
                if isinstance(error, InvalidSqlStatementName):
                    self._names.clear()
                raise error
            if key is None:
                answers.append(result)
            elif batch.prepared[key]:
                self._names[key] = batch.prepared[key]
        return answers

    def rows(self, result: PGresult) -> list[Row]:
        """None of a statement that has none."""
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._loaders.set_pgresult(result)
        return self._loaders.load_rows(0, result.ntuples, tuple)


def _results(pgconn: PGconn, transactions: int) -> PQGen[list[PGresult]]:
    """What came back, one for each, up to where the server says for the last time that this was all."""
    yield from generators.send(pgconn)
    results: list[PGresult] = []
    while transactions:
        result = yield from generators.fetch(pgconn)
        if result is not None and result.status == _ENDED:
            transactions -= 1
        elif result is not None:
            results.append(result)
        if pgconn.status == pq.ConnStatus.BAD:
            raise error_from_result(results[-1]) if results else psycopg.OperationalError("the connection is lost")
    return results
