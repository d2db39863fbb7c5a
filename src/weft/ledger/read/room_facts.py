"""The facts of some conversations: the chains of their events, and who takes part in them.

Of a conversation that one of them was forked from, the events up to the message where that happened belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from weft.kernel.errors import FactDamaged
from weft.kernel.events import conversation_stream
from weft.store.port import ReadTxn
from weft.store.sql import rows_in


def conversation_events(txn: ReadTxn, conversations: Sequence[str]) -> set[int]:
    """The arrival numbers of their events."""
    numbers: set[int] = set()
    for id in conversations:
        tip = txn.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (conversation_stream(id),))
        numbers |= _chain(txn, id, None if tip is None else bytes(tip[0]))
        row = txn.sql.one("SELECT forked_from, forked_at FROM conversation WHERE id = ?", (id,))
        while row is not None and row[0] is not None:
            origin, position = row
            numbers |= _chain_to_message(txn, origin, position)
            row = txn.sql.one("SELECT forked_from, forked_at FROM conversation WHERE id = ?", (origin,))
    return numbers


def participants_in(txn: ReadTxn, conversations: Sequence[str]) -> set[str]:
    """The ids of the agents and people who take or took part in them, or in those that they were forked from."""
    taking_part = "SELECT node FROM participant WHERE conversation IN"
    origins = "SELECT forked_from FROM conversation WHERE forked_from IS NOT NULL AND id IN"
    wanted, nodes = list(conversations), set[str]()
    while wanted:
        nodes |= {node for (node,) in rows_in(txn.sql, taking_part, wanted)}
        wanted = [id for (id,) in rows_in(txn.sql, origins, wanted)]
    return nodes


def _chain_to_message(txn: ReadTxn, conversation: str, position: int) -> set[int]:
    query = "SELECT n FROM room_message WHERE conversation = ? AND position <= ? ORDER BY position DESC LIMIT 1"
    row = txn.sql.one(query, (conversation, position))
    line = None if row is None else txn.facts.line(row[0])
    if row is None or line is None:
        return set()
    return {row[0], *_chain(txn, conversation, _before(line))}


def _chain(txn: ReadTxn, conversation: str, event: bytes | None) -> set[int]:
    """From an event of a conversation back to its first one."""
    numbers: set[int] = set()
    while event is not None:
        n = txn.facts.find_event(event)
        line = None if n is None else txn.facts.line(n)
        if n is None or line is None:
            raise FactDamaged("conversation", conversation, f"event {event.hex()} of its stream is not here")
        numbers.add(n)
        event = _before(line)
    return numbers


def _before(line: bytes) -> bytes | None:
    prev = orjson.loads(line)["prev"]
    return None if prev is None else bytes.fromhex(prev)
