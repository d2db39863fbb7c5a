"""Texts as vectors, by a server that speaks OpenAI's protocol: what it answers, and everything that can go wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.runtime.inference.asking import CANARY, model, person, provider, texts_of
from tests.runtime.scripted import CLOSE, HANG, Script, Scripted, answer, failure
from tests.surfaces.serving import serving
from weft.kernel.authority import rights
from weft.kernel.errors import (
    ConnectionForbidden,
    CredentialRefused,
    CredentialWithheld,
    NotAllowed,
    ProviderFailed,
    ProviderUnreachable,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    Unsupported,
    WeftError,
)
from weft.runtime.inference.dialects.server_answers import retry_after
from weft.runtime.inference.model_requests import ProviderKind, RetryPolicy
from weft.runtime.inference.plain_requests import FarEmbedder


def vectors(*rows: Sequence[float], order: Sequence[int] | None = None, **headers: str) -> Script:
    places = order or range(len(rows))
    data = [{"object": "embedding", "index": i, "embedding": list(rows[i])} for i in places]
    return answer(200, {"object": "list", "data": data, "model": "m-1"}, **headers)


@contextmanager
def embedder(*scripts: Script, attempts: int = 1, **more: Any) -> Iterator[tuple[FarEmbedder, Scripted, list[float]]]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with serving(*scripts) as server:
        context = more.pop("context", None) or person(server.url)
        policy = RetryPolicy(attempts=attempts)
        made = FarEmbedder(
            model(server.url, **more), context, policy=policy, sleep=sleep, random_bytes=lambda n: b"\xff" * n
        )
        with made:
            yield made, server, waits


def refused(*scripts: Script, texts: Sequence[str] = ("a", "b"), **more: Any) -> WeftError:
    with embedder(*scripts, **more) as (made, _, _), pytest.raises(WeftError) as caught:
        made.embed(texts)
    assert not any(CANARY in text for text in texts_of(caught.value))
    return caught.value


def test_every_text_gets_its_own_vector_of_length_one_in_one_request() -> None:
    with embedder(vectors([3, 4], [0, 2], order=[1, 0])) as (made, server, _):
        assert (made.name, made.dimensions) == ("there/m-1", 0)
        rows = made.embed(["a", "b"])
        assert np.allclose(rows, np.array([[0.6, 0.8], [0.0, 1.0]]))
        assert rows.dtype == np.float32
        assert made.dimensions == 2
    (received,) = server.received
    assert received.path == "/embeddings"
    assert received.headers["authorization"] == f"Bearer {CANARY}"
    assert received.body == {"model": "m-1", "input": ["a", "b"], "encoding_format": "float"}


def test_an_answer_without_numbers_of_its_rows_is_in_order() -> None:
    with embedder(answer(200, {"data": [{"embedding": [1, 0]}, {"embedding": [0, 1]}]})) as (made, *_):
        assert made.embed(["a", "b"]).tolist() == [[1, 0], [0, 1]]


def test_a_server_that_is_busy_is_asked_again_when_it_says() -> None:
    scripts = [failure(429, retry_after="7"), failure(500), vectors([1, 0], [0, 1])]
    with embedder(*scripts, attempts=4) as (made, server, waits):
        assert made.embed(["a", "b"]).shape == (2, 2)
        assert len(server.received) == 3
        assert waits == pytest.approx([7, 1])


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 15 Nov 2026 10:00:30 GMT", "date": "Sun, 15 Nov 2026 10:00:00 GMT"}, 30),
        ({"retry-after": "Sun, 15 Nov 2026 10:00:30 GMT"}, None),
    ],
)
def test_how_long_a_server_wants_to_be_left_alone(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_failure_that_stands_is_told_after_so_many_tries() -> None:
    with embedder(failure(503), attempts=3) as (made, server, waits), pytest.raises(ProviderFailed) as caught:
        made.embed(["a"])
    assert (caught.value.status, caught.value.acts) == (503, "the provider")
    assert (len(server.received), len(waits)) == (3, 2)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (failure(429), RateLimited),
        (failure(500), ProviderFailed),
        (failure(400, "too long"), RequestRefused),
        (answer(302, {}, location="https://elsewhere.example"), RequestRefused),
        ([CLOSE], ProviderUnreachable),
        ([HANG], ProviderUnreachable),
        (answer(200, b"{not json"), ReplyMalformed),
        (answer(200, b"\xff\xfe"), ReplyMalformed),
        (answer(200, [1]), ReplyMalformed),
        (answer(200, {"data": "none"}), ReplyMalformed),
        (answer(200, {"data": [{"index": 0, "embedding": "AAAAAA=="}] * 2}), ReplyMalformed),
        (answer(200, {"data": []}), ReplyMalformed),
        (vectors([1, 0]), ReplyMalformed),
        (vectors([1, 0], [0, 1], [1, 1]), ReplyMalformed),
        (vectors([1, 0], [0, 1], order=[0, 0]), ReplyMalformed),
        (vectors([1, 0], [0, 1, 0]), ReplyMalformed),
        (vectors([], []), ReplyMalformed),
        (vectors([1, 0], [0, 0]), ReplyMalformed),
        (answer(200, b'{"data":[{"embedding":[1,1e999]},{"embedding":[1,1]}]}'), ReplyMalformed),
    ],
)
def test_what_goes_wrong_says_who_must_act(script: Script, kind: type[WeftError]) -> None:
    assert type(refused(script)) is kind


def test_vectors_that_change_their_size_are_refused() -> None:
    with embedder(vectors([1, 0]), vectors([1, 0, 0])) as (made, *_):
        made.embed(["a"])
        with pytest.raises(ReplyMalformed, match="3 dimensions, after 2"):
            made.embed(["b"])


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_key_that_the_server_sends_back_is_in_no_error(status: int) -> None:
    error = refused(failure(status, f"the key {CANARY} or Bearer {CANARY[:-2]}"))
    assert "…" in str(error)
    assert isinstance(error, CredentialRefused) == (status == 401)


def test_who_may_not_use_the_model_sends_nothing() -> None:
    with serving(vectors([1, 0])) as server:
        fewer = person(server.url).child(rights=rights(["model:other"]))
        with FarEmbedder(model(server.url), fewer) as made, pytest.raises(NotAllowed):
            made.embed(["a"])
        other = person("https://api.openai.com")
        with FarEmbedder(model(server.url), other) as made, pytest.raises(CredentialWithheld):
            made.embed(["a"])
        assert server.received == []


def test_plain_http_to_a_public_name_is_refused() -> None:
    url = "http://embeddings.example"
    with FarEmbedder(model(url), person(url)) as made, pytest.raises(ConnectionForbidden):
        made.embed(["a"])


def test_a_provider_without_this_protocol_is_refused_before_anything_is_asked() -> None:
    for kind in (ProviderKind.ANTHROPIC, ProviderKind.GOOGLE, ProviderKind.LOCAL):
        there = provider("https://x.example", kind)
        with pytest.raises(Unsupported, match=r"protocol|no vectors"):
            FarEmbedder(model("", provider=there), person("https://x.example"))


def test_behind_a_gateway_its_own_machines_embed() -> None:
    with serving(vectors([1, 0])) as server:
        there = provider(server.url, ProviderKind.CLOUDFLARE, account_id="acc", gateway_id="gate")
        name = "@cf/baai/bge-base-en-v1.5"
        with FarEmbedder(model(server.url, provider=there, name=name), person(server.url)) as made:
            made.embed(["a"])
        assert server.received[0].path == "/v1/acc/gate/workers-ai/v1/embeddings"
        assert json.dumps(server.received[0].body["model"]) == f'"{name}"'
