"""What may be done with a tool call: permissions, then the approval policy, then perhaps a person.

Whether a call stays where its person lets agents work without asking is decided here, and the policy
is told. A call that a person approved has its folder for itself. Whoever watches a turn hears what was decided.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.authority import TOOL_PREFIX
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.contents import dumps, loads
from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import StoreError, Unsupported, WeftError, error_code, error_text
from weft.ledger.api import Approval, KeptState
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.policies.policy_decisions import PolicyCall, PolicyContext, PolicyDecision
from weft.runtime.sandbox.git_repositories import lies_in_git_folder
from weft.runtime.sandbox.git_view import GitPerson, obeyed_settings, repository_settings
from weft.runtime.sandbox.hidden_places import HiddenFiles, ProtectedPlaces
from weft.runtime.sandbox.profiles import is_beneath
from weft.runtime.sandbox.sandbox_plan import held_programs, own_installation
from weft.runtime.tool.tool_contract import (
    CallAnswer,
    CallPlan,
    ExclusiveTool,
    Gate,
    LaterResult,
    PlannedTool,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
    Verdict,
    WorkspaceKeeper,
    ensure_object,
    in_thread,
    unknown_tool,
)

# --- Whether a call stays where its person lets agents work without asking: the facts that the approval policy is
# told.

FILE_CHANGES = frozenset({"write", "edit"})

IsTrusted = Callable[[str], bool]
"""Whether the person trusts a folder for work, by its path without links."""


class CallContainment:
    """What holds for the calls of one turn."""

    def __init__(
        self, is_trusted: IsTrusted, protected: ProtectedPlaces, person: GitPerson, why_not_theirs: str | None
    ) -> None:
        """`person` is whose git obeys what lies in the folder. `why_not_theirs` says of a turn that is not the owner's
        own why it is not."""
        self._is_trusted, self._protected, self._why_not_theirs = is_trusted, protected, why_not_theirs
        self._person = person
        self._repositories: dict[str, tuple[str, ...]] = {}
        """The settings of the repositories in a folder, which is looked through once a turn. What they include is read
        for each call: what a command leaves in a repository that it made includes nothing."""

    def may_hold(self, folder: str) -> bool:
        """Whether calls of the turn that stay in this folder may go unasked."""
        return self._why_not_theirs is None and self._is_trusted(folder)

    def obstacle(self, plan: CallPlan, workspace: str | None) -> str | None:
        """Why a call may not; empty where nobody said that any may, None where nothing is in the way. What keeps that
        from being told is in the way, too, so that a person is asked: the trust in the folder may be told no longer,
        or the folder not be looked through."""
        try:
            return self._obstacle(plan, workspace)
        except (OSError, WeftError) as error:
            return f"it cannot be told whether it stays in a folder that is trusted for work: {error}"

    def _obstacle(self, plan: CallPlan, workspace: str | None) -> str | None:
        folder = plan.confined_to or (None if workspace is None else os.path.realpath(workspace))
        if folder is None or not self._is_trusted(folder):
            return ""
        if self._why_not_theirs is not None:
            return self._why_not_theirs
        if plan.confined_to is None:
            return "it leaves the sandbox" if plan.is_outward else "it does not run in the sandbox of the folder"
        if plan.uncovers:
            return f"it names what is hidden from commands: {', '.join(plan.uncovers)}"
        if plan.tool in FILE_CHANGES:
            return next(filter(None, (self._why_not_changed(folder, path) for path in plan.subjects or ())), None)
        return None

    def _why_not_changed(self, folder: str, path: str) -> str | None:
        """What commands in the sandbox cannot change, file tools do not change unasked either."""
        place = os.path.join(folder, path)
        secrets = self._protected.secrets
        if secrets.is_named(path) and place not in secrets.shown():
            return f"{path} is of a name that files of secrets have"
        if lies_in_git_folder(place, folder):
            return f"{path} is a part of a folder of git's"
        if any(is_beneath(place, installed) for installed in own_installation(folder)):
            return f"{path} is a part of the installation of Weft"
        if any(is_beneath(place, program) for program in held_programs(folder, self._protected)):
            return f"{path} is a part of a program that is started with more than a command has"
        settings = self._repositories.get(folder)
        if settings is None:
            settings = self._repositories[folder] = repository_settings(Path(folder))
        if place in obeyed_settings(Path(folder), settings, self._person):
            return f"{path} is a part of git's configuration"
        return None


# --- Keeps tool calls apart that work in one folder: one that a person approved has the folder for itself.

POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 900.0
"""Longer than any command may take."""
_WITHOUT_LOCKS = frozenset((errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL))


@asynccontextmanager
async def hold_folder(folder: Path, *, alone: bool) -> AsyncIterator[None]:
    """Have it until the end: `alone`, or beside others that do not want it alone. Raises ToolFailure where somebody has
    it for too long."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolFailure("not_found", f"the workspace cannot be opened: {error.strerror}") from None
    try:
        for _ in range(round(LONGEST_WAIT_SECONDS / POLL_SECONDS)):
            if _is_locked(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            raise ToolFailure("busy", "other calls have not left the workspace to this one: call it again later")
        yield
    finally:
        os.close(descriptor)  # and the lock is gone


def _is_locked(descriptor: int, kind: int) -> bool:
    """Whether the lock was got, or there is none to be had."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True


# --- What may be done with a tool call: permissions, then the approval policy, then perhaps a person.

SHOWN_CHARACTERS = 256 * 1024
"""What a person is shown is never shortened: what is longer cannot be approved."""
APPROVAL_SECONDS = 24 * 3600.0
NO_CIRCUMSTANCES = PolicyContext()
FILE_TOOLS = FILE_CHANGES | {"read", "grep"}


AskPolicies = Callable[[PolicyCall], Awaitable[PolicyDecision]]
"""What the approval policies in force say of a call. An error of theirs is no allow."""


class CallHistory(Protocol):
    """What the gate needs to know of the session that a call is made in."""

    async def is_untrusted(self, turn: str) -> bool:
        """Whether a stranger may have written something that the context of a turn holds."""

    async def session_grants(self) -> Sequence[Approval]:
        """What people allowed for the rest of the session."""


class ToolGate:
    """The gate of one turn's tools."""

    def __init__(
        self,
        tools: Mapping[str, PlannedTool],
        ask_policies: AskPolicies,
        history: CallHistory,
        *,
        circumstances: PolicyContext = NO_CIRCUMSTANCES,
        clock: Clock | None = None,
        approval_seconds: float = APPROVAL_SECONDS,
        keeper: WorkspaceKeeper | None = None,
        workspace: Path | None = None,
        withheld: Mapping[str, str] = MappingProxyType({}),
        containment: CallContainment | None = None,
        hidden_files: HiddenFiles | None = None,
    ) -> None:
        """Calls that may change the workspace run beside each other; one that a person approved has it for itself.
        `withheld` says of tools that the turn would have otherwise why it has them not. `containment` tells which calls
        stay where the person lets agents work; without it, or where nothing is kept, none does. `hidden_files` tells
        which files of the workspace commands do not see."""
        self._containment, self._hidden_files = containment, hidden_files
        self._rests_on_trust: dict[str, bool] = {}
        """Of each call that this gate decided on, whether it is allowed as contained."""
        self._keeper, self._workspace = keeper, workspace
        self._withheld = withheld
        self._tools, self._ask_policies, self._history = tools, ask_policies, history
        self._circumstances = circumstances
        self._clock, self._approval_seconds = clock or SystemClock(), approval_seconds

    async def decide(self, tool: str, arguments: Any, context: ToolCallContext, answer: CallAnswer | None) -> Verdict:
        """See `Gate`."""
        if answer is not None and not answer.is_granted:
            return _denied_verdict(answer)
        is_withheld = tool in self._withheld
        plan = self._withheld[tool] if is_withheld else await self._plan_or_reason(tool, arguments, context)
        if isinstance(plan, str):
            return _refused_verdict(
                DecisionSource.PERMISSION if is_withheld else DecisionSource.ARGUMENTS, plan, answer=answer
            )
        if not is_permitted(plan, context.acting):
            return _refused_verdict(DecisionSource.PERMISSION, _not_permitted(plan), plan, answer)
        self._rests_on_trust[context.call] = False
        try:
            if answer is not None:
                verdict = _granted_verdict(plan, answer, self._recorded_plan(tool, plan))
            else:
                verdict = await self._without_person(tool, plan, arguments, context)
            keeper = self._keeper_of(tool, plan)
            if keeper is None or verdict.decision is not Decision.ALLOW:
                return verdict
            return replace(verdict, kept=await keeper.before(context.turn))
        except WeftError as error:
            if isinstance(error, StoreError) and not isinstance(error, Unsupported):
                raise  # the ledger cannot be read now: whoever goes on with the turn decides
            return _refused_verdict(DecisionSource.POLICY, f"it could not be decided on: {error}", plan)

    def _keeper_of(self, tool: str, plan: CallPlan) -> WorkspaceKeeper | None:
        """Who keeps the workspace around a call; None where it changes nothing, or nobody does."""
        return None if plan.is_read_only or self._tools[tool].is_read_only else self._keeper

    async def _plan_or_reason(self, tool: str, arguments: Any, context: ToolCallContext) -> CallPlan | str:
        """What a call would do, or why that cannot be told."""
        try:
            plan = await self._plan_call(tool, arguments, context)
            return plan if plan.plan_digest else ""  # what has no canonical form has no hash
        except (ToolFailure, WeftError) as error:
            return str(error)
        except Exception as error:  # a defect of a tool, such as of an MCP server: nothing of it may run
            return f"{tool}: {type(error).__name__}"

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        offered = self._tools.get(tool)
        if not isinstance(offered, ExclusiveTool) or not isinstance(arguments, dict):
            return None
        try:
            return await offered.exclusive_key(arguments)
        except (ToolFailure, WeftError):  # deciding says why
            return None

    async def perform(
        self, tool: str, arguments: Any, context: ToolCallContext, plan_digest: str, plan: Any = None
    ) -> ToolOutput | LaterResult:
        """See `Gate`."""
        planned = await self._plan_call(tool, arguments, context) if plan is None else msgspec.convert(plan, CallPlan)
        if planned.plan_digest != plan_digest:
            raise ToolFailure("changed", f"what {planned.tool} would do now is not what was decided on: call it again")
        if not is_permitted(planned, context.acting):
            raise ToolFailure("denied", _not_permitted(planned))
        if not context.is_approved:
            await self._ensure_still_allowed(planned, arguments, context)
        if self._workspace is None or planned.is_read_only or self._tools[tool].is_read_only:
            return await self._perform_call(tool, planned, context)
        async with hold_folder(self._workspace, alone=context.is_approved):
            return await self._perform_call(tool, planned, context)

    async def _perform_call(self, tool: str, plan: CallPlan, context: ToolCallContext) -> ToolOutput | LaterResult:
        keeper = self._keeper_of(tool, plan)
        if keeper is None:
            return await self._tools[tool].perform(plan, context)
        return await self._perform_and_keep(keeper, self._tools[tool], plan, context)

    async def _perform_and_keep(
        self, keeper: WorkspaceKeeper, tool: PlannedTool, plan: CallPlan, context: ToolCallContext
    ) -> ToolOutput | LaterResult:
        """Run it, and keep the workspace afterwards, however it ends."""
        await keeper.begin(context.turn)
        try:
            output = await tool.perform(plan, context)
        except ToolFailure as failure:
            failure.kept = await keeper.after()
            raise
        except Exception as error:  # a defect of a tool, or the end of its time: files may have changed all the same
            ended = ToolFailure(error_code(error), error_text(error))
            ended.kept = await keeper.after()
            raise ended from error
        return output if isinstance(output, LaterResult) else replace(output, kept=await keeper.after())

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        if self._keeper is not None:
            await self._keeper.recorded(kept)

    async def _plan_call(self, tool: str, arguments: Any, context: ToolCallContext) -> CallPlan:
        offered = self._tools.get(tool)
        if offered is None:
            raise unknown_tool(tool)
        ensure_object(tool, arguments)
        return await offered.plan(arguments, context)

    def _recorded_plan(self, tool: str, plan: CallPlan) -> Any:
        """The plan, as it is kept with a decision for tools that can carry it out again."""
        return msgspec.to_builtins(plan) if self._tools[tool].is_repeatable else None

    async def _without_person(self, tool: str, plan: CallPlan, arguments: Any, context: ToolCallContext) -> Verdict:
        asked = await self._asked(plan, arguments, context)
        policy_decision = await self._policy_decision(tool, plan, asked, context)
        if policy_decision.decision in (Decision.DENY_CONTINUE, Decision.DENY_ABORT):
            return Verdict(
                decision=policy_decision.decision,
                by=DecisionSource.POLICY,
                plan_digest=plan.plan_digest,
                policy=policy_decision.policy,
                rationale=policy_decision.rationale,
            )
        if plan.is_callers:
            return self._callers_verdict(tool, plan)
        if asked.context.is_untrusted and plan.is_outward:
            why = "it can carry something out, and strangers' words are in the context"
            return self._ask_verdict(plan, DecisionSource.PROVENANCE, why, None)
        if policy_decision.decision is Decision.ALLOW:
            return self._allow_verdict(
                tool, plan, DecisionSource.POLICY, policy_decision.rationale, policy_decision.policy
            )
        if await self._is_granted(plan, arguments):
            return self._allow_verdict(
                tool, plan, DecisionSource.SESSION_GRANT, "a person allowed it for this session", None
            )
        return self._ask_verdict(plan, DecisionSource.POLICY, policy_decision.rationale, policy_decision.policy)

    def _callers_verdict(self, tool: str, plan: CallPlan) -> Verdict:
        """Whoever gave a function with their message said whether it asks."""
        if plan.asks:
            return self._ask_verdict(plan, DecisionSource.PERMISSION, "it asks before each call", None)
        return self._allow_verdict(tool, plan, DecisionSource.PERMISSION, "whoever sent the message gave it", None)

    async def _asked(self, plan: CallPlan, arguments: Any, context: ToolCallContext) -> PolicyCall:
        """What policies are asked about a call, without a word of where it stays."""
        return PolicyCall(
            name=plan.tool,
            arguments=arguments,
            context=replace(
                self._circumstances,
                turn=context.turn,
                is_untrusted=await self._history.is_untrusted(context.turn),
                read_only=plan.is_read_only,
                subjects=plan.subjects,
                hidden=await self._hidden(plan, arguments),
                shown=plan.shown,
            ),
        )

    async def _hidden(self, plan: CallPlan, arguments: Any) -> tuple[str, ...]:
        """Of the files that a call names, those that commands do not see."""
        files = self._hidden_files
        if files is None or plan.tool not in FILE_TOOLS:
            return ()
        return await in_thread(lambda: _hidden_of(files, plan, arguments))

    async def _ensure_still_allowed(self, plan: CallPlan, arguments: Any, context: ToolCallContext) -> None:
        """The trust in a folder may have been revoked since. Of a call that another gate decided on, as before a crash,
        nobody knows whether its decision rested on that: it goes on where it would be allowed without it."""
        rests_on_trust = self._rests_on_trust.get(context.call)
        if rests_on_trust is False or plan.is_callers:
            return
        obstacle = await self._obstacle(plan, await self._hidden(plan, arguments))
        if obstacle is None:
            return
        if rests_on_trust is None:
            asked = await self._asked(plan, arguments, context)
            decision = await self._ask_policies(replace(asked, context=replace(asked.context, not_contained=obstacle)))
            if decision.decision is Decision.ALLOW or await self._is_granted(plan, arguments):
                return
        why = f": {obstacle}" if obstacle else ""
        raise ToolFailure("denied", f"the folder is trusted for work no longer{why}; call it again")

    async def _policy_decision(
        self, tool: str, plan: CallPlan, asked: PolicyCall, context: ToolCallContext
    ) -> PolicyDecision:
        """A call is contained where what it changes can be taken back. That is seen to once it would be allowed: the
        workspace is kept then, and where not all of it could be, it is decided again."""
        obstacle = await self._obstacle(plan, asked.context.hidden)
        if obstacle is None:
            decision = await self._ask_policies(replace(asked, context=replace(asked.context, is_contained=True)))
            if decision.decision is not Decision.ALLOW:
                return decision
            obstacle = await self._why_not_whole(tool, plan, context.turn)
            if obstacle is None:
                self._rests_on_trust[context.call] = True
                return decision
        return await self._ask_policies(replace(asked, context=replace(asked.context, not_contained=obstacle)))

    async def _obstacle(self, plan: CallPlan, hidden: Sequence[str]) -> str | None:
        """Why a call is not contained, as far as that is known before anything is kept. `hidden`: see `_hidden`."""
        containment, workspace = self._containment, self._workspace
        if containment is None:
            return ""
        obstacle = await in_thread(lambda: containment.obstacle(plan, None if workspace is None else str(workspace)))
        if obstacle is None and hidden and plan.tool in FILE_CHANGES:
            return f"{hidden[0]} is hidden from commands"
        return obstacle

    async def _why_not_whole(self, tool: str, plan: CallPlan, turn: str) -> str | None:
        keeper = self._keeper_of(tool, plan)
        if keeper is None:
            return None if plan.is_read_only else "nothing is kept that could be given back"
        await keeper.before(turn)
        return await keeper.why_not_whole(turn)

    def _allow_verdict(
        self, tool: str, plan: CallPlan, by: DecisionSource, rationale: str | None, policy: str | None
    ) -> Verdict:
        return Verdict(
            decision=Decision.ALLOW,
            by=by,
            plan_digest=plan.plan_digest,
            policy=policy,
            rationale=rationale,
            plan=self._recorded_plan(tool, plan),
        )

    async def _is_granted(self, plan: CallPlan, arguments: Any) -> bool:
        """Whether a person allowed the same use of the same tool for the rest of the session: the same call, or for
        tools that change a file any change of the same file; in the same folder and sandbox, at the same server."""
        if not plan.subjects:
            return False
        grants = [one for one in await self._history.session_grants() if one.tool == plan.tool]
        return any(
            one.subjects == plan.subjects
            and (plan.tool in FILE_CHANGES or one.arguments == arguments)
            and is_same_use(one, plan)
            for one in grants
        )

    def _ask_verdict(self, plan: CallPlan, by: DecisionSource, rationale: str, policy: str | None) -> Verdict:
        shown = shown_text(plan)
        if len(shown) > SHOWN_CHARACTERS:
            # how many more would tell the model of a file that it may not read
            why = f"it takes more than {SHOWN_CHARACTERS} characters to show, so nobody can approve it: make it smaller"
            return _refused_verdict(by, why, plan)
        return Verdict(
            decision=Decision.ASK,
            by=by,
            plan_digest=plan.plan_digest,
            policy=policy,
            rationale=rationale,
            shown=shown,
            subjects=plan.subjects,
            expires_ms=self._clock.now_ms() + round(self._approval_seconds * 1000),
        )


def _hidden_of(files: HiddenFiles, plan: CallPlan, arguments: Any) -> tuple[str, ...]:
    """See `ToolGate._hidden`."""
    asked = arguments.get("path") if isinstance(arguments, dict) else None
    named = asked if isinstance(asked, str) else None
    return tuple(path for path in plan.subjects or () if files.is_hidden(path, named))


def shown_text(plan: CallPlan) -> str:
    """All that a person is shown of a call: for reading, and then exactly the bytes that the hash is made of."""
    exact = dumps({"tool": plan.tool, "exact": plan.exact}).decode()
    return f"{plan.shown}\n\n{exact}" if plan.shown else exact


def is_same_use(grant: Approval, plan: CallPlan) -> bool:
    """Whether a call would do what was approved, but for what may vary. What was approved and is erased is no more."""
    if grant.shown is None:
        return False
    try:
        approved = loads(grant.shown.rpartition("\n")[2].encode())  # see `shown_text`
    except (WeftError, UnicodeEncodeError):
        return False
    exact = approved.get("exact") if isinstance(approved, dict) else None
    return isinstance(exact, dict) and _fixed(exact, plan) == _fixed(plan.exact, plan)


def _fixed(exact: Mapping[str, Any], plan: CallPlan) -> dict[str, Any]:
    return {name: value for name, value in exact.items() if name not in plan.varying}


def is_permitted(plan: CallPlan, acting: ExecutionContext | None) -> bool:
    """Whether the rights of everybody in the chain allow each use that the call makes of its tool."""
    if acting is None:
        return False
    right = TOOL_PREFIX + plan.tool
    if not plan.subjects:
        return acting.authority.allows(right, None if plan.subjects is None else "")
    return all(acting.authority.allows(right, subject) for subject in plan.subjects)


def _not_permitted(plan: CallPlan) -> str:
    uses = f"({', '.join(plan.subjects)})" if plan.subjects else ""
    return f"the permissions of this turn do not allow {plan.tool}{uses}"


def _refused_verdict(
    by: DecisionSource, rationale: str, plan: CallPlan | None = None, answer: CallAnswer | None = None
) -> Verdict:
    return Verdict(
        decision=Decision.DENY_CONTINUE,
        by=by,
        plan_digest=None if plan is None else plan.plan_digest,
        rationale=rationale,
        grant=None if answer is None else answer.event,
    )


def _denied_verdict(answer: CallAnswer) -> Verdict:
    return Verdict(
        decision=Decision.DENY_ABORT if answer.abort else Decision.DENY_CONTINUE,
        by=DecisionSource.GRANT,
        plan_digest=answer.plan_digest,
        grant=answer.event,
        rationale="a person refused it" + (f": {answer.reason}" if answer.reason else ""),
    )


def _granted_verdict(plan: CallPlan, answer: CallAnswer, recorded: Any) -> Verdict:
    """A grant is used up, whatever comes of it; it allows exactly what was shown."""
    if plan.plan_digest != answer.plan_digest:
        why = "what it would do now is not what a person approved: call it again"
        return _refused_verdict(DecisionSource.GRANT, why, plan, answer)
    return Verdict(
        decision=Decision.ALLOW,
        by=DecisionSource.GRANT,
        plan_digest=plan.plan_digest,
        grant=answer.event,
        plan=recorded,
    )


# --- Tool calls as whoever watches a turn hears of them: what was decided about each, and how it ended.

SUBJECT_FIELDS = ("cmd", "path", "url", "pattern", "query", "call")
"""Arguments that say what a call is about; the first that is there counts."""
OK = "ok"


class ObservedCall(Struct, frozen=True, kw_only=True):
    """A decision about a call, or with `outcome` the end of one."""

    tool: str
    about: str
    decision: Decision | None = None
    by: str | None = None
    rationale: str | None = None
    outcome: str | None = None
    """`ok`, or the code of the error."""
    message: str | None = None


OnCall = Callable[[ObservedCall], None]


class ObservedGate:
    """A gate that tells of every decision, and of every end of a call."""

    def __init__(self, gate: Gate, on_call: OnCall) -> None:
        self._gate, self._on_call = gate, on_call

    async def decide(self, tool: str, arguments: Any, context: ToolCallContext, answer: CallAnswer | None) -> Verdict:
        """See `Gate`."""
        verdict = await self._gate.decide(tool, arguments, context, answer)
        self._on_call(
            ObservedCall(
                tool=tool,
                about=call_subject(arguments),
                decision=verdict.decision,
                by=str(verdict.by),
                rationale=verdict.rationale,
            )
        )
        return verdict

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        return await self._gate.exclusive_key(tool, arguments)

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        await self._gate.recorded(kept)

    async def perform(
        self, tool: str, arguments: Any, context: ToolCallContext, plan_digest: str, plan: Any = None
    ) -> Any:
        """See `Gate`."""
        about = call_subject(arguments)
        try:
            output = await self._gate.perform(tool, arguments, context, plan_digest, plan)
        except Exception as error:  # whatever it is, it is told of and goes on its way
            code = error.code if isinstance(error, ToolFailure) else error_code(error)
            self._on_call(ObservedCall(tool=tool, about=about, outcome=code, message=str(error)))
            raise
        self._on_call(ObservedCall(tool=tool, about=about, outcome=OK))
        return output


def call_subject(arguments: Any) -> str:
    """What a call is about, for reading: nothing is decided by it."""
    fields = arguments if isinstance(arguments, dict) else {}
    for name in SUBJECT_FIELDS:
        value = fields.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return " ".join(map(str, value))
    return ""
