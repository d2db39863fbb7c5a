"""What a ledger remembers of those it syncs with: local state, which no fact and no export holds.

Of a peer it is kept how far its log was taken, with the chain of arrival at that place, and which stretches of our own
log came from it. The place is proven: the chain is computed here from the events, never believed. What came from a peer
is not offered back to it where its log is proven to hold it. A replica that says that its log has something else at the
place that is kept is refused once, and the place is dropped: a stranger who spoke under its name cannot keep it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec import Struct

from weft.exchange.sync.messages import BatchEnd, KnownLog, Ready
from weft.kernel.errors import Action, InvalidInput, LabelTaken, NotFound, quoted
from weft.ledger.arguments import checked_label
from weft.store.fact_log import UNPROVEN
from weft.store.replicas import NOTE
from weft.store.sql import Row, Sql

_PEER = "SELECT n, chain FROM peer WHERE replica = ?"
_DISPUTED = "disputed:"
"""Local state: a row per peer that remembers something of our log which is not in it, with what it remembers."""
_WHOLE = "whole-offer:"
"""Local state: a row per peer whose next offer leaves out nothing, since the last one did not prove a place."""
_REMOTE = "SELECT name, address, sessions, shares_imports, added_at FROM remote"
NAME_LENGTH = 64
MOST_REMOTES = 1000
"""A damaged file may give rows without end."""
Stretch = tuple[int, int]
"""The arrival numbers of the first and the last of some events of our log."""


class Remote(Struct, frozen=True, kw_only=True):
    """A ledger to sync with, by a name of our own."""

    name: str
    address: str
    sessions: tuple[str, ...] = ()
    """Ids of the sessions that a push is limited to; none: everything."""
    shares_imports: bool = False
    added_at: int = 0


def remembered(sql: Sql, replica: str) -> KnownLog:
    """The last proven place in that peer's log."""
    row = sql.one(_PEER, (replica,))
    return KnownLog(n=row[0], chain=bytes(row[1]).hex()) if row and row[0] else KnownLog()


def cursor(sql: Sql, replica: str, *, empty: bool) -> Ready:
    place = remembered(sql, replica)
    whole = sql.one("SELECT 1 FROM local WHERE key = ?", (_WHOLE + replica,)) is not None
    return Ready(after=place.n, chain=place.chain, empty=empty, whole=whole)


def note_taken(sql: Sql, replica: str, mark: BatchEnd, at: int) -> None:
    """Its log is taken up to there, which was proven; that only moves on, whoever else takes from it."""
    sql.run(
        "INSERT INTO peer(replica, n, chain, seen, seen_chain, at) VALUES (?, 0, ?, 0, ?, ?)"
        " ON CONFLICT (replica) DO NOTHING",
        (replica, b"", b"", at),
    )
    chain = bytes.fromhex(mark.chain)
    sql.run(
        "UPDATE peer SET n = ?, chain = ?, seen = ?, seen_chain = ?, at = ? WHERE replica = ? AND n < ?",
        (mark.n, chain, mark.n, chain, at, replica, mark.n),
    )


def note_unproven(sql: Sql, replica: str, is_unproven: bool) -> None:
    """Whether the next offer of that peer must leave out nothing."""
    key = (_WHOLE + replica,)
    if is_unproven:
        sql.run(NOTE, (*key, ""))
    else:
        sql.run("DELETE FROM local WHERE key = ?", key)


def is_disputed(sql: Sql, replica: str, claim: KnownLog) -> bool:
    """Whether that peer said before that it remembers this of our log, which does not hold it."""
    row = sql.one("SELECT value FROM local WHERE key = ?", (_DISPUTED + replica,))
    return row is not None and row[0] == f"{claim.n}:{claim.chain}"


def note_dispute(sql: Sql, replica: str, claim: KnownLog) -> None:
    sql.run(NOTE, (_DISPUTED + replica, f"{claim.n}:{claim.chain}"))


def drop_memory(sql: Sql, replica: str) -> None:
    """What is kept of a replica is not what it says of itself: somebody else may have spoken under its name. The next
    sync with it begins anew; nothing that it is offered is left out, and nothing that it offers."""
    sql.run("UPDATE peer SET n = 0, chain = ?, seen = 0, seen_chain = ? WHERE replica = ?", (b"", b"", replica))
    for stretch in stretches_from(sql, replica, 0):
        note_doubt(sql, replica, stretch)


def forget_peer(sql: Sql, replica: str) -> None:
    if sql.one("SELECT 1 FROM peer WHERE replica = ?", (replica,)) is None:
        raise NotFound("other replica", replica, Action.FIND_REFUSED_REPLICA)
    drop_memory(sql, replica)
    sql.run("DELETE FROM peer WHERE replica = ?", (replica,))


def note_range(sql: Sql, replica: str, first: int, last: int) -> None:
    """These events came from that peer; a stretch that goes on where the last one ended is one with it."""
    row = sql.one("SELECT first, last FROM came_from WHERE replica = ? ORDER BY first DESC LIMIT 1", (replica,))
    if row is not None and row[1] + 1 == first:
        sql.run("UPDATE came_from SET last = ? WHERE replica = ? AND first = ?", (last, replica, row[0]))
    else:
        sql.run("INSERT INTO came_from(replica, first, last) VALUES (?, ?, ?)", (replica, first, last))


def stretches_from(sql: Sql, replica: str, after: int) -> list[Stretch]:
    """Stretches of our log beyond `after` that came from that peer."""
    rows = sql.all("SELECT first, last FROM came_from WHERE replica = ? AND last > ? ORDER BY first", (replica, after))
    return [(first, last) for first, last in rows]


def held_by(sql: Sql, replica: str, after: int) -> list[Stretch]:
    """Those of them that the log of that peer is proven to hold."""
    rows = sql.all("SELECT key, value FROM local WHERE key LIKE ?", (f"{UNPROVEN}{replica}:%",))
    doubted = sorted((int(key.rpartition(":")[2]), int(last)) for key, last in rows)
    return list(_without(stretches_from(sql, replica, after), doubted))


def note_doubt(sql: Sql, replica: str, stretch: Stretch) -> None:
    """That peer told these events; whether they are in the log that goes by its name is not proven."""
    sql.run(NOTE, (f"{UNPROVEN}{replica}:{stretch[0]}", str(stretch[1])))


def settle_doubt(sql: Sql, replica: str, stretch: Stretch) -> None:
    sql.run("DELETE FROM local WHERE key = ?", (f"{UNPROVEN}{replica}:{stretch[0]}",))


def _without(stretches: list[Stretch], doubted: list[Stretch]) -> Iterator[Stretch]:
    for first, last in stretches:
        for start, end in doubted:
            if start <= last and end >= first:
                if first < start:
                    yield first, start - 1
                first = end + 1
        if first <= last:
            yield first, last


# --- remotes ------------------------------------------------------------------------------------------------------


def load_remotes(sql: Sql) -> list[Remote]:
    return [_remote(row) for row in sql.all(f"{_REMOTE} ORDER BY name LIMIT ?", (MOST_REMOTES,))]


def load_remote(sql: Sql, name: str) -> Remote:
    row = sql.one(f"{_REMOTE} WHERE name = ?", (name,))
    if row is None:
        raise NotFound("remote", name, Action.LIST_REMOTES)
    return _remote(row)


def _remote(row: Row) -> Remote:
    name, address, sessions, shares, added_at = row
    return Remote(
        name=name,
        address=address,
        sessions=tuple(json.loads(sessions)),
        shares_imports=bool(shares),
        added_at=added_at,
    )


def add_remote(sql: Sql, remote: Remote) -> None:
    name = checked_label(remote.name, "remote's name")
    if name != remote.name or len(name) > NAME_LENGTH or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidInput(f"a remote called {quoted(remote.name)}", "use letters, digits, - and _")
    if sql.one("SELECT 1 FROM remote WHERE name = ?", (remote.name,)) is not None:
        raise LabelTaken(remote.name, "a remote")
    sql.run(
        "INSERT INTO remote(name, address, sessions, shares_imports, added_at) VALUES (?, ?, ?, ?, ?)",
        (remote.name, remote.address, json.dumps(remote.sessions), int(remote.shares_imports), remote.added_at),
    )


def remove_remote(sql: Sql, name: str) -> None:
    load_remote(sql, name)
    sql.run("DELETE FROM remote WHERE name = ?", (name,))
