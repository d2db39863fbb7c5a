"""What search can find (messages, tool calls, summaries) and what the index of words holds of
it, how it keeps up with the facts and whether it says what they say; words worked out beforehand;
and vectors of nodes, as local state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import astuple

from weft.kernel.contents import bytes_text, json_value
from weft.kernel.errors import Damaged, FactDamaged, StoreError
from weft.kernel.message_text import IndexedWords, index_words
from weft.ledger.read.session_list import HERE
from weft.ledger.read.sessions import project_of
from weft.ledger.views.rows import (
    CALL,
    MESSAGE,
    TURN,
    CallRow,
    MessageRow,
    TouchedTurns,
    TurnRow,
    list_in,
    remainder_of,
    touched,
)
from weft.store.fact_log import ErasedContents, FactReader, refuse_disorder
from weft.store.port import Progress, Question, ReadTxn, Store, WordIndex, WriteTxn
from weft.store.sql import KEYS_PER_QUESTION, Insert, Sql, rows_in

# --- What search can find: messages, tool calls and summaries, with their texts in the places where they stand.

Txn = ReadTxn | WriteTxn
LOOSE = 1 << 16
"""The sequence of what belongs to no message: more than a turn has messages."""


class EntryPlace(StrEnum):
    """Where words were found."""

    TEXT = "text"
    THINKING = "thinking"
    SUMMARY = "summary"
    TOOL = "tool"
    ARGUMENTS = "arguments"
    RESULT = "result"
    ERROR = "error"
    TITLE = "title"
    """Of a session, as is its project."""
    PROJECT = "project"


class EntrySource(Struct, frozen=True, gc=False):
    """A text that is not read yet: a content, as it is or as JSON; or a short one that stood in the row itself."""

    place: EntryPlace
    content: int = 0
    is_json: bool = False
    text: str = ""


class SearchEntry(Struct, frozen=True):
    """One thing that search finds: a message, a tool call or a summary."""

    turn: TurnRow
    seq: int
    role: str
    at: int
    """Of the message; of a call, that of the message that asked for it."""
    model: str | None
    sources: tuple[EntrySource, ...]
    message: str | None = None
    call: CallRow | None = None

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Sorts the newest last and those of turns without a time before all others, the same way on every engine."""
        call = -1 if self.call is None else self.call.seq
        return has_time(self.turn.synthesised), self.at, self.turn.n, self.seq, call

    @property
    def time_known(self) -> bool:
        """False: its origin gives no time, and `at` is when its turn came in."""
        return is_time_known(self.turn, self.at)

    def texts(self, facts: FactReader) -> Iterator[tuple[EntryPlace, str]]:
        for source in self.sources:
            yield source.place, read_source(facts, source)


def has_time(synthesised: int | None) -> int:
    """1 for a turn whose time is known; 0 where that of its arrival stands for it."""
    return 0 if synthesised else 1


def is_time_known(turn: TurnRow, at: int) -> bool:
    """Whether this time of something in a turn is its own; what has none has that of the turn, which may be unknown."""
    return not turn.synthesised or at != turn.started_at


def load_entries(txn: Txn, turns: Sequence[TurnRow]) -> dict[int, list[SearchEntry]]:
    """What there is to find in each of these turns, in order: each message, the calls it made, then what is loose."""
    numbers = [turn.n for turn in turns]
    messages = _by_turn(MessageRow(*row) for row in rows_in(txn.sql, f"{MESSAGE.select} WHERE turn IN", numbers))
    calls = _by_turn(CallRow(*row) for row in rows_in(txn.sql, f"{CALL.select} WHERE turn IN", numbers))
    compacted = [turn.id for turn in turns if turn.type == "compaction"]
    summaries: dict[str, int] = dict(rows_in(txn.sql, "SELECT turn, summary FROM compaction WHERE turn IN", compacted))
    return {
        turn.n: list(_turn_entries(turn, messages.get(turn.n, []), calls.get(turn.n, []), summaries.get(turn.id)))
        for turn in turns
    }


def _by_turn(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.turn, []).append(row)
    for some in found.values():
        some.sort(key=lambda row: row.seq)
    return found


def _turn_entries(
    turn: TurnRow, messages: list[MessageRow], calls: list[CallRow], summary: int | None
) -> Iterator[SearchEntry]:
    made: dict[str | None, list[CallRow]] = {}
    for call in calls:
        made.setdefault(call.message, []).append(call)
    called = {call.call_id for call in calls}
    for row in messages:
        model = row.model or turn.model
        yield SearchEntry(turn, row.seq, row.role, row.at, model, tuple(_message_sources(row, called)), row.id)
        for call in made.pop(row.id, ()):
            yield SearchEntry(turn, row.seq, row.role, row.at, model, tuple(_call_sources(call)), row.id, call)
    if summary is not None:
        yield SearchEntry(
            turn, LOOSE, "assistant", turn.started_at, turn.model, (EntrySource(EntryPlace.SUMMARY, summary),)
        )
    for call in sorted((call for some in made.values() for call in some), key=lambda call: call.seq):
        yield SearchEntry(
            turn, LOOSE, "assistant", call.started_at, turn.model, tuple(_call_sources(call)), call.message, call
        )


def _message_sources(row: MessageRow, called: set[int]) -> Iterator[EntrySource]:
    """A message's own words. Tools that it uses are found as calls, where the turn has them as such."""
    if row.text is not None:
        yield EntrySource(EntryPlace.TEXT, row.text)
        return
    for part in list_in(row.parts):
        match part["type"]:
            case "text":
                yield EntrySource(EntryPlace.TEXT, part["text"])
            case "reasoning":
                yield EntrySource(EntryPlace.THINKING, part["text"])
            case "tool_use" if part["id"] not in called:
                yield _tool_source(part["name"])
                yield EntrySource(EntryPlace.ARGUMENTS, part["input"], True)
            case "tool_result" if part["tool_call_id"] not in called or row.role == "tool":
                yield EntrySource(EntryPlace.RESULT, part["output"], True)


def _call_sources(call: CallRow) -> Iterator[EntrySource]:
    yield _tool_source(call.tool)
    yield EntrySource(EntryPlace.ARGUMENTS, call.params, True)
    if call.result:
        yield EntrySource(EntryPlace.RESULT, call.result, True)
    if call.error:
        yield EntrySource(EntryPlace.ERROR, call.error)


def _tool_source(column: str) -> EntrySource:
    return (
        EntrySource(EntryPlace.TOOL, int(column[1:]))
        if column[:1] == "#"
        else EntrySource(EntryPlace.TOOL, text=column)
    )


def hold_texts(facts: FactReader, entries: Iterable[SearchEntry]) -> None:
    """Read the texts of many entries at once."""
    facts.hold(source.content for entry in entries for source in entry.sources)


def known_text(facts: FactReader, n: int | None) -> str:
    """A text, as far as it is here."""
    return bytes_text(facts.beginning(n)) if n else ""


def known_name(facts: FactReader, column: str | None) -> str:
    """A name: as it stands in the column, or in the content that the column names."""
    return known_text(facts, int(column[1:])) if column and column[0] == "#" else column or ""


def read_source(facts: FactReader, source: EntrySource) -> str:
    """The text; of a content that is not here none, of one beyond 1 MiB its beginning."""
    if not source.content:
        return source.text
    data = facts.beginning(source.content)
    if not data and (remainder := remainder_of(facts, source.content)) is not None:
        data = facts.beginning(remainder)
    return text_in(data, source.is_json)


def text_in(data: bytes, is_json: bool) -> str:
    """The text of a content, as search knows it."""
    if is_json:
        try:
            return plain_text(orjson.loads(data) if data[:1] == b'"' else json_value(data))
        except (ValueError, RecursionError):
            pass
    return bytes_text(data)


def plain_text(value: Any) -> str:
    """A JSON value as people would write it down: its strings as they are, each member on a line behind its key."""
    if isinstance(value, str):
        return value
    return "\n".join(_value_lines(value))


def _value_lines(value: Any) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        lead, node = waiting.pop()
        if isinstance(node, dict):
            yield from (lead,) if lead else ()
            waiting += [(f"{key}: ", child) for key, child in reversed(node.items())]
        elif isinstance(node, list):
            yield from (lead,) if lead else ()
            waiting += [("", child) for child in reversed(node)]
        elif node is not None:
            yield lead + _scalar_text(node)


def _scalar_text(node: Any) -> str:
    """A string as it is, an integer of any size in its digits, the rest as JSON."""
    if isinstance(node, str):
        return node
    return str(node) if type(node) is int else orjson.dumps(node, default=str).decode()


# --- Words of contents that somebody worked out before search asks for them, such as the worker of an import.

ROOM_BYTES = 8 * 1024 * 1024


class TextWords(Struct, frozen=True, gc=False):
    """How many letters a text has, and its words, with spaces in between."""

    letters: int
    spelled: str


def words_in(data: bytes, is_json: bool) -> TextWords:
    """Of a content."""
    text = text_in(data, is_json)
    gathered = IndexedWords()
    gathered.add(text)
    return TextWords(len(text), gathered.spelled())


class PreparedWords:
    """Words of contents by their numbers, and by whether they are read as JSON."""

    def __init__(self, room: int = ROOM_BYTES) -> None:
        self._room, self._size = room, 0
        self._words: dict[tuple[int, bool], TextWords] = {}

    @property
    def is_full(self) -> bool:
        return self._size >= self._room

    def put(self, words: dict[tuple[int, bool], TextWords]) -> None:
        """As far as there is room."""
        for place, found in words.items():
            if self.is_full:
                return
            self._words[place] = found
            self._size += len(found.spelled)

    def find(self, source: EntrySource) -> TextWords | None:
        """Of a text; the name of a tool is read, since it is also a word about its passage."""
        return None if source.place is EntryPlace.TOOL else self._words.get((source.content, source.is_json))

    def clear(self) -> None:
        self._words.clear()
        self._size = 0


# --- Passages: what the index of words holds, and how it keeps up with the facts.

VIEW = "search"
DAY = 86_400_000
MESSAGES = 8
LETTERS = 64 * 1024
LOG_ROWS, TURNS_AT_ONCE, TOGETHER = 256, 512, 64
LARGE_LAG_EVENTS = 16_384
"""So many events behind, search is indexed before the ledger is closed."""
UNREMARKABLE = ("local", "imported")
"""Agents that nearly every turn belongs to: no word is spent on them."""


class SearchPassage(Struct, frozen=True):
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
) -> Iterator[tuple[TurnRow, list[SearchPassage]]]:
    """Each turn with its passages; a turn that another version stands for has none. Texts whose words are `prepared`
    are not read."""
    find = _find_none if prepared is None or _has_erasures(txn) else prepared.find
    for start in range(0, len(turns), TOGETHER):
        some = turns[start : start + TOGETHER]
        current = [turn for turn in some if turn.current]
        entries = load_entries(txn, current)
        paths = _file_paths(txn, [entry.message for found in entries.values() for entry in found if entry.message])
        others = [n for some_paths in paths.values() for n in some_paths]
        others += [n for turn in current for n in (turn.workspace, turn.source_event) if n]
        sources = (source for found in entries.values() for entry in found for source in entry.sources)
        txn.facts.hold([*(source.content for source in sources if find(source) is None), *others])
        for turn in some:
            yield turn, _turn_passages(txn.facts, turn, entries.get(turn.n, []), paths, find) if turn.current else []


FindWords = Callable[[EntrySource], TextWords | None]


def _find_none(source: EntrySource) -> None:
    """Nothing is prepared."""


def _has_erasures(txn: Txn) -> bool:
    """Then a content may be gone since its words were prepared."""
    return txn.sql.fetch_row("SELECT 1 FROM erasure LIMIT 1") is not None


def _file_paths(txn: Txn, messages: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message, path in rows_in(txn.sql, "SELECT message, path FROM message_file WHERE message IN", messages):
        found.setdefault(message, []).append(path)
    return found


def _turn_passages(
    facts: FactReader, turn: TurnRow, entries: list[SearchEntry], paths: dict[str, list[int]], find: FindWords
) -> list[SearchPassage]:
    made: list[_Growing] = []
    about = _about_turn(facts, turn)
    for entry in entries:
        growing = made[-1] if made and made[-1].takes(entry) else None
        if growing is None:
            growing = _Growing(entry)
            made.append(growing)
        growing.take(facts, entry, paths, find)
    if not made and any(word[:2] in (":a", ":e") for word in about):
        return [SearchPassage(LOOSE, LOOSE, turn.started_at, " ".join(about))]
    return [growing.passage(about) for growing in made]


class _Growing:
    """A passage in the making."""

    def __init__(self, entry: SearchEntry) -> None:
        self.first, self.last, self.role, self.day = entry.seq, entry.seq, entry.role, entry.at // DAY
        self.at, self.messages, self.letters = entry.at, 0, 0
        self._about = {f":r{entry.role}", day_word(self.day)}
        self._gathered, self._names = IndexedWords(), set[tuple[str, str]]()

    def takes(self, entry: SearchEntry) -> bool:
        """The calls of a message stay with it; what belongs to none fills passages of its own."""
        if entry.seq == self.last != LOOSE:
            return True
        fits = entry.role == self.role and entry.at // DAY == self.day and (entry.seq == LOOSE) == (self.last == LOOSE)
        return fits and self.letters < LETTERS and (self.messages < MESSAGES or entry.seq == LOOSE)

    def take(self, facts: FactReader, entry: SearchEntry, paths: dict[str, list[int]], find: FindWords) -> None:
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

    def passage(self, about: set[str]) -> SearchPassage:
        words = self._gathered.spelled()
        spelled = " ".join([words, *self._about, *about]) if words else " ".join([*self._about, *about])
        return SearchPassage(self.first, self.last, self.at, spelled)


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
    touching = touched(txn.facts, mark, LOG_ROWS, TURNS_AT_ONCE)
    until = touching.until
    if until is None:
        return False
    index_turns(txn, index, load_turns(txn, touching.turns), prepared)
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


def index_turns(
    txn: WriteTxn, index: WordIndex, turns: Sequence[TurnRow], prepared: PreparedWords | None = None
) -> None:
    """Index these turns anew, as they are now."""
    old = [n for (n,) in rows_in(txn.sql, "SELECT n FROM passage WHERE turn IN", (turn.n for turn in turns))]
    if old:
        index.drop(old)
        txn.sql.run_many("DELETE FROM passage WHERE n = ?", ((n,) for n in old))
    (highest,) = txn.sql.fetch_row("SELECT max(n) FROM passage") or (0,)
    n = max(highest or 0, *old, 0)
    made = passages_of(txn, turns, prepared)
    while some := list(islice(made, TOGETHER)):
        numbered = list(enumerate(((turn.n, each) for turn, passages in some for each in passages), n + 1))
        n += len(numbered)
        txn.sql.add(_PASSAGE, [(number, turn, each.first, each.last, each.at) for number, (turn, each) in numbered])
        index.put((number, each.spelled) for number, (_, each) in numbered)


def forget_passages(store: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Turns that lost contents are indexed as they are now, and the words that went leave no trace."""
    index = store.word_index(txn.sql)
    turns = load_turns(txn, forgotten.turns)
    for start in range(0, len(turns), TURNS_AT_ONCE):
        index_turns(txn, index, turns[start : start + TURNS_AT_ONCE])
    index.purge()


def note_changes(txn: WriteTxn, mark: int, touching: TouchedTurns) -> None:
    """Events that moved heads by the turn they moved them to, and when sessions changed last."""
    moves = txn.sql.fetch_rows(_MOVES, (mark, touching.until))
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


# --- Is the index what the facts say? Every passage is made anew and compared; the words are compared as one sum.

CHECKED_TURNS = 512
PAIRS = 4096
_SHARE = (1 << 61) - 1
Stored = tuple[int, int, int, int]


class CheckedSearch:
    """What was found by going through all turns up to the watermark."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        """Turns whose passages are not what they should be."""
        self.words = PairSum()
        """Of what the index should hold."""


class PairSum:
    """Stands for a set of pairs in any order: how many, and a sum that every pair has its share in."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, pairs: Iterable[tuple[str, int]]) -> None:
        shares = list(map(hash, pairs))
        self.count += len(shares)
        self.total = (self.total + sum(shares)) & _SHARE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PairSum) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


def found_in(store: Store) -> list[tuple[str, str]]:
    """What is wrong in a ledger, in one snapshot of it."""
    with store.read() as txn:
        return list(problems(txn, store.word_index(txn.sql)))


def renew_index(store: Store) -> int:
    """Empty the index of words, if it is wrong; it fills itself again. How much was wrong."""
    try:
        wrong = len(found_in(store))
    except FactDamaged:
        raise
    except Damaged:  # the index itself cannot be read; of the tables that it is made from, everything just was
        wrong = 1
    if wrong:
        store.write(lambda txn: empty(txn, store.word_index(txn.sql)))
    return wrong


def problems(txn: Txn, index: WordIndex) -> Iterator[tuple[str, str]]:
    """What is wrong, and where. Turns that the index has not caught up with are left out."""
    mark = txn.facts.watermark(VIEW)
    rest = touched(txn.facts, mark)
    yield from _check_changes(txn.sql, mark, rest)
    behind = {turn.n for turn in load_turns(txn, rest.turns)}
    checked = _check_passages(txn, behind)
    for turn in checked.wrong:
        yield "passage", f"those of turn {turn} are not what its messages say"
    known = {n for (n,) in txn.sql.iterate_rows("SELECT n FROM passage")}
    counted = known - _passage_numbers(txn.sql, behind)
    held, strange, pairs = PairSum(), False, index.pairs()
    while part := list(islice(pairs, PAIRS)):
        held.add([pair for pair in part if pair[1] in counted])
        strange = strange or not known.issuperset(n for _, n in part)
    orphans = txn.sql.fetch_row(
        "SELECT count(*) FROM passage p LEFT JOIN turn t ON t.n = p.turn WHERE t.n IS NULL"
    ) or (0,)
    if orphans[0]:
        yield "passage", f"{orphans[0]} belong to no turn"
    if strange or held != checked.words:
        yield "word", "does not hold the words of every passage"


def _check_changes(sql: Sql, mark: int, rest: TouchedTurns) -> Iterator[tuple[str, str]]:
    """Moves up to the watermark, and sessions that nothing was said about since."""
    (stored,) = sql.fetch_row("SELECT count(*) FROM arrival") or (0,)
    joined = "SELECT DISTINCT t.n AS turn, h.n AS move FROM history h JOIN turn t ON t.id = h.turn WHERE h.n <= ?"
    (moves,) = sql.fetch_row(f"SELECT count(*) FROM ({joined}) m", (mark,)) or (0,)
    found = f"({joined}) m JOIN arrival a ON a.turn = m.turn AND a.move = m.move"
    (right,) = sql.fetch_row(f"SELECT count(*) FROM {found}", (mark,)) or (0,)
    if not stored == moves == right:
        yield "arrival", f"finds {right} moves, not {moves}"
    changed_at: dict[int, int] = dict(sql.fetch_rows("SELECT session, at FROM session_change"))
    now = {n: (id, at) for n, id, at in sql.fetch_rows("SELECT n, id, updated_at FROM session")}
    wrong = [n for n, (id, at) in now.items() if id not in rest.sessions and changed_at.get(n) != at]
    if wrong or changed_at.keys() - now.keys():
        yield "session_change", f"is wrong about {len(wrong) or 'strange'} sessions"


def _passage_numbers(sql: Sql, turns: set[int]) -> set[int]:
    return {n for turn in turns for (n,) in sql.fetch_rows("SELECT n FROM passage WHERE turn = ?", (turn,))}


def _check_passages(txn: Txn, behind: set[int]) -> CheckedSearch:
    checked, after = CheckedSearch(), 0
    query = f"{TURN.select} WHERE n > ? ORDER BY n LIMIT {CHECKED_TURNS}"
    while found := txn.sql.fetch_rows(query, (after,)):
        rows = [TurnRow(*row) for row in found]
        refuse_disorder("turn", after, [(row.n,) for row in rows])
        after = rows[-1].n
        stored = _stored_passages(txn.sql, rows[0].n, after)
        for turn, passages in passages_of(txn, [row for row in rows if row.n not in behind]):
            _compare_passages(checked, turn, stored.get(turn.n, []), passages)
    return checked


def _stored_passages(sql: Sql, low: int, high: int) -> dict[int, list[Stored]]:
    found: dict[int, list[Stored]] = {}
    rows = sql.fetch_rows(
        "SELECT turn, n, first, last, at FROM passage WHERE turn BETWEEN ? AND ? ORDER BY n", (low, high)
    )
    for turn, *rest in rows:
        found.setdefault(turn, []).append((rest[0], rest[1], rest[2], rest[3]))
    return found


def _compare_passages(checked: CheckedSearch, turn: TurnRow, stored: list[Stored], made: list[SearchPassage]) -> None:
    if [row[1:] for row in stored] != [(each.first, each.last, each.at) for each in made]:
        checked.wrong.append(turn.id)
    for row, passage in zip(stored, made, strict=False):
        checked.words.add(zip(passage.words, repeat(row[0])))


def empty(txn: WriteTxn, index: WordIndex) -> None:
    """Nothing is indexed; it fills itself again, and until then searches look through everything."""
    index.clear()
    for table in ("passage", "arrival", "session_change"):
        txn.sql.run(f"DELETE FROM {table}")
    txn.sql.run("DELETE FROM watermark WHERE view = ?", (VIEW,))


# --- Vectors of nodes, as local state: kept, counted, and gone with the texts they were made from.

NEAR = "-near"
"""Beside a ledger's file: indexes of neighbours, which can be thrown away."""

GONE = "vectors-gone"
"""Local state: how often vectors were taken away."""


class VectorRow(Struct, frozen=True):
    n: int
    model: str
    node: str
    dimensions: int
    floats: bytes
    text: int | None
    embedded_at: int


VECTOR = Insert("vector", VectorRow.__struct_fields__)


def put_vector(sql: Sql, row: VectorRow) -> None:
    """In the place of the one that this node had from the same model."""
    which = "FROM vector WHERE model = ? AND node = ?"
    if sql.fetch_row(f"SELECT 1 {which}", (row.model, row.node)) is not None:
        sql.run(f"DELETE {which}", (row.model, row.node))
        note_gone(sql)
    sql.add(VECTOR, [astuple(row)])


def note_gone(sql: Sql) -> None:
    """Vectors were taken away: whoever holds some in memory looks again which are left."""
    sql.run(
        "INSERT INTO local(key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE"
        " SET value = CAST(CAST(local.value AS INTEGER) + 1 AS TEXT)",
        (GONE,),
    )


def vectors_gone(sql: Sql) -> str:
    """How often vectors were taken away; the same as before: none since then."""
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (GONE,))
    return str(row[0]) if row else ""


def near_file(store_path: str, model: str) -> Path | None:
    """Where an index of a model's vectors may lie; None where a ledger is no file."""
    path = Path(store_path)
    safe = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in model)
    if safe != model or len(safe) > 64:  # two models never share a file
        safe = f"{safe[:55]}-{sha256(model.encode()).hexdigest()[:8]}"
    return path.with_name(f"{path.name}{NEAR}-{safe}") if path.is_file() else None


def forget_vectors(store: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Vectors of all that lost contents: turns and their messages, programs, and sessions and rooms, since their
    texts are those of turns and messages. The indexes beside the ledger hold copies, and are made anew."""
    forget_turns(txn.sql, forgotten.turns)
    for numbers in _question_chunks(forgotten.contents):
        marks = ", ".join("?" * len(numbers))
        programs = f"SELECT id FROM program WHERE config IN ({marks})"
        txn.sql.run(f"DELETE FROM vector WHERE text IN ({marks}) OR node IN ({programs})", (*numbers, *numbers))
    path = Path(store.path)
    if path.is_file():
        for file in path.parent.glob(f"{path.name}{NEAR}*"):
            with suppress(FileNotFoundError):  # another process threw it away
                file.unlink()


def forget_turns(sql: Sql, turns: Sequence[str]) -> None:
    """Vectors of turns and their messages, which say something else now, and of sessions and rooms."""
    for some in _question_chunks(turns):
        marks = ", ".join("?" * len(some))
        sql.run(f"DELETE FROM vector WHERE node IN ({marks})", some)
        ids = f"SELECT m.id FROM message m JOIN turn t ON t.n = m.turn WHERE t.id IN ({marks})"
        sql.run(f"DELETE FROM vector WHERE node IN ({ids})", some)
    sql.run("DELETE FROM vector WHERE node IN (SELECT id FROM session)")
    sql.run("DELETE FROM vector WHERE node IN (SELECT id FROM conversation)")
    note_gone(sql)


def _question_chunks(values: Sequence[object]) -> list[Sequence[object]]:
    return [values[start : start + KEYS_PER_QUESTION] for start in range(0, len(values), KEYS_PER_QUESTION)]
