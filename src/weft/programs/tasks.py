"""Tasks: who they wait for, and how they begin and end."""

from __future__ import annotations

from typing import Any

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import CriteriaUnmet, InvalidConfig
from weft.kernel.program_events import (
    TaskAssigned,
    TaskBlocked,
    TaskChecked,
    TaskCompleted,
    TaskFailed,
    TaskStarted,
    TaskUnblocked,
)
from weft.ledger.views.program_rows import ProgramRow, load_program
from weft.programs.model import CriterionVerdict
from weft.programs.program_writer import ProgramWriter


def criteria_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    spec = config.get("spec")
    found = spec.get("successCriteria") if isinstance(spec, dict) else None
    return found if isinstance(found, list) else []


def follow_config(clerk: ProgramWriter, row: ProgramRow, before: dict[str, Any], config: dict[str, Any]) -> ProgramRow:
    """A new configuration may name others to wait for, and another assignee."""
    _refuse_cycles(clerk, row)
    if config.get("assignee") != before.get("assignee"):
        clerk.permit("assign", f"assign the task {row.name!r}")
        assignee = config.get("assignee")
        found = None if assignee is None else clerk.require(assignee, ProgramKind.AGENT, ProgramKind.HUMAN).id
        row = clerk.add(row, TaskAssigned, assignee=found)
    return settle_blocked(clerk, row)


def dependencies_of(clerk: ProgramWriter, task: str) -> list[str]:
    query = "SELECT target FROM program_reference WHERE program = ? AND field = 'dependency' ORDER BY target"
    return [target for (target,) in clerk.sql.all(query, (task,))]


def _refuse_cycles(clerk: ProgramWriter, row: ProgramRow) -> None:
    """Walk what it waits for; whoever comes back to it waits for ever."""
    seen: set[str] = set()
    waiting = [(one, [row.name]) for one in dependencies_of(clerk, row.id)]
    while waiting:
        task, way = waiting.pop()
        found = load_program(clerk.sql, task)
        way = [*way, found.name if found else task]
        if task == row.id:
            raise InvalidConfig(
                "config.dependencies",
                f"{' → '.join(way)} is a cycle",
                "a task cannot wait for itself: leave one of them out",
            )
        if task not in seen:
            seen.add(task)
            waiting += [(one, way) for one in dependencies_of(clerk, task)]


def open_dependencies(clerk: ProgramWriter, row: ProgramRow) -> tuple[str, ...]:
    """What it waits for: a task that failed is not done either."""
    rows = (load_program(clerk.sql, task) for task in dependencies_of(clerk, row.id))
    return tuple(found.id for found in rows if found is not None and found.state != "completed")


def settle_blocked(clerk: ProgramWriter, row: ProgramRow) -> ProgramRow:
    """Blocked exactly while something it waits for is open; only work that has begun is ever blocked."""
    open_ones = open_dependencies(clerk, row)
    if row.state == "active" and open_ones:
        return clerk.step(row, "block", TaskBlocked, by=open_ones)
    if row.state == "blocked" and not open_ones:
        return clerk.step(row, "unblock", TaskUnblocked)
    return row


def assignee_of(clerk: ProgramWriter, row: ProgramRow) -> str | None:
    query = "SELECT target FROM program_reference WHERE program = ? AND field = 'assignee'"
    found = clerk.sql.one(query, (row.id,))
    return found[0] if found else None


def start(clerk: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    clerk.permit("assign", f"start the task {row.name!r}", assignee_of(clerk, row))
    return settle_blocked(clerk, clerk.step(row, "start", TaskStarted, reason=clerk.reason(reason)))


def to_complete(clerk: ProgramWriter, task: str) -> ProgramRow:
    """The task, if this actor may complete it and it stands where it can be completed."""
    row = clerk.require(task, ProgramKind.TASK)
    clerk.permit("assign", f"complete the task {row.name!r}", assignee_of(clerk, row))
    clerk.ensure_legal(row, "complete")
    return row


def record_verdicts(clerk: ProgramWriter, row: ProgramRow, verdicts: list[CriterionVerdict]) -> ProgramRow:
    for one in verdicts:
        observed = clerk.append.put_json(one.observed, "observed value")
        fields = {"criterion": one.criterion, "type": one.type, "passed": one.passed, "observed": observed}
        row = clerk.add(row, TaskChecked, **fields)
    return row


def complete(clerk: ProgramWriter, row: ProgramRow, answer: str | None) -> ProgramRow:
    """Done, by what `record_verdicts` recorded; tasks that waited for it alone go on."""
    result = {} if answer is None else {"result": clerk.append.put_text(answer, "answer")}
    row = clerk.step(row, "complete", TaskCompleted, **result)
    query = "SELECT program FROM program_reference WHERE target = ? AND field = 'dependency' ORDER BY program"
    for (task,) in clerk.sql.all(query, (row.id,)):
        waiting = load_program(clerk.sql, task)
        if waiting is not None and not waiting.deleted:
            settle_blocked(clerk, waiting)
    return row


def fail(clerk: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    clerk.permit("assign", f"fail the task {row.name!r}", assignee_of(clerk, row))
    return clerk.step(row, "fail", TaskFailed, reason=clerk.reason(reason))


def refusal(name: str, verdicts: list[CriterionVerdict]) -> CriteriaUnmet:
    failed = [one for one in verdicts if not one.passed]
    return CriteriaUnmet(name, [one.criterion for one in failed], [one.told for one in failed])
