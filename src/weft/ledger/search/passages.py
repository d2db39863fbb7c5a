"""Passages: what the index of words holds, and how it keeps up with the facts.

A passage is a few neighbouring messages of one turn, of one role and one UTC day, with the calls they made. It is
coarser than a message, so that the index stays small: common words stand once for all of them. Beside the words in them
passages have words about them, each after a `:` and a letter, so that a filter is one more word to look for.

The view lags: it goes by a watermark, and every turn that an event beyond it touches is indexed anew, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Any

from msgspec import Struct

from weft.kernel.errors import StoreError
from weft.kernel.words import IndexedWords, index_words
from weft.ledger.read.listing import HERE
from weft.ledger.read.projects import project_of
from weft.ledger.search.entries import (
    LOOSE,
    Entry,
    EntryPlace,
    EntrySource,
    Txn,
    known_name,
    known_text,
    load_entries,
    read_source,
)
from weft.ledger.search.prepared_words import PreparedWords, TextWords
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.views.touched_turns import Touched, touched
from weft.store.erased_contents import ErasedContents
from weft.store.facts import FactReader
from weft.store.port import Progress, Store, WriteTxn
from weft.store.sql import Insert, rows_in
from weft.store.word_index import Question, WordIndex

VIEW = "search"
DAY = 86_400_000
MESSAGES = 8
LETTERS = 64 * 1024
LOG_ROWS, TURNS, TOGETHER = 256, 512, 64
LARGE_LAG_EVENTS = 16_384
"""So many events behind, search is indexed before the ledger is closed."""
UNREMARKABLE = ("local", "imported")
"""Agents that nearly every turn belongs to: no word is spent on them."""


class Passage(Struct, frozen=True):
    """Messages `first` to `last` of a turn, with the words by which they are found."""

    first: int
    last: int
    at: int
    spelled: str
    """The words, with spaces in between."""

    @property
    def words(self) -> frozenset[str]:
        return frozenset(self.spelled.split(" "))


def passages_of(
    txn: Txn, turns: Sequence[TurnRow], prepared: PreparedWords | None = None
) -> Iterator[tuple[TurnRow, list[Passage]]]:
    """Each turn with its passages; a turn that another version stands for has none. Texts whose words are `prepared`
    are not read."""
    find = _find_none if prepared is None or _has_erasures(txn) else prepared.find
    for start in range(0, len(turns), TOGETHER):
        some = turns[start : start + TOGETHER]
        current = [turn for turn in some if turn.current]
        entries = load_entries(txn, current)
        paths = _paths(txn, [entry.message for found in entries.values() for entry in found if entry.message])
        others = [n for some_paths in paths.values() for n in some_paths]
        others += [n for turn in current for n in (turn.workspace, turn.source_event) if n]
        sources = (source for found in entries.values() for entry in found for source in entry.sources)
        txn.facts.hold([*(source.content for source in sources if find(source) is None), *others])
        for turn in some:
            yield turn, _passages(txn.facts, turn, entries.get(turn.n, []), paths, find) if turn.current else []


FindWords = Callable[[EntrySource], TextWords | None]


def _find_none(source: EntrySource) -> None:
    """Nothing is prepared."""


def _has_erasures(txn: Txn) -> bool:
    """Then a content may be gone since its words were prepared."""
    return txn.sql.one("SELECT 1 FROM erasure LIMIT 1") is not None


def _paths(txn: Txn, messages: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message, path in rows_in(txn.sql, "SELECT message, path FROM message_file WHERE message IN", messages):
        found.setdefault(message, []).append(path)
    return found


def _passages(
    facts: FactReader, turn: TurnRow, entries: list[Entry], paths: dict[str, list[int]], find: FindWords
) -> list[Passage]:
    made: list[_Growing] = []
    about = _about_turn(facts, turn)
    for entry in entries:
        growing = made[-1] if made and made[-1].takes(entry) else None
        if growing is None:
            growing = _Growing(entry)
            made.append(growing)
        growing.take(facts, entry, paths, find)
    if not made and any(word[:2] in (":a", ":e") for word in about):
        return [Passage(LOOSE, LOOSE, turn.started_at, " ".join(about))]
    return [growing.passage(about) for growing in made]


class _Growing:
    """A passage in the making."""

    def __init__(self, entry: Entry) -> None:
        self.first, self.last, self.role, self.day = entry.seq, entry.seq, entry.role, entry.at // DAY
        self.at, self.messages, self.letters = entry.at, 0, 0
        self._about = {f":r{entry.role}", day_word(self.day)}
        self._gathered, self._names = IndexedWords(), set[tuple[str, str]]()

    def takes(self, entry: Entry) -> bool:
        """The calls of a message stay with it; what belongs to none fills passages of its own."""
        if entry.seq == self.last != LOOSE:
            return True
        fits = entry.role == self.role and entry.at // DAY == self.day and (entry.seq == LOOSE) == (self.last == LOOSE)
        return fits and self.letters < LETTERS and (self.messages < MESSAGES or entry.seq == LOOSE)

    def take(self, facts: FactReader, entry: Entry, paths: dict[str, list[int]], find: FindWords) -> None:
        if entry.call is None:
            self.messages += 1
            for path in paths.get(entry.message or "", ()):
                self._gathered.add(known_text(facts, path))
        self.last, self.at = entry.seq, max(self.at, entry.at)
        self._take_name("m", known_name(facts, entry.model))
        for source in entry.sources:
            words = find(source)
            if words is not None:
                self.letters += words.letters
                self._gathered.add_spelled(words.spelled)
                continue
            text = read_source(facts, source)
            self.letters += len(text)
            self._gathered.add(text)
            if source.place is EntryPlace.TOOL:
                self._take_name("c", text)

    def _take_name(self, letter: str, name: str) -> None:
        if name and (letter, name) not in self._names:
            self._names.add((letter, name))
            self._about |= words_about(letter, name)

    def passage(self, about: set[str]) -> Passage:
        words = self._gathered.spelled()
        spelled = " ".join([words, *self._about, *about]) if words else " ".join([*self._about, *about])
        return Passage(self.first, self.last, self.at, spelled)


def _about_turn(facts: FactReader, turn: TurnRow) -> set[str]:
    """Words that every passage of a turn has."""
    words = {f":t{turn.root}"}
    if turn.session is not None:
        words.add(f":s{turn.session}")
    words |= words_about("o", turn.origin or HERE)
    if turn.workspace:
        words |= words_about("p", project_of(known_text(facts, turn.workspace)))
    if turn.persona not in UNREMARKABLE:
        words.add(f":a{turn.persona.lower()}")
    if turn.source_event:
        words.add(source_word(known_text(facts, turn.source_event)))
    return words


@lru_cache(maxsize=1024)
def words_about(letter: str, name: str) -> frozenset[str]:
    """The words of a name, each with a mark that says whose name it is."""
    return frozenset(f":{letter}{word}" for word in index_words(name))


def day_word(day: int) -> str:
    """A day by its number since 1970, and those before it by how long before; a word has no sign."""
    return f":d{day}" if day >= 0 else f":db{-day}"


def source_word(source_event: str) -> str:
    """An outside event's id may be any text: its word is a hash of it."""
    return f":e{sha256(source_event.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def fits_words(question: Question, words: frozenset[str]) -> bool:
    """What an index would say of these words."""
    return all(
        any(term.word in words or (term.prefix and any(word.startswith(term.word) for word in words)) for term in group)
        for group in question
    )


# --- keeping up -------------------------------------------------------------------------------------------------


def catch_up(
    store: Store,
    seconds: float | None = None,
    now: Any = None,
    progress: Progress | None = None,
    prepared: PreparedWords | None = None,
) -> bool:
    """Index what came since, batch by batch, so that writers get their turn in between; with `seconds` for so long at
    most. True when nothing is left."""
    if store.read_only:
        return False
    until = None if seconds is None else now() + seconds
    behind = lag_of(store) if progress else 0
    while True:
        more = store.write(lambda txn: advance(txn, store.word_index(txn.sql), prepared))
        if progress is not None and behind:
            progress(max(behind - lag_of(store), 0), behind)
        if not more or (until is not None and now() >= until):
            return not more


def advance(txn: WriteTxn, index: WordIndex, prepared: PreparedWords | None = None) -> bool:
    """One batch from the watermark on; True when there is more of what was there. Whoever chased after what others add
    meanwhile would never come to an end."""
    mark = txn.facts.watermark(VIEW)
    touching = touched(txn.facts, mark, LOG_ROWS, TURNS)
    until = touching.until
    if until is None:
        return False
    renew(txn, index, load_turns(txn, touching.turns), prepared)
    note_changes(txn, mark, touching)
    txn.sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, until)
    )
    return until < txn.facts.tip().n


def catch_up_if_far_behind(
    store: Store,
    seconds: float | None,
    now: Callable[[], float],
    prepared: PreparedWords | None = None,
    beyond: int | None = None,
) -> None:
    """Index, for so long at most, if more events than `beyond` were recorded since (many, where it is not given), or
    much is `prepared` for it: whoever searches next shall not do it all."""
    beyond = LARGE_LAG_EVENTS if beyond is None else beyond
    with suppress(StoreError):  # what was acknowledged is durable, so a failure here is nobody's
        if (prepared is not None and prepared.is_full) or lag_of(store) > beyond:
            catch_up(store, seconds, now, prepared=prepared)
            if prepared is not None:
                prepared.clear()


def lag_of(store: Store) -> int:
    """How many events the index has not seen."""
    with store.read() as txn:
        return txn.facts.tip().n - txn.facts.watermark(VIEW)


def renew(txn: WriteTxn, index: WordIndex, turns: Sequence[TurnRow], prepared: PreparedWords | None = None) -> None:
    """Index these turns anew, as they are now."""
    old = [n for (n,) in rows_in(txn.sql, "SELECT n FROM passage WHERE turn IN", (turn.n for turn in turns))]
    if old:
        index.drop(old)
        txn.sql.run_many("DELETE FROM passage WHERE n = ?", ((n,) for n in old))
    (highest,) = txn.sql.one("SELECT max(n) FROM passage") or (0,)
    n = max(highest or 0, *old, 0)
    made = passages_of(txn, turns, prepared)
    while some := list(islice(made, TOGETHER)):
        numbered = list(enumerate(((turn.n, each) for turn, passages in some for each in passages), n + 1))
        n += len(numbered)
        txn.sql.add(_PASSAGE, [(number, turn, each.first, each.last, each.at) for number, (turn, each) in numbered])
        index.put((number, each.spelled) for number, (_, each) in numbered)


def forget(store: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Turns that lost contents are indexed as they are now, and the words that went leave no trace."""
    index = store.word_index(txn.sql)
    turns = load_turns(txn, forgotten.turns)
    for start in range(0, len(turns), TURNS):
        renew(txn, index, turns[start : start + TURNS])
    index.purge()


def note_changes(txn: WriteTxn, mark: int, touching: Touched) -> None:
    """Events that moved heads by the turn they moved them to, and when sessions changed last."""
    moves = txn.sql.all(_MOVES, (mark, touching.until))
    txn.sql.add(_ARRIVAL, sorted(moves))
    changed = rows_in(txn.sql, "SELECT n, updated_at FROM session WHERE id IN", touching.sessions)
    txn.sql.add(_CHANGE, list(changed))


_MOVES = "SELECT DISTINCT t.n, h.n FROM history h JOIN turn t ON t.id = h.turn WHERE h.n > ? AND h.n <= ?"
_PASSAGE = Insert("passage", ("n", "turn", "first", "last", "at"))
_ARRIVAL = Insert("arrival", ("turn", "move"), ("turn", "move"))
_CHANGE = Insert("session_change", ("session", "at"), ("session",), ("at",))


def load_turns(txn: Txn, ids: Iterable[str]) -> list[TurnRow]:
    """These turns and all versions of them: which one is current may have changed for each."""
    found = {row.n: row for row in (TurnRow(*row) for row in rows_in(txn.sql, f"{TURN.select} WHERE id IN", ids))}
    natives = {row.native for row in found.values() if row.native}
    for values in rows_in(txn.sql, f"{TURN.select} WHERE native IN", natives):
        row = TurnRow(*values)
        found.setdefault(row.n, row)
    return [found[n] for n in sorted(found)]
