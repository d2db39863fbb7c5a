"""`weft chat` offers the models of servers that run on this machine, and asks nothing of an untrusted ledger's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.runtime.scripted import CHAT_STREAM, HANG, answer, failure, scripted
from tests.surfaces.shell import Shell
from tests.surfaces.talking import Served, serving
from weft.runtime.egress.connections import Connections
from weft.runtime.inference import plain_requests
from weft.runtime.inference.plain_requests import RunningServer, UsualServer, find_running_servers
from weft.surfaces.cli.chat import chat

MODELS = answer(200, {"object": "list", "data": [{"id": "llama3.2:latest"}, {"id": "qwen2.5:7b"}]})
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def test_servers_are_asked_for_their_models_and_nothing_else() -> None:
    strange = answer(
        200, {"data": [{"id": "fine"}, {"id": "\x1b[2J"}, {"id": "two words"}, {"id": ""}, {"id": "fine"}]}
    )

    async def ask() -> list[RunningServer]:
        async with (
            scripted(MODELS) as ollama,
            scripted(failure(404)) as website,
            scripted(answer(200, b"<html>")) as page,
            scripted([HANG]) as silent,
            scripted(strange) as vllm,
        ):
            connections = Connections()
            with socket.socket() as closed:
                closed.bind(("127.0.0.1", 0))
                ports = [port_of(one.url) for one in (ollama, website, page, vllm)]
                usual = [UsualServer(f"S{n}", f"s{n}", port) for n, port in enumerate(ports)]
                nobody = UsualServer("Nobody", "nobody", closed.getsockname()[1])
                servers = await find_running_servers(connections, [*usual, nobody], seconds=60)
            mute = UsualServer("Mute", "mute", port_of(silent.url))
            while not silent.received:
                assert await find_running_servers(connections, [mute], seconds=0.2) == []
            await connections.aclose()
            for server in (ollama, website, page, vllm, silent):
                assert [(one.path, one.body) for one in server.received] == [("/v1/models", None)]
                assert "authorization" not in server.received[0].headers
            return servers

    servers = asyncio.run(ask())
    assert [(one.server.name, one.models) for one in servers] == [
        ("s0", ("llama3.2:latest", "qwen2.5:7b")),
        ("s3", ("fine",)),
    ]
    assert servers[0].url == f"http://127.0.0.1:{servers[0].server.port}/v1"


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The one server of this machine. It answers with its models first, then with a reply."""
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    with serving(MODELS, CHAT_STREAM) as served:
        monkeypatch.setattr(plain_requests, "USUAL_SERVERS", (UsualServer("Ollama", "ollama", port_of(served.url)),))
        yield served


def requests(served: Served) -> list[str]:
    return [one.path for one in served._server.received]


def test_at_a_terminal_a_model_is_chosen_and_becomes_a_program(
    weft: Shell, ollama: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "_is_at_terminal", lambda _: True)
    talked = weft("chat", stdin="7\n2\nHello\n/quit\n")
    assert talked.code == 0, talked.err
    assert f"1  llama3.2:latest  Ollama at {urlsplit(ollama.url).netloc}" in talked.out
    assert "there is no 7: 1 to 2" in talked.out
    assert "provider ollama is published; `weft program delete ollama` takes it back" in talked.out
    assert "model ollama-qwen2-5-7b is published; `weft program delete ollama-qwen2-5-7b` takes it back" in talked.out
    assert "Hello there" in talked.out
    assert requests(ollama) == ["/v1/models", "/v1/chat/completions"]
    assert ollama.asked() == [("user", "Hello")]
    weft("chat", stdin="/quit\n")
    assert requests(ollama) == ["/v1/models", "/v1/chat/completions"], "the session goes on with its model, unasked"
    ollama._server.scripts.insert(0, MODELS)
    again = weft("chat", "--new", stdin="2\n/quit\n")
    assert "is published" not in again.out, "what is there already is used"
    for name in ("ollama-qwen2-5-7b", "ollama"):
        assert weft("program", "delete", name).code == 0


def test_in_a_pipe_servers_are_named_and_never_used(
    weft: Shell, ollama: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.surfaces.cli.chat.models.has", lambda name: name != "xllamacpp")
    hinted = weft("chat", stdin="Hello")
    assert hinted.code != 0, "the embedded model is not installed here"
    assert f"Ollama runs at {urlsplit(ollama.url).netloc}: llama3.2:latest, qwen2.5:7b" in hinted.err
    assert f"--base-url {ollama.url}" in hinted.err
    assert requests(ollama) == ["/v1/models"]
    for named in (("--model", "local"), ("--quiet",), ("--json",)):
        weft("chat", *named, stdin="Hello")
    assert requests(ollama) == ["/v1/models"]


def test_for_a_ledger_that_is_not_trusted_no_server_is_asked(weft: Shell, ollama: Served, tmp_path: Path) -> None:
    weft("trust", "--revoke")
    refused = weft("chat", stdin="Hello")
    assert refused.code != 0
    assert "send a message to a model" in refused.err
    assert requests(ollama) == []


def test_the_doctor_names_servers_that_run_here_and_asks_no_port_where_nobody_listens(
    weft: Shell, ollama: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"Ollama runs at {urlsplit(ollama.url).netloc}: llama3.2:latest, qwen2.5:7b; `weft chat` offers them"
    assert f"talking     {line}" in weft("doctor").out
    assert requests(ollama) == ["/v1/models"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = UsualServer("Nobody", "nobody", closed.getsockname()[1])
        monkeypatch.setattr(plain_requests, "USUAL_SERVERS", (nobody,))
        monkeypatch.setattr(plain_requests, "find_running_servers", None)
        assert "runs at" not in weft("doctor").out
