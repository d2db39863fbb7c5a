"""Which turns several threads, or whole trees, consist of: strands, each turn once, parents before children.

A strand is a stretch of one segment from its first turn on. Threads share their beginnings, so a set of threads is a
set of segments, each as far as one of the threads follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from weft.kernel.errors import Damaged
from weft.ledger.names import Spot
from weft.ledger.threads import Range, ranges_to
from weft.ledger.values import REBUILD
from weft.store.port import Sql

ALL = 2**53
"""More events than a turn has."""


class Strand(Struct, frozen=True, kw_only=True):
    """Consecutive turns of one segment, and where they leave the strand before them."""

    number: int
    """Its place among the strands that are told together."""
    segment: int
    low: int
    high: int
    events: int | None
    """How many events of its last turn belong to it; null: all."""
    first: str
    """The id of its first turn."""
    last: str
    parent: int | None = None
    """The number of the strand that it leaves; null: it begins a tree."""
    leaves: str | None = None
    """The turn after which it leaves."""
    leaves_at: int | None = None
    after_events: int | None = None
    """How many events of that turn belong to its thread; null: all."""
    link: str | None = None
    """Why it goes on from another chain, which it only names."""

    @property
    def count(self) -> int:
        return self.high - self.low + 1


def strands_to(sql: Sql, spots: Iterable[Spot], *, trees: bool) -> tuple[Strand, ...]:
    """The threads that end at these spots; with `trees`, everything that shares a root with them."""
    reach: dict[int, Range] = {}
    above: dict[int, Range] = {}
    roots: dict[int, None] = {}
    for spot in spots:
        ranges = ranges_to(sql, spot.turn.segment, spot.turn.depth, spot.events, across=True)
        for i, part in enumerate(ranges):
            _extend(reach, part)
            if i:
                above[part.segment] = ranges[i - 1]
        roots[spot.turn.root] = None
    for root in roots if trees else ():
        _add_tree(sql, root, reach, above)
    return tuple(_numbered(sql, reach, above))


def _extend(reach: dict[int, Range], part: Range) -> None:
    """Of two ends of one segment the further one."""
    known = reach.get(part.segment)
    if known is None or (part.high, part.events or ALL) > (known.high, known.events or ALL):
        reach[part.segment] = part


def _add_tree(sql: Sql, root: int, reach: dict[int, Range], above: dict[int, Range]) -> None:
    """Every segment of a tree as far as its turns are current, or as current ones go on from them."""
    rows = sql.all(
        "SELECT s.n, s.base, s.parent, s.parent_depth, s.parent_events,"
        " (SELECT max(t.depth) FROM turn t WHERE t.segment = s.n AND t.current = 1)"
        " FROM segment s WHERE s.root = ? ORDER BY s.n DESC",
        (root,),
    )
    needed: dict[int, int] = {}
    for n, base, parent, parent_depth, parent_events, current in rows:
        high = max(current or 0, needed.get(n, 0))
        if not high and n not in reach:
            continue
        _extend(reach, Range(n, base, high, None))
        if parent is not None:
            needed[parent] = max(needed.get(parent, 0), parent_depth)
            above.setdefault(n, Range(parent, 0, parent_depth, parent_events))


def _numbered(sql: Sql, reach: dict[int, Range], above: dict[int, Range]) -> Iterator[Strand]:
    """Each strand followed by those that leave it, the latest first: a thread's end comes right after its beginning."""
    below: dict[int | None, list[int]] = {}
    for segment in reach:
        below.setdefault(above[segment].segment if segment in above else None, []).append(segment)
    for segments in below.values():
        segments.sort(key=lambda n: (above[n].high if n in above else 0, -n))
    numbers: dict[int, int] = {}
    waiting = below.get(None, [])
    while len(numbers) < len(reach):
        if not waiting:  # chains that name each other as where they go on from: one of them must begin
            waiting.append(next(segment for segment in reach if segment not in numbers))
            above.pop(waiting[0], None)
        segment = waiting.pop()
        if segment not in numbers:
            numbers[segment] = len(numbers)
            yield _strand(sql, reach[segment], above.get(segment), numbers)
            waiting += below.get(segment, [])


def _strand(sql: Sql, part: Range, before: Range | None, numbers: dict[int, int]) -> Strand:
    first, last = (_turn_at(sql, part.segment, depth) for depth in (part.low, part.high))
    leaves = None if before is None else _turn_at(sql, before.segment, before.high)
    why = sql.one("SELECT why FROM link WHERE child = ? AND parent = ? AND why <> 'subagent'", (first, leaves))
    return Strand(
        number=numbers[part.segment],
        segment=part.segment,
        low=part.low,
        high=part.high,
        events=part.events,
        first=first,
        last=last,
        parent=None if before is None else numbers[before.segment],
        leaves=leaves,
        leaves_at=None if before is None else before.high,
        after_events=None if before is None else before.events,
        link=None if why is None else str(why[0]),
    )


def _turn_at(sql: Sql, segment: int, depth: int) -> str:
    row = sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", (segment, depth))
    if row is None:
        raise Damaged(f"segment {segment} has no turn at depth {depth}", REBUILD)
    return str(row[0])
