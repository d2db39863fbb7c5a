"""Asking a model until there is a whole reply, or a failure that stands.

Nothing is ever made up: what comes back was said by a provider, or an error is raised that says who must act.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import BudgetSpent, OutsideError, Unsupported, WeftError
from weft.ledger.api import Price, PriceTable
from weft.runtime.egress.execution_context import ExecutionContext, current_context
from weft.runtime.inference.dialects.speakers import embedded_parameters, taken_parameters
from weft.runtime.inference.local_models import ModelFolder
from weft.runtime.inference.model_requests import (
    Again,
    Budget,
    InferenceRequest,
    ModelSettings,
    NextModel,
    Parameters,
    ProviderKind,
    RetryPolicy,
    Route,
    cost_of,
    count_images,
    estimated_tokens,
    model_price,
    next_step,
    prompt_tokens,
    route_of,
)
from weft.runtime.replies import Attempt, Reply

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections
    from weft.runtime.inference.attempt import Asked
    from weft.runtime.inference.dialects.speakers import KeptConversations, Speakers
    from weft.runtime.inference.local_models import LocalModel
    from weft.runtime.replies import OnToken

Sleep = Callable[[float], Awaitable[None]]
Before = Callable[[ModelSettings, Parameters, int], Awaitable[None]]
OnRetry = Callable[[WeftError, str, float], None]
"""Told of a try that failed: why, which model is asked then, and after how many seconds."""
OnNote = Callable[[str], None]
"""Told, before a model is asked, what of the question it is not sent."""


class Inference:
    """What is kept between requests: open connections and embedded models. Of one event loop. `models` is the folder of
    fetched ones."""

    def __init__(
        self,
        *,
        prices: PriceTable | None = None,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        random_bytes: RandomBytes = system_random,
        on_retry: OnRetry | None = None,
        on_note: OnNote | None = None,
        models: ModelFolder | None = None,
    ) -> None:
        self._own_prices, self._policy = prices, policy or RetryPolicy()
        self._clock, self._sleep, self._random = clock or SystemClock(), sleep, random_bytes
        self._on_retry, self._on_note = on_retry, on_note
        self._models = models or ModelFolder(None)
        self._connections: Connections | None = None
        self._speakers: Speakers | None = None
        self._conversations: KeptConversations | None = None
        self._local: dict[str, LocalModel] = {}
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Inference:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection and stop the embedded models."""
        connections, self._connections, self._speakers = self._connections, None, None
        local, self._local = self._local, {}
        try:
            if connections is not None:
                await connections.aclose()
        finally:
            for running in local.values():
                await running.stop()

    @property
    def connections(self) -> Connections:
        """Open connections, for whoever asks the same servers something else."""
        if self._connections is None:
            from weft.runtime.egress.connections import Connections

            self._connections = Connections()
        return self._connections

    def _kept_speakers(self) -> Speakers:
        if self._speakers is None:
            speakers: Speakers = _loaded("weft.runtime.inference.dialects.speakers").Speakers(self.connections)
            self._speakers = speakers
        return self._speakers

    def _kept_conversations(self) -> KeptConversations:
        if self._conversations is None:
            kept: KeptConversations = _loaded("weft.runtime.inference.dialects.speakers").KeptConversations()
            self._conversations = kept
        return self._conversations

    async def infer(
        self,
        request: InferenceRequest,
        *,
        on_token: OnToken | None = None,
        budget: Budget | None = None,
        context: ExecutionContext | None = None,
        before: Before | None = None,
    ) -> Reply:
        """Ask the model, then its fallbacks. With `on_token` the reply is streamed, and is still returned whole.
        `before` is awaited before every attempt."""
        acting = context or current_context()
        budget = budget or Budget()
        tried = _Tries((request.model, *request.model.fallbacks))
        until = None if budget.seconds is None else self._clock.monotonic() + budget.seconds
        while True:
            asked = await self._prepared(request, tried, acting, budget, on_token)
            self._note_unsent(asked, request, tried)
            if before is not None:
                await before(asked.model, asked.parameters, asked.attempt)
            try:
                reply = await self._asked(asked, acting, until)
            except WeftError as error:
                await self._after(error, tried, asked, until)
                continue
            cost = cost_of(reply.usage, self._price(asked.model, reply.model, prompt_tokens(reply.usage)))
            budget.pay(cost)
            return replace(reply, cost=cost, attempts=tried.ended(asked, ""))

    def _price(self, model: ModelSettings, name: str, prompt: int) -> Price | None:
        return model_price(model, self._clock.now_ms(), prompt, name=name, prices=self._own_prices)

    def sendable(self, model: ModelSettings, parameters: Parameters) -> Parameters:
        """Those of the parameters that this model is really sent."""
        asked = parameters.given()
        if not asked:
            return parameters
        is_local = model.provider.kind is ProviderKind.LOCAL
        taken = embedded_parameters() if is_local else taken_parameters(route_of(model), parameters)
        return Parameters(**{name: value for name, value in asked.items() if name in taken})

    def _note_unsent(self, asked: Asked, request: InferenceRequest, tried: _Tries) -> None:
        """Say before a model is asked what of the question it does not get."""
        if self._on_note is None or tried.of_model:
            return
        model, images = asked.model, count_images(request.messages)
        if images and not model.takes_images:
            self._on_note(f"{model.id} cannot take images: it is sent a line of text for each of {images}")
        known = request.situation is None or request.situation in model.situations
        wanted = model.in_situation(request.situation if known else None, request.parameters).given()
        unsent = [name for name in wanted if name not in asked.parameters.given()]
        if "thinking" in unsent:
            self._on_note(f"{model.id} cannot be told how to think: the setting is not sent")
        if others := [name for name in unsent if name != "thinking"]:
            self._on_note(f"{model.id} does not take {', '.join(others)}: not sent")

    async def _prepared(
        self,
        request: InferenceRequest,
        tried: _Tries,
        acting: ExecutionContext,
        budget: Budget,
        on_token: OnToken | None,
    ) -> Asked:
        model = tried.model
        acting.ensure_allowed(f"model:{model.id}")
        # a fallback need not know the situation that its neighbour is in
        known = request.situation is None or model is request.model or request.situation in model.situations
        parameters = model.in_situation(request.situation if known else None, request.parameters)
        parameters = self.sendable(model, parameters)
        if budget.money is not None:  # a long conversation is not counted where nobody wants to know
            await budget.refresh()
            prompt = estimated_tokens(request.messages)
            parameters = budget.within(parameters, self._price(model, model.name, prompt), prompt, model.id)
        route = await self._route(model)
        made: Asked = _asking().Asked(request, model, route, parameters, len(tried.attempts) + 1, on_token, self._clock)
        return made

    async def _asked(self, asked: Asked, acting: ExecutionContext, until: float | None) -> Reply:
        left = None if until is None else max(0.0, until - self._clock.monotonic())
        try:
            async with asyncio.timeout(left):
                reply: Reply = await _asking().ask(asked, acting, self._kept_speakers(), self._kept_conversations())
                return reply
        except TimeoutError:
            raise _spent(asked) from None

    async def _after(self, error: WeftError, tried: _Tries, asked: Asked, until: float | None) -> None:
        """Wait, or go to the next model, or raise what stands."""
        tried.ended(asked, error.code)
        step = next_step(
            error,
            tried.of_model,
            self._policy,
            fraction=int.from_bytes(self._random(4)) / 2**32,
            seconds_left=None if until is None else until - self._clock.monotonic(),
            has_fallback=tried.has_fallback,
        )
        match step:
            case Again(wait):
                tried.waited(wait)
                self._report_retry(error, tried, wait)
                await self._sleep(wait)
            case NextModel():
                tried.next_model()
                self._report_retry(error, tried, 0.0)
            case _:
                raise error

    def _report_retry(self, error: WeftError, tried: _Tries, wait: float) -> None:
        if self._on_retry is not None:
            self._on_retry(error, tried.model.id, wait)

    async def _route(self, model: ModelSettings) -> Route:
        if model.provider.kind is not ProviderKind.LOCAL:
            return route_of(model)
        async with self._starting:
            from weft.runtime.inference.local_models import LocalModel, weights_of

            weights = weights_of(model.name, self._models)
            if weights.name not in self._local:
                self._local[weights.name] = await LocalModel.start(self._random, weights)
        return self._local[weights.name].route(model.provider)


class _Tries:
    """Which model is asked, and what became of each try."""

    def __init__(self, models: tuple[ModelSettings, ...]) -> None:
        self._models, self._at = models, 0
        self.attempts: list[Attempt] = []
        self.of_model = 0

    @property
    def model(self) -> ModelSettings:
        return self._models[self._at]

    @property
    def has_fallback(self) -> bool:
        return self._at + 1 < len(self._models)

    def next_model(self) -> None:
        self._at, self.of_model = self._at + 1, 0

    def ended(self, asked: Asked, error: str) -> tuple[Attempt, ...]:
        self.of_model += 1
        self.attempts.append(
            Attempt(
                model=asked.model.id,
                provider=asked.model.provider.id,
                error=error,
                latency_ms=asked.ms(),
                request_id=asked.seen.request_id,
            )
        )
        return tuple(self.attempts)

    def waited(self, seconds: float) -> None:
        self.attempts[-1] = replace(self.attempts[-1], waited_ms=round(seconds * 1000))


def _spent(asked: Asked) -> OutsideError:
    error = BudgetSpent(f"{asked.model.provider.id}: there was no whole reply within the time that was allowed")
    error.partial, error.request_id = asked.partial, asked.seen.request_id
    return error


def _asking() -> ModuleType:
    return _loaded("weft.runtime.inference.attempt")


def _loaded(module: str) -> ModuleType:
    """A part that needs a package of the extra `providers`, loaded when a model is first asked."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"asking models needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        ) from None


async def infer(
    request: InferenceRequest,
    *,
    on_token: OnToken | None = None,
    budget: Budget | None = None,
    context: ExecutionContext | None = None,
) -> Reply:
    """One question by itself; whoever has several keeps an `Inference`."""
    async with Inference() as inference:
        return await inference.infer(request, on_token=on_token, budget=budget, context=context)
