"""The index of words as an FTS5 table without contents. What it is asked is built from words alone, each quoted, so no
text of a user is ever read as a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from weft.store.records import LAST_NUMBER
from weft.store.sql import Sql
from weft.store.word_index import AnyOf, Question, Term


class FtsIndex:
    """FTS5 over words that are made elsewhere: its tokenizer only splits at spaces."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        self._sql.run_many("INSERT INTO word(rowid, words) VALUES (?, ?)", passages)

    def drop(self, passages: Sequence[int]) -> None:
        self._sql.run_many("DELETE FROM word WHERE rowid = ?", ((n,) for n in passages))

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        rows = self._sql.all(
            "SELECT rowid FROM word WHERE word MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?",
            (spelled(question), 0 if low is None else low, LAST_NUMBER if high is None else high, limit),
        )
        return [n for (n,) in rows]

    def ranked(self, question: Question, limit: int) -> list[int]:
        rows = self._sql.all(
            "SELECT rowid FROM word WHERE word MATCH ? ORDER BY rank LIMIT ?", (spelled(question), limit)
        )
        return [n for (n,) in rows]

    def pairs(self) -> Iterator[tuple[str, int]]:
        return cast("Iterator[tuple[str, int]]", self._sql.each("SELECT term, doc FROM word_pair"))

    def purge(self) -> None:
        """Everything goes into one new segment, without what was dropped."""
        self._sql.run("INSERT INTO word(word) VALUES ('optimize')")

    def look_again(self) -> None:
        """Before the engine checks itself: FTS5 remembers the shape of its index until it is asked something, and a
        check by what another connection has changed since would find fault with what is sound."""
        self._sql.one("SELECT rowid FROM word LIMIT 1")

    def clear(self) -> None:
        self._sql.run("INSERT INTO word(word) VALUES ('delete-all')")


def spelled(question: Question) -> str:
    """The question in FTS5's own language; every word is a quoted string there, which it takes as it is."""
    return " AND ".join(_group(group) for group in question)


def _group(group: AnyOf) -> str:
    terms = " OR ".join(map(_term, group))
    return f"({terms})" if len(group) > 1 else terms


def _term(term: Term) -> str:
    quoted = '"' + term.word.replace('"', '""') + '"'
    return f"{quoted} *" if term.prefix else quoted
