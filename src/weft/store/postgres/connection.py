"""Connections to a PostgreSQL ledger: what an address says, the settings the promise rests on,
statements sent together, what psycopg raises in Weft's words, connections lent to readers, and when
a commit becomes durable.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import psycopg
from msgspec import Struct, field
from psycopg import generators, pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader, Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.numeric import NumericBinaryLoader

from weft.kernel.errors import (
    Action,
    Damaged,
    InvalidInput,
    ReadOnlyLedger,
    StoreError,
    StoreFailed,
    Unsupported,
    WeakDurability,
    quoted,
)
from weft.store.sql import Question, Row, RowsRefused, WriteBuffer, askable, words_of_statement

# --- What an address says: `postgresql://user@host:port/database?ledger=NAME` and everything else that libpq takes.

DEFAULT_LEDGER = "weft"
SHOWN = ("host", "port", "dbname", "user", "service")
"""Options that lead to a database and are no secret."""
SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
"""Options that belong into files of their own."""
MAX_NAME_BYTES = 63
_FORM = "postgresql://user@host:port/database?ledger=NAME; in a password / ? # @ % and spaces are written as %XX"
_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


class PostgresAddress(Struct, frozen=True):
    """`conninfo` is for libpq alone: it may hold a password. `shown` and `kept` never do."""

    conninfo: str
    ledger: str
    shown: str
    kept: str
    """All but secrets: leads to the same ledger, by the same way."""

    @property
    def quoted(self) -> str:
        """The schema, as SQL writes it."""
        return f'"{self.ledger}"'

    @property
    def lock(self) -> int:
        """The advisory lock of the ledger's writers; advisory locks belong to a database, so the name is enough."""
        return int.from_bytes(sha256(f"weft.ledger\n{self.ledger}".encode()).digest()[:8], "big", signed=True)

    def claim(self, name: str) -> int:
        """The advisory lock of whoever has claimed this name in the ledger."""
        return int.from_bytes(sha256(f"weft.claim\n{self.ledger}\n{name}".encode()).digest()[:8], "big", signed=True)

    @property
    def listening(self) -> int:
        """The advisory lock that everybody shares who listens for commits."""
        return self.claim("listening")

    @property
    def channel(self) -> str:
        """Where commits are announced."""
        return f"weft_{sha256(self.ledger.encode()).hexdigest()[:32]}"


def parse_address(text: str) -> PostgresAddress:
    if not text.isprintable() or text != text.strip():
        raise InvalidInput("the address holds characters that nobody can see", "write them as %XX")
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidInput("the address cannot be read", _FORM) from None
    if "://" not in text:
        raise InvalidInput("the address cannot be read", _FORM)
    _refuse_loose_ends(parts, options)
    names = [value for key, value in options if key == "ledger"]
    if len(names) > 1:
        raise InvalidInput("the address names several ledgers", "give ledger= once")
    ledger = checked_name(names[0] if names else DEFAULT_LEDGER)
    others = [(key, value) for key, value in options if key != "ledger"]
    user, at, host = parts.netloc.rpartition("@")
    place = user.split(":")[0] + at + host
    shown = [(key, value) for key, value in others if key in SHOWN]
    kept = [(key, value) for key, value in options if key.lower() not in SECRETS]
    return PostgresAddress(
        conninfo=_joined_address(parts.netloc, parts.path, others),
        ledger=ledger,
        shown=_joined_address(place, parts.path, [*shown, ("ledger", ledger)]),
        kept=_joined_address(place, parts.path, kept),
    )


def _refuse_loose_ends(parts: SplitResult, options: list[tuple[str, str]]) -> None:
    """A password in which a sign was not written as %XX ends too early, and the rest of it would be taken for a host,
    a database or an option, and be shown as such. So nothing of such an address is told."""
    user, _, hosts = parts.netloc.rpartition("@")
    ports = (host.rpartition("]")[2].partition(":")[2] for host in hosts.split(","))
    broken = "@" in user or " " in user or _BARE_PERCENT.search(user) is not None or "@" in parts.path or parts.fragment
    strange = any(port and not port.isdigit() for port in ports) or not all(key.isidentifier() for key, _ in options)
    if broken or strange:
        raise InvalidInput("the address cannot be read", _FORM)


def checked_name(name: str) -> str:
    """A schema that nobody needs to escape, and none of PostgreSQL's own."""
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum() and not name[0].isdigit()
    if not plain or len(name) > MAX_NAME_BYTES or name.startswith("pg_") or name == "information_schema":
        raise InvalidInput(
            f"{quoted(name)} cannot name a ledger",
            f"up to {MAX_NAME_BYTES} letters, digits, - and _, beginning with a letter, and not with pg_",
        )
    return name


def _joined_address(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote, safe="/")
    return f"postgresql://{netloc}{path}{'?' if query else ''}{query}"


# --- Statements on their way to the server: several at once, each prepared when it is first sent.

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
                self._add_statement(batch, key, parameters)
            for statement in last:
                pgconn.send_query_params(statement.encode(), None)
                batch.sent.append(None)
            results = self._receive_results(1)
        except BaseException:  # an interrupt too
            self._connection.close()
            raise
        return self._checked_answers(results, batch)

    def call(self, call: ServerCall, values: Sequence[Buffer | None]) -> list[bytes | None]:
        """A statement and, once that is committed, the one after it: each a transaction of its own, for one way to the
        server and back. Returns their rows, one after the other, in the server's binary form. An error that leaves the
        connection open is the server's refusal of the first: nothing has happened. After any other it is closed."""
        try:
            return self._call_server(call, values)
        except InvalidSqlStatementName:  # the server has forgotten it, as after DEALLOCATE ALL
            if self._connection.closed:  # it was the second, and the first is done
                raise
            return self._call_server(call, values)

    def _call_server(self, call: ServerCall, values: Sequence[Buffer | None]) -> list[bytes | None]:
        pgconn, batch = self._connection.pgconn, StatementBatch()
        try:
            pgconn.enter_pipeline_mode()
            self._add_statement(batch, (call.statement, call.is_binary), values, call.name)
            pgconn.pipeline_sync()
            committing = len(batch.sent)
            self._add_statement(batch, (call.after, ()), ())
            results = self._receive_results(2)
            if all(result.status in _DONE for result in results[:committing]):
                for result in results[committing:]:
                    if result.status not in _DONE:
                        raise error_from_result(result)
        except BaseException:  # an interrupt too
            self._connection.close()
            raise
        answers = self._checked_answers(results, batch)
        return [result.get_value(0, column) for result in answers for column in range(result.nfields)]

    def _add_statement(
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

    def _receive_results(self, transactions: int) -> list[PGresult]:
        """The results of all that was put on its way, in so many transactions of its own; the last ends here."""
        pgconn = self._connection.pgconn
        pgconn.pipeline_sync()
        results = self._connection.wait(_fetch_results(pgconn, transactions))
        pgconn.exit_pipeline_mode()
        return results

    def _checked_answers(self, results: Sequence[PGresult], batch: StatementBatch) -> list[PGresult]:
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


def _fetch_results(pgconn: PGconn, transactions: int) -> PQGen[list[PGresult]]:
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


# --- What psycopg raises, in Weft's words: which failures pass by themselves, and who must act on the others.

PASSING = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # a lock that was not waited for
        "57P01",  # the administrator ended the connection
        "57P02",  # another session crashed
        "57P03",  # starting up or shutting down
        "57P05",  # idle for too long
        "25P03",  # idle for too long inside a transaction
        "53300",  # too many connections
    }
)
_MINTED = {
    "turn_id": "turn.id",
    "session_id_key": "session.id",
    "program_pkey": "program.id",
}
_CORRUPT = ("XX001", "XX002")
GRANT = "grant the user what it needs: CREATE on the database, or everything in the ledger's schema"
_AWAY = "start it, or check the address and the network; Weft connects again by itself"
_HINTS = {
    "28": "check the user, the password and the server's pg_hba.conf",
    "3D": "make the database first: `createdb NAME`",
    "42501": GRANT,
    "53100": "free space on the server's disk, then try again; nothing was acknowledged",
    "53300": "let fewer programs connect at once, or raise max_connections",
}

_AT_CONNECTING = (
    ('FATAL:  database "', "3D"),
    ('FATAL:  role "', "28"),
    ("authentication failed", "28"),
    ("pg_hba.conf", "28"),
    ("too many clients", "53300"),
)
"""A server that refuses a connection gives no code, only words."""


def is_passing(error: BaseException | None) -> bool:
    """It says nothing about the work, only that the moment or the connection was wrong."""
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code in PASSING or code.startswith("08")


def violated_rule(error: BaseException | None) -> str | None:
    """The rule of a table that a row breaks; a minted id by its column."""
    if not isinstance(error, psycopg.IntegrityError):
        return None
    name = error.diag.constraint_name or server_message(error)
    return _MINTED.get(name, name)


def server_message(error: psycopg.Error) -> str:
    """The server's words in one line."""
    return error.diag.message_primary or " ".join(str(error).split())


@contextmanager
def translated(path: str) -> Iterator[None]:
    """psycopg's errors become ours; what the caller's own work raises passes through."""
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error, path) from error


def store_error(error: psycopg.Error, path: str) -> StoreError:
    code = error.sqlstate or ""
    if code == "25006":
        return ReadOnlyLedger(path)
    if code in _CORRUPT:
        return Damaged(f"{path}: the database is malformed ({server_message(error)})", Action.COPY_BACKUP)
    if code[:2] == "42" and code not in _HINTS:  # the statements are our own: what they do not find was there once
        return Damaged(f"{path}: the schema is not whole ({server_message(error)})", Action.COPY_BACKUP)
    hint = _HINTS.get(code) or _HINTS.get(code[:2])
    if not code:
        hint = next((_HINTS[kind] for words, kind in _AT_CONNECTING if words in str(error)), None)
    if hint is None and is_passing(error):
        hint = _AWAY if not code or code.startswith(("08", "57")) else "try again"
    return StoreFailed(f"{path}: {server_message(error)}", hint or "")


# --- Connections with the settings the promise rests on, and the port's verbs over psycopg.

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
        self._checked_answers: dict[Question, list[Row]] = {}

    @property
    def lost(self) -> bool:
        return self.connection.info.transaction_status == pq.TransactionStatus.INERROR

    @property
    def broken(self) -> bool:
        return self.connection.closed

    def _execute(self, sql: str, values: Sequence[Any]) -> None:
        if self._checked_answers:
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
        for question in [each for each in self._checked_answers if table in words_of_statement(each[0])]:
            del self._checked_answers[question]

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

    def fetch_row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.fetch_rows(sql, values)
        return rows[0] if rows else None

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        if self.buffer.waiting and not self.buffer.waiting.keys().isdisjoint(words_of_statement(sql)):
            self.buffer.write_rows()
        question = (sql, tuple(values))
        if (known := self._checked_answers.get(question)) is not None:
            return list(known)
        return self._ask(question)

    def _ask(self, question: Question) -> list[Row]:
        sql, values = question
        (rows,) = self._send_later([(sql, askable(values))])
        if self.is_snapshot and REPEATED.search(sql):
            self._checked_answers[question] = list(rows)
        return rows

    def ask_together(self, questions: Sequence[Question]) -> list[list[Row]]:
        """The rows of several statements, for one way to the server and back."""
        return self._send_later([(sql, askable(values)) for sql, values in questions])

    def remember_answers(self, questions: Sequence[Question], answers: Sequence[list[Row]]) -> None:
        """These answers are true until this transaction changes something, or ends."""
        self._checked_answers = dict(zip(questions, answers, strict=True))

    def conclude(self, statements: Sequence[str]) -> None:
        """Every waiting row into its table and then these statements, for one way to the server and back. If a row does
        not fit, none of them is run, and the transaction is lost."""
        self.buffer.write_rows()
        self._open.clear()
        self._checked_answers.clear()
        self._send_later((), statements)

    def call(self, values: Sequence[Buffer | None], call: ServerCall) -> list[bytes | None]:
        """As `Statements.call`, behind every statement that waits."""
        self.flush()
        self._checked_answers.clear()
        return self._statements.call(call, values)

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """A few rows are here at a time, however many there are, and fewer where they are large."""
        if self.buffer.waiting:
            self.buffer.write_rows()
        self.flush()
        self._cursors += 1
        name, cursor = f"rows_{self._cursors}", self.connection.cursor()
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
                size = min(size * 2, LARGEST_FETCH) if _rows_bytes(rows) < FETCHED_BYTES else max(size // 2, 1)
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
        self._checked_answers.clear()
        self.connection.cursor().executemany(translate(sql), rows)

    def script(self, text: str) -> list[Row]:
        """Several statements without values in one go; the rows of the last. Past the buffer: it begins and ends."""
        self.flush()
        self._checked_answers.clear()
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


def _rows_bytes(rows: Sequence[Row]) -> int:
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


# --- Connections that read: lent to whoever reads, and kept for the next.

KEPT_READERS = 4
PATIENCE_SECONDS = 0.05


class ReaderPool:
    """The connections of one open store that read."""

    def __init__(self, connect: Callable[[], PostgresSql]) -> None:
        self._connect = connect
        self._free: list[PostgresSql] = []
        self._lent: dict[int, int] = {}
        """By connection, the thread that it was lent to."""
        self._is_closed = False
        self._returned = threading.Condition()

    def lend(self) -> PostgresSql:
        sql = self._free_one() or self._connect()
        with self._returned:
            self._lent[id(sql)] = threading.get_ident()
        return sql

    def _free_one(self) -> PostgresSql | None:
        with self._returned:
            if not self._free and self._lent and not self._has_one():
                self._returned.wait_for(lambda: self._free, PATIENCE_SECONDS)
            return self._free.pop() if self._free else None

    def _has_one(self) -> bool:
        return threading.get_ident() in self._lent.values()

    def take_back(self, sql: PostgresSql) -> None:
        """Those of a rush, or of a store closed meanwhile, are not kept."""
        with self._returned:
            self._lent.pop(id(sql), None)
            is_kept = not (sql.broken or self._is_closed or len(self._free) + len(self._lent) >= KEPT_READERS)
            if is_kept:
                self._free.append(sql)
                self._returned.notify()
        if not is_kept:
            sql.close()

    def drop(self) -> None:
        """One connection has died: most likely all have."""
        with self._returned:
            free, self._free = self._free, []
        for sql in free:
            sql.close()

    def close(self) -> None:
        """A reader still at work closes its own connection."""
        with self._returned:
            self._is_closed = True
        self.drop()


# --- When a commit becomes durable: after the writers' lock is let go, and before anybody is told of it.

FLUSH = "SELECT pg_logical_emit_message(true, 'weft', '')"
"""Nothing but a record in the server's log, committed as promised: whatever was committed before is durable then, here
and on every standby that the server waits for. It needs no right, and no transaction that may write."""


def flush_and_ask(listening: int) -> str:
    """The same, which also says whether anybody listens: whoever does shares the lock `listening`. One who begins to
    listen after this was asked sees the commit by looking."""
    asked = f"CASE WHEN pg_try_advisory_lock({listening}) THEN NOT pg_advisory_unlock({listening}) ELSE true END"
    return f"{FLUSH}, {asked}"


COMMIT = ("COMMIT",)
COMMIT_THEN_FLUSH = ("SET LOCAL synchronous_commit TO off", "COMMIT", FLUSH)

SNAPSHOT = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT coalesce((SELECT max(n) FROM log), 0),"
    " CASE WHEN pg_is_in_recovery() THEN true ELSE current_setting('synchronous_standby_names') = ''"
    " AND pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() END"
)
"""The newest event of a reader's snapshot, and whether all that it can see is durable. The snapshot is older than the
answer. A standby is sent only what is durable; where a server waits for standbys, what it has flushed itself says
nothing."""
