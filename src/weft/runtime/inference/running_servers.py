"""Model servers that run on this machine: each usual port of the loopback address is asked once for its list of models.

Nothing else is sent, no key and no text. Whoever does not answer soon with a list of models is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.errors import OutsideError
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.local_ports import is_listening

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Client, Connections

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
    rules = Rules(connect_seconds=seconds, read_seconds=seconds)
    silent = [RunningServer(server, ()) for server in servers]
    clients = [connections.client(running.url, {}, rules)[0] for running in silent]  # made before the time runs
    answers = await asyncio.gather(*(_asked(*asked, seconds) for asked in zip(clients, silent, strict=True)))
    return [answer for answer in answers if answer.models]


async def _asked(client: Client, running: RunningServer, seconds: float) -> RunningServer:
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
