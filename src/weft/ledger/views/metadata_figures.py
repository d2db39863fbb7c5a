"""Figures that lie in the metadata of imported messages: one-hour cache writes, and what the origin says they cost.

An importer keeps what its origin notes beside a message, as it is. Sightings that were written before usage had a field
for one-hour cache writes have them there alone, and costs are there always. Both merge as tokens do: the largest one of
all sightings counts. Once the metadata is erased, they are gone with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import ContentMissing, FactDamaged
from weft.kernel.fields import SeenMessage
from weft.kernel.ledger_events import Sighting
from weft.ledger.dialects.usage import one_hour_part, one_hour_writes
from weft.ledger.views.projector import Contents
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import load_session, load_turn
from weft.store.erased_contents import ErasedContents
from weft.store.facts import FactReader
from weft.store.port import Store, WriteTxn
from weft.store.sql import Sql, rows_in

MILLION = 1_000_000
_COSTED = frozenset({"aider", "atif", "opencode", "pi", "swe-agent"})
"""Origins that note what a response cost."""
_ONCE_COSTED = "claude-code"
"""It stopped noting costs before it began to tell how long its caches are kept."""


class Figures(Struct, frozen=True, gc=False):
    """None: not told."""

    cache_write_1h_tokens: int | None = None
    recorded_cost: int | None = None
    """Micro-dollars."""


NO_FIGURES = Figures()


def figures_of(contents: Contents, origin: str, message: SeenMessage) -> Figures:
    """What a sighting tells of a message, in its usage or in its metadata. Metadata is read only where it may tell."""
    usage = message.usage
    written = 0 if usage is UNSET or usage.cache_write_tokens is UNSET else usage.cache_write_tokens
    one_hour = None if usage is UNSET or usage.cache_write_1h_tokens is UNSET else usage.cache_write_1h_tokens
    notes_cost = origin in _COSTED or (origin == _ONCE_COSTED and one_hour is None)
    if message.metadata is UNSET or not (notes_cost or (written and one_hour is None)):
        return NO_FIGURES if one_hour is None else Figures(one_hour)
    metadata = _read_metadata(contents, message.metadata)
    cost = recorded_cost(metadata) if notes_cost else None
    if one_hour is None and written and isinstance(kept_usage := metadata.get("usage"), dict):
        noted = one_hour_writes(kept_usage)
        one_hour = one_hour_part(noted, written) if noted is not None and 0 <= noted <= MAX_INTEGER else None
    return Figures(one_hour, cost)


def recorded_cost(metadata: dict[str, Any]) -> int | None:
    """Micro-dollars from costs in dollars: a number, or pi's `{…, "total": number}`, and what its tools spent.
    A tool that knows no price notes zero, so zero tells nothing."""
    cost, of_tools = metadata.get("cost", metadata.get("costUSD")), metadata.get("tool_costs")
    own = cost.get("total") if isinstance(cost, dict) else cost
    amounts = [own, *(of_tools if isinstance(of_tools, list) else ())]
    dollars = [float(amount) for amount in amounts if type(amount) in (int, float) and 0 < amount <= MAX_INTEGER]
    micro = round(sum(dollars) * MILLION)
    return micro if 0 < micro <= MAX_INTEGER else None


def _read_metadata(contents: Contents, ref: str) -> dict[str, Any]:
    """Empty where it was erased, never came, or is damaged, which verifying the facts reports."""
    try:
        text = contents.content_text(contents.number(ref))
        value = orjson.loads(text) if text else None
    except (ContentMissing, FactDamaged, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


# --- reading them again -------------------------------------------------------------------------------------------


class _ReadContents:
    """Contents of a ledger by their references."""

    def __init__(self, facts: FactReader) -> None:
        self._facts = facts

    def number(self, ref: str) -> int:
        return self._facts.find_content(bytes.fromhex(ref)) or 0

    def content_text(self, n: int) -> str | None:
        return self._facts.text(n)

    def readable_text(self, n: int) -> str | None:
        return self._facts.readable_text(n)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Figures that were read out of metadata that is erased now."""
    query = (
        "SELECT DISTINCT t.id FROM message m JOIN turn t ON t.n = m.turn"
        " WHERE coalesce(m.cache_write_1h_tokens, m.recorded_cost) IS NOT NULL AND m.metadata IN"
    )
    turns = {turn for (turn,) in rows_in(txn.sql, query, forgotten.contents)}
    if turns:
        _write_figures(txn.sql, txn.facts, turns)


def _write_figures(sql: Sql, facts: FactReader, turns: Collection[str]) -> None:
    """The columns of these turns, as a projector would have left them."""
    merged: dict[str, dict[int, Figures]] = {turn: {} for turn in turns}
    for event in _turn_sightings(facts, turns):
        if _counts(sql, event):
            messages = merged[str(event.turn)]
            for message in event.messages or ():
                figures = figures_of(_ReadContents(facts), event.origin, message)
                messages[message.k] = _largest(messages.get(message.k, NO_FIGURES), figures)
    for turn, messages in merged.items():
        _write_turn(sql, turn, messages)


def _turn_sightings(facts: FactReader, turns: Collection[str]) -> Iterator[Sighting]:
    for n, line in facts.lines():
        if b'"messages":' in line and b'"stream":"import:' in line:
            event = decoded(n, line)
            if isinstance(event, Sighting) and event.turn is not UNSET and event.turn in turns:
                yield event


def _counts(sql: Sql, event: Sighting) -> bool:
    """Is it of a turn and a session that this origin brought? What only copies a turn tells nothing of it."""
    turn, session = load_turn(sql, str(event.turn)), load_session(sql, event.session)
    if turn is None or session is None or session.origin is None or session.replica is not None:
        return False
    return turn.source is not None and turn.origin == event.origin


def _largest(one: Figures, other: Figures) -> Figures:
    def larger(first: int | None, second: int | None) -> int | None:
        return second if first is None else first if second is None else max(first, second)

    return Figures(
        larger(one.cache_write_1h_tokens, other.cache_write_1h_tokens), larger(one.recorded_cost, other.recorded_cost)
    )


def _write_turn(sql: Sql, turn: str, messages: dict[int, Figures]) -> None:
    row = load_turn(sql, turn)
    if row is None:
        return
    sql.run("UPDATE message SET cache_write_1h_tokens = NULL, recorded_cost = NULL WHERE turn = ?", (row.n,))
    for k, figures in messages.items():
        if figures != NO_FIGURES:
            sql.run(
                "UPDATE message SET cache_write_1h_tokens = ?, recorded_cost = ? WHERE turn = ? AND seq = ?",
                (figures.cache_write_1h_tokens, figures.recorded_cost, row.n, k),
            )
    counts = [count for figures in messages.values() if (count := figures.cache_write_1h_tokens) is not None]
    total = min(sum(counts), MAX_INTEGER) if counts else None
    sql.run("UPDATE turn SET cache_write_1h_tokens = ? WHERE n = ?", (total, row.n))
