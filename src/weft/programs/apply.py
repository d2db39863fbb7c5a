"""Applies files of programs: creates, changes, leaves alone or, with prune, deletes programs in one append.

Applying the same files again changes nothing. A dry run does all of it and takes it back, so its plan is what would
happen, refusals included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.kernel.errors import (
    IllegalTransition,
    InvalidConfig,
    InvalidInput,
    LabelTaken,
    NotApplicable,
    NotFound,
)
from weft.kernel.program_events import legal_verbs
from weft.ledger.views.rows import PROGRAM, ProgramRow, SessionRow, find_program, find_session
from weft.ledger.write.transaction import LedgerWriter
from weft.programs import program_changes
from weft.programs.config_fields import Faults
from weft.programs.json_values import differences
from weft.programs.kinds import session
from weft.programs.kinds.table import KINDS, kind_of_row
from weft.programs.lookups import to_program
from weft.programs.nodes import add_tags, remove_tags, tags_of
from weft.programs.program_files import WantedProgram, located
from weft.programs.program_writer import ProgramWriter, find_any, perform


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


def apply(
    ledger_writer: LedgerWriter, wanted: Sequence[WantedProgram], *, prune: bool, dry_run: bool, key: str | None
) -> list[PlannedProgram]:
    """Everything in one append, or with `dry_run` nothing; what was or would be done, in order. All that is wrong with
    the files is raised at once, and then nothing is done."""
    faults = Faults("the files")
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
            plan.extend(_prune(writer, {program.name for program in ordered}))
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


def _applied(writer: ProgramWriter, program: WantedProgram, faults: Faults, refused: set[str]) -> PlannedProgram | None:
    """What was done with one program. A refusal is noted: the append is taken back when all programs were looked at.
    One that the reading refused, or that names a refused one, is looked at and left."""
    before = len(faults.errors)
    try:
        _examine(writer, program, faults, refused)
        if len(faults.errors) == before and not ({program.name} | _names_in(program)) & refused:
            return _apply_program(writer, program)
    except (InvalidInput, NotFound, NotApplicable, LabelTaken, IllegalTransition) as error:
        faults.errors += located(error, program.where)
    refused.add(program.name)
    return None


def _examine(writer: ProgramWriter, program: WantedProgram, faults: Faults, refused: set[str]) -> None:
    """Note the fields that nothing reads, and the programs that are named and not there."""
    kind, row = KINDS[program.kind], find_any(writer.append, program.name)
    examined = Faults()
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
        created = program_changes.create(writer, kind, wanted.name, wanted.config, draft=True, applied=True)
        created = _bring_to(writer, created, wanted.state)
        _set_tags(writer, created.id, wanted.tags)
        notes = _notes(writer, created, wanted)
        return PlannedProgram(action="create", kind=wanted.kind, name=wanted.name, notes=notes)
    if not writer.append.access.may_read_program(row):
        raise LabelTaken(wanted.name, "taken")
    if row.kind != wanted.kind:
        raise LabelTaken(wanted.name, f"a {row.kind}")
    row = writer.require(row.id)
    before, state = writer.config_of(row), row.state
    row = _bring_to(
        writer,
        program_changes.configure(writer, row, wanted.config, applied=True, given=wanted.config),
        wanted.state,
    )
    changes = [difference.path for difference in differences(before, wanted.config)]
    changes += ["lifecycle"] if row.state != state and wanted.state is not None else []
    changes += ["tags"] if _set_tags(writer, row.id, wanted.tags) else []
    action = "change" if changes else "unchanged"
    notes = _notes(writer, row, wanted)
    return PlannedProgram(action=action, kind=wanted.kind, name=wanted.name, changes=changes, notes=notes)


def _notes(writer: ProgramWriter, row: ProgramRow | SessionRow, wanted: WantedProgram) -> list[str]:
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
        created = session.create(writer, wanted.name, None, wanted.config)
        _set_tags(writer, created.id, wanted.tags)
        notes = _notes(writer, created, wanted)
        return PlannedProgram(action="create", kind=wanted.kind, name=wanted.name, notes=notes)
    before = session.shown_config(writer, row)
    row = session.configure(writer, row, wanted.config, given=wanted.config)
    changes = [difference.path for difference in differences(before, session.shown_config(writer, row))]
    changes += ["tags"] if _set_tags(writer, row.id, wanted.tags) else []
    action = "change" if changes else "unchanged"
    notes = _notes(writer, row, wanted)
    return PlannedProgram(action=action, kind=wanted.kind, name=wanted.name, changes=changes, notes=notes)


def _prune(writer: ProgramWriter, names: set[str]) -> list[PlannedProgram]:
    """Programs that earlier files brought and these do not have; those that name others go first."""
    rows = writer.sql.all(f"{PROGRAM.select} WHERE applied = 1 AND deleted = 0 ORDER BY kind, name")
    doomed = {row.name: row for row in (ProgramRow(*row) for row in rows) if row.name not in names}
    plan: list[PlannedProgram] = []
    while doomed:
        free = [row for row in doomed.values() if not set(writer.users_of(row)) & set(doomed)]
        for row in free or list(doomed.values()):
            writer.require(row.id)
            program_changes.delete(writer, row, expected=None, reason=None)
            plan.append(PlannedProgram(action="delete", kind=row.kind, name=row.name))
            del doomed[row.name]
    return plan
