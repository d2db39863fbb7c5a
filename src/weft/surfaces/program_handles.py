"""The programs of an open ledger for blocking code: each is a handle, with the verbs of all
kinds and `invoke`, which waits for asynchronous work on an event loop in a thread of its own.
Messages that a program sends are answered there, too, from whatever thread or event loop they come.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weft.kernel.authority import Authority
from weft.kernel.clock import SystemClock
from weft.kernel.enums import ApprovalState, MessageRole
from weft.kernel.errors import (
    AnswerUnfit,
    ApprovalNeeded,
    InvalidInput,
    NotApplicable,
    ReplyUnfit,
    RequestRefused,
    StoreError,
)
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import checked_flag, checked_list, checked_names, checked_text
from weft.ledger.model import NewMessage
from weft.ledger.views.rows import Lease
from weft.programs.program_records import Difference, Program, ProgramChange, Resolver
from weft.programs.programs import Programs

if TYPE_CHECKING:
    from weft.aio.open_ledger import AsyncOpenLedger
    from weft.ledger.api import Admission, Approval, InboxMessage, SessionStanding
    from weft.runtime.assembly.configuration_layers import MessageOverrides
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.broker.broker import Broker
    from weft.runtime.broker.turn_plans import TurnPlan
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.model_requests import ModelParameters
    from weft.runtime.invoke.invocation import Invocation, InvocationResult, Show
    from weft.runtime.invoke.message_routes import RouteChoice
    from weft.runtime.replies import OnToken, TurnReply
    from weft.runtime.tool.tool_contract import CallersTool, DeclaredTool, PermissionAnswer
    from weft.surfaces.acting_ledger import ActingLedger, AnsweredTurn, Approve, Note, OnError, StreamPart


# --- An event loop in a thread of its own, so that blocking code can wait for asynchronous work.

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any number of threads at once, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._working: set[asyncio.Task[Any]] = set()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the coroutine that `work` makes. A caller that is interrupted cancels it and waits for its end."""
        if current_thread() is self._thread:
            raise InvalidInput(
                "a blocking call was made inside of an invocation", "make it from another thread, or use weft.aio"
            )
        running: RunningWork[T] = RunningWork(self._loop)
        try:
            self._loop.call_soon_threadsafe(self._begin, work, running.tasks, running.outcome)
            return running.outcome.result()
        except BaseException:  # also an interrupted caller leaves no work behind
            running.stop()
            wait([running.outcome])
            raise

    async def awaited(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same for a task of another event loop. A task that is cancelled cancels it and waits for its end."""
        running = self.start(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(running.outcome))
        except asyncio.CancelledError:
            await running.stopped()
            raise

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> RunningWork[T]:
        """Begin with the coroutine that `work` makes."""
        running: RunningWork[T] = RunningWork(self._loop)
        self._loop.call_soon_threadsafe(self._begin, work, running.tasks, running.outcome)
        return running

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, T]], tasks: list[asyncio.Task[T]], outcome: Future[T]
    ) -> None:
        try:
            task = self._loop.create_task(work())
        except BaseException as error:  # whatever it is, the caller waits for it
            outcome.set_exception(error)
            return
        tasks.append(task)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        task.add_done_callback(lambda ended: _hand_over(ended, outcome))

    def call(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop, soon."""
        self._loop.call_soon_threadsafe(function)

    def end_work(self) -> None:
        """Cancel all that was begun here, and wait for its end."""
        self.run(self._end_work)

    async def _end_work(self) -> None:
        working = self._working - {asyncio.current_task()}
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    def close(self) -> None:
        """End the loop and its thread; what still runs is cancelled."""
        if not self._thread.is_alive():
            return
        self.run(self._cancel_rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_rest(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class RunningWork(Generic[T]):
    """What a coroutine in the loop of a `LoopThread` comes to."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.outcome: Future[T] = Future()
        self.tasks: list[asyncio.Task[T]] = []

    def stop(self) -> None:
        """Cancel it, unless it is over; its outcome says when it has ended."""
        if not self.outcome.done():
            self._loop.call_soon_threadsafe(_stop, self.tasks, self.outcome)

    async def stopped(self) -> None:
        """Cancel it, and wait for its end, however often the task that waits is cancelled."""
        self.stop()
        ending = asyncio.wrap_future(self.outcome)
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({ending})
        if not ending.cancelled():
            ending.exception()  # whoever is cancelled does not hear of it


def _stop(tasks: list[asyncio.Task[T]], outcome: Future[T]) -> None:
    """Called after `_begin`, or where the caller was interrupted before that, instead of it."""
    if not tasks:
        outcome.set_exception(asyncio.CancelledError())
    for task in tasks:
        task.cancel()


def _hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
        return
    error = task.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


# --- A message that a program sends, and its answer.

DEFAULT_SESSION = "main"
LOOK_SECONDS = 1.0
"""So often it is looked whether a person is asked about a turn that another process runs."""
BY_A_PROGRAM = "answered by a program"
"""The reason of every approval that a callback gave begins so. The event has no field for it: its actor, and everybody
in `on_behalf_of`, must be a person with the right to approve, as others who take the ledger over check, too."""


class ProgramsMessage(Struct, frozen=True, kw_only=True):
    """What a program sends. `overrides` narrow what is configured, as those of the command line do."""

    text: str
    session: str | None = None
    agent: str | None = None
    thread: str | None = None
    smart: bool = False
    overrides: MessageOverrides
    tools: tuple[DeclaredTool[..., Any], ...] = ()
    approve: Approve | None = None
    workspace: str | None = None
    returns: Any = None
    key: str | None = None


def programs_message(
    text: str,
    *,
    session: str | None,
    agent: str | None,
    thread: str | None,
    smart: bool,
    model: str | None,
    situation: str | None,
    thinking: str | None,
    toolset: str | None,
    tools: Sequence[Callable[..., Any]],
    approve: Approve | None,
    allow: Sequence[str],
    deny: Sequence[str],
    sandbox: str | None,
    credentials: Sequence[str],
    workspace: str | None,
    returns: Any,
    key: str | None,
) -> ProgramsMessage:
    """Checked, before anything is written."""
    from weft.runtime.assembly.configuration_layers import parse_overrides

    if not checked_text(text, "text").strip():
        raise InvalidInput("the message is empty", "give a text")
    texts = {"session": session, "agent": agent, "thread": thread, "model": model, "situation": situation}
    texts |= {"thinking": thinking, "toolset": toolset, "sandbox": sandbox, "workspace": workspace}
    for name, value in texts.items():
        if value is not None:
            checked_text(value, name)
    if (thread and (session or smart)) or (smart and agent):
        raise InvalidInput("a message has one target", "name one: session=, agent=, thread= or smart=True")
    if approve is not None and not callable(approve):
        raise InvalidInput(f"approve is {type(approve).__name__}", "give a function of a PendingCall")
    overrides = parse_overrides(
        model=model,
        situation=situation,
        thinking=thinking,
        toolset=toolset,
        allow=checked_names(allow, "allow"),
        deny=checked_names(deny, "deny"),
        sandbox=sandbox,
        credentials=checked_names(credentials, "credentials"),
    )
    return ProgramsMessage(
        text=text,
        session=session,
        agent=agent,
        thread=thread,
        smart=checked_flag(smart, "smart"),
        overrides=overrides,
        tools=declared_tools(tools),
        approve=approve,
        workspace=workspace,
        returns=returns,
        key=key,
    )


def declared_tools(tools: Sequence[Callable[..., Any]]) -> tuple[DeclaredTool[..., Any], ...]:
    """Functions as tools; each has a name of its own, which no tool that is built in has."""
    from weft.runtime.tool.tool_contract import declared_tool
    from weft.runtime.tool.toolsets import BUILT_IN_TOOLS

    declared = tuple(map(declared_tool, checked_list(tools, "tools")))
    names = [tool.name for tool in declared]
    taken = [name for name in names if name in BUILT_IN_TOOLS or names.count(name) > 1]
    if taken:
        raise InvalidInput(f"there is another tool {taken[0]!r}", "give the function another name: @weft.tool(name=…)")
    return declared


class CallersFunctions:
    """Runs the functions of a program: asynchronous ones in its event loop, if it has one, others in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await self._run_awaited(function(**arguments))
        result = await asyncio.to_thread(partial(function, **arguments))
        return await self._run_awaited(result) if inspect.isawaitable(result) else result

    async def _run_awaited(self, work: Awaitable[Any]) -> Any:
        loop = self._loop
        if loop is None or loop.is_closed() or loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_as_coroutine(work), loop))


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    return await work


class MessageSending:
    """One message of a program on its way to its answer, in the event loop of the acting ledger. `note` hears what
    comes of it."""

    def __init__(
        self, acting: ActingLedger, message: ProgramsMessage, functions: CallersFunctions, note: Note | None
    ) -> None:
        from weft.ledger.api import Runs

        self._acting, self._message, self._functions, self._note = acting, message, functions, note
        self._runs, self._crossing = Runs(acting.ledger), acting.mirror.crossing
        self._session: str | None = None
        """The label of the session that it was admitted to."""
        self._context: dict[str, Any] | None = None
        """Of the message: the folder that it is sent from, also where the model is asked again."""
        self._own: tuple[CallersTool, ...] = ()
        self._handled: set[str] = set()
        """The requests to people that were put to the program."""

    async def answer(self) -> AnsweredTurn:
        """Admit it and have it answered. Raises what its turn failed with, and ApprovalNeeded."""
        acting, message = self._acting, self._message
        acting.ledger.trust.ensure("send a message to a model")
        self._own = tuple(acting.functions.add(tool, self._functions.run) for tool in message.tools)
        overrides = replace(message.overrides, functions=tuple(tool.reference for tool in self._own))
        if message.returns is None:
            answered = await self._admit_and_answer(partial(self._admit, overrides))
        else:
            answered = await self._answered_as(WantedAnswer(message.returns), overrides)
        if self._note is not None:
            self._note(answered)
        return answered

    async def _answered_as(self, wanted: WantedAnswer, overrides: MessageOverrides) -> AnsweredTurn:
        """The answer as the type that it is asked for. Once, the model is told what is wrong with it; where its
        provider's own mode did not bring such an answer, it is asked anew in the words of the message."""
        answered: AnsweredTurn | None = None
        try:
            answered = await self._admit_and_answer(partial(self._admit, overrides, wanted))
            return wanted.fitted(answered)
        except msgspec.MsgspecError as error:
            assert answered is not None, "there is an answer that does not fit"
            again = partial(self._admit_after, wanted.asked_again(error), overrides, turn=answered.id)
        except (ReplyUnfit, RequestRefused):
            if not wanted.is_by_mode:
                raise
            again = partial(self._admit_after, wanted.asked(self._message.text), overrides, session=self._session)
        mended = await self._admit_and_answer(again)
        try:
            return wanted.fitted(mended)
        except msgspec.MsgspecError as left:
            raise AnswerUnfit(f"the answer of turn {mended.id} is not what was asked for: {left}") from None

    # --- admission ---------------------------------------------------------------------------------------------------

    def _admit(self, overrides: MessageOverrides, wanted: WantedAnswer | None = None) -> Admission:
        from weft.runtime.tool.toolsets import find_toolset
        from weft.surfaces.cli.trust import copied_workspace, ensure_own_session, workspace_of

        message, ledger = self._message, self._acting.ledger
        if overrides.toolset is not None:
            find_toolset(self._acting.programs, overrides.toolset)
        session, thread, route = message.session, message.thread, None
        if message.smart:
            from weft.surfaces.wire.forms import form

            choice = chosen_route(ledger, message.text, message.session)
            thread, session = choice.turn, choice.session or (choice.fallback if choice.turn is None else None)
            thread, route = None if session else thread, {"smart": form(choice)}
        elif session is None and thread is None and message.agent is None:
            ensure_own_session(ledger, DEFAULT_SESSION, "name it to continue it: session='main'")
            session = DEFAULT_SESSION
        text = message.text
        if wanted is not None:
            text, overrides = self._asking(wanted, overrides, session, thread)
        place = copied_workspace(ledger, session) if message.workspace is None else workspace_of(message.workspace)
        self._context = None if place is None else {"workspace": place}
        return ledger.inbox.admit(
            NewMessage(role=MessageRole.USER, content=text, context=self._context),
            session=session,
            turn=thread,
            persona=message.agent,
            overrides=overrides.record(),
            route=route,
            key=message.key,
        )

    def _asking(
        self, wanted: WantedAnswer, overrides: MessageOverrides, session: str | None, thread: str | None
    ) -> tuple[str, MessageOverrides]:
        """By its provider's own mode where the model that will answer has one, else in the words of the message."""
        from weft.runtime.assembly.turn_configuration import TurnRequest

        acting, text = self._acting, self._message.text
        if thread is not None:
            session = acting.ledger.turn(thread).session_id
        request = TurnRequest(session=session, persona=self._message.agent, overrides=overrides)
        if not wanted.may_be_by_mode(acting.configuration(request)):
            return wanted.asked(text), overrides
        wanted.is_by_mode = True
        parameters = replace(overrides.parameters, response_schema=wanted.schema)
        return text, replace(overrides, parameters=parameters)

    def _admit_after(
        self, text: str, overrides: MessageOverrides, *, turn: str | None = None, session: str | None = None
    ) -> Admission:
        key = None if self._message.key is None else f"{self._message.key}:again"
        message = NewMessage(role=MessageRole.USER, content=text, context=self._context)
        inbox = self._acting.ledger.inbox
        return inbox.admit(message, turn=turn, session=session, overrides=overrides.record(), key=key)

    # --- the answer --------------------------------------------------------------------------------------------------

    async def _admit_and_answer(self, admit: Callable[[], Admission]) -> AnsweredTurn:
        from weft.runtime.broker.broker import answer_admitted, broker_of, to_the_end
        from weft.runtime.broker.turn_plans import SenderContext

        acting = self._acting
        broker_of(acting.mirror).plan_with(acting.planner, acting.functions)  # also for what others left in the session
        admission = await to_the_end(self._crossing.run(admit))
        self._session = admission.session
        asking = asyncio.ensure_future(self._ask_program(admission))
        following = None if self._note is None else asyncio.ensure_future(self._follow(admission, self._note))
        try:
            sending = SenderContext(planner=self._plan)
            sent = await answer_admitted(acting.mirror, admission, sending, unless=asking)
            if following is not None:
                await asyncio.wait({following}, timeout=LOOK_SECONDS)  # what was recorded last is told, too
        finally:
            tasks: list[asyncio.Task[None]] = [asking] if following is None else [asking, following]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # what they raised is raised already, or of no use
        return await self._crossing.run(partial(self._answered_turn, admission, sent))

    async def _plan(self, standing: SessionStanding, messages: Sequence[InboxMessage]) -> TurnPlan:
        with self._acting.functions.preferring(self._own):
            return await self._acting.planner(standing, messages)

    def _answered_turn(self, admission: Admission, sent: TurnReply) -> AnsweredTurn:
        from weft.surfaces.acting_ledger import AnsweredTurn

        reply, turn = sent.reply, self._acting.ledger.turn(sent.turn.id)
        return AnsweredTurn(
            id=turn.id,
            text=reply.text,
            thinking=reply.thinking,
            session=admission.session,
            session_id=admission.session_id,
            message=admission.message,
            is_fork=admission.is_fork,
            model=reply.model,
            provider=reply.provider,
            finish=str(reply.finish),
            usage=turn.usage,
            cost=self._runs.spending(turn.id).cost,
        )

    async def _follow(self, admission: Admission, note: Note) -> None:
        """Tell of the turn of the message, wherever it runs."""
        from weft.ledger.api import (
            AttemptReset,
            MessageAdded,
            StreamPosition,
            TextAdded,
            ToolFinished,
            ToolStarted,
            TurnEnded,
        )

        turn = None
        after = None if admission.receipt is None else StreamPosition(admission.receipt.n)
        async for item in self._acting.mirror.follow(admission.session_id, after=after):
            match item:
                case MessageAdded(message=admission.message):
                    turn = item.turn
                case TextAdded() | AttemptReset() | ToolStarted() | ToolFinished() if item.turn == turn:
                    note(item)
                case TurnEnded() if item.turn == turn:
                    return

    # --- requests to people ------------------------------------------------------------------------------------------

    async def _ask_program(self, admission: Admission) -> None:
        """Put each request about the turn, and about those of its workers, to the program. It ends where the program
        cannot answer one, and then with why."""
        rung = asyncio.Event()
        with self._acting.told_of_requests(rung):
            while True:
                rung.clear()
                for approval in await self._crossing.run(partial(self._own_requests, admission)):
                    await self._ask_function(approval)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await rung.wait()

    def _own_requests(self, admission: Admission) -> list[Approval]:
        turn = self._runs.answering_turn(admission.message)
        if turn is None:
            return []
        return [
            request
            for request in self._runs.open_requests(admission.session_id)
            if request.id not in self._handled and (request.turn == turn or request.session != admission.session)
        ]

    async def _ask_function(self, approval: Approval) -> None:
        from weft.runtime.broker.broker import broker_of
        from weft.runtime.tool.tool_contract import PendingCall, PermissionAnswer

        self._handled.add(approval.id)
        pending = PendingCall(
            id=approval.id,
            tool=approval.tool,
            arguments=approval.arguments,
            why=approval.rationale or "",
            shown=approval.shown or "",
            agent=approval.agent,
            session=approval.session,
            turn=approval.turn,
        )
        if self._note is not None:
            self._note(pending)
        if self._message.approve is None:
            raise ApprovalNeeded(approval.id, approval.tool, approval.turn)
        answer = await self._functions.run(partial(self._message.approve, pending), {})
        if not isinstance(answer, PermissionAnswer):
            raise InvalidInput(f"approve gave {type(answer).__name__}", "give weft.allow() or weft.deny()")
        await self._crossing.run(partial(self._record, approval, answer))
        broker_of(self._acting.mirror).wake()

    def _record(self, approval: Approval, answer: PermissionAnswer) -> None:
        """In the name of whoever opened the ledger, marked as a program's. Somebody else may have been quicker."""
        approvals = self._acting.ledger.approvals
        reason = BY_A_PROGRAM if answer.reason is None else f"{BY_A_PROGRAM}: {answer.reason}"
        try:
            if answer.is_granted:
                approvals.grant(approval.id, plan_digest=approval.plan_digest, scope=answer.scope, reason=reason)
            else:
                approvals.deny(approval.id, abort=answer.abort, reason=reason)
        except NotApplicable:
            if approvals.get(approval.id).state == ApprovalState.OPEN:
                raise


def chosen_route(ledger: Ledger, text: str, fallback: str | None) -> RouteChoice:
    """The thread that a text belongs to, of those that whoever acts may read. Raises NotApplicable where no thread is
    sure enough and there is no `fallback`."""
    from weft.runtime.invoke.message_routes import choose_route

    cosines = _nearest_turns(ledger, text)
    related = ledger.related_turns(text, also=tuple(cosines))
    choice = choose_route(related, cosines, now_ms=SystemClock().now_ms(), fallback=fallback)
    if choice.turn is None and choice.fallback is None:
        raise NotApplicable(
            f"no thread is sure enough: {'; '.join(choice.reasons)}", "name one: session=SESSION, or thread=TURN"
        )
    return choice


def _nearest_turns(ledger: Ledger, text: str) -> dict[str, float]:
    """Turns with their cosines; none, and no model is loaded, where nothing was embedded or it cannot be compared."""
    from weft.programs.similarity import MINILM, LazyMiniLM, Similarity, has_vectors

    if find_spec("numpy") is None or not has_vectors(ledger, MINILM):
        return {}
    return Similarity(ledger, LazyMiniLM()).nearest_turns(text)


# --- A broker of a program.


class ProgramsBroker:
    """Serves every session of an acting ledger, until `stop`."""

    def __init__(self, acting: ActingLedger, on_error: OnError) -> None:
        self._acting, self._on_error = acting, on_error
        self._broker: Broker | None = None

    async def serve(self, is_ready: Callable[[], object]) -> None:
        """`is_ready` is called once it serves."""
        from weft.ledger.api import Runs
        from weft.runtime.broker.broker import Broker, serving_broker

        acting = self._acting
        acting.ledger.trust.ensure("answer messages")
        crossing = acting.mirror.crossing
        jobs = await crossing.run(partial(acting.background_jobs, self._on_error, self._on_error))
        self._broker = Broker(
            acting.ledger,
            crossing,
            acting.planner,
            is_streamed=True,
            background=jobs,
            on_left=partial(self._on_error, "turns"),
            functions=acting.functions,
        )
        with serving_broker(acting.mirror, self._broker):
            await crossing.run(Runs(acting.ledger).announce_broker)
            is_ready()
            await self._broker.serve()

    def stop(self) -> None:
        """Begin no more turns; `serve` ends with those that run."""
        if self._broker is not None:
            self._broker.drain()


# --- An answer of a type.

_FENCED = re.compile(r"\A\s*```[\w-]*\n(.*)\n```\s*\Z", re.S)


class WantedAnswer:
    """The type that an answer is asked for: by its schema, in the mode that the model's provider has for that, or in
    the message."""

    def __init__(self, kind: Any) -> None:
        self._kind, self.is_by_mode = kind, False
        try:
            self.schema = msgspec.json.schema(kind)
        except (TypeError, ValueError, RecursionError) as error:  # msgspec writes out what is no type
            raise InvalidInput(f"returns has no JSON Schema: {error}", "give a type of JSON") from None

    def may_be_by_mode(self, configuration: TurnConfiguration) -> bool:
        """Whether the model of a turn can be given the schema beside its message. Those modes are for objects alone;
        beside tools, not all of Google's models have one."""
        from weft.runtime.inference.dialects.model_clients import response_schema_fault
        from weft.runtime.inference.model_requests import Dialect, route_of

        model, root = configuration.model, self.schema
        if "$ref" in root:
            root = root.get("$defs", {}).get(root["$ref"].rpartition("/")[2], {})
        if model is None or root.get("type") != "object" or response_schema_fault(model) is not None:
            return False
        has_tools = configuration.has_tools or bool(configuration.functions)
        return not (has_tools and route_of(model).dialect is Dialect.GOOGLE)

    def asked(self, text: str) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        return f"{text}\n\nAnswer with one JSON value alone, which fits this JSON Schema:\n{schema}"

    def asked_again(self, error: Exception) -> str:
        return self.asked(f"That was not such a value: {error}.")

    def fitted(self, answered: AnsweredTurn) -> AnsweredTurn:
        """Raises MsgspecError."""
        fenced = _FENCED.match(answered.text)
        text = answered.text if fenced is None else fenced[1]
        return replace(answered, value=msgspec.json.decode(text, type=self._kind))


# --- The programs of an open ledger for blocking code: each is a handle, with the verbs of all kinds and `invoke`.


class Invoker:
    """The asynchronous side of one open ledger, with a thread of its own. Started when it is first used."""

    def __init__(self, ledger: Ledger, variable: Resolver | None) -> None:
        self._ledger, self._variable = ledger, variable
        self._lock, self._closed = Lock(), False
        self._acting: dict[Authority, ActingLedger] = {}
        """The ledger as it acts in each name, made in the event loop."""
        self._started: tuple[LoopThread, AsyncOpenLedger] | None = None

    def run(self, work: Callable[[AsyncOpenLedger], Coroutine[Any, Any, T]]) -> T:
        """Wait for what is done with the ledger's asynchronous side."""
        loop, ledger = self._start()
        return loop.run(lambda: work(ledger))

    def _start(self) -> tuple[LoopThread, AsyncOpenLedger]:
        from weft.aio.crossing import Pool
        from weft.aio.open_ledger import AsyncOpenLedger, SharedInference

        with self._lock:
            if self._closed:
                raise StoreError("the ledger is closed", "open it again")
            if self._started is None:
                inference = SharedInference(self._variable)
                self._started = LoopThread("weft-invoke"), AsyncOpenLedger(self._ledger, Pool(), inference)
            return self._started

    def close(self) -> None:
        """Close what reaches outside, and end the thread. The ledger stays open."""
        with self._lock:
            self._closed, started, self._started = True, self._started, None
        if started is None:
            return
        loop, ledger = started
        try:
            loop.end_work()
            loop.run(self._leave_acting)
            loop.run(ledger.inference.close)
            loop.run(lambda: ledger._pool.close(lambda: None))
        finally:
            loop.close()

    async def _leave_acting(self) -> None:
        acting, self._acting = self._acting, {}
        for acting_ledger in acting.values():
            await acting_ledger.aclose()

    message = staticmethod(programs_message)

    # --- messages that a program sends ---------------------------------------------------------------------------

    def send(self, ledger: Ledger, message: ProgramsMessage) -> AnsweredTurn:
        """Send a message in the name that acts in `ledger`, and wait for its answer."""
        loop, mirror = self._start()
        return loop.run(lambda: self._answer(mirror, ledger, message, None, None))

    async def send_awaited(self, ledger: Ledger, message: ProgramsMessage) -> AnsweredTurn:
        """The same from another event loop, in which the program's own asynchronous functions run."""
        loop, mirror = self._start()
        callers = asyncio.get_running_loop()
        return await loop.awaited(lambda: self._answer(mirror, ledger, message, callers, None))

    def stream(self, ledger: Ledger, message: ProgramsMessage) -> Generator[StreamPart, None, None]:
        """The same, with all that comes of it as it comes. Whoever wants no more has the turn cut short."""
        loop, mirror = self._start()
        parts: SimpleQueue[StreamPart | None] = SimpleQueue()
        running = loop.start(lambda: self._answer(mirror, ledger, message, None, parts.put))
        running.outcome.add_done_callback(lambda _: parts.put(None))
        try:
            while (part := parts.get()) is not None:
                yield part
            running.outcome.result()
        finally:
            running.stop()
            wait([running.outcome])

    async def stream_awaited(self, ledger: Ledger, message: ProgramsMessage) -> AsyncGenerator[StreamPart, None]:
        """The same from another event loop."""
        loop, mirror = self._start()
        callers = asyncio.get_running_loop()
        parts: asyncio.Queue[StreamPart | None] = asyncio.Queue()

        def hand_over(part: StreamPart | None) -> None:
            with suppress(RuntimeError):  # the loop of whoever listened is closed
                callers.call_soon_threadsafe(parts.put_nowait, part)

        running = loop.start(lambda: self._answer(mirror, ledger, message, callers, hand_over))
        running.outcome.add_done_callback(lambda _: hand_over(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            await asyncio.wrap_future(running.outcome)
        finally:
            await running.stopped()

    async def _answer(
        self,
        mirror: AsyncOpenLedger,
        ledger: Ledger,
        message: ProgramsMessage,
        callers: asyncio.AbstractEventLoop | None,
        note: Callable[[StreamPart], None] | None,
    ) -> AnsweredTurn:
        acting = self._acting_ledger(mirror, ledger)
        return await MessageSending(acting, message, CallersFunctions(callers), note).answer()

    def _acting_ledger(self, mirror: AsyncOpenLedger, ledger: Ledger) -> ActingLedger:
        from weft.aio.ledger import AsyncLedger
        from weft.surfaces.acting_ledger import ActingLedger
        from weft.surfaces.cli.credentials import person_acting

        acting = self._acting.get(ledger.authority)
        if acting is None:
            variable = mirror.inference.variable
            acting = self._acting[ledger.authority] = ActingLedger(
                AsyncLedger(ledger, mirror.crossing),
                mirror.inference.open(),
                person=lambda _: person_acting(variable),
                variable=variable,
            )
        return acting

    # --- a broker of a program -----------------------------------------------------------------------------------

    @contextmanager
    def serving(self, ledger: Ledger, tools: Sequence[Callable[..., Any]], on_error: OnError | None) -> Iterator[None]:
        """Meanwhile every session is served. The turns that run are finished before it is left."""
        begun = self._begin_serving(ledger, tools, on_error, None)
        try:
            begun.ready.result()
            begun.raise_early()
            yield
        finally:
            begun.stop()
            try:
                begun.running.outcome.result()
            except BaseException:  # also an interrupted caller leaves no work behind
                begun.running.stop()
                wait([begun.running.outcome])
                raise

    @asynccontextmanager
    async def serving_awaited(
        self, ledger: Ledger, tools: Sequence[Callable[..., Any]], on_error: OnError | None
    ) -> AsyncIterator[None]:
        """The same from another event loop."""
        begun = self._begin_serving(ledger, tools, on_error, asyncio.get_running_loop())
        try:
            await asyncio.wrap_future(begun.ready)
            begun.raise_early()
            yield
        finally:
            begun.stop()
            try:
                await asyncio.shield(asyncio.wrap_future(begun.running.outcome))
            except asyncio.CancelledError:
                await begun.running.stopped()
                raise

    def _begin_serving(
        self,
        ledger: Ledger,
        tools: Sequence[Callable[..., Any]],
        on_error: OnError | None,
        callers: asyncio.AbstractEventLoop | None,
    ) -> BegunBroker:
        loop, mirror = self._start()
        declared = declared_tools(tools)
        ready: Future[None] = Future()
        brokers: list[ProgramsBroker] = []

        def is_ready() -> None:
            if not ready.done():  # all in the one thread of the loop
                ready.set_result(None)

        async def serve() -> None:
            acting = self._acting_ledger(mirror, ledger)
            for tool in declared:
                acting.functions.add(tool, CallersFunctions(callers).run)
            brokers.append(ProgramsBroker(acting, on_error or _log_error))
            await brokers[0].serve(is_ready)

        running = loop.start(serve)
        running.outcome.add_done_callback(lambda _: is_ready())

        def stop() -> None:
            for broker in brokers:
                broker.stop()

        return BegunBroker(running, ready, partial(loop.call, stop))


class BegunBroker(Struct, frozen=True):
    """A broker in the loop of a `LoopThread`: `ready` once it serves, or ended before that."""

    running: RunningWork[None]
    ready: Future[None]
    stop: Callable[[], None]

    def raise_early(self) -> None:
        """Raise what it failed with before it served."""
        if self.running.outcome.done():
            self.running.outcome.result()


def _log_error(name: str, error: Exception) -> None:
    logging.getLogger("weft").warning("%s: %s", name, error)


class LedgerPrograms(Programs):
    """The programs of an open ledger. `programs[name]` is one of them, whatever its kind. Thread-safe."""

    def __init__(self, ledger: Ledger, invoker: Invoker, hold: Lease | None = None) -> None:
        super().__init__(ledger, hold)
        self._invoker = invoker

    def __getitem__(self, name: str) -> ProgramHandle:
        return ProgramHandle(self, name)

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> LedgerPrograms:
        """The same programs, changed and invoked in the name of somebody else."""
        return LedgerPrograms(self.ledger.acting_as(who), self._invoker, hold)

    def invoke(
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
        from weft.aio.open_ledger import current_execution_context

        acting = context or current_execution_context()  # of this thread, not of the loop's
        return self._invoker.run(
            lambda ledger: ledger.programs.acting_as(self.ledger.authority, self._hold).invoke(
                name, invocation, on_token=on_token, show=show, context=acting
            )
        )


class ProgramHandle:
    """One program, by its name or address. It is looked up anew by every verb."""

    def __init__(self, programs: LedgerPrograms, name: str) -> None:
        self._programs, self.name = programs, name

    def invoke(
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
        return self._programs.invoke(self.name, invocation, on_token=on_token, show=show, context=context)

    def get(self) -> Program:
        """The program as it is now."""
        return self._programs.get(self.name)

    @property
    def config(self) -> Any:
        """Its configuration as it is now."""
        return self.get().config

    def configure(
        self,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole."""
        return self._programs.configure(self.name, config, expected=expected, reason=reason, key=key)

    def change(
        self,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away."""
        return self._programs.change(self.name, changes, expected=expected, reason=reason, key=key)

    def publish(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._programs.publish(self.name, reason=reason, key=key)

    def deprecate(self, *, reason: str | None = None, key: str | None = None) -> Program:
        return self._programs.deprecate(self.name, reason=reason, key=key)

    def delete(self, *, expected: int | None = None, reason: str | None = None, key: str | None = None) -> Program:
        """Hidden and deprecated; its name is free, its history stays."""
        return self._programs.delete(self.name, expected=expected, reason=reason, key=key)

    def revert(
        self,
        version: int,
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """The configuration of an earlier version again."""
        return self._programs.revert(self.name, version, expected=expected, reason=reason, key=key)

    def history(self) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        return self._programs.history(self.name)

    def diff(self, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        return self._programs.diff(self.name, before, after)
