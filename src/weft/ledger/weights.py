"""How much an append will store, and which of its contents are so large that they go first, on their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, UnsetType

from weft.kernel.contents import ROW_BYTES, json_bytes, text_bytes
from weft.ledger.draft import Desk
from weft.ledger.model import NewMessage, NewToolCall, ReasoningPart, TextPart, ToolResultPart
from weft.ledger.rows import find_session, load_turn

SUSPECT = ROW_BYTES // 6
"""No text shorter than this takes more than a row, whatever its characters need as UTF-8 or as JSON."""


class Weight(Struct, frozen=True):
    size: int
    large: tuple[bytes, ...]


def weigh(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Weight:
    size = 0
    large: list[bytes] = []
    for text, is_json in _texts(messages, calls):
        size += len(text)
        if len(text) > SUSPECT:
            data = json_bytes(text, "result") if is_json else text_bytes(text)
            if len(data) > ROW_BYTES:
                large.append(data)
    return Weight(size, tuple(large))


def _texts(messages: Iterable[NewMessage], calls: Iterable[NewToolCall]) -> Iterator[tuple[str, bool]]:
    """Every string of some length, and whether it is stored as JSON."""
    for message in messages:
        if isinstance(message.content, str):
            yield message.content, False
        elif isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, TextPart | ReasoningPart) and isinstance(part.text, str):
                    yield part.text, False
                elif isinstance(part, ToolResultPart) and isinstance(part.output, str):
                    yield part.output, True
    for call in calls:
        if isinstance(call.result, str):
            yield call.result, True


def expected_scope(desk: Desk, session: str | None, parent: str | UnsetType | None) -> int:
    """The tree that a turn will most likely belong to; should it not, its large contents are stored there again."""
    with desk.store.read() as txn:
        found = find_session(txn.sql, session) if session else None
        at = parent if isinstance(parent, str) else found.head if found else None
        row = load_turn(txn.sql, at) if at else None
        (highest,) = txn.sql.one("SELECT max(n) FROM segment") or (0,)
        return row.root if row else (highest or 0) + 1
