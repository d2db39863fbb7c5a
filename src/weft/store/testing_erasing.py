"""The part of the store's contract that is about erasing and packing: every backend passes it with the rest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from weft.kernel.contents import ERASED, ROW_BYTES
from weft.kernel.errors import ContentGone
from weft.store.packs import Slice, drop_from_packs, write_pack
from weft.store.port import Store, WriteTxn
from weft.store.records import Stored

SCOPE = 7
LARGE = b"x" * (ROW_BYTES + 5)


def _put(store: Store, data: bytes, scope: int = SCOPE) -> Stored:
    return store.write(lambda txn: txn.facts.put(data, scope))


def _is_gone(store: Store, n: int) -> bool:
    with store.read() as txn:
        try:
            txn.facts.content(n)
        except ContentGone:
            return True
    return False


def _pack(store: Store, contents: dict[int, bytes]) -> None:
    """As whoever packs does it: the bytes into a pack, then out of their rows."""

    def work(txn: WriteTxn) -> None:
        write_pack(txn.sql, [Slice(n, 0, data) for n, data in contents.items()])
        txn.sql.run_many("UPDATE content SET bytes = NULL WHERE n = ?", [(n,) for n in contents])

    store.write(work)


class ErasingContract:
    """What every store promises of contents that are erased or packed."""

    def store(self, folder: Path) -> AbstractContextManager[Store]:
        raise NotImplementedError

    def test_an_erased_content_keeps_its_number_and_its_reference_and_nothing_else(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for stored in (_put(store, b"short"), _put(store, LARGE)):
                store.catch_up()
                store.write(lambda txn, n=stored.n: txn.facts.erase([n]))  # type: ignore[misc]
                assert _is_gone(store, stored.n)
                with store.read() as txn:
                    assert txn.facts.find_content(stored.ref) == stored.n
                    columns = "ref, salt, digest, size, shown, bytes"
                    row = txn.sql.one(f"SELECT {columns} FROM content WHERE n = ?", (stored.n,))
                    assert row == (stored.ref, b"", b"", 0, ERASED, None)
                    for table, column in (("content_part", "content"), ("lookup_bytes", "n"), ("packed", "content")):
                        assert txn.sql.one(f"SELECT 1 FROM {table} WHERE {column} = ?", (stored.n,)) is None

    def test_equal_bytes_after_an_erasure_are_another_content(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for caught_up in (False, True):
                first = _put(store, b"text")
                if caught_up:
                    store.catch_up()
                store.write(lambda txn, n=first.n: txn.facts.erase([n]))  # type: ignore[misc]
                second = _put(store, b"text")
                assert second.ref != first.ref
                with store.read() as txn:
                    assert txn.facts.content(second.n) == b"text"

    def test_an_erasure_that_is_undone_has_not_happened(self, tmp_path: Path) -> None:
        class Stop(Exception):
            """Whatever went wrong."""

        def work(txn: WriteTxn) -> None:
            txn.facts.erase([stored.n])
            raise Stop

        with self.store(tmp_path) as store:
            stored = _put(store, b"text")
            try:
                store.write(work)
            except Stop:
                pass
            else:
                raise AssertionError("the work's own error was not raised")
            with store.read() as txn:
                assert txn.facts.content(stored.n) == b"text"
            assert _put(store, b"text") == stored

    def test_a_content_that_is_known_to_be_erased_before_it_came_is_gone(self, tmp_path: Path) -> None:
        ref = bytes(range(32))
        with self.store(tmp_path) as store:
            husk = store.write(lambda txn: txn.facts.put_husk(ref))
            after = _put(store, b"text")
            assert after.n == husk.n + 1
            assert _is_gone(store, husk.n)
            with store.read() as txn:
                assert txn.facts.find_content(ref) == husk.n

    def test_a_packed_content_reads_as_before_and_can_be_erased(self, tmp_path: Path) -> None:
        texts = [f"text {i} ".encode() * 50 for i in range(3)]
        with self.store(tmp_path) as store:
            stored = [_put(store, text) for text in texts]
            _pack(store, {each.n: text for each, text in zip(stored, texts, strict=True)})
            with store.read() as txn:
                assert [txn.facts.content(each.n) for each in stored] == texts
                assert b"".join(txn.facts.stream_content(stored[1].n)) == texts[1]
            assert _put(store, texts[2]) == stored[2]
            store.write(lambda txn: txn.facts.erase([stored[1].n]))
            assert _is_gone(store, stored[1].n)
            with store.read() as txn:
                assert [txn.facts.content(stored[i].n) for i in (0, 2)] == [texts[0], texts[2]]

    def test_a_pack_goes_with_the_last_content_in_it(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            stored = _put(store, b"text" * 50)
            _pack(store, {stored.n: b"text" * 50})
            store.write(lambda txn: drop_from_packs(txn.sql, [stored.n]))
            with store.read() as txn:
                assert txn.sql.all("SELECT n FROM pack") == txn.sql.all("SELECT content FROM packed") == []

    def test_a_rewritten_store_holds_the_same(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            stored = [_put(store, text) for text in (b"one", LARGE, b"three")]
            store.write(lambda txn: txn.facts.erase([stored[0].n]))
            assert store.rewrite()
            assert store.empty_log()
            assert store.check_integrity() == []
            with store.read() as txn:
                assert txn.facts.content(stored[1].n) == LARGE
            assert _is_gone(store, stored[0].n)
            assert _put(store, b"three") == stored[2]
            assert all(path.exists() for path in store.lying_beside())
