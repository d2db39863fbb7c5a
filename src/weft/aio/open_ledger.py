"""An open ledger with its programs, awaited: `await ledger.programs["researcher"].invoke("hello")`.

What reaches outside (connections to providers, the embedded model) is made when a program is first invoked, and closed
with the ledger. Variables are looked up by the function that `open` was given, and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger, AsyncResources
from weft.aio.programs import AsyncPrograms
from weft.kernel.authority import Authority, Principal, PrincipalKind
from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import Site
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import checked_names, checked_record, checked_text
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.views.rows import Lease
from weft.programs.program_records import Difference, Program, ProgramChange, Resolver

if TYPE_CHECKING:
    from weft.aio.graph import AsyncGraph
    from weft.aio.programs import AsyncSimilarity
    from weft.kernel.enums import ResourceLiveness
    from weft.ledger.api import Resource, ResourceRestore, Snapshot
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.model_requests import ModelParameters
    from weft.runtime.invoke.invocation import Invocation, InvocationResult, Show
    from weft.runtime.replies import OnToken
    from weft.runtime.resources.turn_files import ForkedResources, PlanLine
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.surfaces.acting_ledger import AnsweredTurn, Approve, OnError, StreamPart
    from weft.surfaces.cli.work.sandbox_access import ActingResources


def no_variables(name: str) -> str | None:
    """Where `open` was given None: no variable is set."""
    return None


def current_execution_context() -> ExecutionContext | None:
    """The context that the calling code runs in, if it runs in one."""
    from weft.runtime.egress.execution_context import current_context

    try:
        return current_context()
    except InvalidInput:
        return None


def command_runner(ledger: AsyncLedger, variable: Resolver) -> CommandRunner:
    """What commands and code programs are run by: in a sandbox that hides the ledger."""
    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, is_strict
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.git_settings import SYSTEM_SETTINGS, person_settings
    from weft.runtime.sandbox.hidden_places import ProtectedPlaces
    from weft.runtime.sandbox.sandbox_plan import NO_FOLDERS, PersonFolders
    from weft.runtime.sandbox.toolchains import PersonalHome

    files = (Path(ledger.path).absolute(),) if Site.of(ledger.path) is Site.FILE else ()
    home, person = PersonalHome.of(variable), NO_FOLDERS
    if home is not None:
        place = Path(home.folder)
        settings = (*SYSTEM_SETTINGS, *person_settings(variable, place))
        person = PersonFolders(home=place, variables=home.variables, git_settings=settings)
    return CommandRunner(
        ProtectedPlaces(ledgers=files, folders=()),
        strict=is_strict(variable(STRICT_VARIABLE)),
        person=person,
    )


class SharedInference:
    """What reaches outside of one open ledger, whoever acts: made when it is first used."""

    def __init__(self, variable: Resolver | None) -> None:
        self.variable = variable or no_variables
        self._inference: Inference | None = None

    def open(self) -> Inference:
        from weft.runtime.inference.inference import Inference
        from weft.runtime.inference.local_models import model_folder

        if self._inference is None:
            self._inference = Inference(models=model_folder(self.variable))
        return self._inference

    async def close(self) -> None:
        """Close its connections. The next invocation makes them anew."""
        inference, self._inference = self._inference, None
        if inference is not None:
            await inference.__aexit__(None, None, None)


class AsyncOpenLedger(AsyncLedger):
    """What `weft.aio.open` gives: the ledger, and its programs, which can be invoked."""

    def __init__(self, sync: Ledger, pool: Pool, inference: SharedInference) -> None:
        super().__init__(sync, pool)
        self.inference = inference

    @property
    def graph(self) -> AsyncGraph:
        from weft.aio.graph import AsyncGraph

        return AsyncGraph(self)

    @cached_property
    def similarity(self) -> AsyncSimilarity:
        """By the model that comes with Weft; `weft.aio.programs.AsyncSimilarity` takes another one."""
        from weft.aio.programs import AsyncSimilarity
        from weft.programs.similarity import LazyMiniLM

        return AsyncSimilarity(self, LazyMiniLM())

    @property
    def resources(self) -> AsyncActingResources:
        return AsyncActingResources(self.sync.resources, self._pool)

    @property
    def programs(self) -> AsyncLedgerPrograms:
        return AsyncLedgerPrograms(self)

    async def send(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        thread: str | None = None,
        smart: bool = False,
        model: str | None = None,
        situation: str | None = None,
        thinking: str | None = None,
        toolset: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        approve: Approve | None = None,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        sandbox: str | None = None,
        credentials: Sequence[str] = (),
        workspace: str | None = None,
        returns: Any = None,
        key: str | None = None,
    ) -> AnsweredTurn:
        """Send a message as the command line does, and await the answer: to a session, made if there is none, by
        default main; to an agent, where it works; after a turn; or with `smart` to the thread that it belongs to. What
        is configured is narrowed by `allow`, `deny`, `sandbox` and `credentials`, for this once. `tools` are functions
        of this program, which run in its process. `approve` is called with each `weft.PendingCall` and gives
        `weft.allow()` or `weft.deny()`; without it such a call raises ApprovalNeeded, and the turn stays parked.
        `workspace` is the folder that is worked in. `returns` is a type: the answer is asked for as one, in `value`.
        Whoever is cancelled has the turn cut short."""
        invoker = self._invoker()
        message = invoker.message(
            text,
            session=session,
            agent=agent,
            thread=thread,
            smart=smart,
            model=model,
            situation=situation,
            thinking=thinking,
            toolset=toolset,
            tools=tools,
            approve=approve,
            allow=allow,
            deny=deny,
            sandbox=sandbox,
            credentials=credentials,
            workspace=workspace,
            returns=returns,
            key=key,
        )
        answered: AnsweredTurn = await invoker.send_awaited(self.sync, message)
        return answered

    def stream(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        thread: str | None = None,
        smart: bool = False,
        model: str | None = None,
        situation: str | None = None,
        thinking: str | None = None,
        toolset: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        approve: Approve | None = None,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        sandbox: str | None = None,
        credentials: Sequence[str] = (),
        workspace: str | None = None,
        returns: Any = None,
        key: str | None = None,
    ) -> AsyncGenerator[StreamPart, None]:
        """Send a message as `send` does, and give what comes of it as it comes: `weft.TextAdded`, `weft.AttemptReset`,
        `weft.ToolStarted`, `weft.ToolFinished`, `weft.PendingCall`, and at the end the `weft.AnsweredTurn`. Whoever
        takes no more of it has the turn cut short."""
        invoker = self._invoker()
        message = invoker.message(
            text,
            session=session,
            agent=agent,
            thread=thread,
            smart=smart,
            model=model,
            situation=situation,
            thinking=thinking,
            toolset=toolset,
            tools=tools,
            approve=approve,
            allow=allow,
            deny=deny,
            sandbox=sandbox,
            credentials=credentials,
            workspace=workspace,
            returns=returns,
            key=key,
        )
        parts: AsyncGenerator[StreamPart, None] = invoker.stream_awaited(self.sync, message)
        return parts

    def broker(
        self, *, tools: Sequence[Callable[..., Any]] = (), on_error: OnError | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Meanwhile answer the messages of every session, rooms and triggers among them, and finish the turns that
        run. With `tools`, also turns that were given the same functions. `on_error` hears what failed beside
        answering; without it that is logged."""
        serving: AbstractAsyncContextManager[None] = self._invoker().serving_awaited(self.sync, tools, on_error)
        return serving

    def _invoker(self) -> Any:
        """What acts for the open ledger beneath, from whatever event loop: a `weft.surfaces` `Invoker`."""
        invoker = getattr(self.sync, "_used_invoker", None)
        if invoker is None:
            raise InvalidInput("this ledger was not opened by weft.open", "open it with weft.aio.open")
        return invoker

    def acting_as(self, who: Authority | str) -> AsyncOpenLedger:
        """The same open ledger, changed in the name of somebody else, as the synchronous one. Reads nothing."""
        ledger = AsyncOpenLedger(self._sync.acting_as(who), self._pool, self.inference)
        ledger._is_original = False
        return ledger

    async def __aenter__(self) -> AsyncOpenLedger:
        return self

    async def close(self) -> None:
        """Connections first; then everything that was begun ends, awaited or not, and the ledger is closed."""
        try:
            if self._is_original:
                await self.inference.close()
        finally:
            await super().close()


class AsyncActingResources(AsyncResources):
    """The resources of an open ledger, and what acts on them, awaited."""

    @property
    def _acting(self) -> ActingResources:
        from weft.surfaces.cli.work.sandbox_access import ActingResources

        assert isinstance(self._sync, ActingResources), "the resources of an open ledger"
        return self._sync

    async def declare(
        self, place: str, *, kind: str | None = None, name: str | None = None, session: str | None = None
    ) -> Resource:
        """As the synchronous one."""
        return await self._run(partial(self._acting.declare, place, kind=kind, name=name, session=session))

    async def probe(self, resource: str) -> ResourceLiveness:
        """As the synchronous one."""
        return await self._run(partial(self._acting.probe, resource))

    async def take_snapshot(self, resource: str, *, method: str | None = None) -> Snapshot:
        """As the synchronous one."""
        return await self._run(partial(self._acting.take_snapshot, resource, method=method))

    async def restore(self, snapshot: str, *, place: str | None = None, session: str | None = None) -> ResourceRestore:
        """As the synchronous one."""
        return await self._run(partial(self._acting.restore, snapshot, place=place, session=session))

    async def mount(
        self, resource: str, path: str, *, mode: str = "rw", run: str | None = None, container: str | None = None
    ) -> Resource:
        """As the synchronous one."""
        return await self._run(partial(self._acting.mount, resource, path, mode=mode, run=run, container=container))

    async def unmount(self, resource: str, *, run: str | None = None, container: str | None = None) -> Resource:
        """As the synchronous one."""
        return await self._run(partial(self._acting.unmount, resource, run=run, container=container))

    async def plan_fork(self, turn: str, label: str) -> Sequence[PlanLine]:
        """As the synchronous one."""
        return await self._run(partial(self._acting.plan_fork, turn, label))

    async def fork(
        self, turn: str, label: str, plan: Sequence[PlanLine] | None = None, *, agent: str | None = None
    ) -> ForkedResources:
        """As the synchronous one."""
        return await self._run(partial(self._acting.fork, turn, label, plan, agent=agent))


class AsyncLedgerPrograms(AsyncPrograms):
    """The programs of an open ledger. `programs[name]` is one of them, whatever its kind."""

    def __init__(self, ledger: AsyncOpenLedger, hold: Lease | None = None) -> None:
        super().__init__(ledger, hold)
        self._open_ledger = ledger

    def __getitem__(self, name: str) -> AsyncProgramHandle:
        return AsyncProgramHandle(self, name)

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> AsyncLedgerPrograms:
        """The same programs, changed and invoked in the name of somebody else."""
        return AsyncLedgerPrograms(self._open_ledger.acting_as(who), hold)

    async def invoke(
        self,
        name: str,
        invocation: Invocation,
        *,
        on_token: OnToken | None = None,
        show: Show | None = None,
        context: ExecutionContext | None = None,
    ) -> InvocationResult:
        """Invoke a program by its name or address: in this context, else in that which the caller runs in, else in
        that of whoever opened the ledger; and for everybody in whose name the ledger acts."""
        from weft.runtime.invoke.handlers import invoke
        from weft.runtime.invoke.invocation import Invocation, InvocationContext

        checked_record(invocation, Invocation, "invocation")
        inference = self._open_ledger.inference
        invocation_context = InvocationContext(
            self._open_ledger,
            self._sync,
            self._pool,
            inference.open(),
            variable=inference.variable,
            runner=command_runner(self._open_ledger, inference.variable),
            context=await self._acting(context or current_execution_context()),
            on_token=on_token,
            show=show,
        )
        return await invoke(invocation_context, name, invocation)

    async def _acting(self, context: ExecutionContext | None) -> ExecutionContext:
        """A context, and for it whoever the ledger acts for, with what their rights and permissions leave."""
        from weft.runtime.assembly.turn_configuration import actor_context
        from weft.runtime.egress.execution_context import ExecutionContext, context_from_env

        if context is not None:
            checked_record(context, ExecutionContext, "context")
        authority = self._open_ledger.authority
        owner = Principal(PrincipalKind.HUMAN, DEFAULT_AGENT)
        acting = context or context_from_env(owner, self._open_ledger.inference.variable)
        acting = acting.child(rights=authority.rights)
        for principal in authority.chain:
            if principal.kind in (PrincipalKind.SESSION, PrincipalKind.SYSTEM):
                acting = acting if principal.id == DEFAULT_AGENT else acting.delegate(principal)
            else:
                acting = actor_context(acting, await self.get(principal.id))
        return acting


class AsyncProgramHandle:
    """One program, by its name or address. It is looked up anew by every verb."""

    def __init__(self, programs: AsyncLedgerPrograms, name: str) -> None:
        self._programs, self.name = programs, name

    async def invoke(
        self,
        message: Any = None,
        *,
        input: Any | UnsetType = UNSET,
        model: str | None = None,
        situation: str | None = None,
        parameters: ModelParameters | None = None,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        sandbox: str | None = None,
        credentials: Sequence[str] | None = None,
        task: str | None = None,
        workspace: str | None = None,
        asks: bool = False,
        about: str | None = None,
        key: str | None = None,
        on_token: OnToken | None = None,
        show: Show | None = None,
        context: ExecutionContext | None = None,
    ) -> InvocationResult:
        """Put it to work; each kind takes what it needs. `allow`, `deny`, `sandbox` and `credentials` narrow what is
        configured, for this once. `on_token` is called with a model's answer as it comes, `show`
        with the name of a person and what they are told on a terminal. Without a `context` it is invoked in that which
        the caller runs in, else in that of whoever opened the ledger."""
        from weft.runtime.inference.model_requests import NO_PARAMETERS
        from weft.runtime.invoke.invocation import Invocation

        invocation = Invocation(
            message=message,
            input=input,
            model=model,
            situation=situation,
            parameters=NO_PARAMETERS if parameters is None else parameters,
            allow=None if allow is None else tuple(checked_names(allow, "allow")),
            deny=tuple(checked_names(deny, "deny")),
            sandbox=None if sandbox is None else checked_text(sandbox, "sandbox"),
            credentials=None if credentials is None else tuple(checked_names(credentials, "credentials")),
            task=task,
            workspace=workspace,
            asks=asks,
            about=about,
            key=key,
        )
        return await self._programs.invoke(self.name, invocation, on_token=on_token, show=show, context=context)

    async def get(self) -> Program:
        """The program as it is now."""
        return await self._programs.get(self.name)

    @property
    def config(self) -> Coroutine[Any, Any, Any]:
        """Its configuration as it is now."""
        return self._config()

    async def _config(self) -> Any:
        return (await self.get()).config

    async def configure(
        self,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole."""
        return await self._programs.configure(self.name, config, expected=expected, reason=reason, key=key)

    async def change(
        self,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away."""
        return await self._programs.change(self.name, changes, expected=expected, reason=reason, key=key)

    async def publish(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._programs.publish(self.name, reason=reason, key=key)

    async def deprecate(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._programs.deprecate(self.name, reason=reason, key=key)

    async def delete(
        self, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays."""
        return await self._programs.delete(self.name, expected=expected, reason=reason, key=key)

    async def revert(
        self,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again."""
        return await self._programs.revert(self.name, version, expected=expected, reason=reason, key=key)

    async def history(self) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        return await self._programs.history(self.name)

    async def diff(self, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        return await self._programs.diff(self.name, before, after)
