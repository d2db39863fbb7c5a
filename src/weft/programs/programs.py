"""The programs of a ledger: every verb on what acts or is acted with. Thread-safe.

Verbs that all kinds have (create, configure, publish, delete, revert, history), and those of
information, people and tags, of agents, tasks and sessions at work, and of triggers. What other
ledgers decided and nobody here has taken over is listed, taken over, refused, and thought of again;
what counts without that is decided in `store.replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.kernel.authority import Authority
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, AgentBusy, AmbiguousName, InvalidInput, NotApplicable, NotFound, quoted
from weft.kernel.program_events import PROGRAM_KINDS, SESSION
from weft.ledger.api import (
    Firing,
    Lease,
    LeaseKind,
    MissedTimes,
    Tombstone,
    agent_names,
    ensure_person,
    listed_firings,
    listed_gaps,
    owner_of,
    patience_of,
    users_of_agent,
)
from weft.ledger.arguments import checked_count, checked_flag, checked_list, checked_names, checked_record, checked_text
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import (
    REQUEST,
    ProgramRow,
    RequestRow,
    SessionRow,
    find_program,
    json_of,
    load_program,
    load_request,
    load_session,
    text_of,
)
from weft.ledger.write.transaction import reads_whole
from weft.ledger.write.turn_events import end_lease, free_epoch, release, take
from weft.programs import kind_table, program_changes, tasks, triggers
from weft.programs.kind_table import KINDS, checked_kind, kind_of_row
from weft.programs.lookups import (
    InformationQuery,
    ProgramsBase,
    add_tags,
    checks_of,
    find,
    find_information,
    find_node,
    history,
    list_programs,
    may_read_request,
    nodes_with,
    remove_tags,
    renewed,
    requests,
    saved_state,
    tags_of,
    to_program,
    to_request,
)
from weft.programs.program_changes import PlannedProgram, WantedProgram, apply_programs, permit_grants
from weft.programs.program_kinds import deprecate_program, publish_program
from weft.programs.program_records import (
    STATUS_OF,
    CriterionVerdict,
    Difference,
    PendingItem,
    PersonRequest,
    Program,
    ProgramChange,
    RecordedVerdict,
    TaggedNode,
    checked_name,
    counted_request,
    differences,
    merged,
)
from weft.programs.program_writer import (
    ProgramWriter,
    counted_version,
    ensure_own,
    ensure_vouched,
    find_program_or_session,
    name_in,
)
from weft.programs.tasks import (
    CriterionObservations,
    RunCommand,
    WorkspaceObservations,
    judge_criterion,
    load_assignment,
    withdraw_messages,
)
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event, decided_events, note_refused, note_taken
from weft.store.replicas import release as release_decision

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
        self._decide_items("reconsider", items, lambda sql, id, _: release_decision(sql, id), _permit_refusing)
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


# --- The verbs that all kinds of program have: create, configure, publish, delete, revert, and read the history.


class ProgramVerbs(ProgramsBase):
    """What all kinds of program have in common."""

    def create(
        self,
        kind: str,
        name: str,
        config: dict[str, Any],
        *,
        draft: bool = False,
        tagged: Sequence[str] = (),
        key: str | None = None,
    ) -> Program:
        """A new program, in use unless it is to stay a draft. Sent again with the same key it is made once."""
        kind_row = checked_kind(kind)
        checked_flag(draft, "draft")

        def work(writer: ProgramWriter) -> Any:
            row = program_changes.create_program(writer, kind_row, name, config, draft=draft)
            if tagged:
                add_tags(writer, row.id, tagged)
            return row

        return self._change("create", work, key, kind, name, config, draft, list(tagged))

    def ensure(self, kind: str, name: str, config: dict[str, Any], *, key: str | None = None) -> Program:
        """A program as it is said here: made where none has the name, configured where it is otherwise. Nothing is
        recorded where it is so already."""
        kind_row = checked_kind(kind)

        def work(writer: ProgramWriter) -> Any:
            row = find_program(writer.sql, checked_name(name))
            if row is None or row.deleted or row.kind != kind_row.name or row.version == 0:
                return program_changes.create_program(writer, kind_row, name, config)
            return program_changes.configure_program(writer, writer.require(row.id), config, given=config)

        return self._change("ensure", work, key, kind, name, config)

    def create_session(
        self,
        label: str | None = None,
        *,
        model: str | None = None,
        owner: str | None = None,
        config: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Program:
        """A session of the ledger, with a model of its own; without a label it gets one."""
        if owner is not None:
            checked_text(owner, "owner")
        settings = {} if config is None else _checked_settings(config, "config")
        whole = {**settings, **({} if model is None else {"defaultModel": model})}

        def work(writer: ProgramWriter) -> Any:
            return kind_table.create_configured_session(writer, label, owner, whole)

        persona = owner or self.ledger.authority.principal.id
        return self._change("create_session", work, key, label, persona, whole)

    def all(self, kind: str | None = None, *, states: Sequence[str] = (), deleted: bool = False) -> list[Program]:
        """Living programs by kind and name, sessions last; with `deleted` also those that are hidden."""
        wanted = None if kind is None else checked_kind(kind)
        with self._reading() as txn:
            return list_programs(txn, wanted, checked_names(states, "state"), deleted=deleted)

    def configure(
        self,
        name: str,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole; with `expected` only if it is still at this version, else VersionConflict."""
        return self._reconfigure("configure", name, config, expected, reason, key)

    def change(
        self,
        name: str,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away, objects are changed field by field.
        A provider that moves to another server leaves its keys behind, unless they are given anew."""
        return self._reconfigure("change", name, _checked_settings(changes, "changes"), expected, reason, key)

    def _reconfigure(
        self, verb: str, name: str, given: Any, expected: int | None, reason: str | None, key: str | None
    ) -> Program:
        """A configuration, or with `change` the changes of one."""

        def config_for(writer: ProgramWriter, row: ProgramRow | SessionRow) -> Any:
            if verb == "configure":
                return given
            if isinstance(row, ProgramRow):
                writer.ensure_own(row)
            before = writer.config_of(row)
            return kind_of_row(row).changed(before, merged(before, given), given)

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session_of_name(writer, name)
            if session_row is not None:
                config = config_for(writer, session_row)
                return kind_table.configure_session(writer, session_row, config, expected, given=given)
            row = writer.require(name)
            config = config_for(writer, row)
            return program_changes.configure_program(writer, row, config, expected=expected, reason=reason, given=given)

        return self._change(verb, work, key, name, given, expected, reason)

    def _session_of_name(self, writer: ProgramWriter, name: str) -> SessionRow | None:
        """A session, where no program has this name."""
        row = find_program_or_session(writer.append, name_in(writer.append, name))
        return writer.require_session(row.id) if isinstance(row, SessionRow) else None

    def publish(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("publish", lambda c: publish_program(c, c.require(name), reason), key, name, reason)

    def deprecate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("deprecate", lambda c: deprecate_program(c, c.require(name), reason), key, name, reason)

    def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays. A session is deleted as one."""

        def work(writer: ProgramWriter) -> Any:
            session_row = self._session_of_name(writer, name)
            if session_row is not None:
                return kind_table.delete_session(writer, session_row, expected=expected, reason=reason)
            return program_changes.delete_program(writer, writer.require(name), expected=expected, reason=reason)

        return self._change("delete", work, key, name, expected, reason)

    def revert(
        self,
        name: str,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again; the versions between stay in its history."""
        wanted = checked_count(version, "version")

        def work(writer: ProgramWriter) -> Any:
            if self._session_of_name(writer, name) is not None:
                raise InvalidInput("a session's configuration is not reverted", "configure it anew")
            return program_changes.revert_program(
                writer, writer.require(name), wanted, expected=expected, reason=reason
            )

        return self._change("revert", work, key, name, version, expected, reason)

    def history(self, name: str) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        with self._reading() as txn:
            return history(txn, find(txn, name))

    def diff(self, name: str, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        with self._reading() as txn:
            row = find(txn, name)
            new = to_program(txn, row).version if after is None else checked_count(after, "version")
            old = new - 1 if before is None else checked_count(before, "version")
            configs = [{} if number == 0 else to_program(txn, row, number).config for number in (old, new)]
        return list(differences(*configs))


def _checked_settings(settings: Any, what: str) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"{what} is {quoted(settings)}", "give a dict of settings")
    return dict(settings)


# --- The verbs of information, of people, and of tags.

INFORMATION, HUMAN = ProgramKind.INFORMATION, ProgramKind.HUMAN
STATUSES = ("told", "pending", "approved", "rejected")


class InformationVerbs(ProgramsBase):
    """What is known, who is told of it, and what things are tagged with."""

    def validate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """A draft that fits its schema; else SchemaMismatch, and it stays a draft."""
        return self._change(
            "validate",
            lambda c: kind_table.validate_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def activate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "activate",
            lambda c: kind_table.activate_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def archive(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change(
            "archive",
            lambda c: kind_table.archive_information(c, c.require(name, INFORMATION), reason),
            key,
            name,
            reason,
        )

    def query(
        self,
        text: str | None = None,
        *,
        info_type: str | None = None,
        tagged: Sequence[str] = (),
        path: str | None = None,
        equals: Any | UnsetType = UNSET,
        archived: bool = False,
    ) -> list[Program]:
        """Information by its words, type, tags and what stands at a path of its content; all of them must hold."""
        query = InformationQuery(
            text=text, info_type=info_type, tags=tagged, path=path, equals=equals, archived=archived
        )
        with self._reading() as txn:
            return find_information(txn, query)

    def set_presence(self, human: str, presence: str, *, key: str | None = None) -> Program:
        return self._change(
            "set_presence", lambda c: kind_table.presence(c, c.require(human, HUMAN), presence), key, human, presence
        )

    def notify(
        self,
        human: str,
        text: str,
        *,
        asks: bool = False,
        program: str | None = None,
        data: Any = None,
        key: str | None = None,
    ) -> PersonRequest:
        """What a person is to be told, or with `asks` to decide. It is kept; reaching them is somebody else's work."""

        def work(writer: ProgramWriter) -> str:
            return kind_table.notify_human(
                writer, writer.require(human, HUMAN), text, asks=asks, program=program, data=data
            )

        return self.request(self._perform("notify", work, key, human, text, asks, program, data))

    def approve(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        """Yes, by the person who was asked and who has the permission to approve."""
        self.ledger.trust.ensure("take an approval")
        return self.request(
            self._perform(
                "approve", lambda c: kind_table.answer_request(c, request, True, reason), key, request, reason
            )
        )

    def reject(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        self.ledger.trust.ensure("take an answer")
        return self.request(
            self._perform(
                "reject", lambda c: kind_table.answer_request(c, request, False, reason), key, request, reason
            )
        )

    def request(self, request: str) -> PersonRequest:
        with self._reading() as txn:
            row = load_request(txn.sql, checked_text(request, "request"))
            if row is None or not may_read_request(txn, row):
                raise NotFound("request", request, Action.LIST_REQUESTS)
            return to_request(txn, row)

    def requests(self, human: str | None = None, *, status: str | None = None) -> list[PersonRequest]:
        """What people were told and asked, the oldest first."""
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"status is {quoted(status)}", f"one of {', '.join(STATUSES)}")
        with self._reading() as txn:
            row = None if human is None else find(txn, human, (HUMAN,))
            return requests(txn, row if isinstance(row, ProgramRow) else None, status)

    def add_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        """Tags on anything that has an id; all that it has then."""
        return self.tags(self._perform("add_tags", lambda c: add_tags(c, node, given), key, node, list(given)))

    def remove_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        return self.tags(self._perform("remove_tags", lambda c: remove_tags(c, node, given), key, node, list(given)))

    def tags(self, node: str) -> list[str]:
        with self._reading() as txn:
            return tags_of(txn.sql, find_node(txn, node))

    def tagged(self, *given: str) -> list[TaggedNode]:
        """Everything that has all of these tags."""
        with self._reading() as txn:
            return nodes_with(txn, given)


# --- The verbs of agents, tasks and sessions at work.

RUN = "run"
"""The purpose of an agent's lease that is not for a task."""
AGENT, TASK = ProgramKind.AGENT, ProgramKind.TASK


class WorkVerbs(ProgramsBase):
    """What is done with agents, tasks and sessions while they work."""

    def assign(self, agent: str, task: str, *, session: str | None = None, key: str | None = None) -> Program:
        """An idle agent gets a task, and a session for it: its own of this label, made if there is none, else a new
        one. Where a broker runs, it begins with the work. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.assign_agent(writer, writer.require(agent, AGENT), writer.require(task, TASK), session)

        request = (agent, task) if session is None else (agent, task, session)
        return self._change("assign", work, key, *request)

    def give_up(self, agent: str, message: str, *, code: str) -> Program:
        """The agent's task fails, and the agent stands in an error that says why. Returns the agent."""
        return self._change(
            "give_up", lambda c: kind_table.give_up_agent(c, c.require(agent, AGENT), message, code), None
        )

    def stop_work(self, agent: str, *, reason: str, key: str | None = None) -> Program:
        """The agent's task fails where it is not over, and the agent is idle, whoever runs it. Messages of the work
        that wait are taken back, and its turn is cut short. Returns the agent."""
        assignment = load_assignment(self.ledger, self.get(agent, AGENT).id)

        def work(writer: ProgramWriter) -> Any:
            row = kind_table.stop_agent(writer, writer.require(agent, AGENT), reason)
            if self._hold is None:
                end_lease(writer.append, LeaseKind.AGENT, row.id)
            return row

        stopped = self._change("stop_work", work, key, agent, reason)
        if assignment is None:
            return stopped
        withdraw_messages(self.ledger, assignment, reason)
        return self.get(stopped.id)

    def assign_task(self, task: str, assignee: str | None, *, key: str | None = None) -> Program:
        """A task becomes an agent's or a person's, without anybody beginning it. Returns the task."""

        def work(writer: ProgramWriter) -> Any:
            whom = None if assignee is None else writer.require(assignee, *tasks.ASSIGNEES)
            return tasks.assign_task(writer, writer.require(task, TASK), whom)

        return self._change("assign_task", work, key, task, assignee)

    def share_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for one more person or agent, by its creator's word. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.share_agent(
                writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES)
            )

        return self._change("share_agent", work, key, agent, principal)

    def unshare_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for that person or agent no longer. Returns the agent."""

        def work(writer: ProgramWriter) -> Any:
            return kind_table.unshare_agent(
                writer, writer.require(agent, AGENT), writer.require(principal, *tasks.ASSIGNEES)
            )

        return self._change("unshare_agent", work, key, agent, principal)

    def step_agent(self, agent: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """think, execute, wait, pause, resume, complete or reset, as its state allows. Who resets an agent that another
        one runs takes it from them."""

        def work(writer: ProgramWriter) -> Any:
            row = kind_table.step_agent(writer, writer.require(agent, AGENT), verb, reason)
            if verb == "reset" and self._hold is None:
                end_lease(writer.append, LeaseKind.AGENT, row.id)
            return row

        return self._change("step_agent", work, key, agent, verb, reason)

    def hold_agent(self, agent: str, *, task: str | None = None) -> Lease:
        """Take the agent's lease, for a task or in general: what is done with `acting_as(…, hold)` is done while it
        lasts, or not at all. Each such step renews it; AgentBusy where somebody else holds it."""
        program, patience, leases = self.get(agent, AGENT), patience_of(self.ledger), list[Lease]()
        purpose = RUN if task is None else self.get(task, TASK).id

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            writer.permit_agent("assign", f"run the agent {program.name!r}", writer.require(program.id, AGENT))
            epoch = free_epoch(
                writer.append,
                LeaseKind.AGENT,
                program.id,
                patience,
                lambda lease: AgentBusy(program.name, f"is at work (held by {lease.owner})"),
            )
            lease = take(writer.append, LeaseKind.AGENT, program.id, epoch, owner_of(self.ledger), purpose)
            self._writer.hold(lease)
            leases.append(lease)
            return program.id

        self._perform("hold_agent", work, None)
        return leases[-1]

    def renew_agent(self, hold: Lease) -> None:
        """Say that its holder is alive, while something takes its time."""

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            return renewed(writer, checked_record(hold, Lease, "hold"))

        self._perform("renew_agent", work, None)

    def release_agent(self, hold: Lease) -> None:
        """Let it go, where it is still held."""

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed(AGENT)
            program = renewed(writer, checked_record(hold, Lease, "hold"))
            release(writer.append, hold)
            return program

        self._perform("release_agent", work, None)
        self._writer.let_go(hold)

    def fail_agent(
        self, agent: str, message: str, *, code: str = "failed", details: Any = None, key: str | None = None
    ) -> Program:
        return self._change(
            "fail_agent",
            lambda c: kind_table.fail_agent(c, c.require(agent, AGENT), message, code, details),
            key, agent, message, code, details,
        )  # fmt: skip

    def save_checkpoint(self, agent: str, state: Any, *, key: str | None = None) -> Program:
        """What an agent needs to go on from here."""
        return self._change(
            "save_checkpoint",
            lambda c: kind_table.checkpoint_agent(c, c.require(agent, AGENT), state),
            key,
            agent,
            state,
        )

    def load_checkpoint(self, agent: str) -> Any:
        """What was saved last; None where nothing was. It tells of a session: it is for the agent itself, and for
        whoever may give it tasks."""
        with self._reading() as txn:
            row = find(txn, agent, (AGENT,))
            own = users_of_agent(txn, row) if isinstance(row, ProgramRow) else (row.id,)
            if not access_of(txn).permits("assign", own):
                raise self.ledger.authority.refusal("assign", f"read what {agent!r} saved")
            return saved_state(txn, row) if isinstance(row, ProgramRow) else None

    def start_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """Work begins; while something it waits for is not done, it is blocked."""
        return self._change(
            "start_task", lambda c: tasks.start_task(c, c.require(task, TASK), reason), key, task, reason
        )

    def check_task(self, task: str, seen: CriterionObservations) -> list[CriterionVerdict]:
        """Its success criteria held against what is there. Nothing is recorded."""
        config = ensure_vouched(self.get(task, TASK)).config
        return judge_criterion(tasks.criteria_of(config if isinstance(config, dict) else {}), seen)

    def complete_task(
        self,
        task: str,
        *,
        answer: str | None = None,
        workspace: str | Path | None = None,
        run: RunCommand | None = None,
        seen: CriterionObservations | None = None,
        agent: str | None = None,
        turn: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Done, if every success criterion holds; else CriteriaUnmet. What was observed is recorded either way. `agent`
        has worked on it, and is idle with the end of the task. `turn`, by its id, gave the answer."""
        program = self.get(task, TASK)
        ensure_own(program)
        judged = None if turn is None else self.ledger.turn(turn).id
        is_over = program.state == "completed"  # a retry, or a step that is refused: there is nothing to check
        if not is_over:  # before a command of its criteria runs for somebody who may not complete it
            self._change("complete_task", lambda writer: tasks.to_complete(writer, program.id), None)
        verdicts = (
            [] if is_over else self.check_task(program.id, seen or _task_workspace(program, answer, workspace, run))
        )
        met = all(verdict.passed for verdict in verdicts)

        def work(writer: ProgramWriter) -> Any:
            row = tasks.to_complete(writer, program.id)
            writer.ensure_version(row.name, program.version, writer.version_of(row))
            row = tasks.record_verdicts(writer, row, verdicts, judged)
            if met:
                row = tasks.complete_task(writer, row, answer)
            if met and agent is not None:
                kind_table.step_agent(writer, writer.require(agent, AGENT), "complete", None)
            return row

        checked = self._change("complete_task", work, key if met else None, task, answer)
        if not met:
            raise tasks.task_refusal(checked.name, verdicts)
        return checked

    def fail_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._change("fail_task", lambda c: tasks.fail_task(c, c.require(task, TASK), reason), key, task, reason)

    def checks(self, task: str) -> list[RecordedVerdict]:
        """Every verdict on its criteria that was recorded, the oldest first."""
        with self._reading() as txn:
            row = find(txn, task, (TASK,))
            return checks_of(txn, row) if isinstance(row, ProgramRow) else []

    def step_session(self, session: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause, resume or complete, as its lifecycle allows."""
        if verb not in kind_table.SESSION_VERBS:
            raise NotApplicable(f"a session cannot {quoted(verb)}", f"it can {', '.join(kind_table.SESSION_VERBS)}")
        return self._change(
            "step_session",
            lambda c: kind_table.step_session(c, c.require_session(session), verb, reason),
            key, session, verb, reason,
        )  # fmt: skip


def _task_workspace(
    task: Program, answer: str | None, folder: str | Path | None, run: RunCommand | None
) -> WorkspaceObservations:
    own = task.config.get("workspace") if isinstance(task.config, dict) else None
    place = folder if folder is not None else own
    return WorkspaceObservations(None if place is None else Path(place), answer, run)


# --- The verbs of triggers: paused and resumed, and what they did.


class TriggerVerbs(ProgramsBase):
    """What is done with triggers, and what they did."""

    def step_trigger(self, trigger: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause or resume. What sets a paused trigger off is passed over."""
        return self._change(
            "step_trigger",
            lambda writer: triggers.step_trigger(writer, writer.require(trigger, ProgramKind.TRIGGER), verb, reason),
            key,
            trigger,
            verb,
            reason,
        )

    def trigger_firings(self, trigger: str, *, limit: int = 20) -> list[Firing]:
        """For what a trigger fired here, the newest first, with what became of its messages."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_firings(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)

    def missed_times(self, trigger: str, *, limit: int = 20) -> list[MissedTimes]:
        """Times of its schedule at which a trigger did not fire here, the newest first."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_gaps(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)


# --- The programs of a ledger: every verb on what acts or is acted with.


class Programs(ProgramVerbs, WorkVerbs, InformationVerbs, TriggerVerbs, PendingVerbs):
    """Programs of one open ledger, changed in the name that the ledger acts in."""

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> Programs:
        """The same programs, changed in the name of somebody else: an authority, or the name of an agent or a person;
        with a hold of an agent, only while it lasts."""
        return Programs(self.ledger.acting_as(who), hold)

    def apply(
        self, wanted: Sequence[WantedProgram], *, prune: bool = False, dry_run: bool = False, key: str | None = None
    ) -> list[PlannedProgram]:
        """Many programs as files describe them (`weft.programs.program_changes`), in one append; what was done, or
        would be."""
        programs = [checked_record(program, WantedProgram, "wanted") for program in checked_list(wanted, "wanted")]
        return apply_programs(self._writer, programs, prune=prune, dry_run=dry_run, key=key)
