"""`weft task`, and agents at work on tasks while somebody waits: planned, run, shown, asked
for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from weft.kernel.contents import decode_utf8
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import RenamedOption, read_input
from weft.surfaces.cli.command_line import DIFFERENT, OK, UNFINISHED, Call, group
from weft.surfaces.cli.programs.program_call import (
    RUN_TOOLSET,
    ProgressNotes,
    acting,
    answer,
    as_actor,
    changing,
    complete_programs,
    ensure_toolset,
    invoked,
    line_of,
    looking,
    named,
    show_list,
    show_program,
    spent_words,
)
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files import TurnNotes, note_turn, turn_notes_of
from weft.surfaces.cli.verb_commands import command_of, shows
from weft.surfaces.cli.work.broker_call import BrokerAccess, RunView, reply_fields, with_broker
from weft.surfaces.plain_text import safe_lines
from weft.verbs import agent_verbs
from weft.verbs.agent_verbs import free_task_name
from weft.verbs.answers import JsonValue, Listing
from weft.verbs.program_answers import AgentRun

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs import Program, Programs
    from weft.runtime.agent_harness import FinishedWork


# --- `weft task`: what is to be done, and whether it is.

task_command = group(
    "task",
    """Create tasks, and complete them when their success criteria hold.

    A task that has begun is blocked while something it depends on is not completed. docs/agents.md#programs lists the
    criteria.
    """,
)
MAKE = "make one with `weft task create TITLE`"
STYLES = {"completed": "good", "failed": "bad"}


@shows(
    agent_verbs.task_create,
    agent_verbs.task_configure,
    agent_verbs.task_assign,
    agent_verbs.task_start,
    agent_verbs.task_fail,
)
def show_changed_task(call: Call, task: Program) -> None:
    call.screen.show(*line_of(task))


@shows(agent_verbs.task_list)
def show_tasks(call: Call, listed: Listing[Program], status: str | None) -> None:
    show_list(call, list(listed.items), f"{status or ''} task".strip(), MAKE)


shows(agent_verbs.task_show)(show_program)
for task_verb in (
    agent_verbs.task_create,
    agent_verbs.task_list,
    agent_verbs.task_show,
    agent_verbs.task_configure,
    agent_verbs.task_assign,
    agent_verbs.task_start,
):
    task_command.add_command(command_of(task_verb))


@task_command.verb("complete")
@named("name", "task")
@click.option("--answer", "text", metavar="TEXT", help="The final answer; - reads it from standard input.")
@click.option(
    "--in",
    "workspace",
    cls=RenamedOption,
    old=("--workspace",),
    metavar="DIR",
    help="The folder that criteria look into. Default: the task's, or here.",
)
@acting
def complete_task(
    call: Call, name: str, text: str | None, workspace: str | None, actor: str, retry_key: str | None
) -> None:
    """Complete a task if every success criterion holds; what was observed is recorded either way."""
    from weft.programs.tasks import criteria_of, explain_criterion
    from weft.runtime.agent_harness import CriterionCommands
    from weft.surfaces.cli.work.sandbox_access import command_runner

    final = decode_utf8(read_input(None, "no answer was given: pipe it in"), "the answer") if text == "-" else text
    with changing(call, actor) as programs:
        config = programs.get(name, "task").config
        own = config.get("workspace") if isinstance(config, dict) else None
        folder = workspace or own or "."
        seen = CriterionCommands(command_runner(programs.ledger)).observe(folder, final)
        done = programs.complete_task(name, answer=final, seen=seen, key=retry_key)
        checks = [check for check in programs.checks(name) if check.version == done.version]
    criteria = criteria_of(done.config if isinstance(done.config, dict) else {})
    last_checks = {check.criterion: check for check in checks if check.passed and check.criterion < len(criteria)}
    lines: list[Line] = [
        [Span("  held ", "good"), explain_criterion(criteria[number], check.observed, passed=True)]
        for number, check in sorted(last_checks.items())
    ]
    answer(call, done, *lines)


@task_command.verb("run")
@named("name", "task")
@click.option(
    "--in",
    "workspace",
    cls=RenamedOption,
    old=("--workspace",),
    metavar="DIR",
    help="The folder that it is worked on in. Default: the task's, or here.",
)
@click.option(
    "--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model this time only."
)
@click.option("--stream", is_flag=True, help="Show what its agent says as it comes.")
@as_actor
def run_task(call: Call, name: str, workspace: str | None, model: str | None, stream: bool, actor: str) -> int:
    """Have a task's assignee work on it: an agent until its criteria hold, a person by being told.

    An agent works in a session made for the task, with its tools and within its harness (docs/agents.md#work-on-tasks);
    broken off, the same command or a broker goes on. Lines on standard error tell what it does, what it has spent and
    how many criteria hold. The report lists the last verdict on each criterion; a task that failed ends with exit code
    1, one that is not finished with 9.
    """
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
    for criterion in report["criteria"]:
        verdict = Span("  held ", "good") if criterion["passed"] else Span("  unmet ", "bad")
        lines.append([verdict, criterion["words"]])
    if "reason" in report:
        lines.append([f"  {report['reason']}"])
    return lines


task_command.add_command(command_of(agent_verbs.task_fail))


# --- `weft agent run`: a task that an agent works on while somebody waits, and work that is asked for again.

MOST_MESSAGES = 10_000
BUSY_SECONDS = 0.25
"""How soon is asked again for an agent that somebody else runs."""


class AgentRunRequest(Struct, frozen=True, kw_only=True):
    """What was asked for: words to make a task of, or the name of one."""

    agent: str
    words: str | None
    task: str | None
    folder: str | None
    session: str | None
    toolset: str | None
    key: str | None
    model: str | None = None


class PlannedRun(Struct, frozen=True, kw_only=True):
    """The task and its agent, and how the turns of the work are run."""

    agent: Program
    task: Program
    session: str | None
    workspace: str | None
    toolset: str | None


def run_agent(call: Call, request: AgentRunRequest) -> int:
    """Returns the command's exit code. Raises what ended the work before the harness did."""
    from weft.kernel.clock import SystemClock
    from weft.kernel.errors import InvalidInput
    from weft.runtime.agent_work import progress_of
    from weft.surfaces.cli.trust import workspace_of
    from weft.surfaces.cli.trust_commands import ask_about_rules, ask_about_work

    if request.words is not None and not request.words.strip():
        raise InvalidInput("the message is empty", "give a text, or pipe one in with -")
    workspace = None if request.folder is None else workspace_of(request.folder)
    view = RunView(call)
    if request.key is not None and (recorded := _recorded_run(call, request)) is not None:
        call.answer(recorded, *([line] for line in safe_lines(recorded.text or "")))
        return work_exit_code(recorded.task_state)
    if workspace is not None:
        ask_about_work(call, workspace)
        ask_about_rules(call, workspace)
    try:
        run, work, notes = with_broker(call, partial(_work_on_run, call, request, workspace, view), view.observe)
    finally:
        view.end()
    text = "" if work.reply is None else work.reply.reply.text
    is_shown = view.has_answer or work.reply is None
    call.answer(_run_form(run, work, view, notes), *([] if is_shown else [[line] for line in safe_lines(text)]))
    note_turn(call, notes)
    if not call.json:
        progress = progress_of(work.facts, SystemClock().now_ms())
        call.note(Span(run.agent.name, "label"), f" took {spent_words(progress)}")
        call.note(*_task_words(work))
    return work_exit_code(work.task.state)


def work_exit_code(task_state: str) -> int:
    """How a command ends that waited for work on a task."""
    return {"completed": OK, "failed": DIFFERENT}.get(task_state, UNFINISHED)


def _task_words(work: FinishedWork) -> tuple[Span | str, ...]:
    """What became of the task; where it is not over, what lets it go on."""
    task, name = work.task, Span(work.task.name, "label")
    if task.state == "completed":
        return "task ", name, " is completed"
    if task.state == "failed":
        return "task ", name, f" failed: {work.reason}" if work.reason else " failed"
    agent = work.facts.agent
    if agent.state == "paused":
        return "task ", name, f" is not finished: `weft agent resume {shell_word(agent.name)}` lets its agent go on"
    return "task ", name, f" is not finished: it is {task.state}, and {agent.name} is {agent.state}"


async def _work_on_run(
    call: Call, request: AgentRunRequest, workspace: str | None, view: RunView, access: BrokerAccess
) -> tuple[PlannedRun, FinishedWork, TurnNotes]:
    from weft.programs import Programs
    from weft.runtime.agent_harness import TaskWork, WorkRequest
    from weft.surfaces.cli.work.sandbox_access import command_runner

    programs, crossing = Programs(access.ledger), access.mirror.crossing
    run = await crossing.run(lambda: _plan_run(programs, request, workspace))
    work = TaskWork(
        access.mirror,
        programs,
        access.planner,
        command_runner(access.ledger),
        on_token=view.token,
        on_progress=None if call.json else ProgressNotes(call),
        on_admitted=access.prompts.show_queue,
    )
    options = {"toolset": run.toolset, "model": request.model}
    overrides = {name: value for name, value in options.items() if value is not None} or None
    asked = WorkRequest(authority=access.ledger.authority, overrides=overrides, workspace=run.workspace)
    with access.prompts.typed():
        try:
            done = await _when_free(call, run, partial(work.run, run.agent, run.task, asked, session=run.session))
        except BaseException as error:  # also Ctrl-C: a task that was made for this command ends with it
            if request.task is None:
                from weft.runtime.broker.broker import to_the_end

                await to_the_end(crossing.run(partial(_end, programs, run, error)))
            raise
    turns = [round.turn for round in done.facts.rounds if round.turn is not None]
    return run, done, await crossing.run(partial(turn_notes_of, call, access.ledger, turns))


async def _when_free(call: Call, run: PlannedRun, work: Any) -> FinishedWork:
    """The work, as soon as nobody else runs the agent."""
    from weft.kernel.errors import AgentBusy

    is_noted = False
    while True:
        try:
            finished: FinishedWork = await work()
            return finished
        except AgentBusy as error:
            if error.was_held:  # it was taken from us
                raise
        if not is_noted:
            is_noted = True
            call.note(f"{run.agent.name} is at work: this waits until it is free")
        await asyncio.sleep(BUSY_SECONDS)


def _plan_run(programs: Programs, request: AgentRunRequest, workspace: str | None) -> PlannedRun:
    """Nothing is recorded before everything that is named was found, nor where the agent cannot begin."""
    from weft.runtime.agent_harness import ensure_free

    agent = programs.get(request.agent, "agent")
    if request.task is not None:
        ensure_toolset(programs.ledger, request.toolset)
        task = programs.get(request.task, "task")
        is_current = agent.current_task == task.name
        label = None if is_current else request.session
        toolset = _toolset(programs.ledger, agent, agent.current_session if is_current else None, request.toolset)
        return PlannedRun(agent=agent, task=task, session=label, workspace=workspace, toolset=toolset)
    if agent.state in ("paused", "error"):
        ensure_free(agent)
    name = _task_name(programs, request)
    if agent.current_task not in (None, name):
        _ensure_held(programs, agent)
    label = request.session or f"{agent.name}:main"
    toolset = _toolset(programs.ledger, agent, label, request.toolset)
    words = request.words or ""
    config = {"title": words, "assignee": agent.name, **({} if workspace is None else {"workspace": workspace})}
    task = programs.create("task", name, config, key=None if request.key is None else f"{request.key} task")
    return PlannedRun(agent=agent, task=task, session=label, workspace=workspace, toolset=toolset)


def _ensure_held(programs: Programs, agent: Program) -> None:
    """Refuse an agent that has another task, unless somebody waits for its work: it is free when that ends."""
    from weft.kernel.errors import Action, AgentBusy, NotApplicable

    try:
        programs.release_agent(programs.hold_agent(agent.id))
    except AgentBusy:
        return
    raise NotApplicable(
        f"agent {agent.name!r} has the task {agent.current_task!r}", Action.WAIT_OR_RESET_AGENT.of(agent=agent.name)
    )


def _recorded_run(call: Call, request: AgentRunRequest) -> AgentRun | None:
    """What a run with the same retry key ended with; None where there was none, or where it is not over."""
    from weft.kernel.errors import NotFound
    from weft.programs import Programs
    from weft.programs.tasks import TASK_FIELD
    from weft.runtime.replies import load_reply

    with call.writing() as ledger:
        programs = Programs(ledger)
        try:
            task = programs.get(_task_name(programs, request), "task")
            session = ledger.session(request.session or f"{programs.get(request.agent, 'agent').name}:main")
        except NotFound:
            return None
        messages = ledger.inbox.list(session=session.id, states=["answered", "dead", "cancelled"], limit=MOST_MESSAGES)
        task_messages = [
            message
            for message in messages
            if isinstance(message.metadata, dict) and message.metadata.get(TASK_FIELD) == task.id
        ]
        if task.state not in ("completed", "failed") or not task_messages:
            return None
        is_answered = task.state == "completed" and task_messages[-1].state == "answered"
        answer = reply_fields(load_reply(ledger, task_messages[-1])) if is_answered else {}
    return AgentRun(
        message=task_messages[-1].id, session=session.label, session_id=session.id, is_fork=False,
        state=task_messages[-1].state, route=None, receipt=None, **answer, workspace=None, toolset=None, calls=(),
        task=task.name, task_state=task.state, turns=len(task_messages),
    )  # fmt: skip


def _task_name(programs: Programs, request: AgentRunRequest) -> str:
    """Of the task that is made of words: with a retry key always the same, and another than that of other keys."""
    words = request.words or ""
    if request.key is None:
        return free_task_name(programs, words, None)
    mark = hashlib.sha256(request.key.encode()).hexdigest()[:8]
    return f"{free_task_name(programs, words, request.key)}-{mark}"


def _toolset(ledger: Ledger, agent: Program, label: str | None, toolset: str | None) -> str | None:
    """The toolset that the messages name: the one that was asked for, or where nothing is configured the default one.
    Raises NotApplicable where the session is that of another agent, NotFound where there is no such toolset."""
    from weft.kernel.errors import NotApplicable, NotFound
    from weft.programs import Programs

    configs = [agent.config]
    try:
        opened = None if label is None else ledger.session(label)
    except NotFound:
        opened = None
    if opened is not None:
        if opened.persona_id not in (agent.id, agent.name):
            raise NotApplicable(f"session {opened.label!r} is not one of {agent.name}", "name another with --session")
        configs.append(Programs(ledger).get(opened.id, "session").config)
    ensure_toolset(ledger, toolset)
    is_configured = any(isinstance(config, dict) and config.get("toolset") for config in configs)
    return toolset or (None if is_configured else RUN_TOOLSET)


def _end(programs: Programs, run: PlannedRun, error: BaseException) -> None:
    """The agent is idle, and the task that was made of words has failed."""
    from weft.kernel.errors import LedgerError, WeftError

    words = str(error) if isinstance(error, WeftError) else "it was interrupted"
    with suppress(LedgerError):  # somebody else has moved them meanwhile
        agent, task = programs.get(run.agent.id), programs.get(run.task.id)
        if agent.current_task == task.name:
            programs.stop_work(agent.id, reason=words)
            return
        if task.state == "pending":
            task = programs.start_task(task.id)
        if task.state == "active":
            programs.fail_task(task.id, reason=words)


def _run_form(run: PlannedRun, work: FinishedWork, view: RunView, notes: TurnNotes) -> AgentRun:
    admission, facts = work.admission, work.facts
    last = facts.last
    return AgentRun(
        message="" if last is None else last.message.id,
        session=facts.session,
        session_id=facts.assignment.session,
        is_fork=False,
        state="answered" if work.reply is not None else work.task.state,
        route=None,
        receipt=None if admission is None else admission.receipt,
        **({} if work.reply is None else reply_fields(work.reply)),
        workspace=run.workspace,
        toolset=run.toolset,
        calls=tuple(view.calls),
        task=work.task.name,
        task_state=work.task.state,
        turns=len(facts.rounds),
        reason=work.reason,
        **notes.fields(),
    )


def resume_agent(call: Call, actor: str, agent: Program) -> None:
    """Tell an agent whose work stands still to go on; a broker answers that."""

    async def work(access: BrokerAccess) -> None:
        from weft.programs import Programs
        from weft.runtime.agent_harness import resume_work
        from weft.runtime.agent_work import Say
        from weft.surfaces.cli.work.sandbox_access import command_runner

        programs = Programs(call.in_name_of(actor, access.ledger))
        if not isinstance(await resume_work(access.mirror, programs, command_runner(access.ledger), agent), Say):
            call.note(f"its work does not stand still: `weft agent status {shell_word(agent.name)}` shows it")

    with_broker(call, work)
