"""How many tokens a request is before it is sent: as its provider counts them, else as they are estimated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft.aio
from tests.runtime.inference.asking import HI, model, person, provider
from tests.runtime.inference.recordings import RECORDINGS
from tests.runtime.inference.strict_providers import COUNT_PATHS, count_refusals
from tests.runtime.scripted import MESSAGE, Script, Scripted, answer, chat, failure, scripted
from weft.chat.triage import TriageInference
from weft.kernel.enums import MessageRole
from weft.ledger.model import ImagePart, NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    RetryPolicy,
    TokenCount,
    ToolSpec,
    estimated_tokens,
    request_tokens,
)
from weft.runtime.thread_replay import ReplayInference

KINDS = {
    Dialect.ANTHROPIC: ProviderKind.ANTHROPIC,
    Dialect.OPENAI_RESPONSES: ProviderKind.OPENAI,
    Dialect.GOOGLE: ProviderKind.GOOGLE,
}
COUNTED = {
    Dialect.ANTHROPIC: {"input_tokens": 77},
    Dialect.OPENAI_RESPONSES: {"object": "response.input_tokens", "input_tokens": 77},
    Dialect.GOOGLE: {"totalTokens": 77},
}
PNG = "data:image/png;base64,iVBORw0KGgo="
LOOK = ToolSpec(name="look", description="Look there", schema={"type": "object", "properties": {}})
TALK = (
    NewMessage(role=MessageRole.SYSTEM, content="Be brief."),
    NewMessage(role=MessageRole.USER, content=(TextPart("What is this?"), ImagePart(PNG))),
    NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "look", {"at": 1}),)),
    NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", {"seen": "nothing"}),)),
)


def model_at(url: str, dialect: Dialect, name: str = "m-1", **more: Any) -> ModelSettings:
    return ModelSettings(id="m", name=name, provider=provider(url, KINDS[dialect]), **more)


def counted(script: Script, dialect: Dialect, **request: Any) -> tuple[TokenCount, Scripted]:
    async def put() -> tuple[TokenCount, Scripted]:
        async with scripted(script) as server, Inference() as inference:
            name = request.pop("name", "m-1")
            asked = InferenceRequest(**{"model": model_at(server.url, dialect, name), "messages": TALK, **request})
            return await inference.count(asked, context=person(server.url)), server

    return asyncio.run(put())


@pytest.mark.parametrize("dialect", KINDS)
def test_a_request_is_counted_by_its_provider_as_it_would_be_sent(dialect: Dialect) -> None:
    parameters = ModelParameters(max_tokens=3000, temperature=0.5, thinking="low")
    count, server = counted(answer(200, COUNTED[dialect]), dialect, tools=(LOOK,), parameters=parameters)
    assert count == TokenCount(tokens=77, counted_by="there")
    (received,) = server.received
    assert received.path.partition("?")[0].endswith(COUNT_PATHS[dialect])
    assert list(count_refusals(dialect, received.body)) == []
    sent = str(received.body)
    assert all(text in sent for text in ("Be brief.", "What is this?", "iVBORw0KGgo", "Look there", "nothing"))


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize("script", [failure(404, "no such place"), failure(500), answer(200, {"tokens": 3}), [b""]])
def test_where_an_endpoint_fails_the_estimate_holds_and_says_why(dialect: Dialect, script: Script) -> None:
    count, _ = counted(script, dialect, tools=(LOOK,))
    assert count.counted_by is None
    assert count.tokens == request_tokens(InferenceRequest(model=model(""), messages=TALK, tools=(LOOK,)))
    assert count.tokens > estimated_tokens(TALK)
    assert count.why


def test_chat_completions_are_estimated_and_no_key_is_looked_for() -> None:
    async def put() -> tuple[TokenCount, int]:
        async with scripted(chat()) as server, Inference() as inference:
            asked = InferenceRequest(model=model(server.url), messages=HI)
            return await inference.count(asked, context=person("https://elsewhere.test")), len(server.received)

    count, requests = asyncio.run(put())
    assert (count.counted_by, requests) == (None, 0)
    assert count.why == "openai-chat has no endpoint that counts"


def recorded_counts() -> list[tuple[str, Dialect, Any, int, Any]]:
    """Every count that was recorded, with its request."""
    found = []
    for path in sorted(RECORDINGS.glob("*/*.yaml")):
        for exchange in yaml.load(path.read_bytes(), yaml.CSafeLoader)["interactions"]:
            request, response = exchange["request"], exchange["response"]
            place = request["uri"].partition("?")[0]
            dialect = next((one for one, end in COUNT_PATHS.items() if place.endswith(end)), None)
            if dialect is None:
                continue
            asked = request.get("parsed_body") or yaml.safe_load(request["body"])
            whole = response.get("parsed_body") or yaml.safe_load(response["body"]["string"])
            found.append((path.stem, dialect, asked, response["status"]["code"], whole))
    return found


@pytest.mark.parametrize(("name", "dialect", "asked", "status", "whole"), recorded_counts())
def test_recorded_counts_are_read_and_their_requests_keep_to_the_rules(
    name: str, dialect: Dialect, asked: Any, status: int, whole: Any
) -> None:
    known = "advisor" not in str(asked) and "tool_search" not in str(asked)
    if known and (asked.get("tool_choice") or {}) != {"type": "any"}:
        assert list(count_refusals(dialect, asked)) == []
    text = "The quick brown fox jumps over the lazydog."
    messages = (NewMessage(role=MessageRole.USER, content=text),)
    count, server = counted(answer(status, whole), dialect, messages=messages, name=asked.get("model", "gemini-2.5"))
    if status != 200:
        assert (count.counted_by, count.why) == (None, "there: 404: model: claude-does-not-exist")
        return
    assert count == TokenCount(tokens=whole.get("input_tokens") or whole["totalTokens"], counted_by="there")
    if text in str(asked):
        sent = server.received[0].body
        inner = sent["generateContentRequest"] if dialect is Dialect.GOOGLE else sent
        assert without_markers(inner.get("contents") or inner["messages"]) == (
            asked.get("contents") or asked["messages"]
        )


def without_markers(messages: Any) -> Any:
    for message in messages:
        for block in message.get("content", ()):
            block.pop("cache_control", None)
    return messages


# --- Turns: the provider counts only where the estimate says that a request does not fit.

WINDOW = 4_000
LONG = "x" * 9_000


class CountingServer:
    """Answers every message, and counts every request so that it is this large."""

    def __init__(self, server: Scripted, tokens: int) -> None:
        self._server, self.tokens = server, tokens
        server.script_of = self._script

    def _script(self, body: Any) -> Script:
        if self._server.received[-1].path.endswith("/count_tokens"):
            assert list(count_refusals(Dialect.ANTHROPIC, body)) == []
            return answer(200, {"input_tokens": self.tokens}) if self.tokens else failure(500)
        return answer(200, {**MESSAGE, "usage": {"input_tokens": 20, "output_tokens": 5}})


async def talk(path: Path, tokens: int, *texts: str) -> tuple[int, list[Any]]:
    """How often the server counted, and what it was sent to answer."""
    async with weft.aio.open(path) as ledger, scripted() as server, Inference(policy=RetryPolicy(attempts=1)) as asking:
        CountingServer(server, tokens)
        small = model_at(server.url, Dialect.ANTHROPIC, "claude-x", context_window=WINDOW)
        for text in texts:
            question = OutgoingMessage(message=text, model=small)
            await send(ledger, asking, "main", question, context=person(server.url))
        counts = [received for received in server.received if received.path.endswith("/count_tokens")]
        return len(counts), [received.body for received in server.received if received not in counts]


def test_a_turn_that_fits_by_the_estimate_costs_no_other_request(path: Path) -> None:
    counts, sent = asyncio.run(talk(path, 10, "Hi", "How are you?", "Well?"))
    assert (counts, len(sent)) == (0, 3)


def test_what_does_not_fit_by_the_estimate_is_counted_before_anything_is_cut(path: Path, tmp_path: Path) -> None:
    counts, sent = asyncio.run(talk(path, 1_000, LONG, "And now? " + LONG))
    assert counts == 1
    assert LONG in str(sent[1]["messages"][0])
    counts, sent = asyncio.run(talk(tmp_path / "other.db", WINDOW + 1, LONG, "And now? " + LONG))
    assert counts == 1
    assert len(sent[1]["messages"]) < 3
    counts, sent = asyncio.run(talk(tmp_path / "third.db", 0, LONG, "And now? " + LONG))
    assert counts == 1
    assert len(sent[1]["messages"]) < 3


def test_a_count_is_not_told_what_is_stored_or_cached() -> None:
    count, server = counted(answer(200, COUNTED[Dialect.OPENAI_RESPONSES]), Dialect.OPENAI_RESPONSES)
    assert count.counted_by == "there"
    assert "store" not in server.received[0].body
    assert "prompt_cache_key" not in server.received[0].body
    assert OpenAIApi.RESPONSES in server.received[0].path


def test_who_answers_in_the_place_of_an_inference_has_it_count() -> None:
    async def put() -> list[TokenCount]:
        nothing: Any = None
        counted = answer(200, COUNTED[Dialect.ANTHROPIC])
        async with scripted(counted, counted) as server, Inference() as inference:
            asked = InferenceRequest(model=model_at(server.url, Dialect.ANTHROPIC), messages=TALK)
            placed: list[Inference] = [
                ReplayInference(inference, nothing, nothing, nothing, nothing),
                TriageInference(nothing, nothing, inference, seconds=1),
                TriageInference(nothing, nothing, None, seconds=1),
            ]
            return [await one.count(asked, context=person(server.url)) for one in placed]

    counts = asyncio.run(put())
    assert [count.counted_by for count in counts] == ["there", "there", None]
    assert counts[2].why == "no model is asked"
