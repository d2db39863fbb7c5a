"""A clone that begins as a copy of the other ledger's file, and goes on as one whose events all came from there.

A clone that is told every fact checks and computes everything anew. Where the other ledger is a SQLite file on this
machine that the person trusts, its file holds the same, and copying it takes a fraction of that. What a sync would
have noted is put into the copy: the remote, how far the other log was read, and that all events came from it. The end
of the log is held against its chain; contents are not hashed, which verifying does. A ledger whose views would say
something else in a clone is told fact by fact.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.sync.messages import BatchEnd
from weft.exchange.sync.peers import Remote, add_remote, note_range, note_taken
from weft.kernel.clock import Clock, RandomBytes, SystemClock, UlidSource, system_random
from weft.ledger.api import Ledger, store_of
from weft.ledger.upkeep.ledger_copy import ReadLog, forget_state, may_become_clone, read_log
from weft.store.fact_log import FactReader
from weft.store.replicas import CLONED, NOTE, TOKEN, TrustStore, identity_of
from weft.store.sqlite import SqliteStore
from weft.store.sqlite.connection import SqliteSql

BESIDE = ("", "-wal", "-shm", "-journal", "-head")
SECRET_BYTES = 32
StagedReport = Callable[[str, int, int], None]


class CopiedFacts(Struct, frozen=True, kw_only=True):
    """What a copied file holds."""

    events: int
    contents: int
    event_bytes: int
    content_bytes: int


class _OthersWrote(Exception):
    """The views of this ledger go by who wrote what."""


class FileClone:
    """One clone of a ledger's file."""

    def __init__(
        self,
        source: Ledger,
        origin: Remote,
        report: StagedReport,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random,
    ) -> None:
        """`origin` is the source, as the clone will call it."""
        self._source, self._origin, self._report = source, origin, report
        self._clock, self._random = clock or SystemClock(), random_bytes
        self._replica = UlidSource(self._clock.now_ms, random_bytes).mint()
        self._log: ReadLog | None = None
        self._facts: CopiedFacts | None = None

    def make(self, place: Path, trust: TrustStore | None = None) -> CopiedFacts | None:
        """The clone at a place where nothing lies; `trust` joins it. None, and nothing there: this ledger is to be
        cloned fact by fact."""
        store = store_of(self._source)
        if not isinstance(store, SqliteStore) or not self._source.trust.is_trusted or not _is_vacant(place):
            return None
        token = None if trust is None else trust.draw_token()

        def check(sql: SqliteSql) -> None:
            log = None
            if may_become_clone(sql):
                log = read_log(FactReader(sql), store.replica, lambda done, of: self._report("log", done, of))
            if log is None:
                raise _OthersWrote
            self._log = log

        def change(sql: SqliteSql) -> None:
            self._change(sql, store.replica)
            if token is not None:
                sql.run(NOTE, (TOKEN + token, ""))

        def join(aside: Path) -> None:
            """It is trusted before it has its name: one that is cut short after that goes on as its owner's."""
            if trust is not None:
                identity = replace(identity_of(str(aside), self._replica), place=os.path.realpath(place))
                trust.allow(identity, CLONED, token)

        try:
            store.clone(place, check, change, join, lambda done, of: self._report("file", done, of))
        except _OthersWrote:
            return None
        return self._facts

    def _change(self, sql: SqliteSql, source: str) -> None:
        """The copy, which nobody else sees yet, becomes a ledger that was told all of this by `source`."""
        log = self._log
        assert log is not None, "it was checked before"
        forget_state(sql, self._replica, None if self._origin.shares_imports else self._random(SECRET_BYTES).hex())
        now = self._clock.now_ms()
        add_remote(sql, replace(self._origin, added_at=now))
        if log.tip.n:
            note_range(sql, source, 1, log.tip.n)
            note_taken(sql, source, BatchEnd(n=log.tip.n, chain=log.tip.chain.hex()), now)
        count, size = sql.one("SELECT count(*), coalesce(sum(size), 0) FROM content") or (0, 0)
        self._facts = CopiedFacts(events=log.tip.n, contents=count, event_bytes=log.bytes, content_bytes=size)


def _is_vacant(place: Path) -> bool:
    """Nothing lies there that says anything of a ledger."""
    return not any(os.path.lexists(f"{place}{end}") for end in BESIDE)
