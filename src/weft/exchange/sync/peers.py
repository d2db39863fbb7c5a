"""What a ledger remembers of those it syncs with: local state, which no fact and no export holds.

Of a peer it is kept how far its log was taken, where its log ended when it was last heard of, and which stretches of
our own log it has for certain, since they came from it. Each is kept with the chain of arrival at that place: a replica
that says something else there is not the one it was.
"""

from __future__ import annotations

import json

from msgspec import Struct

from weft.exchange.sync.messages import BatchEnd, Hello, KnownLog, Ready
from weft.kernel.advice import Action
from weft.kernel.errors import InvalidInput, LabelTaken, NotFound
from weft.ledger.arguments import checked_label
from weft.store.sql import Row, Sql

_PEER = "SELECT n, chain, seen, seen_chain FROM peer WHERE replica = ?"
_REMOTE = "SELECT name, address, sessions, shares_imports, added_at FROM remote"
NAME_LENGTH = 64


class Remote(Struct, frozen=True, kw_only=True):
    """A ledger to sync with, by a name of our own."""

    name: str
    address: str
    sessions: tuple[str, ...] = ()
    """Ids of the sessions that a push is limited to; none: everything."""
    shares_imports: bool = False
    added_at: int = 0


def remembered(sql: Sql, replica: str) -> KnownLog:
    """Where that peer's log ended when it was last heard of."""
    row = sql.one(_PEER, (replica,))
    return KnownLog(n=row[2], chain=bytes(row[3]).hex()) if row else KnownLog()


def cursor(sql: Sql, replica: str, *, empty: bool) -> Ready:
    row = sql.one(_PEER, (replica,))
    return Ready(after=row[0], chain=bytes(row[1]).hex(), empty=empty) if row and row[0] else Ready(empty=empty)


def note_heard(sql: Sql, peer: Hello, at: int) -> None:
    """Its log ends there now; that only moves on."""
    _note(sql, peer.replica, "seen", "seen_chain", peer.n, peer.chain, at)


def note_taken(sql: Sql, replica: str, mark: BatchEnd, at: int) -> None:
    """Its log is taken up to there; that only moves on, whoever else takes from it."""
    _note(sql, replica, "n", "chain", mark.n, mark.chain, at)


def _note(sql: Sql, replica: str, number: str, chain: str, n: int, hashed: str, at: int) -> None:
    sql.run(
        "INSERT INTO peer(replica, n, chain, seen, seen_chain, at) VALUES (?, 0, ?, 0, ?, ?)"
        " ON CONFLICT (replica) DO NOTHING",
        (replica, b"", b"", at),
    )
    sql.run(
        f"UPDATE peer SET {number} = ?, {chain} = ?, at = ? WHERE replica = ? AND {number} < ?",
        (n, bytes.fromhex(hashed), at, replica, n),
    )


def forget_peer(sql: Sql, replica: str) -> None:
    known = "SELECT 1 FROM peer WHERE replica = ? UNION ALL SELECT 1 FROM came_from WHERE replica = ?"
    if sql.one(known, (replica, replica)) is None:
        raise NotFound("other replica", replica, Action.FIND_REFUSED_REPLICA)
    for table in ("peer", "came_from"):
        sql.run(f"DELETE FROM {table} WHERE replica = ?", (replica,))


def note_range(sql: Sql, replica: str, first: int, last: int) -> None:
    """These events came from that peer; a stretch that goes on where the last one ended is one with it."""
    if first > last:
        return
    row = sql.one("SELECT first, last FROM came_from WHERE replica = ? ORDER BY first DESC LIMIT 1", (replica,))
    if row is not None and row[1] + 1 == first:
        sql.run("UPDATE came_from SET last = ? WHERE replica = ? AND first = ?", (last, replica, row[0]))
    else:
        sql.run("INSERT INTO came_from(replica, first, last) VALUES (?, ?, ?)", (replica, first, last))


def ranges_from(sql: Sql, replica: str, after: int) -> list[tuple[int, int]]:
    """Stretches of our log beyond `after` that came from that peer."""
    rows = sql.all("SELECT first, last FROM came_from WHERE replica = ? AND last > ? ORDER BY first", (replica, after))
    return [(first, last) for first, last in rows]


# --- remotes ------------------------------------------------------------------------------------------------------


def load_remotes(sql: Sql) -> list[Remote]:
    return [_remote(row) for row in sql.all(f"{_REMOTE} ORDER BY name")]


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
        raise InvalidInput(f"a remote called {remote.name!r:.80}", "use letters, digits, - and _")
    if sql.one("SELECT 1 FROM remote WHERE name = ?", (remote.name,)) is not None:
        raise LabelTaken(remote.name, "a remote")
    sql.run(
        "INSERT INTO remote(name, address, sessions, shares_imports, added_at) VALUES (?, ?, ?, ?, ?)",
        (remote.name, remote.address, json.dumps(remote.sessions), int(remote.shares_imports), remote.added_at),
    )


def remove_remote(sql: Sql, name: str) -> None:
    load_remote(sql, name)
    sql.run("DELETE FROM remote WHERE name = ?", (name,))
