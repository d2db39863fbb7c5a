"""Tasks: what is to be done, by whose word, who has it, and by which criteria it is done.

The criteria and their verdicts, the assignment of a task to agents, and the kind of program with
its lifecycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, Struct

from weft.kernel import program_events
from weft.kernel.authority import Authority, Principal, PrincipalKind
from weft.kernel.enums import CriterionType, ProgramKind, ReferenceField
from weft.kernel.errors import CriteriaUnmet, InvalidConfig, InvalidInput, NotApplicable, Unsupported, WeftError, quoted
from weft.kernel.program_events import TaskAssigned, TaskBlocked, TaskChecked, TaskCompleted, TaskConfigured
from weft.ledger.api import Ledger, store_of, users_of_agent
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.views.rows import ProgramRow, load_program
from weft.programs.config_fields import (
    COMMAND_LIST,
    FOLDER,
    NOTHING,
    ConfigFields,
    filled,
    member,
    reference,
    reference_list,
    texts,
)
from weft.programs.program_kinds import Config, KindRow, ReferenceRule
from weft.programs.program_records import CriterionVerdict, check_schema, problems_with
from weft.programs.program_writer import ProgramWriter
from weft.store.port import ReadTxn
from weft.store.replicas import authored_event

# --- Success criteria of tasks: what they are, and whether they hold.

MAX_SHOWN_CHARACTERS = 2000


class CommandResult(Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is None where it was stopped."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""


class CriterionObservations(Protocol):
    """What criteria are judged by. Paths are those of the criteria: relative, inside the workspace."""

    def file_exists(self, path: str) -> bool:
        """Is there a file or folder of this name? Raises InvalidInput for a path that leads outside."""

    def read_text(self, path: str | None) -> str | None:
        """The text of a file, or without a path the final answer; None where there is none."""

    def run(self, command: str | list[str], timeout: float | None) -> CommandResult:
        """Run a command in the workspace. Raises where commands cannot be run."""


# --- what a criterion is ----------------------------------------------------------------------------------------


def checked_criteria(path: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{quoted(value)} is no list", "give a list of criteria")
    return [_checked_criterion(f"{path}[{i}]", criterion) for i, criterion in enumerate(value)]


def _checked_criterion(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") not in CRITERION_FIELDS:
        raise InvalidConfig(path, f"{quoted(value)} is no criterion", f"its type is one of {', '.join(CriterionType)}")
    required, fields = CRITERION_FIELDS[CriterionType(value["type"])]
    for name in required:
        if name not in value:
            raise InvalidConfig(f"{path}.{name}", "is missing", f"{value['type']} needs {', '.join(required)}")
    for name, field in value.items():
        if name != "type" and name not in fields:
            near = get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"{value['type']} knows {', '.join(fields)}"
            raise InvalidConfig(f"{path}.{name}", "is not known", hint)
        if name in fields:
            fields[name](f"{path}.{name}", field)
    if value["type"] == CriterionType.WORD_COUNT and not {"min", "max"} & value.keys():
        raise InvalidConfig(path, "has neither min nor max", "give at least one of them")
    return value


def _is(kinds: type | tuple[type, ...], words: str) -> Callable[[str, Any], None]:
    def check(path: str, value: Any) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise InvalidConfig(path, f"{quoted(value)} is not {words}", f"give {words}")

    return check


def _check_relative_path(path: str, value: Any) -> None:
    """Inside the workspace, as far as words can tell; links are followed when it is looked at."""
    if not isinstance(value, str) or not value or value.startswith("/") or "\0" in value or ".." in value.split("/"):
        raise InvalidConfig(path, f"{quoted(value)} is no path inside the workspace", "give a relative path without ..")


def _check_command(path: str, value: Any) -> None:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) and word for word in words):
        raise InvalidConfig(path, f"{quoted(value)} is no command", "give a text, or a list of texts")


def _check_schema(path: str, value: Any) -> None:
    if not isinstance(value, dict | bool):
        raise InvalidConfig(path, f"{quoted(value)} is no JSON Schema", "give it as an object")
    check_schema(value, path)


_number, _text = _is((int, float), "a number"), _is(str, "text")
CRITERION_FIELDS: dict[CriterionType, tuple[tuple[str, ...], dict[str, Callable[[str, Any], None]]]] = {
    CriterionType.FILE_EXISTS: (("path",), {"path": _check_relative_path}),
    CriterionType.WORD_COUNT: (
        (),
        {"path": _check_relative_path, "min": _is(int, "a count"), "max": _is(int, "a count")},
    ),
    CriterionType.COMMAND: (
        ("command",),
        {"command": _check_command, "exitCode": _is(int, "a code"), "timeout": _number, "stdout": _text},
    ),
    CriterionType.JSON_SCHEMA: (("schema",), {"path": _check_relative_path, "schema": _check_schema}),
    CriterionType.CONTAINS: (
        ("text",),
        {"path": _check_relative_path, "text": _text, "ignoreCase": _is(bool, "true or false")},
    ),
}


# --- whether it holds -------------------------------------------------------------------------------------------


def judge_criterion(criteria: list[dict[str, Any]], observations: CriterionObservations) -> list[CriterionVerdict]:
    """Every criterion, in order; one that does not hold keeps none from being looked at."""
    return [_judge_criterion(i, criterion, observations) for i, criterion in enumerate(criteria)]


def _judge_criterion(number: int, criterion: dict[str, Any], observations: CriterionObservations) -> CriterionVerdict:
    kind = CriterionType(criterion["type"])
    passed, observed = JUDGES[kind](criterion, observations)
    explanation = explain_criterion(criterion, observed, passed=passed)
    return CriterionVerdict(criterion=number, type=kind, passed=passed, observed=observed, told=explanation)


def explain_criterion(criterion: dict[str, Any], observed: Any, *, passed: bool) -> str:
    """What was observed of a criterion, in words. What is recorded of a verdict is enough to make them again."""
    kind = CriterionType(criterion["type"])
    return f"{kind}: {_explanation(kind, criterion, observed, passed)}"


def _explanation(kind: CriterionType, criterion: dict[str, Any], observed: Any, passed: bool) -> str:
    where = "the final answer" if criterion.get("path") is None else repr(criterion["path"])
    if kind is CriterionType.COMMAND:
        return f"{quoted(criterion['command'])} ended with {observed['exitCode']}{'' if passed else ', not as wanted'}"
    if observed is None or kind is CriterionType.FILE_EXISTS:
        return f"{where} is {'there' if passed else 'not there'}"
    if kind is CriterionType.WORD_COUNT:
        bounds = [f"at least {criterion['min']}"] if "min" in criterion else []
        bounds += [f"at most {criterion['max']}"] if "max" in criterion else []
        return f"{where} has {observed} words, wanted: {' and '.join(bounds)}"
    if kind is CriterionType.CONTAINS:
        return f"{where} {'contains' if passed else 'does not contain'} {quoted(criterion['text'])}"
    if any(problem.startswith(NO_JSON) for problem in observed):
        return f"{where} is not valid JSON"
    return f"{where} {'fits' if passed else 'does not fit'} its schema"


Judgement = tuple[bool, Any]
"""Whether a criterion holds, and what was observed."""
NO_JSON = "not valid JSON: "


def _file_exists(criterion: dict[str, Any], observations: CriterionObservations) -> Judgement:
    exists = observations.file_exists(criterion["path"])
    return exists, exists


def _word_count(criterion: dict[str, Any], observations: CriterionObservations) -> Judgement:
    text = observations.read_text(criterion.get("path"))
    if text is None:
        return False, None
    words = len(text.split())
    low, high = criterion.get("min", 0), criterion.get("max")
    return low <= words and (high is None or words <= high), words


def _judge_contains(criterion: dict[str, Any], observations: CriterionObservations) -> Judgement:
    text, wanted = observations.read_text(criterion.get("path")), criterion["text"]
    if text is None:
        return False, None
    contains = wanted.casefold() in text.casefold() if criterion.get("ignoreCase") else wanted in text
    return contains, contains


def _json_schema(criterion: dict[str, Any], observations: CriterionObservations) -> Judgement:
    text = observations.read_text(criterion.get("path"))
    if text is None:
        return False, None
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return False, [f"{NO_JSON}{error}"]
    problems = problems_with(value, criterion["schema"])
    return not problems, problems


def _command_result(criterion: dict[str, Any], observations: CriterionObservations) -> Judgement:
    result = observations.run(criterion["command"], criterion.get("timeout"))
    wanted, part = criterion.get("exitCode", 0), criterion.get("stdout")
    observed = {
        "exitCode": result.exit_code,
        "stdout": result.stdout[-MAX_SHOWN_CHARACTERS:],
        "stderr": result.stderr[-MAX_SHOWN_CHARACTERS:],
    }
    return result.exit_code == wanted and (part is None or part in result.stdout), observed


JUDGES: dict[CriterionType, Callable[[dict[str, Any], CriterionObservations], Judgement]] = {
    CriterionType.FILE_EXISTS: _file_exists,
    CriterionType.WORD_COUNT: _word_count,
    CriterionType.COMMAND: _command_result,
    CriterionType.JSON_SCHEMA: _json_schema,
    CriterionType.CONTAINS: _judge_contains,
}


# --- what is there ----------------------------------------------------------------------------------------------

RunCommand = Callable[[str | list[str], Path, float | None], CommandResult]
"""Runs a command in a folder, in a sandbox that is not this layer's business."""
MAX_FILE_BYTES = 64 * 1024 * 1024


class WorkspaceObservations:
    """Observes one folder. `answer` is what the task's assignee said last."""

    def __init__(self, folder: Path | None, answer: str | None = None, run: RunCommand | None = None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._answer, self._run = answer, run

    def file_exists(self, path: str) -> bool:
        return self._path_inside(path).exists()

    def read_text(self, path: str | None) -> str | None:
        if path is None:
            return self._answer
        file = self._path_inside(path)
        if not file.is_file():
            return None
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInput(f"{path!r} is larger than {MAX_FILE_BYTES} bytes", "check a smaller file")
        return file.read_text(errors="replace")

    def run(self, command: str | list[str], timeout: float | None) -> CommandResult:
        if self._run is None:
            raise Unsupported(
                "this task's criteria run a command, and there is no sandbox to run it in here",
                "complete it where there is one, or give the task other criteria",
            )
        return self._run(command, self._root(), timeout)

    def _root(self) -> Path:
        if self._folder is None:
            raise InvalidInput("the task has no workspace", "name one: `--in DIR`, or in its configuration")
        if not self._folder.is_dir():
            raise InvalidInput(f"the workspace {self._folder} is no folder", "make it, or name another")
        return self._folder

    def _path_inside(self, path: str) -> Path:
        """The file that is really meant, links followed: one that lies outside is not looked at."""
        root = self._root()
        file = (root / path).resolve()
        if file != root and root not in file.parents:
            raise InvalidInput(
                f"{path!r} leads outside of the workspace", "give a path below it, without links out of it"
            )
        return file


# --- Which agents have a task, since when, by whose word, and who may run them.

WORK_FIELD = "work"
TASK_FIELD = "task"
"""The fields of a message's metadata that say what it is for in the work, and in that on which task."""
MOST_MESSAGES = 10_000


class TaskAssignment(Struct, frozen=True, kw_only=True):
    """An agent got a task. `task` and `session` are ids; `n` is the arrival number of the event that says so."""

    n: int
    at: int
    task: str
    session: str
    by: tuple[str, ...]
    """The ids of those in whose name it got it, whoever acted first."""


def load_assignment(ledger: Ledger, agent: str) -> TaskAssignment | None:
    """The present one of an agent, by its id; None where there is none, or where another ledger says so and nobody here
    took it over. It is for whoever goes on with the work: it asks for no right."""
    with store_of(ledger).read() as txn:
        row = load_program(txn.sql, agent)
        return None if row is None or row.task is None or row.session is None else _counted_assignment(txn, row)


def withdraw_messages(ledger: Ledger, assignment: TaskAssignment, reason: str) -> None:
    """Take back the messages of an agent's work that wait, and have its turn cut short. What others have sent to the
    session stays, and so does a turn that answers it."""
    inbox, is_answered = ledger.inbox, False
    messages = inbox.list(session=assignment.session, limit=MOST_MESSAGES, after=assignment.n)
    for message in messages:
        if isinstance(message.metadata, dict) and message.metadata.get(TASK_FIELD) == assignment.task:
            try:
                inbox.cancel(message.id, reason=reason)
            except NotApplicable:  # a turn has taken it
                is_answered = True
    if is_answered:
        with suppress(NotApplicable):  # it has just ended
            inbox.interrupt(assignment.session)


def may_run(ledger: Ledger, senders: Sequence[str], agent: str) -> bool:
    """Whether those in whose name something was sent, whoever acted first, may all run an agent, by its id."""
    try:
        acting = ledger.acting_as(chain_of(senders))
    except WeftError:  # one of them is not there any more
        return False
    with store_of(acting).read() as txn:
        row = load_program(txn.sql, agent)
        return row is not None and access_of(txn).permits("assign", users_of_agent(txn, row))


def chain_of(senders: Sequence[str]) -> Authority:
    """The rights that all of these have, by their ids; whoever acted first."""
    return Authority(tuple(Principal(_principal_kind(name), name) for name in reversed(senders)))


def _principal_kind(name: str) -> PrincipalKind:
    return PrincipalKind.HUMAN if name == DEFAULT_AGENT else PrincipalKind.PROGRAM


def _counted_assignment(txn: ReadTxn, agent: ProgramRow) -> TaskAssignment | None:
    entry = txn.sql.fetch_row(
        "SELECT n, at FROM program_history WHERE program = ? AND kind = 'agent_task_assigned' ORDER BY n DESC LIMIT 1",
        (agent.id,),
    )
    event = None if entry is None else authored_event(txn, entry[0])
    if entry is None or event is None or not event.counts:
        return None
    by = (event.fields["actor"], *(event.fields.get("on_behalf_of") or ()))
    return TaskAssignment(n=entry[0], at=entry[1], task=str(agent.task), session=str(agent.session), by=by)


def agents_at_work(ledger: Ledger) -> list[str]:
    """The ids of the agents that have a task."""
    with store_of(ledger).read() as txn:
        rows = txn.sql.fetch_rows(
            "SELECT id FROM program WHERE kind = ? AND deleted = 0 AND task IS NOT NULL ORDER BY updated_at, id",
            (ProgramKind.AGENT.value,),
        )
        return [str(id) for (id,) in rows]


# --- Tasks: what is to be done, who does it, what it waits for, and how it begins and ends.

PRIORITIES = ("P0", "P1", "P2", "P3", "P4")
ASSIGNEES = (ProgramKind.AGENT, ProgramKind.HUMAN)
_SPEC = ConfigFields({"inputs": texts, "outputs": texts, "constraints": texts, "successCriteria": checked_criteria})


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


def start_task(writer: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    writer.permit("assign", f"start the task {row.name!r}", assignee_of(writer, row))
    return settle_blocked(writer, writer.take_step(row, "start", reason))


def assign_task(
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


def complete_task(writer: ProgramWriter, row: ProgramRow, answer: str | None) -> ProgramRow:
    """Done, by what `record_verdicts` recorded; tasks that waited for it alone go on."""
    result = {} if answer is None else {"result": writer.append.put_text(answer, "answer")}
    row = writer.step(row, "complete", TaskCompleted, **result)
    query = "SELECT program FROM program_reference WHERE target = ? AND field = 'dependency' ORDER BY program"
    for (task,) in writer.sql.fetch_rows(query, (row.id,)):
        waiting = load_program(writer.sql, task)
        if waiting is not None and not waiting.deleted:
            settle_blocked(writer, waiting)
    return row


def fail_task(writer: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    writer.permit("assign", f"fail the task {row.name!r}", assignee_of(writer, row))
    return writer.take_step(row, "fail", reason)


def task_refusal(name: str, verdicts: list[CriterionVerdict]) -> CriteriaUnmet:
    failed = [verdict for verdict in verdicts if not verdict.passed]
    return CriteriaUnmet(name, [verdict.criterion for verdict in failed], [verdict.told for verdict in failed])
