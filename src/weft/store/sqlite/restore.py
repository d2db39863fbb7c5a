"""A backup put in a ledger's place.

The copy is written beside it first; then the present database, with its log, is moved aside, never deleted; then the
copy gets its name. Whoever is killed between the last two steps finds both files and runs it again. The head file
stays: it knows what was acknowledged, and the next opening holds the backup against it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import apsw
from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.clock import Clock
from weft.kernel.errors import InUse, LedgerMissing, NotApplicable, StoreError
from weft.store.atomic_files import put_in_place, sync
from weft.store.port import Progress
from weft.store.sqlite.connection import READ_WRITE, harden, keep_log_on_close, translated
from weft.store.sqlite.copies import write_copy
from weft.store.sqlite.examination import ExaminedStore, mark_of
from weft.store.sqlite.files import open_or_create_beside, real_path
from weft.store.sqlite.lock_holders import holders_of

BESIDE = ("-wal", "-shm", "-journal")


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
            end = txn.facts.tip().n
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
    return RestoreResult(end, replaced)


def _move_aside(path: Path, now_ms: int) -> str | None:
    """The log goes with its database: beside another one it would destroy it. So nothing takes its place before that
    is sure, and a log that an earlier attempt left behind follows its database."""
    there = [suffix for suffix in ("", *BESIDE) if os.path.exists(f"{path}{suffix}")]
    if not there:
        return None
    earlier = None if "" in there else _moved_last(path)
    name = earlier or path.with_name(f"{path.name}.replaced-{now_ms}")
    for suffix in there:
        os.rename(f"{path}{suffix}", f"{name}{suffix}")
    sync(path.parent)
    return str(name)


def _moved_last(path: Path) -> Path | None:
    found = path.parent.glob(f"{escape(path.name)}.replaced-*")
    whole = [each for each in found if each.name.rpartition("-")[2].isdigit()]
    return max(whole, key=lambda each: int(each.name.rpartition("-")[2]), default=None)


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
