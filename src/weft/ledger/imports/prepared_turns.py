"""A turn prepared for the ledger by whoever reads it: everything that depends on the turn and the import secret alone.

JSON values become the bytes that the ledger keeps, records their digest, and texts the words by which search finds
them. So a worker of its own can do that while the ledger is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.contents import ROW_BYTES, content_ref, text_bytes
from weft.kernel.imported import ImportSecret
from weft.ledger.imports.chain import json_content, value_bytes
from weft.ledger.imports.natives import (
    Item,
    NativeCall,
    NativeMessage,
    NativeSession,
    NativeTurn,
    PreparedTurn,
)
from weft.ledger.model import ReasoningPart, TextPart
from weft.ledger.search.prepared_words import TextWords, words_in

PLAIN = (str, int, float, bool, type(None), type(UNSET))
"""Values that go as they are."""


def prepare_turn(turn: NativeTurn, secret: ImportSecret) -> NativeTurn:
    items = tuple(map(_prepared_item, turn.items))
    compaction = turn.compaction
    if compaction is not None:
        compaction = replace(compaction, metadata=_prepared(compaction.metadata))
    turn = replace(
        turn,
        items=items,
        compaction=compaction,
        permissions=_prepared(turn.permissions),
        config=_prepared(turn.config),
        metadata=_prepared(turn.metadata),
        prepared=PreparedTurn(
            secret.source(turn.records), sum(map(len, turn.records)), tuple(_words(turn, items, secret))
        ),
    )
    turn.records = ()
    return turn


def prepare_session(session: NativeSession) -> NativeSession:
    return replace(session, metadata=_prepared(session.metadata))


def _prepared(value: Any) -> Any:
    return value if type(value) in PLAIN else json_content(value)


def _prepared_item(item: Item) -> Item:
    if isinstance(item, NativeCall):
        arguments, result, detail = _prepared(item.arguments), _prepared(item.result), _prepared(item.detail)
        return replace(item, arguments=arguments, result=result, detail=detail)
    if item.context is None and item.metadata is None:
        return item
    return replace(item, context=_prepared_context(item.context), metadata=_prepared(item.metadata))


def _prepared_context(context: Any) -> Any:
    """Its things one by one, as sightings keep them."""
    if not isinstance(context, dict):
        return _prepared(context)
    return {
        name: [_prepared(thing) for thing in given] if isinstance(given, list) else _prepared(given)
        for name, given in context.items()
    }


def _words(turn: NativeTurn, items: tuple[Item, ...], secret: ImportSecret) -> Iterator[tuple[str, bool, TextWords]]:
    """Of the texts that search reads. Those of more than one row are left to it: it reads their beginning."""
    for data, is_json in _contents(turn, items):
        if 0 < len(data) <= ROW_BYTES:
            ref = content_ref(secret.salt(sha256(data).digest()), data)
            yield ref.hex(), is_json, words_in(data, is_json)


def _contents(turn: NativeTurn, items: tuple[Item, ...]) -> Iterator[tuple[bytes, bool]]:
    for item in items:
        if isinstance(item, NativeMessage):
            said = (part.text for part in item.parts if isinstance(part, TextPart | ReasoningPart))
            yield from ((text_bytes(text), False) for text in said if isinstance(text, str))
            continue
        yield value_bytes(item.arguments), True
        if item.result is not UNSET:
            yield value_bytes(item.result), True
        if item.error is not None:
            yield text_bytes(item.error), False
    if turn.compaction is not None:
        yield text_bytes(turn.compaction.summary), False
