"""Many programs as files say them: made, changed, left alone or, with prune, deleted, in one append.

Applying the same files again changes nothing. A dry run does all of it and takes it back, so its plan is what would
happen, refusals included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidConfig, InvalidInput, LabelTaken, NotApplicable
from weft.kernel.lifecycles import FIRST_STATES
from weft.ledger.views.program_rows import PROGRAM, ProgramRow, find_program
from weft.ledger.views.rows import find_session
from weft.ledger.write.append import LedgerWriter
from weft.programs import information, making, sessions, tags
from weft.programs.configs import checked_config, references
from weft.programs.json_values import differences
from weft.programs.program_writer import ProgramWriter, perform

TOLD = ("version", "ulid", "createdAt", "updatedAt", "createdBy", "result", "type")
"""What a program is shown with and nobody decides: a program that was printed can be applied."""
WAYS: dict[ProgramKind, tuple[str, ...]] = {
    **dict.fromkeys(making.PUBLISHED_KINDS, ("draft", "published", "deprecated")),
    ProgramKind.INFORMATION: ("draft", "validated", "active", "archived"),
}
"""States that a file may ask for, in the order in which they are reached."""
IN_USE = {ProgramKind.INFORMATION: "active", **dict.fromkeys(making.PUBLISHED_KINDS, "published")}


class WantedProgram(Struct, frozen=True, kw_only=True):
    """One program as a file says it."""

    kind: ProgramKind
    name: str
    config: dict[str, Any]
    state: str | None = None
    tags: list[str] | None = None
    where: str = ""


class Planned(Struct, frozen=True, kw_only=True):
    """What is done with one program; of a change, the places that change."""

    action: str
    """create, change, unchanged or delete"""
    kind: str
    name: str
    changes: list[str] = []


class Rehearsed(Exception):
    """A dry run has come to its end: everything is taken back."""


def wanted_in(document: Any, where: str) -> list[WantedProgram]:
    """The programs of one document: an object, a list of them, or `programs:` with one."""
    if document is None:
        return []
    if isinstance(document, dict) and set(document) == {"programs"}:
        document = document["programs"]
    entries = document if isinstance(document, list) else [document]
    return [_wanted(entry, f"{where}[{i}]" if len(entries) > 1 else where) for i, entry in enumerate(entries)]


def _wanted(entry: Any, where: str) -> WantedProgram:
    if not isinstance(entry, dict):
        raise InvalidConfig(where, f"{entry!r:.80} is no program", "write id, programType and config")
    given = {name: value for name, value in entry.items() if name not in TOLD}
    names = [given.pop(name) for name in ("id", "name") if name in given]
    kinds = [given.pop(name) for name in ("programType", "kind") if name in given]
    states = [given.pop(name) for name in ("lifecycle", "state") if name in given]
    config, tagged = given.pop("config", {}), given.pop("tags", None)
    if given:
        raise InvalidConfig(f"{where}.{min(map(str, given))}", "is not known", "write id, programType, config, tags")
    if len(names) != 1 or len(kinds) != 1 or not isinstance(names[0], str):
        raise InvalidConfig(where, "needs one id and one programType", "write id, programType and config")
    if kinds[0] not in tuple(ProgramKind):
        raise InvalidConfig(
            f"{where}.programType", f"{kinds[0]!r:.80} is not known", f"one of {', '.join(ProgramKind)}"
        )
    kind = ProgramKind(kinds[0])
    return WantedProgram(
        kind=kind,
        name=names[0],
        config=_config(kind, config, where),
        state=_state(kind, states, where),
        tags=None if tagged is None else tags.checked_tags(tagged) if tagged else [],
        where=where,
    )


def _config(kind: ProgramKind, config: Any, where: str) -> dict[str, Any]:
    shown = {name: value for name, value in config.items() if name != "owner"} if isinstance(config, dict) else config
    try:
        return checked_config(kind, shown if kind is ProgramKind.SESSION else config)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}.{error.path}", error.reason, error.advice) from error


def _state(kind: ProgramKind, states: list[Any], where: str) -> str | None:
    """Where its lifecycle should have come to; what a thing is doing is not for a file to say."""
    if kind not in WAYS:
        return None
    state = states[0] if states else IN_USE[kind]
    if state not in WAYS[kind]:
        raise InvalidConfig(f"{where}.lifecycle", f"{state!r:.80} is not known", f"one of {', '.join(WAYS[kind])}")
    return str(state)


def apply(
    writer: LedgerWriter, wanted: Sequence[WantedProgram], *, prune: bool, dry_run: bool, key: str | None
) -> list[Planned]:
    """Everything in one append, or with `dry_run` nothing; what was or would be done, in order."""
    ordered = in_order(wanted)
    plan: list[Planned] = []

    def work(clerk: ProgramWriter) -> str:
        plan[:] = [_apply_one(clerk, one) for one in ordered]
        if prune:
            plan.extend(_prune(clerk, {one.name for one in ordered}))
        if dry_run:
            raise Rehearsed
        return clerk.actor

    request = [prune, [[one.kind, one.name, one.config, one.state, one.tags] for one in ordered]]
    try:
        perform(writer, "apply", work, None if dry_run else key, request)
    except Rehearsed:
        return plan
    return plan or [Planned(action="unchanged", kind=one.kind, name=one.name) for one in ordered]


def in_order(wanted: Iterable[WantedProgram]) -> list[WantedProgram]:
    """Those that are named come before those that name them."""
    waiting: dict[str, WantedProgram] = {}
    for one in wanted:
        if one.name in waiting:
            raise InvalidConfig(one.where, f"{one.name!r} is described twice", "describe a program once")
        waiting[one.name] = one
    done: list[WantedProgram] = []
    needs = {one.name: {ref.address.name for ref in references(one.kind, one.config)} for one in waiting.values()}
    while waiting:
        ready = [one for one in waiting.values() if not (needs[one.name] - {one.name}) & set(waiting)]
        if not ready:
            raise InvalidInput(f"{', '.join(sorted(waiting))} name each other in a circle", "leave one of them out")
        done += ready
        waiting = {name: one for name, one in waiting.items() if one not in ready}
    return done


def _apply_one(clerk: ProgramWriter, wanted: WantedProgram) -> Planned:
    if wanted.kind is ProgramKind.SESSION:
        return _apply_session(clerk, wanted)
    row = find_program(clerk.sql, wanted.name)
    living = row if row is not None and not row.deleted else None
    if living is not None and living.kind != wanted.kind:
        raise LabelTaken(wanted.name, f"a {living.kind}")
    before = {} if living is None else clerk.config_of(living)
    started = None if living is None else living.state
    if living is None:
        made = making.create(clerk, wanted.kind, wanted.name, wanted.config, draft=True, applied=True)
    else:
        made = making.configure(clerk, living, wanted.config, applied=True)
    made = _brought_to(clerk, made, wanted.state)
    changes = [one.path for one in differences(before, wanted.config)] if living is not None else []
    changes += ["lifecycle"] if started is not None and made.state != started and wanted.state is not None else []
    changes += ["tags"] if _tag(clerk, made.id, wanted.tags) and living is not None else []
    action = "create" if living is None else "change" if changes else "unchanged"
    return Planned(action=action, kind=wanted.kind, name=wanted.name, changes=changes)


def _brought_to(clerk: ProgramWriter, row: ProgramRow, state: str | None) -> ProgramRow:
    """Step by step to the state that the file asks for. There is no way back to an earlier one but from the archive."""
    if state is None:
        return row
    ways = WAYS[ProgramKind(row.kind)]
    if ways.index(state) < ways.index(row.state) and (row.state, state) != ("archived", "active"):
        raise NotApplicable(f"{row.kind} {row.name!r} is {row.state} and cannot be {state} again", "make a new one")
    while row.state != state:
        row = _one_step(clerk, row)
    return row


def _one_step(clerk: ProgramWriter, row: ProgramRow) -> ProgramRow:
    steps = {
        "published": making.deprecate,
        "validated": information.activate,
        "active": information.archive,
        "archived": information.activate,
    }
    if row.state == FIRST_STATES[ProgramKind(row.kind)]:
        chosen = information.validate if row.kind == ProgramKind.INFORMATION else making.publish
        return chosen(clerk, row, None)
    return steps[row.state](clerk, row, None)


def _tag(clerk: ProgramWriter, node: str, wanted: list[str] | None) -> bool:
    """Exactly these tags, where a file says any; did they change?"""
    there = tags.tags_of(clerk.sql, node)
    if wanted is None or sorted(wanted) == there:
        return False
    if fresh := [tag for tag in wanted if tag not in there]:
        tags.add(clerk, node, fresh)
    if gone := [tag for tag in there if tag not in wanted]:
        tags.remove(clerk, node, gone)
    return True


def _apply_session(clerk: ProgramWriter, wanted: WantedProgram) -> Planned:
    row = clerk.append.view.find_session(wanted.name) or find_session(clerk.sql, wanted.name)
    before = {} if row is None else clerk.config_of(row)
    if row is None:
        made = sessions.create(clerk, wanted.name, clerk.actor_name, wanted.config)
    else:
        made = sessions.configure(clerk, row, wanted.config)
    changes = [one.path for one in differences(before, wanted.config)] if row is not None else []
    changes += ["tags"] if _tag(clerk, made.id, wanted.tags) and row is not None else []
    action = "create" if row is None else "change" if changes else "unchanged"
    return Planned(action=action, kind=wanted.kind, name=wanted.name, changes=changes)


def _prune(clerk: ProgramWriter, kept: set[str]) -> list[Planned]:
    """Programs that earlier files brought and these do not say; those that name others go first."""
    rows = clerk.sql.all(f"{PROGRAM.select} WHERE applied = 1 AND deleted = 0 ORDER BY kind, name")
    doomed = {row.name: row for row in (ProgramRow(*row) for row in rows) if row.name not in kept}
    plan: list[Planned] = []
    while doomed:
        free = [row for row in doomed.values() if not set(clerk.users_of(row)) & set(doomed)]
        for row in free or list(doomed.values()):
            making.delete(clerk, row, expected=None, reason=None)
            plan.append(Planned(action="delete", kind=row.kind, name=row.name))
            del doomed[row.name]
    return plan
