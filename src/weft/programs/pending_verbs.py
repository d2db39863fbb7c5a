"""What other ledgers decided and nobody here has taken over: configurations, answers, erasures.

It is listed, taken over, refused, and thought of again. What counts without that is decided in
`store.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotApplicable, NotFound, quoted
from weft.kernel.program_events import PROGRAM_KINDS, SESSION
from weft.ledger.api import Tombstone, agent_names, ensure_person
from weft.ledger.views.rows import REQUEST, RequestRow, json_of, load_program, load_request, load_session, text_of
from weft.ledger.write.transaction import reads_whole
from weft.programs.kind_table import KINDS
from weft.programs.lookups import ProgramsBase
from weft.programs.program_changes import permit_grants
from weft.programs.program_records import STATUS_OF, PendingItem, counted_request
from weft.programs.program_writer import ProgramWriter, counted_version
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event, decided_events, note_refused, note_taken, release

# --- What other ledgers decided and nobody here has taken over: configurations, answers of people, erasures.

APPROVAL, ERASURE = "approval", "erasure"
PENDING_KINDS = (*PROGRAM_KINDS, APPROVAL, ERASURE)
WAITING, TAKEN, REFUSED = "waiting", "taken", "refused"
LEAST_LETTERS = 4
"""So many letters of an id name it."""


def waiting_programs(txn: ReadTxn) -> Iterator[PendingItem]:
    """By arrival."""
    rows = txn.sql.fetch_rows(
        "SELECT max(n) AS n FROM program_history WHERE config IS NOT NULL GROUP BY program ORDER BY n"
    )
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is not None and not event.counts and not event.is_refused:
            item = program_item(txn, event)
            if item is not None:
                yield item


def waiting_answers(txn: ReadTxn) -> Iterator[PendingItem]:
    rows = txn.sql.fetch_rows(f"{REQUEST.select} WHERE status IN ('approved', 'rejected') ORDER BY asked_at, id")
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
        status=_pending_status(event),
        replica=tombstone.replica,
        actor=tombstone.actor,
        at=tombstone.erased_at,
        number=event.n,
        node=tombstone.ref,
        text=tombstone.reason,
    )


def program_item(txn: ReadTxn, event: AuthoredEvent) -> PendingItem | None:
    """None where it brings no configuration, or where its program is deleted."""
    entry = txn.sql.fetch_row("SELECT program, version, config, at, actor FROM program_history WHERE n = ?", (event.n,))
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
        status=_pending_status(event),
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
    entry = txn.sql.fetch_row("SELECT kind, at, actor FROM program_history WHERE n = ?", (event.n,))
    if request is None or entry is None or entry[0] not in STATUS_OF:
        return None
    kind, at, actor = entry
    return PendingItem(
        id=event.id,
        kind=APPROVAL,
        name=request.id,
        what=STATUS_OF[kind],
        status=_pending_status(event),
        replica=event.replica,
        actor=agent_names(txn.sql, [actor])[actor],
        at=at,
        number=event.n,
        node=request.human,
        text=text_of(txn, request.text),
    )


def _pending_status(event: AuthoredEvent) -> str:
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
    return item.replica == replica or txn.sql.fetch_row(brought, (replica, item.number, item.number)) is not None


def replica_named(txn: ReadTxn, text: str, items: Iterable[PendingItem]) -> str:
    """A replica that something came from, or that wrote one of these, by its id or the end of it."""
    if not isinstance(text, str) or len(text) < LEAST_LETTERS:
        raise InvalidInput(f"replica is {quoted(text)}", f"give its id, or at least {LEAST_LETTERS} letters of its end")
    replicas = {str(id) for (id,) in txn.sql.fetch_rows("SELECT replica FROM peer UNION SELECT replica FROM came_from")}
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


# --- The verbs of what other ledgers decided: list it, take it over, refuse it, and think again.

APPLIED = "the erasure of another ledger, taken over here"


class PendingVerbs(ProgramsBase):
    """What other ledgers decided, and what is decided about that here."""

    @reads_whole
    def pending(
        self, *names: str, kind: str | None = None, source: str | None = None, decided: bool = False
    ) -> list[PendingItem]:
        """What waits, by arrival; with `decided` what was taken over or refused instead. `kind` is a kind of program,
        `approval` or `erasure`; `source` a replica that wrote it or brought it here."""
        if kind is not None and kind not in PENDING_KINDS:
            raise InvalidInput(f"kind is {quoted(kind)}", f"one of {', '.join(PENDING_KINDS)}")
        tombstones = self.ledger.erasure.done() if decided else self.ledger.erasure.pending()
        with self._reading() as txn:
            if decided:
                items = list(decided_items(txn, {tombstone.number: tombstone for tombstone in tombstones}))
            else:
                erasures = (erasure_item(txn, tombstone) for tombstone in tombstones)
                items = [*waiting_programs(txn), *waiting_answers(txn), *(item for item in erasures if item)]
            items = [item for item in items if kind in (None, item.kind)]
            if source is not None:
                replica = replica_named(txn, source, items)
                items = [item for item in items if came_from(txn, item, replica)]
        items.sort(key=lambda item: item.number)
        if not names:
            return items
        try:
            return chosen(items, names)
        except NotFound as missing:
            if not decided and missing.name is not None:
                self._refuse_decided(missing.name)
            raise

    def _refuse_decided(self, name: str) -> None:
        """A name that nothing waits under, since somebody here decided already."""
        with suppress(NotFound):
            item = self.pending(name, decided=True)[0]
            verb = {TAKEN: "taken over", REFUSED: "refused"}[item.status]
            raise NotApplicable(f"{item.kind} {item.name!r} {item.what} was {verb} here", Action.RECONSIDER_PENDING)

    def take_over(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Let these count here: by id or name, or all of a kind or a source. Returns what was taken over."""
        self.ledger.trust.ensure("take over what another ledger decided")
        items = self._named_items(names, kind, source)
        self._decide_items("take_over", [item for item in items if item.kind != ERASURE], note_taken, _permit_taking)
        if contents := [item.name for item in items if item.kind == ERASURE]:
            self.ledger.erasure.erase(sorted(set(contents)), reason=APPLIED)
            self._decide_items(
                "take_over", [item for item in items if item.kind == ERASURE], note_taken, _permit_refusing
            )
        return [replace(item, status=TAKEN) for item in items]

    def refuse(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Do not let these count, and do not list them as waiting any more."""
        items = self._named_items(names, kind, source)
        self._decide_items("refuse", items, note_refused, _permit_refusing)
        return [replace(item, status=REFUSED) for item in items]

    def reconsider(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Forget what was decided about these: they wait again. An erasure that was carried out stays so."""
        items = self._named_items(names, kind, source, decided=True)
        done = [item for item in items if item.kind == ERASURE and item.status == TAKEN]
        if done and names:
            raise NotApplicable(f"the erasure of {done[0].name[:16]} was carried out", "it cannot be undone")
        items = [item for item in items if item not in done]
        self._decide_items("reconsider", items, lambda sql, id, _: release(sql, id), _permit_refusing)
        return [replace(item, status=WAITING) for item in items]

    def _named_items(
        self, names: tuple[str, ...], kind: str | None, source: str | None, *, decided: bool = False
    ) -> list[PendingItem]:
        if not names and kind is None and source is None:
            raise InvalidInput("nothing was named", "give ids or names, a kind, or the replica that it came from")
        return self.pending(*names, kind=kind, source=source, decided=decided)

    def _decide_items(
        self,
        verb: str,
        items: list[PendingItem],
        note: Callable[..., None],
        permit: Callable[[ProgramWriter, PendingItem], None],
    ) -> None:
        if not items:
            return

        def work(writer: ProgramWriter) -> str:
            for item in items:
                ensure_person(writer.append, "take_over", f"decide about what another ledger says of {item.name!r}")
                permit(writer, item)
                note(writer.sql, item.id, writer.append.now_ms)
            return items[0].node

        self._perform(verb, work, None)


def _permit_refusing(writer: ProgramWriter, item: PendingItem) -> None:
    writer.ensure_allowed(_kind_of(item))
    _permit_item(writer, item, f"decide about what another ledger says of {item.name!r}")


def _permit_item(writer: ProgramWriter, item: PendingItem, what: str) -> None:
    """A configuration is decided about by those who may write it, what else waits with the permission to configure."""
    row = load_program(writer.sql, item.node)
    if item.kind not in KINDS:
        writer.permit("configure", what)
    elif row is not None:
        writer.permit_configuring(what, row)
    else:
        writer.permit_session(what, writer.append.view.session(item.node))


def _permit_taking(writer: ProgramWriter, item: PendingItem) -> None:
    """Whoever takes a configuration over must be allowed to write it; whoever takes an answer over, to give it."""
    writer.ensure_allowed(_kind_of(item))
    if item.kind == APPROVAL:
        writer.permit("approve", f"take over what was answered to {item.name}", item.node)
        return
    _permit_item(writer, item, f"take over version {item.version} of {item.name!r}")
    if not isinstance(item.config, dict):
        raise NotApplicable(
            f"version {item.version} of {item.kind} {item.name!r} is not here: it was erased, or did not come along",
            "configure it yourself",
        )
    KINDS[item.kind].refuse_name(item.name, item.config)
    row = load_program(writer.sql, item.node)
    kind = KINDS[item.kind]
    counted = row if row is not None else writer.append.view.session(item.node)
    writer.permit_machine(kind.name, item.name, kind.machine_changes(writer.config_of(counted), item.config))
    if row is not None:
        permit_grants(writer, kind, row, writer.config_of(row), item.config)


def _kind_of(item: PendingItem) -> str:
    """The kind of program that is decided about."""
    return {APPROVAL: str(ProgramKind.HUMAN), ERASURE: "node"}.get(item.kind, item.kind)
