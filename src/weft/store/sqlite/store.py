"""The SQLite backend: a ledger in a file or in memory, one writer at a time; and the empty database aside, in which
views are computed to be compared with stored ones, for every backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import Damaged, LedgerMissing, LedgerTooOld, LogCut, ReadOnlyLedger, StoreError, StoreFailed
from weft.kernel.typed_names import IN_MEMORY
from weft.store.fact_log import FactReader, LogTip, local_value
from weft.store.port import PATIENCE, Progress, ReadTxn, WordIndex
from weft.store.private_files import AFTER_FORK, LedgerFile, refuse_unsafe_place
from weft.store.replicas import accept_loss, accepted_loss, is_copy, last_event_as, take_new_name
from weft.store.sql import Sql
from weft.store.sql_store import MINTED, BufferedSql, CommitBatch, Results, SqlStore, WriteWork, succeed
from weft.store.sqlite.connection import (
    READ_ONLY,
    READ_WRITE,
    FileLock,
    FtsIndex,
    HeadFile,
    HeadSlot,
    NameLocks,
    SqliteSql,
    connect,
    copies_beside,
    empty_log,
    ensure_free,
    explain,
    explained,
    keep_log_on_close,
    make_durable,
    store_error,
    translated,
    write_clone,
    write_copy,
)
from weft.store.sqlite.migrations import (
    Schema,
    check_objects,
    check_version,
    migrate,
    missing_parts,
    refuse_newer,
    shipped_schema,
)


@contextmanager
def scratch(schema: Schema) -> Iterator[SqliteSql]:
    connection = apsw.Connection("", statementcachesize=256)
    try:
        connection.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536")
        migrate(connection, IN_MEMORY, schema)
        connection.execute("BEGIN")
        yield SqliteSql(connection)
    finally:
        connection.close()


# --- The SQLite backend: one writer at a time, readers on snapshots of their own, every acknowledgement after its
# sync.

POLL_SECONDS = 0.02
POOLED_READERS = 8
LONG_LOG_BYTES, PAUSE_SECONDS = 32 * 1024 * 1024, 0.01


class SqliteBase(SqlStore):
    """What the file and the memory store share: SQLite's transactions."""

    _after_fork = AFTER_FORK

    def __init__(self, path: str, clock: Clock, random_bytes: RandomBytes, schema: Schema | None) -> None:
        super().__init__(path, clock, random_bytes)
        self._schema = schema or shipped_schema()
        self._schema_number = self._schema.number
        self._version: int | None = None
        self._checked_schema: object = None
        self._alone = threading.RLock()
        """Whoever uses the writer's connection has it; once more where work that is under way closes the store."""

    def _writer(self) -> SqliteSql:
        raise NotImplementedError

    def _exclusive(self) -> Any:
        raise NotImplementedError

    def _ensure_in_place(self) -> None:
        """Whoever opens the ledger next would find what this transaction writes."""

    def _committed(self, tip: LogTip) -> None:
        """The transaction is durable."""

    def _transact(self, batch: CommitBatch[WriteWork], results: Results) -> None:
        with self._alone, self._exclusive():
            committing, sql = False, None
            try:
                sql = self._writer()
                sql.run("BEGIN IMMEDIATE")
                tip = self._run_all(sql, batch, results)
                self._ensure_in_place()
                committing = True
                sql.run("COMMIT")
                succeed(results)
                self._version = sql.connection.data_version()
                self._committed(tip)
            except BaseException as error:  # an interrupt can come after the commit as well as before it
                if committing and sql and not isinstance(error, apsw.Error) and not sql.connection.in_transaction:
                    succeed(results)
                self._discard_writer()
                raise

    def _begin_again(self, sql: BufferedSql) -> None:
        sql.run("ROLLBACK")
        sql.run("BEGIN IMMEDIATE")

    def _start(self, sql: BufferedSql, works: Sequence[WriteWork]) -> LogTip:
        """The database tells whether another connection has written since our last commit: it may have been a newer
        program's, whose schema this one must not write to."""
        assert isinstance(sql, SqliteSql)
        self._recent.asked.clear()
        if self._tip is None or sql.connection.data_version() != self._version:
            self._tip = None
            self._check_schema(sql.connection)
            reader = FactReader(sql)
            try:
                self._recent.refresh(reader.sql)
                return reader.tip()
            except (TypeError, ValueError, LookupError) as error:  # a row that nobody could have written
                raise Damaged(f"{self.path}: the end of the log cannot be read ({error})") from error
        return self._tip

    def _check_schema(self, connection: apsw.Connection) -> None:
        """This program knows the schema, and nothing was added to it. Each state of it is compared once."""
        if connection.pragma("user_version") != self._schema_number:
            refuse_newer(connection, self._schema)
        state = connection.pragma("schema_version")
        if state != self._checked_schema:
            check_objects(connection, self.path, self._schema)
            self._checked_schema = state

    def _store_error(self, error: Exception) -> Exception:
        return store_error(error, self.path) if isinstance(error, apsw.Error) else error

    def _work_error(self, error: Exception) -> Exception:
        with suppress(apsw.Error):  # what the engine itself says of the damage, it says to whoever asks next
            return explain(self._writer(), self.path, error) or super()._work_error(error)
        return error

    def _violates(self, error: BaseException | None) -> str | None:
        if not isinstance(error, apsw.ConstraintError):
            return None
        return next((column for column in MINTED if column in str(error)), str(error))

    def _has_no_form(self, error: BaseException | None) -> bool:
        return isinstance(error, UnicodeEncodeError | OverflowError | TypeError)

    def word_index(self, sql: Sql) -> WordIndex:
        return FtsIndex(sql)

    def changes(self, after: int, timeout: float) -> bool:
        until = self._clock.monotonic() + timeout
        while True:
            with self.read() as txn:
                if txn.facts.tip().n > after:
                    return True
            if self._clock.monotonic() >= until:
                return False
            self._clock.sleep(POLL_SECONDS)

    def disk_bytes(self) -> int:
        files = (Path(self.path), Path(f"{self.path}-wal"))
        return sum(file.stat().st_size for file in files if file.is_file())

    def check_integrity(self) -> list[str]:
        with translated(self.path), self.read() as txn:
            missing = missing_parts(txn.sql.connection, self._schema)
            if not missing:
                FtsIndex(txn.sql).look_again()
            found = txn.sql.fetch_rows("PRAGMA integrity_check")
        return [*missing, *(text for (text,) in found if text != "ok")]

    def rewrite(self, patience: float = PATIENCE) -> bool:
        with self._upkeep() as sql:
            self._forget()
            self._ensure_in_place()
            sql.run("VACUUM")
            return empty_log(sql.connection, patience)

    def empty_log(self, patience: float = PATIENCE) -> bool:
        with self._upkeep() as sql:
            return empty_log(sql.connection, patience)

    @contextmanager
    def _upkeep(self) -> Iterator[SqliteSql]:
        """The writer's connection, outside a transaction and with nobody else at it."""
        self._refuse_closed()
        self._jobs.refuse_inside()
        if self.read_only:
            raise ReadOnlyLedger(self.path)
        with translated(self.path), self._alone:
            self._refuse_closed()  # another thread may have closed it meanwhile
            with self._exclusive():
                yield self._writer()

    @contextmanager
    def scratch(self) -> Iterator[SqliteSql]:
        with scratch(self._schema) as sql:
            yield sql


class SqliteStore(SqliteBase):
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
        try:
            self._file = LedgerFile(Path(path))
        except OSError as error:
            raise StoreFailed(f"{path}: {error}", "check the folder and its permissions") from error
        shown = self._file.name if os.path.islink(path) else str(path)
        super().__init__(shown, clock or SystemClock(), random_bytes, schema)
        self.read_only, self._vfs = read_only, vfs
        self._pool: list[SqliteSql] = []
        self._lent: set[SqliteSql] = set()
        """Connections that somebody reads with right now."""
        self._write_sql: SqliteSql | None = None
        self._file_lock: FileLock | None = None
        self._head_file: HeadFile | None = None
        file = self._file.path
        self._names = NameLocks(Path(f"{file}-lock"))
        try:
            if not file.exists() and (read_only or not create):
                raise LedgerMissing(self.path)
            if not file.parent.is_dir():
                raise StoreError(f"there is no folder {Path(self.path).parent}", "make it first")
            refuse_unsafe_place(file.parent)
            with translated(self.path):
                self._open_read_only(file) if read_only else self._open(file, accept_rollback)
        except OSError as error:
            self._release()
            raise StoreFailed(f"{self.path}: {error}", "check the folder and its permissions") from error
        except BaseException:  # whatever it was, nothing stays open and no file was touched for it
            self._release()
            raise

    def _open_read_only(self, file: Path) -> None:
        self._file.identify()
        sql = self._reader()
        number = check_version(sql.connection, self.path, self._schema)
        if number == 0:
            raise LedgerMissing(self.path)
        if number < self._schema.number:
            raise LedgerTooOld(number, self._schema.number)
        self.replica = local_value(sql, "replica")
        self._pool.append(sql)
        self._check_heads(HeadFile.load(Path(f"{file}-head")))

    def _refuse_foreign(self, file: Path) -> None:
        """A file that is no ledger stays as it is, and nothing is made beside it. Where a lock or a log lies beside it,
        it is or was open somewhere, and only a connection that writes reads it rightly."""
        if not file.exists() or any(Path(f"{file}{end}").exists() for end in ("-lock", "-wal", "-journal")):
            return
        self._file.identify()
        connection = connect(f"{file.as_uri()}?immutable=1", READ_ONLY | apsw.SQLITE_OPEN_URI, self._vfs)
        try:
            check_version(connection, self.path, self._schema)
        finally:
            connection.close()

    def _open(self, file: Path, accept_rollback: bool) -> None:
        self._refuse_foreign(file)
        self._file_lock = lock = FileLock(Path(f"{file}-lock"))
        heads = Path(f"{file}-head")
        with lock:
            self._file.create()
            self._file.identify()
            connection = connect(self._file.name, READ_WRITE, self._vfs)
            self._write_sql = SqliteSql(connection)
            keep_log_on_close(connection, True)  # until all is well: what cannot be opened must stay as it is
            self.is_new = check_version(connection, self.path, self._schema) == 0
            if self.is_new and not accept_rollback and (known := HeadFile.load(heads)):
                raise LogCut(max(head.n for head in known), 0, "is empty")
            self._file.ensure_in_place()
            make_durable(connection)
            migrate(connection, self._file.name, self._schema)
            self._checked_schema = connection.pragma("schema_version")
            self._introduce(self._write_sql)
            self.replica = local_value(self._write_sql, "replica")
            self._head_file, known = HeadFile(heads), HeadFile.load(heads)
            try:
                self._check_heads(known)
            except LogCut as cut:
                if not accept_rollback:
                    raise
                accepted = f"{self.replica} acknowledged {cut.n}, accepted at {cut.found} on {self.now_ms()}"
                self._take_new_name(self._write_sql, self._head_file, accepted, known)
            if is_copy(self._write_sql):
                self._take_new_name(self._write_sql, self._head_file)
            keep_log_on_close(connection, False)

    def _check_heads(self, heads: list[HeadSlot]) -> None:
        with self.read() as txn:
            end = txn.facts.tip().n
            for head in heads:
                if head.n <= accepted_loss(txn.sql, head.replica):
                    continue  # the file is never synced: a power loss may bring it back as it was before
                if head.replica != self.replica and head.n > last_event_as(txn.sql, head.replica):
                    raise LogCut(head.n, end, f"is not that of replica {head.replica}")
                if head.n > end:
                    raise LogCut(head.n, end, "is shorter than that")
                if txn.facts.chain_at(head.n) != head.chain:
                    raise LogCut(head.n, end, "says something else there")

    def _take_new_name(
        self, sql: SqliteSql, head_file: HeadFile, accepted: str | None = None, lost: Sequence[HeadSlot] = ()
    ) -> None:
        """Go on from what is there, under a new replica id: the old one has promised more than this file holds, or
        may do so elsewhere."""
        was, self.replica = self.replica, self._mint()
        self.former = was
        sql.run("BEGIN IMMEDIATE")
        take_new_name(sql, was, self.replica, FactReader(sql).tip().n)
        if accepted is not None:
            sql.run("INSERT INTO local(key, value) VALUES (?, ?)", (f"rollback:{self.replica}", accepted))
        accept_loss(sql, {head.replica: head.n for head in sorted(lost, key=lambda head: head.n)})
        sql.run("COMMIT")
        head_file.clear()

    def _writer(self) -> SqliteSql:
        if self._write_sql is None:
            self._file.ensure_in_place()
            connection = connect(self._file.name, READ_WRITE, self._vfs)
            make_durable(connection)
            self._write_sql = SqliteSql(connection)
        return self._write_sql

    def _ensure_in_place(self) -> None:
        file = self._file
        try:
            found = os.lstat(file.name)
            if (found.st_ino, found.st_dev, found.st_nlink) == (file.inode, file.device, 1):
                return
        except OSError:
            pass  # that it cannot be found is told below
        try:
            file.ensure_in_place()
        except StoreError:  # another program may have the file open elsewhere, with a log of its own
            if self._write_sql is not None:
                keep_log_on_close(self._write_sql.connection, True)
            raise

    def _discard_writer(self) -> None:
        self._forget()
        if self._write_sql is not None:
            self._write_sql.connection.close(True)
            self._write_sql = None

    def _exclusive(self) -> Any:
        return self._file_lock

    def _spool_folder(self) -> str:
        return str(self._file.path.parent)

    def lying_beside(self) -> list[Path]:
        return copies_beside(self._file.path)

    def _committed(self, tip: LogTip) -> None:
        if self._head_file is not None and tip.n:
            try:
                self._head_file.write(HeadSlot(self.replica, tip.n, tip.chain))
            except OSError:
                return  # the append is durable all the same; the head lags, as it may after a crash

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with self._snapshot() as sql, explained(sql, self.path):
            yield ReadTxn(sql, FactReader(sql))

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteSql]:
        self._refuse_closed()
        try:
            sql = self._pool.pop()
        except IndexError:
            sql = self._reader()
        self._lent.add(sql)
        with translated(self.path):
            try:
                sql.run("BEGIN")
                yield sql
            finally:
                self._end_reading(sql)

    def _end_reading(self, sql: SqliteSql) -> None:
        """A connection whose transaction cannot be ended would keep its snapshot, and the log with it."""
        try:
            if sql.connection.in_transaction:
                sql.run("COMMIT")
        except BaseException:  # whatever it was, nobody gets it again
            sql.connection.close(True)
            raise
        else:
            self._give_back(sql)
        finally:
            self._lent.discard(sql)
            if self._closed:
                self._release_file()

    def announce(self, name: str) -> None:
        self._refuse_closed()
        self._names.announce(name)

    def withdraw(self, name: str) -> None:
        self._names.withdraw(name)

    def is_announced(self, name: str) -> bool:
        self._refuse_closed()
        return self._names.is_announced(name)

    def pause_reading(self) -> None:
        """A write-ahead log begins anew only at a moment without readers; a reader that never pauses would let it grow
        with every commit of the others."""
        log = Path(f"{self._file.name}-wal")
        with suppress(OSError):  # no log, nothing to wait for
            if log.stat().st_size > LONG_LOG_BYTES:
                self._clock.sleep(PAUSE_SECONDS)

    def _give_back(self, sql: SqliteSql) -> None:
        """A few readers are kept for the next; those of a rush, or of a store closed meanwhile, are not."""
        if self._closed or len(self._pool) >= POOLED_READERS:
            sql.connection.close()
        else:
            self._pool.append(sql)

    def _reader(self) -> SqliteSql:
        with translated(self.path):
            self._file.ensure_in_place()
            connection = connect(*self._place_to_read(), self._vfs)
            connection.execute("PRAGMA query_only = ON")
            return SqliteSql(connection)

    def _place_to_read(self) -> tuple[str, int]:
        """Where nothing can be written, nobody does: the file is read without the files that writers share."""
        file = self._file.path
        log = Path(f"{file}-wal")
        if not self.read_only or os.access(file.parent, os.W_OK) or Path(f"{file}-shm").exists():
            return self._file.name, READ_ONLY
        if log.exists() and log.stat().st_size:
            raise StoreFailed(
                f"part of {self.path} still lies in {log.name}, which cannot be read where nothing can be written",
                "copy both files into a folder that can be written, and open that copy",
            )
        return f"{file.as_uri()}?immutable=1", READ_ONLY | apsw.SQLITE_OPEN_URI

    def backup(
        self, target: Path, progress: Progress | None = None, beside: Callable[[], object] | None = None
    ) -> None:
        ensure_free(target)
        with self._snapshot() as sql:
            sql.fetch_row("SELECT 1 FROM local")  # takes the snapshot that the whole copy is made of
            write_copy(sql.connection, target, progress, beside)

    def clone(
        self,
        target: Path,
        check: Callable[[SqliteSql], object],
        change: Callable[[SqliteSql], object],
        place: Callable[[Path], object],
        progress: Progress | None = None,
    ) -> None:
        """Copy a consistent state, unless `check` refuses it, to a new file that `change` makes a ledger of its own,
        while readers and writers go on. Nobody else makes a ledger there meanwhile. `place` is called with the file
        before it has its name."""
        ensure_free(target)
        refuse_unsafe_place(target.parent)
        lock = FileLock(Path(f"{target}-lock"))
        try:
            with lock, self._snapshot() as sql:
                ensure_free(target)
                sql.fetch_row("SELECT 1 FROM local")  # takes the snapshot that the whole copy is made of
                write_clone(sql, self._file, target, check, change, place, progress)
        finally:
            lock.close()

    def close(self) -> None:
        """Let what is under way end, then release everything; a reader still at work closes its own connection."""
        if self._rest(fill=True):
            with self._alone:
                self._release()

    def _release(self) -> None:
        while self._pool:
            self._pool.pop().connection.close()
        if self._write_sql is not None:
            self._write_sql.connection.close()
        for beside in (self._file_lock, self._head_file):
            if beside is not None:
                beside.close()
        self._names.close()
        self._release_file()

    def _release_file(self) -> None:
        if not self._lent:
            self._file.release()


class MemoryStore(SqliteBase):
    """A ledger that lives as long as this object: one connection, one user at a time."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
        schema: Schema | None = None,
    ) -> None:
        super().__init__(IN_MEMORY, clock or SystemClock(), random_bytes, schema)
        self._turn = threading.RLock()
        connection = connect(IN_MEMORY, READ_WRITE)
        migrate(connection, IN_MEMORY, self._schema)
        self._checked_schema = connection.pragma("schema_version")
        self._sql = SqliteSql(connection)
        self._introduce(self._sql)
        self.replica = local_value(self._sql, "replica")

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        self._refuse_closed()
        with translated(self.path), self._turn, explained(self._sql, self.path):
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

    def backup(
        self, target: Path, progress: Progress | None = None, beside: Callable[[], object] | None = None
    ) -> None:
        ensure_free(target)
        with self.read():
            write_copy(self._sql.connection, target, progress, beside)

    def close(self) -> None:
        if self._rest():
            with self._turn:
                self._sql.connection.close()
