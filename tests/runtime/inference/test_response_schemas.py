"""Answers that are to be JSON of a schema: sent in the mode that each protocol has for it, and held to here."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft.aio
from tests.runtime.inference.asking import HI, Asked, ask, person, provider
from tests.runtime.inference.recordings import RECORDINGS
from tests.runtime.inference.strict_providers import RULES, StrictServer
from tests.runtime.scripted import CHAT, GOOGLE, MESSAGE, RESPONSES, answer, scripted
from weft.kernel.errors import InvalidConfig, InvalidInput, ReplyUnfit
from weft.kernel.events import ModelResponse
from weft.runtime.assembly.turn_configuration import ensure_response_schema
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    RequestBudget,
    RetryPolicy,
    ToolSpec,
)

KINDS: dict[Dialect, tuple[ProviderKind, OpenAIApi | None, str]] = {
    Dialect.ANTHROPIC: (ProviderKind.ANTHROPIC, None, "claude-sonnet-4-5"),
    Dialect.OPENAI_CHAT: (ProviderKind.OPENAI, OpenAIApi.CHAT, "gpt-4o"),
    Dialect.OPENAI_RESPONSES: (ProviderKind.OPENAI, OpenAIApi.RESPONSES, "gpt-4o"),
    Dialect.GOOGLE: (ProviderKind.GOOGLE, None, "gemini-2.5-flash"),
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
}
LIMITED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9, "description": "Whose it is"},
        "scores": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 5}, "maxItems": 3},
        "in": {"$ref": "#/$defs/place"},
        "kind": {"enum": [{"minimum": 1}, "x"]},
        "minimum": {"type": "integer"},
    },
    "required": ["name"],
    "$defs": {"place": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
HELD = ModelParameters(response_schema=CITY, max_tokens=1000)
FITTING = '{"city": "Paris", "country": "France"}'


def saying(dialect: Dialect, text: str, *, is_cut: bool = False) -> dict[str, Any]:
    """A whole answer with this text."""
    match dialect:
        case Dialect.ANTHROPIC:
            end = {"stop_reason": "max_tokens" if is_cut else "end_turn"}
            return {**MESSAGE, "content": [{"type": "text", "text": text}], **end}
        case Dialect.OPENAI_CHAT:
            choice = {"index": 0, "finish_reason": "length" if is_cut else "stop"}
            return {**CHAT, "choices": [{**choice, "message": {"role": "assistant", "content": text}}]}
        case Dialect.OPENAI_RESPONSES:
            (item,) = RESPONSES["output"]
            said = {**item, "content": [{**item["content"][0], "text": text}]}
            reason = {"incomplete_details": {"reason": "max_output_tokens"}}
            cut: dict[str, Any] = {"status": "incomplete", **reason} if is_cut else {}
            return {**RESPONSES, "output": [said], **cut}
        case Dialect.GOOGLE:
            candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
            return {**GOOGLE, "candidates": [{**candidate, "finishReason": "MAX_TOKENS" if is_cut else "STOP"}]}


def model_at(url: str, dialect: Dialect, name: str = "", **more: Any) -> ModelSettings:
    kind, api, usual = KINDS[dialect]
    return ModelSettings(id="m", name=name or usual, provider=provider(url, kind, api=api), **more)


def asked_for(dialect: Dialect, schema: Any, whole: Any, name: str = "", **more: Any) -> Asked:
    parameters = ModelParameters(response_schema=schema, max_tokens=1000)
    return ask(answer(200, whole), make=lambda url: model_at(url, dialect, name), parameters=parameters, **more)


def format_in(dialect: Dialect, body: Any) -> Any:
    match dialect:
        case Dialect.ANTHROPIC:
            return body["output_config"]["format"]
        case Dialect.OPENAI_CHAT:
            return body["response_format"]
        case Dialect.OPENAI_RESPONSES:
            return body["text"]["format"]
        case Dialect.GOOGLE:
            return {name: value for name, value in body["generationConfig"].items() if name != "maxOutputTokens"}


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_sent_in_the_mode_of_the_protocol(dialect: Dialect, stream: bool) -> None:
    closed = {**CITY, "additionalProperties": False}
    sent = {
        Dialect.ANTHROPIC: {"type": "json_schema", "schema": closed},
        Dialect.OPENAI_CHAT: {
            "type": "json_schema", "json_schema": {"name": "answer", "schema": closed, "strict": True},
        },
        Dialect.OPENAI_RESPONSES: {"type": "json_schema", "name": "answer", "schema": closed, "strict": True},
        Dialect.GOOGLE: {
            "responseMimeType": "application/json", "responseJsonSchema": CITY, "responseModalities": ["TEXT"],
        },
    }  # fmt: skip
    server = StrictServer(dialect, [(200, saying(dialect, FITTING))])
    script = server.script({**ACCEPTED[dialect]}, is_streamed=stream)
    asked = ask(
        script,
        make=lambda url: model_at(url, dialect),
        parameters=HELD,
        stream=stream,
    )
    assert asked.error is None
    assert asked.reply is not None
    assert json.loads(asked.reply.text) == json.loads(FITTING)
    (received,) = asked.server.received
    assert list(RULES[dialect](received.body, ())) == []
    assert format_in(dialect, received.body) == sent[dialect]


ACCEPTED: dict[Dialect, dict[str, Any]] = {
    Dialect.ANTHROPIC: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    Dialect.OPENAI_CHAT: {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    Dialect.OPENAI_RESPONSES: {"model": "m", "store": False, "input": [{"role": "user", "content": "Hi"}]},
    Dialect.GOOGLE: {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}


@pytest.mark.parametrize("dialect", Dialect)
def test_what_a_mode_does_not_take_of_a_schema_is_not_sent_and_held_to_all_the_same(dialect: Dialect) -> None:
    asked = asked_for(dialect, LIMITED, saying(dialect, '{"name": "x", "minimum": 1}'))
    assert asked.error is None
    (received,) = asked.server.received
    assert list(RULES[dialect](received.body, ())) == []
    wrong = asked_for(dialect, LIMITED, saying(dialect, '{"name": "far too long a name"}'))
    assert isinstance(wrong.error, ReplyUnfit)
    if dialect is Dialect.ANTHROPIC:
        properties = format_in(dialect, received.body)["schema"]["properties"]
        assert properties["name"]["description"] == "Whose it is\n\n{minLength: 1, maxLength: 9}"
        assert properties["kind"] == LIMITED["properties"]["kind"]
        assert properties["minimum"] == {"type": "integer"}


RECORDED = {
    "anthropic/test_anthropic_native_output_decimal_strict": {
        "type": "object",
        "properties": {
            "amount": {
                "anyOf": [
                    {"type": "number"},
                    {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
                ]
            }
        },
        "required": ["amount"],
    },
    "openai-responses/test_native_output": CITY,
    "google/test_google_native_output": {**CITY, "description": "A city and its country."},
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request_has_the_same_form_and_its_answer_fits(name: str) -> None:
    dialect = {"anthropic": Dialect.ANTHROPIC, "google": Dialect.GOOGLE}.get(
        name.partition("/")[0], Dialect.OPENAI_RESPONSES
    )
    exchange = yaml.load((RECORDINGS / f"{name}.yaml").read_bytes(), yaml.CSafeLoader)["interactions"][-1]
    theirs, whole = exchange["request"]["parsed_body"], exchange["response"]["parsed_body"]
    asked = asked_for(dialect, RECORDED[name], whole)
    assert asked.error is None
    (received,) = asked.server.received
    assert unnamed(format_in(dialect, received.body)) == unnamed(format_in(dialect, theirs))


def unnamed(answer_format: Any) -> Any:
    """Without what the schema is called, which is each client's own choice."""
    text = json.dumps({name: value for name, value in answer_format.items() if name != "name"}, sort_keys=True)
    return json.loads(text.replace('"title": "CityLocation", ', ""))


WRONG = [
    ("Paris, in France", "the answer is not the JSON that its schema asks for"),
    ('```json\n{"city": "Paris", "country": "France"}\n```', "is not the JSON"),
    ('{"city": "Paris"}', 'the answer does not fit its schema: $: "country" is a required property'),
    ("[]", "the answer does not fit its schema"),
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(("text", "why"), WRONG)
def test_a_wrong_answer_is_an_error_that_holds_it_and_is_paid_for(dialect: Dialect, text: str, why: str) -> None:
    budget = RequestBudget(money=10_000_000)
    asked = asked_for(dialect, CITY, saying(dialect, text), budget=budget)
    assert isinstance(asked.error, ReplyUnfit)
    assert str(asked.error).startswith("there: ")
    assert why in str(asked.error)
    assert asked.error.reply.text == text
    assert asked.error.reply.usage is not None
    assert [attempt.error for attempt in asked.error.reply.attempts] == ["reply_unfit"]
    assert len(asked.server.received) == 1
    assert budget.spent > 0 or budget.unknown == 1


@pytest.mark.parametrize("dialect", Dialect)
def test_an_answer_that_broke_off_does_not_fit(dialect: Dialect) -> None:
    asked = asked_for(dialect, CITY, saying(dialect, '{"city": "Pa', is_cut=True))
    assert isinstance(asked.error, ReplyUnfit)
    assert "broke off" in str(asked.error)


def test_calls_and_refusals_are_not_held_to_the_schema() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    tools = (ToolSpec(name="look"),)
    called = asked_for(Dialect.ANTHROPIC, CITY, {**MESSAGE, "content": [use], "stop_reason": "tool_use"}, tools=tools)
    assert called.error is None
    refused = asked_for(Dialect.ANTHROPIC, CITY, {**MESSAGE, "stop_reason": "refusal"})
    assert refused.error is None


def test_google_takes_a_schema_beside_tools_from_gemini_3_on() -> None:
    tools, whole = (ToolSpec(name="look"),), saying(Dialect.GOOGLE, FITTING)
    old = asked_for(Dialect.GOOGLE, CITY, whole, "gemini-2.5-flash", tools=tools)
    assert isinstance(old.error, InvalidInput)
    assert "gemini-2.5-flash takes no schema of its answer beside tools" in str(old.error)
    assert old.server.received == []
    new = asked_for(Dialect.GOOGLE, CITY, whole, "gemini-3-pro-preview", tools=tools)
    assert new.error is None
    (received,) = new.server.received
    assert format_in(Dialect.GOOGLE, received.body)["responseJsonSchema"] == CITY


def test_an_effort_and_a_schema_stand_side_by_side() -> None:
    parameters = ModelParameters(response_schema=CITY, thinking="low")
    whole = saying(Dialect.ANTHROPIC, FITTING)
    asked = ask(
        answer(200, whole),
        make=lambda url: model_at(url, Dialect.ANTHROPIC, "claude-opus-4-6"),
        parameters=parameters,
    )
    (received,) = asked.server.received
    assert set(received.body["output_config"]) == {"effort", "format"}


@pytest.mark.parametrize("name", ["claude-3-5-haiku-latest", "claude-sonnet-4-20250514", "claude-opus-4"])
def test_a_model_that_takes_no_schema_is_refused_one(name: str) -> None:
    configured = model_at("http://x", Dialect.ANTHROPIC, name, parameters=HELD)
    with pytest.raises(InvalidConfig, match=r"config.responseSchema of 'm': .* takes no schema of its answer"):
        ensure_response_schema(configured)
    asked = asked_for(Dialect.ANTHROPIC, CITY, MESSAGE, name)
    assert isinstance(asked.error, InvalidInput)
    assert asked.server.received == []


def test_the_embedded_model_takes_no_schema() -> None:
    embedded = provider("http://x", ProviderKind.LOCAL)
    situations = {"strict": HELD}
    with pytest.raises(InvalidConfig, match=r"config.situations.strict.responseSchema of 'm'"):
        ensure_response_schema(ModelSettings(id="m", name="x", provider=embedded, situations=situations))


def test_a_layer_above_may_take_the_schema_away() -> None:
    configured = HELD
    asked = ask(
        answer(200, MESSAGE),
        make=lambda url: model_at(url, Dialect.ANTHROPIC, parameters=configured),
        parameters=ModelParameters(response_schema=None, max_tokens=1000),
    )
    assert asked.error is None
    (received,) = asked.server.received
    assert "output_config" not in received.body


def test_a_turn_with_a_wrong_answer_fails_and_keeps_it_with_its_usage(path: Path) -> None:
    async def body() -> None:
        scripts = [answer(200, saying(Dialect.ANTHROPIC, text)) for text in (FITTING, "Paris", FITTING)]
        async with (
            weft.aio.open(path) as ledger,
            scripted(*scripts) as server,
            Inference(policy=RetryPolicy(attempts=3)) as asking,
        ):
            held = model_at(server.url, Dialect.ANTHROPIC, parameters=HELD)
            question = OutgoingMessage(message="Which city?", model=held)
            first = await send(ledger, asking, "main", question, context=person(server.url))
            with pytest.raises(ReplyUnfit, match="is not the JSON"):
                await send(ledger, asking, "main", question, context=person(server.url))
            (failed,) = await ledger.tree.children(first.turn.id)
            assert (failed.status, failed.error_code) == ("failed", "reply_unfit")
            assert (await ledger.session("main")).head == first.turn.id
            said = [message for message in await ledger.messages(failed.id) if message.role == "assistant"]
            assert [str(part.text) for message in said for part in message.content] == ["Paris"]  # type: ignore[union-attr]
            answers = [one.event for one in await ledger.events(failed.id) if isinstance(one.event, ModelResponse)]
            assert answers[0].usage.output_tokens == 5  # type: ignore[union-attr]
            sent = await send(ledger, asking, "main", question, context=person(server.url))
            assert json.loads(sent.reply.text)["city"] == "Paris"
            assert len(server.received) == 3
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(body())


def test_what_counts_a_request_is_given_its_schema() -> None:
    async def put() -> Any:
        async with scripted(answer(200, {"totalTokens": 5})) as server, Inference() as inference:
            request = InferenceRequest(
                model=model_at(server.url, Dialect.GOOGLE),
                messages=HI,
                parameters=HELD,
            )
            await inference.count(request, context=person(server.url))
            return server.received[0].body

    inner = asyncio.run(put())["generateContentRequest"]
    assert inner["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": CITY}
