"""`invoke`, for every kind of program: a table of handlers, by the keys of the table of kinds.

Agents work on a task or answer in their own session, sessions and models answer a message, people
are told or asked, code runs in the sandbox, information gives its content, providers list their
models, triggers fire now.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from weft.kernel.clock import SystemClock, iso_from_ms
from weft.kernel.contents import json_bytes
from weft.kernel.enums import CompactionTrigger, MessageRole, ParticipantKind, ProgramKind
from weft.kernel.errors import (
    Action,
    CodeFailed,
    InvalidConfig,
    InvalidInput,
    LabelTaken,
    LedgerError,
    NotApplicable,
    NotFound,
    ProviderUnreachable,
    Unsupported,
    WeftError,
)
from weft.kernel.message_text import show_mentions
from weft.ledger.api import Approval, Lease, Ledger, RoomMessage, Runs, store_of
from weft.ledger.arguments import as_messages
from weft.ledger.model import Compaction, NewMessage, Part, ReasoningPart, TextPart
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
from weft.runtime.broker.broker import OutgoingMessage, invoke_model, model_session, send, to_the_end
from weft.runtime.broker.turn_plans import session_settings
from weft.runtime.egress.credentials import ConnectionRules
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import listed_models, with_server
from weft.runtime.inference.local_models import Variable
from weft.runtime.inference.model_requests import ModelSettings, ProviderKind, ProviderSettings, route_of
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.trigger_firing import TriggerSender
from weft.runtime.replies import TurnReply
from weft.runtime.sandbox.command_runner import Language, run_code
from weft.runtime.sandbox.processes import NEEDED, Limits, run_process
from weft.store.replicas import OwnEvents

# --- Invokes models: a message is asked of a model by itself, and becomes a root turn in the session `model:NAME`. Of a
# list of messages the earlier ones are recorded as turns, and the last is asked in a session that goes on from them.


async def invoke_model_program(
    context: InvocationContext, program: Program, invocation: Invocation
) -> InvocationResult:
    """Ask the very version of the model that was named."""
    message = message_of(invocation, "model")
    address = f"@({program.id}:{program.version})" if program.version else program.id
    acting = context.execution_context
    if invocation.credentials is not None:
        acting = acting.child(credentials=invocation.credentials)
    model = await context.model(address, acting)
    conversation = conversation_of(message)
    outgoing = OutgoingMessage(
        message=conversation.question,
        model=model.model,
        system=conversation.system,
        situation=invocation.situation,
        parameters=invocation.parameters,
    )
    if conversation.exchanges:
        context.ledger.trust.ensure("send a message to a model")
        session = await to_the_end(context.across(partial(_record_conversation, context, model.model, conversation)))
        reply = await send(
            context.ledger, context.inference, session, outgoing, on_token=context.on_token, context=model.context
        )
    else:
        reply = await invoke_model(
            context.ledger, context.inference, outgoing, on_token=context.on_token, context=model.context
        )
    return reply_result(program, reply)


class GivenExchange(Struct):
    """What users said, and what answered it."""

    query: list[NewMessage]
    response: list[NewMessage]


class GivenMessages(Struct, frozen=True):
    """The messages of one invocation: what came before, and the last of them, which is to be answered."""

    question: Any
    system: str | None
    exchanges: list[GivenExchange]


def conversation_of(message: Any) -> GivenMessages:
    """A message, or a list of messages of which system messages come first and a user's comes last."""
    if not isinstance(message, (list, tuple)):
        return GivenMessages(message, None, [])
    messages = as_messages(message, MessageRole.USER, "message")
    system = list(takewhile(lambda one: one.role == MessageRole.SYSTEM, messages))
    rest = messages[len(system) :]
    if not rest or rest[-1].role != MessageRole.USER:
        raise InvalidInput("the last of the messages is no user's", "end the list with what is to be answered")
    if any(one.role == MessageRole.SYSTEM for one in rest):
        raise InvalidInput("a system message comes after others", "put system messages first")
    exchanges: list[GivenExchange] = []
    for one in rest[:-1]:
        if not exchanges or (one.role == MessageRole.USER and exchanges[-1].response):
            exchanges.append(GivenExchange([], []))
        (exchanges[-1].query if one.role == MessageRole.USER else exchanges[-1].response).append(one)
    return GivenMessages(rest[-1], "\n\n".join(map(_system_text, system)) or None, exchanges)


def _system_text(message: NewMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content if isinstance(message.content, tuple) else ()
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if not texts or len(texts) < len(parts):
        raise InvalidInput("a system message is not text", "give text")
    return "\n\n".join(map(str, texts))


SESSIONS_LOOKED_AT = 64
"""Among so many of the newest sessions of a model the beginning of a list of messages is looked for."""


def _record_conversation(context: InvocationContext, model: ModelSettings, conversation: GivenMessages) -> str:
    """Go on from the turns that say the same as the beginning of the list, and record what is new of it as turns of
    nobody's session; the label of a new session that goes on from the last."""
    ledger = context.ledger.sync
    label = model_session(ledger.authority, model)
    turn, known = _known_beginning(ledger, label, conversation)
    for exchange in conversation.exchanges[known:]:
        recorded = ledger.record_turn(
            query=exchange.query or None,
            response=exchange.response or None,
            parent=turn,
            effective_config={"given": True, "model": model.id},
        )
        turn = recorded.id
    assert turn is not None, "there was something before"
    return _fork_of_model(ledger, turn, f"{label}:{turn.lower()}")


def _fork_of_model(ledger: Ledger, turn: str, label: str) -> str:
    """A session of its own, however often the same is asked, and by however many at once."""
    for number in count(1):
        try:
            return ledger.fork(turn, label=label if number == 1 else f"{label}-{number}").label
        except LabelTaken:
            continue
    raise AssertionError("there are more numbers than labels")


def _known_beginning(ledger: Ledger, label: str, conversation: GivenMessages) -> tuple[str | None, int]:
    """The turn up to which a thread of the model's sessions says the same as the list, and how many of the exchanges it
    holds; the longest one."""
    best: tuple[str | None, int] = None, 0
    seen: set[str] = set()
    for ancestry in _recent_threads(ledger, label):
        for known, turn in enumerate(ancestry[: len(conversation.exchanges)], 1):
            if turn not in seen and not _says(ledger, turn, conversation, known - 1):
                break
            seen.add(turn)
            if known > best[1]:
                best = turn, known
        if best[1] == len(conversation.exchanges):
            break
    return best


def _recent_threads(ledger: Ledger, label: str) -> Iterator[tuple[str, ...]]:
    """The turns of each, from the root: those that were gone on with, then those that were asked by themselves."""
    for session in Runs(ledger).newest_sessions(f"{label}:", SESSIONS_LOOKED_AT):
        yield tuple(ledger.thread(session).ancestry)
    with suppress(NotFound):
        for move in ledger.reflog(label, limit=SESSIONS_LOOKED_AT):
            if move.turn_id is not None:
                yield tuple(ledger.thread(move.turn_id).ancestry)


def _says(ledger: Ledger, turn: str, conversation: GivenMessages, number: int) -> bool:
    """Whether a turn holds the exchange of this number, and was told the same by the system, where it was told."""
    exchange, recorded = conversation.exchanges[number], ledger.messages(turn)
    system = "\n\n".join(message.text for message in recorded if message.role == MessageRole.SYSTEM)
    said = [(message.role, _visible(message.content)) for message in recorded if message.role != MessageRole.SYSTEM]
    given = [(message.role, _visible(message.content)) for message in (*exchange.query, *exchange.response)]
    return said == given and (not system or system == conversation.system)


def _visible(content: Any) -> tuple[Part, ...]:
    """The parts of a message but for thoughts, which whoever sends it again does not have."""
    parts = (TextPart(content),) if isinstance(content, str) else tuple(content or ())
    return tuple(part for part in parts if not isinstance(part, ReasoningPart))


def message_of(invocation: Invocation, kind: str) -> Any:
    """The message of an invocation, or an input that is text. Raises InvalidInput where there is none."""
    is_input = invocation.message is None and isinstance(invocation.input, str)
    message = invocation.input if is_input else invocation.message
    if message is None or (isinstance(message, str) and not message.strip()):
        raise InvalidInput(f"the {kind} was given no message", Action.PASS_MESSAGE)
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
    await _step_agent(context, programs, agent, "think")
    try:
        reply: TurnReply = await context.send(session, message, invocation.overrides, agent)
    except BaseException as error:  # whatever it is, nobody thinks here any more
        with suppress(LedgerError):  # somebody else has moved the agent meanwhile; what happened matters more
            await to_the_end(_step_agent(context, programs, agent, after, _error_reason(error)))
        raise
    await _step_agent(context, programs, agent, "complete" if agent.current_task is None else "wait")
    return reply_result(agent, reply)


async def _step_agent(
    context: InvocationContext, programs: Programs, agent: Program, verb: str, reason: str | None = None
) -> None:
    await context.across(lambda: programs.step_agent(agent.id, verb, reason=reason))


def _error_reason(error: BaseException) -> str:
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
    return await _task_report(context, agent, await work.run(agent, task, request))


async def _task_report(context: InvocationContext, agent: Program, work: FinishedWork) -> InvocationResult:
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
_RULES = ConnectionRules(connect_seconds=10, read_seconds=20)


async def invoke_human(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Tell a person something, or with `asks` have them decide: pending until they approve or reject it."""
    if not isinstance(invocation.message, str):
        raise InvalidInput("a person is told text", Action.PASS_MESSAGE)
    ensure_own(program)
    context.execution_context.ensure_allowed(f"human:{program.name}")
    request, is_new = await context.across(lambda: _record_request(context.programs, program, invocation))
    channel = await deliver(context, program, request) if is_new else None
    result = {"request": request.id, "status": request.status, "channel": channel}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


def _record_request(programs: Programs, human: Program, invocation: Invocation) -> tuple[PersonRequest, bool]:
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
    return str(_person_preferences(human).get("notificationChannel", "terminal"))


def _person_preferences(human: Program) -> dict[str, Any]:
    preferences = human.config.get("preferences") if isinstance(human.config, dict) else None
    return preferences if isinstance(preferences, dict) else {}


async def _show_at_terminal(context: InvocationContext, _: Program, request: PersonRequest) -> None:
    if context.show is None:
        raise Unsupported("there is no terminal here to show it on", "prefer another channel")
    context.show(request.human, request.text or "")


async def _run_command(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    variable = _person_preferences(human).get("command", COMMAND)
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


async def _call_webhook(context: InvocationContext, human: Program, request: PersonRequest) -> None:
    preferences = _person_preferences(human)
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


_CHANNELS = {"terminal": _show_at_terminal, "command": _run_command, "webhook": _call_webhook}


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


# --- Tells people that a message of a room mentions them, by the channel that they prefer; whoever prefers a terminal
# sees it in the room. What is told is recorded first, under a retry key made of the message and the person: it is
# recorded once, and a process that finds it recorded tells nobody again. Two that look at one instant may both tell.

OnFailure = Callable[[str, Exception], None]
"""Called with the name of a person who was not told, and why."""


class NewMention(Struct, frozen=True):
    """A person who is mentioned, and by the message at which position of which room."""

    person: str
    room: str
    position: int


class MentionNotices:
    """A `BackgroundJob` that tells people of mentions newer than itself. `context` acts for whoever opened the ledger:
    it reads every room, and a person who takes no part in one is told no word of what was said there."""

    name = "telling people that they are mentioned"

    def __init__(self, context: InvocationContext, on_failure: OnFailure) -> None:
        self._context, self._on_failure = context, on_failure
        self._ledger = context.programs.ledger
        with store_of(self._ledger).read() as txn:
            self._read_up_to = txn.facts.tip().n

    async def run_due(self, now_ms: int) -> None:
        """The time does not matter: only a new message makes something due."""
        await self.tell_new()

    async def tell_new(self) -> None:
        """Tell everybody whom a message behind the last call mentions."""
        read_up_to, mentions = await self._context.across(self._new_mentions)
        for mention in mentions:
            await self._tell(mention)
        self._read_up_to = read_up_to

    def _new_mentions(self) -> tuple[int, list[NewMention]]:
        with store_of(self._ledger).read() as txn:
            own, tip = OwnEvents(txn.sql), txn.facts.tip().n
            rows = txn.sql.fetch_rows(
                "SELECT r.n, r.replica, m.node, m.conversation, m.position FROM room_message r"
                " JOIN mention m ON m.conversation = r.conversation AND m.position = r.position"
                " JOIN program p ON p.id = m.node"
                " WHERE r.n > ? AND m.kind = ? AND p.kind = ? AND p.deleted = 0"
                " AND (r.node IS NULL OR r.node <> m.node) ORDER BY r.n, m.node",
                (self._read_up_to, ParticipantKind.USER.value, ProgramKind.HUMAN.value),
            )
            return tip, [NewMention(*place) for n, replica, *place in rows if own.has(n, replica)]

    async def _tell(self, mention: NewMention) -> None:
        context = self._context
        person: Program = await context.across(partial(context.programs.get, mention.person, ProgramKind.HUMAN))
        if channel_of(person) == TERMINAL:
            return
        try:
            message, text = await context.across(partial(self._notice_text, mention))
            key = f"mention:{message.id}:{person.id}"
            data = {"room": mention.room, "message": message.id}
            await invoke_human(context, person, Invocation(message=text, input=data, key=key))
        except Exception as error:  # a channel of somebody's own: whatever it does, the others are told
            self._on_failure(person.name, error)

    def _notice_text(self, mention: NewMention) -> tuple[RoomMessage, str]:
        rooms = self._ledger.rooms
        (message,) = rooms.messages(mention.room, after=mention.position - 1, limit=1)
        title = rooms.get(mention.room).title
        place = "a room" if title is None else f"the room “{title}”"
        head = f"{message.author_name or 'The system'} mentions you in {place}"
        if any(one.node == mention.person for one in rooms.participants(mention.room)):
            return message, f"{head}: {show_mentions(message.text)}"
        return message, f"{head}. You take no part in it: a participant can let you in."


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
    return await with_server(context.inference.connections, route, settings, acting, listed_models)


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
