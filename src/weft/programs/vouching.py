"""Who set what a configuration names of the machine, and whether they may: asked again whenever it is about to be used.

A name was set by whoever wrote the version since which it has stood in the configuration without a break. What they may
is looked up now: of somebody who never had the right, or lost it, nothing is used. Whoever may name it sets it once
more, which records a version with the same configuration, or takes it out and puts it back. A version that was taken
over counts as set by whoever took it over, who had to be allowed to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind
from weft.kernel.errors import Action, NotApplicable, WeftError
from weft.kernel.program_events import AGENT
from weft.ledger.api import Ledger, agent_names, store_of
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.read.access import Access
from weft.ledger.views.rows import json_of, load_program, load_session, load_turn
from weft.programs.json_values import is_same
from weft.programs.machine_names import FOLDER, MachineField, MachineName, MachineSort, names_in
from weft.programs.model import Program, UnvouchedName
from weft.store.port import ReadTxn
from weft.store.replicas import authored_event

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
    unvouched = ((name, _setter(txn, fields, versions, name)) for name in sorted(names))
    return tuple(
        UnvouchedName(path=name.path, sort=name.sort, text=name.text, by=_names_of(txn, by))
        for name, by in unvouched
        if by is not None and not _is_of_task(txn, program, name)
    )


def _has_other_writers(txn: ReadTxn, program: str) -> bool:
    """Whether anybody but the ledger's owner configured it. In a ledger of one person nothing more is read."""
    query = "SELECT 1 FROM program_history WHERE program = ? AND config IS NOT NULL AND actor <> ? LIMIT 1"
    return txn.sql.one(query, (program, DEFAULT_AGENT)) is not None


def _counted_versions(txn: ReadTxn, program: str, newest: int | None = None) -> Iterator[WrittenVersion]:
    """The newest first, from a version on."""
    query = "SELECT n, config, version FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
    for n, config, version in txn.sql.all(query, (program,)):
        if newest is not None and version > newest:
            continue
        event = authored_event(txn, n)
        if event is None or event.is_taken:
            yield WrittenVersion(None, json_of(txn, config))
        elif event.counts:
            by = (event.fields["actor"], *(event.fields.get("on_behalf_of") or ()))
            yield WrittenVersion(by, json_of(txn, config))


def _setter(
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
        if is_named and _setter(txn, TASK_FIELDS, versions, name) is None:
            return True
    return False


def _tasks_of(txn: ReadTxn, session: str) -> Iterator[str]:
    """The tasks that an agent got with this session."""
    query = (
        "SELECT h.n FROM session s JOIN program_history h ON h.program = s.persona"
        " WHERE s.id = ? AND h.kind = 'agent_task_assigned' ORDER BY h.n DESC"
    )
    for (n,) in txn.sql.all(query, (session,)):
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
        if txn.sql.one("SELECT 1 FROM inbox WHERE turn = ? LIMIT 1", (turn,)) is None:
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
