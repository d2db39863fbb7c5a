"""The store's contract, on a SQLite file."""

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from weft.kernel.errors import StoreError
from weft.store.port import Store
from weft.store.sqlite import SqliteStore, connection
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

    @pytest.mark.skipif(sys.platform != "linux", reason="names are not seen on this system")
    def test_a_name_is_withdrawn_also_where_a_forked_process_has_its_file_open(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            assert isinstance(store, SqliteStore)
            store.announce("a")
            copy = os.dup(store._names._descriptors["a"])  # as a child has it
            store.withdraw("a")
            assert not store.is_announced("a")
            os.close(copy)

    @pytest.mark.skipif(sys.platform != "linux", reason="names are not seen on this system")
    def test_a_name_that_could_not_be_announced_is_announced_by_the_next_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.EMFILE, "too many open files")

        with self.store(tmp_path) as store:
            with monkeypatch.context() as patch:
                patch.setattr(connection, "open_or_create_beside", refuse)
                with pytest.raises(StoreError):
                    store.announce("a")
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "fcntl", refuse)
                store.announce("a")
            assert not store.is_announced("a")
            store.announce("a")
            assert store.is_announced("a")
        with pytest.raises(StoreError):
            store.is_announced("a")

    @pytest.mark.skipif(sys.platform != "linux", reason="names are not seen on this system")
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
