"""Copies of a ledger file: complete or not there, and marked as copies; and clones, which have names of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, EIO, ENOSYS
from glob import escape
from io import FileIO
from pathlib import Path
from threading import Thread

import apsw

from weft.kernel.errors import StoreError
from weft.store.atomic_files import aside_of, create_private, put_in_place
from weft.store.port import Progress
from weft.store.replica_names import COPIED, NOTE
from weft.store.sqlite.connection import READ_WRITE, SqliteSql, connect, store_error, translated
from weft.store.sqlite.files import LedgerFile

PAGES_AT_ONCE, BYTES_AT_ONCE = 2048, 8 * 1024 * 1024
WAIT_SECONDS = 0.1
BESIDE = ("-wal", "-shm", "-journal")
"""The ends of names of the files that SQLite keeps beside a database."""
FILLING_BYTES = 16 * 1024 * 1024


def write_copy(
    source: apsw.Connection, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Copy what the connection sees, page by page, aside and renamed: either it is complete or it is not there.
    `beside` is called before it is renamed, for what lies beside the ledger."""
    aside = make_aside(target)
    with _open_copy(aside, target) as connection:
        _copy_pages(source, connection, target, progress)
        with translated(str(target)):
            mark_as_copy(connection)
    if beside is not None:
        beside()
    put_in_place(aside, target)


def write_clone(
    source: SqliteSql,
    file: LedgerFile,
    target: Path,
    check: Callable[[SqliteSql], object],
    change: Callable[[SqliteSql], object],
    place: Callable[[Path], object],
    progress: Progress | None,
) -> None:
    """The same for a copy that is another ledger from its first moment. `check` looks at the source, in the snapshot
    that the copy is made of, while its bytes are copied, and refuses by raising; `change` makes the copy a ledger of
    its own, before it has its name. What `change` deletes is overwritten, and so are the pages that hold nothing.
    `place` is called with the file just before it gets its name."""
    aside = make_aside(target)
    try:
        if is_whole_in_file(file):
            with _copying_bytes(source.connection, file, aside, progress):
                check(source)
        else:
            check(source)
            with _open_copy(aside, target) as copy:
                _copy_pages(source.connection, copy, target, progress)
        with _open_copy(aside, target) as copy, translated(str(target)):
            for setting in ("journal_mode = MEMORY", "synchronous = OFF", "secure_delete = ON"):
                copy.execute(f"PRAGMA {setting}")
            copy.execute("BEGIN IMMEDIATE")
            change(SqliteSql(copy))
            copy.execute("COMMIT")
            _clear_free_pages(copy)
        place(aside)
        put_in_place(aside, target)
    except BaseException:  # also an interrupt from the keyboard leaves nothing that looks like a ledger
        for end in ("", *BESIDE):
            with suppress(OSError):
                os.unlink(f"{aside}{end}")
        raise


def make_aside(target: Path) -> Path:
    """An empty file to be copied into. What a dead process left beside it goes first: SQLite would take a log or a
    journal there for this file's own, and undo or repeat in it what was done to the other one."""
    aside = aside_of(target)
    for end in BESIDE:
        Path(f"{aside}{end}").unlink(missing_ok=True)
    create_private(aside)
    return aside


@contextmanager
def _open_copy(aside: Path, target: Path) -> Iterator[apsw.Connection]:
    """The copy, to be written to. Where it cannot be opened, the error names what was to be made."""
    with translated(str(target)):
        connection = connect(str(aside), READ_WRITE)
    try:
        yield connection
    finally:
        connection.close()


def _copy_pages(source: apsw.Connection, copy: apsw.Connection, target: Path, progress: Progress | None) -> None:
    """An error may be of either file, and is the source's unless only who writes can meet it."""
    with copy.backup("main", source, "main") as copying:
        while not copying.done:
            try:
                copying.step(PAGES_AT_ONCE)
            except (apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError) as error:
                raise store_error(error, str(target)) from error
            if progress is not None:
                progress(copying.page_count - copying.remaining, copying.page_count)


def is_whole_in_file(file: LedgerFile) -> bool:
    """Whether all of the ledger lies in its file, and none of it in the log; asked while a snapshot is open. One that
    was taken while the log was empty keeps everybody from copying a later log into the file: whoever would, waits for
    it. The log is looked at after the snapshot was taken, so an empty one was empty then."""
    log = Path(f"{file.name}-wal")
    return Path(f"{file.name}-shm").exists() and not (log.exists() and log.stat().st_size)


@contextmanager
def _copying_bytes(source: apsw.Connection, file: LedgerFile, aside: Path, progress: Progress | None) -> Iterator[None]:
    """While the block runs, the file is copied as it lies, by a thread; after the block the rest is waited for."""
    pages = source.pragma("page_count")
    copier = FileCopier(file.descriptor(), aside, pages * source.pragma("page_size"))
    copier.start()
    try:
        yield
        while copier.is_alive():
            if progress is not None:
                progress(copier.taken * pages // copier.size, pages)
            copier.join(WAIT_SECONDS)
    finally:
        copier.is_cut = True
        copier.join()
    if copier.error is not None:
        raise copier.error


class FileCopier(Thread):
    """Copies the first `size` bytes of a file into another one."""

    def __init__(self, descriptor: int, aside: Path, size: int) -> None:
        super().__init__(name="copy of a ledger", daemon=True)
        self._descriptor, self._aside, self.size = descriptor, aside, size
        self.taken, self.is_cut = 0, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with open(self._aside, "r+b", buffering=0) as copy:
                while self.taken < self.size and not self.is_cut:
                    self.taken += _move_bytes(self._descriptor, copy, self.taken, self.size - self.taken)
        except BaseException as error:  # it is raised where the thread is waited for
            self.error = error


def _move_bytes(descriptor: int, copy: FileIO, at: int, most: int) -> int:
    """Some bytes from a place of one file to the end of another; on Linux without a detour through this process."""
    moved = _send_bytes(descriptor, copy, at, most) if sys.platform == "linux" else None
    if moved is None:
        moved = copy.write(os.pread(descriptor, min(most, BYTES_AT_ONCE), at)) or 0
    if not moved:
        raise OSError(EIO, "the file is shorter than its pages", str(copy.name))
    return moved


def _send_bytes(descriptor: int, copy: FileIO, at: int, most: int) -> int | None:
    """None where a file system has no such call, as some that programs provide."""
    try:
        return os.sendfile(copy.fileno(), descriptor, at, min(most, BYTES_AT_ONCE))
    except OSError as error:
        if error.errno not in (EINVAL, ENOSYS):
            raise
        return None


def _clear_free_pages(copy: apsw.Connection) -> None:
    """Overwrite what was deleted in the source: values take all free pages, and are deleted in their turn."""
    free_bytes = copy.pragma("freelist_count") * copy.pragma("page_size")
    sizes = (min(FILLING_BYTES, free_bytes - start) for start in range(0, free_bytes, FILLING_BYTES))
    copy.execute("BEGIN IMMEDIATE")
    copy.executemany(
        "INSERT INTO local(key, value) VALUES (?, zeroblob(?))", ((f"free:{i}", size) for i, size in enumerate(sizes))
    )
    copy.execute("DELETE FROM local WHERE key LIKE 'free:%'")
    copy.execute("COMMIT")


def ensure_free(target: Path) -> None:
    if target.exists():
        raise StoreError(f"{target} exists already", "choose a new file; backups are never overwritten")
    if not target.parent.is_dir():
        raise StoreError(f"there is no folder {target.parent}", "make it first")


def mark_as_copy(connection: apsw.Connection) -> None:
    """A copy goes by a name of its own, and says neither who trusts the ledger nor whom it syncs with."""
    connection.execute(NOTE, (COPIED, ""))
    connection.execute("DELETE FROM local WHERE key LIKE 'trust:%'")
    if connection.table_exists("main", "remote"):
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("DELETE FROM remote")


def copies_beside(ledger: Path) -> list[Path]:
    """What upgrades and restored backups left beside a ledger, and copies of it that were cut short there."""
    name = escape(ledger.name)
    names = (f"{name}.schema-*.backup*", f"{name}*.partial", f"{name}.replaced-*", f"{name}.restored*")
    return sorted({found for name in names for found in ledger.parent.glob(name)})
