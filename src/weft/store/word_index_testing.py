"""The contract of a store's index of words, as tests that every backend passes; part of `weft.store.testing`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from weft.kernel.errors import InvalidInput
from weft.store.port import Store
from weft.store.word_index import Question, Term

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
    return tuple((Term(word.rstrip("~"), word.endswith("~")),) for word in words)


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
            group = (Term("dog"), Term("7"), Term("catal", True))
            assert matching(store, (group,)) == {2, 5, 9}
            assert matching(store, (group, (Term(":ruser"), Term(":rtool")))) == {5, 9}

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
                    Term(text)
                except InvalidInput:
                    continue
                raise AssertionError(f"{text!r} passes for a word")
            for word in ("and", "or", "not", "near", "words", "null", "’", "“a”", "日 本", "a\u00a0b", "\u2028"):
                for prefix in (False, True):
                    assert matching(store, ((Term(word.replace(" ", "\u3000"), prefix),),)) == set(), word
            assert held(store) == pairs(SOME)
