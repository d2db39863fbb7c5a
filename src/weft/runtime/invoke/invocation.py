"""What programs are invoked with: an open ledger, its programs, who acts, and the ways outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import ProgramKind
from weft.ledger.api import Admission, InboxMessage
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.program_records import Program, Resolver
from weft.programs.programs import Programs
from weft.runtime.agent_harness import OnProgress
from weft.runtime.assembly.configuration_layers import MessageOverrides
from weft.runtime.assembly.system_prompts import RulesOf
from weft.runtime.assembly.turn_configuration import (
    ConfiguredModel,
    OtherModels,
    TurnConfiguration,
    TurnRequest,
    gather_configuration,
    model_settings,
)
from weft.runtime.broker.broker import WAIT, answer_admitted, broker_of, to_the_end
from weft.runtime.broker.turn_plans import SenderContext
from weft.runtime.egress.execution_context import ExecutionContext, current_context
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import NO_PARAMETERS, ModelParameters
from weft.runtime.invoke.turn_planner import ConfiguredPlanner, Equip, sender_context
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.replies import TurnReply
from weft.runtime.sandbox.command_runner import CommandRunner

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken

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
