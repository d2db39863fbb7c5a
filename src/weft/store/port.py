"""The port between the ledger and a database: what the ledger asks of a store and of its index
of words, and what an examination of a damaged one finds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from weft.kernel.contents import PreparedContent
from weft.kernel.errors import Action, Advice, Hint, InvalidInput, WeftError, advice_of, quoted, without_credentials
from weft.store.fact_log import FactReader, FactWriter, Key, LogTip, StoredContentRow
from weft.store.sql import Question as SqlQuestion
from weft.store.sql import Sql

# --- Finding by words: what the ledger asks of an engine's index of words, and the question as a value.

_is_word = re.compile(r":?[^\x00-/:-`{-\x7f]+").fullmatch
"""The brackets have all of ASCII but digits and small letters: a class of all other letters takes longer to make."""


class SearchTerm(Struct, frozen=True):
    """A word, or the beginning of one."""

    word: str
    prefix: bool = False

    def __post_init__(self) -> None:
        if _is_word(self.word) is None:
            raise InvalidInput(f"{quoted(self.word)} is no word", "words are letters and digits, in lower case")


AnyOf = tuple[SearchTerm, ...]
Question = tuple[AnyOf, ...]
"""Passages that have, of each group, at least one word."""


class WordIndex(Protocol):
    """Which passages hold which words, within one transaction."""

    def put(self, passages: Iterable[tuple[int, str]]) -> None:
        """New passages with their words, each once and a space between them; none of these numbers is in use."""

    def drop(self, passages: Sequence[int]) -> None:
        """Passages that go, with all their words."""

    def match(self, question: Question, limit: int, low: int | None = None, high: int | None = None) -> list[int]:
        """At most so many of the passages that fit, numbered from `low` to `high`; in no order that means anything."""

    def ranked(self, question: Question, limit: int) -> list[int]:
        """Those that fit best by the engine's own idea of it, the best first."""

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Every word of every passage."""

    def purge(self) -> None:
        """Leave no trace of words that only dropped passages held, as far as a transaction can."""

    def clear(self) -> None:
        """Nothing is indexed any longer."""


# --- The port between the ledger and a database.

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

    question: SqlQuestion
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

    def prepare(self, data: bytes) -> PreparedContent:
        """A content made ready to be put, without holding anybody up."""

    def write(
        self,
        work: Callable[[WriteTxn], T],
        weight: int = 0,
        contents: Sequence[Key] = (),
        ahead: Sequence[SqlQuestion] = (),
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

    def put_stream(self, chunks: Iterable[bytes], scope: int) -> StoredContentRow:
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


# --- What an examination of a ledger finds: how bad, what, why it matters, and what mends it.


class DiagnosisSeverity(StrEnum):
    """How bad it is. An error stops work or loses something; a warning may come to that; a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    GOOD = "good"


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One finding. `check` names what was looked at, `advice` says what mends it; a good one needs none."""

    grade: DiagnosisSeverity
    check: str
    what: str
    why: str = ""
    advice: Advice = Advice(Action.OTHER)

    @property
    def mend(self) -> str:
        """What to do, for whoever calls the library; it names no command."""
        return self.advice.hint


def good(check: str, what: str) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.GOOD, check, what, "", "")


def note(check: str, what: str, why: str = "", mend: Hint = "") -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.NOTE, check, what, why, mend)


def warning(check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.WARNING, check, what, why, mend)


def error(check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    return _diagnosis(DiagnosisSeverity.ERROR, check, what, why, mend)


def older_schema(found: int, known: int) -> Diagnosis:
    """Of a ledger in a server that an older version made."""
    what = f"schema {found} is older than this program's {known}"
    why = "the next opening for writing upgrades it, and makes no copy first"
    return warning("schema", what, why, Action.UPGRADE_AFTER_BACKUP)


def _diagnosis(grade: DiagnosisSeverity, check: str, what: str, why: str, mend: Hint) -> Diagnosis:
    """Passwords of addresses in it are hidden."""
    shown, reason = without_credentials(what), without_credentials(why)
    return Diagnosis(grade=grade, check=check, what=shown, why=reason, advice=advice_of(mend))


def mend_of(failure: WeftError) -> Hint:
    """What an error says to do; whoever examines the ledger already is not told to do that."""
    return Action.RESTORE_OR_SALVAGE if failure.action is Action.EXAMINE_OR_RECOVER else failure.advice


def as_far_as_it_goes(check: str, look: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    """A damaged ledger can fail in any way while it is looked at; that is a finding, not the end of the examination."""
    try:
        yield from look()
    except WeftError as failure:
        what = f"could not be looked at to the end: {failure}"
        yield error(check, what, "something is damaged there", mend_of(failure))
    except PermissionError as failure:
        what = f"could not be looked at to the end: {failure.filename} may not be read"
        yield error(check, what, "it belongs to somebody else", "chmod u+r, or chown")
    except Exception as failure:  # whatever a damaged value made of itself
        yield error(
            check,
            f"could not be looked at to the end: {quoted(failure, 200)}",
            "something is damaged there",
            Action.RESTORE_OR_SALVAGE,
        )


# --- What a search through a damaged database finds: things that look like rows of facts, and those that are proved.


class FoundRow(Struct, frozen=True):
    """What may be a row of the log."""

    n: int
    count: int
    at: int
    chain: bytes
    events: bytes


class FoundContent(Struct, frozen=True):
    """What may be a content; without `data` its bytes lie in parts."""

    n: int
    ref: bytes
    salt: bytes
    size: int
    data: bytes | None


class FoundPart(Struct, frozen=True):
    """A row of a damaged database that may be a part of a large content."""

    content: int
    idx: int
    data: bytes


class FoundPack(Struct, frozen=True):
    """What may be a pack: compressed bytes of several contents."""

    n: int
    data: bytes


class FoundSlice(Struct, frozen=True):
    """Where a content, or a part of a large one, may lie in a pack."""

    content: int
    idx: int
    pack: int
    start: int
    size: int


class FoundLocal(Struct, frozen=True):
    """What may be a piece of local state."""

    key: str
    value: str


Found = FoundRow | FoundContent | FoundPart | FoundPack | FoundSlice | FoundLocal


class ProvedContent(Struct, frozen=True):
    """Bytes that hash to their reference."""

    ref: bytes
    salt: bytes
    data: bytes


class ProvedEvent(Struct, frozen=True):
    """An event that the chain of arrival, or another event, vouches for."""

    n: int
    id: bytes
    line: bytes
