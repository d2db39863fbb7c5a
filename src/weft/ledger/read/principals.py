"""On whose behalf turns were run, by name: read out of the first event of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from weft.kernel.events import Event
from weft.ledger.read.sessions import agent_names
from weft.ledger.views.recorded_events import decoded
from weft.store.port import ReadTxn
from weft.store.records import LogRow
from weft.store.sql import Sql, blob, rows_in

_FIRST_EVENTS = (
    "SELECT t.id, t.n, l.n, l.count, l.at, l.chain, l.events FROM turn t JOIN log l"
    " ON l.n = (SELECT min(k.n) FROM log k WHERE k.n >= t.n) WHERE t.id IN"
)
_FIELD = b'"on_behalf_of"'


def on_behalf_of(event: object) -> tuple[str, ...]:
    """The ids that an event names, the nearest first; none where the actor acted for itself."""
    return event.on_behalf_of if isinstance(event, Event) and event.on_behalf_of is not UNSET else ()


def load_on_behalf_of(txn: ReadTxn, turns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By turn the names of those on whose behalf it was run; turns that were run for nobody else are left out."""
    ids: dict[str, tuple[str, ...]] = {}
    for turn, first, n, count, at, chain, events in rows_in(txn.sql, _FIRST_EVENTS, turns):
        row = LogRow(n, count, at, blob(chain), blob(events))
        line = row.lines()[first - row.first]
        if _FIELD in line and (principals := on_behalf_of(decoded(first, line))):
            ids[turn] = principals
    names = principal_names(txn.sql, (principal for principals in ids.values() for principal in principals))
    return {turn: tuple(names[principal] for principal in principals) for turn, principals in ids.items()}


def principal_names(sql: Sql, ids: Iterable[str]) -> dict[str, str]:
    """The names of agents and people and the labels of sessions; what is not known here goes by its id."""
    names = agent_names(sql, ids)
    unnamed = [id for id, name in names.items() if id == name]
    return names | dict(rows_in(sql, "SELECT id, label FROM session WHERE id IN", unnamed))
