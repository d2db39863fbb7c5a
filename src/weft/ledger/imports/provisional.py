"""The open tail of a source that is still written to: shown while it lasts, never a fact.

A tail is local state. It is written in the transaction that takes the rest of its session, so a turn is either here or
a fact, never both; it goes when its source is read again without it, when the source is gone, and with any erasure,
which must not leave words behind. Long turns are shown by their latest items, each cut: a tail is a look at what goes
on, and is written again with every look.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
from msgspec import UNSET, Struct, convert, field

from weft.kernel.contents import showable
from weft.ledger.forgotten import Forgotten
from weft.ledger.model import Part, ReasoningPart, TextPart
from weft.ledger.natives import Item, NativeCall, NativeMessage, NativeTurn
from weft.store.port import ReadTxn, Sql, Store, WriteTxn

ITEMS = 24
CHARACTERS = 2000
_COLUMNS = "SELECT source, session, seen_at, body FROM provisional"
_ORDER = "ORDER BY seen_at DESC, source, session, idx"


class ProvisionalItem(Struct, frozen=True, kw_only=True):
    """A message or a tool call, as far as it is there; long texts are cut."""

    role: str
    """Of a message; `tool` for a call."""
    text: str
    tool: str | None = None
    status: str | None = None
    """Of a call: None while it has no outcome."""
    at: int | None = None


class ProvisionalTurn(Struct, frozen=True, kw_only=True):
    """A turn that is still being written, as its source was last read."""

    source: str
    session_id: str
    parent_id: str | None
    """The turn it will follow, where that is a fact already."""
    origin: str
    native_id: str
    seen_at: int
    started_at: int | None
    model: str | None
    items_so_far: int
    items: tuple[ProvisionalItem, ...]
    """The latest of them, the oldest first; the prompt always stands first."""


class Tail(Struct):
    """The open turns of one transcript, filled while it is walked."""

    stamp: int
    turns: list[Opened] = field(default_factory=list)

    def add(self, turn: NativeTurn, parent: int | None) -> None:
        shown = turn.items if len(turn.items) <= ITEMS else (turn.items[0], *turn.items[1 - ITEMS :])
        models = [item.model for item in turn.items if isinstance(item, NativeMessage) and item.model]
        self.turns.append(
            Opened(
                key=turn.key,
                parent=parent,
                started=turn.started,
                model=models[-1] if models else None,
                count=len(turn.items),
                items=tuple(map(_item, shown)),
            )
        )


class Opened(Struct, frozen=True, kw_only=True):
    """A turn left out of a transcript; `parent` is a place among those that were taken."""

    key: str
    parent: int | None
    started: int | None
    model: str | None
    count: int
    items: tuple[ProvisionalItem, ...]


def _item(item: Item) -> ProvisionalItem:
    if isinstance(item, NativeCall):
        done = item.status is not None or item.result is not UNSET or item.error is not None
        status = item.status.value if item.status else ("error" if item.error else "ok")
        text = _cut(_arguments(item.arguments))
        return ProvisionalItem(role="tool", text=text, tool=item.name, status=status if done else None, at=item.at)
    texts = [text for part in item.parts if (text := _text(part))]
    return ProvisionalItem(role=item.role.value, text=_cut("\n\n".join(texts)), at=item.at)


def _text(part: Part) -> str:
    return str(part.text) if isinstance(part, TextPart | ReasoningPart) else ""


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, long integers, or nested too deeply: left for the turn itself to show
        return ""


def _cut(text: str) -> str:
    return showable(text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…")


def write_tail(
    sql: Sql, source: str, session: str, origin: str, now: int, tail: Tail, parents: Callable[[int | None], str | None]
) -> None:
    """What is open of a session in a source, in place of what was."""
    sql.run("DELETE FROM provisional WHERE source = ? AND session = ?", (source, session))
    rows = [
        (source, session, number, tail.stamp, now, orjson.dumps(_body(turn, origin, parents(turn.parent))))
        for number, turn in enumerate(tail.turns)
    ]
    sql.run_many("INSERT INTO provisional(source, session, idx, stamp, seen_at, body) VALUES (?, ?, ?, ?, ?, ?)", rows)


def _body(turn: Opened, origin: str, parent: str | None) -> dict[str, object]:
    return {
        "parent_id": parent,
        "origin": origin,
        "native_id": _cut(turn.key),
        "started_at": turn.started,
        "model": None if turn.model is None else _cut(turn.model),
        "items_so_far": turn.count,
        "items": [
            {name: getattr(item, name) for name in ProvisionalItem.__struct_fields__} for item in turn.items
        ],
    }  # fmt: skip


def drop_tails(sql: Sql, source: str, but: int | None = None) -> None:
    """All of a source; or all but those of the reading at hand, by the source's time then."""
    if but is None:
        sql.run("DELETE FROM provisional WHERE source = ?", (source,))
    else:
        sql.run("DELETE FROM provisional WHERE source = ? AND stamp <> ?", (source, but))


def sources_with_tails(sql: Sql) -> list[str]:
    return [name for (name,) in sql.all("SELECT DISTINCT source FROM provisional ORDER BY source")]


def provisional_turns(txn: ReadTxn, session_id: str | None) -> list[ProvisionalTurn]:
    if session_id is None:
        rows = txn.sql.all(f"{_COLUMNS} {_ORDER}")
    else:
        rows = txn.sql.all(f"{_COLUMNS} WHERE session = ? {_ORDER}", (session_id,))
    return [_turn(*row) for row in rows]


def _turn(source: str, session: str, seen_at: int, body: bytes) -> ProvisionalTurn:
    told = {"source": source, "session_id": session, "seen_at": seen_at}
    return convert({**orjson.loads(bytes(body)), **told}, ProvisionalTurn)


def forget(_: Store, txn: WriteTxn, forgotten: Forgotten) -> None:
    """An erasure: what is open may spell what is erased. The next look at a source writes what may be shown."""
    txn.sql.run("DELETE FROM provisional")
