"""The tree of turns: children, heads, common ancestors, and which sessions a turn belongs to."""

from __future__ import annotations

from weft.ledger.api.base import LedgerPart
from weft.ledger.model import Session, SessionMove, Turn
from weft.ledger.read.access import access_of, session_of_number
from weft.ledger.read.sessions import sessions_containing, to_sessions
from weft.ledger.read.threads import (
    children,
    common_depth,
    heads_without_children,
    ranges_to,
    tree_rows,
)
from weft.ledger.read.turns import to_turns
from weft.ledger.search import lookups
from weft.ledger.write.append import reads_whole


class Tree(LedgerPart):
    """`ledger.tree`: how turns hang together."""

    def children(self, turn: str) -> list[Turn]:
        with self._store.read() as txn:
            return to_turns(txn, filter(access_of(txn).may_read_turn, children(txn.sql, self._resolve(txn, turn).turn)))

    @reads_whole
    def heads(self) -> list[Turn]:
        """Turns without a completed child: the tips of all trees, labelled or not."""
        with self._store.read() as txn:
            return to_turns(txn, heads_without_children(txn.sql))

    def common_ancestor(self, left: str, right: str) -> str | None:
        with self._store.read() as txn:
            rows = [self._resolve(txn, name).turn for name in (left, right)]
            common = common_depth(*(ranges_to(txn.sql, row.segment, row.depth) for row in rows))
            found = common and txn.sql.one("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
            return str(found[0]) if found else None

    def turns(self, turn: str) -> list[Turn]:
        """Every turn of the tree that this one belongs to, parents before children."""
        with self._store.read() as txn:
            return to_turns(
                txn, filter(access_of(txn).may_read_turn, tree_rows(txn.sql, self._resolve(txn, turn).turn))
            )

    def sessions_containing(self, turn: str) -> list[Session]:
        """Every session whose thread has ever contained this turn."""
        with self._store.read() as txn:
            row = self._resolve(txn, turn).turn
            sessions = sessions_containing(txn, row.segment, row.depth)
            return to_sessions(txn, sessions)

    def moves_to(self, turn: str) -> list[SessionMove]:
        """Every movement of a session's head to this very turn, in order."""
        with self._store.read() as txn:
            rows = lookups.moves_to(txn, self._resolve(txn, turn).turn)
            sessions = {row.session: session_of_number(txn, row.session) for row in rows}
            return [
                SessionMove(session=session.label, changed_at=row.changed_at, why=row.why)
                for row in rows
                if (session := sessions[row.session]) is not None
            ]
