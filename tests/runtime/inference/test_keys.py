"""A canary in every slot that a key can come from or go to: it reaches its server, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.aio
from tests.runtime.inference.asking import HI, PERSON, QUICK, model, person, texts_of
from tests.runtime.scripted import GOOGLE, MESSAGE, RESPONSES, Script, answer, chat, failure, scripted
from tests.runtime.test_processes import running
from weft.kernel.errors import ConnectionForbidden, WeftError
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.egress.connections import Connections
from weft.runtime.egress.credentials import Credential, Keyring, Secret
from weft.runtime.egress.execution_context import ExecutionContext, context_for
from weft.runtime.inference.dialects import model_clients
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    ProviderSettings,
    RetryPolicy,
)
from weft.runtime.sandbox.processes import command_runner

KEY, TOKEN = "sk-canary-key-0123456789", "sk-canary-token-9876543210"
CLOUDFLARE = {"account_id": "acc", "gateway_id": "gw", "gateway_credential": "token"}
SLOTS: dict[str, tuple[ProviderKind, dict[str, Any], str, Script, dict[str, str]]] = {
    "chat": (ProviderKind.OPENAI_COMPATIBLE, {}, "m", chat(), {"authorization": f"Bearer {KEY}"}),
    "responses": (
        ProviderKind.OPENAI,
        {"api": OpenAIApi.RESPONSES},
        "gpt-x",
        answer(200, RESPONSES),
        {"authorization": f"Bearer {KEY}"},
    ),
    "anthropic": (ProviderKind.ANTHROPIC, {}, "claude-x", answer(200, MESSAGE), {"x-api-key": KEY}),
    "google": (ProviderKind.GOOGLE, {}, "gemini-x", answer(200, GOOGLE), {"x-goog-api-key": KEY}),
    "gateway": (
        ProviderKind.CLOUDFLARE,
        CLOUDFLARE,
        "claude-x",
        answer(200, MESSAGE),
        {"x-api-key": KEY, "cf-aig-authorization": f"Bearer {TOKEN}"},
    ),
}
SOURCES = ("variable", "command", "context")


def keyring(source: str, url: str, folder: Path) -> ExecutionContext:
    if source == "variable":
        known = [Credential(id="key", origin=url, env="K"), Credential(id="token", origin=url, env="T")]
        return context_for(PERSON, keyring=Keyring(known, {"K": KEY, "T": TOKEN}.get))
    known = [Credential(id=name, origin=url, command=("cat", str(folder / name))) for name in ("key", "token")]
    if source == "context":
        return context_for(PERSON, keyring=Keyring(known), secrets={"key": Secret(KEY), "token": Secret(TOKEN)})
    return context_for(PERSON, keyring=Keyring(known, run=command_runner({"PATH": "/usr/bin:/bin"}.get)))


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    """Everything that any library logs, however little it matters."""
    path = tmp_path / "everything.log"
    handler = logging.FileHandler(path)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield path
    root.setLevel(before)
    root.removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("slot", SLOTS)
def test_a_key_reaches_its_server_and_nothing_else(
    slot: str,
    source: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    log_file: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    kind, more, name, good, expected = SLOTS[slot]
    places = tmp_path_factory.mktemp("places")  # what is below tmp_path is looked through for keys afterwards
    (places / "key").write_text(KEY)
    (places / "token").write_text(TOKEN)
    ledger_folder = tmp_path / "ledger"
    ledger_folder.mkdir()
    told: list[str] = []

    async def body() -> None:
        bad = failure(500, f"what is {expected}?")
        async with scripted(good, bad) as server, Inference(policy=RetryPolicy(attempts=1)) as inference:
            there = ProviderSettings(id="there", kind=kind, base_url=server.url, credential="key", rules=QUICK, **more)
            question = OutgoingMessage(message="hello", model=ModelSettings(id="m", name=name, provider=there))
            context = keyring(source, server.url, places)
            async with weft.aio.open(ledger_folder / "ledger.db") as ledger:
                sent = await send(ledger, inference, "main", question, context=context)
                with pytest.raises(WeftError) as caught:
                    await send(ledger, inference, "main", question, context=context)
                told.extend([*texts_of(caught.value), repr(sent), repr(context), repr(inference), str(question)])
            for header, value in expected.items():
                assert server.received[0].headers[header] == value
            assert running(KEY) == running(TOKEN) == []

    asyncio.run(body())
    out, err = capfd.readouterr()
    told += [out, err, log_file.read_text()]
    told += [file.read_bytes().decode("latin-1") for file in ledger_folder.iterdir()]
    assert log_file.stat().st_size > 0
    for text in told:
        assert KEY not in text
        assert TOKEN not in text


def test_a_key_of_a_gateway_that_was_changed_is_withheld(tmp_path: Path) -> None:
    async def body() -> None:
        async with scripted(chat()) as server, scripted(chat()) as other, Inference() as inference:
            there = ProviderSettings(
                id="there",
                kind=ProviderKind.CLOUDFLARE,
                base_url=other.url,
                account_id="acc",
                gateway_id="gw",
                gateway_credential="token",
            )
            question = OutgoingMessage(message="hello", model=ModelSettings(id="m", name="claude-x", provider=there))
            async with weft.aio.open(tmp_path / "ledger.db") as ledger:
                with pytest.raises(WeftError, match="is withheld"):
                    await send(ledger, inference, "main", question, context=keyring("variable", server.url, tmp_path))
            assert other.received == server.received == []

    asyncio.run(body())


def test_those_who_ask_through_one_inference_are_each_sent_with_their_own_key_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients: list[Any] = []

    def counted(*of: Any) -> Any:
        clients.append(of)
        return made(*of)

    made = model_clients.model_client
    monkeypatch.setattr(model_clients, "model_client", counted)

    async def body() -> list[str]:
        async with scripted(chat()) as server, Inference() as inference:
            question = InferenceRequest(model=model(server.url), messages=HI)
            await asyncio.gather(*(inference.infer(question, context=person(server.url, key)) for key in ("a", "b")))
            assert len(clients) == 2  # one request at a time has each of them
            for key in ("c", "d"):
                await inference.infer(question, context=person(server.url, key))
            return [received.headers["authorization"] for received in server.received]

    keys = asyncio.run(body())
    assert sorted(keys[:2]) == ["Bearer a", "Bearer b"]
    assert keys[2:] == ["Bearer c", "Bearer d"]
    assert len(clients) == 2  # and they are used again


def test_a_kept_client_that_nobody_was_lent_sends_nothing() -> None:
    async def body() -> None:
        async with scripted(answer(200, {})) as server:
            connections = Connections()
            kept = connections.kept_client(server.url, QUICK)
            kept.lend({"x-api-key": Secret(KEY)})
            await kept.client.get(server.url)
            kept.take_back()
            with pytest.raises(ConnectionForbidden, match="none was expected"):
                await kept.client.get(server.url)
            assert [received.headers.get("x-api-key") for received in server.received] == [KEY]
            await connections.aclose()

    asyncio.run(body())
