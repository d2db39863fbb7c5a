"""The contract of `weft.store.port.Store` as tests that every backend passes, with its parts
about erasing, packing and the index of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from weft.kernel.clock import is_ulid
from weft.kernel.contents import ERASED, ROW_BYTES, SALT_BYTES, content_ref
from weft.kernel.errors import ContentGone, ContentMissing, IdCollision, InvalidInput, ReadOnlyLedger, StoreError
from weft.kernel.events import GENESIS, extend
from weft.store.fact_log import ContentSlice, FactReader, StoredContentRow, drop_from_packs, write_pack
from weft.store.port import Question, SearchTerm, Store, WriteTxn

# --- The contract of a store's index of words, as tests that every backend passes; part of `weft.store.testing`.

INJECTIONS = (
    '"',
    '""',
    "'",
    "''; DROP TABLE passage; --",
    "a OR b",
    "a AND b",
    "NOT a",
    "NEAR(a b)",
    "words : a",
    "{words}: a",
    "^a",
    "a*",
    "*",
    "a + b",
    "(",
    ")",
    "(a",
    "a & b",
    "a | b",
    "!a",
    "a <-> b",
    "a:*",
    "\\",
    "\\'",
    "-a",
    "?",
    "%",
    "$1",
)
"""What an engine might read as more than a word."""


def asked(*words: str) -> Question:
    """All of these; a word that ends with `~` begins there."""
    return tuple((SearchTerm(word.rstrip("~"), word.endswith("~")),) for word in words)


def put_words(store: Store, passages: dict[int, str]) -> None:
    store.write(lambda txn: store.word_index(txn.sql).put(passages.items()))


def matching(store: Store, question: Question, limit: int = 1000, *between: int) -> set[int]:
    with store.read() as txn:
        found = store.word_index(txn.sql).match(question, limit, *between)
    assert len(found) == len(set(found))
    return set(found)


def held(store: Store) -> set[tuple[str, int]]:
    with store.read() as txn:
        found = list(store.word_index(txn.sql).pairs())
    assert len(found) == len(set(found))
    return set(found)


def pairs(passages: dict[int, str], but: Iterable[int] = ()) -> set[tuple[str, int]]:
    return {(word, n) for n, words in passages.items() if n not in but for word in words.split()}


SOME = {
    1: "the cat sat :ruser :d20772",
    2: "the dog sat :rassistant :d20772",
    5: "catalogue of cats ärger 日本 本語 語 x½ :ruser :d20773",
    9: "a 7 é 0042 :rtool",
}


class WordIndexContract:
    """What every index of words promises."""

    def store(self, folder: Path) -> AbstractContextManager[Store]:
        raise NotImplementedError

    def test_passages_are_found_by_all_their_words(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, SOME)
            assert held(store) == pairs(SOME)
            for n, words in SOME.items():
                assert n in matching(store, asked(*words.split()))
            assert matching(store, asked("sat")) == {1, 2}
            assert matching(store, asked("sat", ":ruser")) == {1}
            assert matching(store, asked("ca")) == matching(store, asked("cat", "dog")) == set()
            assert matching(store, asked("ruser")) == set()

    def test_a_word_may_be_a_beginning(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, SOME)
            assert matching(store, asked("cat~")) == {1, 5}
            assert matching(store, asked("the", "ca~")) == {1}
            assert matching(store, asked("日~")) == matching(store, asked("ärg~", "x~")) == {5}
            assert matching(store, asked(":r~")) == {1, 2, 5, 9}

    def test_of_a_group_one_word_is_enough(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, SOME)
            group = (SearchTerm("dog"), SearchTerm("7"), SearchTerm("catal", True))
            assert matching(store, (group,)) == {2, 5, 9}
            assert matching(store, (group, (SearchTerm(":ruser"), SearchTerm(":rtool")))) == {5, 9}

    def test_numbers_and_a_limit_bound_what_is_found(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, dict.fromkeys(range(1, 101), "same"))
            assert matching(store, asked("same"), 1000, 10, 12) == {10, 11, 12}
            assert len(matching(store, asked("same"), 7)) == 7
            with store.read() as txn:
                assert len(store.word_index(txn.sql).ranked(asked("same"), 7)) == 7

    def test_what_is_dropped_is_gone(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, SOME)
            store.write(lambda txn: store.word_index(txn.sql).drop([1, 5]))
            assert held(store) == pairs(SOME, but=(1, 5))
            assert matching(store, asked("cat~")) == set()
            put_words(store, {1: "cat again", 11: "x"})
            assert matching(store, asked("cat")) == {1}
            assert matching(store, asked("sat")) == {2}
            store.write(lambda txn: store.word_index(txn.sql).clear())
            assert held(store) == set()
            assert store.check_integrity() == []

    def test_no_word_is_read_as_a_query(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            put_words(store, SOME)
            for text in INJECTIONS:
                try:
                    SearchTerm(text)
                except InvalidInput:
                    continue
                raise AssertionError(f"{text!r} passes for a word")
            for word in ("and", "or", "not", "near", "words", "null", "’", "“a”", "日 本", "a\u00a0b", "\u2028"):
                for prefix in (False, True):
                    assert matching(store, ((SearchTerm(word.replace(" ", "\u3000"), prefix),),)) == set(), word
            assert held(store) == pairs(SOME)


# --- The part of the store's contract that is about erasing and packing: every backend passes it with the rest.

SCOPE = 7
LARGE = b"x" * (ROW_BYTES + 5)


def _put(store: Store, data: bytes, scope: int = SCOPE) -> StoredContentRow:
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
        write_pack(txn.sql, [ContentSlice(n, 0, data) for n, data in contents.items()])
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
                    row = txn.sql.fetch_row(f"SELECT {columns} FROM content WHERE n = ?", (stored.n,))
                    assert row == (stored.ref, b"", b"", 0, ERASED, None)
                    for table, column in (("content_part", "content"), ("lookup_bytes", "n"), ("packed", "content")):
                        assert txn.sql.fetch_row(f"SELECT 1 FROM {table} WHERE {column} = ?", (stored.n,)) is None

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
            husk = store.write(lambda txn: txn.facts.put_erased(ref))
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
                assert (
                    txn.sql.fetch_rows("SELECT n FROM pack") == txn.sql.fetch_rows("SELECT content FROM packed") == []
                )

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


# --- The contract of `weft.store.port.Store`, as tests that every backend passes.

T = TypeVar("T")
TREE = 7  # a scope: the tree that shares its contents
LONG_WAIT = 60.0
VIEWS = ("lookup_event", "lookup_content")
LOOKUPS = (*VIEWS, "lookup_bytes")
ODD_BYTES = (
    b"",
    b"\0",
    b"a\0b",
    b"\xff\xfe\x80",  # no UTF-8
    b"\xed\xa0\x80",  # a lone surrogate, as Weft keeps it
    "Zoë, 東京, 🧵".encode(),
    b"\r\n",
    b"x" * (ROW_BYTES - 1),
    b"x" * ROW_BYTES,
    b"x" * (ROW_BYTES + 1),
    "ü".encode() * ROW_BYTES,
)


class Refused(Exception):
    """What a caller's own work raises in these tests."""


@contextmanager
def refuses(error: type[BaseException]) -> Iterator[None]:
    """The block must raise this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def lines_of(name: str, count: int = 1) -> list[bytes]:
    return [f'{{"event":"{name}.{i}"}}'.encode() for i in range(count)]


def ids_of(lines: Iterable[bytes]) -> list[bytes]:
    return [sha256(line).digest() for line in lines]


def append(store: Store, name: str, count: int = 1) -> int:
    """One append of so many events; returns the arrival number of its first."""
    lines = lines_of(name, count)
    return store.write(lambda txn: txn.facts.append(lines, ids_of(lines)))


def put(store: Store, data: bytes, scope: int = TREE) -> StoredContentRow:
    return store.write(lambda txn: txn.facts.put(data, scope))


def ask(store: Store, question: Callable[[FactReader], T]) -> T:
    with store.read() as txn:
        return question(txn.facts)


def feed(store: Store, after: int = 0) -> list[tuple[int, bytes]]:
    return ask(store, lambda facts: list(facts.lines(after)))


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Each in a thread of its own; what one raises is raised here."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


def assert_sound(store: Store) -> None:
    """Arrival numbers without a gap, and a chain that leads from each row to the next."""
    with store.read() as txn:
        chain, n = GENESIS, 0
        for row in txn.facts.rows():
            assert row.first == n + 1
            assert row.count == len(row.lines())
            chain, n = extend(chain, ids_of(row.lines())), row.n
            assert row.chain == chain == txn.facts.chain_at(n)
        assert (txn.facts.tip().n, txn.facts.tip().chain) == (n, chain)
    assert store.check_integrity() == []


class StoreContract(WordIndexContract, ErasingContract):
    """What every store promises."""

    backend: type  # the class under test; a backend that no contract names fails the build

    def make_store(self, folder: Path) -> Store:
        """A new, empty store; a lasting one lies in `folder`."""
        raise NotImplementedError

    def open_copy(self, copy: Path) -> Store:
        """The store that a backup made."""
        raise NotImplementedError

    @contextmanager
    def store(self, folder: Path) -> Iterator[Store]:
        made = self.make_store(folder)
        try:
            yield made
        finally:
            made.close()

    # --- appending ----------------------------------------------------------------------------------------------

    def test_a_new_store_is_empty_and_knows_its_name(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            tip = ask(store, FactReader.tip)
            assert (tip.n, tip.chain) == (0, GENESIS)
            assert feed(store) == []
            assert is_ulid(store.replica)
            assert not store.read_only

    def test_an_append_is_one_row_whose_events_are_numbered_from_one(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            assert append(store, "a", 3) == 1
            assert append(store, "b") == 4
            rows = ask(store, FactReader.log)
            assert [(row.first, row.n, row.count) for row in rows] == [(1, 3, 3), (4, 4, 1)]
            assert rows[0].lines() == lines_of("a", 3)
            assert all(abs(row.at - store.now_ms()) < 3_600_000 for row in rows)

    def test_the_chain_is_what_the_events_add_up_to(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for i in range(5):
                append(store, f"a{i}", i + 1)
            assert_sound(store)
            assert ask(store, lambda facts: facts.chain_at(2)) is None

    def test_events_are_read_in_order_and_one_by_one(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for i in range(70):
                append(store, f"a{i}", 2)
            whole = feed(store)
            assert [n for n, _ in whole] == list(range(1, 141))
            assert feed(store, 9) == whole[9:]
            with store.read() as txn:
                assert list(txn.facts.lines(9, 12)) == whole[9:12]
                assert all(txn.facts.line(n) == line for n, line in whole)
                assert txn.facts.line(141) is None

    def test_a_writer_reads_what_it_has_written_so_far(self, tmp_path: Path) -> None:
        def work(txn: WriteTxn) -> tuple[int, bytes]:
            content = txn.facts.put(b"mine", TREE).n
            txn.facts.append(lines_of("a"), ids_of(lines_of("a")))
            return txn.facts.tip().n, txn.facts.content(content)

        with self.store(tmp_path) as store:
            assert store.write(work) == (1, b"mine")

    # --- all or nothing -----------------------------------------------------------------------------------------

    def test_work_that_raises_leaves_nothing_behind(self, tmp_path: Path) -> None:
        def work(txn: WriteTxn) -> None:
            txn.facts.put(b"lost", TREE)
            txn.facts.append(lines_of("lost"), ids_of(lines_of("lost")))
            txn.facts.flush()
            raise Refused

        with self.store(tmp_path) as store:
            append(store, "a")
            with refuses(Refused):
                store.write(work)
            assert append(store, "b") == 2
            assert put(store, b"lost").n == put(store, b"lost").n
            assert [line for _, line in feed(store)] == lines_of("a") + lines_of("b")
            assert_sound(store)

    def test_a_content_whose_writer_was_undone_is_not_shared_with_the_next_one(self, tmp_path: Path) -> None:
        def work(txn: WriteTxn) -> None:
            txn.facts.put(b"text", TREE)
            raise Refused

        with self.store(tmp_path) as store:
            with refuses(Refused):
                store.write(work)
            stored = put(store, b"text")
            assert ask(store, lambda facts: facts.content(stored.n)) == b"text"
            assert ask(store, lambda facts: facts.find_content(stored.ref)) == stored.n

    def test_one_failing_writer_harms_none_that_shares_its_commit(self, tmp_path: Path) -> None:
        def write(store: Store, name: str, fails: bool) -> None:
            lines = lines_of(name, 2)

            def work(txn: WriteTxn) -> None:
                txn.facts.put(name.encode(), TREE)
                txn.facts.append(lines, ids_of(lines))
                if fails:
                    raise Refused(name)

            refused = None
            try:
                store.write(work)
            except Refused as error:
                refused = error.args
            assert refused == ((name,) if fails else None)

        def write_all(store: Store, mine: list[tuple[str, bool]]) -> None:
            for name, fails in mine:
                write(store, name, fails)

        with self.store(tmp_path) as store:
            names = [[(f"w{k}-{i}", (k + i) % 3 == 0) for i in range(20)] for k in range(8)]
            at_once([partial(write_all, store, mine) for mine in names])
            kept = sorted(line for mine in names for name, fails in mine if not fails for line in lines_of(name, 2))
            assert sorted(line for _, line in feed(store)) == kept
            assert_sound(store)

    def test_an_interrupt_inside_a_writers_work_leaves_the_store_usable(self, tmp_path: Path) -> None:
        def work(txn: WriteTxn) -> None:
            txn.facts.append(lines_of("lost"), ids_of(lines_of("lost")))
            raise KeyboardInterrupt

        with self.store(tmp_path) as store:
            with refuses(KeyboardInterrupt):
                store.write(work)
            assert append(store, "a") == 1
            assert_sound(store)

    def test_a_statement_the_engine_refuses_is_a_store_error(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            with refuses(StoreError):
                store.write(lambda txn: txn.sql.run("INSERT INTO nowhere VALUES (1)"))
            with refuses(StoreError), store.read() as txn:
                txn.sql.fetch_rows("SELECT * FROM nowhere")
            assert append(store, "a") == 1

    def test_a_minted_id_that_is_taken_is_a_collision(self, tmp_path: Path) -> None:
        def add(txn: WriteTxn, name: str) -> None:
            txn.sql.run("INSERT INTO program(id, kind, name) VALUES ('P', 'agent', ?)", (name,))

        with self.store(tmp_path) as store:
            store.write(lambda txn: add(txn, "first"))
            with refuses(IdCollision):
                store.write(lambda txn: add(txn, "second"))
            with store.read() as txn:
                assert txn.sql.fetch_rows("SELECT name FROM program") == [("first",)]

    # --- reading ------------------------------------------------------------------------------------------------

    def test_a_reader_sees_one_moment_while_others_write(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            append(store, "before")
            with store.read() as txn:
                tip = txn.facts.tip()
                writers = [Thread(target=append, args=(store, f"a{i}")) for i in range(4)]
                for writer in writers:
                    writer.start()
                assert all(txn.facts.tip() == tip for _ in range(50))
                assert len(list(txn.facts.lines())) == 1
            for writer in writers:
                writer.join()
            assert ask(store, FactReader.tip).n == 5

    def test_the_feed_neither_skips_nor_repeats_while_writers_write(self, tmp_path: Path) -> None:
        writers, appends = 4, 25

        def write(store: Store, k: int) -> None:
            for i in range(appends):
                append(store, f"w{k}-{i}", 1 + i % 3)

        def follow(store: Store, total: int) -> list[tuple[int, bytes]]:
            found: list[tuple[int, bytes]] = []
            while len(found) < total:
                assert store.changes(len(found), LONG_WAIT)
                found += feed(store, len(found))
            return found

        with self.store(tmp_path) as store, ThreadPoolExecutor(1) as pool:
            appended = [(f"w{k}-{i}", 1 + i % 3) for k in range(writers) for i in range(appends)]
            written = [line for name, count in appended for line in lines_of(name, count)]
            followed = pool.submit(follow, store, len(written))
            at_once([partial(write, store, k) for k in range(writers)])
            seen = followed.result()
            assert [n for n, _ in seen] == list(range(1, len(written) + 1))
            assert sorted(line for _, line in seen) == sorted(written)
            assert seen == feed(store)

    def test_waiting_for_changes_ends_with_the_next_event_or_the_time(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store, ThreadPoolExecutor(1) as pool:
            assert store.changes(0, 0.0) is False
            waiting = pool.submit(store.changes, 0, LONG_WAIT)
            append(store, "a")
            assert waiting.result() is True
            assert store.changes(0, 0.0) is True
            assert store.changes(1, 0.0) is False

    # --- contents -----------------------------------------------------------------------------------------------

    def test_any_bytes_come_back_as_they_were(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for data in ODD_BYTES:
                stored = put(store, data)
                with store.read() as txn:
                    assert txn.facts.content(stored.n) == data
                    assert txn.facts.content_size(stored.n) == len(data)
                    assert b"".join(txn.facts.stream_content(stored.n)) == data
                    assert txn.facts.find_content(stored.ref) == stored.n

    def test_a_stream_comes_back_in_pieces_of_at_most_one_row(self, tmp_path: Path) -> None:
        chunks = [bytes([i]) * 700_001 for i in range(5)]
        with self.store(tmp_path) as store:
            for given in ([], [b""], [b"short"], chunks, [b"".join(chunks)], [b"x" * ROW_BYTES] * 3):
                stored, whole = store.put_stream(iter(given), TREE), b"".join(given)
                with store.read() as txn:
                    pieces = list(txn.facts.stream_content(stored.n))
                    assert b"".join(pieces) == whole == txn.facts.content(stored.n)
                    assert max(map(len, pieces)) <= ROW_BYTES
                    assert txn.facts.find_content(stored.ref) == stored.n

    def test_a_stream_that_breaks_off_leaves_nothing(self, tmp_path: Path) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x" * (ROW_BYTES + 1)
            raise Refused

        with self.store(tmp_path) as store:
            with refuses(Refused):
                store.put_stream(chunks(), TREE)
            stored = store.put_stream([b"y" * ROW_BYTES], TREE)
            assert ask(store, lambda facts: facts.content(stored.n)) == b"y" * ROW_BYTES

    def test_a_reference_is_the_salted_hash_and_the_salt_is_not_repeated(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            stored = [put(store, b"text", scope) for scope in (1, 2)]
            with store.read() as txn:
                rows = [txn.facts.content_row(one.n) for one in stored]
            salts = {row.salt for row in rows if row is not None}
            assert len(salts) == 2
            assert all(len(salt) == SALT_BYTES for salt in salts)
            assert all(row is not None and content_ref(row.salt, b"text") == row.ref for row in rows)

    def test_equal_bytes_are_one_content_within_a_tree_and_only_there(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            first, other = put(store, b"text", 1), put(store, b"text", 2)
            assert first.n != other.n
            assert first.ref != other.ref
            assert store.write(lambda txn: {txn.facts.put(b"text", 1) for _ in range(3)}) == {first}
            store.catch_up()
            assert put(store, b"text", 1) == first
            assert put(store, b"text", 2) == other
            fresh = store.write(lambda txn: [txn.facts.put(b"new", 1) for _ in range(2)])
            assert fresh[0] == fresh[1]

    def test_a_content_that_is_not_here_is_said_to_be_missing(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            for question in (lambda facts: facts.content(99), lambda facts: list(facts.stream_content(99))):
                with refuses(ContentMissing):
                    ask(store, question)
            assert ask(store, lambda facts: facts.find_content(bytes(32))) is None

    # --- finding by hash ----------------------------------------------------------------------------------------

    def test_events_and_contents_are_found_by_their_hash_before_and_after_catching_up(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            early = self._fill(store, "early")
            self._assert_found(store, early)
            store.catch_up()
            self._assert_found(store, early)
            late = self._fill(store, "late")
            self._assert_found(store, early + late)
            store.catch_up()
            self._assert_found(store, early + late)
            assert ask(store, lambda facts: facts.find_event(bytes(32))) is None

    def _fill(self, store: Store, name: str) -> list[tuple[int, bytes, StoredContentRow]]:
        made = []
        for i in range(20):
            first, stored = append(store, f"{name}{i}"), put(store, f"{name} {i}".encode())
            made.append((first, ids_of(lines_of(f"{name}{i}"))[0], stored))
        return made

    def _assert_found(self, store: Store, made: list[tuple[int, bytes, StoredContentRow]]) -> None:
        with store.read() as txn:
            for n, event, stored in made:
                assert txn.facts.find_event(event) == n
                assert (n, event.hex()) in txn.facts.find_events(event[:3], event.hex()[6])
                assert txn.facts.find_content(stored.ref) == stored.n

    def test_catching_up_moves_the_watermarks_to_the_newest_facts_and_once_is_enough(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            assert self._watermarks(store) == [0, 0]
            self._fill(store, "a")
            assert self._watermarks(store) == [0, 0]
            for _ in range(2):
                store.catch_up()
                assert self._watermarks(store) == [20, 20]
                assert self._lookup_rows(store) == [20, 20, 20]

    def _watermarks(self, store: Store) -> list[int]:
        return ask(store, lambda facts: [facts.watermark(view) for view in VIEWS])

    def _lookup_rows(self, store: Store) -> list[int]:
        with store.read() as txn:
            counts = [txn.sql.fetch_row(f"SELECT count(*) FROM {table}") for table in LOOKUPS]
        return [row[0] for row in counts if row is not None]

    # --- keeping ------------------------------------------------------------------------------------------------

    def test_a_backup_is_a_whole_beginning_of_the_ledger_while_writers_write(self, tmp_path: Path) -> None:
        done = Event()

        def write(store: Store, k: int) -> None:
            for i in range(10_000):
                append(store, f"w{k}-{i}", 2)
                put(store, f"{k} {i}".encode())
                if done.is_set():
                    return

        with self.store(tmp_path) as store, ThreadPoolExecutor(2) as pool:
            append(store, "first")
            writing = [pool.submit(write, store, k) for k in range(2)]
            assert store.changes(50, LONG_WAIT)
            store.backup(tmp_path / "copy.db")
            done.set()
            assert [future.result() for future in writing] == [None, None]
            whole = feed(store)
            copy = self.open_copy(tmp_path / "copy.db")
            copied = feed(copy)
            assert len(copied) > 50
            assert copied == whole[: len(copied)]
            assert_sound(copy)
            assert copy.replica != store.replica
            copy.close()

    def test_a_backup_never_replaces_a_file(self, tmp_path: Path) -> None:
        taken = tmp_path / "taken"
        taken.write_text("mine")
        with self.store(tmp_path) as store, refuses(StoreError):
            store.backup(taken)
        assert taken.read_text() == "mine"

    def test_a_scratch_database_has_the_tables_and_nothing_in_them(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            append(store, "a")
            with store.scratch() as scratch, store.scratch() as another:
                assert FactReader(scratch).tip().n == 0
                scratch.run("INSERT INTO local(key, value) VALUES ('k', 'scratch')")
                assert another.fetch_row("SELECT count(*) FROM local WHERE key = 'k'") == (0,)
                append(store, "b")
            with store.read() as txn:
                assert txn.sql.fetch_row("SELECT count(*) FROM local WHERE key = 'k'") == (0,)
            assert_sound(store)

    def test_closing_twice_is_harmless_and_using_a_closed_store_is_refused(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        append(store, "a")
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: append(store, "b"),
            lambda: feed(store),
            lambda: store.put_stream([b"x"], TREE),
            store.catch_up,
            lambda: store.changes(0, 0.0),
            lambda: store.backup(tmp_path / "copy.db"),
        ]
        for use in uses:
            with refuses(StoreError):
                use()


class LastingStoreContract(StoreContract):
    """What a store promises besides, when its ledger outlives it and has several users."""

    def reopen(self, store: Store) -> Store:
        """Another store on the same ledger; the first may be open or closed."""
        raise NotImplementedError

    def open_read_only(self, store: Store) -> Store:
        raise NotImplementedError

    def test_everything_is_there_after_reopening(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        append(store, "a", 3)
        stored = put(store, b"text")
        store.catch_up()
        store.close()
        again = self.reopen(store)
        assert again.replica == store.replica
        assert [line for _, line in feed(again)] == lines_of("a", 3)
        assert ask(again, lambda facts: facts.content(stored.n)) == b"text"
        assert ask(again, lambda facts: facts.watermark("lookup_event")) == 3
        assert put(again, b"text") == stored
        assert append(again, "b") == 4
        assert_sound(again)
        again.close()

    def test_the_number_of_a_content_that_events_may_name_is_never_given_again(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        lost = put(store, b"lost")
        append(store, "a")
        store.write(lambda txn: txn.sql.run("DELETE FROM content WHERE n = ?", (lost.n,)))
        store.close()
        again = self.reopen(store)
        assert put(again, b"new").n > lost.n
        with refuses(ContentMissing):
            ask(again, lambda facts: facts.content(lost.n))
        again.close()

    def test_a_reader_never_holds_up_a_writer(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            append(store, "a")
            with store.read() as txn:
                tip = txn.facts.tip()
                assert append(store, "b") == 2
                assert txn.facts.tip() == tip
            assert ask(store, FactReader.tip).n == 2

    def test_a_long_read_goes_on_from_its_own_moment_while_much_is_written(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            append(store, "a", 100)
            with store.read() as txn:
                lines = txn.facts.lines()
                begun = next(lines)
                for i in range(200):
                    append(store, f"b{i}")
                assert [begun, *lines] == list(enumerate(lines_of("a", 100), 1))

    def test_two_openers_take_turns_and_share_contents(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as one:
            two = self.reopen(one)
            for i in range(20):
                assert append(one, f"one{i}") == 2 * i + 1
                assert append(two, f"two{i}") == 2 * i + 2
                assert put(one, f"{i}".encode()) == put(two, f"{i}".encode())
            assert feed(one) == feed(two)
            assert one.changes(39, 0.0)
            assert two.changes(39, 0.0)
            two.close()
            assert append(one, "last") == 41
            assert_sound(one)

    def test_two_openers_writing_at_once_lose_nothing(self, tmp_path: Path) -> None:
        def write(store: Store, k: int) -> None:
            for i in range(25):
                append(store, f"w{k}-{i}", 2)

        with self.store(tmp_path) as one:
            two = self.reopen(one)
            at_once([partial(write, store, k) for k, store in enumerate((one, two, one, two))])
            written = [line for k in range(4) for i in range(25) for line in lines_of(f"w{k}-{i}", 2)]
            assert sorted(line for _, line in feed(two)) == sorted(written)
            assert_sound(two)
            two.close()

    def test_catching_up_in_one_opener_serves_the_other(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as one:
            two = self.reopen(one)
            stored = put(one, b"text")
            two.catch_up()
            assert put(one, b"text") == stored
            assert put(two, b"text") == stored
            assert ask(one, lambda facts: facts.find_content(stored.ref)) == stored.n
            two.close()

    def test_a_read_only_store_shows_everything_and_changes_nothing(self, tmp_path: Path) -> None:
        with self.store(tmp_path) as store:
            append(store, "a")
            reader = self.open_read_only(store)
            assert reader.read_only
            assert reader.replica == store.replica
            with refuses(ReadOnlyLedger):
                append(reader, "b")
            with refuses(ReadOnlyLedger):
                reader.put_stream([b"x"], TREE)
            reader.catch_up()
            assert ask(reader, lambda facts: facts.watermark("lookup_event")) == 0
            append(store, "b")
            assert [line for _, line in feed(reader)] == lines_of("a") + lines_of("b")
            assert ask(reader, lambda facts: facts.find_event(ids_of(lines_of("b"))[0])) == 2
            assert reader.check_integrity() == []
            reader.close()
