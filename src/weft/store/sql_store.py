"""What every store over an SQL engine shares: the way of a write, many callers in one commit
(whoever comes while one is under way shares the next), large contents, and facts found by their
hash.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from weft.kernel.clock import Clock, RandomBytes, UlidSource
from weft.kernel.contents import MAX_CONTENT_BYTES, ROW_BYTES, PreparedContent, SaltSource, prepare
from weft.kernel.errors import (
    Action,
    ContentTooLarge,
    Damaged,
    IdCollision,
    NotApplicable,
    ReadOnlyLedger,
    StoreError,
    StoreFailed,
    Unsupported,
    WeftError,
)
from weft.store.fact_log import (
    CURRENT_VIEW_RULES,
    KEY_BYTES,
    VIEW_RULES,
    FactReader,
    FactWriter,
    Key,
    LogTip,
    RecentContents,
    StoredContentRow,
    refuse_disorder,
)
from weft.store.port import StraightTurn, WriteTxn
from weft.store.sql import Insert, Question, RowsRefused, Sql, WriteBuffer

# --- Group commit by leader and follower: whoever comes while a commit is under way shares the next one.

T = TypeVar("T")

MAX_JOBS = 64
MAX_BYTES = 4 * 1024 * 1024


class CommitJob(Generic[T]):
    """One caller's work, and later its outcome."""

    __slots__ = ("_wake", "batch", "error", "result", "settled", "weight", "work")

    def __init__(self, work: T, weight: int) -> None:
        self.work, self.weight = work, weight
        self.batch: Sequence[CommitJob[T]] = ()
        """Those whom it serves, where it leads."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def succeed(self, result: Any) -> None:
        self.result, self.settled = result, True

    def fail(self, error: BaseException) -> None:
        self.error, self.settled = error, True

    def wait(self) -> None:
        self._wake.acquire()

    def wake(self) -> None:
        """Once more does no harm."""
        if self._wake.locked():
            with suppress(RuntimeError):  # somebody else woke it in between
                self._wake.release()


class CommitBatch(list[CommitJob[T]]):
    """The jobs of one commit. Until it is written, those who come meanwhile can still join."""

    def __init__(self, waiting: deque[CommitJob[T]], guard: threading.Lock, limit: int) -> None:
        super().__init__()
        self._waiting, self._guard, self._limit, self._weight = waiting, guard, limit, 0

    def join(self) -> list[CommitJob[T]]:
        """Those who wait, as far as there is room for them; a first one always has."""
        waiting = self._waiting
        joined: list[CommitJob[T]] = []
        if not waiting:
            return joined
        with self._guard:
            while waiting and self._has_room(waiting[0].weight):
                job = waiting[0]
                self.append(job)  # first: whoever is interrupted here still knows whom it has to tell
                waiting.popleft()
                self._weight += job.weight
                joined.append(job)
        return joined

    def _has_room(self, weight: int) -> bool:
        return not self or (len(self) < self._limit and self._weight + weight <= MAX_BYTES)


class GroupCommit(Generic[T]):
    """`commit` gets a batch of jobs, settles each of them, and is never run twice at once.

    An interrupt may strike a caller anywhere, also between any two steps below. So whatever a caller is cut short in,
    `_leave` does the rest of it, and each of its steps may be one that was done before.
    """

    def __init__(self, commit: Callable[[CommitBatch[T]], None]) -> None:
        self._commit = commit
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._waiting: deque[CommitJob[T]] = deque()
        self._lead: CommitJob[T] | None = None
        """Whose caller runs the commit that is under way, or the next one."""
        self._leader, self._room = 0, MAX_JOBS
        self._is_closed = False

    def submit(self, work: T, weight: int = 0) -> Any:
        self.refuse_inside()
        job = CommitJob(work, weight)
        try:
            self._run(job)
        except BaseException as error:  # whatever it was, nobody may be left waiting for this caller
            try:
                self._leave(job, error)
            finally:  # also where another interrupt struck in there
                self._leave(job, error)
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def refuse_inside(self) -> None:
        """Raises where the caller is itself inside a piece of work that is under way."""
        if self._leader == threading.get_ident():
            raise NotApplicable("a write was begun inside another one", "finish the first, then write again")

    def _run(self, job: CommitJob[T]) -> None:
        with self._guard:
            if self._is_closed:
                raise StoreError("the ledger was closed meanwhile", "open it again")
            self._waiting.append(job)
            if self._lead is None:
                self._lead = job
        if self._lead is not job:
            job.wait()
        if self._lead is job:
            self._run_batch(job)

    def close(self) -> None:
        """Take no more work, and return once nothing is under way."""
        with self._guard:
            self._is_closed = True
            while self._lead is not None and self._leader != threading.get_ident():
                self._idle.wait()

    def _run_batch(self, own: CommitJob[T]) -> None:
        """Whoever leads is the first in line, so its own work is always in its batch."""
        own.batch = batch = CommitBatch(self._waiting, self._guard, self._room)
        self._leader = threading.get_ident()
        batch.join()
        self._commit(batch)
        self._hand_over(own)

    def _leave(self, job: CommitJob[T], error: BaseException) -> None:
        """The caller of this job goes, whatever it was about to do."""
        failure = error if isinstance(error, Exception) else StoreFailed("the commit was interrupted")
        with self._guard:
            for each in (job, *job.batch):
                if each in self._waiting:
                    self._waiting.remove(each)
            for each in job.batch:
                if not each.settled:
                    each.fail(failure)
        self._hand_over(job)

    def _hand_over(self, own: CommitJob[T]) -> None:
        """The next leader is woken first: those who were served prepare other work next, one at a time, and the
        database would have nothing to do meanwhile."""
        if self._leader == threading.get_ident():
            self._leader = 0
            self._room = _room_after(len(own.batch), len(self._waiting))
        with self._guard:
            if self._lead is own:
                self._lead = self._waiting[0] if self._waiting else None
            if self._lead is not None:
                self._lead.wake()
            elif self._is_closed:
                self._idle.notify_all()
        for job in own.batch:
            if job is not own:
                job.wake()
        own.batch = ()  # it has the job itself in it: their works would stay until Python's collector comes


def _room_after(served: int, waiting: int) -> int:
    """How many the next commit takes. Those whom a commit served, if they were several, prepare their next work now:
    half of all callers at a time, and one half is at the database while the other prepares."""
    return MAX_JOBS if served <= 1 else min(MAX_JOBS, (served + waiting + 1) // 2)


# --- What every store over an SQL engine shares: the way of a write, large contents, and the lookup views.
Results = list[tuple[CommitJob["WriteWork"], Any]]
SPOOL_BYTES = 4 * 1024 * 1024
FILL_AGAIN_SECONDS = 60.0
LARGE_LAG = 256
"""Contents that the lookup views do not have yet."""


class WriteWork(Struct, frozen=True):
    """What one caller wants done, which contents it will likely put, what it will likely ask, and, of an ordinary turn,
    how it may be appended straight."""

    run: Callable[[WriteTxn], Any]
    contents: Sequence[Key]
    ahead: Sequence[Question]
    straight: StraightTurn | None = None


class BufferedSql(Sql, Protocol):
    """A connection's verbs, with the rows that wait to be written."""

    buffer: WriteBuffer

    def flush(self) -> None:
        """Statements that change something and wait to be run are run."""

    @property
    def lost(self) -> bool:
        """The transaction can only be undone as a whole: a statement failed outside any savepoint."""


class TransactionLost(Exception):
    """One caller's failure took the whole transaction with it. That caller has been told; the others go again."""


def succeed(results: Results) -> None:
    for job, result in results:
        job.succeed(result)


def _put_spooled(spool: IO[bytes], scope: int, txn: WriteTxn) -> StoredContentRow:
    spool.seek(0)
    return txn.facts.put_stream(iter(lambda: spool.read(ROW_BYTES), b""), scope)


class SqlStore:
    """The engine-neutral half of a store."""

    path: str
    replica: str
    read_only = False
    is_new = False
    former: str | None = None
    _after_fork = "open it again after the fork"

    def __init__(self, path: str, clock: Clock, random_bytes: RandomBytes) -> None:
        self.path, self._clock, self._random_bytes = path, clock, random_bytes
        self._recent, self._salts = RecentContents(), SaltSource(random_bytes)
        self._tip: LogTip | None = None
        self._serial = 0
        self._jobs: GroupCommit[WriteWork] = GroupCommit(self._commit)
        self._pid = os.getpid()
        self._closed = False
        self._filling = threading.Lock()
        self._fill_from = -inf
        """Lookup views are filled from this moment on."""

    def claim(self, name: str) -> bool:
        return True

    def give_back(self, name: str) -> None:
        return

    def announce(self, name: str) -> None:
        return

    def withdraw(self, name: str) -> None:
        return

    def is_announced(self, name: str) -> bool:
        return False

    # --- the engine's part --------------------------------------------------------------------------------------

    def read(self) -> Any:
        raise NotImplementedError

    def _transact(self, batch: CommitBatch[WriteWork], results: Results) -> None:
        """One durable transaction around `_run_all`, or another way to the same rows; then `succeed` for its results,
        whatever happens after. Should it fail, the writer is discarded before anybody else can have it."""
        raise NotImplementedError

    def _start(self, sql: BufferedSql, works: Sequence[WriteWork]) -> LogTip:
        """At the beginning of a transaction that is for these: where the log ends. Keeps `_tip` if it is still true,
        else forgets it."""
        raise NotImplementedError

    def _conclude(self, sql: BufferedSql, tip: LogTip, results: Results) -> None:
        """All work is done: its rows into their tables. An engine may commit in the same go."""
        sql.buffer.write_rows()

    def _begin_again(self, sql: BufferedSql) -> None:
        """Undo the whole transaction and begin another."""
        raise NotImplementedError

    def _discard_writer(self) -> None:
        """After a failed transaction nothing in memory is trusted: the next write reads the database afresh."""
        raise NotImplementedError

    def _store_error(self, error: Exception) -> Exception:
        """The engine's errors in Weft's words; anything else as it is."""
        raise NotImplementedError

    def _violates(self, error: BaseException | None) -> str | None:
        """What an engine says of a row that breaks a rule of its table; `id` in words where a minted id is taken."""
        raise NotImplementedError

    def _has_no_form(self, error: BaseException | None) -> bool:
        """It says that a value cannot be handed to the engine at all; nothing of its statement was run."""
        raise NotImplementedError

    def _is_passing(self, error: Exception) -> bool:
        """It says nothing about the work, only that the moment was wrong: the whole transaction goes again."""
        return False

    def _spool_folder(self) -> str | None:
        """Where large contents wait: not where others can look."""
        return None

    def lying_beside(self) -> list[Path]:
        """Whole copies that the engine made by itself."""
        return []

    # --- writing ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def prepare(self, data: bytes) -> PreparedContent:
        return prepare(data, self._salts.draw())

    def write(
        self,
        work: Callable[[WriteTxn], T],
        weight: int = 0,
        contents: Sequence[Key] = (),
        ahead: Sequence[Question] = (),
        straight: StraightTurn | None = None,
    ) -> T:
        self._refuse_closed()
        if self.read_only:
            raise ReadOnlyLedger(self.path)
        result: T = self._jobs.submit(WriteWork(work, contents, ahead, straight), weight)
        if self._recent.is_long:
            self._fill_lookups()
        return result

    def _commit(self, batch: CommitBatch[WriteWork]) -> None:
        """One transaction for all of them. Once it is durable every job has succeeded, whatever happens after."""
        try:
            self._transact(batch, [])
        except BaseException as error:  # whatever it was, every waiting caller must hear of it
            self._fail_unsettled(batch, error)
            if not isinstance(error, Exception):
                raise

    def _fail_unsettled(self, jobs: Sequence[CommitJob[WriteWork]], error: BaseException) -> None:
        if isinstance(error, Exception):
            failure = self._store_error(error)
        else:
            failure = StoreFailed(f"{self.path}: the commit was interrupted")
        for job in jobs:
            if not job.settled:
                job.fail(failure)

    def _run_all(self, sql: BufferedSql, batch: CommitBatch[WriteWork], results: Results) -> LogTip:
        """The rows of all jobs are written together. Should the engine refuse one, all is undone, and the rows of each
        job are written by themselves, to see whose it was."""
        batch.join()
        try:
            jobs = [job for job in batch if not job.settled]
            tip = self._start(sql, [job.work for job in jobs])
            while jobs:
                tip = self._run_each(sql, jobs, tip, results)
                jobs = batch.join()
            self._conclude(sql, tip, results)
        except RowsRefused as refused:
            cause = refused.__cause__
            if not isinstance(cause, Exception) or not self._is_of_a_row(sql, cause):
                raise cause or refused from None
        except TransactionLost:
            pass
        else:
            return tip
        return self._run_alone(sql, batch, results)

    def _is_of_a_row(self, sql: BufferedSql, error: Exception) -> bool:
        """Whether it says that a row cannot be written, rather than that the engine cannot write."""
        return not self._is_passing(error) and (
            self._violates(error) is not None or self._has_no_form(error) or sql.lost
        )

    def _run_alone(self, sql: BufferedSql, batch: CommitBatch[WriteWork], results: Results) -> LogTip:
        """From the beginning, with a savepoint around each; whoever loses the transaction is not in the next go."""
        while True:
            results.clear()
            self._start_over(sql)
            jobs = [job for job in batch if not job.settled]
            with suppress(TransactionLost):
                tip = self._start(sql, [job.work for job in jobs])
                tip = self._run_each(sql, jobs, tip, results, alone=True)
                self._conclude(sql, tip, results)
                return tip

    def _run_each(
        self, sql: BufferedSql, jobs: Sequence[CommitJob[WriteWork]], tip: LogTip, results: Results, alone: bool = False
    ) -> LogTip:
        self._recent.ask(sql, [key for job in jobs for key in job.work.contents])
        for job in jobs:
            facts = FactWriter(sql, recent=self._recent, log_tip=tip, salts=self._salts, now_ms=self._clock.now_ms())
            self._serial += 1
            sql.buffer.begin()
            try:
                result = job.work.run(WriteTxn(sql, facts, self._tip is not None, self._serial))
                facts.flush()
                if alone:
                    sql.buffer.write_rows()
                    sql.flush()
            except RowsRefused:
                raise
            except Exception as error:  # any failure of one caller's work is that caller's alone
                self._undo(sql, job, error)
            else:
                sql.buffer.keep()
                self._tip = tip = facts.settle()
                results.append((job, result))
        return tip

    def _undo(self, sql: BufferedSql, job: CommitJob[WriteWork], error: Exception) -> None:
        """One caller's work did not count; the transaction goes on without it, if it can."""
        if self._is_passing(error):
            raise error
        try:  # before the error is explained: whoever asks the database would have its rows written first
            sql.buffer.undo()
        except Exception as lost:  # the engine has given the whole transaction up, and its own first error says why
            raise (lost if isinstance(error, WeftError) else error) from None
        job.fail(self._work_error(error))
        self._tip = None
        try:
            sql.flush()
        except Exception as refused:  # whatever the engine says, this transaction is lost
            raise TransactionLost from refused
        if sql.lost:
            raise TransactionLost

    def _work_error(self, error: Exception) -> Exception:
        rule = self._violates(error)
        if rule is None:
            return self._store_error(error)
        if rule in MINTED:
            return IdCollision(str(error))
        return Damaged(f"{self.path}: the views do not fit the facts ({error})", Action.REBUILD_VIEWS)

    def _start_over(self, sql: BufferedSql) -> None:
        self._forget()
        sql.buffer.forget()
        self._begin_again(sql)

    def _forget(self) -> None:
        """Nothing that is held in memory of the log's end is true any longer."""
        self._recent.forget()
        self._tip = None

    # --- large contents -----------------------------------------------------------------------------------------

    def put_stream(self, chunks: Iterable[bytes], scope: int) -> StoredContentRow:
        """The caller's chunks are gathered before the writers' lock is taken: they may take their time."""
        from tempfile import SpooledTemporaryFile

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

    # --- lookup views -------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Where nothing waits for readers to be gone, nothing is done."""

    def catch_up(self) -> None:
        """Fill the lookup views in transactions of their own, so that writers get their turn in between."""
        while not self.read_only and self.write(self._advance_lookups):
            pass

    def catch_up_if_far_behind(self) -> None:
        if not self.read_only and len(self._recent.by_key) > LARGE_LAG:
            self._fill_lookups()

    def _advance_lookups(self, txn: WriteTxn) -> bool:
        more = LookupView(txn.sql).advance()
        self._recent.forget()
        self._recent.refresh(txn.sql)
        return more

    def _fill_lookups(self) -> None:
        """Between appends, by one caller while others go on. What was acknowledged is durable, so a failure here is
        nobody's: lookups scan until it is tried again, and `verify` names what is wrong. What is damaged stays so."""
        if self._clock.monotonic() < self._fill_from or not self._filling.acquire(blocking=False):
            return
        try:
            self.catch_up()
        except StoreError as error:
            is_lasting = isinstance(error, Damaged)
            self._fill_from = inf if is_lasting else self._clock.monotonic() + FILL_AGAIN_SECONDS
        finally:
            self._filling.release()

    # --- beginning and end --------------------------------------------------------------------------------------

    def _mint(self) -> str:
        return UlidSource(self._clock.now_ms, self._random_bytes).mint()

    def _introduce(self, sql: Sql) -> None:
        """A new ledger gets its replica id and its import secret. Its views will be computed by the present rules."""
        values = [("replica", self._mint()), ("import_secret", self._random_bytes(32).hex())]
        if sql.fetch_row("SELECT 1 FROM log LIMIT 1") is None:
            values.append((VIEW_RULES, CURRENT_VIEW_RULES))
        for key, value in values:
            sql.run("INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (key, value))

    def _rest(self, fill: bool = False) -> bool:
        """Let what is under way end, and take no more. False where there is nothing left to close."""
        if self._closed or os.getpid() != self._pid:
            return False
        if fill:
            self.catch_up_if_far_behind()
        self._closed = True
        self._jobs.close()
        return True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed", "open it again")
        if os.getpid() != self._pid:
            raise Unsupported("this ledger was opened in another process", self._after_fork)


MINTED = ("turn.id", "session.id", "program.id")
"""Columns whose values Weft makes up: another row with the same one is a collision of random numbers."""
BATCH = 8192
LOG_ROWS = BATCH // 8
LOOKUP_EVENT = Insert("lookup_event", ("key", "n"), ("key", "n"))
_LAST_OF_BATCH = "SELECT max(n), count(*) FROM (SELECT n FROM content WHERE n > ? ORDER BY n LIMIT ?) batch"
_OF_BATCH = "FROM content WHERE n > ? AND n <= ?"
_FILL_CONTENTS = (
    f"INSERT INTO lookup_content(key, n) SELECT substr(ref, 1, {KEY_BYTES}), n {_OF_BATCH} ORDER BY 1, 2"
    " ON CONFLICT (key, n) DO NOTHING"
)
_FILL_BYTES = (
    f"INSERT INTO lookup_bytes(scope, key, n) SELECT scope, substr(digest, 1, {KEY_BYTES}), n {_OF_BATCH}"
    " AND length(digest) > 0 ORDER BY 1, 2, 3 ON CONFLICT (scope, key, n) DO NOTHING"
)
"""By the engine itself: contents are many, and their rows need not come here for it."""


class LookupView:
    """Fills the lookup tables from their watermarks on, in sorted batches so that neighbours share pages."""

    def __init__(self, sql: Sql) -> None:
        self.sql, self.facts = sql, FactReader(sql)

    def advance(self) -> bool:
        """One batch of each; True where one was full, so that there is more of what was there. Whoever chased after
        what others add meanwhile would never come to an end."""
        return self._advance_events() | self._advance_contents()

    def _advance_events(self) -> bool:
        mark = self.facts.watermark("lookup_event")
        rows = self.facts.log(mark, LOG_ROWS)
        keys = [(sha256(line).digest()[:KEY_BYTES], n) for row in rows for n, line in enumerate(row.lines(), row.first)]
        if keys:
            self.sql.add(LOOKUP_EVENT, sorted(keys))
            self._mark("lookup_event", rows[-1].n)
        return len(rows) == LOG_ROWS

    def _advance_contents(self) -> bool:
        mark = self.facts.watermark("lookup_content")
        row = self.sql.fetch_row(_LAST_OF_BATCH, (mark, BATCH))
        last, amount = row or (None, 0)
        if not amount:
            return False
        refuse_disorder("content", mark, [(last,)])
        for statement in (_FILL_CONTENTS, _FILL_BYTES):
            self.sql.run(statement, (mark, last))
        self._mark("lookup_content", last)
        return bool(amount == BATCH)

    def _mark(self, view: str, n: int) -> None:
        self.sql.run(
            "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (view, n)
        )
