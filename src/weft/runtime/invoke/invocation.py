"""What programs are invoked with: an open ledger, its programs, who acts, and the ways outside.

`ConfiguredPlanner` plans the turn for waiting messages from what is durable alone: the session, the messages with their
overrides, and the layers of configuration. Any broker makes the same plan.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.authority import Rights
from weft.kernel.enums import AgentRole, ProgramKind, ResourceKind
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.api import (
    Admission,
    InboxMessage,
    Ledger,
    RunConfig,
    Runs,
    SessionStanding,
    TurnRetry,
    principals_of,
    retry_of,
)
from weft.ledger.model import DEFAULT_AGENT, Message, NewMessage
from weft.programs.program_records import Program, Resolver
from weft.programs.programs import Programs
from weft.runtime.agent_harness import OnProgress
from weft.runtime.agent_work import turn_limits
from weft.runtime.assembly.compaction import CompactionWriter
from weft.runtime.assembly.configuration_layers import MessageOverrides, combined_overrides, read_overrides
from weft.runtime.assembly.context_fitting import budget_of
from weft.runtime.assembly.system_prompts import RulesOf
from weft.runtime.assembly.turn_configuration import (
    ConfiguredModel,
    LayerReader,
    OtherModels,
    TurnConfiguration,
    TurnRequest,
    actor_context,
    are_owners_words,
    gather_configuration,
    model_settings,
    unattended_turn,
)
from weft.runtime.broker.broker import WAIT, answer_admitted, broker_of, to_the_end
from weft.runtime.broker.turn_plans import (
    SenderContext,
    SessionCompaction,
    TurnPlan,
    message_workspace,
    session_settings,
)
from weft.runtime.egress.execution_context import ExecutionContext, current_context
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local_models import default_prompt
from weft.runtime.inference.model_requests import NO_PARAMETERS, InferenceRequest, ModelParameters, ModelSettings
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.opened_folders import links_on_way
from weft.runtime.replies import TurnReply
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.profiles import is_beneath
from weft.runtime.tool.tool_contract import FunctionElsewhere

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken


def ensure_not_led_away(ledger: Ledger, workspace: str) -> None:
    """Raises NotApplicable where a link in a folder that agents of this ledger work in leads a workspace out of that
    folder: a command could have put it there, and what the workspace's own turns read and write would be elsewhere."""
    links = list(links_on_way(os.path.abspath(workspace)))
    if not links:  # as nearly always
        return
    target = os.path.realpath(workspace)
    worked_in = [resource.place for resource in ledger.resources.list(kind=ResourceKind.DIRECTORY)]
    for link in links:
        for folder in worked_in:
            if is_beneath(os.path.dirname(link), folder) and not is_beneath(target, folder):
                raise NotApplicable(
                    f"the workspace {workspace} leads to {target}, by the link {link} in a folder that agents work in",
                    "put the folder back where it was, or make the one that is meant the workspace by its own path",
                )


Acting = Callable[[InboxMessage], ExecutionContext]
"""In whose name a message is answered."""
Equip = Callable[[TurnPlan, TurnConfiguration, SessionStanding], Awaitable[None]]
"""Gives a planned turn its tools, and what decides about their calls."""


class ConfiguredPlanner:
    """A `Planner`. `acting` gives the context of a message's sender; `persona` names the agent that answers where that
    is not the session's owner; `other_models` knows the models that are no programs, and the default one; `rules_of`
    reads the rules of the folder that a message was sent from, or that the session is configured for; `equip` gives a
    planned turn its tools."""

    def __init__(
        self,
        programs: Programs,
        ledger: RuntimeLedger,
        inference: Inference,
        *,
        variable: Resolver,
        acting: Acting,
        persona: str | None = None,
        other_models: OtherModels | None = None,
        rules_of: RulesOf | None = None,
        equip: Equip | None = None,
    ) -> None:
        self._equip = equip
        self._programs, self._ledger, self._inference, self._rules_of = programs, ledger, inference, rules_of
        self._variable, self._persona, self._other_models = variable, persona, other_models
        self.acting = acting

    async def __call__(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan:
        plan, configuration = await self._ledger.crossing.run(lambda: self._plan_with_configuration(standing, messages))
        if self._equip is not None:
            await self._equip(plan, configuration, standing)
        return plan

    def plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan:
        """Without tools."""
        return self._plan_with_configuration(standing, messages)[0]

    def _plan_with_configuration(
        self, standing: SessionStanding, messages: Sequence[InboxMessage]
    ) -> tuple[TurnPlan, TurnConfiguration]:
        """Raises a WeftError where the messages cannot be answered as things are configured."""
        retry = next((one for one in map(retry_of, messages) if one is not None), None)
        parent = self._retry_parent(standing, retry)
        overrides = combined_overrides(read_overrides(one.overrides, one.id) for one in messages)
        if overrides.toolset is not None and any(map(principals_of, messages)):
            raise InvalidInput("only whoever opened the ledger gives a message a toolset", "send it without")
        request = TurnRequest(
            session=standing.id,
            persona=self._persona,
            parent=parent,
            overrides=overrides,
            message=messages[-1].id,
            takes_defaults=retry is None and overrides.replays is None,
        )
        acting = self.acting(messages[0]).child(rights=Rights(overrides.rights))
        reader = LayerReader(self._programs, self._inference, self._variable, acting, self._other_models)
        configuration = reader.configuration(request)
        if configuration.functions and self._equip is None:
            raise FunctionElsewhere([one.name for one in configuration.functions])
        if configuration.persona is not None:
            runs = Runs(self._programs.ledger)
            runs.ensure_works_for(configuration.persona.id, [message.id for message in messages])
        model = configuration.require_model()
        compaction = self._session_compaction(standing, configuration, model)
        workspace = message_workspace(messages) or configuration.workspace
        if workspace is not None:
            ensure_not_led_away(self._programs.ledger, workspace)
        limits = turn_limits(self._programs, self._ledger.crossing, configuration.persona, standing)
        plan = TurnPlan(
            model=model,
            inference=self._inference,
            acting=configuration.context,
            setting=RunConfig(workspace=workspace, role=_agent_role(configuration), **configuration.turn_fields()),
            situation=configuration.effective.situation,
            parameters=configuration.effective.request_parameters,
            system=configuration.system_prompt if overrides.system is None else overrides.system,
            default_system=default_prompt(model),
            persona=configuration.persona_name,
            rules=None if workspace is None or self._rules_of is None else self._rules_of(workspace),
            is_root=overrides.is_root,
            parent=parent if isinstance(parent, str) else None,
            retry=retry,
            is_owners=are_owners_words(messages) and configuration.constraints is None,
            unattended=unattended_turn(self._programs, messages, is_worker=configuration.constraints is not None),
            compaction=compaction,
            on_overflow=compaction.after_overflow,
            budget=limits.budget,
            deadline_seconds=limits.seconds,
        )
        return plan, configuration

    def _session_compaction(
        self, standing: SessionStanding, configuration: TurnConfiguration, model: ModelSettings
    ) -> SessionCompaction:
        """By the settings of the session and its agent; the turn's own model writes summaries where none is named."""
        settings, find = session_settings(configuration), self._programs.get
        writer_model = model
        if settings.model is not None:
            program = find(settings.model, ProgramKind.MODEL)
            writer_model = model_settings(program, find, self._variable, configuration.context).model
        parameters = configuration.effective.request_parameters

        async def count(messages: Sequence[Message | NewMessage]) -> int | None:
            request = InferenceRequest(model=model, messages=messages, parameters=parameters)
            counted = await self._inference.count(request, context=configuration.context)
            return None if counted.counted_by is None else counted.tokens

        return SessionCompaction(
            self._ledger,
            self._inference,
            standing.id,
            CompactionWriter(settings, writer_model, configuration.context),
            budget_of(model, parameters),
            count,
        )

    def _retry_parent(self, standing: SessionStanding, retry: TurnRetry | None) -> str | UnsetType:
        """The turn that a retry goes on from, where that is not the head. Only the head and failed turns of the same
        session after it can be gone on from: where the session has moved on since, the retry is refused."""
        if retry is None or standing.open_turn is not None:
            return UNSET
        ledger = self._programs.ledger
        start = ledger.turn(retry.of).parent_id if retry.afresh else retry.of
        if start == standing.head and standing.head_events is None:
            return UNSET
        at: str | None = start
        while at is not None and at != standing.head:
            turn = ledger.turn(at)
            if turn.session_id != standing.id or turn.status != "failed":
                break
            at = turn.parent_id
        if start is None or at != standing.head:
            moved = f"session {standing.label!r} has moved on since turn {retry.of} failed"
            raise NotApplicable(moved, "retry the turn again: it goes on in a fork then")
        return start


def _agent_role(configuration: TurnConfiguration) -> AgentRole:
    implied = AgentRole.UNIFIED if configuration.constraints is None else AgentRole.WORKER
    return configuration.role or implied


def sender_context(person: ExecutionContext, programs: Programs, message: InboxMessage) -> ExecutionContext:
    """Whoever runs the broker, and on their behalf everybody in whose name the message was sent. A trigger has no
    rights of its own: what it sends is answered with those of whoever it acts for."""
    return chain_context(
        person, programs, [one for one in (message.sender, *message.on_behalf_of) if one != message.trigger]
    )


def chain_context(person: ExecutionContext, programs: Programs, ids: Sequence[str]) -> ExecutionContext:
    """Whoever runs the broker, and on their behalf these: who acts first, then those on whose behalf."""
    context = person
    for name in reversed(ids):
        if name != DEFAULT_AGENT:
            context = actor_context(context, programs.get(name, "human", "agent"))
    return context


T = TypeVar("T")
Show = Callable[[str, str], None]
"""Shows a person's name and what they are told, where they can see it."""


class Invocation(Struct, frozen=True, kw_only=True):
    """What a program is invoked with; each kind takes what it needs."""

    message: Any = None
    """Text, or a message as `record_turn` takes it."""
    input: Any | UnsetType = UNSET
    """A JSON value, for code and information."""
    model: str | None = None
    """Another model than the program's own, for this once."""
    situation: str | None = None
    parameters: ModelParameters = NO_PARAMETERS
    allow: tuple[str, ...] | None = None
    """The tools that are left, as patterns; None: all that are configured. This and the next three only narrow."""
    deny: tuple[str, ...] = ()
    sandbox: str | None = None
    """The profile that commands run in at most."""
    credentials: tuple[str, ...] | None = None
    task: str | None = None
    """What an agent is to do."""
    workspace: str | None = None
    asks: bool = False
    """Whether a person is to decide, or only told."""
    about: str | None = None
    """The program that a person is told of."""
    key: str | None = None
    """A retry key, where a person is told or asked."""

    @property
    def overrides(self) -> MessageOverrides:
        """What this message is answered with instead of what is configured. Raises InvalidInput where a pattern or a
        profile is none."""
        overrides = MessageOverrides(
            model=self.model,
            situation=self.situation,
            parameters=self.parameters,
            allow=self.allow,
            deny=self.deny,
            sandbox=self.sandbox,
            credentials=self.credentials,
        )
        overrides.layer()
        return overrides


class InvocationResult(Struct, frozen=True, kw_only=True):
    """What came of it. `result` is JSON; where a model was asked, `sent` is the turn and its reply."""

    program: str
    kind: str
    result: Any = None
    sent: TurnReply | None = None

    @property
    def text(self) -> str | None:
        """What a model answered; None where none was asked."""
        return None if self.sent is None else self.sent.reply.text


class InvocationContext:
    """Where programs are invoked, in the name of one context; without one, of that which the task runs in."""

    def __init__(
        self,
        ledger: RuntimeLedger,
        programs: Programs,
        crossing: Executor,
        inference: Inference,
        *,
        variable: Resolver,
        runner: CommandRunner,
        context: ExecutionContext | None = None,
        on_token: OnToken | None = None,
        show: Show | None = None,
        other_models: OtherModels | None = None,
        rules_of: RulesOf | None = None,
        equip: Equip | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        ledger.trust.ensure("run a program")
        self.ledger, self.programs, self._crossing, self.inference = ledger, programs, crossing, inference
        self.variable, self._context, self.on_token, self.show = variable, context, on_token, show
        self.runner = runner
        self._other_models, self._rules_of, self._equip = other_models, rules_of, equip
        self.on_progress = on_progress

    @property
    def execution_context(self) -> ExecutionContext:
        """In whose name a program is invoked."""
        return self._context or current_context()

    @property
    def crossing(self) -> Executor:
        return self._crossing

    async def across(self, call: Callable[[], T]) -> T:
        """Make a call to the ledger's synchronous side."""
        return await self._crossing.run(call)

    async def get(self, name: str, *kinds: str) -> Program:
        return await self.across(lambda: self.programs.get(name, *kinds))

    async def configuration(self, request: TurnRequest) -> TurnConfiguration:
        """What a turn is configured with now, in the name of this context."""
        return await gather_configuration(
            self.programs,
            self._crossing,
            self.inference,
            request,
            variable=self.variable,
            context=self.execution_context,
            other_models=self._other_models,
        )

    def planner(self, persona: str | None = None) -> ConfiguredPlanner:
        """Plans the turns of messages that are sent in the name of this context. `persona` names the agent that
        answers where that is not the session's owner."""
        context, sender = self.execution_context, self.ledger.authority.principal.id

        def acting(message: InboxMessage) -> ExecutionContext:
            """What others left in the session is answered with what both they and this context may do."""
            return context if message.sender == sender else sender_context(context, self.programs, message)

        return ConfiguredPlanner(
            self.programs,
            self.ledger,
            self.inference,
            variable=self.variable,
            acting=acting,
            persona=persona,
            other_models=self._other_models,
            rules_of=self._rules_of,
            equip=self._equip,
        )

    async def send(
        self, session: str, message: Any, overrides: MessageOverrides, persona: Program | None = None
    ) -> TurnReply:
        """Send a message to a session, made if there is none, and wait for the answer."""

        def admitted() -> Admission:
            return self.ledger.sync.inbox.admit(
                message,
                session=session,
                persona=DEFAULT_AGENT if persona is None else persona.name,
                overrides=overrides.record(),
            )

        admission = await to_the_end(self.across(admitted))
        planner = self.planner(None if persona is None else persona.id)
        broker_of(self.ledger).plan_with(self.planner())
        return await answer_admitted(
            self.ledger, admission, SenderContext(planner=planner), on_token=self.on_token, wait=WAIT
        )

    async def model(self, name: str, context: ExecutionContext | None = None) -> ConfiguredModel:
        """A model's settings as its program and its provider's say now."""
        acting = context or self.execution_context

        def configured() -> ConfiguredModel:
            find = self.programs.get
            return model_settings(find(name, ProgramKind.MODEL), find, self.variable, acting)

        return await self.across(configured)
