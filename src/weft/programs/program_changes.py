"""Creates, configures, reverts and deletes programs of any kind, singly or as files describe them.

Files are YAML, one document or several, or JSON; PyYAML is loaded when a YAML file is read.
Applying files creates, changes, leaves alone or, with prune, deletes programs in one append.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.errors import (
    Action,
    IllegalTransition,
    InvalidConfig,
    InvalidInput,
    InvalidJson,
    LabelTaken,
    NotAllowed,
    NotApplicable,
    NotFound,
    WeftError,
    quoted,
    with_article,
)
from weft.kernel.program_events import ProgramDeleted, legal_verbs
from weft.ledger.api import cancel_deliveries_to
from weft.ledger.read.access import granted
from weft.ledger.views.rows import PROGRAM, ProgramRow, SessionRow, find_program, find_session, json_of
from weft.ledger.write.transaction import LedgerWriter
from weft.programs import kind_table
from weft.programs.config_fields import MACHINE_PREFIX, ConfigFaults
from weft.programs.kind_table import KINDS, kind_of_row
from weft.programs.lookups import add_tags, checked_tags, remove_tags, tags_of, to_program
from weft.programs.program_kinds import KindRow
from weft.programs.program_records import checked_name, differences, is_same
from weft.programs.program_writer import ProgramWriter, counted_version, find_any, perform

# --- Creates, configures, reverts and deletes programs of any kind, inside one append.


def create_program(
    writer: ProgramWriter, kind: KindRow, name: str, config: Any, *, draft: bool = False, applied: bool = False
) -> ProgramRow:
    """A new program, in use unless it is to stay a draft. An agent that was only named so far is described now."""
    writer.ensure_unlimited(kind)
    if not kind.is_made_by_everybody:
        writer.permit_creating(f"create the {kind.name} {name!r}", name)
    if kind.facts.stream != "program":
        raise InvalidInput(f"a {kind.name} is made by create_{kind.name}", Action.CREATE_SESSION)
    name = checked_name(name)
    checked = kind.checked_config(config)
    kind.refuse_name(name, checked)
    permit_grants(writer, kind, None, {}, checked)
    writer.permit_machine_change(kind.name, name, kind.machine_changes({}, checked), kind.keeps_machine({}, checked))
    row = find_program(writer.sql, name)
    if row is not None and not row.deleted:
        if row.kind == kind.name and row.version == 0 and writer.append.access.may_read_program(row):
            return configure_program(writer, row, checked, applied=applied)
        raise LabelTaken(name, with_article(row.kind) if writer.append.access.may_read_program(row) else "taken")
    program = writer.append.ulids.mint()
    fields = _event_fields(writer, kind, checked, applied)
    stream = writer.new_stream(kind.name, program)
    stream.add(kind.facts.created, name=writer.append.put_text(name, "name"), **fields)
    row = kind.follow_config(writer, writer.reload(program), {}, checked)
    return row if draft else kind.put_in_use(writer, row)


def _event_fields(writer: ProgramWriter, kind: KindRow, config: dict[str, Any], applied: bool) -> dict[str, Any]:
    return {**kind.config_event_fields(writer, config), "applied": True if applied else UNSET}


def configure_program(
    writer: ProgramWriter,
    row: ProgramRow,
    config: Any,
    *,
    expected: int | None = None,
    reason: str | None = None,
    reverts: int | None = None,
    applied: bool = False,
    given: Any = None,
) -> ProgramRow:
    """Another configuration, whole. One that is the same as what counts here changes nothing, unless it vouches for
    what somebody set who may not: `given` is the part of it that whoever acts says themselves."""
    kind = kind_of_row(row)
    writer.ensure_unlimited(kind)
    writer.permit_configuring(f"configure the {kind.name} {row.name!r}", row)
    writer.ensure_version(row.name, expected, writer.version_of(row))
    if row.state in kind.ended_states:
        raise NotApplicable(
            f"{kind.name} {row.name!r} is {row.state}", "make a new one; what it was stays in its history"
        )
    activity = to_program(writer.reading, row).activity
    checked = kind.checked_config(config, writer.earlier_configs(row.id), activity)
    kind.refuse_name(row.name, checked)
    counted = counted_version(writer.reading, row.id)
    own = None if counted.is_foreign else json_of(writer.reading, counted.config)
    row = _vouched_for(writer, kind, row, own, checked, given)
    if counted.version and is_same(own, checked):
        return row
    before = own if isinstance(own, dict) else {}
    permit_grants(writer, kind, row, before, checked)
    refuse_hidden_system_agent(writer, row, before, checked)
    changes = kind.machine_changes(before, checked)
    writer.permit_machine_change(kind.name, row.name, changes, kind.keeps_machine(before, checked))
    fields = _event_fields(writer, kind, checked, applied)
    reverting = UNSET if reverts is None else reverts
    row = writer.add(row, kind.facts.configured, **fields, reverts=reverting, reason=writer.reason(reason))
    return kind.follow_config(writer, row, before, checked)


def _vouched_for(
    writer: ProgramWriter, kind: KindRow, row: ProgramRow, own: Any, checked: dict[str, Any], given: Any
) -> ProgramRow:
    """A version with the same configuration, where whoever acts names what stands in it and was set by somebody who may
    not: from then on it was set by them."""
    if not isinstance(own, dict):
        return row
    names = writer.names_to_vouch_for(kind, row, own, checked, given)
    if not names:
        return row
    writer.permit_machine(kind.name, row.name, names)
    return writer.add(row, kind.facts.configured, **_event_fields(writer, kind, own, bool(row.applied)))


def permit_grants(
    writer: ProgramWriter, kind: KindRow, row: ProgramRow | None, before: dict[str, Any], config: dict[str, Any]
) -> None:
    """Nobody gives a right that they lack, and nobody changes their own."""
    if not kind.facts.acts or before.get("permissions") == config.get("permissions"):
        return
    if row is not None and row.id in writer.append.acting_ids:
        raise NotAllowed("configure", [writer.actor_name], "change its own permissions", "somebody else must do it")
    for right in sorted(set(granted(config)) - set(granted(before))):
        writer.permit(right, f"give the permission {right!r}, which it lacks")
        if right.startswith(MACHINE_PREFIX):
            writer.append.authority.ensure_allowed(right)


def refuse_hidden_system_agent(
    writer: ProgramWriter, row: ProgramRow, before: dict[str, Any], config: dict[str, Any]
) -> None:
    """Whoever may configure a program says who sees it, but for an agent that the ledger made itself."""
    if (before.get("visibility") == "private") != (config.get("visibility") == "private"):
        writer.refuse_system_agent(row, "it is there for everybody")


def revert_program(
    writer: ProgramWriter, row: ProgramRow, version: int, *, expected: int | None, reason: str | None
) -> ProgramRow:
    """The configuration of an earlier version again, as a new one."""
    entry = writer.sql.fetch_row(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL", (row.id, version)
    )
    if entry is None:
        raise NotFound("version", f"{row.name}:{version}", Action.LIST_VERSIONS)
    config = json_of(writer.reading, entry[0])
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of {row.name!r} was erased", "choose another version")
    return configure_program(writer, row, config, expected=expected, reason=reason, reverts=version)


def delete_program(writer: ProgramWriter, row: ProgramRow, *, expected: int | None, reason: str | None) -> ProgramRow:
    """Hidden, its name free again; one that others name and need stays. Messages of conversations that wait for a
    deleted agent leave its inboxes."""
    writer.permit_configuring(f"delete {row.name!r}", row)
    writer.refuse_system_agent(row, "it stays, and takes part in every room")
    writer.ensure_version(row.name, expected, writer.version_of(row))
    users = writer.users_of(row)
    if users:
        raise NotApplicable(
            f"{row.kind} {row.name!r} is named by {', '.join(map(repr, users[:5]))}", "configure or delete these first"
        )
    deleted = writer.add(row, ProgramDeleted, reason=writer.reason(reason))
    cancel_deliveries_to(writer.append, row.id)
    return deleted


# --- Files that describe programs: YAML, one document or several, or JSON.

MAX_FILE_BYTES = 16 * 1024 * 1024
_SCALARS = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}


PARTS = ("id", "name", "programType", "kind", "config", "lifecycle", "state", "tags")
"""What a program in a file consists of."""
SHOWN_FIELDS = ("version", "ulid", "createdAt", "updatedAt", "createdBy", "result", "sharedWith", "type")
"""What a program is shown with and nobody decides: a program that was printed can be applied."""


class WantedProgram(Struct, frozen=True, kw_only=True):
    """One program as a file describes it; `where` says in which file and where in it."""

    kind: str
    name: str
    config: dict[str, Any]
    state: str | None = None
    tags: list[str] | None = None
    where: str = ""
    shown_state: str | None = None
    """A state that no file brings about: of an agent, a task, a person or a session."""
    activity: dict[str, Any] = {}
    """Fields of its configuration that are computed from events."""
    faults: tuple[WeftError, ...] = ()
    """What is wrong with the description, but for the fields of its configuration, which applying looks at. One that
    says neither name nor kind has them empty."""


def read_files(paths: list[Path]) -> list[WantedProgram]:
    """Every program that these files describe, in order. What is wrong with a file stands in `faults`; applying raises
    all of it at once."""
    programs: list[WantedProgram] = []
    for path in paths:
        try:
            programs += read_text(_file_text(path), str(path), is_json=path.suffix == ".json")
        except InvalidInput as error:
            programs.append(_faulty_program(str(path), error))
    return programs


def _faulty_program(where: str, *faults: WeftError, kind: str = "", name: str = "") -> WantedProgram:
    return WantedProgram(kind=kind, name=name, config={}, where=where, faults=faults)


def _file_text(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} is larger than {MAX_FILE_BYTES} bytes", "split it")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not valid UTF-8: {error.reason}", "save it as UTF-8") from error


def read_text(text: str, where: str, *, is_json: bool = False) -> list[WantedProgram]:
    documents = [_parse_json(text, where)] if is_json else _parse_yaml(text, where)
    places = [where] if len(documents) == 1 else [f"{where}#{i + 1}" for i in range(len(documents))]
    return [
        program for document, place in zip(documents, places, strict=True) for program in wanted_in(document, place)
    ]


def _parse_json(text: str, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"{where}: {error}") from error


def _parse_yaml(text: str, where: str) -> list[Any]:
    import yaml

    try:
        return list(yaml.load_all(text, Loader=_yaml_loader(where)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{where} is no YAML: {reason:.200}", "mend it; JSON is YAML, too") from error


def _yaml_loader(where: str) -> Any:
    """A safe loader with the scalars of YAML 1.2, and without names that stand twice."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if key.value != "<<"]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                line = node.start_mark.line + 1
                raise InvalidInput(
                    f"{where}: {twice[0]!r} stands twice in what begins at line {line}", "keep one of them"
                )
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise InvalidInput(f"{where}: line {line} has an alias, which is not read", "write it out")
            return super().compose_node(parent, index)

    for tag, (pattern, first) in _SCALARS.items():
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))
    return Loader


def wanted_in(document: Any, where: str) -> list[WantedProgram]:
    """The programs of one document: an object, a list of them, or `programs:` with one."""
    if document is None:
        return []
    if isinstance(document, dict) and set(document) == {"programs"}:
        document = document["programs"]
    entries = document if isinstance(document, list) else [document]
    return [_wanted_program(entry, f"{where}[{i}]" if len(entries) > 1 else where) for i, entry in enumerate(entries)]


def _wanted_program(entry: Any, where: str) -> WantedProgram:
    if not isinstance(entry, dict):
        return _faulty_program(
            where, InvalidConfig(where, f"{quoted(entry)} is no program", "write id, programType and config")
        )
    names = [entry[name] for name in ("id", "name") if name in entry]
    kinds = [entry[name] for name in ("programType", "kind") if name in entry]
    faults = [_unknown_part(str(part), where) for part in entry if part not in (*PARTS, *SHOWN_FIELDS)]
    if len(names) != 1 or len(kinds) != 1 or not isinstance(names[0], str):
        faults.append(InvalidConfig(where, "needs one id and one programType", "write id, programType and config"))
        return _faulty_program(where, *faults)
    if not isinstance(kinds[0], str) or kinds[0] not in KINDS:
        hint = f"one of {', '.join(KINDS)}"
        faults.append(InvalidConfig(f"{where}.programType", f"{quoted(kinds[0])} is not known", hint))
        return _faulty_program(where, *faults, name=names[0])
    return _described_program(entry, KINDS[kinds[0]], names[0], where, faults)


def _described_program(
    entry: dict[str, Any], kind: KindRow, name: str, where: str, faults: list[WeftError]
) -> WantedProgram:
    """A program of a known kind; what else is wrong with it stands in its `faults`."""
    config, tags = entry.get("config", {}), entry.get("tags")
    states = [entry[state] for state in ("lifecycle", "state") if state in entry]
    activity = {field: config[field] for field in kind.activity_fields if isinstance(config, dict) and field in config}
    rest = {field: value for field, value in config.items() if field not in activity} if activity else config
    checked = rest if isinstance(rest, dict) else {}
    state, wanted_tags = None, None
    try:
        checked = kind.checked_values(rest)
    except InvalidConfig as error:  # of an object, applying says what is wrong with its fields
        faults = faults if isinstance(rest, dict) else [*faults, *located(error, where)]
    try:
        state = _wanted_state(kind, states, where)
        wanted_tags = None if tags is None else checked_tags(tags) if tags else []
    except InvalidInput as error:
        faults = [*faults, error]
    shown_state = str(states[0]) if states and not kind.file_states else None
    return WantedProgram(
        kind=kind.name,
        name=name,
        config=checked,
        state=state,
        tags=wanted_tags,
        where=where,
        shown_state=shown_state,
        activity=activity,
        faults=tuple(faults),
    )


def _unknown_part(part: str, where: str) -> WeftError:
    near = get_close_matches(part, PARTS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"write {', '.join(PARTS)}"
    return InvalidConfig(f"{where}.{part}", "is not known", hint)


def located(error: WeftError, where: str) -> list[WeftError]:
    """A refusal of a configuration, or several, with the place of the program before the path."""
    if isinstance(error, InvalidConfig) and error.faults:
        return [fault for one in error.faults for fault in located(one, where)]
    if isinstance(error, InvalidConfig):
        return [InvalidConfig(f"{where}.{error.path}", error.reason, error.advice)]
    return [error]


def _wanted_state(kind: KindRow, states: list[Any], where: str) -> str | None:
    """The state that its lifecycle is to be brought to. What an agent or a person is doing no file says."""
    if not kind.file_states:
        return None
    state = states[0] if states else kind.state_in_use
    if state not in kind.file_states:
        raise InvalidConfig(
            f"{where}.lifecycle", f"{quoted(state)} is not known", f"one of {', '.join(kind.file_states)}"
        )
    return str(state)


# --- Applies files of programs: creates, changes, leaves alone or, with prune, deletes programs in one append.


class PlannedProgram(Struct, frozen=True, kw_only=True):
    """What is done with one program; of a change, the places that change."""

    action: str
    """create, change, unchanged or delete"""
    kind: str
    name: str
    changes: list[str] = []
    notes: list[str] = []
    """What a file says of it and no file decides, where it is not so."""


class DryRunDone(Exception):
    """Raised at the end of a dry run, so that the append is taken back."""


def apply_programs(
    ledger_writer: LedgerWriter, wanted: Sequence[WantedProgram], *, prune: bool, dry_run: bool, key: str | None
) -> list[PlannedProgram]:
    """Everything in one append, or with `dry_run` nothing; what was or would be done, in order. All that is wrong with
    the files is raised at once, and then nothing is done."""
    faults = ConfigFaults("the files")
    faults.errors += [fault for program in wanted for fault in program.faults]
    refused = {program.name for program in wanted if program.faults}
    try:
        ordered = in_order([program for program in wanted if program.kind])
    except InvalidInput as error:
        faults.errors.append(error)
        faults.raise_any()
        raise
    plan: list[PlannedProgram] = []

    def work(writer: ProgramWriter) -> str:
        plan[:] = [done for program in ordered if (done := _applied(writer, program, faults, refused)) is not None]
        faults.raise_any()
        if prune:
            plan.extend(_prune_programs(writer, {program.name for program in ordered}))
        if dry_run:
            raise DryRunDone
        return writer.actor

    programs = [[program.kind, program.name, program.config, program.state, program.tags] for program in ordered]
    request = [prune, programs]
    try:
        perform(ledger_writer, "apply", work, None if dry_run else key, request)
    except DryRunDone:
        return plan
    faults.raise_any()
    return plan or [PlannedProgram(action="unchanged", kind=program.kind, name=program.name) for program in ordered]


def _applied(
    writer: ProgramWriter, program: WantedProgram, faults: ConfigFaults, refused: set[str]
) -> PlannedProgram | None:
    """What was done with one program. A refusal is noted: the append is taken back when all programs were looked at.
    One that the reading refused, or that names a refused one, is looked at and left."""
    before = len(faults.errors)
    try:
        _examine_program(writer, program, faults, refused)
        if len(faults.errors) == before and not ({program.name} | _names_in(program)) & refused:
            return _apply_program(writer, program)
    except (InvalidInput, NotFound, NotApplicable, LabelTaken, IllegalTransition) as error:
        faults.errors += located(error, program.where)
    refused.add(program.name)
    return None


def _examine_program(writer: ProgramWriter, program: WantedProgram, faults: ConfigFaults, refused: set[str]) -> None:
    """Note the fields that nothing reads, and the programs that are named and not there."""
    kind, row = KINDS[program.kind], find_any(writer.append, program.name)
    examined = ConfigFaults()
    earlier = writer.earlier_configs(row.id) if row is not None else ()
    examined.check(lambda _, config: kind.checked_config(config, earlier), "config", program.config)
    for named in kind.named_programs(program.config):
        if named.address.name not in refused:
            examined.check(lambda _, one: writer.ensure_references([one]), named.path, named)
    faults.errors += [fault for error in examined.errors for fault in located(error, program.where)]


def in_order(wanted: Iterable[WantedProgram]) -> list[WantedProgram]:
    """Those that are named come before those that name them."""
    waiting: dict[str, WantedProgram] = {}
    for program in wanted:
        if program.name in waiting:
            raise InvalidConfig(program.where, f"{program.name!r} is described twice", "describe a program once")
        waiting[program.name] = program
    ordered: list[WantedProgram] = []
    needs = {program.name: _names_in(program) - {program.name} for program in waiting.values()}
    while waiting:
        ready = [program for program in waiting.values() if not needs[program.name] & set(waiting)]
        if not ready:
            raise InvalidInput(f"{', '.join(sorted(waiting))} name each other in a circle", "leave one of them out")
        ordered += ready
        waiting = {name: program for name, program in waiting.items() if program not in ready}
    return ordered


def _names_in(program: WantedProgram) -> set[str]:
    try:
        return {named.address.name for named in KINDS[program.kind].named_programs(program.config)}
    except InvalidInput:  # an address that cannot be read: the program is refused when it is looked at
        return set()


def _apply_program(writer: ProgramWriter, wanted: WantedProgram) -> PlannedProgram:
    kind = KINDS[wanted.kind]
    if kind.facts.stream == "session":
        return _apply_session(writer, wanted)
    row = find_program(writer.sql, wanted.name)
    if row is None or row.deleted:
        created = create_program(writer, kind, wanted.name, wanted.config, draft=True, applied=True)
        created = _bring_to(writer, created, wanted.state)
        _set_tags(writer, created.id, wanted.tags)
        notes = _state_notes(writer, created, wanted)
        return PlannedProgram(action="create", kind=wanted.kind, name=wanted.name, notes=notes)
    if not writer.append.access.may_read_program(row):
        raise LabelTaken(wanted.name, "taken")
    if row.kind != wanted.kind:
        raise LabelTaken(wanted.name, with_article(row.kind))
    row = writer.require(row.id)
    before, state = writer.config_of(row), row.state
    row = _bring_to(
        writer,
        configure_program(writer, row, wanted.config, applied=True, given=wanted.config),
        wanted.state,
    )
    changes = [difference.path for difference in differences(before, wanted.config)]
    changes += ["lifecycle"] if row.state != state and wanted.state is not None else []
    changes += ["tags"] if _set_tags(writer, row.id, wanted.tags) else []
    action = "change" if changes else "unchanged"
    notes = _state_notes(writer, row, wanted)
    return PlannedProgram(action=action, kind=wanted.kind, name=wanted.name, changes=changes, notes=notes)


def _state_notes(writer: ProgramWriter, row: ProgramRow | SessionRow, wanted: WantedProgram) -> list[str]:
    """What the file says of its state and activity and is not so: both are computed from what happens."""
    program = to_program(writer.reading, row)
    notes = [
        f"config.{field} is not set: it is computed from what the {wanted.kind} does"
        for field, value in wanted.activity.items()
        if program.activity.get(field) != value
    ]
    if wanted.shown_state is not None and wanted.shown_state != program.state:
        notes.append(f"it is {program.state}, not {wanted.shown_state}: no file changes the state of a {wanted.kind}")
    return notes


def _bring_to(writer: ProgramWriter, row: ProgramRow, state: str | None) -> ProgramRow:
    """Step by step to the state that the file asks for; back to an earlier one only where one step leads there."""
    if state is None:
        return row
    kind = kind_of_row(row)
    is_back = kind.file_states.index(state) < kind.file_states.index(row.state)
    if is_back and state not in legal_verbs(kind.name, row.state).values():
        raise NotApplicable(f"{row.kind} {row.name!r} is {row.state} and cannot be {state} again", "make a new one")
    return kind.bring_to(writer, row, state)


def _set_tags(writer: ProgramWriter, node: str, wanted: list[str] | None) -> bool:
    """Exactly these tags, where a file has any; did they change?"""
    current = tags_of(writer.sql, node)
    if wanted is None or sorted(wanted) == current:
        return False
    if missing := [tag for tag in wanted if tag not in current]:
        add_tags(writer, node, missing)
    if unwanted := [tag for tag in current if tag not in wanted]:
        remove_tags(writer, node, unwanted)
    return True


def _apply_session(writer: ProgramWriter, wanted: WantedProgram) -> PlannedProgram:
    row = writer.append.view.find_session(wanted.name) or find_session(writer.sql, wanted.name)
    if row is None:
        created = kind_table.create_configured_session(writer, wanted.name, None, wanted.config)
        _set_tags(writer, created.id, wanted.tags)
        notes = _state_notes(writer, created, wanted)
        return PlannedProgram(action="create", kind=wanted.kind, name=wanted.name, notes=notes)
    before = kind_table.shown_config(writer, row)
    row = kind_table.configure_session(writer, row, wanted.config, given=wanted.config)
    changes = [difference.path for difference in differences(before, kind_table.shown_config(writer, row))]
    changes += ["tags"] if _set_tags(writer, row.id, wanted.tags) else []
    action = "change" if changes else "unchanged"
    notes = _state_notes(writer, row, wanted)
    return PlannedProgram(action=action, kind=wanted.kind, name=wanted.name, changes=changes, notes=notes)


def _prune_programs(writer: ProgramWriter, names: set[str]) -> list[PlannedProgram]:
    """Programs that earlier files brought and these do not have; those that name others go first."""
    rows = writer.sql.fetch_rows(f"{PROGRAM.select} WHERE applied = 1 AND deleted = 0 ORDER BY kind, name")
    doomed = {row.name: row for row in (ProgramRow(*row) for row in rows) if row.name not in names}
    plan: list[PlannedProgram] = []
    while doomed:
        free = [row for row in doomed.values() if not set(writer.users_of(row)) & set(doomed)]
        for row in free or list(doomed.values()):
            writer.require(row.id)
            delete_program(writer, row, expected=None, reason=None)
            plan.append(PlannedProgram(action="delete", kind=row.kind, name=row.name))
            del doomed[row.name]
    return plan
