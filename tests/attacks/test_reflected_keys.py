"""Servers that answer with the key that they were sent, in every place and writing: the ledger holds none of it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.aio
from tests.runtime.inference.asking import QUICK, person, texts_of
from tests.runtime.scripted import (
    CLOSE,
    STREAM_HEAD,
    Script,
    answer,
    chat,
    chat_saying,
    chunk,
    events,
    failure,
    scripted,
)
from tests.sizes import share
from weft.kernel.errors import WeftError
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.egress.credentials import KeyTraces, Secret, StreamedText
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelSettings, ProviderKind, ProviderSettings, RetryPolicy

KEY = "sk-Canary+Zx81qW/77yPv3_tTkLm-93fE"
TRACE = 16
WRITINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in capitals": str.upper,
    "in small letters": str.lower,
    "in base64": lambda key: base64.b64encode(key.encode()).decode(),
    "in base64 with a user": lambda key: base64.b64encode(f"u:{key}".encode()).decode(),
    "in base64 of an address": lambda key: base64.urlsafe_b64encode(f"Bearer {key}".encode()).decode(),
    "percent-encoded": lambda key: quote(key, safe=""),
    "percent-encoded throughout": lambda key: "".join(f"%{ord(letter):02X}" for letter in key),
    "in hexadecimal": lambda key: key.encode().hex(),
}


def pieces(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def streamed(deltas: list[dict[str, Any]], *, cut: bool = False) -> Script:
    ending = () if cut else (chunk({}, "stop"), "[DONE]")
    return [STREAM_HEAD, *events(chunk({"role": "assistant", "content": ""}), *map(chunk, deltas), *ending), CLOSE]


ANSWERS: dict[str, Callable[[str], Script]] = {
    "the text": lambda key: chat_saying({"content": f"you sent {key}, thank you"}),
    "a tool call": lambda key: chat_saying(
        {
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "run", "arguments": f'{{"{key}": ["{key}"]}}'}}
            ],
        },
        "tool_calls",
    ),
    "the model's name": lambda key: chat(model=key),
    "the id of the answer": lambda key: answer(200, {**_chat_body(), "id": key}),
    "a header": lambda key: answer(200, _chat_body(), x_request_id=key.replace("\n", "")),
    "an error": lambda key: failure(400, f"the key {key} is not known"),
    "an error's header": lambda key: failure(400, "no", x_request_id=key),
    "an error without a form": lambda key: answer(500, f"<html>{key}</html>"),
    "a stream": lambda key: streamed([{"content": "you sent "}, {"content": key}, {"content": " yes"}]),
    "a stream in pieces": lambda key: streamed([{"content": piece} for piece in pieces(f"see {key} yes", 3)]),
    "a stream in halves": lambda key: streamed([{"content": piece} for piece in pieces(key, len(key) // 2)]),
    "a stream that is cut": lambda key: streamed([{"content": piece} for piece in pieces(key, 5)], cut=True),
}


def _chat_body() -> dict[str, Any]:
    return {
        "object": "chat.completion", "created": 1, "model": "m-1", "id": "x",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }  # fmt: skip


def recorded(folder: Path, scripts: list[Script], *, stream: bool) -> list[str]:
    """Everything that is left of these questions: the facts, errors, and what was shown."""
    shown: list[str] = []

    async def body() -> None:
        async with scripted(*scripts) as server, Inference(policy=RetryPolicy(attempts=1)) as inference:
            there = ProviderSettings(
                id="there", kind=ProviderKind.OPENAI_COMPATIBLE, base_url=server.url, credential="key", rules=QUICK
            )
            question = OutgoingMessage(message="hello", model=ModelSettings(id="m", name="m-1", provider=there))
            context = person(server.url, KEY)
            async with weft.aio.open(folder / "ledger.db") as ledger:
                for _ in scripts:
                    tokens: list[str] = []
                    listener = (lambda token, tokens=tokens: tokens.append(token.text)) if stream else None
                    try:
                        sent = await send(ledger, inference, "main", question, context=context, on_token=listener)
                        shown.append(repr(sent))
                    except WeftError as error:
                        shown.extend(texts_of(error))
                    shown.append("".join(tokens))
                await ledger.upkeep.export_facts(folder / "facts.jsonl")
            assert {request.headers["authorization"] for request in server.received} == {f"Bearer {KEY}"}

    asyncio.run(body())
    return [*shown, (folder / "facts.jsonl").read_text()]


@pytest.mark.parametrize("place", ANSWERS)
def test_a_key_that_a_server_sends_back_is_not_recorded(place: str, tmp_path: Path) -> None:
    writings = share([(answer, writing) for answer in ANSWERS for writing in WRITINGS], test=22)
    reflected = [WRITINGS[writing](KEY) for answer, writing in writings if answer == place]
    texts = recorded(tmp_path, [ANSWERS[place](text) for text in reflected], stream="stream" in place)
    assert len(texts[-1]) > 1000
    for text in reflected:
        whole = text.lower().rstrip("=")[4:-4]  # without what base64 has of letters beside the key
        traces = {whole[start : start + TRACE] for start in range(len(whole) - TRACE + 1)}
        assert [(trace, shown) for shown in texts for trace in traces if trace in shown.lower()] == []


@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, 9))
@settings(max_examples=100)
def test_no_way_of_cutting_a_stream_lets_a_key_through(before: str, after: str, length: int) -> None:
    stream = StreamedText(KeyTraces([Secret(KEY)]))
    shown = "".join([*(stream.add(piece) for piece in pieces(before + KEY + after, length)), stream.end()])
    assert [KEY[i : i + 6] for i in range(len(KEY) - 5) if KEY[i : i + 6].lower() in shown.lower()] == []


@given(st.text(max_size=200), st.integers(1, 20))
@settings(max_examples=100)
def test_what_is_no_key_comes_through_as_it_was(text: str, length: int) -> None:
    traces = KeyTraces([Secret(KEY), Secret("none")])
    stream = StreamedText(traces)
    assert traces.hidden_in(text) == text
    assert "".join([*map(stream.add, pieces(text, length)), stream.end()]) == text
