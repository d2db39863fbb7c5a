"""What a turn is known by, where its items say all of it: their native ids and contents, and nothing that was seen."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from msgspec import UNSET, to_builtins

from weft.exchange.importers.transcript import Item, NativeMessage
from weft.exchange.importers.values import canonical


def identity(items: Iterable[Item]) -> tuple[bytes, ...]:
    """One record for each item."""
    return tuple(canonical(_reduced(item)) for item in items)


def _reduced(item: Item) -> list[Any]:
    if isinstance(item, NativeMessage):
        return [item.role, item.native, [to_builtins(part) for part in item.parts]]
    result = [] if item.result is UNSET else [item.result]
    return ["call", item.id, item.name, item.arguments, result, item.error, item.status]


def fingerprint(value: Any) -> str:
    """A short name for what has none, made of what it begins with."""
    return sha256(canonical(value)).hexdigest()[:12]
