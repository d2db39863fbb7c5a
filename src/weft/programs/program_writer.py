"""What every change of a program needs, inside one append: finding it, whose right it is, its stream, its references.

A verb gets a program writer and adds events. All of them are written or none: a reader finds a program as it was before
or after a verb, never in between. Everything is done in the name of the append's authority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import UNSET

from weft.kernel.authority import CONFIGURE
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import (
    Action,
    ContentGone,
    IllegalTransition,
    InvalidConfig,
    NotAllowed,
    NotApplicable,
    NotFound,
    VersionConflict,
    quoted,
)
from weft.kernel.events import Event, Reference, ledger_stream, program_stream
from weft.kernel.program_events import PROGRAM_KINDS, legal_verbs, next_state
from weft.ledger.api import system_kind_of, users_of_agent
from weft.ledger.arguments import checked_count
from weft.ledger.read.access import access_of
from weft.ledger.read.sessions import find_by_beginning
from weft.ledger.views.rows import (
    ProgramRow,
    SessionRow,
    StoredSessions,
    find_by_name,
    find_program,
    json_of,
    load_program,
)
from weft.ledger.write.sessions import stream_of
from weft.ledger.write.transaction import Answer, Append, EventStream, LedgerWriter, keyed_command, once
from weft.programs.addresses import is_address, parse_address
from weft.programs.config_fields import NamedProgram
from weft.programs.foreign import counted_references, counted_version, only_foreign
from weft.programs.machine_names import MachineField, MachineName, MachineSort
from weft.programs.vouching import refusal, unvouched_names
from weft.store.port import ReadTxn

Found = ProgramRow | SessionRow


class MachineFacts(Protocol):
    """What a kind of program knows of the names of the machine in its configurations."""

    @property
    def machine_fields(self) -> Mapping[str, MachineField]: ...

    def machine_names(self, config: Any) -> frozenset[MachineName]: ...


_VERBS_OF_RIGHTS = {
    "configure": "create create_session configure change publish deprecate delete revert validate activate archive "
    "set_presence step_session apply share_agent unshare_agent step_trigger",
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
            raise NotApplicable(f"{wanted!r} is a {row.kind}, not a {' or '.join(kinds)}", Action.LIST_PROGRAMS)
        self.append.access.ensure_usable(row, wanted, " or ".join(kinds) or "program")
        return row

    def require_session(self, name: str) -> SessionRow:
        wanted = name_in(self.append, name)
        access = self.append.access
        row = find_by_name(self.append.view, wanted, access.may_read)
        row = row or find_by_beginning(self.sql, wanted, access.may_read)
        if row is None:
            raise NotFound("session", wanted, Action.LIST_SESSIONS)
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
        for (config,) in self.sql.all(query, (program,)):
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
        return self._stream(ledger_stream(self.append.replica))

    def _stream(self, name: str) -> EventStream:
        tip = self.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (name,))
        return self.append.stream(name, bytes(tip[0]).hex() if tip else None, self.actor)

    def add(self, row: ProgramRow, kind: type[Event], **fields: Any) -> ProgramRow:
        """An event of this program; the row as it is after it."""
        self.ensure_allowed(row.kind)
        self._stream(program_stream(row.id)).add(kind, **fields)
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
        references = tuple(dict.fromkeys(map(self._reference, named_programs)))
        return {"config": self.append.put_json(config, "config"), "references": references or UNSET}

    def ensure_references(self, named_programs: Iterable[NamedProgram]) -> None:
        """Refuse a configuration that names what is not there, or of another kind than the field wants."""
        for named in named_programs:
            self._reference(named)

    def _reference(self, named: NamedProgram) -> Reference:
        target, version = self._target(named)
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

    def _target(self, named: NamedProgram) -> tuple[tuple[str, str, str | None], int]:
        found = find_any(self.append, named.address.name)
        if found is None or (isinstance(found, ProgramRow) and found.deleted):
            raise InvalidConfig(named.path, f"there is no program {named.address}", Action.LIST_PROGRAMS)
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
        found = self.sql.all(
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
    """The same; else a session by the beginning of its label."""
    found = find_any(place, name)
    if found is not None:
        return found
    access = access_of(place) if isinstance(place, ReadTxn) else place.access
    return find_by_beginning(place.sql, name, access.may_read)


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

    def write(append: Append) -> Answer:
        program = work(ProgramWriter(append, verb))
        append.seal()
        return Answer(program)

    return writer.write(lambda append: once(append, command, lambda: write(append))).node
