"""What Weft wrote for other tools, known again when it comes back.

A session file that was written to go on elsewhere holds turns that this ledger has. For each of them the ledger keeps
the fact `turn_linked {child, parent, why: resumed}`: the child is the name that an import of the written records gives
them, the parent the turn that they were written from. Reading the file gives the same names, and so finds the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from weft.kernel.enums import LinkReason
from weft.kernel.events import encode, import_stream
from weft.kernel.imported import ImportSecret, imported_turn_id
from weft.kernel.ledger_events import TurnLinked
from weft.ledger.imports.natives import NativeTurn
from weft.ledger.model import IMPORTED_AGENT
from weft.ledger.views.rows import TurnRow
from weft.ledger.views.versions import mapping_number
from weft.ledger.write.append import Append
from weft.store.sql import Sql

ROW_EVENTS = 128
FindTurn = Callable[[str], TurnRow | None]


class Resumes:
    """The written turns of one origin."""

    def __init__(self, mapping: str) -> None:
        self.mapping = mapping
        self._any: bool | None = None

    def find(self, sql: Sql, find_turn: FindTurn, grows_from: str | None, source: str) -> TurnRow | None:
        """The turn that these records were written from, by this mapping or an older one."""
        if self._any is None:
            self._any = sql.one("SELECT 1 FROM link WHERE why = 'resumed' LIMIT 1") is not None
        if not self._any:
            return None
        origin, number = self.mapping.rpartition("/")[0], mapping_number(self.mapping)
        for older in range(number, 0, -1):
            child = imported_turn_id(grows_from, f"{origin}/{older}", source)
            rows = sql.all("SELECT parent FROM link WHERE child = ? AND why = 'resumed' ORDER BY parent", (child,))
            found = [row for (parent,) in rows if (row := find_turn(parent)) is not None]
            if found:
                return min(found, key=lambda row: (-row.current, row.id))
        return None

    def claim(
        self,
        append: Append,
        secret: ImportSecret,
        pairs: Sequence[tuple[NativeTurn, str]],
        is_known: Callable[[Append, bytes], bool],
    ) -> int:
        """Every written turn gets its link. Parents come before children, as an importer gives them."""
        digests: list[str] = []
        counted = 0
        for turn, parent in pairs:
            grows_from = None if turn.parent is None else digests[turn.parent]
            child = imported_turn_id(grows_from, self.mapping, secret.source(turn.records))
            digests.append(append.view.turn(parent).digest)
            event = TurnLinked(
                stream=import_stream(child),
                prev=None,
                actor=IMPORTED_AGENT,
                child=child,
                parent=parent,
                why=LinkReason.RESUMED,
            )
            if not is_known(append, sha256(encode(event)).digest()):
                append.add_event(event)
                counted += 1
            if len(append.lines) >= ROW_EVENTS:
                append.seal()
        self._any = True
        return counted
