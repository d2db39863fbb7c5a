"""`weft task`: what is to be done, and whether it is."""

from __future__ import annotations

import os
from typing import Any

import click

from weft.kernel.contents import decode_utf8
from weft.surfaces.cli.agent_run import free_task_name, work_exit_code
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.exits import OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    as_actor,
    changing,
    complete_programs,
    expecting,
    given,
    invoked,
    json_of,
    looking,
    named,
    set_fields,
    show_list,
    show_program,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.forms import JsonValue

command = group("task", "Create tasks, and complete them when their success criteria hold.")
MAKE = "make one with `weft task create TITLE`"
OTHER_NAMES = {"in_progress": "active", "todo": "pending", "done": "completed"}
STYLES = {"completed": "good", "failed": "bad"}
STATES = ("pending", "active", "blocked", "completed", "failed")


@command.verb("create")
@click.argument("title")
@click.option("--name", metavar="NAME", help="The name to address it by; else one is made of the title.")
@click.option("--assignee", metavar="NAME", shell_complete=complete_programs("agent", "human"), help="Whose it is.")
@click.option("--priority", metavar="P0-P4", help="How urgent it is; P0 is most.")
@click.option("--depends-on", "needs", metavar="TASK", multiple=True, help="A task to wait for; repeatable.")
@click.option("--criterion", "criteria", metavar="JSON", multiple=True, help="A success criterion; repeatable.")
@click.option("--workspace", metavar="FOLDER", help="The folder that criteria look into.")
@set_fields
@acting
def create(
    call: Call,
    title: str,
    name: str | None,
    assignee: str | None,
    priority: str | None,
    needs: tuple[str, ...],
    criteria: tuple[str, ...],
    workspace: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a task."""
    checked = [json_of(one, "criterion") for one in criteria]
    spec = {"successCriteria": checked} if checked else None
    config = given(title=title, assignee=assignee, priority=priority, dependencies=list(needs), spec=spec)
    config = with_fields({**config, **given(workspace=_absolute(workspace))}, fields)
    with changing(call, actor) as programs:
        chosen = name or free_task_name(programs, title, retry_key)
        answer(call, programs.create("task", chosen, config, key=retry_key))


def _absolute(folder: str | None) -> str | None:
    """A folder as a task keeps it: whoever works on it later stands elsewhere. One that names a variable is kept as it
    is."""
    return folder if folder is None or "${" in folder else os.path.realpath(folder)


@command.verb("list")
@click.option("--status", metavar="STATE", help=f"{', '.join(STATES)}; in_progress is active.")
def list_(call: Call, status: str | None) -> None:
    """List tasks."""
    state = OTHER_NAMES.get(status or "", status)
    if state is not None and state not in STATES:
        raise click.UsageError(f"--status {status!r} is none of {', '.join(STATES)}")
    with looking(call) as programs:
        show_list(call, programs.all("task", states=[state] if state else []), f"{status or ''} task".strip(), MAKE)


@command.verb("show")
@named("name", "task")
def show(call: Call, name: str) -> None:
    """Show a task, or with NAME:VERSION an earlier configuration of it."""
    with looking(call) as programs:
        task = programs.get(name, "task")
    show_program(call, task)


@command.verb("configure")
@named("name", "task")
@click.option("--workspace", metavar="FOLDER", help="The folder that criteria look into.")
@set_fields
@click.option("--reason", metavar="TEXT", help="Why.")
@expecting
@acting
def configure(
    call: Call,
    name: str,
    workspace: str | None,
    fields: tuple[str, ...],
    reason: str | None,
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a task's configuration; null takes one away."""
    changes = with_fields(given(workspace=_absolute(workspace)), fields)
    with changing(call, actor) as programs:
        task = programs.get(name, "task")
        answer(call, programs.change(task.id, changes, expected=expected, reason=reason, key=retry_key))


@command.verb("assign")
@named("name", "task")
@named("assignee", "agent", "human")
@acting
def assign(call: Call, name: str, assignee: str, actor: str, retry_key: str | None) -> None:
    """Make a task somebody's, without anybody beginning it."""
    with changing(call, actor) as programs:
        answer(call, programs.assign_task(name, assignee, key=retry_key))


@command.verb("start")
@named("name", "task")
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def start(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Begin a task; it is blocked while something it waits for is not done."""
    with changing(call, actor) as programs:
        answer(call, programs.start_task(name, reason=reason, key=retry_key))


@command.verb("complete")
@named("name", "task")
@click.option("--answer", "text", metavar="TEXT", help="The final answer; - reads it from standard input.")
@click.option("--workspace", metavar="FOLDER", help="The folder that criteria look into. Default: the task's, or here.")
@acting
def complete(call: Call, name: str, text: str | None, workspace: str | None, actor: str, retry_key: str | None) -> None:
    """End a task, if every success criterion holds; what was observed is recorded either way."""
    from weft.programs.tasks import criteria_of, explain_criterion
    from weft.runtime.agent_harness import CriterionCommands
    from weft.surfaces.cli.sandbox_access import command_runner

    final = decode_utf8(read_input(None, "no answer was given: pipe it in"), "the answer") if text == "-" else text
    with changing(call, actor) as programs:
        config = programs.get(name, "task").config
        own = config.get("workspace") if isinstance(config, dict) else None
        folder = workspace or own or "."
        run = CriterionCommands(command_runner(programs.ledger)).run
        done = programs.complete_task(name, answer=final, workspace=folder, run=run, key=retry_key)
        checks = [one for one in programs.checks(name) if one.version == done.version]
    criteria = criteria_of(done.config if isinstance(done.config, dict) else {})
    last_checks = {check.criterion: check for check in checks if check.passed and check.criterion < len(criteria)}
    lines: list[Line] = [
        [Span("  held ", "good"), explain_criterion(criteria[number], check.observed, passed=True)]
        for number, check in sorted(last_checks.items())
    ]
    answer(call, done, *lines)


@command.verb("run")
@named("name", "task")
@click.option("--workspace", metavar="FOLDER", help="The folder that it is worked on in. Default: the task's, or here.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model, this once.")
@click.option("--stream", is_flag=True, help="Show what its agent says as it comes.")
@as_actor
def run(call: Call, name: str, workspace: str | None, model: str | None, stream: bool, actor: str) -> int:
    """Have a task's assignee work on it: an agent until its criteria hold, a person by being told."""
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        task = programs.get(name, "task")
    own = task.config.get("workspace") if isinstance(task.config, dict) else None
    asked = Invocation(workspace=os.path.realpath(workspace or own or "."), model=model)
    report = invoked(call, actor, task.id, asked, stream=stream).result
    call.answer(JsonValue(report), *_report(report))
    return OK if "request" in report else work_exit_code(report["state"])


def _report(report: dict[str, Any]) -> list[Line]:
    lines: list[Line] = [
        ["task ", Span(report["task"], "label"), " is ", Span(report["state"], STYLES.get(report["state"], ""))]
    ]
    if "request" in report:
        return [*lines, [f"  {report['assignee']} was told"]]
    lines.append([f"  {report['assignee']} took {counted(report['turns'], 'turn')} in {report['session']}"])
    for one in report["criteria"]:
        verdict = Span("  held ", "good") if one["passed"] else Span("  unmet ", "bad")
        lines.append([verdict, one["words"]])
    if "reason" in report:
        lines.append([f"  {report['reason']}"])
    return lines


@command.verb("fail")
@named("name", "task")
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def fail(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Say that a task will not be done."""
    with changing(call, actor) as programs:
        answer(call, programs.fail_task(name, reason=reason, key=retry_key))
