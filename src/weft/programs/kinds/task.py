"""Tasks: what is to be done, who does it, what it waits for, and how it begins and ends."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import program_events
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import CriteriaUnmet, InvalidConfig, NotApplicable
from weft.kernel.program_events import TaskAssigned, TaskBlocked, TaskChecked, TaskCompleted, TaskConfigured
from weft.ledger.views.rows import ProgramRow, load_program
from weft.programs.config_fields import Fields, filled, member, reference, reference_list, texts
from weft.programs.criteria import checked_criteria
from weft.programs.kinds.kind import Config, KindRow, ReferenceRule
from weft.programs.machine_names import COMMAND_LIST, FOLDER, NOTHING
from weft.programs.model import CriterionVerdict
from weft.programs.program_writer import ProgramWriter

PRIORITIES = ("P0", "P1", "P2", "P3", "P4")
ASSIGNEES = (ProgramKind.AGENT, ProgramKind.HUMAN)
_SPEC = Fields({"inputs": texts, "outputs": texts, "constraints": texts, "successCriteria": checked_criteria})


def criteria_of(config: Config) -> list[dict[str, Any]]:
    spec = config.get("spec")
    criteria = spec.get("successCriteria") if isinstance(spec, dict) else None
    return criteria if isinstance(criteria, list) else []


def _follow_config(writer: ProgramWriter, row: ProgramRow, before: Config, config: Config) -> ProgramRow:
    """A new configuration may name others to wait for, and another assignee."""
    _refuse_cycles(writer, row)
    if config.get("assignee") != before.get("assignee"):
        writer.permit("assign", f"assign the task {row.name!r}")
        assignee = config.get("assignee")
        program = None if assignee is None else writer.require(assignee, *ASSIGNEES).id
        row = writer.add(row, TaskAssigned, assignee=program)
    return settle_blocked(writer, row)


TASK = KindRow(
    facts=program_events.TASK,
    required=("title",),
    fields={
        "title": filled,
        "spec": _SPEC,
        "assignee": reference,
        "priority": member(*PRIORITIES),
        "dependencies": reference_list,
        "workspace": filled,
    },
    references={
        "assignee": ReferenceRule(ReferenceField.ASSIGNEE, ASSIGNEES),
        "dependencies": ReferenceRule(ReferenceField.DEPENDENCY, (ProgramKind.TASK,)),
    },
    follow_config=_follow_config,
    machine={
        **dict.fromkeys(("title", "assignee", "priority", "dependencies"), NOTHING),
        **dict.fromkeys(("spec.inputs", "spec.outputs", "spec.constraints"), NOTHING),
        "spec.successCriteria": COMMAND_LIST,
        "workspace": FOLDER,
    },
    ended_states=("completed", "failed"),
)


def dependencies_of(writer: ProgramWriter, task: str) -> list[str]:
    return writer.references_of(task, ReferenceField.DEPENDENCY)


def _refuse_cycles(writer: ProgramWriter, row: ProgramRow) -> None:
    """Walk what it waits for; whoever comes back to it waits for ever."""
    visited: set[str] = set()
    waiting = [(dependency, [row.name]) for dependency in dependencies_of(writer, row.id)]
    while waiting:
        task, way = waiting.pop()
        task_row = load_program(writer.sql, task)
        way = [*way, task_row.name if task_row else task]
        if task == row.id:
            raise InvalidConfig(
                "config.dependencies",
                f"{' → '.join(way)} is a cycle",
                "a task cannot wait for itself: leave one of them out",
            )
        if task not in visited:
            visited.add(task)
            waiting += [(dependency, way) for dependency in dependencies_of(writer, task)]


def open_dependencies(writer: ProgramWriter, row: ProgramRow) -> tuple[str, ...]:
    """What it waits for: a task that failed is not done either."""
    rows = (load_program(writer.sql, task) for task in dependencies_of(writer, row.id))
    return tuple(task.id for task in rows if task is not None and task.state != "completed")


def settle_blocked(writer: ProgramWriter, row: ProgramRow) -> ProgramRow:
    """Blocked exactly while something it waits for is open; only work that has begun is ever blocked."""
    open_ones = open_dependencies(writer, row)
    if row.state == "active" and open_ones:
        return writer.step(row, "block", TaskBlocked, by=open_ones)
    if row.state == "blocked" and not open_ones:
        return writer.take_step(row, "unblock")
    return row


def assignee_of(writer: ProgramWriter, row: ProgramRow) -> str | None:
    assignees = writer.references_of(row.id, ReferenceField.ASSIGNEE)
    return assignees[0] if assignees else None


def start(writer: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    writer.permit("assign", f"start the task {row.name!r}", assignee_of(writer, row))
    return settle_blocked(writer, writer.take_step(row, "start", reason))


def assign(
    writer: ProgramWriter, row: ProgramRow, assignee: ProgramRow | None, reason: str | None = None
) -> ProgramRow:
    """A task becomes somebody's, or nobody's."""
    writer.permit("assign", f"assign the task {row.name!r}")
    config = writer.config_of(row)
    name = None if assignee is None else f"@({assignee.name})"
    if config.get("assignee") == name:
        return row
    if row.state in TASK.ended_states:
        raise NotApplicable(f"task {row.name!r} is {row.state}", "make a new task")
    changed = {field: value for field, value in config.items() if field != "assignee"}
    changed |= {} if name is None else {"assignee": name}
    writer.add(row, TaskConfigured, **TASK.config_event_fields(writer, changed), reason=writer.reason(reason))
    return writer.add(row, TaskAssigned, assignee=None if assignee is None else assignee.id)


def to_complete(writer: ProgramWriter, task: str) -> ProgramRow:
    """The task, if this actor may complete it and it stands where it can be completed."""
    row = writer.require(task, ProgramKind.TASK)
    writer.permit("assign", f"complete the task {row.name!r}", assignee_of(writer, row))
    writer.ensure_legal(row, "complete")
    return row


def record_verdicts(
    writer: ProgramWriter, row: ProgramRow, verdicts: list[CriterionVerdict], turn: str | None
) -> ProgramRow:
    """`turn` is the one whose answer was judged."""
    for verdict in verdicts:
        row = writer.add(
            row,
            TaskChecked,
            criterion=verdict.criterion,
            type=verdict.type,
            passed=verdict.passed,
            observed=writer.append.put_json(verdict.observed, "observed value"),
            turn=UNSET if turn is None else turn,
        )
    return row


def complete(writer: ProgramWriter, row: ProgramRow, answer: str | None) -> ProgramRow:
    """Done, by what `record_verdicts` recorded; tasks that waited for it alone go on."""
    result = {} if answer is None else {"result": writer.append.put_text(answer, "answer")}
    row = writer.step(row, "complete", TaskCompleted, **result)
    query = "SELECT program FROM program_reference WHERE target = ? AND field = 'dependency' ORDER BY program"
    for (task,) in writer.sql.all(query, (row.id,)):
        waiting = load_program(writer.sql, task)
        if waiting is not None and not waiting.deleted:
            settle_blocked(writer, waiting)
    return row


def fail(writer: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    writer.permit("assign", f"fail the task {row.name!r}", assignee_of(writer, row))
    return writer.take_step(row, "fail", reason)


def refusal(name: str, verdicts: list[CriterionVerdict]) -> CriteriaUnmet:
    failed = [verdict for verdict in verdicts if not verdict.passed]
    return CriteriaUnmet(name, [verdict.criterion for verdict in failed], [verdict.told for verdict in failed])
