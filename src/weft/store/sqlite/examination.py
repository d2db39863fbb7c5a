"""Looking at a ledger file without changing a byte of it, in whatever state it is: what it
holds and which processes hold locks on it; and a backup put in a ledger's place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import apsw
from msgspec import Struct

from weft.kernel.clock import Clock, system_random
from weft.kernel.errors import (
    Action,
    InUse,
    LedgerMissing,
    LedgerTooNew,
    NotALedger,
    NotApplicable,
    StoreError,
    UnknownObjects,
    hidden_address,
)
from weft.store.fact_log import FactReader, local_value
from weft.store.port import Diagnosis, Progress, ReadTxn, as_far_as_it_goes, error, good, note, warning
from weft.store.private_files import (
    NETWORK_FILE_SYSTEMS,
    file_system_of,
    open_or_create_beside,
    put_in_place,
    real_path,
    sync,
)
from weft.store.sqlite.connection import (
    BUSY_MS,
    READ_ONLY,
    READ_WRITE,
    HeadFile,
    SqliteSql,
    ensure_free,
    harden,
    keep_log_on_close,
    translated,
    write_copy,
)
from weft.store.sqlite.migrations import check_version, missing_parts, shipped_schema
from weft.store.sqlite.store import LONG_LOG_BYTES, SqliteBase

# --- Which processes hold locks on a file, where the system tells: on Linux, by /proc/locks.

_PROC = Path("/proc")


class LockHolder(Struct, frozen=True):
    """A process that has a lock on a file."""

    pid: int
    name: str
    stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})" if self.name else f"process {self.pid}"


def holders_of(path: Path) -> list[LockHolder] | None:
    """Who has locked any part of the file; None where the system does not tell."""
    try:
        place, lines = path.stat(), (_PROC / "locks").read_text().splitlines()
    except FileNotFoundError:
        return [] if (_PROC / "locks").exists() else None
    except OSError:
        return None
    file_key = (os.major(place.st_dev), os.minor(place.st_dev), place.st_ino)
    pids = {
        int(fields[4]) for fields in map(str.split, lines) if _file_place(fields) == file_key and fields[4].isdigit()
    }
    return [_holder_of(pid) for pid in sorted(pids)]


def _file_place(fields: list[str]) -> tuple[int, int, int] | None:
    """Lines with an arrow are waiters, not holders."""
    if len(fields) < 6 or fields[1] == "->":
        return None
    try:
        major, minor, inode = fields[5].split(":")
        return int(major, 16), int(minor, 16), int(inode)
    except ValueError:
        return None


def _holder_of(pid: int) -> LockHolder:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return LockHolder(pid, "", False)
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return LockHolder(pid, name, rest.split()[0] in ("T", "t"))


# --- Looking at a ledger file without changing a byte of it, in whatever state it is.

MAGIC = b"SQLite format 3\0"
WAL_MARK = slice(18, 20)
QUICK_BYTES = 256 * 1024 * 1024
LITTLE_ROOM = 64 * 1024 * 1024
OBJECTS = "objects"
LEDGER_SUFFIXES = ("-lock", "-head", "-wal", "-shm")
"""What a ledger's database has beside it; one of these that belongs to somebody else keeps everybody out."""


class ExaminedStore(SqliteBase):
    """A store that only looks: one connection, nothing written, no promise asked for."""

    read_only = True

    def __init__(self, path: Path, clock: Clock, in_use: bool = False) -> None:
        path = real_path(path)
        super().__init__(str(path), clock, system_random, None)
        self._turn = threading.RLock()
        self._sql = SqliteSql(_connect(path, in_use))
        self.replica = ""

    @property
    def connection(self) -> apsw.Connection:
        return self._sql.connection

    def introduce(self) -> int:
        """Its schema number; raises where this is no ledger that this program knows."""
        with translated(self.path):
            number = check_version(self._sql.connection, self.path, self._schema)
            self.replica = local_value(self._sql, "replica") if number else ""
            return number

    @contextmanager
    def read(self) -> Iterator[ReadTxn]:
        with translated(self.path), self._turn:
            self._sql.run("BEGIN")
            try:
                yield ReadTxn(self._sql, FactReader(self._sql))
            finally:
                if self._sql.connection.in_transaction:
                    self._sql.run("COMMIT")

    def check_quickly(self) -> list[str]:
        with self.read() as txn:
            missing = missing_parts(self.connection, self._schema)
            return [*missing, *(text for (text,) in txn.sql.fetch_rows("PRAGMA quick_check(20)") if text != "ok")]

    def backup(
        self, target: Path, progress: Progress | None = None, beside: Callable[[], object] | None = None
    ) -> None:
        ensure_free(target)
        with self.read():
            write_copy(self._sql.connection, target, progress, beside)

    def close(self) -> None:
        self._closed = True
        self._sql.connection.close(True)


Mark = tuple[tuple[int, int, int] | None, ...]


def mark_of(path: Path) -> Mark:
    """Differs once anybody has written to a database or its log."""
    return tuple(map(_file_state, (str(path), f"{path}-wal")))


def _file_state(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def size_of(file: Path) -> int:
    """Its bytes; none where there is no such file, or no longer."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _connect(path: Path, in_use: bool) -> apsw.Connection:
    """Nothing is asked of the database here: the first question may already fail."""
    with translated(str(path)):
        has_log, has_index = size_of(Path(f"{path}-wal")) > 0, Path(f"{path}-shm").exists()
        holders = holders_of(path)
        if in_use or (has_index and (holders or (has_log and holders is None))):
            connection = apsw.Connection(str(path), READ_ONLY)
            connection.set_busy_timeout(BUSY_MS)
        elif not has_log:
            place = f"{path.absolute().as_uri()}?immutable=1"
            connection = apsw.Connection(place, READ_ONLY | apsw.SQLITE_OPEN_URI)
        else:
            connection = apsw.Connection(str(path), READ_ONLY, vfs="unix-none")
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        harden(connection)
        keep_log_on_close(connection, True)
        return connection


def read_start(path: Path, size: int) -> bytes:
    """The first bytes of a file, through SQLite's own hands."""
    with translated(str(path)):
        file = apsw.VFSFile("", str(path.absolute()), [READ_ONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        try:
            return file.xRead(min(size, file.xFileSize()), 0)
        finally:
            file.xClose()


# --- the file and its place -------------------------------------------------------------------------------------


def examine_place(path: Path) -> Iterator[Diagnosis]:
    """Is there a file, can it be read and written, and is it somewhere safe?"""
    if not path.exists():
        yield _examine_missing(path)
        return
    if not path.is_file():
        yield error("file", f"{path} is not a file", "a ledger is one file", Action.NAME_ANOTHER_LEDGER)
        return
    beside = [file for suffix in LEDGER_SUFFIXES if (file := Path(f"{path}{suffix}")).exists()]
    for file in (path, *beside):
        if not os.access(file, os.R_OK) and file.name != f"{path.name}-lock":
            yield error("file", f"{file} may not be read", "nothing can be opened", f"chmod u+r {file}, or chown")
    kind = file_system_of(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        yield error(
            "file system",
            f"{path} lies on a network file system ({kind})",
            "SQLite's locks do not hold there: two writers can destroy it",
            "copy it to a local disk while nobody uses it",
        )
    unwritable = [str(place) for place in (path, path.parent, *beside) if not os.access(place, os.W_OK)]
    if unwritable:
        reason = "it can be read, but nothing can be recorded"
        yield warning("permissions", f"{' and '.join(unwritable)} may not be written", reason, "chmod u+w, or chown")
    yield from _examine_permissions(path, beside)
    yield from _examine_room(path)
    yield from _examine_leftovers(path)


def _examine_permissions(path: Path, beside: list[Path]) -> Iterator[Diagnosis]:
    """May other users read it, and has it another name?"""
    open_files = [file for file in (path, *beside) if file.stat().st_mode & 0o077]
    if open_files:
        listed = " and ".join(map(str, open_files))
        reason = "other users of this computer may read or change what was said"
        yield warning("permissions", f"{listed} may be used by others", reason, f"chmod go= {path}*")
    names = path.stat().st_nlink
    if names > 1:
        reason = "each would have a lock and a log of its own, and turns would be lost: it is not opened"
        yield error("names", f"{path} is one of {names} names of the same file", reason, Action.KEEP_ONE_NAME)


def _examine_missing(path: Path) -> Diagnosis:
    acknowledged = max((head.n for head in HeadFile.load(Path(f"{path}-head"))), default=0)
    if acknowledged:
        lost = f"the database is gone; {acknowledged} events were acknowledged"
        return error("file", f"{path}: {lost}", "its head file is still there", Action.RESTORE_BACKUP)
    advice = Action.CREATE_OR_NAME_LEDGER.of(path=hidden_address(str(path)))
    return error("file", f"there is no ledger at {path}", "nothing can be opened", advice)


def _examine_room(path: Path) -> Iterator[Diagnosis]:
    free, size = shutil.disk_usage(path.parent).free, path.stat().st_size
    if free < LITTLE_ROOM:
        yield error("disk", f"{free:,} bytes are free", "appends will be refused", "free some space")
    elif free < size:
        reason = "a backup, an upgrade or a rebuild needs about as much as the ledger has"
        yield warning("disk", f"{free:,} bytes are free, the ledger has {size:,}", reason, "free some space")
    else:
        yield good("disk", f"{free / 1e9:,.1f} GB are free")


def _examine_leftovers(path: Path) -> Iterator[Diagnosis]:
    for file in sorted(path.parent.glob(f"{path.name}*")):
        size = size_of(file)
        if file.name.endswith(".partial"):
            leftover = f"{file.name} ({size:,} bytes) was not finished"
            yield note("leftovers", leftover, "a copy was cut short; nothing uses it", f"rm {file}")
        elif file.name.endswith(".backup") and ".schema-" in file.name:
            leftover = f"{file.name} ({size:,} bytes) is from before an upgrade"
            yield note("leftovers", leftover, "it is only needed to go back", f"rm {file}, once all is well")
        elif ".replaced-" in file.name:
            leftover = f"{file.name} ({size:,} bytes) was replaced by a backup"
            yield note("leftovers", leftover, "it is only needed to save more of it", f"rm {file}, once all is well")


def examine_holders(path: Path) -> Iterator[Diagnosis]:
    """Who has it open, who holds the writers' lock, and how long the log is."""
    holders = holders_of(path)
    if holders is None:
        yield note("processes", "this system does not tell who has the ledger open")
    elif holders:
        yield note("processes", f"open in {_listed(holders)}")
    for holder in holders_of(Path(f"{path}-lock")) or ():
        if holder.stopped:
            yield warning(
                "lock",
                f"{holder} holds the writers' lock and is stopped",
                "every other writer waits for it",
                f"kill -CONT {holder.pid}, or end it",
            )
        else:
            yield note("lock", f"{holder} is writing", "the lock goes with its process, it is never left behind")
    yield from _examine_log_size(path, holders)


def _examine_log_size(path: Path, holders: list[LockHolder] | None) -> Iterator[Diagnosis]:
    size = size_of(Path(f"{path}-wal"))
    if size <= 2 * LONG_LOG_BYTES:
        yield good("log file", f"the write-ahead log has {size:,} bytes")
        return
    held_by = f" by {_listed(holders)}" if holders else ""
    yield warning(
        "log file",
        f"the write-ahead log has {size:,} bytes",
        f"a reader that never pauses keeps it from beginning anew{held_by}; reading gets slower",
        "end the longest reader; the last program that closes the ledger shortens it",
    )


def _listed(holders: list[LockHolder]) -> str:
    return ", ".join(map(str, holders))


def examine_start(path: Path) -> Iterator[Diagnosis]:
    """Does it begin as a SQLite database does? Nothing is said where it does."""
    size = path.stat().st_size
    if size == 0:
        acknowledged = max((head.n for head in HeadFile.load(Path(f"{path}-head"))), default=0)
        if acknowledged:
            yield error(
                "file", f"{path} is empty; {acknowledged} events were acknowledged", "it was cut", Action.RESTORE_BACKUP
            )
        else:
            yield note("file", f"{path} is empty", "it becomes a ledger when it is first opened for writing")
    elif read_start(path, len(MAGIC)) != MAGIC:
        yield error(
            "file",
            f"{path} does not begin as a SQLite database",
            "it was damaged, or is another file",
            Action.RESTORE_OR_SALVAGE,
        )


# --- the database -----------------------------------------------------------------------------------------------


def examine_database(store: ExaminedStore) -> Iterator[Diagnosis]:
    """Is it a ledger of ours, of which schema, and are the engine's own structures whole?"""
    shipped = shipped_schema().number
    try:
        schema = store.introduce()
    except NotALedger as refused:
        reason = "it is not touched" if "another" in refused.reason else "its header is damaged"
        yield error("database", str(refused), reason, Action.NAME_ANOTHER_OR_RESTORE)
        return
    except LedgerTooNew as refused:
        yield error("schema", str(refused), "this program would not understand it", "upgrade weft")
        return
    except UnknownObjects as refused:
        reason = "such an object can change what is read and written: it is not opened"
        yield error(OBJECTS, str(refused), reason, refused.advice)
        return
    if schema < shipped:
        size = Path(store.path).stat().st_size
        what = f"schema {schema} is older than this program's {shipped}"
        room = f"the next opening for writing upgrades it and first makes a backup of about {size:,} bytes"
        yield warning("schema", what, room, Action.OPEN_TO_UPGRADE)
    else:
        yield good("schema", f"schema {schema}")
    if read_start(Path(store.path), WAL_MARK.stop)[WAL_MARK] != b"\2\2":
        yield note("durability", "the database is not in WAL mode", "the next opening for writing sets that")


def examine_structure(store: ExaminedStore, full: bool) -> Iterator[Diagnosis]:
    size = Path(store.path).stat().st_size
    if not full and size > QUICK_BYTES:
        yield note("structure", f"not looked at: {size:,} bytes", "it would take a while", Action.EXAMINE_FULLY)
        return
    problems = store.check_integrity() if full else store.check_quickly()
    for problem in problems:
        yield _damage_diagnosis(problem)
    if not problems:
        yield good("structure", "the engine finds nothing wrong")


def _damage_diagnosis(problem: str) -> Diagnosis:
    if problem.startswith("fts5"):
        return error("structure", problem, "the index of search is damaged; no fact is", Action.REBUILD_VIEWS)
    if problem.endswith("is missing"):
        return error("structure", problem, "somebody has dropped it", Action.RESTORE_OR_SALVAGE)
    return error("structure", problem, "pages of the database are damaged", Action.RESTORE_OR_SALVAGE)


def examine_heads(store: ExaminedStore) -> Iterator[Diagnosis]:
    """What was acknowledged, against what is there."""
    file = Path(f"{store.path}-head")
    heads = HeadFile.load(file)
    with store.read() as txn:
        last_event = txn.facts.tip().n
        chains = {head.n: txn.facts.chain_at(head.n) for head in heads}
    if not file.exists():
        yield note("head file", "there is none", "until the next opening a cut database would not be noticed", "")
        return
    wrong = [head for head in heads if head.replica != store.replica or chains[head.n] != head.chain]
    for head in wrong[:1]:
        writer_note = "" if head.replica == store.replica else f" by replica {head.replica}"
        differs = " and differs" if head.n <= last_event else ""
        yield error(
            "head file",
            f"event {head.n} was acknowledged{writer_note}; the log ends at {last_event}{differs}",
            "the database was cut, rolled back or replaced",
            Action.ACCEPT_LOSS,
        )
    newest = max((head.n for head in heads), default=0)
    if not wrong and newest < last_event:
        yield note("head file", f"it knows of event {newest}, the log ends at {last_event}", "a crash leaves it so")
    elif not wrong:
        yield good("head file", f"agrees with the log, which ends at event {last_event}")


def examine_file(path: Path, clock: Clock, full: bool, in_use: bool) -> tuple[list[Diagnosis], ExaminedStore | None]:
    """All that is about the file; and the store, still open, where its tables can be looked at."""
    try:
        if path.is_symlink() and path.is_file():
            path = path.resolve()
    except OSError as failure:
        why = "nothing can be said of what is behind it"
        return [error("file", f"{path}: {failure.strerror}", why, Action.CHECK_PATH)], None
    diagnoses = list(as_far_as_it_goes("file", lambda: examine_place(path)))
    if path.is_file():
        diagnoses += as_far_as_it_goes("processes", lambda: examine_holders(path))
        diagnoses += as_far_as_it_goes("file", lambda: examine_start(path))
    if (
        not path.is_file()
        or path.stat().st_size == 0
        or any(diagnosis.check == "file" and diagnosis.mend for diagnosis in diagnoses)
    ):
        return diagnoses, None
    try:
        store = ExaminedStore(path, clock, in_use)
    except StoreError as failure:
        return [
            *diagnoses,
            error(
                "database",
                str(failure),
                "it cannot be opened",
                failure.advice if failure.hint else Action.RESTORE_OR_SALVAGE,
            ),
        ], None
    database_diagnoses = list(as_far_as_it_goes("database", lambda: examine_database(store)))
    is_ours = not any(diagnosis.mend for diagnosis in database_diagnoses)
    diagnoses += database_diagnoses
    if not any(
        diagnosis.check == OBJECTS for diagnosis in database_diagnoses
    ):  # the engine's check computes what they say
        diagnoses += as_far_as_it_goes("structure", lambda: examine_structure(store, full))
    if not is_ours:
        store.close()
        return diagnoses, None
    return [*diagnoses, *as_far_as_it_goes("head file", lambda: examine_heads(store))], store


# --- A backup put in a ledger's place.

SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")


class RestoreResult(Struct, frozen=True):
    """What was put in place, and where that went which lay there."""

    events: int
    replaced: str | None


def restore(
    backup: Path,
    path: Path,
    clock: Clock,
    progress: Progress | None = None,
    beside: Callable[[], object] | None = None,
) -> RestoreResult:
    """Put a copy of `backup`, which stays as it is, in the place of the ledger at `path`, which nobody has open.
    `beside` is called when the copy is written and before it takes that place."""
    if not backup.is_file():
        raise LedgerMissing(str(backup), Action.CHECK_PATH)
    if path.exists() and os.path.samefile(backup, path):
        raise NotApplicable(f"{backup} is the ledger itself", "name a backup of it")
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent}", "make it first")
    path = real_path(path)
    store = ExaminedStore(backup, clock)
    try:
        if store.introduce() == 0:
            raise LedgerMissing(str(backup), Action.CHECK_PATH)
        with store.read() as txn:
            last_event = txn.facts.tip().n
        with nobody_else(path):
            aside = path.with_name(path.name + ".restored")
            aside.unlink(missing_ok=True)
            before = mark_of(backup)
            write_copy(store.connection, aside, progress)
            if mark_of(backup) != before:  # it is no backup but a ledger that somebody writes to
                aside.unlink()
                raise InUse(str(backup))
            if beside is not None:
                beside()
            replaced = _move_aside(path, clock.now_ms())
            put_in_place(aside, path)
    finally:
        store.close()
    return RestoreResult(last_event, replaced)


def _move_aside(path: Path, now_ms: int) -> str | None:
    """The log goes with its database: beside another one it would destroy it. So nothing takes its place before that
    is sure, and a log that an earlier attempt left behind follows its database."""
    present = [suffix for suffix in ("", *SQLITE_SUFFIXES) if os.path.exists(f"{path}{suffix}")]
    if not present:
        return None
    earlier = None if "" in present else _moved_last(path)
    name = earlier or path.with_name(f"{path.name}.replaced-{now_ms}")
    for suffix in present:
        os.rename(f"{path}{suffix}", f"{name}{suffix}")
    sync(path.parent)
    return str(name)


def _moved_last(path: Path) -> Path | None:
    candidates = path.parent.glob(f"{escape(path.name)}.replaced-*")
    databases = [database for database in candidates if database.name.rpartition("-")[2].isdigit()]
    return max(databases, key=lambda database: int(database.name.rpartition("-")[2]), default=None)


@contextmanager
def nobody_else(path: Path) -> Iterator[None]:
    """No writer gets in while this lasts, and nobody has the ledger open when it begins."""
    descriptor = open_or_create_beside(Path(f"{path}-lock"))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(str(path)) from None
        if holders := holders_of(path):
            raise InUse(str(path), ", ".join(map(str, holders)))
        _refuse_open(path)
        yield
    finally:
        os.close(descriptor)


def _refuse_open(path: Path) -> None:
    """Where the system does not tell who has it open, SQLite does: it gives the whole file to one alone or to none."""
    if not path.exists() or holders_of(path) is not None:
        return
    with translated(str(path)):
        connection = apsw.Connection(str(path), READ_WRITE)
        harden(connection)
        keep_log_on_close(connection, True)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; ROLLBACK").fetchall()
        except apsw.BusyError:
            raise InUse(str(path)) from None
        except apsw.Error:  # too damaged to be open anywhere
            return
        finally:
            connection.close(True)
