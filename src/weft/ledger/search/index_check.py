"""Is the index what the facts say? Every passage is made anew and compared; the words are compared as one sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat

from weft.kernel.errors import Damaged, FactDamaged
from weft.ledger.search.entries import Txn
from weft.ledger.search.passages import VIEW, Passage, load_turns, passages_of
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.views.touched_turns import Touched, touched
from weft.store.facts import refuse_disorder
from weft.store.port import Store, WriteTxn
from weft.store.sql import Sql
from weft.store.word_index import WordIndex

TURNS = 512
PAIRS = 4096
_SHARE = (1 << 61) - 1
Stored = tuple[int, int, int, int]


class Checked:
    """What was found by going through all turns up to the watermark."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        """Turns whose passages are not what they should be."""
        self.words = Sum()
        """Of what the index should hold."""


class Sum:
    """Stands for a set of pairs in any order: how many, and a sum that every pair has its share in."""

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, pairs: Iterable[tuple[str, int]]) -> None:
        shares = list(map(hash, pairs))
        self.count += len(shares)
        self.total = (self.total + sum(shares)) & _SHARE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


def found_in(store: Store) -> list[tuple[str, str]]:
    """What is wrong in a ledger, in one snapshot of it."""
    with store.read() as txn:
        return list(problems(txn, store.word_index(txn.sql)))


def renew(store: Store) -> int:
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
    checked = _check(txn, behind)
    for turn in checked.wrong:
        yield "passage", f"those of turn {turn} are not what its messages say"
    known = {n for (n,) in txn.sql.each("SELECT n FROM passage")}
    counted = known - _numbers(txn.sql, behind)
    held, strange, pairs = Sum(), False, index.pairs()
    while part := list(islice(pairs, PAIRS)):
        held.add([pair for pair in part if pair[1] in counted])
        strange = strange or not known.issuperset(n for _, n in part)
    orphans = txn.sql.one("SELECT count(*) FROM passage p LEFT JOIN turn t ON t.n = p.turn WHERE t.n IS NULL") or (0,)
    if orphans[0]:
        yield "passage", f"{orphans[0]} belong to no turn"
    if strange or held != checked.words:
        yield "word", "does not hold the words of every passage"


def _check_changes(sql: Sql, mark: int, rest: Touched) -> Iterator[tuple[str, str]]:
    """Moves up to the watermark, and sessions that nothing was said about since."""
    (stored,) = sql.one("SELECT count(*) FROM arrival") or (0,)
    joined = "SELECT DISTINCT t.n AS turn, h.n AS move FROM history h JOIN turn t ON t.id = h.turn WHERE h.n <= ?"
    (moves,) = sql.one(f"SELECT count(*) FROM ({joined}) m", (mark,)) or (0,)
    found = f"({joined}) m JOIN arrival a ON a.turn = m.turn AND a.move = m.move"
    (right,) = sql.one(f"SELECT count(*) FROM {found}", (mark,)) or (0,)
    if not stored == moves == right:
        yield "arrival", f"finds {right} moves, not {moves}"
    changed_at: dict[int, int] = dict(sql.all("SELECT session, at FROM session_change"))
    now = {n: (id, at) for n, id, at in sql.all("SELECT n, id, updated_at FROM session")}
    wrong = [n for n, (id, at) in now.items() if id not in rest.sessions and changed_at.get(n) != at]
    if wrong or changed_at.keys() - now.keys():
        yield "session_change", f"is wrong about {len(wrong) or 'strange'} sessions"


def _numbers(sql: Sql, turns: set[int]) -> set[int]:
    return {n for turn in turns for (n,) in sql.all("SELECT n FROM passage WHERE turn = ?", (turn,))}


def _check(txn: Txn, behind: set[int]) -> Checked:
    checked, after = Checked(), 0
    query = f"{TURN.select} WHERE n > ? ORDER BY n LIMIT {TURNS}"
    while found := txn.sql.all(query, (after,)):
        rows = [TurnRow(*row) for row in found]
        refuse_disorder("turn", after, [(row.n,) for row in rows])
        after = rows[-1].n
        stored = _stored(txn.sql, rows[0].n, after)
        for turn, passages in passages_of(txn, [row for row in rows if row.n not in behind]):
            _compare(checked, turn, stored.get(turn.n, []), passages)
    return checked


def _stored(sql: Sql, low: int, high: int) -> dict[int, list[Stored]]:
    found: dict[int, list[Stored]] = {}
    rows = sql.all("SELECT turn, n, first, last, at FROM passage WHERE turn BETWEEN ? AND ? ORDER BY n", (low, high))
    for turn, *rest in rows:
        found.setdefault(turn, []).append((rest[0], rest[1], rest[2], rest[3]))
    return found


def _compare(checked: Checked, turn: TurnRow, stored: list[Stored], made: list[Passage]) -> None:
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
