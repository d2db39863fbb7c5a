"""What may be done with a tool call: permissions, then the approval policy, then perhaps a person.

A call is planned before it is decided on, and planned again before it runs: what runs has the hash that was decided on,
or it does not run. Deny wins everywhere, nothing that goes wrong on the way is an allow, and a call that can carry
something out is asked about by a person each time once a stranger's words are in the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from weft.kernel.authority import TOOL_PREFIX
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.contents import dumps
from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import StoreError, Unsupported, WeftError, error_code, error_text, quoted
from weft.ledger.api import Approval, KeptState
from weft.runtime.broker.tools import CallAnswer, Later, ToolCallContext, Verdict
from weft.runtime.context import ExecutionContext
from weft.runtime.policies.contract import PolicyCall, PolicyContext
from weft.runtime.policies.decider import PolicyDecision
from weft.runtime.tools.calls import CallPlan, ExclusiveTool, PlannedTool, ToolFailure, ToolOutput, WorkspaceKeeper
from weft.runtime.tools.containment import FILE_CHANGES, Containment
from weft.runtime.tools.folder_locks import hold_folder
from weft.runtime.tools.threads import in_thread

SHOWN_CHARACTERS = 256 * 1024
"""What a person is shown is never shortened: what is longer cannot be approved."""
APPROVAL_SECONDS = 24 * 3600.0
NO_CIRCUMSTANCES = PolicyContext()


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
        containment: Containment | None = None,
    ) -> None:
        """Calls that may change the workspace run beside each other; one that a person approved has it for itself.
        `withheld` says of tools that the turn would have otherwise why it has them not. `containment` tells which calls
        stay where the person lets agents work; without it, or where nothing is kept, none does."""
        self._containment = containment
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
            return _denied(answer)
        is_withheld = tool in self._withheld
        plan = self._withheld[tool] if is_withheld else await self._planned(tool, arguments, context)
        if isinstance(plan, str):
            return _refused(DecisionSource.PERMISSION if is_withheld else DecisionSource.ARGUMENTS, plan, answer=answer)
        if not is_permitted(plan, context.acting):
            return _refused(DecisionSource.PERMISSION, _not_permitted(plan), plan, answer)
        self._rests_on_trust[context.call] = False
        try:
            if answer is not None:
                verdict = _granted(plan, answer, self._recorded(tool, plan))
            else:
                verdict = await self._without_person(tool, plan, arguments, context)
            keeper = self._keeper_of(tool, plan)
            if keeper is None or verdict.decision is not Decision.ALLOW:
                return verdict
            return replace(verdict, kept=await keeper.before(context.turn))
        except WeftError as error:
            if isinstance(error, StoreError) and not isinstance(error, Unsupported):
                raise  # the ledger cannot be read now: whoever goes on with the turn decides
            return _refused(DecisionSource.POLICY, f"it could not be decided on: {error}", plan)

    def _keeper_of(self, tool: str, plan: CallPlan) -> WorkspaceKeeper | None:
        """Who keeps the workspace around a call; None where it changes nothing, or nobody does."""
        return None if plan.is_read_only or self._tools[tool].is_read_only else self._keeper

    async def _planned(self, tool: str, arguments: Any, context: ToolCallContext) -> CallPlan | str:
        """What a call would do, or why that cannot be told."""
        try:
            plan = await self._plan(tool, arguments, context)
            return plan if plan.bound else ""  # what has no canonical form has no hash
        except (ToolFailure, WeftError) as error:
            return str(error)
        except Exception as error:  # a defect of a tool, such as of an MCP server: nothing of it may run
            return f"{tool}: {type(error).__name__}"

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        offered = self._tools.get(tool)
        if not isinstance(offered, ExclusiveTool):
            return None
        try:
            return await offered.exclusive_key(arguments)
        except (ToolFailure, WeftError):  # deciding says why
            return None

    async def perform(
        self, tool: str, arguments: Any, context: ToolCallContext, bound: str, plan: Any = None
    ) -> ToolOutput | Later:
        """See `Gate`."""
        planned = await self._plan(tool, arguments, context) if plan is None else msgspec.convert(plan, CallPlan)
        if planned.bound != bound:
            raise ToolFailure("changed", f"what {planned.tool} would do now is not what was decided on: call it again")
        if not is_permitted(planned, context.acting):
            raise ToolFailure("denied", _not_permitted(planned))
        if not context.is_approved:
            await self._ensure_still_allowed(planned, arguments, context)
        if self._workspace is None or planned.is_read_only or self._tools[tool].is_read_only:
            return await self._performed(tool, planned, context)
        async with hold_folder(self._workspace, alone=context.is_approved):
            return await self._performed(tool, planned, context)

    async def _performed(self, tool: str, plan: CallPlan, context: ToolCallContext) -> ToolOutput | Later:
        keeper = self._keeper_of(tool, plan)
        if keeper is None:
            return await self._tools[tool].perform(plan, context)
        return await self._kept(keeper, self._tools[tool], plan, context)

    async def _kept(
        self, keeper: WorkspaceKeeper, tool: PlannedTool, plan: CallPlan, context: ToolCallContext
    ) -> ToolOutput | Later:
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
        return output if isinstance(output, Later) else replace(output, kept=await keeper.after())

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        if self._keeper is not None:
            await self._keeper.recorded(kept)

    async def _plan(self, tool: str, arguments: Any, context: ToolCallContext) -> CallPlan:
        offered = self._tools.get(tool)
        if offered is None:
            raise ToolFailure("unknown_tool", f"there is no tool {quoted(tool)}: call one that is offered")
        return await offered.plan(arguments, context)

    def _recorded(self, tool: str, plan: CallPlan) -> Any:
        """The plan, as it is kept with a decision for tools that can carry it out again."""
        return msgspec.to_builtins(plan) if self._tools[tool].is_repeatable else None

    async def _without_person(self, tool: str, plan: CallPlan, arguments: Any, context: ToolCallContext) -> Verdict:
        asked = await self._asked(plan, arguments, context)
        policy_decision = await self._policy_decision(tool, plan, asked, context)
        if policy_decision.decision in (Decision.DENY_CONTINUE, Decision.DENY_ABORT):
            return Verdict(
                decision=policy_decision.decision,
                by=DecisionSource.POLICY,
                bound=plan.bound,
                policy=policy_decision.policy,
                rationale=policy_decision.rationale,
            )
        if asked.context.is_untrusted and plan.is_outward:
            why = "it can carry something out, and strangers' words are in the context"
            return self._ask(plan, DecisionSource.PROVENANCE, why, None)
        if policy_decision.decision is Decision.ALLOW:
            return self._allow(tool, plan, DecisionSource.POLICY, policy_decision.rationale, policy_decision.policy)
        if await self._is_granted(plan, arguments):
            return self._allow(tool, plan, DecisionSource.SESSION_GRANT, "a person allowed it for this session", None)
        return self._ask(plan, DecisionSource.POLICY, policy_decision.rationale, policy_decision.policy)

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
                shown=plan.shown,
            ),
        )

    async def _ensure_still_allowed(self, plan: CallPlan, arguments: Any, context: ToolCallContext) -> None:
        """The trust in a folder may have been revoked since. Of a call that another gate decided on, as before a crash,
        nobody knows whether its decision rested on that: it goes on where it would be allowed without it."""
        rests_on_trust = self._rests_on_trust.get(context.call)
        if rests_on_trust is False:
            return
        obstacle = await self._obstacle(plan)
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
        obstacle = await self._obstacle(plan)
        if obstacle is None:
            decision = await self._ask_policies(replace(asked, context=replace(asked.context, is_contained=True)))
            if decision.decision is not Decision.ALLOW:
                return decision
            obstacle = await self._why_not_whole(tool, plan, context.turn)
            if obstacle is None:
                self._rests_on_trust[context.call] = True
                return decision
        return await self._ask_policies(replace(asked, context=replace(asked.context, not_contained=obstacle)))

    async def _obstacle(self, plan: CallPlan) -> str | None:
        """Why a call is not contained, as far as that is known before anything is kept."""
        containment, workspace = self._containment, self._workspace
        if containment is None:
            return ""
        return await in_thread(lambda: containment.obstacle(plan, None if workspace is None else str(workspace)))

    async def _why_not_whole(self, tool: str, plan: CallPlan, turn: str) -> str | None:
        keeper = self._keeper_of(tool, plan)
        if keeper is None:
            return None if plan.is_read_only else "nothing is kept that could be given back"
        await keeper.before(turn)
        return await keeper.why_not_whole(turn)

    def _allow(
        self, tool: str, plan: CallPlan, by: DecisionSource, rationale: str | None, policy: str | None
    ) -> Verdict:
        return Verdict(
            decision=Decision.ALLOW,
            by=by,
            bound=plan.bound,
            policy=policy,
            rationale=rationale,
            plan=self._recorded(tool, plan),
        )

    async def _is_granted(self, plan: CallPlan, arguments: Any) -> bool:
        """Whether a person allowed the same use of the same tool for the rest of the session: the same call, or for
        tools that change a file any change of the same file."""
        if not plan.subjects:
            return False
        grants = [one for one in await self._history.session_grants() if one.tool == plan.tool]
        return any(
            one.subjects == plan.subjects and (plan.tool in FILE_CHANGES or one.arguments == arguments)
            for one in grants
        )

    def _ask(self, plan: CallPlan, by: DecisionSource, rationale: str, policy: str | None) -> Verdict:
        shown = shown_text(plan)
        if len(shown) > SHOWN_CHARACTERS:
            why = f"it takes {len(shown)} characters to show, so nobody can approve it: make it smaller"
            return _refused(by, why, plan)
        return Verdict(
            decision=Decision.ASK,
            by=by,
            bound=plan.bound,
            policy=policy,
            rationale=rationale,
            shown=shown,
            subjects=plan.subjects,
            expires_ms=self._clock.now_ms() + round(self._approval_seconds * 1000),
        )


def shown_text(plan: CallPlan) -> str:
    """All that a person is shown of a call: for reading, and then exactly the bytes that the hash is made of."""
    exact = dumps({"tool": plan.tool, "exact": plan.exact}).decode()
    return f"{plan.shown}\n\n{exact}" if plan.shown else exact


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


def _refused(
    by: DecisionSource, rationale: str, plan: CallPlan | None = None, answer: CallAnswer | None = None
) -> Verdict:
    return Verdict(
        decision=Decision.DENY_CONTINUE,
        by=by,
        bound=None if plan is None else plan.bound,
        rationale=rationale,
        grant=None if answer is None else answer.event,
    )


def _denied(answer: CallAnswer) -> Verdict:
    return Verdict(
        decision=Decision.DENY_ABORT if answer.abort else Decision.DENY_CONTINUE,
        by=DecisionSource.GRANT,
        bound=answer.bound,
        grant=answer.event,
        rationale="a person refused it" + (f": {answer.reason}" if answer.reason else ""),
    )


def _granted(plan: CallPlan, answer: CallAnswer, recorded: Any) -> Verdict:
    """A grant is used up, whatever comes of it; it allows exactly what was shown."""
    if plan.bound != answer.bound:
        why = "what it would do now is not what a person approved: call it again"
        return _refused(DecisionSource.GRANT, why, plan, answer)
    return Verdict(
        decision=Decision.ALLOW, by=DecisionSource.GRANT, bound=plan.bound, grant=answer.event, plan=recorded
    )
