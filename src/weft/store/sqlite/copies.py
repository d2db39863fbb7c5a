"""Copies of a ledger file: complete or not there, and marked as copies."""

from __future__ import annotations

from collections.abc import Callable
from glob import escape
from pathlib import Path

import apsw

from weft.kernel.errors import StoreError
from weft.store.atomic_files import aside_of, create_private, put_in_place
from weft.store.port import Progress
from weft.store.replica_names import COPIED, NOTE
from weft.store.sqlite.connection import READ_WRITE, connect


def write_copy(
    source: apsw.Connection, target: Path, progress: Progress | None, beside: Callable[[], object] | None = None
) -> None:
    """Copy what the connection sees, page by page, aside and renamed: either it is complete or it is not there.
    `beside` is called before it is renamed, for what lies beside the ledger."""
    aside = aside_of(target)
    create_private(aside)
    connection = connect(str(aside), READ_WRITE)
    try:
        with connection.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(2048)
                if progress is not None:
                    progress(copying.page_count - copying.remaining, copying.page_count)
        mark_as_copy(connection)
    finally:
        connection.close()
    if beside is not None:
        beside()
    put_in_place(aside, target)


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
