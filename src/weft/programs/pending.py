"""What other ledgers decided and nobody here has taken over: configurations, answers of people, erasures.

Each is one event of another replica. The newest foreign version of a configuration waits where it is newer than the one
that counts here; earlier ones are in the history. A foreign answer waits while the request is open here, a foreign
erasure while its content is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotFound, quoted
from weft.kernel.program_events import PROGRAM_KINDS, SESSION
from weft.ledger.api import Tombstone, agent_names
from weft.ledger.views.rows import REQUEST, RequestRow, json_of, load_program, load_request, load_session, text_of
from weft.programs.answers import STATUS_OF, counted_request
from weft.programs.foreign import counted_version
from weft.programs.model import PendingItem
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event, decided_events

APPROVAL, ERASURE = "approval", "erasure"
PENDING_KINDS = (*PROGRAM_KINDS, APPROVAL, ERASURE)
WAITING, TAKEN, REFUSED = "waiting", "taken", "refused"
LEAST_LETTERS = 4
"""So many letters of an id name it."""


def waiting_programs(txn: ReadTxn) -> Iterator[PendingItem]:
    """By arrival."""
    rows = txn.sql.all("SELECT max(n) AS n FROM program_history WHERE config IS NOT NULL GROUP BY program ORDER BY n")
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is not None and not event.counts and not event.is_refused:
            item = program_item(txn, event)
            if item is not None:
                yield item


def waiting_answers(txn: ReadTxn) -> Iterator[PendingItem]:
    rows = txn.sql.all(f"{REQUEST.select} WHERE status IN ('approved', 'rejected') ORDER BY asked_at, id")
    for row in rows:
        _, foreign = counted_request(txn, RequestRow(*row))
        if foreign is not None and not foreign.event.is_refused:
            item = answer_item(txn, foreign.event)
            if item is not None:
                yield item


def erasure_item(txn: ReadTxn, tombstone: Tombstone) -> PendingItem | None:
    event = authored_event(txn, tombstone.number)
    if event is None:
        return None
    return PendingItem(
        id=event.id,
        kind=ERASURE,
        name=tombstone.ref,
        what="erased",
        status=_status(event),
        replica=tombstone.replica,
        actor=tombstone.actor,
        at=tombstone.erased_at,
        number=event.n,
        node=tombstone.ref,
        text=tombstone.reason,
    )


def program_item(txn: ReadTxn, event: AuthoredEvent) -> PendingItem | None:
    """None where it brings no configuration, or where its program is deleted."""
    entry = txn.sql.one("SELECT program, version, config, at, actor FROM program_history WHERE n = ?", (event.n,))
    if entry is None or entry[2] is None:
        return None
    node, version, config, at, actor = entry
    row = load_program(txn.sql, node)
    session = None if row is not None else load_session(txn.sql, node)
    if (row is None or row.deleted) and session is None:
        return None
    counted = counted_version(txn, node)
    return PendingItem(
        id=event.id,
        kind=row.kind if row is not None else SESSION.name,
        name=row.name if row is not None else session.label if session is not None else node,
        what=f"version {version}",
        status=_status(event),
        replica=event.replica,
        actor=agent_names(txn.sql, [actor])[actor],
        at=at,
        number=event.n,
        node=node,
        version=version,
        counted_version=None if counted.is_foreign else counted.version,
        config=json_of(txn, config),
    )


def answer_item(txn: ReadTxn, event: AuthoredEvent) -> PendingItem | None:
    request = load_request(txn.sql, str(event.fields.get("request")))
    entry = txn.sql.one("SELECT kind, at, actor FROM program_history WHERE n = ?", (event.n,))
    if request is None or entry is None or entry[0] not in STATUS_OF:
        return None
    kind, at, actor = entry
    return PendingItem(
        id=event.id,
        kind=APPROVAL,
        name=request.id,
        what=STATUS_OF[kind],
        status=_status(event),
        replica=event.replica,
        actor=agent_names(txn.sql, [actor])[actor],
        at=at,
        number=event.n,
        node=request.human,
        text=text_of(txn, request.text),
    )


def _status(event: AuthoredEvent) -> str:
    return TAKEN if event.is_taken else REFUSED if event.is_refused else WAITING


def decided_items(txn: ReadTxn, tombstones: dict[int, Tombstone]) -> Iterator[PendingItem]:
    """What somebody here took over or refused; `tombstones` are those of all erasures, by arrival number."""
    numbers = [txn.facts.find_event(bytes.fromhex(id)) for id, _ in decided_events(txn.sql)]
    for n in sorted(n for n in numbers if n is not None):
        event = authored_event(txn, n)
        if event is None or event.is_own:
            continue
        item = erasure_item(txn, tombstones[n]) if n in tombstones else None
        item = item or program_item(txn, event) or answer_item(txn, event)
        if item is not None:
            yield item


def came_from(txn: ReadTxn, item: PendingItem, replica: str) -> bool:
    """Whether this replica wrote it, or brought it here."""
    brought = "SELECT 1 FROM came_from WHERE replica = ? AND first <= ? AND last >= ?"
    return item.replica == replica or txn.sql.one(brought, (replica, item.number, item.number)) is not None


def replica_named(txn: ReadTxn, text: str, items: Iterable[PendingItem]) -> str:
    """A replica that something came from, or that wrote one of these, by its id or the end of it."""
    if not isinstance(text, str) or len(text) < LEAST_LETTERS:
        raise InvalidInput(f"replica is {quoted(text)}", f"give its id, or at least {LEAST_LETTERS} letters of its end")
    replicas = {str(id) for (id,) in txn.sql.all("SELECT replica FROM peer UNION SELECT replica FROM came_from")}
    replicas |= {item.replica for item in items if item.replica is not None}
    ids = sorted(id for id in replicas if id.endswith(text.upper()))
    if len(ids) > 1:
        raise AmbiguousName(text, ids)
    if not ids:
        raise NotFound("other replica", text, Action.LIST_PENDING)
    return ids[0]


def chosen(items: list[PendingItem], names: tuple[str, ...]) -> list[PendingItem]:
    """Those that these names mean: an event's id or its beginning, a program's name, a request, a content
    or its beginning."""
    wanted: dict[str, PendingItem] = {}
    for name in names:
        matches = [item for item in items if _is_named(item, name)]
        if not matches:
            raise NotFound("pending decision", name, Action.LIST_PENDING)
        wanted |= {item.id: item for item in matches}
    return list(wanted.values())


def _is_named(item: PendingItem, name: str) -> bool:
    if not isinstance(name, str):
        raise InvalidInput(f"{quoted(name)} names nothing that waits", "give an id or a name")
    if name in (item.name, item.id, item.node):
        return True
    if len(name) < LEAST_LETTERS:
        return False
    if item.kind == APPROVAL and item.name.endswith(name.upper()):
        return True
    return any(id.startswith(name.lower()) for id in (item.id, *([item.name] if item.kind == ERASURE else [])))
