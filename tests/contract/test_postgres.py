"""The contract, on PostgreSQL."""

from pathlib import Path

import pytest

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

    def test_what_one_has_claimed_nobody_else_gets_until_it_is_given_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        again = self.reopen(store)
        with store.claim("a") as is_ours, again.claim("a") as is_theirs, again.claim("b") as is_free:
            assert (is_ours, is_theirs, is_free) == (True, False, True)
            again.write(lambda txn: None)  # it hinders nobody who writes
        with pytest.raises(KeyError), again.claim("a"):
            raise KeyError
        with store.claim("a") as is_ours:
            assert is_ours
        again.close()
        store.close()
