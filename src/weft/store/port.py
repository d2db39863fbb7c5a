"""The port between the ledger and a database.

A backend gives transactions and SQL; everything that is the same on every engine (appending, contents, looking up ids)
is written once, in `facts.py` and `fact_writer.py`, over the verbs of `Sql`. Statements use `?` for values, named
tables only, and nothing that one engine alone understands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from weft.kernel.contents import Prepared
from weft.store.fact_writer import FactWriter
from weft.store.facts import FactReader
from weft.store.records import Key, LogTip, Stored
from weft.store.sql import Question, Sql
from weft.store.word_index import WordIndex

T = TypeVar("T")
Progress = Callable[[int, int], None]


PATIENCE = 5.0
"""So many seconds a store waits for readers of what was there before, where it makes its files clean."""


class ReadTxn(Struct, frozen=True):
    """A consistent view of the whole ledger."""

    sql: Sql
    facts: FactReader


class WriteTxn(Struct, frozen=True):
    """Inside one append. Everything it did is kept, or nothing."""

    sql: Sql
    facts: FactWriter
    undisturbed: bool = False
    """No other connection has written since this store's last commit, and nothing of it was undone."""
    serial: int = 0
    """Which piece of work of this store it is, counted from 1: a gap means that somebody else's came between."""
    is_provisional: bool = False
    """The numbers of its events and contents are not those that they will have: no row of it is to be remembered."""


class StandingParts(Struct, frozen=True):
    """Of what the answer to a straight turn's question is made: columns of three tables, and one more that says whether
    the head is followed."""

    session: Sequence[str]
    lease: Sequence[str]
    turn: Sequence[str]
    source: str
    """The question from FROM on, where the tables are `s`, `l` and `t`."""


class StraightTurn(Struct, frozen=True):
    """What says of a piece of work that a store may try it on provisional numbers, before it knows the real ones: it
    makes no use of the numbers that its events and contents get. If it asks anything but this one question, or does
    anything but add the rows of one turn, it is run again on real ones."""

    question: Question
    """The one that it asks: a session, its lease and the turn at its head."""
    parts: StandingParts
    restate: Callable[[Any, LogTip], Any]
    """The result of the work, made again for where the log ended with it."""


class Store(Protocol):
    """A ledger's place on disk. Thread-safe. Raises only `StoreError` and what the caller's own work raises."""

    path: str
    replica: str
    read_only: bool
    is_new: bool
    """Whether this opening made the ledger."""
    former: str | None
    """The replica that the ledger went by before, where this opening gave it a new one."""

    def now_ms(self) -> int:
        """The clock that dates arrivals."""

    def prepare(self, data: bytes) -> Prepared:
        """A content made ready to be put, without holding anybody up."""

    def write(
        self,
        work: Callable[[WriteTxn], T],
        weight: int = 0,
        contents: Sequence[Key] = (),
        ahead: Sequence[Question] = (),
        straight: StraightTurn | None = None,
    ) -> T:
        """Run `work`, which will store about `weight` bytes, in a transaction; return once it is durable.

        Concurrent callers share one commit; each is undone alone if its work raises. Work may be run again if the
        first time did not count. Whether `contents` are known is asked for all callers at once, where it can be said
        beforehand which ones will be put; others are asked for one by one. The same goes for `ahead`, questions that
        `work` will likely ask before it changes anything: where a server answers them, they go with the first.
        `straight` says that the work may be run on provisional numbers, and how its result is told the true ones.
        """

    def read(self) -> AbstractContextManager[ReadTxn]:
        """A snapshot; never blocks a writer and is never blocked by one, but for a ledger in memory."""

    def claim(self, name: str) -> bool:
        """Whether no other store has claimed this name now; then it is this one's until it is given back, or until
        this process dies. It spares work to those who would come too late, and guards nothing: a backend that cannot
        tell says yes."""

    def give_back(self, name: str) -> None:
        """Claim a name no longer."""

    def announce(self, name: str) -> None:
        """Let other stores of this ledger see that this one goes by the name, too, until it withdraws it or is closed,
        or until this process dies. Any number of stores may. Where nothing can be seen, nothing is."""

    def withdraw(self, name: str) -> None:
        """Go by the name no longer."""

    def is_announced(self, name: str) -> bool:
        """Whether any store goes by the name now, as far as can be seen."""

    def pause_reading(self) -> None:
        """Between two ranges of long reading, with no snapshot open: let what waits for readers to be gone go on."""

    def put_stream(self, chunks: Iterable[bytes], scope: int) -> Stored:
        """Store a content of up to 256 MiB in a transaction of its own. Beyond 4 MiB it waits in a file, not in
        memory."""

    def catch_up(self) -> None:
        """Bring the lookup views up to the newest fact."""

    def catch_up_if_far_behind(self) -> None:
        """The same where many facts are missing from them: whoever looks for one of those reads row after row."""

    def changes(self, after: int, timeout: float) -> bool:
        """Wait until an event beyond arrival number `after` exists; False when `timeout` seconds passed."""

    def word_index(self, sql: Sql) -> WordIndex:
        """Which passages hold which words, within the transaction that `sql` belongs to."""

    def scratch(self) -> AbstractContextManager[Sql]:
        """An empty database with the same tables, for computing views aside."""

    def disk_bytes(self) -> int:
        """How much room the ledger takes where it lies."""

    def check_integrity(self) -> list[str]:
        """What the engine itself finds wrong."""

    def backup(
        self, target: Path, progress: Progress | None = None, beside: Callable[[], object] | None = None
    ) -> None:
        """Copy a consistent state to a new file while readers and writers go on. The copy is another ledger: opened for
        writing, it goes by a replica id of its own. `beside` is called once the copy is written and has no name yet."""

    def rewrite(self, patience: float = PATIENCE) -> bool:
        """Write everything anew, so that no file of this ledger holds what was deleted, and give the room back.
        Writers wait; readers go on. False if after so many seconds somebody still read from before it."""

    def empty_log(self, patience: float = PATIENCE) -> bool:
        """Let the backend's own log of writes hold nothing any longer. False as above."""

    def lying_beside(self) -> list[Path]:
        """Whole copies that the backend itself made beside the ledger, and halves of copies that were cut short."""

    def close(self) -> None:
        """Release everything; closing twice is harmless."""
