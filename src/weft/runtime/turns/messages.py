"""A message to a session, answered by a model: admitted to the inbox, then brought to its turn by a broker.

Whoever sends serves the session until the message is settled, unless another broker does so already. If this process
dies in between, the message is in the inbox, or its turn is open; any broker goes on from there. A failure is recorded
as one and raised; cancelling records what had come, and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.kernel.authority import LOCAL_NAME
from weft.kernel.enums import InterruptionReason
from weft.kernel.errors import NotApplicable, WeftError
from weft.ledger.api import Admission, Ledger, Runs, Setting
from weft.ledger.model import DEFAULT_AGENT
from weft.runtime.broker.broker import RENEW_SECONDS, Broker
from weft.runtime.broker.plans import Sending, TurnPlan
from weft.runtime.broker.tools import NO_TOOLS, Tools
from weft.runtime.broker.turn_entries import TurnEnd
from weft.runtime.configuration.message_overrides import MessageOverrides
from weft.runtime.context import ExecutionContext, current_context
from weft.runtime.inference.budgets import Budget
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.local import default_prompt
from weft.runtime.inference.settings import NO_PARAMETERS, ModelSettings, Parameters
from weft.runtime.streams.hub import hub_of
from weft.runtime.turns.ledger_port import RuntimeLedger
from weft.runtime.turns.recorded_replies import TurnReply, load_reply

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

WAIT = 10.0
LEAVING_SECONDS = 0.2
"""How often whoever left looks whether the turn before their message runs by now, and can be left."""


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """What is sent. `message` is plain text, a message or a dict of its shape; `system` replaces the prompt so far."""

    message: Any
    model: ModelSettings
    system: str | None = None
    situation: str | None = None
    parameters: Parameters = NO_PARAMETERS
    persona: str = DEFAULT_AGENT
    tools: Tools = NO_TOOLS
    mode: str = "followup"


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
    """Send a message to a session, made if there is none, and have it answered by the model that the question names.
    Others who write to the session are waited for, `wait` seconds at most."""
    return await _sent(ledger, inference, session, question, on_token, budget, context, wait, is_root=False)


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
    label, principal = f"model:{question.model.id}", ledger.authority.principal.id
    label = label if principal == LOCAL_NAME else f"{label}:{principal}"
    return await _sent(ledger, inference, label, question, on_token, budget, context, wait, is_root=True)


async def _sent(
    ledger: RuntimeLedger,
    inference: Inference,
    session: str,
    question: OutgoingMessage,
    on_token: OnToken | None,
    budget: Budget | None,
    context: ExecutionContext | None,
    wait: float,
    *,
    is_root: bool,
) -> TurnReply:
    ledger.trust.ensure("send a message to a model")
    acting = context or current_context()
    plan = TurnPlan(
        model=question.model,
        inference=inference,
        acting=acting,
        setting=_setting(question, acting, inference),
        situation=question.situation,
        parameters=question.parameters,
        system=question.system,
        default_system=default_prompt(question.model),
        persona=question.persona,
        tools=question.tools,
        budget=budget,
        is_root=is_root,
    )
    admission = await to_the_end(_admitted(ledger, session, question, is_root=is_root))
    return await answer_admitted(ledger, admission, Sending(plan=plan), on_token=on_token, wait=wait)


async def answer_admitted(
    ledger: RuntimeLedger,
    admission: Admission,
    sending: Sending,
    *,
    on_token: OnToken | None = None,
    wait: float | None = None,
) -> TurnReply:
    """Have an admitted message answered, by the broker that this open ledger's senders share or by another one that is
    quicker. `on_token` hears the answer as it comes, where it is this process that runs the turn. Raises what its turn
    failed with. Where others hold the session for longer than `wait` seconds it is taken
    back, and SessionBusy raised; with None they are waited for."""
    broker = broker_of(ledger)
    broker.expect(admission.message, sending)
    with hub_of(ledger.crossing).listening(admission.message, on_token):
        end = await await_turn(ledger, broker, admission, wait)
    if end is None:
        return await ledger.crossing.run(lambda: _answered_elsewhere(ledger.sync, admission.message))
    if end.error is not None:
        raise end.error
    if end.cut is InterruptionReason.APPROVAL_DENIED:
        raise NotApplicable("a tool call was denied, and the turn ended with it", "what it did until then is recorded")
    if end.recorded is None or end.reply is None or end.cut is not None:
        raise NotApplicable("the turn was interrupted", "what had come of the answer is recorded")
    return TurnReply(turn=end.recorded, reply=end.reply)


def _answered_elsewhere(ledger: Ledger, message: str) -> TurnReply:
    return load_reply(ledger, ledger.inbox.get(message))


def broker_of(ledger: RuntimeLedger) -> Broker:
    """The broker that those share who send through one open ledger, in one name: it answers what they send, and nothing
    else."""
    shared, key = ledger.crossing.shared, ("broker", ledger.authority)
    if key not in shared:
        shared[key] = Broker(ledger.sync, ledger.crossing)
    broker: Broker = shared[key]
    return broker


async def _admitted(ledger: RuntimeLedger, session: str, question: OutgoingMessage, *, is_root: bool) -> Admission:
    overrides = MessageOverrides(
        model=question.model.id,
        situation=question.situation,
        parameters=question.parameters,
        system=question.system,
        is_root=is_root,
    )
    inbox = ledger.sync.inbox
    return await ledger.crossing.run(
        lambda: inbox.admit(
            question.message,
            session=session,
            persona=question.persona,
            mode=question.mode,
            overrides=overrides.record(),
        )
    )


async def await_turn(
    ledger: RuntimeLedger, broker: Broker, admission: Admission, wait: float | None = None
) -> TurnEnd | None:
    """Serve the session until the message is settled; None where another process settled it. Whoever is cancelled has
    the turn end with what it has."""
    serving = asyncio.ensure_future(broker.answered(admission.message, admission.session_id, wait))
    try:
        return await asyncio.shield(serving)
    except asyncio.CancelledError:
        await to_the_end(_given_up(ledger, broker, admission, serving))
        raise


async def _given_up(
    ledger: RuntimeLedger, broker: Broker, admission: Admission, serving: asyncio.Future[TurnEnd | None]
) -> None:
    """Take the message back, and leave a turn before it to other brokers; or cut its own turn short. Then wait for the
    end of what is under way."""
    try:
        if await _taken_back(ledger, admission.message):
            while not broker.leave(admission.message, admission.session_id) and not serving.done():
                await asyncio.wait({serving}, timeout=LEAVING_SECONDS)
        else:
            await _interrupt_answer(ledger, broker, admission)
    except BaseException:  # the ledger cannot be reached: nobody waits for what is served
        serving.cancel()
        raise
    finally:
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.exception()  # whoever is cancelled does not hear of it


async def _taken_back(ledger: RuntimeLedger, message: str) -> bool:
    """Whether no turn has the message, nor had it."""
    try:
        await ledger.crossing.run(partial(ledger.sync.inbox.cancel, message, reason="its sender left"))
    except NotApplicable:
        return False
    return True


async def _interrupt_answer(ledger: RuntimeLedger, broker: Broker, admission: Admission) -> None:
    """The message's own turn alone is cut short: its session may be answering somebody else by now. Where another
    process runs the turn, it is asked to."""
    runs, message = Runs(ledger.sync), admission.message
    turn = await ledger.crossing.run(partial(runs.answering_turn, message))
    if turn is not None and not broker.interrupt(admission.session_id, turn=turn):
        await ledger.crossing.run(partial(runs.interrupt_answer, message))


def _setting(question: OutgoingMessage, acting: ExecutionContext, inference: Inference) -> Setting:
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
    return Setting(effective_config=config, thinking_config=None if thinking is None else {"thinking": thinking})


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
