"""Texts as vectors by a server that speaks OpenAI's protocol for it, beside the model that needs no network.

A batch is one request: tried again as a question to a model is, and taken only whole. Every text has exactly one
vector, all are of one size, and none is nothing; else it is no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.errors import ReplyMalformed, Unsupported, WeftError
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.plain_requests import Server, with_server
from weft.runtime.inference.retries import Again, next_step
from weft.runtime.inference.routes import Dialect, Route, route_of
from weft.runtime.inference.settings import ModelSettings, ProviderKind, RetryPolicy

if TYPE_CHECKING:
    from weft.programs.similarity.embedder import Vectors

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

        made = np.array(self._runner.run(self._tried(list(texts))), np.float32)
        sizes = np.linalg.norm(made, axis=1, keepdims=True)
        if not np.isfinite(sizes).all() or not sizes.all():
            raise self._malformed("a vector points nowhere")
        rows: Vectors = made / sizes
        return rows

    async def _tried(self, texts: list[str]) -> list[list[float]]:
        self._context.ensure_allowed(f"model:{self._model.id}")
        tries = 0
        while True:
            try:
                return await with_server(
                    self._inference, self._route, self._model.provider, self._context, lambda it: self._ask(it, texts)
                )
            except WeftError as error:
                tries += 1
                fraction = int.from_bytes(self._random(4)) / 2**32
                step = next_step(error, tries, self._policy, fraction=fraction, seconds_left=None, has_fallback=False)
                if not isinstance(step, Again):
                    raise
                await self._sleep(step.wait)

    async def _ask(self, server: Server, texts: list[str]) -> list[list[float]]:
        body = {"model": self._route.model, "input": texts, "encoding_format": "float"}
        answer = await server.client.post(f"{self._route.url}/embeddings", json=body)
        try:
            found = msgspec.json.decode(server.accept(answer), type=_EmbeddingAnswer).data
        except msgspec.DecodeError:
            raise self._malformed("what it answered are no embeddings") from None
        return self._checked(found, len(texts))

    def _checked(self, found: list[_Item], count: int) -> list[list[float]]:
        """The vectors in the order of their texts."""
        places = [place if item.index is None else item.index for place, item in enumerate(found)]
        if sorted(places) != list(range(count)):
            raise self._malformed(f"{len(found)} vectors for {count} texts, or not one for each")
        sizes = {len(item.embedding) for item in found}
        if len(sizes) != 1 or 0 in sizes or (self.dimensions and sizes != {self.dimensions}):
            known = f", after {self.dimensions}" if self.dimensions else ""
            raise self._malformed(f"its vectors have {' and '.join(map(str, sorted(sizes)))} dimensions{known}")
        self.dimensions = sizes.pop()
        return [item.embedding for _, item in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]

    def _malformed(self, what: str) -> ReplyMalformed:
        return ReplyMalformed(f"{self._model.provider.id}: {what}")


def _route(model: ModelSettings) -> Route:
    hint = "name a model of an OpenAI-compatible provider, or none for the one that comes with Weft"
    if model.provider.kind is ProviderKind.LOCAL:
        raise Unsupported("the embedded model answers questions and makes no vectors", hint)
    route = route_of(model)
    if route.dialect not in _DIALECTS:
        raise Unsupported(f"provider {model.provider.id!r} does not speak OpenAI's protocol for embeddings", hint)
    return route
