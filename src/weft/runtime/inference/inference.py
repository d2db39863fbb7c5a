"""Asking a model until there is a whole reply, or a failure that stands.

Nothing is ever made up: what comes back was said by a provider, or an error is raised that says who must act.
A model that a provider does not know is answered with the nearest names of those that its server lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from weft.kernel.clock import Clock, RandomBytes, SystemClock, system_random
from weft.kernel.errors import (
    BudgetSpent,
    ModelUnknown,
    OutsideError,
    ReplyCut,
    ReplyMalformed,
    ReplyUnfit,
    Unsupported,
    WeftError,
)
from weft.kernel.events import Usage
from weft.ledger.api import PriceTable, TokenPrice, shipped_model_names
from weft.runtime.egress.credentials import KeyTraces, Secret
from weft.runtime.egress.execution_context import ExecutionContext, current_context
from weft.runtime.inference.dialects.dialect_port import AnswerMeter
from weft.runtime.inference.dialects.model_clients import embedded_parameters, taken_parameters, thinking_fault
from weft.runtime.inference.local_models import ModelFolder
from weft.runtime.inference.model_requests import (
    AskAgain,
    Dialect,
    InferenceRequest,
    ModelParameters,
    ModelRoute,
    ModelSettings,
    NextModel,
    ProviderKind,
    ProviderSettings,
    RequestBudget,
    RetryPolicy,
    TokenCount,
    cost_of,
    count_images,
    estimated_tokens,
    model_price,
    next_step,
    prompt_tokens,
    request_tokens,
    route_of,
)
from weft.runtime.replies import Attempt, FinishReason, Reply

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client, Connections
    from weft.runtime.inference.attempt import PendingQuestion
    from weft.runtime.inference.dialects.model_clients import KeptConversations, ModelClientPool
    from weft.runtime.inference.local_models import LocalModel
    from weft.runtime.replies import OnToken


_LONGEST_FAULT = 500
COUNT_SECONDS = 20
"""A provider has so long to count a request, before the estimate is taken."""
Sleep = Callable[[float], Awaitable[None]]
Before = Callable[[ModelSettings, ModelParameters, int], Awaitable[None]]
OnRetry = Callable[[WeftError, str, float], None]
"""Told of a try that failed: why, which model is asked then, and after how many seconds."""
OnUsage = Callable[[Usage], None]
"""Told what the server has counted of the answer until now, each time that it tells that."""
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
        self._clients: ModelClientPool | None = None
        self._conversations: KeptConversations | None = None
        self._local: dict[str, LocalModel] = {}
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Inference:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection and stop the embedded models."""
        connections, self._connections, self._clients = self._connections, None, None
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

    def _kept_clients(self) -> ModelClientPool:
        if self._clients is None:
            clients: ModelClientPool = _load_part("weft.runtime.inference.dialects.model_clients").ModelClientPool(
                self.connections
            )
            self._clients = clients
        return self._clients

    def _kept_conversations(self) -> KeptConversations:
        if self._conversations is None:
            conversations: KeptConversations = _load_part(
                "weft.runtime.inference.dialects.model_clients"
            ).KeptConversations()
            self._conversations = conversations
        return self._conversations

    async def infer(
        self,
        request: InferenceRequest,
        *,
        on_token: OnToken | None = None,
        budget: RequestBudget | None = None,
        context: ExecutionContext | None = None,
        before: Before | None = None,
        on_usage: OnUsage | None = None,
    ) -> Reply:
        """Ask the model, then its fallbacks. With `on_token` the reply is streamed, and is still returned whole.
        `before` is awaited before every attempt; `on_usage` is told what the server has counted of one."""
        acting = context or current_context()
        budget = budget or RequestBudget()
        tried = _Tries((request.model, *request.model.fallbacks))
        until = None if budget.seconds is None else self._clock.monotonic() + budget.seconds
        while True:
            asked = await self._prepare_question(request, tried, acting, budget, on_token, AnswerMeter(on_usage))
            self._note_unsent(asked, request, tried)
            if before is not None:
                await before(asked.model, asked.parameters, asked.attempt)
            try:
                reply = await self._ask_within(asked, acting, until)
            except BaseException as error:  # also of whoever cancels it: what came of the answer is billed
                self._pay_broken(asked, budget, error)
                if not isinstance(error, WeftError):
                    raise
                await self._recover(error, tried, asked, acting, until)
                continue
            cost = cost_of(reply.usage, self._price_of_model(asked.model, reply.model, prompt_tokens(reply.usage)))
            budget.pay(cost)
            fault = _schema_fault(reply, asked.parameters)
            reply = replace(reply, cost=cost, attempts=tried.note_end(asked, "" if fault is None else ReplyUnfit.code))
            if fault is None:
                return reply
            unfit = ReplyUnfit(f"{asked.model.provider.id}: {fault}")
            unfit.reply, unfit.partial, unfit.request_id = reply, reply.text, reply.request_id
            raise unfit

    async def count(self, request: InferenceRequest, *, context: ExecutionContext | None = None) -> TokenCount:
        """How many tokens a request is, by the endpoint of its provider that counts, else by the estimate. No model is
        asked, and nothing is raised where the endpoint fails: the count says why it is an estimate."""
        acting = context or current_context()
        model = request.model
        estimate = request_tokens(request)
        if model.provider.kind is ProviderKind.LOCAL:
            return TokenCount(tokens=estimate, why="the embedded model has no endpoint that counts")
        try:
            acting.ensure_allowed(f"model:{model.id}")
            route = route_of(model)
            if route.dialect is Dialect.OPENAI_CHAT:
                return TokenCount(tokens=estimate, why=f"{route.dialect} has no endpoint that counts")
            has_situation = request.situation is None or request.situation in model.situations
            wanted = model.in_situation(request.situation if has_situation else None, request.parameters)
            parameters = self.sendable(model, wanted)
            asked = _attempt_module().PendingQuestion(request, model, route, parameters, 1, None, self._clock)
            async with asyncio.timeout(COUNT_SECONDS):
                tokens: int = await _attempt_module().count(
                    asked, acting, self._kept_clients(), self._kept_conversations()
                )
        except TimeoutError:
            return TokenCount(tokens=estimate, why=f"{model.provider.id} did not count within {COUNT_SECONDS} seconds")
        except WeftError as error:
            return TokenCount(tokens=estimate, why=str(error))
        return TokenCount(tokens=tokens, counted_by=model.provider.id)

    def _pay_broken(self, asked: PendingQuestion, budget: RequestBudget, error: BaseException) -> None:
        """An answer that broke off is paid for by what its server had counted. Where something of it came and nothing
        was counted, nobody knows what it cost."""
        usage = asked.meter.usage
        if usage is not None:
            price = self._price_of_model(asked.model, asked.model.name, prompt_tokens(usage))
            budget.pay(cost_of(usage, price))
        elif asked.has_begun or isinstance(error, ReplyCut):
            budget.pay(None)

    def _price_of_model(self, model: ModelSettings, name: str, prompt: int) -> TokenPrice | None:
        return model_price(model, self._clock.now_ms(), prompt, name=name, prices=self._own_prices)

    def sendable(self, model: ModelSettings, parameters: ModelParameters) -> ModelParameters:
        """Those of the parameters that this model is really sent."""
        asked = parameters.given()
        if not asked:
            return parameters
        is_local = model.provider.kind is ProviderKind.LOCAL
        taken = embedded_parameters() if is_local else taken_parameters(route_of(model), parameters)
        return ModelParameters(**{name: value for name, value in asked.items() if name in taken})

    def _note_unsent(self, asked: PendingQuestion, request: InferenceRequest, tried: _Tries) -> None:
        """Say before a model is asked what of the question it does not get."""
        if self._on_note is None or tried.of_model:
            return
        model, images = asked.model, count_images(request.messages)
        if images and not model.takes_images:
            self._on_note(f"{model.id} cannot take images: it is sent a line of text for each of {images}")
        has_situation = request.situation is None or request.situation in model.situations
        wanted = model.in_situation(request.situation if has_situation else None, request.parameters).given()
        unsent = [name for name in wanted if name not in asked.parameters.given()]
        if "thinking" in unsent:
            is_local = model.provider.kind is ProviderKind.LOCAL
            fault = None if is_local else thinking_fault(route_of(model), wanted["thinking"])
            why = "the setting is not sent" if fault is None else "; ".join(fault)
            self._on_note(f"{model.id} cannot be told to think so: {why}")
        if others := [name for name in unsent if name != "thinking"]:
            self._on_note(f"{model.id} does not take {', '.join(others)}: not sent")

    async def _prepare_question(
        self,
        request: InferenceRequest,
        tried: _Tries,
        acting: ExecutionContext,
        budget: RequestBudget,
        on_token: OnToken | None,
        meter: AnswerMeter,
    ) -> PendingQuestion:
        model = tried.model
        acting.ensure_allowed(f"model:{model.id}")
        # a fallback need not know the situation that its neighbour is in
        has_situation = request.situation is None or model is request.model or request.situation in model.situations
        parameters = model.in_situation(request.situation if has_situation else None, request.parameters)
        parameters = self.sendable(model, parameters)
        if budget.money is not None:  # a long conversation is not counted where nobody wants to know
            await budget.refresh()
            prompt = estimated_tokens(request.messages)
            parameters = budget.within(parameters, self._price_of_model(model, model.name, prompt), prompt, model.id)
        route = await self._route(model)
        question: PendingQuestion = _attempt_module().PendingQuestion(
            request,
            model,
            route,
            parameters,
            len(tried.attempts) + 1,
            on_token,
            self._clock,
            meter=meter,
            without_seals=tried.without_seals,
        )
        return question

    async def _ask_within(self, asked: PendingQuestion, acting: ExecutionContext, until: float | None) -> Reply:
        left = None if until is None else max(0.0, until - self._clock.monotonic())
        try:
            async with asyncio.timeout(left):
                reply: Reply = await _attempt_module().ask(
                    asked, acting, self._kept_clients(), self._kept_conversations()
                )
                return reply
        except TimeoutError:
            raise _budget_spent(asked) from None

    async def _recover(
        self, error: WeftError, tried: _Tries, asked: PendingQuestion, acting: ExecutionContext, until: float | None
    ) -> None:
        """Wait, or go to the next model, or ask without what was sealed, or raise what stands."""
        tried.note_end(asked, error.code)
        if _attempt_module().are_seals_refused(asked, error):
            tried.without_seals = True
            self._report_retry(error, tried, 0.0)
            return
        step = next_step(
            error,
            tried.of_model,
            self._policy,
            fraction=int.from_bytes(self._random(4)) / 2**32,
            seconds_left=None if until is None else until - self._clock.monotonic(),
            has_fallback=tried.has_fallback,
        )
        match step:
            case AskAgain(wait):
                tried.note_wait(wait)
                self._report_retry(error, tried, wait)
                await self._sleep(wait)
            case NextModel():
                tried.next_model()
                self._report_retry(error, tried, 0.0)
            case _:
                if isinstance(error, ModelUnknown):
                    await self._say_nearest(error, asked, acting, until)
                raise error

    async def _say_nearest(
        self, error: ModelUnknown, asked: PendingQuestion, acting: ExecutionContext, until: float | None
    ) -> None:

        left = LIST_SECONDS if until is None else max(0.0, until - self._clock.monotonic())
        if words := await nearest_words(self.connections, asked.model, asked.route, acting, left):
            error.say_more(words)

    def _report_retry(self, error: WeftError, tried: _Tries, wait: float) -> None:
        if self._on_retry is not None:
            self._on_retry(error, tried.model.id, wait)

    async def _route(self, model: ModelSettings) -> ModelRoute:
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
        self.without_seals = False
        """Whether this model is not sent what it sealed with earlier answers: it refused that."""

    @property
    def model(self) -> ModelSettings:
        return self._models[self._at]

    @property
    def has_fallback(self) -> bool:
        return self._at + 1 < len(self._models)

    def next_model(self) -> None:
        self._at, self.of_model, self.without_seals = self._at + 1, 0, False

    def note_end(self, asked: PendingQuestion, error: str) -> tuple[Attempt, ...]:
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

    def note_wait(self, seconds: float) -> None:
        self.attempts[-1] = replace(self.attempts[-1], waited_ms=round(seconds * 1000))


def _schema_fault(reply: Reply, parameters: ModelParameters) -> str | None:
    """Why a reply does not fit the schema of its answer; None where it does, goes on with calls, or was refused."""
    schema = parameters.response_schema
    if not schema or reply.calls or reply.finish is FinishReason.CONTENT_FILTER:
        return None
    from weft.programs.program_records import problems_with

    if reply.finish is FinishReason.LENGTH:
        return "the answer broke off, and its schema is not fulfilled"
    try:
        value = msgspec.json.decode(reply.text)
    except msgspec.DecodeError as error:
        return f"the answer is not the JSON that its schema asks for: {error}"
    try:
        problems = problems_with(value, schema, "responseSchema")
    except WeftError as error:
        return f"the answer was not held to its schema: {error}"
    return f"the answer does not fit its schema: {'; '.join(problems)}"[:_LONGEST_FAULT] if problems else None


def _budget_spent(asked: PendingQuestion) -> OutsideError:
    error = BudgetSpent(f"{asked.model.provider.id}: there was no whole reply within the time that was allowed")
    error.partial, error.request_id = asked.partial, asked.seen.request_id
    return error


def _attempt_module() -> ModuleType:
    return _load_part("weft.runtime.inference.attempt")


def _load_part(module: str) -> ModuleType:
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
    budget: RequestBudget | None = None,
    context: ExecutionContext | None = None,
) -> Reply:
    """One question by itself; whoever has several keeps an `Inference`."""
    async with Inference() as inference:
        return await inference.infer(request, on_token=on_token, budget=budget, context=context)


# --- Requests to a provider's server that ask no model anything.

T = TypeVar("T")
_LONGEST = 500


class Server:
    """A provider's server, as one principal asks it."""

    def __init__(self, client: Client, route: ModelRoute, provider: ProviderSettings, keys: list[Secret]) -> None:
        self.client, self.route, self.provider, self._keys = client, route, provider, keys

    def accept(self, answer: Any) -> bytes:
        """What it answered, unless it refuses; without the keys that it was sent."""
        if answer.status_code == 200:
            content = bytes(answer.content)
            shown = KeyTraces(self._keys).hidden_in(content.decode("utf-8", "surrogateescape"))
            return shown.encode("utf-8", "surrogateescape")
        raise self._status_error(answer)

    def _status_error(self, answer: Any) -> OutsideError:
        from weft.runtime.inference.dialects.server_answers import (
            kind_of_status,
            provider_message,
            redacted,
            retry_after,
        )

        try:
            body: Any = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            body = answer.text[:200]
        words = redacted(provider_message(body), self._keys)
        error = kind_of_status(answer.status_code)(f"{self.provider.id}: {answer.status_code}: {words}"[:_LONGEST])
        error.status = answer.status_code
        error.retry_after = retry_after(answer.headers)
        return error


async def with_server(
    connections: Connections,
    route: ModelRoute,
    provider: ProviderSettings,
    acting: ExecutionContext,
    work: Callable[[Server], Awaitable[T]],
    *,
    most_bytes: int | None = None,
) -> T:
    """Do something with a provider's server. Whatever is raised is of our tree, and holds no key."""
    keys: list[Secret] = []
    headers: dict[str, Secret] = {}
    for slot in route.keys:
        secret = await acting.credential(slot.credential, route.url)
        keys.append(secret)
        headers[slot.header] = Secret(slot.before + secret.reveal())
    failed: WeftError
    try:
        client, _ = connections.client(route.url, headers, provider.rules, most_bytes=most_bytes)
        return await work(Server(client, route, provider, keys))
    except ImportError as error:
        failed = Unsupported(
            f"asking servers needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        )
    except Exception as error:  # whatever the connection raises becomes an error that says who must act
        from weft.runtime.inference.dialects.server_answers import failure_of

        failed = failure_of(error, provider.id, keys)
    raise failed  # out here, so that theirs, which quotes what was sent, does not hang on it


# --- The models that a provider lists.

MAX_PAGES = 20
_PATHS = {
    Dialect.ANTHROPIC: ("/v1/models", {"limit": "1000"}),
    Dialect.OPENAI_CHAT: ("/models", {}),
    Dialect.OPENAI_RESPONSES: ("/models", {}),
    Dialect.GOOGLE: ("/v1beta/models", {"pageSize": "1000"}),
}
_HEADERS = {Dialect.ANTHROPIC: {"anthropic-version": "2023-06-01"}}


async def listed_models(server: Server, *, most_pages: int = MAX_PAGES) -> list[str]:
    """The names of the models that a server has for whoever holds its key."""
    route = server.route
    path, parameters = _PATHS[route.dialect]
    models: list[str] = []
    for _ in range(most_pages):
        answer = await server.client.get(route.url + path, params=parameters, headers=_HEADERS.get(route.dialect, {}))
        names, more = _model_names(server.accept(answer), server.provider)
        models += names
        if not more:
            break
        parameters = {**parameters, **more}
    return models


def _model_names(data: bytes, settings: ProviderSettings) -> tuple[list[str], dict[str, str]]:
    """The names on a page, and what to ask the next one with."""
    try:
        body = msgspec.json.decode(data)
        if "models" in body:  # Google's
            names = [str(model["name"]).removeprefix("models/") for model in body["models"]]
            return names, {"pageToken": body["nextPageToken"]} if body.get("nextPageToken") else {}
        names = [str(model["id"]) for model in body["data"]]
        return names, {"after_id": names[-1]} if body.get("has_more") and names else {}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise ReplyMalformed(f"{settings.id}: what it answered is no list of models") from None


# --- The names nearest to that of a model which a provider does not know.

LIST_SECONDS = 3.0
"""So long the list of the provider is waited for."""
MOST_LIST_BYTES = 4 * 1024 * 1024
MOST_NEAR, LEAST_LIKENESS, LONGEST_NAME = 3, 0.6, 100


async def nearest_words(
    connections: Connections, model: ModelSettings, route: ModelRoute, acting: ExecutionContext, seconds: float
) -> str:
    """What is said of a model that its provider does not know: the nearest names of those that the provider lists, and
    where it lists none within this time, of those in the table of prices. Nothing, where none is near."""
    provider, seconds = model.provider, min(seconds, LIST_SECONDS)
    try:
        async with asyncio.timeout(seconds):
            names = await with_server(
                connections,
                route,
                provider,
                acting,
                lambda server: listed_models(server, most_pages=1),
                most_bytes=MOST_LIST_BYTES,
            )
    except (WeftError, TimeoutError):  # it has no list for us: what the provider said of the model stands
        names = []
    source = "it lists" if names else "the table of prices has"
    near = nearest_names(route.model, names or shipped_model_names(model.vendor or ""))
    return f"{source} {', '.join(map(repr, near))}" if near else ""


def nearest_names(wanted: str, names: Iterable[str]) -> list[str]:
    """Those of the names that are most like this one; none where it is one of them."""
    by_lower = {name.lower(): name for name in names if name.isprintable() and 0 < len(name) <= LONGEST_NAME}
    if wanted in by_lower.values():
        return []
    return [by_lower[near] for near in get_close_matches(wanted.lower(), by_lower, MOST_NEAR, LEAST_LIKENESS)]
