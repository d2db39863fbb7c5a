"""Connections with the settings the promise rests on, and the port's verbs over psycopg.

How statements travel is told in `statements`. Some are gathered here and go together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import generators, pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.types.numeric import NumericBinaryLoader

from weft.kernel.errors import InvalidInput, Unsupported, WeakDurability
from weft.store.postgres.address import PostgresAddress
from weft.store.postgres.statements import KEPT_STATEMENTS, NoForm, ServerCall, Statements, translate
from weft.store.sql import Question, Row, RowsRefused, WriteBuffer, askable, words_of

OLDEST_SERVER = 160_000
FIRST_FETCH, LARGEST_FETCH = 32, 512
FETCHED_BYTES = 1024 * 1024
MOST_WAITING, WAITING_BYTES = 128, 1024 * 1024
"""So many statements that change something wait at most, and so many bytes of theirs, which are in memory meanwhile."""
REPEATED = re.compile(r"\bFROM (?:local|watermark)\b")
"""Questions that one reader asks again and again."""
DEFAULTS: dict[str, Any] = {
    "application_name": "weft",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Unless the address says otherwise: a server that has vanished is noticed within half a minute."""
WRITER_IDLE, READER_IDLE = "60s", "0"
"""A writer that holds the ledger's lock and says nothing for so long is taken for gone: the server lets others on."""
Connection = psycopg.Connection[Row]


class _Number(Dumper):
    oid = 0

    def dump(self, obj: Any) -> Buffer:
        return b"%d" % obj


class _Truth(Dumper):
    """As SQLite has it: 1 or 0, which PostgreSQL takes for a number or for a truth value."""

    oid = 0

    def dump(self, obj: Any) -> Buffer:
        return b"1" if obj else b"0"


class _TruthAsNumber(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        return bytes(data)[0]


class _Sum(NumericBinaryLoader):
    """PostgreSQL's sum of whole numbers is `numeric`."""

    def load(self, data: Buffer) -> Any:
        return int(super().load(data))


_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(int, _Number)
_ADAPTERS.register_dumper(bool, _Truth)
_ADAPTERS.register_loader("bool", _TruthAsNumber)
_ADAPTERS.register_loader("numeric", _Sum)


@lru_cache(maxsize=1024)
def changed_table(statement: str) -> str | None:
    """The table that a statement changes; None of one that changes none."""
    change = _CHANGED.search(statement)
    return change[1] if change else None


_CHANGED = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")


class PostgresSql:
    """The port's verbs on one connection. Whoever reads or writes finds every row that was added before.

    A statement that changes something waits for the next that asks something, or for the end of the transaction: they
    go to the server together. Should the server refuse one, whoever asked hears of it; it is told apart whether the
    refused one belongs to work that was done before (`RowsRefused`).
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._later: list[tuple[str, Sequence[Any], int]] = []
        """Statements that wait, each with how much work was done before the one that it belongs to."""
        self._later_bytes = 0
        self.is_snapshot = False
        """What was asked here gives the same answer until the snapshot ends."""
        self.newest = 0
        """The newest event of the snapshot."""
        self._statements, self._cursors = Statements(connection), 0
        self._open: set[str] = set()
        """Cursors of the transaction under way."""
        self.buffer = WriteBuffer(self._execute)
        self.add = self.buffer.add
        self._answers: dict[Question, list[Row]] = {}

    @property
    def lost(self) -> bool:
        return self.connection.info.transaction_status == pq.TransactionStatus.INERROR

    @property
    def broken(self) -> bool:
        return self.connection.closed

    def _execute(self, sql: str, values: Sequence[Any]) -> None:
        if self._answers:
            self._forget_answers(sql)
        self._later.append((sql, values, self.buffer.works_done - self.buffer.is_writing_done))
        self._later_bytes += sum([len(value) for value in values if type(value) is bytes])
        if len(self._later) >= MOST_WAITING or self._later_bytes >= WAITING_BYTES:
            self.flush()

    def _forget_answers(self, statement: str) -> None:
        """What was foreseen about the table that a statement changes is true no longer."""
        table = changed_table(statement)
        if table is None:
            return
        for question in [each for each in self._answers if table in words_of(each[0])]:
            del self._answers[question]

    def flush(self) -> None:
        """Every statement that waits, for one way to the server and back."""
        if self._later:
            self._send_later(())

    def drop(self) -> None:
        """No statement that waits is run: the transaction is given up."""
        self._later.clear()
        self._later_bytes = 0

    def _send_later(self, questions: Sequence[Question], last: Sequence[str] = ()) -> list[list[Row]]:
        """Every statement that waits, then the questions, then the last; the rows of those behind what waited."""
        later, self._later, self._later_bytes = self._later, [], 0
        try:
            results = self._statements.send([*[(sql, tuple(values)) for sql, values, _ in later], *questions], last)
        except psycopg.Error as error:
            if isinstance(error, NoForm):  # those before it are others' in part, and go with what comes next
                self._later = later[: error.place]
            if any(works_done < self.buffer.works_done for _, _, works_done in later):
                raise RowsRefused from error
            raise
        except BaseException:  # nobody knows which of them the server has: the transaction must not go on without them
            self.close()
            raise
        return [self._statements.rows(result) for result in results[len(later) :]]

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of(sql)):
            self.buffer.write_rows()
        question = (sql, tuple(values))
        if (known := self._answers.get(question)) is not None:
            return list(known)
        return self._ask(question)

    def _ask(self, question: Question) -> list[Row]:
        sql, values = question
        (rows,) = self._send_later([(sql, askable(values))])
        if self.is_snapshot and REPEATED.search(sql):
            self._answers[question] = list(rows)
        return rows

    def ask_together(self, questions: Sequence[Question]) -> list[list[Row]]:
        """The rows of several statements, for one way to the server and back."""
        return self._send_later([(sql, askable(values)) for sql, values in questions])

    def remember_answers(self, questions: Sequence[Question], answers: Sequence[list[Row]]) -> None:
        """These answers are true until this transaction changes something, or ends."""
        self._answers = dict(zip(questions, answers, strict=True))

    def conclude(self, statements: Sequence[str]) -> None:
        """Every waiting row into its table and then these statements, for one way to the server and back. If a row does
        not fit, none of them is run, and the transaction is lost."""
        self.buffer.write_rows()
        self._open.clear()
        self._answers.clear()
        self._send_later((), statements)

    def call(self, values: Sequence[Buffer | None], call: ServerCall) -> list[bytes | None]:
        """As `Statements.call`, behind every statement that waits."""
        self.flush()
        self._answers.clear()
        return self._statements.call(call, values)

    def each(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """A few rows are here at a time, however many there are, and fewer where they are large."""
        if self.buffer.waiting:
            self.buffer.write_rows()
        self.flush()
        self._cursors += 1
        name, cursor = f"each_{self._cursors}", self.connection.cursor()
        cursor.execute(
            f"DECLARE {name} NO SCROLL CURSOR FOR ".encode() + translate(sql), askable(values), prepare=False
        )
        size, rows = FIRST_FETCH, list[Row]()
        self._open.add(name)
        try:
            while True:
                rows = cursor.execute(f"FETCH {size} FROM {name}".encode(), binary=True, prepare=False).fetchall()
                yield from rows
                if len(rows) < size:
                    return
                size = min(size * 2, LARGEST_FETCH) if _weight(rows) < FETCHED_BYTES else max(size // 2, 1)
        finally:
            is_open = name in self._open  # else its transaction is over: who has the connection now is not disturbed
            self._open.discard(name)
            if is_open and self.connection.info.transaction_status == pq.TransactionStatus.INTRANS:
                self._run_script(f"CLOSE {name}")

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.buffer.before_statement()
        self._execute(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.buffer.before_statement()
        self.flush()
        self._answers.clear()
        self.connection.cursor().executemany(translate(sql), rows)

    def script(self, text: str) -> list[Row]:
        """Several statements without values in one go; the rows of the last. Past the buffer: it begins and ends."""
        self.flush()
        self._answers.clear()
        self._open.clear()
        return self._run_script(text)

    def _run_script(self, text: str) -> list[Row]:
        pgconn = self.connection.pgconn
        pgconn.send_query(text.encode())
        results = self.connection.wait(generators.execute(pgconn))
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return self._statements.rows(results[-1])

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()


def _weight(rows: Sequence[Row]) -> int:
    return sum(len(value) for row in rows for value in row if isinstance(value, bytes | str))


def connect(address: PostgresAddress, idle: str = READER_IDLE, read_only: bool = False) -> PostgresSql:
    """A connection that keeps the promise, or WeakDurability."""
    try:
        given = conninfo_to_dict(address.conninfo)
    except psycopg.Error as error:
        raise InvalidInput(f"{address.shown}: {error}", "postgresql://user@host:port/database?ledger=NAME") from error
    connection = Connection.connect(
        **{**DEFAULTS, **given},
        autocommit=True,
        context=_ADAPTERS,
        cursor_factory=psycopg.RawCursor,
        prepare_threshold=1,
    )
    try:
        connection.prepared_max = KEPT_STATEMENTS
        connection.add_notice_handler(_ignore)
        return _ensure_promise(PostgresSql(connection), address, idle, read_only)
    except BaseException:  # whatever it was, the connection is nobody's
        connection.close()
        raise


def _ignore(notice: object) -> None:
    """What the server remarks in passing, such as that a schema is there already, is nobody's concern."""


def _ensure_promise(sql: PostgresSql, address: PostgresAddress, idle: str, read_only: bool) -> PostgresSql:
    """Statements are planned once, mostly while tables are small and the server has no statistics of them. With its own
    cost of a page by an index it would plan to read whole tables, and do so when they have grown."""
    server = sql.connection.info.server_version
    if server < OLDEST_SERVER:
        raise Unsupported(f"{address.shown}: the server is PostgreSQL {server // 10_000}", "16 or newer is needed")
    ((encoding, fsync, pages, commit),) = sql.script(
        f"SET search_path TO {address.quoted}, pg_temp; SET client_encoding TO 'UTF8'; SET jit TO off;"
        " SET plan_cache_mode TO force_generic_plan; SET random_page_cost TO 1;"
        " SET statement_timeout TO 0; SET lock_timeout TO 0; SET bytea_output TO 'hex'; SET extra_float_digits TO 1;"
        " SET default_transaction_isolation TO 'read committed';"
        f" SET idle_in_transaction_session_timeout TO '{idle}';"
        f" SET default_transaction_read_only TO {'on' if read_only else 'off'};"
        " SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') <> 'remote_apply';"
        " SELECT current_setting('server_encoding'), current_setting('fsync'), current_setting('full_page_writes'),"
        " current_setting('synchronous_commit')"
    )
    if encoding != "UTF8":
        raise Unsupported(f"{address.shown}: the database is encoded as {encoding}", "make one with ENCODING 'UTF8'")
    for setting, value in (("fsync", fsync), ("full_page_writes", pages), ("synchronous_commit", commit)):
        if value not in ("on", "remote_apply"):
            raise WeakDurability(setting, "on", value, "turn it on in the server's configuration, then try again")
    return sql
