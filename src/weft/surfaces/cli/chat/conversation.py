"""A conversation: one session of a ledger, a model that answers, and what can be done with both.

The ledger's synchronous side serves what is looked up between two messages, its asynchronous side the message that is
on its way; both are one open ledger; the models of
servers that run on this machine, offered, and programs made of the one that is chosen.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger
from weft.kernel.enums import InboxState, MessageRole, QueueMode
from weft.kernel.errors import AmbiguousName, LabelTaken, NotApplicable, NotFound, WeftError
from weft.kernel.typed_names import shell_word
from weft.ledger.model import NewMessage, Session, Turn
from weft.programs import Program, Programs
from weft.programs.program_records import name_from
from weft.runtime.assembly.configuration_layers import MessageOverrides
from weft.runtime.broker.broker import WAIT, answer_admitted, broker_of, to_the_end
from weft.runtime.broker.turn_plans import SenderContext
from weft.runtime.inference.inference import Inference, OnNote, OnRetry
from weft.runtime.inference.local_models import model_folder
from weft.runtime.inference.model_requests import estimated_tokens
from weft.runtime.invoke.invocation import InvocationContext
from weft.runtime.replies import ReplyToken, TurnReply
from weft.store.port import Diagnosis, good
from weft.surfaces.acting_ledger import ToolAccess
from weft.surfaces.cli.chat.models import (
    EMBEDDED,
    ModelChoice,
    default_name,
    ensure_installed,
    find_choice,
    has,
    last_model,
    names,
    turn_planner,
)
from weft.surfaces.cli.chat.typed_input import free_label
from weft.surfaces.cli.programs.program_call import line_of
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.trust import ensure_own_session, workspace_for
from weft.surfaces.cli.work.approvals import TypedAhead
from weft.surfaces.cli.work.sandbox_access import command_runner
from weft.surfaces.plain_text import safe
from weft.verbs.reading_verbs import turn_pages

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Ledger
    from weft.programs import Program
    from weft.runtime.egress.credentials import Variable
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.plain_requests import RunningServer
    from weft.surfaces.cli.command_line import Call
    from weft.surfaces.cli.work.approvals import ApprovalPrompts


NAMED_MODELS = 4
"""So many models of a server stand in a hint."""


class ServedModel(Struct, frozen=True):
    """A model of a server that runs here."""

    server: RunningServer
    model: str


async def running_servers() -> list[RunningServer]:
    """The servers that run here. None where the package that opens connections is missing."""
    from weft.runtime.inference import plain_requests as usual

    listening = usual.listening_servers(usual.USUAL_SERVERS)
    if not listening or not has("httpx2"):
        return []
    from weft.runtime.egress.connections import Connections

    connections = Connections()
    try:
        return await usual.find_running_servers(connections, listening)
    finally:
        await connections.aclose()


def offer(call: Call, servers: Sequence[RunningServer]) -> ServedModel | None:
    """Let the person choose a model; None: the embedded one."""
    models = [ServedModel(server, model) for server in servers for model in server.models]
    if not models:
        return None
    call.screen.show("Model servers run on this machine:")
    for line in _choice_lines(models):
        call.screen.show(*line)
    while True:
        typed = click.prompt(
            "Which model answers? Its number, or Enter for the embedded one", default="", show_default=False
        ).strip()
        if not typed:
            return None
        if typed.isascii() and typed.isdigit() and 0 < int(typed) <= len(models):
            return models[int(typed) - 1]
        call.screen.show(Span(f"there is no {safe(typed)[:20]}: 1 to {len(models)}", "warn"))


def _choice_lines(models: Sequence[ServedModel]) -> Iterator[Line]:
    width = max(len(model.model) for model in models)
    for number, model in enumerate(models, 1):
        where = f"{model.server.server.title} at {model.server.address}"
        yield [f"{number:>4}  ", Span(safe(model.model).ljust(width), "label"), Span(f"  {where}", "dim")]


def hints(servers: Sequence[RunningServer]) -> Iterator[str]:
    """What somebody who is not at a terminal is told of the servers that run here."""
    for running in servers:
        command = f"weft provider create {running.server.name} --type openai-compatible --base-url {running.url}"
        yield f"{_server_line(running)}; `{command}` makes it a provider"


def examine_servers() -> Iterator[Diagnosis]:
    """What `weft doctor` says of the servers that run here."""
    for running in asyncio.run(running_servers()):
        yield good("talking", f"{_server_line(running)}; `weft chat` offers them")


def _server_line(running: RunningServer) -> str:
    names = ", ".join(map(safe, running.models[:NAMED_MODELS]))
    more = "…" if len(running.models) > NAMED_MODELS else ""
    return f"{running.server.title} runs at {running.address}: {names}{more}"


def make_programs(call: Call, programs: Programs, chosen: ServedModel) -> Program:
    """The model program of a served model, with its provider; what is there already is used."""
    provider = _provider_of(programs, chosen) or _made(
        call,
        programs,
        "provider",
        chosen.server.server.name,
        {"providerType": "openai-compatible", "baseUrl": chosen.server.url},
    )
    return _model_of(programs, chosen, provider) or _made(
        call,
        programs,
        "model",
        name_from(chosen.model.removesuffix(":latest"), provider.name),
        {"modelId": chosen.model, "provider": provider.name},
    )


def _provider_of(programs: Programs, chosen: ServedModel) -> Program | None:
    wanted = {"providerType": "openai-compatible", "baseUrl": chosen.server.url}
    return next((provider for provider in _in_use(programs, "provider") if provider.config == wanted), None)


def _model_of(programs: Programs, chosen: ServedModel, provider: Program) -> Program | None:
    own = (provider.name, f"@({provider.name})", provider.id, f"@({provider.id})")
    for model in _in_use(programs, "model"):
        if model.config.get("modelId") == chosen.model and model.config.get("provider") in own:
            return model
    return None


def _in_use(programs: Programs, kind: str) -> list[Program]:
    """Those that were made or taken over here, and are no drafts."""
    return [
        program
        for program in programs.all(kind)
        if program.state != "draft" and not program.foreign and isinstance(program.config, dict)
    ]


def _made(call: Call, programs: Programs, kind: str, name: str, config: dict[str, Any]) -> Program:
    program = programs.create(kind, free_label(name, [other.name for other in programs.all()]), config)
    undo = f"`weft program delete {shell_word(program.name)}` takes it back"
    call.screen.show(*line_of(program), Span(f"; {undo}", "dim"))
    return program


LABEL = "chat"
LABEL_LETTERS = 8
"""So many letters of a label that is an id stand in a prompt."""
LONG_HISTORY_TOKENS = 1_000
"""A history of so many tokens is announced before the embedded model reads it."""
OnToken = Callable[[ReplyToken], None]
T = TypeVar("T")


class Exchange(Struct, frozen=True):
    """A question and its answer, as the ledger keeps them."""

    turn: Turn
    asked: str
    answered: str


class Conversation:
    """Closed by `close`, which also stops the embedded model."""

    def __init__(
        self,
        ledger: Ledger,
        variable: Variable,
        *,
        person: Callable[[], ExecutionContext],
        system: str | None = None,
        on_retry: OnRetry | None = None,
        on_note: OnNote | None = None,
    ) -> None:
        self.ledger, self._variable, self._system = ledger, variable, system
        self._person = person
        self.on_retry, self.on_note = on_retry, on_note
        self._programs = Programs(ledger)
        self._runner = asyncio.Runner()
        self._mirror = AsyncLedger(ledger, Pool())
        self._tools = ToolAccess(ledger, self._mirror.crossing, self._programs, person, self._asked_people)
        self._inference: Inference | None = None
        self.prompts: ApprovalPrompts | None = None
        """Tells people of tool calls that wait for them."""
        self.label, self.is_new = LABEL, True
        self.choice: ModelChoice | None = None
        self._asked: str | None = None
        self._loaded: set[str] = set()
        self._read: set[str] = set()
        self._told_folders = set[str]()
        """The sessions whose history the embedded model was given here."""
        self.typed: TypedAhead | None = None
        """Reads what is typed while an answer comes."""
        self._awaited: asyncio.Task[TurnReply] | None = None
        self._steering: list[asyncio.Task[Admission]] = []

    def close(self) -> None:
        async def ended() -> None:
            try:
                if self.prompts is not None:
                    await self.prompts.aclose()
                await self._tools.aclose()
                if self._inference is not None:
                    await self._inference.aclose()
            finally:
                await self._mirror.close()

        try:
            self._runner.run(ended())
        finally:
            self._runner.close()

    def sit_down(self, session: str | None, *, is_new: bool = False) -> None:
        """Go to a session: the one of this name, or a new one, which is made with its first turn."""
        labels = self.labels(every=True)
        if is_new:
            if session is not None and session in labels:
                raise LabelTaken(session, "a session")
            self.label, self.is_new = session or free_label(LABEL, labels), True
            return
        if session is None:
            ensure_own_session(self.ledger, LABEL, "name it to continue it, or begin another with --new")
        try:
            opened = self.ledger.session(session or LABEL)
        except NotFound:
            self.label, self.is_new = session or LABEL, True
        else:
            self.label, self.is_new = opened.label, False

    def switch(self, session: str) -> None:
        """To a session that is there."""
        opened = self.ledger.session(session)
        self.label, self.is_new = opened.label, False

    def choose(self, asked: str | None = None) -> ModelChoice:
        """Who answers from now on: what was asked for last, in any session. Raises if its packages are missing."""
        programs, wanted = self.models(), asked or self._asked
        name = default_name(wanted, self._configured(), self._last_model(), programs, self._variable)
        choice = find_choice(name, programs, self._programs.get, self._variable, self._person())
        ensure_installed(is_embedded=choice.is_embedded, has_weights=choice.name != EMBEDDED)
        self.choice, self._asked = choice, wanted
        return choice

    def is_undecided(self, asked: str | None) -> bool:
        """Whether nobody said who answers, and nothing better than the embedded model is at hand."""
        if asked is not None or self._configured() is not None:
            return False
        return default_name(None, None, self._last_model(), self.models(), self._variable) == EMBEDDED

    def running_servers(self) -> list[RunningServer]:
        """The model servers of this machine."""
        return self._runner.run(running_servers())

    def choose_served(self, call: Call, chosen: ServedModel) -> ModelChoice:
        """A model of such a server answers from now on."""
        return self.choose(make_programs(call, self._programs, chosen).name)

    def models(self) -> list[Program]:
        return [model for model in self._programs.all("model") if model.state != "draft"]

    def model_names(self) -> list[str]:
        return names(self.models(), self._variable)

    def labels(self, *, every: bool = False) -> list[str]:
        return [session.label for session in self.ledger.sessions(every=every)]

    @property
    def head(self) -> str | None:
        session = self.session()
        return None if session is None else session.head

    @property
    def must_load(self) -> bool:
        """Whether the next answer waits for the embedded model to be loaded."""
        choice = self.choice
        return choice is not None and choice.is_embedded and choice.settings.name not in self._loaded

    def session(self) -> Session | None:
        return None if self.is_new else self.ledger.session(self.label)

    def shortened_label(self) -> str:
        """The first letters of the label where they name this session and no other; else the whole of it."""
        start = self.label[:LABEL_LETTERS]
        try:
            is_own = not self.is_new and self.ledger.session(start).label == self.label
        except (AmbiguousName, NotFound):
            return self.label
        return start if is_own else self.label

    def _configured(self) -> str | None:
        if self.is_new:
            return None
        config = self._programs.get(self.ledger.session(self.label).id, "session").config
        model = config.get("defaultModel") if isinstance(config, dict) else None
        return model if isinstance(model, str) else None

    def _last_model(self) -> str | None:
        session = self.session()
        return None if session is None else last_model(self.ledger, session.id)

    def turns(self) -> Iterator[Turn]:
        """From the last one back."""
        session = self.session()
        return iter(()) if session is None or session.head is None else turn_pages(self.ledger, thread=session.head)

    def exchanges(self, count: int) -> list[Exchange]:
        """The last ones, in order."""
        return [self._exchange(turn) for turn in islice(self.turns(), count)][::-1]

    def _exchange(self, turn: Turn) -> Exchange:
        messages = self.ledger.messages(turn.id)
        texts = {
            role: [message.text for message in messages if message.role == role and message.text]
            for role in ("user", "assistant")
        }
        return Exchange(turn, "\n\n".join(texts["user"]), "\n\n".join(texts["assistant"]))

    def say(self, text: str, on_token: OnToken | None = None) -> TurnReply | None:
        """Send a message and wait for the answer. None: it was interrupted from the keyboard, and is recorded so."""
        return self._send_and_wait(text, QueueMode.FOLLOWUP, on_token)

    def steer(self, text: str, on_token: OnToken | None = None) -> TurnReply | None:
        """Say something to the turn that runs in this session, in any process; where its model is not asked again, a
        turn of its own answers it. None: it was interrupted from the keyboard."""
        return self._send_and_wait(text, QueueMode.STEER, on_token)

    def _send_and_wait(self, text: str, mode: QueueMode, on_token: OnToken | None) -> TurnReply | None:
        choice = self.choice or self.choose()
        self._loaded.add(choice.settings.name)
        if choice.is_embedded:
            self._note_reading()
        try:
            wait = None if mode is QueueMode.STEER else WAIT
            return self._admit_and_answer(partial(self._admit, text, mode), on_token, wait=wait)
        finally:
            if self.is_new:
                self.is_new = self.label not in self.labels()

    def _note_reading(self) -> None:
        """Say, once in each session, that the embedded model reads a long history before it answers."""
        session = self.session()
        if session is None or session.id in self._read:
            return
        self._read.add(session.id)
        context = self.ledger.context(session=session.id)
        tokens = estimated_tokens(context.messages)
        if tokens >= LONG_HISTORY_TOKENS:
            history = f"{counted(len(context.turns), 'turn')} of history, about {tokens:,} tokens"
            self._noted(f"the embedded model first reads {history}; that may take minutes")

    def _admit(self, text: str, mode: QueueMode) -> Admission:
        choice = self.choice or self.choose()
        overrides = MessageOverrides(model=choice.settings.id, system=self._system).record()
        workspace = workspace_for(self.ledger, self.label, note=self._note_folder)
        context = None if workspace is None else {"workspace": workspace}
        message = NewMessage(role=MessageRole.USER, content=text, context=context)
        return self.ledger.inbox.admit(message, session=self.label, mode=mode, overrides=overrides)

    def _note_folder(self, text: str) -> None:
        """Once for each: the folder of a conversation stays what it is."""
        if text not in self._told_folders:
            self._told_folders.add(text)
            self._noted(text)

    def steer_awaited(self, text: str, on_admitted: Callable[[], None]) -> None:
        """The same while an answer comes, whose turn it is for. It is in the inbox when `on_admitted` is called."""
        admitting = asyncio.ensure_future(self._mirror.crossing.run(partial(self._admit, text, QueueMode.STEER)))
        admitting.add_done_callback(lambda task: None if task.cancelled() or task.exception() else on_admitted())
        self._steering.append(admitting)

    def interrupt_awaited(self) -> None:
        """Cut the turn short whose answer comes, whichever process runs it."""
        if self._awaited is not None:
            self._awaited.cancel()

    def unanswered_steering(self) -> Iterator[Admission]:
        """What was said to turns while their answers came and did not enter them. Raises what admitting it raised."""
        while self._steering:
            admission = self._runner.run(_result_of(self._steering.pop(0)))
            message = self.ledger.inbox.get(admission.message)
            if message.state in (InboxState.QUEUED, InboxState.TAKEN):
                yield admission

    def answer(self, admission: Admission, on_token: OnToken | None = None) -> TurnReply | None:
        """Have a message answered that is in the inbox. None: it was interrupted from the keyboard."""
        return self._admit_and_answer(lambda: admission, on_token)

    def retry(self, on_token: OnToken | None = None) -> TurnReply | None:
        """Try the last turn again, which failed. None: it was interrupted from the keyboard."""
        turn = self._last_failed()
        return self._admit_and_answer(lambda: self.ledger.inbox.retry(turn), on_token)

    def _last_failed(self) -> str:
        session = self.session()
        dead = [] if session is None else self.ledger.inbox.list(session=session.id, states=["dead"])
        turns = [message.turn for message in dead if message.turn is not None]
        if not turns:
            raise NotApplicable(f"no turn failed in {self.label!r}", "say something")
        return turns[-1]

    def _admit_and_answer(
        self, admit: Callable[[], Admission], on_token: OnToken | None, wait: float | None = None
    ) -> TurnReply | None:
        """Admit a message and have it answered. Where others hold the session for longer than `wait` seconds it is
        taken back; with None they are waited for."""

        async def asked() -> TurnReply:
            planner = turn_planner(
                self._programs,
                self._mirror,
                self._ready_inference(),
                variable=self._variable,
                person=self._person,
                equip=self._tools,
                is_embedded_default=True,
            )
            broker_of(self._mirror).plan_with(planner)  # also for what others left in the session
            admission = await to_the_end(self._mirror.crossing.run(admit))
            self.label, self.is_new = admission.session, False
            sending = SenderContext(planner=planner)
            if self.prompts is not None:
                await self.prompts.show_queue(admission)
            return await answer_admitted(self._mirror, admission, sending, wait=wait, on_token=on_token)

        return self._runner.run(self._interruptible(asked()))

    async def _interruptible(self, work: Coroutine[Any, Any, TurnReply]) -> TurnReply | None:
        """The outcome, or None after Ctrl-C or /interrupt, however often: what records the end of the turn runs to its
        own end."""
        loop = asyncio.get_running_loop()
        task = self._awaited = asyncio.ensure_future(work)
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            with nullcontext() if self.typed is None else self.typed.reading():
                await asyncio.wait({task})
        except asyncio.CancelledError:  # Ctrl-C before it was handled here
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._awaited = None
            loop.remove_signal_handler(signal.SIGINT)
        return None if task.cancelled() else task.result()

    def _ready_inference(self) -> Inference:
        if self._inference is None:
            models = model_folder(self._variable)
            self._inference = Inference(on_retry=self._retried, on_note=self._noted, models=models)
        return self._inference

    def people(self) -> InvocationContext:
        """How people are told something, within the event loop."""
        mirror = self._mirror
        return InvocationContext(
            mirror,
            self._programs,
            mirror.crossing,
            self._ready_inference(),
            variable=self._variable,
            runner=command_runner(self.ledger),
            context=self._person(),
        )

    def _asked_people(self, id: str) -> None:
        if self.prompts is not None:
            self.prompts.asked(id)

    def _retried(self, error: WeftError, model: str, wait: float) -> None:
        if self.on_retry is not None:
            self.on_retry(error, model, wait)

    def _noted(self, text: str) -> None:
        if self.on_note is not None:
            self.on_note(text)

    def free_label(self) -> str:
        """For a fork of this session."""
        return free_label(self._begun_session().label, self.labels(every=True))

    def last_exchange(self) -> Exchange:
        """Raises NotApplicable where nothing was said yet."""
        return self._exchange(self.ledger.turn(str(self._begun_session().head)))

    def _begun_session(self) -> Session:
        session = self.session()
        if session is None or session.head is None:
            raise NotApplicable(f"nothing was said in {self.label!r} yet", "say something first")
        return session


async def _result_of(task: asyncio.Task[T]) -> T:
    return await task
