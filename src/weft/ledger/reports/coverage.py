"""Which sessions' threads contain what: for all of them at once, from segments and heads alone.

A thread enters a segment at its first turn and leaves it at some place; so of each segment it contains a beginning, and
what many threads contain is told by how far each of them goes. A place is (depth, events): that many events of the
turn at that depth. No turn is walked, and a segment is looked at once however many threads run through it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from itertools import accumulate

from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import Damaged
from weft.store.sql import Sql

Place = tuple[int, int]
WHOLE = MAX_INTEGER
"""More events than any turn has."""
NOWHERE: Place = (0, 0)


class SessionHead(Struct, frozen=True):
    """Where a session stands."""

    session: int
    segment: int
    place: Place


class Leaving(Struct, frozen=True):
    """Where a segment's thread comes from."""

    segment: int
    place: Place


class CoverageTree:
    """Every segment and what it grew from."""

    def __init__(self, sql: Sql) -> None:
        rows = sql.all("SELECT n, parent, parent_depth, parent_events FROM segment ORDER BY n DESC")
        self.grown: dict[int, Leaving | None] = {
            n: None if parent is None else Leaving(parent, (depth, WHOLE if events is None else events))
            for n, parent, depth, events in rows
        }
        """Children before their parents: a segment's number is higher than that of the one it left."""
        self.linked = links(sql)

    def before(self, segment: int) -> Leaving | None:
        """Its parent; of a root, what it was continued or forked from in another chain."""
        if segment not in self.grown:
            raise Damaged(f"segment {segment} is not among the views", Action.VERIFY_AND_REBUILD)
        return self.grown[segment] or self.linked.get(segment)


def links(sql: Sql) -> dict[int, Leaving]:
    """By the segment of a root: what it was continued or forked from in another chain."""
    rows = sql.all(
        "SELECT t.segment, p.segment, p.depth FROM link l JOIN turn t ON t.id = l.child JOIN turn p ON p.id = l.parent"
        " WHERE l.why IN ('continuation', 'fork') AND t.parent IS NULL ORDER BY t.segment, p.current DESC, p.id"
    )
    found: dict[int, Leaving] = {}
    for child, parent, depth in rows:
        found.setdefault(child, Leaving(parent, (depth, WHOLE)))
    return found


def heads(sql: Sql, where: str, values: tuple[object, ...] = ()) -> list[SessionHead]:
    rows = sql.all(
        f"SELECT n, head_segment, head_depth, head_events FROM session WHERE head IS NOT NULL AND ({where})", values
    )
    return [SessionHead(n, segment, (depth, WHOLE if events is None else events)) for n, segment, depth, events in rows]


class Reach:
    """How far threads go in each segment, and what only one of them contains.

    Of each segment the two sessions that go furthest are kept: what lies between them is the first one's alone.
    """

    def __init__(self, tree: CoverageTree, heads: list[SessionHead]) -> None:
        self._furthest: dict[int, dict[int, Place]] = {}
        self._followed_sessions: dict[int, set[int]] = {}
        waiting = [(head.segment, head.place, head.session) for head in heads]
        while waiting:
            segment, place, session = waiting.pop()
            self._note(segment, place, session)
            followed, before = self._followed_sessions.setdefault(segment, set()), tree.before(segment)
            if before is not None and len(followed) < 2 and session not in followed:
                followed.add(session)
                waiting.append((before.segment, before.place, session))

    def _note(self, segment: int, place: Place, session: int) -> None:
        best = self._furthest.setdefault(segment, {})
        best[session] = max(place, best.get(session, NOWHERE))
        if len(best) > 2:
            del best[min(best, key=best.__getitem__)]

    @property
    def segments(self) -> Set[int]:
        """Those that threads go through."""
        return self._furthest.keys()

    def contains(self, segment: int, place: Place) -> bool:
        best = self._furthest.get(segment)
        return best is not None and place < max(best.values())

    def sessions(self, segment: int, place: Place) -> set[int]:
        """Two at most of the sessions whose threads contain this: enough to tell none, one and several apart."""
        best = self._furthest.get(segment, {})
        return {session for session, end in best.items() if place < end}


class Count:
    """How many threads contain a place, each by its own chain alone."""

    def __init__(self, tree: CoverageTree, heads: list[SessionHead]) -> None:
        ends: dict[int, list[tuple[Place, int]]] = {}
        for head in heads:
            ends.setdefault(head.segment, []).append((head.place, 1))
        self._ends: dict[int, tuple[list[Place], list[int]]] = {}
        for segment, left in tree.grown.items():
            found = ends.pop(segment, None)
            if found is None:
                continue
            found.sort()
            below = [0, *accumulate(threads for _, threads in found)]
            self._ends[segment] = ([place for place, _ in found], below)
            if left is not None:
                ends.setdefault(left.segment, []).append((left.place, below[-1]))

    def threads(self, segment: int, place: Place) -> int:
        if segment not in self._ends:
            return 0
        places, below = self._ends[segment]
        return below[-1] - below[bisect_right(places, place)]
