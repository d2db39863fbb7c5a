"""The open tail of a source that is still written to: shown while it lasts, never a fact.

A tail is local state. It is written in the transaction that takes the rest of its session, so a turn is either here or
a fact, never both; it goes when its source is read again without it, when the source is gone, and with any erasure,
which must not leave words behind. Long turns are shown by their latest items, each cut: a tail is a look at what goes
on, and is written again with every look.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
from msgspec import UNSET, Struct, convert, field, to_builtins

from weft.kernel.contents import ERASED, showable, text_bytes
from weft.ledger.imports.chain import value_bytes
from weft.ledger.imports.natives import Item, JsonContent, NativeCall, NativeMessage, NativeTurn
from weft.ledger.model import Part, ReasoningPart, TextPart
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import load_session
from weft.store.erased_contents import ErasedContents
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql

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


IsErased = Callable[[bytes], bool]
"""Would these bytes, as a content of the same origin, be one that was erased?"""


class Opened(Struct, frozen=True):
    """A turn left out of a transcript; `parent` is a place among those that were taken."""

    turn: NativeTurn
    parent: int | None


class OpenTail(Struct):
    """The open turns of one transcript, filled while it is walked."""

    stamp: int
    turns: list[Opened] = field(default_factory=list)

    def add(self, turn: NativeTurn, parent: int | None) -> None:
        self.turns.append(Opened(turn, parent))


def _item(item: Item, is_erased: IsErased) -> ProvisionalItem:
    if isinstance(item, NativeCall):
        done = item.status is not None or item.result is not UNSET or item.error is not None
        status = item.status.value if item.status else ("error" if item.error else "ok")
        text = ERASED if is_erased(value_bytes(item.arguments)) else _cut(_arguments(item.arguments))
        name = _words(item.name, is_erased)
        return ProvisionalItem(role="tool", text=text, tool=name, status=status if done else None, at=item.at)
    part_texts = [text for part in item.parts if (text := _text(part))]
    texts = [ERASED if is_erased(text_bytes(text)) else text for text in part_texts]
    return ProvisionalItem(role=item.role.value, text=_cut("\n\n".join(texts)), at=item.at)


def _words(text: str, is_erased: IsErased) -> str:
    return ERASED if is_erased(text_bytes(text)) else _cut(text)


def _text(part: Part) -> str:
    return str(part.text) if isinstance(part, TextPart | ReasoningPart) else ""


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, JsonContent):
        return value.data.decode() if value.is_exact else ""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, long integers, or nested too deeply: left for the turn itself to show
        return ""


def _cut(text: str) -> str:
    return showable(text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…")


def write_tail(
    sql: Sql,
    place: tuple[str, str],
    origin: str,
    now: int,
    tail: OpenTail,
    parents: Callable[[int | None], str | None],
    is_erased: IsErased,
) -> None:
    """What is open at a place (a source, and a session in it), instead of what was. What was erased is not shown."""
    sql.run("DELETE FROM provisional WHERE source = ? AND session = ?", place)
    rows = [
        (*place, number, tail.stamp, now, orjson.dumps(_body(each.turn, origin, parents(each.parent), is_erased)))
        for number, each in enumerate(tail.turns)
    ]
    sql.run_many("INSERT INTO provisional(source, session, idx, stamp, seen_at, body) VALUES (?, ?, ?, ?, ?, ?)", rows)


def _body(turn: NativeTurn, origin: str, parent: str | None, is_erased: IsErased) -> dict[str, object]:
    shown = turn.items if len(turn.items) <= ITEMS else (turn.items[0], *turn.items[1 - ITEMS :])
    models = [item.model for item in turn.items if isinstance(item, NativeMessage) and item.model]
    return {
        "parent_id": parent,
        "origin": origin,
        "native_id": _words(turn.key, is_erased),
        "started_at": turn.started,
        "model": _words(models[-1], is_erased) if models else None,
        "items_so_far": len(turn.items),
        "items": [to_builtins(_item(item, is_erased)) for item in shown],
    }


def drop_tails(sql: Sql, source: str, but: int | None = None) -> None:
    """All of a source; or all but those of the reading at hand, by the source's time then."""
    if but is None:
        sql.run("DELETE FROM provisional WHERE source = ?", (source,))
    else:
        sql.run("DELETE FROM provisional WHERE source = ? AND stamp <> ?", (source, but))


def sources_with_tails(sql: Sql) -> list[str]:
    return [name for (name,) in sql.all("SELECT DISTINCT source FROM provisional ORDER BY source")]


def count_provisional(sql: Sql) -> int:
    """How many turns are still being written, and so are in no list of turns, no search and no sum."""
    (count,) = sql.one("SELECT count(*) FROM provisional") or (0,)
    return int(count)


def provisional_turns(txn: ReadTxn, session_id: str | None) -> list[ProvisionalTurn]:
    if session_id is None:
        rows = txn.sql.all(f"{_COLUMNS} {_ORDER}")
    else:
        rows = txn.sql.all(f"{_COLUMNS} WHERE session = ? {_ORDER}", (session_id,))
    access = access_of(txn)
    if not access.is_unlimited:
        rows = [row for row in rows if access.readable(load_session(txn.sql, row[1])) is not None]
    return [_turn(*row) for row in rows]


def _turn(source: str, session: str, seen_at: int, body: bytes) -> ProvisionalTurn:
    columns = {"source": source, "session_id": session, "seen_at": seen_at}
    return convert({**orjson.loads(bytes(body)), **columns}, ProvisionalTurn)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """An erasure: what is open may spell what is erased. The next look at a source writes what may be shown."""
    txn.sql.run("DELETE FROM provisional")
