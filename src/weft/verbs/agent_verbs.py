"""Agents, the people beside them, what their tools are at most, and the tasks that both have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from weft.kernel.errors import InvalidInput, quoted
from weft.programs.program_records import Program
from weft.verbs.answers import Listing
from weft.verbs.declaration import (
    ExpectedVersion,
    Fields,
    OpenMode,
    Reason,
    RequestError,
    RetryKey,
    TypedForm,
    VerbGroup,
    arg,
    fields_set,
    opt,
    program,
    verb,
)
from weft.verbs.program_answers import ListedToolset
from weft.verbs.program_verbs import NewName, given, list_verb, show_verb

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs import Programs
    from weft.runtime.tool.toolsets import Toolset

AGENT, ASSIGN_AGENT = "program:agent:configure", "program:agent:assign"
AgentName = Annotated[str, arg("An agent.", names=program("agent"))]
ModelName = Annotated[str | None, opt("The model that it asks.", metavar="NAME", names=program("model"))]
Prompt = Annotated[str | None, opt("System prompt: who it is and how it works.", metavar="TEXT")]
ToolsetName = Annotated[str | None, opt("What its tools are at most; `weft toolset list` shows them.", metavar="NAME")]


# --- Agents: made, configured, shared.


def _check_agent(public: bool, private: bool) -> None:
    if public and private:
        raise RequestError("give {public} or {private}")


@verb(
    "agent create", right=AGENT, method="programs.create", opens=OpenMode.WRITING, takes_actor=True, check=_check_agent
)
def agent_create(
    ledger: Ledger,
    name: NewName,
    prompt: Prompt = None,
    model: ModelName = None,
    toolset: ToolsetName = None,
    tools: Annotated[
        tuple[str, ...], opt("A code program that it can call; repeatable.", "--tool", metavar="NAME")
    ] = (),
    public: Annotated[bool, opt("Everybody can mention it; the default.")] = False,
    private: Annotated[bool, opt("Only its creator, and whom it is shared with.")] = False,
    fields: Fields = None,
    retry_key: RetryKey = None,
) -> Program:
    """Make an agent, or describe one that was only named so far."""
    from weft.programs import Programs

    visibility = "public" if public else "private" if private else None
    options = given(
        prompt=prompt, defaultModel=model, toolset=toolset, tools=list(tools) or None, visibility=visibility
    )
    return Programs(ledger).create("agent", name, fields_set(options, fields), key=retry_key)


@verb("agent configure", right=AGENT, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def agent_configure(
    ledger: Ledger,
    name: AgentName,
    prompt: Prompt = None,
    model: ModelName = None,
    toolset: ToolsetName = None,
    fields: Fields = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of an agent's configuration; null takes one away."""
    from weft.programs import Programs

    changes = fields_set(given(prompt=prompt, defaultModel=model, toolset=toolset), fields)
    programs = Programs(ledger)
    return programs.change(programs.get(name, "agent").id, changes, expected=expected, key=retry_key)


agent_list = list_verb("agent", "agent", "agents")
agent_show = show_verb("agent", article="an")
Whom = Annotated[tuple[str, ...], arg("People and agents.", metavar="WITH...", names=program("human", "agent"))]


def _check_whom(principals: tuple[str, ...]) -> None:
    if not principals:
        raise RequestError("name the people and agents: {principals}")


@verb(
    "agent share",
    right=AGENT,
    method="programs.share_agent",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_whom,
)
def agent_share(ledger: Ledger, name: AgentName, principals: Whom, retry_key: RetryKey = None) -> Program:
    """Share a private agent with people and agents, by their names.

    Only its creator and the ledger's owner share it.
    """
    from weft.programs import Programs

    programs = Programs(ledger)
    return [programs.share_agent(name, whom, key=_key_for(retry_key, whom)) for whom in principals][-1]


@verb(
    "agent unshare",
    right=AGENT,
    method="programs.unshare_agent",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_whom,
)
def agent_unshare(ledger: Ledger, name: AgentName, principals: Whom, retry_key: RetryKey = None) -> Program:
    """Stop sharing a private agent with people and agents."""
    from weft.programs import Programs

    programs = Programs(ledger)
    return [programs.unshare_agent(name, whom, key=_key_for(retry_key, whom)) for whom in principals][-1]


def _key_for(retry_key: str | None, principal: str) -> str | None:
    return None if retry_key is None else f"{retry_key} {principal}"


@verb("agent visibility", right=AGENT, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def agent_visibility(
    ledger: Ledger,
    name: AgentName,
    visibility: Annotated[Literal["public", "private"], arg("For whom it works.")],
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Let an agent work for everybody, or only for its creator and those it is shared with.

    Others are answered as if there were no such agent, by every command; docs/security.md says how. Only its creator
    and the ledger's owner change it.
    """
    from weft.programs import Programs

    programs = Programs(ledger)
    agent = programs.get(name, "agent")
    return programs.change(agent.id, {"visibility": visibility}, expected=expected, key=retry_key)


# --- What an agent works on.


@verb("agent assign", right=ASSIGN_AGENT, method="programs.assign", opens=OpenMode.WRITING, takes_actor=True)
def agent_assign(
    ledger: Ledger,
    name: AgentName,
    task: Annotated[str, arg("A task.", names=program("task"))],
    retry_key: RetryKey = None,
) -> Program:
    """Give an idle agent a task; a session for it is made. Where a broker runs, the work begins.

    docs/agents.md#work-on-tasks tells how it goes on.
    """
    from weft.programs import Programs

    programs = Programs(ledger)
    _ensure_workspace(programs.get(task, "task"))
    return programs.assign(name, task, key=retry_key)


def _ensure_workspace(task: Program) -> None:
    """Refuse a task whose criteria look into a folder that it does not name: a broker has none of its own."""
    from weft.kernel.errors import NotApplicable
    from weft.kernel.typed_names import shell_word
    from weft.programs.tasks import criteria_of

    config = task.config if isinstance(task.config, dict) else {}
    needs_folder = any("path" in criterion or criterion.get("type") == "command" for criterion in criteria_of(config))
    if needs_folder and not config.get("workspace"):
        raise NotApplicable(
            f"the criteria of task {task.name!r} look into a workspace, and it has none",
            f"name one: `weft task configure {shell_word(task.name)} --in DIR`",
        )


@verb("agent stop", right=ASSIGN_AGENT, method="programs.stop_work", opens=OpenMode.WRITING, takes_actor=True)
def agent_stop(ledger: Ledger, name: AgentName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """End an agent's work: the turn is cut short, its task fails, and the agent is idle.

    What was said and done until then stays.
    """
    from weft.programs import Programs

    words = "it was stopped" if reason is None else f"it was stopped: {reason}"
    return Programs(ledger).stop_work(name, reason=words, key=retry_key)


@verb("agent reset", right=ASSIGN_AGENT, method="programs.step_agent", opens=OpenMode.WRITING, takes_actor=True)
def agent_reset(ledger: Ledger, name: AgentName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Make an agent idle, whatever it was doing, and take its task away."""
    from weft.programs import Programs

    return Programs(ledger).step_agent(name, "reset", reason=reason, key=retry_key)


@verb("agent pause", right=ASSIGN_AGENT, method="programs.step_agent", opens=OpenMode.WRITING, takes_actor=True)
def agent_pause(ledger: Ledger, name: AgentName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Pause an agent: the turn under way ends, and no other one begins until it is resumed."""
    from weft.programs import Programs

    return Programs(ledger).step_agent(name, "pause", reason=reason, key=retry_key)


# --- People.

HUMAN = "program:human:configure"


@verb(
    "human create", right="program:human:configure", method="programs.create", opens=OpenMode.WRITING, takes_actor=True
)
def human_create(
    ledger: Ledger,
    name: NewName,
    display_name: Annotated[
        str | None, opt("What they are called.", "--name", "--display-name", metavar="TEXT")
    ] = None,
    permissions: Annotated[
        tuple[str, ...],
        opt(
            "approve, assign, configure, or such as session:read(LABEL) or machine:folder(/srv/*).",
            "--permission",
            metavar="RIGHT",
        ),
    ] = (),
    channel: Annotated[str | None, opt("How they are told: terminal, command or webhook.", metavar="NAME")] = None,
    fields: Fields = None,
    retry_key: RetryKey = None,
) -> Program:
    """Make a person."""
    from weft.programs import Programs

    preferences = None if channel is None else {"notificationChannel": channel}
    config = {**given(name=display_name, preferences=preferences), "permissions": list(permissions)}
    return Programs(ledger).create("human", name, fields_set(config, fields), key=retry_key)


human_list = list_verb("human", "human", "people")
human_show = show_verb("human", whom="person")


@verb(
    "human presence",
    right="program:human:configure",
    method="programs.set_presence",
    opens=OpenMode.WRITING,
    takes_actor=True,
)
def human_presence(
    ledger: Ledger,
    name: Annotated[str, arg("A person.", names=program("human"))],
    presence: Annotated[Literal["available", "busy", "away", "offline"], arg("Whether they are there.")],
    retry_key: RetryKey = None,
) -> Program:
    """Set a person's presence."""
    from weft.programs import Programs

    return Programs(ledger).set_presence(name, presence, key=retry_key)


# --- Toolsets: named lists of tools with the sandbox that they run in.

TOOLSET = "program:toolset:configure"
toolset_group = VerbGroup(
    "toolset",
    """Manage toolsets: named lists of tools, each with a sandbox profile.

    A turn has tools where its agent, its session or its message names a toolset; where several are named, each of them
    narrows. A toolset never allows what other permissions refuse. manager, worker and full are built in and cannot be
    changed. A pattern that fits no tool now is told and taken: tools may come later, with an MCP server.
    """,
)
NamedToolset = Annotated[str, arg("A toolset.", names=program("toolset"))]
Sandbox = Annotated[
    str | None,
    opt("workspace, read-only, network:HOST[,HOST] or read-only+network:HOST[,HOST].", metavar="PROFILE"),
]
Description = Annotated[str | None, opt("What it is for.", metavar="TEXT")]


@verb("toolset create", right=TOOLSET, method="programs.create", opens=OpenMode.WRITING, takes_actor=True)
def toolset_create(
    ledger: Ledger,
    name: NewName,
    allow: Annotated[
        tuple[str, ...], opt("A tool that it has: NAME, NAME(PATTERN) or SERVER/*; repeatable.", metavar="PATTERN")
    ],
    deny: Annotated[
        tuple[str, ...], opt("A tool, or a use of one, that it has not; repeatable.", metavar="PATTERN")
    ] = (),
    sandbox: Sandbox = None,
    description: Description = None,
    retry_key: RetryKey = None,
) -> Program:
    """Make a toolset. It only narrows what else is permitted."""
    from weft.programs import Programs

    config = _toolset_config(allow, deny, sandbox, description)
    return Programs(ledger).create("toolset", name, config, key=retry_key)


@verb("toolset list")
def toolset_list(ledger: Ledger) -> Listing[ListedToolset]:
    """List toolsets, those that are built in first."""
    from weft.programs import Programs
    from weft.runtime.tool.toolsets import BUILT_IN, toolset_of

    own = [(toolset_of(program), program) for program in Programs(ledger).all("toolset")]
    return Listing(items=[*map(_listed, BUILT_IN.values()), *(_listed(toolset, program) for toolset, program in own)])


@verb("toolset show")
def toolset_show(ledger: Ledger, name: NamedToolset) -> ListedToolset:
    """Show what a toolset allows and denies, and its sandbox."""
    from weft.programs import Programs

    return _listed(*_find_toolset(Programs(ledger), name))


def _check_edit(
    allow: tuple[str, ...], deny: tuple[str, ...], deny_nothing: bool, sandbox: str | None, description: str | None
) -> None:
    if deny and deny_nothing:
        raise RequestError("give {deny} or {deny_nothing}")
    if not _toolset_config(allow, deny, sandbox, description) and not deny_nothing:
        raise RequestError("say what is to change")


@verb(
    "toolset edit",
    right=TOOLSET,
    method="programs.change",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_edit,
)
def toolset_edit(
    ledger: Ledger,
    name: NamedToolset,
    allow: Annotated[tuple[str, ...], opt("In place of all that it has; repeatable.", metavar="PATTERN")] = (),
    deny: Annotated[tuple[str, ...], opt("In place of all that it denies; repeatable.", metavar="PATTERN")] = (),
    deny_nothing: Annotated[bool, opt("Clear the deny list.")] = False,
    sandbox: Sandbox = None,
    description: Description = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change a toolset; what is not named stays."""
    from weft.programs import Programs

    changes = _toolset_config(allow, deny, sandbox, description)
    if deny_nothing:
        changes.setdefault("tools", {})["deny"] = []
    programs = Programs(ledger)
    return programs.change(_own_toolset(programs, name).id, changes, expected=expected, key=retry_key)


@verb("toolset delete", right=TOOLSET, method="programs.delete", opens=OpenMode.WRITING, takes_actor=True)
def toolset_delete(
    ledger: Ledger,
    name: NamedToolset,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Delete a toolset. Turns of agents and sessions that name it are refused until they name another."""
    from weft.programs import Programs

    programs = Programs(ledger)
    return programs.delete(_own_toolset(programs, name).id, expected=expected, reason=reason, key=retry_key)


def _toolset_config(
    allow: tuple[str, ...], deny: tuple[str, ...], sandbox: str | None, description: str | None
) -> dict[str, Any]:
    """The fields that were given, checked where the kind itself does not look into them."""
    from weft.runtime.sandbox.profiles import parse_profile
    from weft.runtime.tool.toolsets import checked_tool_patterns, sandbox_config

    tools = {
        name: list(checked_tool_patterns(patterns)) for name, patterns in (("allow", allow), ("deny", deny)) if patterns
    }
    config: dict[str, Any] = {"tools": tools} if tools else {}
    if sandbox is not None:
        config["sandbox"] = sandbox_config(parse_profile(sandbox))
    if description is not None:
        config["description"] = description
    return config


def _find_toolset(programs: Programs, name: str) -> tuple[Toolset, Program | None]:
    from weft.runtime.tool.toolsets import BUILT_IN, toolset_of

    if name in BUILT_IN:
        return BUILT_IN[name], None
    program = programs.get(name, "toolset")
    return toolset_of(program), program


def _own_toolset(programs: Programs, name: str) -> Program:
    """A toolset that can be changed."""
    from weft.kernel.errors import NotApplicable

    toolset, program = _find_toolset(programs, name)
    if program is None:
        raise NotApplicable(f"the toolset {toolset.name!r} is built in", "make one of your own: `weft toolset create`")
    return program


def _listed(toolset: Toolset, program: Program | None = None) -> ListedToolset:
    limits = toolset.limits
    return ListedToolset(
        name=toolset.name,
        description=toolset.description,
        is_built_in=toolset.is_built_in,
        allow=limits.allow,
        deny=limits.deny,
        sandbox=limits.sandbox.text,
        version=None if program is None else program.version,
        state=None if program is None else program.state,
    )


# --- Tasks: what is to be done, and whether it is.

TASK, ASSIGN_TASK = "program:task:configure", "program:task:assign"
TaskName = Annotated[str, arg("A task.", names=program("task"))]
CriteriaFolder = Annotated[
    str | None, opt("The folder that criteria look into.", "--in", old=("--workspace",), metavar="DIR")
]
TASK_STATES = ("pending", "active", "blocked", "completed", "failed")
OTHER_STATE_NAMES = {"in_progress": "active", "todo": "pending", "done": "completed"}


@verb("task create", right=TASK, method="programs.create", opens=OpenMode.WRITING, takes_actor=True)
def task_create(
    ledger: Ledger,
    title: Annotated[str, arg("What is to be done.")],
    name: Annotated[
        str | None, opt("The name to address it by; else one is made of the title.", metavar="NAME")
    ] = None,
    assignee: Annotated[
        str | None,
        opt("The agent or person who works on it.", metavar="NAME", names=program("agent", "human")),
    ] = None,
    priority: Annotated[str | None, opt("How urgent it is; P0 is most.", metavar="P0-P4")] = None,
    needs: Annotated[tuple[str, ...], opt("A task to wait for; repeatable.", "--depends-on", metavar="TASK")] = (),
    criteria: Annotated[
        tuple[Any, ...],
        opt("A success criterion; repeatable.", "--criterion", metavar="JSON", typed=TypedForm.JSON, what="criterion"),
    ] = (),
    workspace: CriteriaFolder = None,
    fields: Fields = None,
    retry_key: RetryKey = None,
) -> Program:
    """Make a task."""
    from weft.programs import Programs

    spec = {"successCriteria": list(criteria)} if criteria else None
    options = given(title=title, assignee=assignee, priority=priority, dependencies=list(needs) or None, spec=spec)
    config = fields_set({**options, **given(workspace=_absolute_folder(workspace))}, fields)
    programs = Programs(ledger)
    chosen = name or free_task_name(programs, title, retry_key)
    return programs.create("task", chosen, config, key=retry_key)


def free_task_name(programs: Programs, title: str, retry_key: str | None) -> str:
    """Made of the title, with a number where it is taken; with a retry key always the same."""
    from weft.programs.program_records import name_from

    wanted, taken = name_from(title, "task"), {task.name for task in programs.all("task")}
    if wanted not in taken or retry_key is not None:
        return wanted
    return next(name for k in range(2, len(taken) + 3) if (name := f"{wanted}-{k}") not in taken)


def _absolute_folder(folder: str | None) -> str | None:
    """A folder as a task keeps it: whoever works on it later stands elsewhere. One that names a variable is kept as it
    is."""
    import os

    if folder is None or "${" in folder:
        return folder
    if "\0" in folder:
        raise InvalidInput(f"{quoted(folder)} is no path", "a path has no NUL")
    return os.path.realpath(folder)


def _check_state(status: str | None) -> None:
    state = OTHER_STATE_NAMES.get(status or "", status)
    if state is not None and state not in TASK_STATES:
        raise RequestError("{status} {typed} is none of {states}", typed=repr(status), states=", ".join(TASK_STATES))


@verb("task list", check=_check_state)
def task_list(
    ledger: Ledger,
    status: Annotated[str | None, opt(f"{', '.join(TASK_STATES)}; in_progress is active.", metavar="STATE")] = None,
) -> Listing[Program]:
    """List tasks."""
    from weft.programs import Programs

    state = OTHER_STATE_NAMES.get(status or "", status)
    return Listing(items=Programs(ledger).all("task", states=[state] if state else []))


task_show = show_verb("task")


@verb("task configure", right=TASK, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def task_configure(
    ledger: Ledger,
    name: TaskName,
    workspace: CriteriaFolder = None,
    fields: Fields = None,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of a task's configuration; null takes one away."""
    from weft.programs import Programs

    changes = fields_set(given(workspace=_absolute_folder(workspace)), fields)
    programs = Programs(ledger)
    task = programs.get(name, "task")
    return programs.change(task.id, changes, expected=expected, reason=reason, key=retry_key)


@verb("task assign", right=ASSIGN_TASK, method="programs.assign_task", opens=OpenMode.WRITING, takes_actor=True)
def task_assign(
    ledger: Ledger,
    name: TaskName,
    assignee: Annotated[str, arg("An agent or a person.", names=program("agent", "human"))],
    retry_key: RetryKey = None,
) -> Program:
    """Assign a task without starting it."""
    from weft.programs import Programs

    return Programs(ledger).assign_task(name, assignee, key=retry_key)


@verb("task start", right=ASSIGN_TASK, method="programs.start_task", opens=OpenMode.WRITING, takes_actor=True)
def task_start(ledger: Ledger, name: TaskName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Start a task; it is blocked while something that it depends on is not completed."""
    from weft.programs import Programs

    return Programs(ledger).start_task(name, reason=reason, key=retry_key)


@verb("task fail", right=ASSIGN_TASK, method="programs.fail_task", opens=OpenMode.WRITING, takes_actor=True)
def task_fail(ledger: Ledger, name: TaskName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Mark a task as failed."""
    from weft.programs import Programs

    return Programs(ledger).fail_task(name, reason=reason, key=retry_key)
