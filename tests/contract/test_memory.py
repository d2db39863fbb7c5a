"""The store's contract, in memory."""

from pathlib import Path

from weft.store.port import Store
from weft.store.sqlite import MemoryStore, SqliteStore
from weft.store.testing import StoreContract


class TestMemoryStore(StoreContract):
    backend = MemoryStore

    def make_store(self, folder: Path) -> Store:
        return MemoryStore()

    def open_copy(self, copy: Path) -> Store:
        return SqliteStore(copy, create=False)
