"""The contract, on PostgreSQL."""

import time
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

    def test_what_one_has_claimed_nobody_else_gets_until_it_is_given_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        again = self.reopen(store)
        assert (store.claim("a"), store.claim("a"), again.claim("a"), again.claim("b")) == (True, True, False, True)
        again.give_back("a")  # which it does not have
        assert not again.claim("a")
        again.write(lambda txn: None)  # it hinders nobody who writes
        store.give_back("a")
        assert again.claim("a")
        assert not store.claim("a")
        again.close()
        store.close()

    def test_a_name_that_is_announced_is_seen_until_everybody_has_withdrawn_it(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        again, reader = self.reopen(store), self.open_read_only(store)
        assert [one.is_announced("a") for one in (store, again, reader)] == [False] * 3
        store.announce("a")
        again.announce("a")
        assert [one.is_announced("a") for one in (store, again, reader)] == [True] * 3
        assert not reader.is_announced("b")
        store.withdraw("a")
        assert store.is_announced("a")
        again.withdraw("a")
        assert not store.is_announced("a")
        again.announce("a")
        again.close()
        deadline = time.monotonic() + 30
        while store.is_announced("a"):  # until the server has seen that the connection is gone
            assert time.monotonic() < deadline
        store.withdraw("a")
        reader.close()
        store.close()
