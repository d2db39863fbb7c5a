"""The contract, on PostgreSQL."""

from pathlib import Path

from tests.postgres import shared_server
from weft.store.port import Store
from weft.store.postgres import PostgresStore
from weft.store.sqlite import SqliteStore
from weft.store.testing import LastingStoreContract


class TestPostgresStore(LastingStoreContract):
    backend = PostgresStore

    def make_store(self, folder: Path) -> Store:
        return PostgresStore(shared_server().address())

    def open_copy(self, copy: Path) -> Store:
        return SqliteStore(copy)

    def reopen(self, store: Store) -> Store:
        return PostgresStore(store.path)

    def open_read_only(self, store: Store) -> Store:
        return PostgresStore(store.path, read_only=True)
