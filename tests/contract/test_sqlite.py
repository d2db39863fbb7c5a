"""The store's contract, on a SQLite file."""

from pathlib import Path

from weft.store.port import Store
from weft.store.sqlite import SqliteStore
from weft.store.testing import LastingStoreContract


class TestSqliteStore(LastingStoreContract):
    backend = SqliteStore

    def make_store(self, folder: Path) -> Store:
        return SqliteStore(folder / "ledger.db")

    def open_copy(self, copy: Path) -> Store:
        return SqliteStore(copy, create=False)

    def reopen(self, store: Store) -> Store:
        return SqliteStore(store.path, create=False)

    def open_read_only(self, store: Store) -> Store:
        return SqliteStore(store.path, read_only=True)

    def test_a_claim_is_granted_to_everybody(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            assert (store.claim("a"), store.claim("a")) == (True, True)
            store.write(lambda txn: None)
            store.give_back("a")
