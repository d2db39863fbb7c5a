"""What every change of a program needs, inside one append: itself, rights, stream, references.

Which version of a configuration counts here is decided here as well: the newest that this ledger
wrote, or that somebody here took over; and whether whoever set what it names of the machine may use
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import UNSET, Struct

from weft.kernel.authority import CONFIGURE, EVERYTHING_LAYER, LOCAL, Authority, Principal, PrincipalKind
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import (
    Action,
    Advice,
    ContentGone,
    IllegalTransition,
    InvalidConfig,
    NotAllowed,
    NotApplicable,
    NotFound,
    VersionConflict,
    WeftError,
    quoted,
    with_article,
)
from weft.kernel.events import Event, Reference, ledger_stream, program_stream
from weft.kernel.program_events import AGENT, PROGRAM_KINDS, legal_verbs, next_state
from weft.ledger.api import Ledger, agent_names, store_of, system_kind_of, users_of_agent
from weft.ledger.arguments import checked_count
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.read.access import Access, access_of
from weft.ledger.read.sessions import find_by_part, missing_session
from weft.ledger.views.rows import (
    ProgramRow,
    SessionRow,
    StoredSessions,
    find_by_name,
    find_program,
    json_of,
    load_program,
    load_session,
    load_turn,
)
from weft.ledger.write.sessions import stream_of
from weft.ledger.write.transaction import Append, CommandAnswer, EventStream, LedgerWriter, keyed_command, run_once
from weft.programs.config_fields import FOLDER, MachineField, MachineName, MachineSort, NamedProgram, names_in
from weft.programs.program_records import Program, UnvouchedName, is_address, is_same, parse_address
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event, counts

# --- Who set what a configuration names of the machine, and whether they may: asked again whenever it is about to be
# used.

_PLURALS = {
    MachineSort.FOLDER: "folders",
    MachineSort.COMMAND: "commands",
    MachineSort.VARIABLE: "variables",
    MachineSort.HOST: "hosts",
    MachineSort.SANDBOX: "sandboxes",
    MachineSort.CREDENTIAL: "credentials",
    MachineSort.TOOLSET: "toolsets",
}
TASK_FIELDS: Mapping[str, MachineField] = {"workspace": FOLDER}
"""What a session that was made for a task has of it."""


class WrittenVersion(Struct, frozen=True):
    """A version of a configuration that counts here. `by` are the ids of those in whose name it was written, None where
    it was taken over, or is being written by the verb that asks."""

    by: tuple[str, ...] | None
    config: Any
    """A word where it was erased."""


def unvouched_names(
    txn: ReadTxn, program: str, fields: Mapping[str, MachineField], config: Any, version: int | None = None
) -> tuple[UnvouchedName, ...]:
    """What the counted configuration of a program or a session, by its id, names of the machine and was set by somebody
    who may not; or the configuration of an earlier version, by those up to it."""
    names = names_in(fields, config)
    if not names or not _has_other_writers(txn, program):
        return ()
    versions = list(_counted_versions(txn, program, version))
    unvouched = ((name, _setters_without_right(txn, fields, versions, name)) for name in sorted(names))
    return tuple(
        UnvouchedName(path=name.path, sort=name.sort, text=name.text, by=_names_of(txn, by))
        for name, by in unvouched
        if by is not None and not _is_of_task(txn, program, name)
    )


def is_owners_alone(ledger: Ledger, program: str) -> bool:
    """Whether the ledger's owner alone configured a program, by its id."""
    with store_of(ledger).read() as txn:
        return not _has_other_writers(txn, program)


def _has_other_writers(txn: ReadTxn, program: str) -> bool:
    """Whether anybody but the ledger's owner configured it. In a ledger of one person nothing more is read."""
    query = "SELECT 1 FROM program_history WHERE program = ? AND config IS NOT NULL AND actor <> ? LIMIT 1"
    return txn.sql.fetch_row(query, (program, DEFAULT_AGENT)) is not None


def _counted_versions(txn: ReadTxn, program: str, newest: int | None = None) -> Iterator[WrittenVersion]:
    """The newest first, from a version on."""
    query = "SELECT n, config, version FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
    for n, config, version in txn.sql.fetch_rows(query, (program,)):
        if newest is not None and version > newest:
            continue
        event = authored_event(txn, n)
        if event is None or event.is_taken:
            yield WrittenVersion(None, json_of(txn, config))
        elif event.counts:
            by = (event.fields["actor"], *(event.fields.get("on_behalf_of") or ()))
            yield WrittenVersion(by, json_of(txn, config))


def _setters_without_right(
    txn: ReadTxn, fields: Mapping[str, MachineField], versions: list[WrittenVersion], name: MachineName
) -> tuple[str, ...] | None:
    """Those who set a name and may not; None where somebody who may did. Of an erased version nobody can tell what it
    named: it hides no setter before it."""
    setter: tuple[str, ...] | None = ()
    for i, version in enumerate(versions):
        if isinstance(version.config, dict) and name not in names_in(fields, version.config):
            break
        before = versions[i + 1].config if i + 1 < len(versions) else None
        is_confirmation = isinstance(version.config, dict) and is_same(version.config, before)
        if is_confirmation and _may_name(txn, version.by, name):
            return None
        setter = version.by
    return None if setter is None or _may_name(txn, setter, name) else setter


def _may_name(txn: ReadTxn, ids: tuple[str, ...] | None, name: MachineName) -> bool:
    if ids is None:
        return True
    principals = (Principal(_kind_of(id), id) for id in reversed(ids))
    try:
        access = Access(txn.sql, txn.facts, Authority(tuple(principals)), {})
        if name.sort == MachineSort.UNATTENDED_WRITES:
            return access.is_owner(name.right)
        return access.may_name(name.right, name.subjects)
    except WeftError:  # one of them is not there any more
        return False


def _kind_of(id: str) -> PrincipalKind:
    return PrincipalKind.HUMAN if id == DEFAULT_AGENT else PrincipalKind.PROGRAM


def _names_of(txn: ReadTxn, ids: tuple[str, ...]) -> tuple[str, ...]:
    names = agent_names(txn.sql, ids)
    return tuple(names[id] for id in ids)


def _is_of_task(txn: ReadTxn, session: str, name: MachineName) -> bool:
    """Whether a session has its folder of the task that it was made for, where somebody who may set the task's: whoever
    gave the task to an agent chose no folder."""
    if name.path not in TASK_FIELDS:
        return False
    for task in _tasks_of(txn, session):
        versions = list(_counted_versions(txn, task))
        is_named = bool(versions) and name in names_in(TASK_FIELDS, versions[0].config)
        if is_named and _setters_without_right(txn, TASK_FIELDS, versions, name) is None:
            return True
    return False


def _tasks_of(txn: ReadTxn, session: str) -> Iterator[str]:
    """The tasks that an agent got with this session."""
    query = (
        "SELECT h.n FROM session s JOIN program_history h ON h.program = s.persona"
        " WHERE s.id = ? AND h.kind = 'agent_task_assigned' ORDER BY h.n DESC"
    )
    for (n,) in txn.sql.fetch_rows(query, (session,)):
        event = authored_event(txn, n)
        if event is not None and event.counts and event.fields.get("session") == session:
            yield str(event.fields["task"])


def may_pass_on(
    ledger: Ledger, fields: Mapping[str, MachineField], record: Any, *, turn: str, session: str | None
) -> bool:
    """Whether a session that goes on from a recorded turn may use what that turn names of the machine: those who made
    the session and those who recorded the turn have to. What a broker ran was configured by what it looked up."""
    names = names_in(fields, record)
    if not names:
        return True
    with store_of(ledger).read() as txn:
        writers = [] if session is None else [_session_makers(txn, session)]
        if txn.sql.fetch_row("SELECT 1 FROM inbox WHERE turn = ? LIMIT 1", (turn,)) is None:
            writers.append(_turn_recorders(txn, turn))
        return all(_may_name(txn, ids, name) for ids in writers for name in names)


def _session_makers(txn: ReadTxn, session: str) -> tuple[str, ...]:
    """Those in whose name a session was made. What the owner makes for an agent is said to be by the agent alone."""
    row = load_session(txn.sql, session)
    makers = frozenset[str]() if row is None else Access(txn.sql, txn.facts, LOCAL, {}).session_creators(row)
    if row is None or not makers:
        return (IMPORTED_AGENT,)
    return _without_agent(txn, sorted(makers), row.persona)


def _turn_recorders(txn: ReadTxn, turn: str) -> tuple[str, ...]:
    """Those in whose name a turn was recorded, and not the agent that it is said to be by."""
    row = load_turn(txn.sql, turn)
    event = None if row is None else authored_event(txn, row.n)
    if row is None or event is None or not event.counts:
        return (IMPORTED_AGENT,)
    ids = (event.fields["actor"], *(event.fields.get("on_behalf_of") or ()))
    return _without_agent(txn, ids, row.persona)


def _without_agent(txn: ReadTxn, ids: Iterable[str], persona: str) -> tuple[str, ...]:
    """The ledger's owner where nobody but an agent is named: it is the persona of what the owner records."""
    program = load_program(txn.sql, persona)
    is_agent = program is not None and program.kind == AGENT.name
    return tuple(id for id in ids if id != persona or not is_agent) or (DEFAULT_AGENT,)


def ensure_vouched(program: Program) -> Program:
    """Refuse to use a configuration that names of the machine what whoever set it may not name."""
    for name in program.unvouched:
        raise refusal(program.kind, program.name, name)
    return program


def refusal(kind: str, program: str, name: UnvouchedName) -> NotApplicable:
    who = " for ".join(name.by)
    plural = _PLURALS.get(MachineSort(name.sort))
    lack = "is not the ledger's owner" if plural is None else f"may not name {plural}"
    advice = Action.SET_AS_OWNER.of(program=program, field=name.path)
    return NotApplicable(f"{name.path} of {kind} {program!r} was set by {who}, who {lack}", advice)


# --- Which version of a configuration counts here: the newest that this ledger wrote, or that somebody here took over.

SESSION_MODEL_KINDS = ("session_configured", "session_model_switched")


class CountedVersion(Struct, frozen=True):
    """The version of a program's configuration that counts here; where none does, the newest that others wrote."""

    n: int
    config: int | None
    version: int
    is_foreign: bool = False
    """No version counts: this one is what another ledger says."""
    pending: int | None = None
    """The newest version, where another ledger wrote it and nobody here has taken it over."""


OTHER_TOOLS = "name a code program; other tools come with a toolset, or with permissions.tools.allow"
NO_VERSION = CountedVersion(0, None, 0)


def counted_version(txn: ReadTxn, program: str) -> CountedVersion:
    rows = txn.sql.fetch_rows(
        "SELECT n, config, version FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC",
        (program,),
    )
    for n, config, version in rows:
        if counts(txn, n):
            return CountedVersion(n, config, version, pending=None if version == rows[0][2] else rows[0][2])
    if not rows:
        return NO_VERSION
    n, config, version = rows[0]
    return CountedVersion(n, config, version, is_foreign=True, pending=version)


def is_counted(txn: ReadTxn, program: str, version: int) -> bool:
    """Whether this very version of a configuration was written or taken over here."""
    entry = txn.sql.fetch_row(
        "SELECT max(n) FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (program, version),
    )
    return entry is None or entry[0] is None or counts(txn, entry[0])


def newest_counts(txn: ReadTxn, program: str, kind: str) -> bool:
    """Whether the newest event of this kind in a program's history was written or taken over here."""
    entry = txn.sql.fetch_row("SELECT max(n) FROM program_history WHERE program = ? AND kind = ?", (program, kind))
    return entry is not None and entry[0] is not None and counts(txn, entry[0])


def counted_session_model(txn: ReadTxn, session: SessionRow) -> str | None:
    """The id of the model that a session was given here, or by what was taken over here."""
    if session.model is None and session.config is None:
        return None
    kinds = ", ".join("?" * len(SESSION_MODEL_KINDS))
    rows = txn.sql.fetch_rows(
        f"SELECT n FROM program_history WHERE program = ? AND kind IN ({kinds}) ORDER BY n DESC",
        (session.id, *SESSION_MODEL_KINDS),
    )
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is None:  # it is being written right now, and the row has its model
            return session.model
        if event.counts:
            return event.fields["model"] if "model" in event.fields else _referred_program(event, "default_model")
    return None


def _referred_program(event: AuthoredEvent, field: str) -> str | None:
    targets = referred_by(event, field)
    return targets[0] if targets else None


def referred_by(event: AuthoredEvent, field: str) -> list[str]:
    """The ids of the programs that the configuration of an event names in this field."""
    references = event.fields.get("references") or ()
    return [reference["program"] for reference in references if reference.get("field") == field]


def counted_references(txn: ReadTxn, program: ProgramRow, field: str) -> list[str]:
    """The ids of the programs that its counted configuration names in this field."""
    counted = counted_version(txn, program.id)
    if counted.is_foreign:
        return []
    event = None if counted.version == program.version else authored_event(txn, counted.n)
    if event is not None:
        return sorted(referred_by(event, field))
    query = "SELECT target FROM program_reference WHERE program = ? AND field = ? ORDER BY target"
    return [target for (target,) in txn.sql.fetch_rows(query, (program.id, field))]


def taking_over(program: Program | ProgramRow) -> Advice:
    return Action.TAKE_OVER_PROGRAM.of(program=program.name)


def ensure_own(program: Program) -> Program:
    """Somebody here configured it, or took it over, and may name of the machine what they named. A program without any
    configuration is only a name."""
    if program.foreign:
        raise only_foreign(program)
    return ensure_vouched(program)


def only_foreign(program: Program | ProgramRow) -> NotApplicable:
    return NotApplicable(
        f"{program.kind} {program.name!r} was configured in another ledger, and nobody here has taken that over",
        taking_over(program),
    )


# --- What every change of a program needs, inside one append: finding it, whose right it is, its stream, its
# references.

Found = ProgramRow | SessionRow


class MachineFacts(Protocol):
    """What a kind of program knows of the names of the machine in its configurations."""

    @property
    def machine_fields(self) -> Mapping[str, MachineField]: ...

    def machine_names(self, config: Any) -> frozenset[MachineName]: ...


class MayActLater(Protocol):
    """A kind of program, and whether one of it does something later by itself."""

    @property
    def name(self) -> str: ...

    @property
    def acts_by_itself(self) -> bool: ...


_VERBS_OF_RIGHTS = {
    "configure": "create ensure create_session configure change publish deprecate delete revert validate activate "
    "archive set_presence step_session apply share_agent unshare_agent step_trigger",
    "assign": "assign assign_task step_agent hold_agent renew_agent release_agent fail_agent save_checkpoint give_up "
    "stop_work start_task complete_task fail_task",
    "approve": "approve reject",
    "notify": "notify",
    "tag": "add_tags remove_tags",
    "embed": "embed forget",
    "take_over": "take_over refuse reconsider",
}
VERB_RIGHTS = {verb: right for right, verbs in _VERBS_OF_RIGHTS.items() for verb in verbs.split()}
"""Which right each verb needs: `program:KIND:RIGHT`, where KIND is the kind of program that it changes, or `node`."""


class ProgramWriter:
    """One append that changes programs, by one verb. `actor` is the id of the principal that acts."""

    def __init__(self, append: Append, verb: str) -> None:
        self.append, self.sql = append, append.sql
        self._right = VERB_RIGHTS[verb]
        self._principals = [principal.id for principal in reversed(append.authority.chain)]
        self.actor_name, self.actor = self._principals[0], append.acting_ids[0]

    # --- finding ------------------------------------------------------------------------------------------------

    def require(self, name: str, *kinds: str) -> ProgramRow:
        """A living program of one of these kinds, by name, address or ulid."""
        wanted = name_in(self.append, name)
        row = find_program(self.sql, wanted)
        if row is None or row.deleted or not self.append.access.may_read_program(row):
            raise NotFound(" or ".join(kinds) or "program", wanted, Action.LIST_PROGRAMS)
        if kinds and row.kind not in kinds:
            raise NotApplicable(
                f"{wanted!r} is {with_article(row.kind)}, not {' or '.join(map(with_article, kinds))}",
                Action.LIST_PROGRAMS,
            )
        self.append.access.ensure_usable(row, wanted, " or ".join(kinds) or "program")
        return row

    def require_session(self, name: str) -> SessionRow:
        wanted = name_in(self.append, name)
        access = self.append.access
        row = find_by_name(self.append.view, wanted, access.may_read)
        row = row or find_by_part(self.sql, wanted, access.may_read)
        if row is None:
            raise missing_session(self.sql, wanted, access.may_read)
        return self.append.view.session(row.id)

    @property
    def reading(self) -> ReadTxn:
        return ReadTxn(self.sql, self.append.txn.facts)

    def config_of(self, row: ProgramRow | SessionRow) -> dict[str, Any]:
        """The configuration of it that counts here: none where only another ledger configured it. One that was erased
        cannot be changed in part."""
        counted = counted_version(self.reading, row.id)
        config = None if counted.is_foreign else json_of(self.reading, counted.config)
        if config is None:
            return {}
        if not isinstance(config, dict):
            raise ContentGone(f"of {row.name if isinstance(row, ProgramRow) else row.label!r}'s configuration")
        return config

    def earlier_configs(self, program: str) -> Iterator[Any]:
        """Every version of a configuration that is recorded here, whoever wrote it, the newest first."""
        query = "SELECT config FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
        for (config,) in self.sql.fetch_rows(query, (program,)):
            yield json_of(self.reading, config)

    def version_of(self, row: ProgramRow | SessionRow) -> int:
        """The version that counts here; of a program that only another ledger configured, the newest of those."""
        counted = counted_version(self.reading, row.id)
        return 0 if counted.is_foreign and isinstance(row, SessionRow) else counted.version

    def ensure_own(self, row: ProgramRow) -> ProgramRow:
        """Somebody here configured it, or took it over."""
        if counted_version(self.reading, row.id).is_foreign:
            raise only_foreign(row)
        return row

    def ensure_vouched(self, row: ProgramRow, kind: MachineFacts) -> ProgramRow:
        """What its configuration names of the machine was set by those who may."""
        for name in unvouched_names(self.reading, row.id, kind.machine_fields, self.config_of(row)):
            raise refusal(row.kind, row.name, name)
        return row

    def references_of(self, program: str, field: str) -> list[str]:
        """The ids of the programs that its counted configuration names in this field."""
        row = load_program(self.sql, program)
        return [] if row is None else counted_references(self.reading, row, field)

    # --- rights -------------------------------------------------------------------------------------------------

    def ensure_allowed(self, kind: str) -> None:
        """The authority's right to change programs of a kind by this verb, asked where such a change is written."""
        self.append.authority.ensure_allowed(f"program:{kind}:{self._right}")

    def ensure_unlimited(self, kind: MayActLater) -> None:
        """A trigger fires later with all that whoever set it up may do, and not with what a token left them of it."""
        limited = [layer for layer in self.append.authority.rights.layers if layer != EVERYTHING_LAYER]
        if kind.acts_by_itself and limited:
            hint = "whoever has all of their rights can; a token is made without --allow, --deny and --scope"
            raise self.append.authority.refusal(f"program:{kind.name}:configure", f"set up a {kind.name}", hint)

    def permit(self, right: str, what: str, *own: str | None) -> None:
        """The ledger's owner may do everything; others what concerns themselves (`own`), and what their configuration
        permits. Everybody in the chain must be permitted."""
        if not self.append.access.permits(right, own):
            raise self.not_allowed(right, what)

    def not_allowed(self, right: str, what: str, name: str | None = None) -> NotAllowed:
        """`name` is that of what is another's: the right has to name it."""
        permission = right if name is None else f"{right}({name})"
        hint = f"it needs the permission {permission!r} in its configuration"
        return NotAllowed(right, self._principals, what, hint)

    def permit_agent(self, right: str, what: str, agent: ProgramRow) -> None:
        """An agent works for itself, for whoever created it and for those it was shared with, whatever else their
        configuration permits."""
        self.permit(right, what, *users_of_agent(self.reading, agent))

    def permit_configuring(self, what: str, row: ProgramRow) -> None:
        """Everybody configures the agents that they created; what else they created with the permission `configure`,
        and what others created with one that names it."""
        if not self.append.access.may_configure(row):
            raise self.not_allowed(CONFIGURE, what, row.name)

    def permit_creating(self, what: str, name: str) -> None:
        if not self.append.access.may_create(name):
            raise self.not_allowed(CONFIGURE, what)

    def permit_session(self, what: str, row: SessionRow) -> None:
        """A session is changed by its owner, and by others as programs are."""
        if not self.append.access.may_configure_session(row):
            raise self.not_allowed(CONFIGURE, what, row.label)

    def permit_owner(self, what: str, owner: str) -> None:
        """A session is one's own, or made another's with the right to configure them."""
        access, program = self.append.access, find_program(self.sql, owner)
        if program is not None and not access.may_read_program(program):
            program = None  # it is refused as what is not there, where the session is made
        if not access.may_give_session(owner if program is None else program.name, program):
            raise self.not_allowed(CONFIGURE, what, owner)

    def refuse_system_agent(self, row: ProgramRow, hint: str) -> None:
        """Nobody deletes, hides or shares an agent that the ledger made itself."""
        if system_kind_of(self.reading, row) is not None:
            raise NotApplicable(f"{row.name!r} is a system agent", hint)

    def permit_machine(self, kind: str, name: str, names: Iterable[MachineName]) -> None:
        """Folders, commands, variables, hosts, sandboxes, credentials and toolsets are named by the ledger's owner, and
        by a person with a right that names them."""
        for named in names:
            if not self._may_name(named):
                what = f"set {named.path} of the {kind} {name!r} to {quoted(named.text)}"
                is_owners = named.sort == MachineSort.UNATTENDED_WRITES
                others = "" if is_owners else f", or a person with the permission {named.permission!r}"
                raise NotAllowed(named.right, self._principals, what, f"the ledger's owner sets it{others}")

    def _may_name(self, named: MachineName) -> bool:
        access = self.append.access
        if named.sort == MachineSort.UNATTENDED_WRITES:
            return access.is_owner(named.right)
        return access.may_name(named.right, named.subjects)

    def permit_machine_change(self, kind: str, name: str, changed: Iterable[MachineName], is_kept: bool) -> None:
        """The same of a change. An agent takes no name of the machine away, either: `is_kept` says whether all are the
        same."""
        self.permit_person(True, is_kept, f"say which keys, folders, commands or destinations the {kind} {name!r} uses")
        self.permit_machine(kind, name, changed)

    def permit_person(self, before: Any, after: Any, what: str) -> None:
        """Refuse an agent a change that only a person makes; `what` says which."""
        access = self.append.access
        if not access.is_unlimited and access.is_agent() and before != after:
            raise NotAllowed("configure", [self.actor_name], what, "a person must do it")

    def names_to_vouch_for(
        self, kind: MachineFacts, row: ProgramRow | SessionRow, own: Any, checked: dict[str, Any], given: Any
    ) -> list[MachineName]:
        """What whoever acts names again, and was set by somebody who may not: nothing where they may not, either. A
        version that vouches for one name does so for all in it, so all of them are named, or none counts."""
        unvouched = {(name.path, name.text) for name in unvouched_names(self.reading, row.id, kind.machine_fields, own)}
        needed = [name for name in sorted(kind.machine_names(checked)) if (name.path, name.text) in unvouched]
        missing = [name for name in needed if name not in kind.machine_names(given)]
        if len(missing) == len(needed) or not all(map(self._may_name, needed)):
            return []
        if missing:
            places = ", ".join(dict.fromkeys(name.path for name in missing))
            name = row.name if isinstance(row, ProgramRow) else row.label
            hint = f"give {places} as well, or take out what is not wanted"
            raise NotApplicable(f"others who may not have set more of {name!r} than is given: {places}", hint)
        return needed

    # --- writing ------------------------------------------------------------------------------------------------

    def new_stream(self, kind: str, program: str) -> EventStream:
        """The stream of a program that is created now."""
        self.ensure_allowed(kind)
        return self.append.stream(program_stream(program), None, self.actor)

    def session_stream(self, row: SessionRow) -> EventStream:
        self.ensure_allowed(ProgramKind.SESSION)
        return stream_of(self.append, row, self.actor)

    def ledger_stream(self) -> EventStream:
        """The ledger's own stream, for what is said of nodes."""
        self.ensure_allowed("node")
        return self._event_stream(ledger_stream(self.append.replica))

    def _event_stream(self, name: str) -> EventStream:
        tip = self.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        return self.append.stream(name, bytes(tip[0]).hex() if tip else None, self.actor)

    def add(self, row: ProgramRow, kind: type[Event], **fields: Any) -> ProgramRow:
        """An event of this program; the row as it is after it."""
        self.ensure_allowed(row.kind)
        self._event_stream(program_stream(row.id)).add(kind, **fields)
        return self.reload(row.id)

    def reload(self, program: str) -> ProgramRow:
        row = load_program(self.sql, program)
        if row is None:
            raise NotFound("program", program, Action.LIST_PROGRAMS)
        return row

    def reason(self, text: str | None) -> Any:
        return UNSET if text is None else self.append.put_text(text, "reason")

    def step(self, row: ProgramRow, verb: str, kind: type[Event], **fields: Any) -> ProgramRow:
        """A step of its lifecycle, if there is such a step from where it stands."""
        self.ensure_legal(row, verb)
        return self.add(row, kind, **fields)

    def take_step(self, row: ProgramRow, verb: str, reason: str | None = None) -> ProgramRow:
        """The same, recorded by the event that its kind has for it."""
        self.ensure_legal(row, verb)
        return self.add(row, PROGRAM_KINDS[row.kind].steps[verb], reason=self.reason(reason))

    def ensure_legal(self, row: ProgramRow, verb: str) -> None:
        if next_state(row.kind, row.state, verb, row.was) is None:
            raise IllegalTransition(row.kind, row.name, row.state, verb, legal_verbs(row.kind, row.state, row.was))

    # --- configurations -----------------------------------------------------------------------------------------

    def referred(self, config: dict[str, Any], named_programs: Iterable[NamedProgram]) -> dict[str, Any]:
        """The fields of an event that brings this configuration: the content, and the programs that it names."""
        references = tuple(dict.fromkeys(map(self._program_reference, named_programs)))
        return {"config": self.append.put_json(config, "config"), "references": references or UNSET}

    def ensure_references(self, named_programs: Iterable[NamedProgram]) -> None:
        """Refuse a configuration that names what is not there, or of another kind than the field wants."""
        for named in named_programs:
            self._program_reference(named)

    def _program_reference(self, named: NamedProgram) -> Reference:
        target, version = self._reference_target(named)
        if named.kinds and target[1] not in named.kinds:
            wanted = " or ".join(named.kinds)
            raise InvalidConfig(named.path, f"{named.address} is a {target[1]}, not a {wanted}", f"name a {wanted}")
        if named.address.version is not None and named.address.version > version:
            raise InvalidConfig(named.path, f"{named.address} has only {version} versions", Action.LIST_VERSIONS)
        if named.field is ReferenceField.SCHEMA and target[2] != "schema":
            raise InvalidConfig(named.path, f"{named.address} is no schema", "name information of the type schema")
        return Reference(
            field=named.field,
            program=target[0],
            version=UNSET if named.address.version is None else named.address.version,
        )

    def _reference_target(self, named: NamedProgram) -> tuple[tuple[str, str, str | None], int]:
        found = find_any(self.append, named.address.name)
        if found is None or (isinstance(found, ProgramRow) and found.deleted):
            is_tool = named.field is ReferenceField.TOOL
            hint = OTHER_TOOLS if is_tool else Action.LIST_PROGRAMS
            raise InvalidConfig(named.path, f"there is no program {named.address}", hint)
        if isinstance(found, SessionRow):
            return (found.id, ProgramKind.SESSION, None), found.config_version
        if not self.append.access.may_use(found):
            raise InvalidConfig(named.path, f"there is no program {named.address}", Action.LIST_PROGRAMS)
        return (found.id, found.kind, found.info_type), found.version

    def ensure_version(self, name: str, expected: int | None, actual: int) -> None:
        if expected is not None and checked_count(expected, "expected version") != actual:
            raise VersionConflict(name, expected, actual)

    def users_of(self, row: ProgramRow) -> list[str]:
        """Living programs that name this one and still need it. What only another ledger configured needs nothing."""
        found = self.sql.fetch_rows(
            "SELECT p.id, p.name FROM program_reference r JOIN program p ON p.id = r.program WHERE r.target = ?"
            " AND r.field <> 'source' AND p.deleted = 0 AND p.state NOT IN ('completed', 'failed') ORDER BY p.name",
            (row.id,),
        )
        return [name for id, name in found if not counted_version(self.reading, id).is_foreign]


def find_any(place: ReadTxn | Append, name: str) -> Found | None:
    """A program by name or ulid, else a session by label, alias or ulid; what cannot be read is passed over."""
    access = access_of(place) if isinstance(place, ReadTxn) else place.access
    program = find_program(place.sql, name)
    if program is not None and access.may_read_program(program):
        return program
    return find_by_name(StoredSessions(place.sql), name, access.may_read)


def find_program_or_session(place: ReadTxn | Append, name: str) -> Found | None:
    """The same; else a session by the beginning of its label or the end of its id."""
    found = find_any(place, name)
    if found is not None:
        return found
    access = access_of(place) if isinstance(place, ReadTxn) else place.access
    return find_by_part(place.sql, name, access.may_read)


def name_in(place: ReadTxn | Append, text: str) -> str:
    """The name that a text stands for: as it is where something is called so, else as an address."""
    if isinstance(text, str) and not is_address(text) and find_program_or_session(place, text) is not None:
        return text
    return parse_address(text, "program").name


def perform(
    writer: LedgerWriter, verb: str, work: Callable[[ProgramWriter], str], key: str | None, request: Iterable[Any]
) -> str:
    """Run a verb in one append; its work answers with a program's id. With a retry key it is done once: sent again it
    answers what it answered."""
    actors = [principal.id for principal in reversed(writer.authority.chain)]
    command = keyed_command(verb, key, [actors[0] if len(actors) == 1 else actors, verb, *request])

    def write(append: Append) -> CommandAnswer:
        program = work(ProgramWriter(append, verb))
        append.seal()
        return CommandAnswer(program)

    return writer.write(lambda append: run_once(append, command, lambda: write(append))).node
