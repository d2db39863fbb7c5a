"""The PostgreSQL backend: a ledger is a schema; writers take turns under one advisory lock,
readers see snapshots. Names that a store has claimed, news of commits, and the index of words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

import psycopg
from msgspec import Struct

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import LedgerMissing, LedgerTooOld, OutcomeUnknown, ReadOnlyLedger, StoreError, StoreFailed
from weft.store.fact_log import ERASING, LAST_NUMBER, NEWER_CONTENTS, FactReader, LogTip, local_value, questions_about
from weft.store.port import PATIENCE, AnyOf, Diagnosis, Progress, Question, ReadTxn, SearchTerm, WordIndex
from weft.store.postgres.connection import (
    COMMIT,
    COMMIT_THEN_FLUSH,
    FLUSH,
    SNAPSHOT,
    WRITER_IDLE,
    NoForm,
    PostgresSql,
    ReaderPool,
    connect,
    is_passing,
    parse_address,
    server_message,
    store_error,
    translated,
    violated_rule,
)
from weft.store.postgres.migrations import (
    MARK,
    OWN,
    PLACE,
    check_objects,
    examine_schema,
    find_damage,
    migrate,
    refuse_newer,
    rewrite_tables,
    schema_number,
    shipped_schema,
    write_copy,
)
from weft.store.postgres.straight_append import StraightAppends, TurnCall
from weft.store.replicas import NOTE, is_copy, take_new_name
from weft.store.sql import Question as SqlQuestion
from weft.store.sql import Row, RowsRefused, Sql
from weft.store.sql_store import BufferedSql, CommitBatch, CommitJob, Results, SqlStore, WriteWork, succeed
from weft.store.sqlite.connection import ensure_free
from weft.store.sqlite.migrations import Schema
from weft.store.sqlite.migrations import shipped_schema as scratch_schema
from weft.store.sqlite.store import scratch

# --- The index of words as vectors of lexemes under a GIN index.

_INSERT = "INSERT INTO word(n, words) VALUES (?, array_to_tsvector(string_to_array(?, ' ')))"


class GinIndex:
    """A row of lexemes for each passage."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        self._sql.run_many(_INSERT, list(passages))

    def drop(self, passages: Sequence[int]) -> None:
        self._sql.run_many("DELETE FROM word WHERE n = ?", [(n,) for n in passages])

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        rows = self._sql.fetch_rows(
            "SELECT n FROM word WHERE words @@ CAST(? AS tsquery) AND n BETWEEN ? AND ? LIMIT ?",
            (spelled(question), 0 if low is None else low, LAST_NUMBER if high is None else high, limit),
        )
        return [n for (n,) in rows]

    def ranked(self, question: Question, limit: int) -> list[int]:
        """Fewer words beside those looked for are better: that is all that is known without their places."""
        rows = self._sql.fetch_rows(
            "SELECT n FROM word WHERE words @@ CAST(? AS tsquery) ORDER BY length(words), n DESC LIMIT ?",
            (spelled(question), limit),
        )
        return [n for (n,) in rows]

    def pairs(self) -> Iterator[tuple[str, int]]:
        rows = self._sql.iterate_rows("SELECT w.lexeme, n FROM word, unnest(tsvector_to_array(words)) AS w(lexeme)")
        return cast("Iterator[tuple[str, int]]", rows)

    def purge(self) -> None:
        """The rows are gone; VACUUM, which no transaction can hold, takes their bytes."""

    def clear(self) -> None:
        self._sql.run("DELETE FROM word")


def spelled(question: Question) -> str:
    """The question in PostgreSQL's own language; every word is a quoted lexeme there."""
    return " & ".join(_group_expression(group) for group in question)


def _group_expression(group: AnyOf) -> str:
    return "(" + " | ".join(map(_term_expression, group)) + ")"


def _term_expression(term: SearchTerm) -> str:
    quoted = "'" + term.word.replace("\\", "\\\\").replace("'", "''") + "'"
    return f"{quoted}:*" if term.prefix else quoted


# --- What a store says beside its transactions: names that it has claimed or goes by, and that there is news.

KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4"
"""So soon the server sees that a machine is gone that says nothing more: what it held is free after half a minute."""


class SideConnection:
    """One connection for statements of a moment, one after another, whoever asks."""

    def __init__(self, connect: Callable[[], PostgresSql]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._sql: PostgresSql | None = None
        self._is_closed = False
        self.number = 0
        """Which connection it is by now: what was held by an earlier one is gone."""

    def script(self, text: str) -> list[Row]:
        return self.numbered_script(text)[0]

    def numbered_script(self, text: str) -> tuple[list[Row], int]:
        """The rows, and the number of the connection that they came over: a lock that was taken is held by that one,
        which may be lost before anybody asks for the number."""
        with self._lock:
            if self._is_closed:
                raise StoreError("the ledger was closed meanwhile", "open it again")
            is_new = self._sql is None
            if self._sql is None:
                self._sql = self._connect()
            try:
                if is_new:
                    self._sql.script(KEEPALIVES)
                return self._sql.script(text), self.number
            except BaseException:  # an interrupt too: nobody knows what it holds now
                self._sql.close()
                self._sql = None
                self.number += 1
                raise

    def close(self) -> None:
        """What it held is gone with it, and nothing makes another."""
        with self._lock:
            self._is_closed = True
            self.number += 1
            if self._sql is not None:
                self._sql.close()
                self._sql = None


class NameAnnouncements:
    """The names that one store goes by, as locks that are shared. One that was lost with its connection is taken again
    by whoever announces it again."""

    def __init__(self, side: SideConnection) -> None:
        self._side, self._lock = side, threading.Lock()
        self._held: dict[int, int] = {}
        """By lock, the connection that shares it."""

    def announce(self, key: int) -> None:
        with self._lock:
            if self._held.get(key) != self._side.number:
                ((is_shared,),), connection = self._side.numbered_script(f"SELECT pg_try_advisory_lock_shared({key})")
                if is_shared:  # whoever looks has the lock for a moment: the next call tries again
                    self._held[key] = connection

    def withdraw(self, key: int) -> None:
        with self._lock:
            if self._held.pop(key, None) != self._side.number:
                return
            try:
                self._side.script(f"SELECT pg_advisory_unlock_shared({key})")
            except (psycopg.Error, StoreError):  # its connection is gone, and the lock with it
                return

    def is_announced(self, key: int) -> bool:
        """Nobody else can have the lock for themselves while somebody shares it."""
        with self._lock:
            if self._held.get(key) == self._side.number:
                return True
            asked = f"CASE WHEN pg_try_advisory_lock({key}) THEN NOT pg_advisory_unlock({key}) ELSE true END"
            ((is_announced,),) = self._side.script(f"SELECT {asked}")
            return bool(is_announced)


class NameClaims:
    """The names that one store has claimed, by the numbers of their locks."""

    def __init__(self, side: SideConnection) -> None:
        self._side, self._lock = side, threading.Lock()
        self._held: dict[int, int] = {}
        """By lock, the connection that has it."""

    def take(self, key: int) -> bool:
        """Whether no other store has it."""
        with self._lock:
            if self._held.get(key) == self._side.number:
                return True
            ((is_ours,),), connection = self._side.numbered_script(f"SELECT pg_try_advisory_lock({key})")
            if is_ours:
                self._held[key] = connection
            return bool(is_ours)

    def give_back(self, key: int) -> None:
        with self._lock:
            if self._held.pop(key, None) != self._side.number:
                return
            try:
                self._side.script(f"SELECT pg_advisory_unlock({key})")
            except (psycopg.Error, StoreError):  # its connection is gone, and the claim with it
                return


# --- News of commits: told to whoever listens, from a connection that no transaction has, and waited for.

APART_SECONDS = 0.05
"""So far apart are two calls of one store; the first after a while comes at once."""
LISTEN_SECONDS = 1.0
POOLED = 2


class CommitAnnouncer:
    """Announces commits. Its thread begins with the first one and ends with the store."""

    def __init__(self, side: SideConnection, channel: str) -> None:
        self._side, self._channel = side, channel
        self._due, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def announce(self) -> None:
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-announcer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._due.wait()
            if self._over.is_set():
                break
            self._due.clear()
            with suppress(psycopg.Error, StoreError):  # listeners look by themselves as well
                self._side.script(f"NOTIFY {self._channel}")
            self._over.wait(APART_SECONDS)

    def close(self) -> None:
        self._over.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join()


class ListenerPool:
    """Connections that listen, lent to whoever waits."""

    def __init__(self, connect: Callable[[], PostgresSql], channel: str, listening: int) -> None:
        self._connect, self._channel, self._listening = connect, channel, listening
        self._pool: list[PostgresSql] = []
        self._is_closed = False

    def borrow(self) -> PostgresSql:
        """One that hears everything from now on."""
        sql = self._take()
        try:
            sql.script(f"SELECT pg_advisory_lock_shared({self._listening}); LISTEN {self._channel}")
        except BaseException:  # whoever waits takes another one
            sql.close()
            raise
        return sql

    def _take(self) -> PostgresSql:
        try:
            return self._pool.pop()
        except IndexError:
            return self._connect()

    def wait(self, sql: PostgresSql, seconds: float) -> bool:
        """True when something was announced within `seconds`."""
        return any(True for _ in sql.connection.notifies(timeout=seconds, stop_after=1))

    def give_back(self, sql: PostgresSql) -> None:
        """Keep a connection for the next who waits; after `close` none is kept. Nobody is called for its sake any
        longer, and nothing is sent to it that nobody takes."""
        if sql.broken or self._is_closed or len(self._pool) >= POOLED:
            sql.close()
            return
        try:
            sql.script(f"UNLISTEN *; SELECT pg_advisory_unlock_shared({self._listening})")
        except BaseException as error:  # what was waited for has come all the same
            sql.close()
            if not isinstance(error, psycopg.Error):
                raise
        else:
            self._pool.append(sql)
            if self._is_closed:  # meanwhile, by another thread
                self.close()

    def close(self) -> None:
        self._is_closed = True
        while self._pool:
            self._pool.pop().close()


# --- The PostgreSQL backend: a ledger is a schema; writers take turns under one advisory lock, readers see snapshots.

T = TypeVar("T")
ATTEMPTS = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
ASKING_SECONDS = 60.0
"""So long the outcome of a commit is asked for while the server is away."""
LOCK_SECONDS = 5
_BACKEND = "pid || '/' || extract(epoch FROM backend_start)"
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_STATE = (
    f"SELECT nextval('writes'), m.number, l.n, l.chain, l.contents, coalesce(e.n, 0) FROM {MARK} m"
    " LEFT JOIN (SELECT n, chain, contents FROM log ORDER BY n DESC LIMIT 1) l ON true"
    f" LEFT JOIN watermark e ON e.view = '{ERASING}'"
)
"""Who wrote last, by which schema, where the log ends, and which erasure was the last."""


_OF_MARK = "SELECT 1 FROM outcome WHERE writer = ? AND mark = ?"
_OF_CHAIN = "SELECT 1 FROM log WHERE n = ? AND chain = ?"
_OF_TURN = "SELECT l.n, l.chain, l.contents FROM turn t JOIN log l ON l.n >= t.n WHERE t.id = ? ORDER BY l.n LIMIT 1"
_END_BACKEND = f"SELECT pg_terminate_backend(pid, ?) FROM pg_stat_activity WHERE {_BACKEND} = ?"
STRAIGHT_TRIES = 2
"""The second time with the contents that the server named."""


class CommitTrace(Struct, frozen=True):
    """What tells afterwards whether a transaction was committed, and which session of the server tried to."""

    backend: str
    question: SqlQuestion
    """Nobody but that transaction can have written what it finds."""
    has_events: bool = True
    had_lock: bool = True
    """It held the writers' lock by the time it failed: whoever has the lock after it knows that it is over."""


class PostgresStore(SqlStore):
    """A ledger in a PostgreSQL schema. Opening makes or migrates it and asserts its durability."""

    def __init__(
        self,
        address: str,
        *,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
        create: bool = True,
        read_only: bool = False,
        schema: Schema | None = None,
    ) -> None:
        self.address = parse_address(address)
        super().__init__(self.address.shown, clock or SystemClock(), random_bytes)
        self.read_only = read_only
        self._schema = schema or shipped_schema()
        self._readers = ReaderPool(self._connect_reader)
        self._write_sql: PostgresSql | None = None
        self._backend, self._last_write, self._began_at = "", -1, 0
        self._lock = f"SELECT pg_advisory_xact_lock({self.address.lock})"
        self._begin = f"{_BEGIN}; {self._lock}"
        self._straight = StraightAppends(self.address, self._schema.number, self._recent, self._salts, self._clock)
        self._durable = 0
        """The newest event that is known to be durable."""
        self._side = SideConnection(self._connect_reader)
        self._announcer, self._claims = CommitAnnouncer(self._side, self.address.channel), NameClaims(self._side)
        self._announced = NameAnnouncements(self._side)
        self._listeners = ListenerPool(self._connect_reader, self.address.channel, self.address.listening)
        with translated(self.path):
            try:
                self._open_read_only() if read_only else self._open(create)
            except BaseException:  # whatever it was, nothing stays open
                self._release()
                raise

    # --- opening and closing ------------------------------------------------------------------------------------

    def _open_read_only(self) -> None:
        sql = self._readers.lend()
        try:
            number = schema_number(sql, self.address)
            if not number:
                raise LedgerMissing(self.path)
            refuse_newer(number, self._schema)
            check_objects(sql, self.address, self._schema, number, OWN)
            if number < self._schema.number:
                raise LedgerTooOld(number, self._schema.number)
            self.replica = local_value(sql, "replica")
        finally:
            self._readers.take_back(sql)

    def _open(self, create: bool) -> None:
        sql = self._writer()
        number = schema_number(sql, self.address)
        if not number and not create:
            raise LedgerMissing(self.path)
        refuse_newer(number or 0, self._schema)
        self.is_new = not number
        sql.script(self._begin)
        migrate(sql, self.address, self._schema)
        self._introduce(sql)
        self.replica = local_value(sql, "replica")
        self._settle_name(sql)
        sql.script("DELETE FROM outcome WHERE at < now() - interval '1 day'")
        sql.script("COMMIT")

    def _settle_name(self, sql: PostgresSql) -> None:
        """A ledger that was copied together with its name goes on under another one."""
        place = _database_place(sql, self.address.ledger)
        known = sql.fetch_row("SELECT value FROM local WHERE key = ?", (PLACE,))
        if is_copy(sql) or (known is not None and known != (place,)):
            was, self.replica = self.replica, self._mint()
            self.former = was
            sql.run(NOTE, ("copied", ""))
            take_new_name(sql, was, self.replica, FactReader(sql).tip().n)
        if known != (place,):
            sql.run(NOTE, (PLACE, place))

    def close(self) -> None:
        """Let what is under way end, then release everything; a reader still at work closes its own connection."""
        if self._rest(fill=True):
            self._release()

    def _release(self) -> None:
        self._announcer.close()
        self._listeners.close()
        self._side.close()
        self._readers.close()
        if self._write_sql is not None:
            self._write_sql.close()

    def _connect_reader(self) -> PostgresSql:
        return connect(self.address, read_only=True)

    # --- writing ------------------------------------------------------------------------------------------------

    def _writer(self) -> PostgresSql:
        if self._write_sql is None:
            sql = connect(self.address, WRITER_IDLE)
            self._write_sql = sql
            ((self._backend,),) = sql.script(f"SELECT {_BACKEND} FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        return self._write_sql

    def _discard_writer(self) -> None:
        self._forget()
        self._straight.forget()
        self._last_write, self._durable = -1, 0
        if self._write_sql is not None:
            self._write_sql.close()
            self._write_sql = None

    def _transact(self, batch: CommitBatch[WriteWork], results: Results) -> None:
        try:
            self._persist(lambda: self._attempt(batch, results), self._discard_writer)
        except BaseException:  # whatever it was, the next write begins with a connection of its own
            self._discard_writer()
            raise

    def _persist(self, attempt: Callable[[], T], clear: Callable[[], None]) -> T:
        """Again, a bounded number of times, where the moment was wrong and nothing came of it."""
        for tried in range(ATTEMPTS - 1):
            try:
                return attempt()
            except psycopg.Error as error:
                if not is_passing(error):
                    raise
                clear()
                self._pause(tried)
        return attempt()

    def _pause(self, tried: int) -> None:
        """Longer each time, and never the same for two who failed together."""
        jitter = 0.5 + int.from_bytes(self._random_bytes(2), "big") / 0x1_0000
        self._clock.sleep(min(FIRST_PAUSE * 2**tried, LONGEST_PAUSE) * jitter)

    def _attempt(self, batch: CommitBatch[WriteWork], results: Results) -> None:
        results.clear()
        sql = self._writer()
        job = batch[0]
        is_straight = len(batch) == 1 and not job.settled and job.work.straight is not None
        if is_straight and self._go_straight(sql, job, results):
            return
        self._straight.forget()
        self._run_all(sql, batch, results)

    def _go_straight(self, sql: PostgresSql, job: CommitJob[WriteWork], results: Results) -> bool:
        """An ordinary turn in one call. False where it has to go the general way: then nothing has happened."""
        self._tip = None  # with the call the log ends elsewhere
        for _ in range(STRAIGHT_TRIES):
            self._serial += 1
            turn = self._straight.make_provisional(sql, job.work, self._serial)
            if turn is None:
                return False
            try:
                tip = self._straight.send(sql, turn)
            except BaseException as error:  # also an interrupt can come before, during or after it
                return self._settle_failed_call(sql, turn, error, job, results)
            if tip is not None:
                results.append((job, turn.restated(tip)))
                succeed(results)
                self._durable = max(self._durable, tip.n)
                if self._straight.is_heard:
                    self._announcer.announce()
                return True
            if not self._straight.can_retry:
                return False
        return False

    def _settle_failed_call(
        self, sql: PostgresSql, turn: TurnCall, error: BaseException, job: CommitJob[WriteWork], results: Results
    ) -> bool:
        """Whether a turn is there whose call failed. One that the server refused is not; of a connection that died the
        server is asked, by the turn's id."""
        if not sql.broken and isinstance(error, psycopg.Error):
            if is_passing(error):
                raise error
            turn.salts.return_all()
            return False
        row = self._find_trace(CommitTrace(self._backend, (_OF_TURN, (turn.id,)), had_lock=False))
        if row is None:
            raise error
        results.append((job, turn.restated(LogTip(*row))))
        succeed(results)
        self._announcer.announce()
        if not isinstance(error, psycopg.Error):
            raise error
        return True

    def _conclude(self, sql: BufferedSql, tip: LogTip, results: Results) -> None:
        """The rows, the commit and the sync, for one way to the server and back."""
        assert isinstance(sql, PostgresSql)
        if not results:  # everybody was refused, and is told once that is durable which they were refused for
            sql.script("ROLLBACK" if self._began_at <= self._durable else f"ROLLBACK; {FLUSH}")
            return
        trace = self._trace(sql, tip)
        try:
            sql.conclude(COMMIT_THEN_FLUSH if trace.has_events else COMMIT)
        except BaseException as error:  # also an interrupt can come before, during or after it
            cause = error.__cause__ if isinstance(error, RowsRefused) else error
            if not sql.broken and (sql.lost or self._has_no_form(cause)):  # the server did not get as far as the commit
                raise RowsRefused from cause if isinstance(cause, psycopg.Error) else error
            if self._find_trace(trace) is None:
                raise cause or error from None
            succeed(results)
            if not isinstance(cause, psycopg.Error):
                raise
        else:
            succeed(results)
            self._durable = max(self._durable, tip.n)
        if trace.has_events:
            self._announcer.announce()

    def _trace(self, sql: PostgresSql, tip: LogTip) -> CommitTrace:
        """Events are found by their chain; a commit without any leaves a mark."""
        if tip.n > self._began_at:
            return CommitTrace(self._backend, (_OF_CHAIN, (tip.n, tip.chain)))
        sql.run(
            "INSERT INTO outcome(writer, mark) VALUES (?, ?)"
            " ON CONFLICT (writer) DO UPDATE SET mark = excluded.mark, at = now()",
            (self._backend, self._last_write),
        )
        return CommitTrace(self._backend, (_OF_MARK, (self._backend, self._last_write)), has_events=False)

    def _find_trace(self, trace: CommitTrace) -> Row | None:
        """Ask the server, as soon as it answers, whether that transaction was committed: a row where it was."""
        self._discard_writer()
        until, tried = self._clock.monotonic() + ASKING_SECONDS, 0
        while True:
            try:
                return self._ask(trace, patient=tried == 0)
            except psycopg.Error as error:
                if not is_passing(error) or self._clock.monotonic() >= until:
                    message = server_message(error)
                    raise OutcomeUnknown(f"{self.path}: the connection died at a commit ({message})") from error
                self._pause(tried)
                tried += 1

    def _ask(self, trace: CommitTrace, patient: bool) -> Row | None:
        """Whoever holds the writers' lock knows that no earlier transaction is still under way. One whose client is
        gone is given a moment to end by itself, then the server is told to end it. One that may not have begun yet is
        ended first: else it could come after the answer."""
        sql = connect(self.address, WRITER_IDLE)
        try:
            if not (patient and trace.had_lock):
                ended = sql.fetch_rows(_END_BACKEND, (LOCK_SECONDS * 1_000, trace.backend))
                if not all(is_over for (is_over,) in ended):
                    raise psycopg.OperationalError("the server has not ended a connection whose client is gone")
            sql.script(f"SET lock_timeout TO '{LOCK_SECONDS}s'; {self._begin}")
            row = sql.fetch_row(*trace.question)
            sql.script(f"ROLLBACK; {FLUSH}")
            return row
        finally:
            sql.close()

    def _start(self, sql: BufferedSql, works: Sequence[WriteWork]) -> LogTip:
        """One way to the server and back: begin, take the lock, read the state, and ask what the work will ask."""
        assert isinstance(sql, PostgresSql)
        recent = self._recent
        recent.asked.clear()
        wanted = recent.unknown(dict.fromkeys(key for work in works for key in work.contents))
        about, ahead = questions_about(wanted), list({ask: None for work in works for ask in work.ahead})
        seen = recent.seen if recent.seen >= 0 else LAST_NUMBER  # `refresh` asks for them then, past what the view has
        first = [(_BEGIN, ()), (self._lock, ()), (_STATE, ()), (NEWER_CONTENTS, (seen,))]
        _, _, (state,), newer, *answers = sql.ask_together([*first, *about, *ahead])
        write, number, n, chain, contents, erasures = state
        refuse_newer(number, self._schema)
        recent.answered(wanted, answers[: len(about)])
        sql.remember_answers(ahead, answers[len(about) :])
        before, self._last_write = self._last_write, write
        self._began_at = n or 0
        if self._tip is not None and write == before + 1:
            return self._tip
        self._tip = None
        if recent.seen < 0 or recent.erasures != erasures:
            recent.refresh(sql)
        else:
            recent.learn(newer)
        return LogTip(n, chain, contents) if n is not None else FactReader(sql).tip()

    def _begin_again(self, sql: BufferedSql) -> None:
        assert isinstance(sql, PostgresSql)
        sql.drop()
        sql.script("ROLLBACK")

    def _store_error(self, error: Exception) -> Exception:
        return store_error(error, self.path) if isinstance(error, psycopg.Error) else error

    def _violates(self, error: BaseException | None) -> str | None:
        return violated_rule(error)

    def _has_no_form(self, error: BaseException | None) -> bool:
        return isinstance(error, NoForm)

    def _is_passing(self, error: Exception) -> bool:
        return is_passing(error)

    # --- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with self._snapshot() as sql:
            yield ReadTxn(sql, FactReader(sql))

    @contextmanager
    def _snapshot(self) -> Iterator[PostgresSql]:
        self._refuse_closed()
        with translated(self.path):
            sql = self._persist(self._begin_reading, self._drop_readers)
            try:
                yield sql
            finally:
                self._end_reading(sql)

    def _begin_reading(self) -> PostgresSql:
        sql = self._readers.lend()
        try:
            ((newest, durable),) = sql.script(SNAPSHOT)
            sql.is_snapshot, sql.newest = True, newest
            if newest > self._durable:
                if not durable:
                    self._flush()
                self._durable = max(self._durable, newest)
        except BaseException:  # a connection that cannot begin is of no use to anybody
            sql.close()
            self._readers.take_back(sql)
            raise
        return sql

    def claim(self, name: str) -> bool:
        self._refuse_closed()
        key = self.address.claim(name)
        with translated(self.path):
            return self._persist(lambda: self._claims.take(key), lambda: None)

    def give_back(self, name: str) -> None:
        self._claims.give_back(self.address.claim(name))

    def announce(self, name: str) -> None:
        self._refuse_closed()
        with translated(self.path):
            self._announced.announce(self.address.claim(f"announced {name}"))

    def withdraw(self, name: str) -> None:
        self._announced.withdraw(self.address.claim(f"announced {name}"))

    def is_announced(self, name: str) -> bool:
        self._refuse_closed()
        with translated(self.path):
            return self._announced.is_announced(self.address.claim(f"announced {name}"))

    def _flush(self) -> None:
        """From another connection: the snapshot must not be given up for it."""
        self._side.script(FLUSH)

    def _drop_readers(self) -> None:
        self._durable = 0
        self._readers.drop()

    def _end_reading(self, sql: PostgresSql) -> None:
        """What was read stays read, also where the connection dies at the end."""
        sql.is_snapshot = False
        try:
            sql.script("COMMIT")
        except psycopg.Error:
            sql.close()
        except BaseException:  # an interrupt: nobody knows how far the server came
            sql.close()
            raise
        finally:
            self._readers.take_back(sql)

    def changes(self, after: int, timeout: float) -> bool:
        """Time is counted by what was waited for, so that it passes on any clock. While the server is away, whoever
        waits goes on waiting."""
        left, listener = timeout, None
        try:
            while not self._has_beyond(after, left):
                if left <= 0:
                    return False
                some = min(left, LISTEN_SECONDS)
                if listener is None or listener.broken:
                    listener = self._listener()
                    left -= 0 if listener else self._sleep(some)
                else:
                    left -= self._wait(listener, some)
            return True
        finally:
            if listener is not None:
                self._listeners.give_back(listener)

    def _has_beyond(self, after: int, left: float) -> bool:
        try:
            with self._snapshot() as sql:
                return sql.newest > after
        except StoreFailed as error:
            if left <= 0 or not is_passing(error.__cause__):
                raise
            return False

    def _listener(self) -> PostgresSql | None:
        """One that hears everything from now on; None where there is nobody to listen to."""
        try:
            return self._listeners.borrow()
        except psycopg.Error as error:
            if not is_passing(error):
                raise store_error(error, self.path) from error
            return None

    def _sleep(self, seconds: float) -> float:
        self._clock.sleep(seconds)
        return seconds

    def _wait(self, listener: PostgresSql, seconds: float) -> float:
        """Until something is announced; returns how long that took, and all of the time where nothing was. A listener
        that dies is nobody's failure: a moment later whoever waits looks by itself, with another one."""
        began = self._clock.monotonic()
        try:
            if not self._listeners.wait(listener, seconds):
                return seconds
        except psycopg.Error:
            listener.close()
            self._clock.sleep(min(seconds, FIRST_PAUSE))
        return min(seconds, self._clock.monotonic() - began)

    # --- keeping ------------------------------------------------------------------------------------------------

    @contextmanager
    def scratch(self) -> Iterator[Sql]:
        with scratch(scratch_schema()) as sql:
            yield sql

    def disk_bytes(self) -> int:
        with self._snapshot() as sql:
            row = sql.fetch_row(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r'"
                " AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = ?)",
                (self.address.ledger,),
            )
        return int(row[0]) if row else 0

    def word_index(self, sql: Sql) -> WordIndex:
        return GinIndex(sql)

    def check_integrity(self) -> list[str]:
        with self._snapshot() as sql:
            return find_damage(sql, self.address)

    def examine(self) -> list[Diagnosis]:
        """What is wrong with the tables as such."""
        with self._snapshot() as sql:
            return list(examine_schema(sql, self.address))

    def rewrite(self, patience: float = PATIENCE) -> bool:
        """Every table into a file of its own, anew; the server's own log and its archives are beyond reach. Readers
        are waited for, and kept waiting."""
        self._refuse_closed()
        if self.read_only:
            raise ReadOnlyLedger(self.path)
        with translated(self.path):
            sql = connect(self.address, WRITER_IDLE)
            try:
                return rewrite_tables(sql, self.address, patience)
            finally:
                sql.close()

    def empty_log(self, patience: float = PATIENCE) -> bool:
        return self.rewrite(patience)

    def backup(
        self, target: Path, progress: Progress | None = None, beside: Callable[[], object] | None = None
    ) -> None:
        ensure_free(target)
        with self._snapshot() as sql:
            write_copy(sql, target, progress, beside)


def _database_place(sql: PostgresSql, ledger: str) -> str:
    row = sql.fetch_row(
        "SELECT c.system_identifier || '/' || d.oid || '/' || n.oid FROM pg_control_system() c, pg_database d,"
        " pg_namespace n WHERE d.datname = current_database() AND n.nspname = ?",
        (ledger,),
    )
    if row is None:
        raise StoreFailed(f"the schema {ledger} is gone")
    return str(row[0])
