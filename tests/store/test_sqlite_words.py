"""The index of words on SQLite, below its contract."""

from pathlib import Path

from tests.ledger.histories import select
from weft.store.sqlite import SqliteStore
from weft.store.testing import held, put_words


def test_words_that_only_dropped_passages_held_leave_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    put_words(store, {1: "alpha zzcanary", 2: "alpha beta"})
    assert canaries(path)
    store.write(lambda txn: store.word_index(txn.sql).drop([1]))
    store.write(lambda txn: store.word_index(txn.sql).purge())
    assert not canaries(path)
    assert held(store) == {("alpha", 2), ("beta", 2)}
    assert store.check_integrity() == []
    store.close()


def canaries(path: Path) -> bool:
    return any(b"zcanary" in row["block"] for row in select(path, "SELECT block FROM word_data"))
