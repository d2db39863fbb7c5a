"""A message to a session, answered by a model and recorded step by step.

begin the turn (the session's lease is ours, its parent pinned) ► the message ► the context as the ledger tells it ► for
every attempt a model request, before anything is sent ► the response, as it came ► the end, which moves the head.

If this process dies in between, the turn stays open with what was recorded; whoever takes the session next finds its
lease dead and the turn failed. A failure is recorded as one and raised; cancelling records what had come, and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.authority import LOCAL_NAME
from weft.kernel.enums import MessageRole
from weft.kernel.errors import HeadMoved, LabelTaken, NotFound, OutsideError, SessionBusy, WeftError
from weft.ledger.api import Context
from weft.ledger.model import DEFAULT_AGENT, Message, NewMessage, RecordedTurn, TextPart
from weft.runtime.context import ExecutionContext, current_context
from weft.runtime.inference.budgets import Budget
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local import default_prompt
from weft.runtime.inference.replies import Reply, ReplyToken, TokenKind
from weft.runtime.inference.settings import NO_PARAMETERS, InferenceRequest, ModelSettings, Parameters, count_images
from weft.runtime.turns.ledger_port import OpenTurn, RuntimeLedger

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

RENEW_SECONDS = 8.0
"""How often a lease is renewed while a model takes its time; a quarter of how long it lives."""
WAIT = 10.0
DEFAULT_PROMPT = "default_of_embedded_model"
"""In the metadata of a system message: nobody gave it, and no other model is sent it."""


class TurnReply(Struct, frozen=True, kw_only=True):
    """A turn, and the reply that it ended with."""

    turn: RecordedTurn
    reply: Reply


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """What is sent. `message` is plain text, a message or a dict of its shape; `system` replaces the prompt so far."""

    message: Any
    model: ModelSettings
    system: str | None = None
    situation: str | None = None
    parameters: Parameters = NO_PARAMETERS
    persona: str = DEFAULT_AGENT


async def send(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    question: OutgoingMessage,
    *,
    on_token: OnToken | None = None,
    budget: Budget | None = None,
    context: ExecutionContext | None = None,
    wait: float = WAIT,
) -> TurnReply:
    """Send a message to a session, made if there is none, and have it answered by the model that the question names."""
    ledger.trust.ensure("send a message to a model")
    acting = context or current_context()
    setting = _setting(question, acting, inference)
    turn = await ledger.begin_turn(session=session, persona=question.persona, wait=wait, **setting)
    return await _Turn(ledger, inference, turn, question, acting, budget, on_token).run()


async def invoke_model(
    ledger: RuntimeLedger,
    inference: Inference,
    question: OutgoingMessage,
    *,
    on_token: OnToken | None = None,
    budget: Budget | None = None,
    context: ExecutionContext | None = None,
    wait: float = WAIT,
) -> TurnReply:
    """Ask a model by itself: a root turn in the session `model:{id}`, without anything that was said there before.
    Whoever did not open the ledger asks in a session of their own, `model:{id}:{name}`."""
    ledger.trust.ensure("send a message to a model")
    acting = context or current_context()
    turn = await _rooted(ledger, _session_for(ledger, question), question, _setting(question, acting, inference), wait)
    return await _Turn(ledger, inference, turn, question, acting, budget, on_token).run()


def _session_for(ledger: RuntimeLedger, question: OutgoingMessage) -> str:
    label, principal = f"model:{question.model.id}", ledger.authority.principal.id
    return label if principal == LOCAL_NAME else f"{label}:{principal}"


async def _rooted(
    ledger: RuntimeLedger, label: str, question: OutgoingMessage, setting: dict[str, Any], wait: float
) -> OpenTurn:
    """Begin a root in a session, whoever else does the same."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        try:
            await _without_head(ledger, label)
            return await ledger.begin_turn(
                session=label, expected=None, persona=question.persona, wait=max(0.0, until - loop.time()), **setting
            )
        except (HeadMoved, SessionBusy, LabelTaken):  # somebody else asks the same model at this moment
            if loop.time() >= until:
                raise
        await asyncio.sleep(0.02)


async def _without_head(ledger: RuntimeLedger, label: str) -> None:
    try:
        head = (await ledger.session(label)).head
    except NotFound:  # it is made with its first turn
        return
    if head is not None:
        await ledger.heads.reset(label, expected=head)


def _setting(question: OutgoingMessage, acting: ExecutionContext, inference: Inference) -> dict[str, Any]:
    """Under which circumstances the turn runs: in whose name, and how the model is asked. What the model is not sent of
    the parameters is not told."""
    wanted = question.model.in_situation(question.situation, question.parameters)
    parameters = inference.sendable(question.model, wanted).given()
    config = {
        "model": question.model.id,
        "provider": question.model.provider.id,
        "situation": question.situation,
        "parameters": parameters,
        "chain": [str(principal) for principal in acting.chain],
    }
    thinking = parameters.get("thinking")
    return {"effective_config": config, "thinking_config": None if thinking is None else {"thinking": thinking}}


class _Turn:
    """One turn on its way."""

    def __init__(
        self,
        ledger: RuntimeLedger,
        inference: Inference,
        turn: OpenTurn,
        question: OutgoingMessage,
        acting: ExecutionContext,
        budget: Budget | None,
        on_token: OnToken | None,
    ) -> None:
        self._ledger, self._inference, self._turn, self._question = ledger, inference, turn, question
        self._acting, self._budget, self._listener = acting, budget, on_token
        self._history: Context | None = None
        self._attempt, self._partial = 0, ""

    async def run(self) -> TurnReply:
        try:
            async with renewed(self._turn.renew):
                reply = await self._answered()
            return TurnReply(turn=await to_the_end(self._record(reply)), reply=reply)
        except asyncio.CancelledError:
            await to_the_end(self._interrupted())
            raise
        except BaseException as error:  # whatever it is, the turn has ended badly and says so
            await to_the_end(self._failed(error))
            raise

    async def _answered(self) -> Reply:
        self._history = await self._asked()
        request = InferenceRequest(
            model=self._question.model,
            messages=self._history.messages,
            situation=self._question.situation,
            parameters=self._question.parameters,
        )
        return await self._inference.infer(
            request,
            on_token=None if self._listener is None else self._heard,
            budget=self._budget,
            context=self._acting,
            before=self._before,
        )

    async def _asked(self) -> Context:
        """Record the question; the context is then what the ledger says that this turn sees."""
        default = default_prompt(self._question.model)
        if self._question.system is not None or default is not None:
            await self._bring_prompt(default)
        await self._turn.message(self._question.message)
        history = await self._ledger.context(self._turn.id)
        is_for_another = default is None and any(map(_is_default_prompt, history.messages[:1]))
        return replace(history, messages=history.messages[1:]) if is_for_another else history

    async def _bring_prompt(self, default: str | None) -> None:
        """Record the system prompt that the question gives, or the embedded model's default where there is none, unless
        it is in effect already."""
        in_effect, system = await self._prompt_in_effect(), self._question.system
        if system is not None:
            if in_effect is None or in_effect.text != system or _is_default_prompt(in_effect):
                await self._turn.message(system, role="system")
        elif default is not None and in_effect is None:
            await self._turn.message(
                NewMessage(role=MessageRole.SYSTEM, content=default, metadata={DEFAULT_PROMPT: True})
            )

    async def _prompt_in_effect(self) -> Message | None:
        history = await self._ledger.context(self._turn.id)
        first = history.messages[0] if history.messages else None
        return first if first is not None and first.role == "system" else None

    async def _before(self, model: ModelSettings, parameters: Parameters, attempt: int) -> None:
        """The intent, before the effect."""
        self._partial, self._attempt = "", attempt
        params = parameters.given()
        if not model.takes_images and self._history is not None and count_images(self._history.messages):
            params["images"] = "as text"
        await self._turn.request(
            model.name, provider=model.provider.id, params=params, input=self._history, attempt=attempt
        )

    def _heard(self, token: ReplyToken) -> None:
        if token.kind is TokenKind.TEXT:
            self._partial += token.text
        if self._listener is not None:
            self._listener(token)

    async def _record(self, reply: Reply) -> RecordedTurn:
        told = {"request_id": reply.request_id, "latency_ms": reply.latency_ms, "situation": reply.situation}
        told |= {"model_id": reply.model_id, "provider": reply.provider, "usage_fault": reply.usage_fault or None}
        said = NewMessage(
            role=MessageRole.ASSISTANT,
            content=reply.parts,
            model=reply.model,
            metadata={name: value for name, value in told.items() if value is not None},
        )
        await self._turn.response(
            said, usage=reply.usage, finish_reason=str(reply.finish), model=reply.model, latency_ms=reply.latency_ms
        )
        return await self._turn.finish()

    async def _interrupted(self) -> None:
        with suppress(WeftError):  # it has ended already, or cannot be written to; that it was cancelled matters more
            await self._record_partial(self._partial, "interrupted")
            await self._turn.interrupt("canceled")

    async def _failed(self, error: BaseException) -> None:
        partial = error.partial if isinstance(error, OutsideError) else ""
        is_ours = isinstance(error, WeftError)
        fault = {"code": type(error).__name__, "message": str(error) if is_ours else "not weft's own error"}
        with suppress(WeftError):  # the same: what happened matters more than that it could not be recorded
            await self._record_partial(partial or self._partial, "error")
            await self._turn.fail(fault)

    async def _record_partial(self, text: str, finish: str) -> None:
        """What had come of an answer was really said, and is kept as what it is."""
        if text and self._attempt:
            said = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart(text),), metadata={"partial": True})
            await self._turn.response(said, finish_reason=finish)


def _is_default_prompt(message: Message) -> bool:
    """Whether this is the prompt that the embedded model alone is given."""
    return message.role == "system" and isinstance(message.metadata, dict) and DEFAULT_PROMPT in message.metadata


async def to_the_end(work: Any) -> Any:
    """What records the end of a turn is not cut short, however often its task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()  # whoever is cancelled does not hear of it
        raise


@asynccontextmanager
async def renewed(
    renew_lease: Callable[[], Awaitable[Any]], sleep: Callable[[float], Any] = asyncio.sleep
) -> AsyncIterator[None]:
    """Renews a lease again and again, to say that its holder is alive. If it is lost all the same, the work inside is
    cancelled, and what renewing raised is raised."""
    owner = asyncio.current_task()
    lost: list[WeftError] = []

    async def renew() -> None:
        while True:
            await sleep(RENEW_SECONDS)
            try:
                await renew_lease()
            except WeftError as error:
                lost.append(error)
                if owner is not None:
                    owner.cancel()
                return

    renewing = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if lost:
            raise lost[0] from None
        raise
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
