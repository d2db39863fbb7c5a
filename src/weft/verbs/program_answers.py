"""Answers about programs, vectors and the command line itself; about agents at work,
policies, triggers, rooms and resources; about tools, toolsets, the turns that work with them,
MCP servers and the sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.verbs.answers import SentMessage, WatchedCall

if TYPE_CHECKING:
    from weft.ledger.api import (
        Firing,
        Invitation,
        MissedTimes,
        Owner,
        Participant,
        PostedMessage,
        ReachedAgent,
        Resource,
        ResourceRestore,
        Room,
        RoomMessage,
        Snapshot,
    )
    from weft.programs.program_records import Program
    from weft.runtime.agent_work import WorkProgress
    from weft.runtime.sandbox.toolchains import HiddenProgram, ToolchainRow
    from weft.runtime.tool.toolsets import WithheldTools
    from weft.runtime.tools.mcp_server_settings import DefinitionState, McpServer


# --- Answers about programs, vectors and the command line itself.


class EmbeddedNodes(Struct, frozen=True, kw_only=True):
    """`embed --all`: how many nodes of a kind have a vector now."""

    embedded: int
    kind: str


class ForgottenVectors(Struct, frozen=True, kw_only=True):
    """`embed --forget`: how many vectors were taken away."""

    forgotten: int


class FetchableModel(Struct, frozen=True, kw_only=True):
    """`model get`: a model that can be fetched, and where it lies on this machine, if it does."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    license: str
    path: str | None


class ShellScript(Struct, frozen=True, kw_only=True):
    """`completion`: what a shell runs to complete commands."""

    shell: str
    script: str


class HelpText(Struct, frozen=True, kw_only=True):
    """`help`: the text of a topic or a command."""

    topic: str | None
    text: str


class ProgramVersion(Struct, frozen=True, kw_only=True):
    """`--version`: the program's version, and the version of these forms."""

    version: str
    wire_version: int


# --- Answers about agents at work.


class AgentStatus(Struct, frozen=True, kw_only=True):
    """`agent status`: an agent, and how far its work on its task has come; null where it has none."""

    agent: Program
    work: WorkProgress | None


# --- Answers about approval policies.


class PolicySource(Struct, frozen=True, kw_only=True):
    """`policy show`: a policy with its source, as the resource that agents read. The one that comes with weft has no
    id."""

    uri: str
    id: str | None
    name: str
    state: str
    agent: str | None
    digest: str
    source: str
    docstring: str | None = None
    notes: str | None = None
    proposed_by: str | None = None
    proposed_at: int | None = None
    decided_by: str | None = None
    decided_at: int | None = None


class PolicyTestEntry(Struct, frozen=True, kw_only=True):
    """How one test of a policy ended."""

    name: str
    passed: bool
    expected: str
    decision: str
    rationale: str


class TestedPolicy(Struct, frozen=True, kw_only=True):
    """`policy test`: how the own tests of a policy ended."""

    name: str
    digest: str
    docstring: str | None
    total: int
    passed: int
    failed: int
    tests: tuple[PolicyTestEntry, ...]


# --- Answers about triggers.


class ListedTrigger(Struct, frozen=True, kw_only=True):
    """`trigger list`: a trigger with what it did last and does next. `on` is what sets it off; `missed` is how many
    times of its schedule it did not fire since it was last configured or resumed. Times are Unix milliseconds."""

    id: str
    name: str
    state: str
    version: int
    foreign: bool
    on: Mapping[str, Any]
    to: Mapping[str, Any]
    next_due: int | None
    fired: Firing | None
    missed: int
    reason: str | None
    """Why it is paused."""
    fault: str | None
    """Why its configuration cannot be read, in which case it never fires: another ledger wrote it."""


class ShownTrigger(ListedTrigger, frozen=True, kw_only=True):
    """`trigger show`: the same with all of its configuration and the times that it missed."""

    config: Any
    gaps: tuple[MissedTimes, ...]


class FiredTrigger(Struct, frozen=True, kw_only=True):
    """`trigger run` and `trigger deliver`: what came of it. `is_new` is false where it had fired for the same occasion
    before; `paused` is why it was paused instead."""

    trigger: str
    is_new: bool
    message: str | None
    session: str | None
    posted: str | None
    paused: str | None


# --- What the commands of rooms answer beside the records of the ledger.


class RoomMember(Struct, frozen=True, kw_only=True):
    """Somebody in a room, and how they are shown: by their picture, or where they have none by their emoji. Of an agent
    that does not work for whoever looks nothing more is told than its name."""

    participant: Participant
    avatar_url: str | None = None
    emoji: str | None = None
    last_active_time: int | None = None


class ShownRoom(Struct, frozen=True, kw_only=True):
    """`room show`: a room, everybody who takes part, and who waits to be let in."""

    room: Room
    members: tuple[RoomMember, ...]
    invitations: tuple[Invitation, ...]


class AnsweredPost(Struct, frozen=True, kw_only=True):
    """`room post`: what became of a message. `answers` are what was said because of it while it was waited for,
    notices included; `waiting` are agents that have not answered; `unknown` are names behind an @ that nobody has or
    several have, and that stayed text."""

    posted: PostedMessage
    answers: tuple[RoomMessage, ...] = ()
    waiting: tuple[ReachedAgent, ...] = ()
    unknown: tuple[str, ...] = ()


class DeclinedInvitation(Struct, frozen=True, kw_only=True):
    """`room decline`: whose invitation to which room was ended."""

    room: str
    person: str


# --- Answers about resources.


class ShownResource(Struct, frozen=True, kw_only=True):
    """`resource show`: a resource and its snapshots, the newest first; `not_here` has the ids of those whose files lie
    beside another ledger, or are lost. `wanted` are snapshots and restores that are not done yet, `waits_because` says
    what they wait for, where that is known."""

    resource: Resource
    snapshots: tuple[Snapshot, ...]
    not_here: tuple[str, ...]
    wanted: tuple[str, ...] = ()
    waits_because: str | None = None


class ProbedResource(Struct, frozen=True, kw_only=True):
    """`resource probe`: whether a resource was found alive."""

    id: str
    name: str
    liveness: str


class ResourceOwnership(Struct, frozen=True, kw_only=True):
    """`resource owners`: who owned a resource, and how long; `until_at` is null while it holds."""

    owner: Owner
    why: str | None
    since_at: int
    until_at: int | None


class RestoredSnapshot(Struct, frozen=True, kw_only=True):
    """`resource restore`: what came of it. `before` is the snapshot of what was overwritten; `left` is what could not
    be made equal."""

    restore: ResourceRestore
    place: str
    before: str | None
    left: tuple[str, ...]


class ReconciledResources(Struct, frozen=True, kw_only=True):
    """`resource reconcile`: the snapshots and restores that were carried out, the resources that somebody else works
    on, and what was to be removed and could not be."""

    snapshots: tuple[Snapshot, ...]
    restores: tuple[ResourceRestore, ...]
    busy: tuple[str, ...]
    left: tuple[str, ...]


class HandleOutput(Struct, frozen=True, kw_only=True):
    """`resource exec` and `resource logs`: what was printed. `rc` is null where nobody knows it."""

    id: str
    rc: int | None
    stdout: str
    stderr: str
    is_truncated: bool
    has_timed_out: bool


class KilledResource(Struct, frozen=True, kw_only=True):
    """`resource kill`: whether it was running when the signal was sent, and how it was found afterwards."""

    id: str
    was_running: bool
    liveness: str


# --- Answers about tools, toolsets, and turns that work with them.


class AgentRun(SentMessage, frozen=True, kw_only=True):
    """`agent run`: the last message of the work and its answer, as `send` tells them, with the task and the tool calls
    of its turns. `reason` says why the task failed."""

    workspace: str | None
    toolset: str | None
    calls: tuple[WatchedCall, ...]
    task: str
    task_state: str
    turns: int
    reason: str | None = None


class ListedToolset(Struct, frozen=True, kw_only=True):
    """`toolset`: what a turn that names it may use at most. `allow` is null where every tool is allowed; `sandbox` is
    the profile that its tools run in, as far as the toolset decides it."""

    name: str
    description: str
    is_built_in: bool
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    sandbox: str
    version: int | None
    state: str | None


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool that a turn could have. `source` is `built in`, `code` or the name of an MCP server; `use` says what the
    permissions leave of it: `all`, `some` or `none`. With `none` the model is not offered it."""

    name: str
    source: str
    is_read_only: bool
    use: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]


class OfferedTools(Struct, frozen=True, kw_only=True):
    """`tools`: what the next turn of an agent or a session would have."""

    agent: str
    session: str | None
    workspace: str | None
    toolset: str | None
    sandbox: str
    tools: tuple[OfferedTool, ...]
    gives_allowed: bool
    """Whether no toolset is named and the turn has what its agent is allowed."""
    withheld: tuple[WithheldTools, ...]
    """Tools that the turn does not have though its agent is allowed them or its toolset lists them."""
    troubles: dict[str, str]
    """MCP servers that could not be used, and why."""


# --- What `weft mcp` answers.


class ListedServer(Struct, frozen=True, kw_only=True):
    """`mcp list`: a server, and how many of its tools are approved."""

    server: McpServer
    approved: int


class ListedTool(Struct, frozen=True, kw_only=True):
    """`mcp tools`: a tool of a server as it is defined now. `digest` is null where it is defined no more;
    `difference` is what changed since it was approved, as lines of JSON."""

    name: str
    state: DefinitionState
    digest: str | None
    description: str
    difference: str


class ApprovedTools(Struct, frozen=True, kw_only=True):
    """`mcp add`, `approve`: the tools of a server that may be used now, by their names."""

    server: str
    tools: tuple[str, ...]


class ConfiguredAgent(Struct, frozen=True, kw_only=True):
    """`mcp config`: what stands in the file of a coding agent, or would. `change` is `shown`, `added`, `changed`,
    `removed` or `unchanged`; `entry` is null where it was removed, `difference` what was written, as lines of a
    diff."""

    tool: str
    file: str
    name: str
    change: str
    entry: Mapping[str, Any] | None
    difference: str


# --- The JSON form of a command that ran in the sandbox.


class SandboxRun(Struct, frozen=True, kw_only=True, rename={"plan_digest": "bound"}):
    """`sandbox run`: what was executed, under which profile, and what came of it as the tool `shell` tells it. `error`
    is set where a limit ended the command. `toolchains` are those of the home folder that it was shown, and
    `hidden_programs` those to which the workspace leads and that it was not."""

    argv: Sequence[str]
    cwd: str
    profile: str
    granted_by: str | None
    plan_digest: str
    files: Mapping[str, str]
    result: Mapping[str, Any]
    error: str | None
    toolchains: Sequence[ToolchainRow] = ()
    hidden_programs: Sequence[HiddenProgram] = ()
