"""The index of words as vectors of lexemes under a GIN index. Lexemes are given as they are and queries are built from
quoted ones, so no text search configuration takes part, and no text of a user is ever read as a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from weft.store.records import LAST_NUMBER
from weft.store.sql import Sql
from weft.store.word_index import AnyOf, Question, Term

_INSERT = "INSERT INTO word(n, words) VALUES (?, array_to_tsvector(string_to_array(?, ' ')))"


class GinIndex:
    """A row of lexemes for each passage."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        self._sql.run_many(_INSERT, list(passages))

    def drop(self, passages: Sequence[int]) -> None:
        self._sql.run_many("DELETE FROM word WHERE n = ?", [(n,) for n in passages])

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        rows = self._sql.all(
            "SELECT n FROM word WHERE words @@ CAST(? AS tsquery) AND n BETWEEN ? AND ? LIMIT ?",
            (spelled(question), 0 if low is None else low, LAST_NUMBER if high is None else high, limit),
        )
        return [n for (n,) in rows]

    def ranked(self, question: Question, limit: int) -> list[int]:
        """Fewer words beside those looked for are better: that is all that is known without their places."""
        rows = self._sql.all(
            "SELECT n FROM word WHERE words @@ CAST(? AS tsquery) ORDER BY length(words), n DESC LIMIT ?",
            (spelled(question), limit),
        )
        return [n for (n,) in rows]

    def pairs(self) -> Iterator[tuple[str, int]]:
        rows = self._sql.each("SELECT w.lexeme, n FROM word, unnest(tsvector_to_array(words)) AS w(lexeme)")
        return cast("Iterator[tuple[str, int]]", rows)

    def purge(self) -> None:
        """The rows are gone; VACUUM, which no transaction can hold, takes their bytes."""

    def clear(self) -> None:
        self._sql.run("DELETE FROM word")


def spelled(question: Question) -> str:
    """The question in PostgreSQL's own language; every word is a quoted lexeme there."""
    return " & ".join(_group(group) for group in question)


def _group(group: AnyOf) -> str:
    return "(" + " | ".join(map(_term, group)) + ")"


def _term(term: Term) -> str:
    quoted = "'" + term.word.replace("\\", "\\\\").replace("'", "''") + "'"
    return f"{quoted}:*" if term.prefix else quoted
