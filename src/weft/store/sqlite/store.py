"""The SQLite backend: one writer at a time, readers on snapshots of their own, every acknowledgement after its sync.

A write takes the lock file, begins, runs the waiting callers' work one by one (each undone alone if it raises),
commits, and only then writes the head file and answers. A process that dies before the commit leaves nothing; after
it, everything, with a head file that lags by one, which the next start accepts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, TypeVar

import apsw
from msgspec import Struct

from weft.kernel.ambient import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, Prepared, Salts, prepare
from weft.kernel.errors import (
    ContentTooLarge,
    Damaged,
    IdCollision,
    LedgerMissing,
    LogCut,
    ReadOnlyLedger,
    StoreError,
    StoreFailed,
    Unsupported,
)
from weft.kernel.ulid import UlidSource
from weft.store.buffer import RowsRefused
from weft.store.facts import FactReader, FactWriter, Key, LookupView, Stored, Tail, Tip, local_value
from weft.store.group_commit import Batch, GroupCommit, Job
from weft.store.port import Progress, ReadTxn, WriteTxn
from weft.store.sqlite.connection import (
    READ_ONLY,
    READ_WRITE,
    SqliteSql,
    connect,
    keep_log_on_close,
    make_durable,
    store_error,
    translated,
)
from weft.store.sqlite.copies import ensure_free, is_copy, take_new_name, write_copy
from weft.store.sqlite.files import FileLock, Head, HeadFile, refuse_unsafe_place
from weft.store.sqlite.migrations import Schema, check_version, migrate, refuse_newer, shipped_schema

T = TypeVar("T")
Results = list[tuple[Job["Work"], Any]]
POLL_SECONDS = 0.02
CLOSE_LAG = 256
POOLED_READERS = 8
SPOOL_BYTES = 4 * 1024 * 1024
MINTED = ("turn.id", "session.id", "program.id")


class Work(Struct, frozen=True):
    """What one caller wants done, and which contents it will likely put."""

    run: Callable[[WriteTxn], Any]
    contents: Sequence[Key]


def _succeed(results: Sequence[tuple[Job[Any], Any]]) -> None:
    for job, result in results:
        job.succeed(result)


def _put_spooled(spool: IO[bytes], scope: int, txn: WriteTxn) -> Stored:
    spool.seek(0)
    return txn.facts.put_stream(iter(lambda: spool.read(ROW_BYTES), b""), scope)


class _SqliteBase:
    """What the file and the memory store share: the transaction, group commit and the lookup views."""

    path: str
    replica: str
    read_only = False

    def __init__(self, path: str, clock: Clock, random_bytes: RandomBytes, schema: Schema | None) -> None:
        self.path, self._clock, self._random_bytes = path, clock, random_bytes
        self._schema = schema or shipped_schema()
        self._tail, self._salts = Tail(), Salts(random_bytes)
        self._tip: Tip | None = None
        self._serial = 0
        self._version: int | None = None
        self._jobs: GroupCommit[Work] = GroupCommit(self._commit)
        self._pid = os.getpid()
        self._closed = False
        self._lookups_fill, self._filling = True, threading.Lock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def prepare(self, data: bytes) -> Prepared:
        return prepare(data, self._salts.draw())

    def write(self, work: Callable[[WriteTxn], T], weight: int = 0, contents: Sequence[Key] = ()) -> T:
        self._refuse_closed()
        if self.read_only:
            raise ReadOnlyLedger(self.path)
        result: T = self._jobs.submit(Work(work, contents), weight)
        if self._tail.is_long and self._lookups_fill:
            self._fill_lookups()
        return result

    def _fill_lookups(self) -> None:
        """Between appends, by one caller while others go on. What was acknowledged is durable, so a failure here is
        nobody's: lookups then scan, and `verify` names what is wrong."""
        if not self._filling.acquire(blocking=False):
            return
        try:
            self.catch_up()
        except StoreError:
            self._lookups_fill = False
        finally:
            self._filling.release()

    def put_stream(self, chunks: Iterable[bytes], scope: int) -> Stored:
        """The caller's chunks are gathered before the writers' lock is taken: they may take their time."""
        with SpooledTemporaryFile(SPOOL_BYTES, dir=self._spool_folder()) as spool:
            size = 0
            for chunk in chunks:
                size += len(chunk)
                if size > MAX_CONTENT_BYTES:
                    raise ContentTooLarge(MAX_CONTENT_BYTES)
                self._spool(spool, chunk)
            return self.write(partial(_put_spooled, spool, scope), size)

    def _spool(self, spool: IO[bytes], chunk: bytes) -> None:
        try:
            spool.write(chunk)
            spool.flush()
        except OSError as error:
            with suppress(OSError):
                spool.close()  # or closing it would try, and fail, to write the rest once more
            raise StoreFailed(f"{self.path}: no room for a large content ({error})") from error

    def _spool_folder(self) -> str | None:
        """Where large contents wait: beside the ledger, not where others can look."""
        return None

    def catch_up(self) -> None:
        """Fill the lookup views in transactions of their own, so that writers get their turn in between."""
        while not self.read_only and self.write(self._advance_lookups):
            pass

    def _advance_lookups(self, txn: WriteTxn) -> bool:
        more = LookupView(txn.sql).advance()
        self._tail.forget()
        self._tail.refresh(txn.facts)
        return more

    def changes(self, after: int, timeout: float) -> bool:
        until = self._clock.monotonic() + timeout
        while True:
            with self.read() as txn:
                if txn.facts.tip().n > after:
                    return True
            if self._clock.monotonic() >= until:
                return False
            self._clock.sleep(POLL_SECONDS)

    def check_integrity(self) -> list[str]:
        with translated(self.path), self.read() as txn:
            found = txn.sql.all("PRAGMA integrity_check")
        return [text for (text,) in found if text != "ok"]

    @contextmanager
    def scratch(self) -> Iterator[SqliteSql]:
        connection = apsw.Connection("", statementcachesize=256)
        try:
            connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536")
            migrate(connection, ":memory:", self._schema)
            connection.execute("BEGIN")
            yield SqliteSql(connection)
        finally:
            connection.close()

    def read(self) -> Any:
        raise NotImplementedError

    def _writer(self) -> SqliteSql:
        raise NotImplementedError

    def _discard_writer(self) -> None:
        raise NotImplementedError

    def _exclusive(self) -> Any:
        raise NotImplementedError

    def _committed(self, tip: Tip) -> None:
        """The transaction is durable."""

    def _commit(self, jobs: Batch[Work]) -> None:
        """One transaction for all of them. Once it is durable every job has succeeded, whatever happens after."""
        results: Results = []
        committing, sql = False, None
        try:
            with self._exclusive():
                sql = self._writer()
                sql.run("BEGIN IMMEDIATE")
                tip = self._run_all(sql, jobs, results)
                committing = True
                sql.run("COMMIT")
                _succeed(results)
                self._version = sql.connection.data_version()
                self._committed(tip)
        except BaseException as error:  # whatever it was, every waiting caller must hear of it
            if committing and sql and not isinstance(error, apsw.Error) and not sql.connection.in_transaction:
                _succeed(results)
            self._discard_writer()
            self._fail_unsettled(jobs, error)
            if not isinstance(error, Exception):
                raise

    def _fail_unsettled(self, jobs: Sequence[Job[Work]], error: BaseException) -> None:
        if isinstance(error, apsw.Error):
            failure: BaseException = store_error(error, self.path)
        elif isinstance(error, Exception):
            failure = error
        else:
            failure = StoreFailed(f"{self.path}: the commit was interrupted")
        for job in jobs:
            if not job.settled:
                job.fail(failure)

    def _run_all(self, sql: SqliteSql, batch: Batch[Work], results: Results) -> Tip:
        """Their rows go down together. Should one not fit, all is undone and each goes down alone, to see whose."""
        batch.join()
        try:
            tip, jobs = self._start(sql), list(batch)
            while jobs:
                tip = self._run_each(sql, jobs, tip, results)
                jobs = batch.join()
            sql.buffer.put_down()
        except RowsRefused as refused:
            if not isinstance(refused.__cause__, apsw.ConstraintError):
                raise refused.__cause__ or refused from None
            results.clear()
            self._start_over(sql)
            tip = self._run_each(sql, [job for job in batch if not job.settled], self._start(sql), results, alone=True)
        return tip

    def _run_each(
        self, sql: SqliteSql, jobs: Sequence[Job[Work]], tip: Tip, results: Results, alone: bool = False
    ) -> Tip:
        self._tail.ask(sql, [key for job in jobs for key in job.work.contents])
        for job in jobs:
            facts = FactWriter(sql, self._tail, tip, self._salts, self._clock.now_ms())
            self._serial += 1
            sql.buffer.begin()
            try:
                result = job.work.run(WriteTxn(sql, facts, self._tip is not None, self._serial))
                facts.flush()
                if alone:
                    sql.buffer.put_down()
            except RowsRefused:
                raise
            except Exception as error:  # any failure of one caller's work is that caller's alone
                job.fail(self._work_error(error))
                sql.buffer.undo()
                self._tip = None
            else:
                sql.buffer.keep()
                self._tip = tip = facts.settle()
                results.append((job, result))
        return tip

    def _start_over(self, sql: SqliteSql) -> None:
        """Undo the whole transaction and begin it again."""
        self._forget()
        sql.buffer.forget()
        sql.run("ROLLBACK")
        sql.run("BEGIN IMMEDIATE")

    def _forget(self) -> None:
        """Nothing that is held in memory of the log's end is true any longer."""
        self._tail.forget()
        self._tip = None

    def _start(self, sql: SqliteSql) -> Tip:
        """Where the log ends. The database tells whether another connection has written since our last commit: it may
        have been a newer program's, whose schema this one must not write to."""
        self._tail.asked.clear()
        if self._tip is None or sql.connection.data_version() != self._version:
            self._tip = None
            refuse_newer(sql.connection, self._schema)
            reader = FactReader(sql)
            self._tail.refresh(reader)
            return reader.tip()
        return self._tip

    def _work_error(self, error: Exception) -> Exception:
        if isinstance(error, apsw.ConstraintError):
            if any(column in str(error) for column in MINTED):
                return IdCollision(str(error))
            return Damaged(f"{self.path}: the views do not fit the facts ({error})", "run `weft rebuild`")
        return store_error(error, self.path) if isinstance(error, apsw.Error) else error

    def _introduce(self, connection: apsw.Connection) -> None:
        """A new ledger gets its replica id and its import secret."""
        mint = UlidSource(self._clock.now_ms, self._random_bytes).mint
        for key, value in (("replica", mint()), ("import_secret", self._random_bytes(32).hex())):
            connection.execute("INSERT OR IGNORE INTO local(key, value) VALUES (?, ?)", (key, value))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed", "open it again")
        if os.getpid() != self._pid:
            raise Unsupported("this ledger was opened in another process", "open it again after the fork")


class SqliteStore(_SqliteBase):
    """A ledger file. Opening migrates it, asserts its durability and holds it against the head file."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
        create: bool = True,
        read_only: bool = False,
        accept_rollback: bool = False,
        schema: Schema | None = None,
        vfs: str | None = None,
    ) -> None:
        super().__init__(str(path), clock or SystemClock(), random_bytes, schema)
        self.read_only, self._vfs = read_only, vfs
        self._pool: list[SqliteSql] = []
        self._write_sql: SqliteSql | None = None
        self._file_lock: FileLock | None = None
        self._head_file: HeadFile | None = None
        file = Path(path)
        if not file.exists() and (read_only or not create):
            raise LedgerMissing(self.path)
        if not file.parent.is_dir():
            raise StoreError(f"there is no folder {file.parent}", "make it first")
        refuse_unsafe_place(file.parent)
        try:
            with translated(self.path):
                self._open_read_only(file) if read_only else self._open(file, accept_rollback)
        except OSError as error:
            self._release()
            raise StoreFailed(f"{self.path}: {error}", "check the folder and its permissions") from error
        except BaseException:  # whatever it was, nothing stays open and no file was touched for it
            self._release()
            raise

    def _open_read_only(self, file: Path) -> None:
        sql = self._reader()
        if check_version(sql.connection, self.path, self._schema) == 0:
            raise LedgerMissing(self.path)
        self.replica = local_value(sql, "replica")
        self._pool.append(sql)
        self._check_heads(HeadFile.load(Path(f"{file}-head")))

    def _open(self, file: Path, accept_rollback: bool) -> None:
        self._file_lock = lock = FileLock(Path(f"{file}-lock"))
        heads = Path(f"{file}-head")
        with lock:
            connection = connect(self.path, READ_WRITE, self._vfs)
            self._write_sql = SqliteSql(connection)
            keep_log_on_close(connection, True)  # until all is well: what cannot be opened must stay as it is
            is_new = check_version(connection, self.path, self._schema) == 0
            if is_new and not accept_rollback and (known := HeadFile.load(heads)):
                raise LogCut(max(head.n for head in known), 0, "is empty")
            make_durable(connection)
            migrate(connection, self.path, self._schema)
            self._introduce(connection)
            self.replica = local_value(self._write_sql, "replica")
            self._head_file = HeadFile(heads)
            try:
                self._check_heads(HeadFile.load(heads))
            except LogCut as cut:
                if not accept_rollback:
                    raise
                accepted = f"{self.replica} acknowledged {cut.n}, accepted at {cut.found} on {self.now_ms()}"
                self._take_new_name(self._write_sql, self._head_file, accepted)
            if is_copy(self._write_sql):
                self._take_new_name(self._write_sql, self._head_file)
            keep_log_on_close(connection, False)

    def _check_heads(self, heads: list[Head]) -> None:
        with self.read() as txn:
            end = txn.facts.tip().n
            for head in heads:
                if head.replica != self.replica:
                    raise LogCut(head.n, end, f"is not that of replica {head.replica}")
                if head.n > end:
                    raise LogCut(head.n, end, "is shorter than that")
                if txn.facts.chain_at(head.n) != head.chain:
                    raise LogCut(head.n, end, "says something else there")

    def _take_new_name(self, sql: SqliteSql, head_file: HeadFile, accepted: str | None = None) -> None:
        """Go on from what is there, under a new replica id: the old one has promised more than this file holds, or
        may do so elsewhere."""
        was, self.replica = self.replica, UlidSource(self._clock.now_ms, self._random_bytes).mint()
        sql.run("BEGIN IMMEDIATE")
        take_new_name(sql, was, self.replica, FactReader(sql).tip().n)
        if accepted is not None:
            sql.run("INSERT INTO local(key, value) VALUES (?, ?)", (f"rollback:{self.replica}", accepted))
        sql.run("COMMIT")
        head_file.clear()

    def _writer(self) -> SqliteSql:
        if self._write_sql is None:
            connection = connect(self.path, READ_WRITE, self._vfs)
            make_durable(connection)
            self._write_sql = SqliteSql(connection)
        return self._write_sql

    def _discard_writer(self) -> None:
        """After a failed commit nothing in memory is trusted: the next write reads the file afresh."""
        self._forget()
        if self._write_sql is not None:
            self._write_sql.connection.close(True)
            self._write_sql = None

    def _exclusive(self) -> Any:
        return self._file_lock

    def _spool_folder(self) -> str:
        return str(Path(self.path).absolute().parent)

    def _committed(self, tip: Tip) -> None:
        if self._head_file is not None and tip.n:
            with suppress(OSError):  # the append is durable all the same; the head lags, as it may after a crash
                self._head_file.write(Head(self.replica, tip.n, tip.chain))

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with self._snapshot() as sql:
            yield ReadTxn(sql, FactReader(sql))

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteSql]:
        self._refuse_closed()
        try:
            sql = self._pool.pop()
        except IndexError:
            sql = self._reader()
        with translated(self.path):
            sql.run("BEGIN")
            try:
                yield sql
            finally:
                if sql.connection.in_transaction:
                    sql.run("COMMIT")
                self._give_back(sql)

    def _give_back(self, sql: SqliteSql) -> None:
        """A few readers are kept for the next; those of a rush, or of a store closed meanwhile, are not."""
        if self._closed or len(self._pool) >= POOLED_READERS:
            sql.connection.close()
        else:
            self._pool.append(sql)

    def _reader(self) -> SqliteSql:
        with translated(self.path):
            connection = connect(*self._place_to_read(), self._vfs)
            connection.execute("PRAGMA query_only = ON")
            return SqliteSql(connection)

    def _place_to_read(self) -> tuple[str, int]:
        """Where nothing can be written, nobody does: the file is read without the files that writers share."""
        file = Path(self.path).absolute()
        log = Path(f"{file}-wal")
        if not self.read_only or os.access(file.parent, os.W_OK) or (log.exists() and log.stat().st_size):
            return self.path, READ_ONLY
        return f"{file.as_uri()}?immutable=1", READ_ONLY | apsw.SQLITE_OPEN_URI

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        ensure_free(target)
        with self._snapshot() as sql:
            sql.one("SELECT 1 FROM local")  # takes the snapshot that the whole copy is made of
            write_copy(sql.connection, target, progress)

    def close(self) -> None:
        """Let what is under way end, then release everything; a reader still at work closes its own connection."""
        if self._closed or os.getpid() != self._pid:
            return
        if not self.read_only and len(self._tail.by_digest) > CLOSE_LAG and self._lookups_fill:
            self._fill_lookups()
        self._closed = True
        self._jobs.rest()
        self._release()

    def _release(self) -> None:
        while self._pool:
            self._pool.pop().connection.close()
        if self._write_sql is not None:
            self._write_sql.connection.close()
        for beside in (self._file_lock, self._head_file):
            if beside is not None:
                beside.close()


class MemoryStore(_SqliteBase):
    """A ledger that lives as long as this object: one connection, one user at a time."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
        schema: Schema | None = None,
    ) -> None:
        super().__init__(":memory:", clock or SystemClock(), random_bytes, schema)
        self._turn = threading.RLock()
        connection = connect(":memory:", READ_WRITE)
        migrate(connection, ":memory:", self._schema)
        self._introduce(connection)
        self._sql = SqliteSql(connection)
        self.replica = local_value(self._sql, "replica")

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        self._refuse_closed()
        with translated(self.path), self._turn:
            yield ReadTxn(self._sql, FactReader(self._sql))

    def _writer(self) -> SqliteSql:
        return self._sql

    def _discard_writer(self) -> None:
        self._forget()
        self._sql.buffer.forget()
        if self._sql.connection.in_transaction:
            self._sql.run("ROLLBACK")

    def _exclusive(self) -> Any:
        return self._turn

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        ensure_free(target)
        with self.read():
            write_copy(self._sql.connection, target, progress)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.rest()
            with self._turn:
                self._sql.connection.close()
