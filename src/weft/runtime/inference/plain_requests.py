"""Embeddings that a provider's server makes, beside the model that needs no network.

Model servers that run on this machine are found by the same list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.errors import OutsideError, ReplyMalformed, Unsupported, WeftError
from weft.runtime.egress.credentials import ConnectionRules, is_listening
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference, Server, with_server
from weft.runtime.inference.model_requests import (
    AskAgain,
    Dialect,
    ModelRoute,
    ModelSettings,
    ProviderKind,
    RetryPolicy,
    next_step,
    route_of,
)

if TYPE_CHECKING:
    from weft.programs.similarity import Vectors
    from weft.runtime.egress.connections import Client, Connections


# --- Texts as vectors by a server that speaks OpenAI's protocol for it, beside the model that needs no network.

Sleep = Callable[[float], Awaitable[None]]
_DIALECTS = (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)


class _Item(Struct):
    embedding: list[float]
    index: int | None = None


class _EmbeddingAnswer(Struct):
    data: list[_Item]


class FarEmbedder:
    """A model of texts at a provider. It keeps connections and an event loop of its own: use it in a `with` block, and
    outside of asynchronous code. `dimensions` is 0 until the first answer."""

    def __init__(
        self,
        model: ModelSettings,
        context: ExecutionContext,
        *,
        policy: RetryPolicy | None = None,
        sleep: Sleep = asyncio.sleep,
        random_bytes: RandomBytes = system_random,
    ) -> None:
        self._model, self._context, self._route = model, context, _route(model)
        self._policy, self._sleep, self._random = policy or RetryPolicy(), sleep, random_bytes
        self._runner = asyncio.Runner()
        self._inference = Inference()
        self.name, self.dimensions = f"{model.provider.id}/{model.name}", 0

    def __enter__(self) -> FarEmbedder:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        try:
            self._runner.run(self._inference.aclose())
        finally:
            self._runner.close()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 for each text."""
        import numpy as np

        vectors = np.array(self._runner.run(self._tried(list(texts))), np.float32)
        sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(sizes).all() or not sizes.all():
            raise self._malformed("a vector points nowhere")
        rows: Vectors = vectors / sizes
        return rows

    async def _tried(self, texts: list[str]) -> list[list[float]]:
        self._context.ensure_allowed(f"model:{self._model.id}")
        tries = 0
        while True:
            try:
                return await with_server(
                    self._inference.connections,
                    self._route,
                    self._model.provider,
                    self._context,
                    lambda server: self._ask_server(server, texts),
                )
            except WeftError as error:
                tries += 1
                fraction = int.from_bytes(self._random(4)) / 2**32
                step = next_step(error, tries, self._policy, fraction=fraction, seconds_left=None, has_fallback=False)
                if not isinstance(step, AskAgain):
                    raise
                await self._sleep(step.wait)

    async def _ask_server(self, server: Server, texts: list[str]) -> list[list[float]]:
        body = {"model": self._route.model, "input": texts, "encoding_format": "float"}
        answer = await server.client.post(f"{self._route.url}/embeddings", json=body)
        try:
            items = msgspec.json.decode(server.accept(answer), type=_EmbeddingAnswer).data
        except msgspec.DecodeError:
            raise self._malformed("what it answered are no embeddings") from None
        return self._checked_vectors(items, len(texts))

    def _checked_vectors(self, items: list[_Item], count: int) -> list[list[float]]:
        """The vectors in the order of their texts."""
        places = [place if item.index is None else item.index for place, item in enumerate(items)]
        if sorted(places) != list(range(count)):
            raise self._malformed(f"{len(items)} vectors for {count} texts, or not one for each")
        sizes = {len(item.embedding) for item in items}
        if len(sizes) != 1 or 0 in sizes or (self.dimensions and sizes != {self.dimensions}):
            earlier_size = f", after {self.dimensions}" if self.dimensions else ""
            raise self._malformed(f"its vectors have {' and '.join(map(str, sorted(sizes)))} dimensions{earlier_size}")
        self.dimensions = sizes.pop()
        return [item.embedding for _, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0])]

    def _malformed(self, what: str) -> ReplyMalformed:
        return ReplyMalformed(f"{self._model.provider.id}: {what}")


def _route(model: ModelSettings) -> ModelRoute:
    hint = "name a model of an OpenAI-compatible provider, or none for the one that comes with Weft"
    if model.provider.kind is ProviderKind.LOCAL:
        raise Unsupported("the embedded model answers questions and makes no vectors", hint)
    route = route_of(model)
    if route.dialect not in _DIALECTS:
        raise Unsupported(f"provider {model.provider.id!r} does not speak OpenAI's protocol for embeddings", hint)
    return route


# --- Model servers that run on this machine: each usual port of the loopback address is asked once for its list of
# models.

ANSWER_SECONDS = 1.0
"""How long a server has for its whole answer."""
MAX_ANSWER_BYTES = 1024 * 1024
MAX_MODELS, MAX_NAME_LETTERS = 50, 200


class UsualServer(Struct, frozen=True):
    """A program that serves models, and the port where it does unless told otherwise."""

    title: str
    name: str
    port: int


class RunningServer(Struct, frozen=True):
    """One that answered, and the models that it has."""

    server: UsualServer
    models: tuple[str, ...]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/v1"


USUAL_SERVERS = (
    UsualServer("Ollama", "ollama", 11434),
    UsualServer("LM Studio", "lm-studio", 1234),
    UsualServer("llama.cpp", "llama-cpp", 8080),
    UsualServer("vLLM", "vllm", 8000),
)


class _Model(Struct):
    id: str


class _ModelList(Struct):
    data: list[_Model]


def listening_servers(servers: Sequence[UsualServer]) -> list[UsualServer]:
    """Those of the servers whose port takes connections. Where none does, nothing needs to be loaded and asked."""
    return [server for server in servers if is_listening(server.port)]


async def find_running_servers(
    connections: Connections, servers: Sequence[UsualServer], seconds: float = ANSWER_SECONDS
) -> list[RunningServer]:
    """Those of the servers that have a model, asked all at once."""
    rules = ConnectionRules(connect_seconds=seconds, read_seconds=seconds)
    silent = [RunningServer(server, ()) for server in servers]
    clients = [connections.client(running.url, {}, rules)[0] for running in silent]  # made before the time runs
    answers = await asyncio.gather(*(_ask_model_names(*asked, seconds) for asked in zip(clients, silent, strict=True)))
    return [answer for answer in answers if answer.models]


async def _ask_model_names(client: Client, running: RunningServer, seconds: float) -> RunningServer:
    from weft.runtime.egress.connections import TransportError

    try:
        async with asyncio.timeout(seconds), client.stream("GET", f"{running.url}/models") as answer:
            if answer.status_code != 200:
                return running
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    return running
        return RunningServer(running.server, _names(bytes(body)))
    except (TransportError, OutsideError, TimeoutError):  # nobody is there, or somebody else
        return running


def _names(body: bytes) -> tuple[str, ...]:
    """The models of a list, without names that could not be shown or asked for."""
    try:
        models = msgspec.json.decode(body, type=_ModelList).data
    except msgspec.DecodeError:  # it answers something else
        return ()
    names = dict.fromkeys(model.id for model in models if model.id.isprintable() and " " not in model.id)
    return tuple(name for name in names if 0 < len(name) <= MAX_NAME_LETTERS)[:MAX_MODELS]
