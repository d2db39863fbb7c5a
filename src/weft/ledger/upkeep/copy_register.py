"""Copies that were made of a ledger: backups and exports, remembered so that an erasure can name them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from weft.kernel.dag_events import SnapshotMaterialized
from weft.kernel.fields import ExtRef
from weft.kernel.sites import Site
from weft.ledger.write.append import Append, LedgerWriter
from weft.store.atomic_files import aside_of
from weft.store.port import ReadTxn, Store, WriteTxn

BACKUP, FACTS, EXPORT, BUNDLE, BESIDE = "backup", "facts", "export", "bundle", "beside"
LEDGER, COPY = "ledger", "copy"
FILE = "file"
"""The kind of a reference to a file, by its path."""


class KnownCopy(Struct, frozen=True, kw_only=True):
    """A file that holds what the ledger held when it was made."""

    path: str
    kind: str
    """`backup`; `facts`: all of them as lines; `export`: some of what was said, in another form, also as a session for
    another tool; `bundle`: some of its threads; `ledger`: one that this one was copied from; `copy`: one that was
    copied from this one; `beside`: what an upgrade, a restored backup or an unfinished copy left beside it."""
    made_at: int | None
    exists: bool
    """It still lies there, as far as can be told from here; otherwise it was moved or deleted."""


@contextmanager
def remembered(store: Store, path: Path, kind: str) -> Iterator[None]:
    """Around the making of a copy. Noted before it: one that is cut short is named, too; and after it, with whatever
    came meanwhile. A ledger open for reading notes nothing, and a file that stands in the way is no copy."""
    if store.read_only or path.exists():
        yield
        return
    note = partial(note_copy, str(path.absolute()), kind)
    store.write(note)
    yield
    store.write(note)


def note_copy(path: str, kind: str, txn: WriteTxn) -> None:
    """There is a copy of all that is here now."""
    (last,) = txn.sql.one("SELECT max(n) FROM content") or (None,)
    txn.sql.run(
        "INSERT INTO copy_made(path, kind, made_at, contents) VALUES (?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET"
        " kind = excluded.kind, made_at = excluded.made_at, contents = excluded.contents",
        (path, kind, txn.facts.now_ms, last or 0),
    )


def record_materialization(writer: LedgerWriter, path: str, turn: str) -> None:
    """The thread that ends at a turn was written to a file, for people or other programs to read."""

    def work(append: Append) -> None:
        append.ledger_stream().add(
            SnapshotMaterialized,
            materialization=append.ulids.mint(),
            content_ref=ExtRef(kind=FILE, id=append.put_text(path, "path")),
            run=turn,
        )
        append.seal()

    writer.write(work)


def place_of(store: Store) -> str:
    """Where a ledger lies, as it is told from anywhere."""
    return str(Path(store.path).absolute()) if Site.of(store.path) is Site.FILE else store.path


def known_copies(store: Store, txn: ReadTxn, first: int) -> Iterator[KnownCopy]:
    """Copies that were made here since content number `first` was, whether they still lie there or not; and what lies
    beside the ledger."""
    made = txn.sql.all("SELECT path, kind, made_at FROM copy_made WHERE contents >= ? ORDER BY made_at, path", (first,))
    here = place_of(store)
    for path, kind, made_at in made:
        if path == here:  # a copy brings along what its origin knew of it
            continue
        there = Site.of(path).is_address or any(map(os.path.exists, (path, aside_of(Path(path)))))
        yield KnownCopy(path=path, kind=kind, made_at=made_at, exists=there)
    for beside in store.lying_beside():
        yield KnownCopy(path=str(beside), kind=BESIDE, made_at=None, exists=True)
