"""Which contents a writer knows already: those that the lookup view does not hold yet, and what it says of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from weft.store.erased_contents import ERASING
from weft.store.records import KEY_BYTES, LEDGER_SCOPE, Key, Stored
from weft.store.sql import Question, Sql, watermark_of

A_FEW, ASKED_AT_ONCE = 8, 64
NEWER_CONTENTS = "SELECT n, scope, digest, ref FROM content WHERE n > ? ORDER BY n"


class RecentContents:
    """The contents that the lookup view does not know yet, by scope and plain digest; shared by a store's writers.

    `asked` holds what the view said of others, for the length of one commit.
    """

    LIMIT = 16_384

    def __init__(self) -> None:
        self.seen, self.erasures = -1, 0
        self.filled = 0
        """The view has contents up to this one that are not here; where it has none, nobody need ask it."""
        self.by_digest: dict[Key, Stored] = {}
        self.asked: dict[Key, Stored | None] = {}

    def forget(self) -> None:
        self.seen = -1
        self.by_digest.clear()
        self.asked.clear()

    def refresh(self, sql: Sql) -> None:
        """Take in what other processes put since we last looked; what one of them erased is no longer found by its
        bytes."""
        if (erasures := watermark_of(sql, ERASING)) != self.erasures:
            self.forget()
            self.erasures = erasures
        if self.seen < 0:
            self.seen = self.filled = watermark_of(sql, "lookup_content")
        self.learn(sql.all(NEWER_CONTENTS, (self.seen,)))

    def learn(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """The answer to `NEWER_CONTENTS`."""
        for n, scope, digest, ref in rows:
            if scope < LEDGER_SCOPE or digest:
                self.by_digest[scope, bytes(ref if scope < LEDGER_SCOPE else digest)] = Stored(n, bytes(ref))
            self.seen = n

    def drop(self, gone: set[int]) -> None:
        """These contents were erased: equal bytes are another content from now on. Imported ones are found by their
        reference, which stays, so that importing them again brings nothing back."""
        for known in (self.by_digest, self.asked):
            for key in [key for key, stored in known.items() if stored and stored.n in gone and key[0] >= LEDGER_SCOPE]:
                del known[key]

    def ask(self, sql: Sql, keys: Iterable[Key]) -> None:
        """One question to the view for many contents that will be put."""
        wanted = self.unknown(keys)
        self.answered(wanted, [sql.all(*question) for question in questions_about(wanted)])

    def unknown(self, keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if key not in self.by_digest and key not in self.asked]

    def answered(self, wanted: Iterable[Key], answers: Iterable[Sequence[tuple[Any, ...]]]) -> None:
        """What `questions_about` them were answered."""
        self.asked.update(dict.fromkeys(wanted))
        for rows in answers:
            for scope, digest, n, ref in rows:
                self.asked[scope, bytes(digest)] = Stored(n, bytes(ref))

    @property
    def is_long(self) -> bool:
        return len(self.by_digest) > self.LIMIT


def questions_about(wanted: Sequence[Key]) -> list[Question]:
    """What the lookup view is asked about contents, in statements of few sizes."""
    made = []
    for start in range(0, len(wanted), ASKED_AT_ONCE):
        some = list(wanted[start : start + ASKED_AT_ONCE])
        some += [some[-1]] * ((A_FEW if len(some) <= A_FEW else ASKED_AT_ONCE) - len(some))
        values = tuple(value for scope, digest in some for value in (scope, digest[:KEY_BYTES]))
        made.append((_known_among(len(some)), values))
    return made


@cache
def _known_among(count: int) -> str:
    return (
        f"WITH wanted(scope, key) AS (VALUES {','.join(['(CAST(? AS BIGINT),?)'] * count)})"
        " SELECT l.scope, c.digest, c.n, c.ref FROM wanted w"
        " JOIN lookup_bytes l ON l.scope = w.scope AND l.key = w.key JOIN content c ON c.n = l.n"
    )
