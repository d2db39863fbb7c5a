"""`invoke`, for every kind of program: a table of handlers, by the keys of the table of kinds.

Agents work on a task or answer in their own session, sessions and models answer a message, people
are told or asked, code runs in the sandbox, information gives its content, providers list their
models, triggers fire now.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from weft.kernel.clock import SystemClock, iso_from_ms
from weft.kernel.contents import json_bytes
from weft.kernel.enums import CompactionTrigger, ProgramKind
from weft.kernel.errors import (
    Action,
    CodeFailed,
    InvalidConfig,
    InvalidInput,
    LedgerError,
    NotApplicable,
    ProviderUnreachable,
    ReplyMalformed,
    Unsupported,
    WeftError,
)
from weft.ledger.api import Approval, Lease
from weft.ledger.model import Compaction
from weft.programs.kind_table import AGENT, HUMAN, INFORMATION, SESSION
from weft.programs.lookups import InformationQuery, fits
from weft.programs.program_kinds import CODE, MODEL, PROVIDER, TOOLSET
from weft.programs.program_records import PersonRequest, Program, found_at, is_placeholder, parse_path, resolve_config
from weft.programs.program_writer import ensure_own, ensure_vouched
from weft.programs.programs import Programs
from weft.programs.tasks import TASK, explain_criterion
from weft.programs.triggers import TRIGGER
from weft.runtime.agent_harness import FinishedWork, TaskWork, WorkRequest, ensure_free, hold_agent
from weft.runtime.agent_work import task_brief
from weft.runtime.assembly.compaction import compact
from weft.runtime.assembly.context_fitting import DEFAULT_WINDOW_TOKENS, window_of
from weft.runtime.assembly.summaries import load_strategy
from weft.runtime.assembly.turn_configuration import TurnRequest, ensure_in_use, plain_resolver, provider_settings
from weft.runtime.broker.broker import OutgoingMessage, invoke_model, to_the_end
from weft.runtime.broker.turn_plans import session_settings
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.local_models import Variable
from weft.runtime.inference.model_requests import Dialect, ModelSettings, ProviderKind, ProviderSettings, route_of
from weft.runtime.inference.plain_requests import Server, with_server
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.trigger_firing import TriggerSender
from weft.runtime.replies import TurnReply
from weft.runtime.sandbox.command_runner import Language, run_code
from weft.runtime.sandbox.processes import NEEDED, Limits, run_process

# --- Invokes models: a message is asked of a model by itself, and becomes a root turn in the session `model:NAME`.


async def invoke_model_program(
    context: InvocationContext, program: Program, invocation: Invocation
) -> InvocationResult:
    """Ask the very version of the model that was named."""
    message = message_of(invocation, "model")
    address = f"@({program.id}:{program.version})" if program.version else program.id
    model = await context.model(address)
    outgoing = OutgoingMessage(
        message=message, model=model.model, situation=invocation.situation, parameters=invocation.parameters
    )
    reply = await invoke_model(
        context.ledger, context.inference, outgoing, on_token=context.on_token, context=model.context
    )
    return reply_result(program, reply)


def message_of(invocation: Invocation, kind: str) -> Any:
    """The message of an invocation, or an input that is text. Raises InvalidInput where there is none."""
    is_input = invocation.message is None and isinstance(invocation.input, str)
    message = invocation.input if is_input else invocation.message
    if message is None or (isinstance(message, str) and not message.strip()):
        raise InvalidInput(f"a {kind} is invoked with a message", Action.PASS_MESSAGE)
    return message


def reply_result(program: Program, reply: TurnReply) -> InvocationResult:
    return InvocationResult(program=program.name, kind=program.kind, result=reply_fields(reply), sent=reply)


def reply_fields(sent: TurnReply) -> dict[str, Any]:
    """A reply as JSON; what is not known is left out. `model` is the model as it was asked for, `modelId` the name by
    which its provider answered, as in the configuration of a model."""
    reply = sent.reply
    fields = {
        "text": reply.text,
        "thinking": reply.thinking or None,
        "finish": str(reply.finish),
        "model": reply.model_id,
        "modelId": reply.model,
        "provider": reply.provider,
        "usage": None if reply.usage is None else msgspec.to_builtins(reply.usage),
        "usageFault": reply.usage_fault or None,
        "requestId": reply.request_id,
        "latencyMs": reply.latency_ms,
        "situation": reply.situation,
        "cost": reply.cost,
        "turn": sent.turn.id,
        "session": sent.turn.session,
        "attempts": len(reply.attempts),
    }
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}


# --- Invokes sessions: a message is answered as the session's layers configure it, and becomes a turn of the session.


async def invoke_session(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """To its default model, or to another one for this message; its owner's soul is the system prompt."""
    message = message_of(invocation, "session")
    ensure_open(program)
    configuration = await context.configuration(TurnRequest(session=program.id, overrides=invocation.overrides))
    configuration.require_model()
    reply = await context.send(program.name, message, invocation.overrides)
    return reply_result(program, reply)


def ensure_open(session: Program) -> None:
    """Refuse a session that takes no turns before anything is looked up or asked."""
    if session.state == "paused":
        raise NotApplicable(f"session {session.name!r} is paused", Action.RESUME_SESSION.of(session=session.name))
    if session.state == "completed":
        raise NotApplicable(f"session {session.name!r} is completed", "fork it, or make a new session")
    if session.deleted:
        raise NotApplicable(f"session {session.name!r} is deleted", Action.RESTORE_SESSION.of(session=session.name))


# --- Invokes agents: with a task, or the one it has, it works on that; with a message it answers in its own session.


async def invoke_agent(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """A task to work on, its current one where there is no message, or a message in its own session."""
    task = invocation.task or (program.current_task if invocation.message is None else None)
    if task is not None:
        return await work_on_task(context, program, await context.get(task, ProgramKind.TASK), invocation)
    message = message_of(invocation, "agent")
    async with hold_agent(context.programs, context.crossing, program) as hold:
        return await _answer_as_agent(context, await context.get(program.id), message, invocation, hold)


async def _answer_as_agent(
    context: InvocationContext, agent: Program, message: Any, invocation: Invocation, hold: Lease
) -> InvocationResult:
    ensure_free(agent)
    session = agent.current_session or f"{agent.name}:main"
    await _ensure_model(context, agent, session, invocation)
    programs = context.programs.acting_as(agent.name, hold)
    after = "reset" if agent.current_task is None else "wait"
    await _step(context, programs, agent, "think")
    try:
        reply: TurnReply = await context.send(session, message, invocation.overrides, agent)
    except BaseException as error:  # whatever it is, nobody thinks here any more
        with suppress(LedgerError):  # somebody else has moved the agent meanwhile; what happened matters more
            await to_the_end(_step(context, programs, agent, after, _reason(error)))
        raise
    await _step(context, programs, agent, "complete" if agent.current_task is None else "wait")
    return reply_result(agent, reply)


async def _step(
    context: InvocationContext, programs: Programs, agent: Program, verb: str, reason: str | None = None
) -> None:
    await context.across(lambda: programs.step_agent(agent.id, verb, reason=reason))


def _reason(error: BaseException) -> str:
    return f"{error.code}: {error}" if isinstance(error, WeftError) else type(error).__name__


async def _ensure_model(
    context: InvocationContext, agent: Program, session: str | None, invocation: Invocation
) -> None:
    """Refuse an agent that no layer of its next turn in a session names a model for. A session that does not exist yet
    has no say in it."""
    ensure_own(agent)
    request = TurnRequest(session=session, persona=agent.id, overrides=invocation.overrides)
    if (await context.configuration(request)).model is None:
        raise NotApplicable(f"agent {agent.name!r} has no model", Action.SET_AGENT_MODEL.of(agent=agent.name))


async def work_on_task(
    context: InvocationContext, agent: Program, task: Program, invocation: Invocation
) -> InvocationResult:
    """Until its criteria hold, a budget of the harness is spent, or something outside fails."""
    ensure_own(task)
    session = agent.current_session if agent.current_task == task.name else None
    await _ensure_model(context, agent, session, invocation)
    work = TaskWork(
        context.ledger, context.programs, context.planner(), context.runner,
        on_token=context.on_token, on_progress=context.on_progress,
    )  # fmt: skip
    request = WorkRequest(
        authority=context.ledger.authority,
        overrides=invocation.overrides.record(),
        workspace=invocation.workspace,
    )
    return await _report(context, agent, await work.run(agent, task, request))


async def _report(context: InvocationContext, agent: Program, work: FinishedWork) -> InvocationResult:
    """The task as it is now, and the last verdict on each of its criteria."""
    checks = await context.across(lambda: context.programs.checks(work.task.id))
    last_checks = {check.criterion: check for check in checks}
    last, criteria = work.facts.last, work.facts.criteria
    fields = {
        "task": work.task.name,
        "state": work.task.state,
        "assignee": agent.name,
        "session": work.facts.session,
        "turns": len(work.facts.rounds),
        "answer": None if last is None else last.answer,
        "reason": work.reason,
        "criteria": [
            {
                "criterion": number,
                "type": check.type,
                "passed": check.passed,
                "observed": check.observed,
                "words": explain_criterion(criteria[number], check.observed, passed=check.passed),
            }
            for number, check in sorted(last_checks.items())
            if number < len(criteria)
        ],
    }
    result = {name: value for name, value in fields.items() if value is not None}
    return InvocationResult(program=work.task.name, kind=work.task.kind, result=result, sent=work.reply)


# --- Invokes people: what they are told or asked is recorded first, and then brought to them.

COMMAND = "${WEFT_NOTIFY_COMMAND}"
_LIMITS = Limits(seconds=30, output=64 * 1024)
_RULES = Rules(connect_seconds=10, read_seconds=20)


async def invoke_human(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Tell a person something, or with `asks` have them decide: pending until they approve or reject it."""
    if not isinstance(invocation.message, str):
        raise InvalidInput("a person is told text", Action.PASS_MESSAGE)
    ensure_own(program)
    context.execution_context.ensure_allowed(f"human:{program.name}")
    request, is_new = await context.across(lambda: _record(context.programs, program, invocation))
    channel = await deliver(context, program, request) if is_new else None
    result = {"request": request.id, "status": request.status, "channel": channel}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


def _record(programs: Programs, human: Program, invocation: Invocation) -> tuple[PersonRequest, bool]:
    """What they are told, recorded; a repeated command finds what it made before, and tells nobody again."""
    before = {request.id for request in programs.requests(human.id)} if invocation.key is not None else set()
    data = None if invocation.input is UNSET else invocation.input
    request = programs.notify(
        human.id, invocation.message, asks=invocation.asks, program=invocation.about, data=data, key=invocation.key
    )
    return request, request.id not in before


async def deliver(context: InvocationContext, human: Program, request: PersonRequest) -> str:
    """Bring it to them by the channel that they prefer; returns which."""
    channel = channel_of(ensure_vouched(human))
    try:
        await _CHANNELS[channel](context, human, request)
    except WeftError as error:
        hint = error.hint
        kept = Action.READ_REQUEST_AFTER.of(hint=hint, human=human.name)
        error.advice = kept if hint else Action.READ_REQUEST.of(human=human.name)
        raise
    return channel


def channel_of(human: Program) -> str:
    """How they want to be told."""
    return str(_preferences(human).get("notificationChannel", "terminal"))


def _preferences(human: Program) -> dict[str, Any]:
    preferences = human.config.get("preferences") if isinstance(human.config, dict) else None
    return preferences if isinstance(preferences, dict) else {}


async def _terminal(context: InvocationContext, _: Program, request: PersonRequest) -> None:
    if context.show is None:
        raise Unsupported("there is no terminal here to show it on", "prefer another channel")
    context.show(request.human, request.text or "")


async def _command(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    variable = _preferences(human).get("command", COMMAND)
    if not is_placeholder(variable):
        raise InvalidConfig(
            "config.preferences.command", "is a command itself", f"name a variable that holds one, such as {COMMAND}"
        )
    words = shlex.split(str(resolve_config(variable, context.variable, "config.preferences.command")))
    environment = {name: value for name in NEEDED if (value := context.variable(name)) is not None}
    outcome = await run_process(
        words, environment=environment, folder=Path("/"), stdin=(request.text or "").encode() + b"\n", limits=_LIMITS
    )
    if not outcome.succeeded:
        ended = f"ended with {outcome.code}" if outcome.ending == "exited" else str(outcome.ending)
        raise Unsupported(f"the command that should tell {request.human!r} {ended}", "run it yourself and look")


async def _webhook(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    preferences = _preferences(human)
    if not isinstance(preferences.get("webhook"), str):
        raise InvalidConfig("config.preferences.webhook", "is missing", "give the URL that is to be told")
    url = resolve_config(preferences["webhook"], plain_resolver(context.variable), "config.preferences.webhook")
    body = json_bytes(_request_fields(request), "notification")
    client, _ = context.inference.connections.client(url, {}, _RULES)
    from weft.runtime.egress.connections import TransportError

    try:
        answer = await client.post(url, content=body, headers={"content-type": "application/json"})
    except TransportError as error:
        raise ProviderUnreachable(f"the webhook of {request.human!r}: {type(error).__name__}") from None
    if answer.status_code >= 300:
        raise ProviderUnreachable(f"the webhook of {request.human!r} answered {answer.status_code}")


def _request_fields(request: PersonRequest) -> dict[str, Any]:
    fields = {
        "request": request.id,
        "human": request.human,
        "text": request.text,
        "asks": request.asks,
        "status": request.status,
        "askedBy": request.asked_by,
        "askedAt": iso_from_ms(request.asked_at),
        "program": request.program,
        "data": request.data,
    }
    return {name: value for name, value in fields.items() if value is not None}


_CHANNELS = {"terminal": _terminal, "command": _command, "webhook": _webhook}


# --- Tells people that a tool call waits for them, by the channel that each of them prefers.

APPROVE = "approve"
TERMINAL = "terminal"
RequestFor = Callable[[Approval, str], PersonRequest]
"""What a person of this name is told of a request."""


def may_approve(human: Program) -> bool:
    """Whether a person has the right to answer for tool calls, by a configuration that counts here."""
    permissions = human.config.get("permissions") if isinstance(human.config, dict) else None
    return not human.foreign and isinstance(permissions, list) and APPROVE in permissions


async def notify_approvers(
    context: InvocationContext, approval: Approval, request_for: RequestFor, note: Callable[[str], None]
) -> list[str]:
    """The names of those who were told. Whoever prefers a terminal sees it at the one that the turn runs at."""
    people = await context.across(lambda: context.programs.all(ProgramKind.HUMAN))
    notified = []
    for human in people:
        if not may_approve(human) or channel_of(human) == TERMINAL:
            continue
        try:
            await deliver(context, human, request_for(approval, human.name))
        except Exception as error:  # a channel of somebody's own: whatever it does, the turn goes on
            note(f"{human.name} was not told of it: {error}")
        else:
            notified.append(human.name)
    return notified


# --- Invokes tasks: the assignee gets to work, an agent until the criteria hold, a person by being told of it.


async def invoke_task(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    ensure_own(program)
    name = program.config.get("assignee") if isinstance(program.config, dict) else None
    if name is None:
        raise NotApplicable(f"task {program.name!r} is nobody's", Action.ASSIGN_TASK.of(task=program.name))
    assignee = await context.get(name)
    if assignee.kind == ProgramKind.AGENT:
        return await work_on_task(context, assignee, program, invocation)
    notice = await invoke_human(context, assignee, Invocation(message=task_brief(program), about=program.id))
    result = {"task": program.name, "state": program.state, "assignee": assignee.name, **notice.result}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


# --- Invokes code: it runs in the sandbox on a JSON input.


async def invoke_code(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Run it in the sandbox with a JSON input; a message is an input that is text."""
    config = ensure_in_use(program).config
    context.execution_context.ensure_allowed(f"code:{program.name}")
    language = Language(config.get("language", Language.JAVASCRIPT))
    value = invocation.input if invocation.input is not UNSET else invocation.message
    outcome = await run_code(context.runner, language, config["source"], value)
    if not outcome.succeeded:
        raise CodeFailed(program.name, outcome.error or "", outcome.printed)
    result = {"result": outcome.result, **({"printed": outcome.printed} if outcome.printed else {})}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


# --- Invokes information: its content, or what stands at a path of it, where it fits the query.


async def invoke_information(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Its content; with a path what stands there, with words its content where it has them all, else null."""
    ensure_in_use(program)
    fields = invocation.input if invocation.input is not UNSET else {}
    if not isinstance(fields, dict) or fields.keys() - {"path", "text", "equals"}:
        raise InvalidInput("information is asked with an object", 'give {"path": …}, {"text": …}, or nothing')
    text = fields.get("text", invocation.message)
    query = InformationQuery(text=text, path=fields.get("path"), equals=fields.get("equals", UNSET))
    return InvocationResult(program=program.name, kind=program.kind, result=_content_answer(program, query))


def _content_answer(program: Program, query: InformationQuery) -> Any:
    content = program.config.get("content")
    if not fits(program, query):
        return None if query.path is None else []
    return content if query.path is None else list(found_at(content, parse_path(query.path)))


# --- Invokes providers: lists the models of one, which shows that it is there and takes the key.

MAX_PAGES = 20
_PATHS = {
    Dialect.ANTHROPIC: ("/v1/models", {"limit": "1000"}),
    Dialect.OPENAI_CHAT: ("/models", {}),
    Dialect.OPENAI_RESPONSES: ("/models", {}),
    Dialect.GOOGLE: ("/v1beta/models", {"pageSize": "1000"}),
}
_HEADERS = {Dialect.ANTHROPIC: {"anthropic-version": "2023-06-01"}}


async def invoke_provider(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """The models that it has for whoever holds its key."""
    context.execution_context.ensure_allowed(f"provider:{program.name}")
    settings, acting = provider_settings(ensure_in_use(program), context.variable, context.execution_context)
    if settings.is_embedded:
        models = _embedded_models(context.variable)
    else:
        models = await _server_models(context, settings, acting)
    return InvocationResult(program=program.name, kind=program.kind, result={"models": models})


def _embedded_models(variable: Variable) -> list[str]:
    from weft.runtime.inference.local_models import NAME, find_weights, model_folder

    find_weights()
    return [NAME, *(file.name for file in model_folder(variable).fetched())]


async def _server_models(context: InvocationContext, settings: ProviderSettings, acting: ExecutionContext) -> list[str]:
    if settings.kind is ProviderKind.CLOUDFLARE:
        raise Unsupported(
            f"provider {settings.id!r} is a gateway, and a gateway lists no models", "invoke a model that it leads to"
        )
    route = route_of(ModelSettings(id="-", name="-", provider=settings))
    return await with_server(context.inference, route, settings, acting, _pages)


async def _pages(server: Server) -> list[str]:
    route = server.route
    path, parameters = _PATHS[route.dialect]
    models: list[str] = []
    for _ in range(MAX_PAGES):
        answer = await server.client.get(route.url + path, params=parameters, headers=_HEADERS.get(route.dialect, {}))
        names, more = _read(server.accept(answer), server.provider)
        models += names
        if not more:
            break
        parameters = {**parameters, **more}
    return models


def _read(data: bytes, settings: ProviderSettings) -> tuple[list[str], dict[str, str]]:
    """The names on a page, and what to ask the next one with."""
    try:
        body = msgspec.json.decode(data)
        if "models" in body:  # Google's
            names = [str(model["name"]).removeprefix("models/") for model in body["models"]]
            return names, {"pageToken": body["nextPageToken"]} if body.get("nextPageToken") else {}
        names = [str(model["id"]) for model in body["data"]]
        return names, {"after_id": names[-1]} if body.get("has_more") and names else {}
    except (msgspec.DecodeError, KeyError, TypeError):
        raise ReplyMalformed(f"{settings.id}: what it answered is no list of models") from None


# --- Invokes triggers: one fires now, for whoever invokes it and whoever made it.


async def invoke_trigger(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Its message is sent, with the input as payload; a broker answers it. Rights are those that all of them have."""
    payload = None if invocation.input is UNSET else invocation.input
    sender = TriggerSender(context.programs, context.execution_context, SystemClock())
    outcome = await context.across(lambda: sender.fire_by_hand(sender.require(program.id), payload))
    firing = outcome.firing
    result = {
        "message": None if firing is None else firing.message,
        "session": None if outcome.admission is None else outcome.admission.session,
        "posted": None if firing is None else firing.posted,
        "paused": outcome.paused,
    }
    return InvocationResult(program=program.name, kind=program.kind, result=result)


# --- `invoke`, for every kind of program: a table of handlers, with the same keys as the table of kinds.


async def refuse_toolset(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """A toolset is a list that agents and sessions name; there is nothing in it to run."""
    raise NotApplicable(f"{program.name!r} is a toolset, which cannot be invoked", "invoke an agent that names it")


Handler = Callable[[InvocationContext, Program, Invocation], Awaitable[InvocationResult]]
HANDLERS: dict[str, Handler] = {
    CODE.name: invoke_code,
    PROVIDER.name: invoke_provider,
    MODEL.name: invoke_model_program,
    SESSION.name: invoke_session,
    AGENT.name: invoke_agent,
    TASK.name: invoke_task,
    INFORMATION.name: invoke_information,
    HUMAN.name: invoke_human,
    TOOLSET.name: refuse_toolset,
    TRIGGER.name: invoke_trigger,
}
NO_ARGUMENTS = Invocation()


async def invoke(context: InvocationContext, name: str, invocation: Invocation = NO_ARGUMENTS) -> InvocationResult:
    """Invoke a program by its name or address."""
    program = await context.get(name)
    return await HANDLERS[program.kind](context, program, invocation)


# --- Compacts a session as its configuration says, or as a person asks for once.


async def compact_session(
    context: InvocationContext,
    session: str,
    *,
    strategy: str | None = None,
    model: str | None = None,
    focus: str | None = None,
    keep: int | None = None,
    trigger: CompactionTrigger = CompactionTrigger.MANUAL,
) -> Compaction:
    """What is not given is what the session's configuration says, then its agent's. The summary is written by the model
    that is named for compactions, else by the one that the session's next turn asks."""
    program = await context.get(session)
    ensure_open(program)
    configuration = await context.configuration(TurnRequest(session=program.id))
    settings = session_settings(configuration)
    chosen = load_strategy(strategy or settings.strategy)
    writer, acting = configuration.model, configuration.context
    if model or settings.model:
        configured = await context.model(str(model or settings.model), acting)
        writer, acting = configured.model, configured.context
    elif chosen.asks_model:
        writer = configuration.require_model()
    return await compact(
        context.ledger,
        context.inference,
        program.name,
        model=writer,
        context=acting,
        strategy=chosen.name,
        trigger=trigger,
        focus=focus or settings.focus,
        keep=settings.keep if keep is None else keep,
        window=DEFAULT_WINDOW_TOKENS if configuration.model is None else window_of(configuration.model),
    )
