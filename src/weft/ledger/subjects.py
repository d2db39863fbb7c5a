"""What turns are about, read for many of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.contents import bytes_text
from weft.ledger.reading import MESSAGE_COLUMNS, to_messages
from weft.store.port import ReadTxn

AT_ONCE = 256


def subjects_of(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    """The first text that was asked in each turn, or else said; of a compaction its summary."""
    found: dict[str, str] = {}
    for start in range(0, len(turns), AT_ONCE):
        some = turns[start : start + AT_ONCE]
        found |= _summaries(txn, some)
        for roles in ("= 'user'", "<> 'user'"):
            found |= _first_texts(txn, [turn for turn in some if turn not in found], roles)
    return found


def _summaries(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    rows = txn.sql.all(f"SELECT turn, summary FROM compaction WHERE turn IN ({_marks(turns)})", turns)
    return {turn: bytes_text(txn.facts.content(summary)) for turn, summary in rows}


def _first_texts(txn: ReadTxn, turns: Sequence[str], roles: str) -> dict[str, str]:
    """Of each turn the first message of these roles that says something."""
    rows = txn.sql.all(
        f"SELECT t.id, t.segment, {MESSAGE_COLUMNS} FROM turn t JOIN message m ON m.segment = t.segment"
        f" AND m.depth = t.depth LEFT JOIN content c ON c.n = m.text WHERE t.id IN ({_marks(turns)})"
        f" AND m.role {roles} ORDER BY t.id, m.seq",
        turns,
    )
    found: dict[str, str] = {}
    for turn, segment, *row in rows:
        if turn not in found:
            (message,) = to_messages(txn, segment, [row])
            if message.text.strip():
                found[turn] = message.text
    return found


def _marks(turns: Sequence[str]) -> str:
    return ", ".join("?" * len(turns))
