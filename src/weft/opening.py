"""Opening a ledger by its path or address."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timezone, tzinfo
from pathlib import Path

from weft.kernel.ambient import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import InvalidInput, Unsupported
from weft.kernel.ulid import UlidSource
from weft.ledger.arguments import checked_path
from weft.ledger.doctor import examine_ledger
from weft.ledger.faces.face import LEASE_TTL
from weft.ledger.ledger import Ledger
from weft.store.diagnosis import Diagnosis
from weft.store.owners import process_owner
from weft.store.port import Store
from weft.store.sqlite import MemoryStore, SqliteStore


def open(
    path: str | Path,
    *,
    create: bool = True,
    read_only: bool = False,
    accept_rollback: bool = False,
    clock: Clock | None = None,
    random_bytes: RandomBytes = system_random,
    lease_ttl: float = LEASE_TTL,
    zone: tzinfo = timezone.utc,  # noqa: UP017
) -> Ledger:
    """Open the ledger at `path`, or make one there; ":memory:" lives as long as the ledger is open. In a PostgreSQL
    database it is a schema: `postgresql://user@host:port/database?ledger=NAME`."""
    clock = clock or SystemClock()
    checked_path(path, "path")
    store = _store(str(path), create, read_only, accept_rollback, clock, random_bytes)
    ulids = UlidSource(clock.now_ms, random_bytes)
    return Ledger(store, clock, ulids, owner=process_owner(), lease_ttl=lease_ttl, zone=zone)


def examine(path: str | Path, *, full: bool = False, clock: Clock | None = None) -> Iterator[Diagnosis]:
    """What is wrong with the ledger at `path` and what to do about it, in whatever state it is, without changing a byte
    of it. Quick, unless `full` verifies everything."""
    from weft.store.sqlite.examining import examine_file

    file = checked_path(path, "path")
    if "://" in str(path) or str(path) == ":memory:":
        with open(path, create=False, read_only=True, clock=clock) as ledger:
            yield from examine_ledger(ledger._store, full)
        return
    found, store = examine_file(file, clock or SystemClock(), full)
    yield from found
    if store is not None:
        try:
            yield from examine_ledger(store, full)
        finally:
            store.close()


def _store(
    path: str, create: bool, read_only: bool, accept_rollback: bool, clock: Clock, random_bytes: RandomBytes
) -> Store:
    if path.startswith(("postgresql://", "postgres://")):
        return _postgres_store(path, create, read_only, clock, random_bytes)
    if "://" in path:
        raise Unsupported(
            f"no backend for {path.split('://')[0]}://", "give the path of a SQLite file, :memory:, or postgresql://…"
        )
    if path == ":memory:":
        if read_only:
            raise InvalidInput("a ledger in memory begins empty and cannot be opened for reading only")
        return MemoryStore(clock=clock, random_bytes=random_bytes)
    return SqliteStore(
        path,
        clock=clock,
        random_bytes=random_bytes,
        create=create,
        read_only=read_only,
        accept_rollback=accept_rollback,
    )


def _postgres_store(path: str, create: bool, read_only: bool, clock: Clock, random_bytes: RandomBytes) -> Store:
    """There is no file beside the database, so there is no roll-back to be noticed at open, nor to be accepted."""
    try:
        from weft.store.postgres import PostgresStore
    except ImportError as error:
        raise Unsupported(
            f"a ledger in PostgreSQL needs psycopg ({error})", "install it: `pip install 'weft[postgres]'`"
        ) from error
    return PostgresStore(path, clock=clock, random_bytes=random_bytes, create=create, read_only=read_only)
