"""Copies of a ledger file: complete or not there, and marked as copies; and clones, which have names of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from pathlib import Path

import apsw

from weft.kernel.errors import StoreError
from weft.store.atomic_files import aside_of, create_private, put_in_place
from weft.store.port import Progress
from weft.store.replica_names import COPIED, NOTE
from weft.store.sqlite.connection import READ_WRITE, SqliteSql, connect
from weft.store.sqlite.files import LedgerFile

PAGES_AT_ONCE, BYTES_AT_ONCE = 2048, 1024 * 1024
FILLING_BYTES = 16 * 1024 * 1024


def write_copy(
    source: apsw.Connection, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Copy what the connection sees, page by page, aside and renamed: either it is complete or it is not there.
    `beside` is called before it is renamed, for what lies beside the ledger."""
    aside = aside_of(target)
    create_private(aside)
    connection = connect(str(aside), READ_WRITE)
    try:
        _copy_pages(source, connection, progress)
        mark_as_copy(connection)
    finally:
        connection.close()
    if beside is not None:
        beside()
    put_in_place(aside, target)


def write_clone(
    source: apsw.Connection,
    file: LedgerFile,
    target: Path,
    change: Callable[[SqliteSql], object],
    progress: Progress | None,
    place: Callable[[Path], object],
) -> None:
    """The same for a copy that is another ledger from its first moment: `change` makes it one, before it has its name.
    What `change` deletes is overwritten, and so are the pages that hold nothing. `place` is called with the file just
    before it gets its name. The connection of the source has its snapshot."""
    aside = aside_of(target)
    create_private(aside)
    try:
        if not _copy_bytes(source, file, aside, progress):
            copy = connect(str(aside), READ_WRITE)
            try:
                _copy_pages(source, copy, progress)
            finally:
                copy.close()
        copy = connect(str(aside), READ_WRITE)
        try:
            for setting in ("journal_mode = MEMORY", "synchronous = OFF", "secure_delete = ON"):
                copy.execute(f"PRAGMA {setting}")
            copy.execute("BEGIN IMMEDIATE")
            change(SqliteSql(copy))
            copy.execute("COMMIT")
            _clear_free_pages(copy)
        finally:
            copy.close()
        place(aside)
        put_in_place(aside, target)
    except BaseException:  # also an interrupt from the keyboard leaves nothing that looks like a ledger
        for end in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                os.unlink(f"{aside}{end}")
        raise


def _copy_pages(source: apsw.Connection, copy: apsw.Connection, progress: Progress | None) -> None:
    with copy.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(PAGES_AT_ONCE)
            if progress is not None:
                progress(copying.page_count - copying.remaining, copying.page_count)


def _copy_bytes(source: apsw.Connection, file: LedgerFile, aside: Path, progress: Progress | None) -> bool:
    """The file as it lies, where all of the ledger is in it; False where some of it lies in the log. A snapshot that
    was taken while the log was empty keeps everybody from copying a later log into the file: whoever would, waits for
    it. The log is looked at after the snapshot was taken, so an empty one was empty then."""
    log = Path(f"{file.name}-wal")
    if not Path(f"{file.name}-shm").exists() or (log.exists() and log.stat().st_size):
        return False
    pages = source.pragma("page_count")
    size = pages * source.pragma("page_size")
    taken, descriptor, piece = 0, file.descriptor(), memoryview(bytearray(BYTES_AT_ONCE))
    with open(aside, "r+b", buffering=0) as copy:
        while taken < size:
            read = os.preadv(descriptor, [piece[: min(BYTES_AT_ONCE, size - taken)]], taken)
            if not read:
                return False
            rest = piece[:read]
            while rest:
                rest = rest[copy.write(rest) or 0 :]
            taken += read
            if progress is not None:
                progress(taken * pages // size, pages)
    return True


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
