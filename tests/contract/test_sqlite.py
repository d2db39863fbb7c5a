"""The store's contract, on a SQLite file."""

import fcntl
from pathlib import Path

import pytest

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

    @pytest.mark.skipif(not hasattr(fcntl, "F_OFD_GETLK"), reason="names are not seen on this system")
    def test_a_name_that_is_announced_is_seen_until_everybody_has_withdrawn_it(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        again, reader = self.reopen(store), self.open_read_only(store)
        assert [one.is_announced("a") for one in (store, again, reader)] == [False] * 3
        store.announce("a")
        again.announce("a")
        store.announce("a")  # and again, which changes nothing
        assert [one.is_announced("a") for one in (store, again, reader)] == [True] * 3
        assert not reader.is_announced("b")
        reader.close()  # closing a file ends nobody else's
        again.write(lambda txn: None)  # it hinders nobody who writes
        store.withdraw("a")
        assert store.is_announced("a")
        again.close()
        assert not store.is_announced("a")
        store.withdraw("a")
        store.close()
