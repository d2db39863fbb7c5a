"""Everything that a provider can do wrong: what is raised says who must act, and no reply is ever made up."""

from __future__ import annotations

import asyncio
import logging

import pytest
import zstandard
from msgspec.structs import replace

from tests.runtime.inference.asking import CANARY, HI, ask, model, person, provider, texts_of
from tests.runtime.scripted import (
    CHAT_STREAM,
    CLOSE,
    HANG,
    STREAM_HEAD,
    answer,
    chat,
    events,
    failure,
    message_stream,
    scripted,
)
from weft.kernel.authority import rights
from weft.kernel.errors import (
    BudgetSpent,
    ContextTooLong,
    CredentialRefused,
    InferenceFault,
    ModelUnknown,
    NotAllowed,
    OutsideError,
    ProviderFailed,
    ProviderUnreachable,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
)
from weft.ledger.reports.prices import PriceTable, TokenPrice
from weft.runtime.inference.dialects import model_clients
from weft.runtime.inference.dialects.server_answers import failure_of
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import MILLION, InferenceRequest, ModelSettings, ProviderKind, RequestBudget
from weft.runtime.replies import ReplyToken


@pytest.mark.parametrize(
    ("status", "kind", "acts"),
    [
        (400, RequestRefused, "you"),
        (401, CredentialRefused, "you"),
        (403, CredentialRefused, "you"),
        (404, ModelUnknown, "you"),
        (413, RequestRefused, "you"),
        (422, RequestRefused, "you"),
        (429, RateLimited, "the provider"),
        (500, ProviderFailed, "the provider"),
        (503, ProviderFailed, "the provider"),
        (529, ProviderFailed, "the provider"),
    ],
)
def test_a_status_says_who_must_act(status: int, kind: type[OutsideError], acts: str) -> None:
    for stream in (False, True):
        error = ask(failure(status, "because"), stream=stream).error
        assert type(error) is kind
        assert isinstance(error, OutsideError)
        assert (error.acts, error.status) == (acts, status)
        assert "because" in str(error)
        assert error.hint


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><html></html>", b"\xef\xbb\xbf\n<html>", b"\r\n <?xml version='1.0'?>"]
)
@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json", "text/event-stream"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_web_page_is_told_at_once_with_the_url_to_be_checked(page: bytes, kind: str, stream: bool) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(page)}\r\n\r\n".encode()
    asked = ask([head, page[:1], page[1:]], stream=stream)
    assert isinstance(asked.error, ReplyMalformed), asked.error
    assert "answered with a web page" in str(asked.error)
    assert "base URL" in asked.error.hint
    assert asked.error.lasting


def test_events_are_read_whatever_type_a_server_says_they_have() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
    assert ask([head, *CHAT_STREAM[1:]], stream=True).error is None


def test_a_context_that_is_too_long_is_told_as_that() -> None:
    body = {"error": {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}}
    assert isinstance(ask(answer(400, body)).error, ContextTooLong)


@pytest.mark.parametrize(
    ("status", "message", "is_too_long"),
    [
        (400, "the request exceeds the available context size, try increasing it", True),
        (400, "Input is too long for requested model.", True),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", True),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", True),
        (422, "This model's maximum context length is 8192 tokens", True),
        (413, "Request too large", True),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", True),
        (400, "the name of the tool is too long", False),
        (400, "context: unknown field", False),
    ],
)
def test_a_context_that_is_too_long_is_recognised_by_the_words_of_servers(
    status: int, message: str, is_too_long: bool
) -> None:
    error = ask(failure(status, message)).error
    assert isinstance(error, RequestRefused)
    assert isinstance(error, ContextTooLong) == is_too_long


def test_retry_after_is_waited_for_exactly() -> None:
    asked = ask(failure(429, retry_after="7"), chat(), attempts=2)
    assert asked.reply is not None
    assert asked.waits == [7.0]
    assert [(attempt.error, attempt.waited_ms) for attempt in asked.reply.attempts] == [("rate_limited", 7000), ("", 0)]


def test_without_retry_after_each_wait_is_longer() -> None:
    asked = ask(failure(429), failure(500), failure(503), chat(), attempts=4)
    assert asked.reply is not None
    assert asked.waits == pytest.approx([0.5, 1.0, 2.0])


def test_a_provider_that_wants_to_be_left_alone_for_hours_is_not_waited_for() -> None:
    asked = ask(failure(429, retry_after="7200"), attempts=4)
    assert isinstance(asked.error, RateLimited)
    assert asked.error.retry_after == 7200
    assert asked.waits == []


def test_tries_end_and_the_last_failure_stands() -> None:
    asked = ask(failure(500, "down"), attempts=3)
    assert isinstance(asked.error, ProviderFailed)
    assert len(asked.server.received) == 3


def test_what_only_you_can_mend_is_not_tried_again() -> None:
    asked = ask(failure(401), attempts=3)
    assert len(asked.server.received) == 1
    assert asked.waits == []


@pytest.mark.parametrize(
    ("status", "tries"), [(400, 1), (401, 1), (403, 1), (404, 1), (422, 1), (501, 1), (429, 3), (500, 3), (503, 3)]
)
def test_only_what_may_pass_is_tried_again(status: int, tries: int) -> None:
    received = ask(failure(status), attempts=3).server.received
    assert sum(one.body is not None for one in received) == tries


@pytest.mark.parametrize(
    ("url", "told"), [("http://127.0.0.1:1", "nothing answers"), ("https://a.invalid", "a.invalid")]
)
def test_a_server_that_is_not_there_is_asked_once(url: str, told: str) -> None:
    spare: list[ModelSettings] = []

    def there(real: str) -> ModelSettings:
        spare[:] = [model(real, id="spare")]
        return model(url, provider=provider(url, credential=None), fallbacks=tuple(spare))

    asked = ask(chat(), make=there, attempts=3)
    assert asked.waits == []
    assert asked.reply is not None  # the next model is asked at once
    assert [(tried.model, tried.error) for tried in asked.reply.attempts] == [
        ("m", "provider_unreachable"),
        ("spare", ""),
    ]
    alone = ask(chat(), make=lambda _: model(url, provider=provider(url, credential=None)), attempts=3)
    assert isinstance(alone.error, ProviderUnreachable)
    assert told in str(alone.error)
    assert alone.waits == []


def test_a_server_that_hangs_before_its_headers_is_given_up() -> None:
    assert isinstance(ask([HANG]).error, ProviderUnreachable)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_hangs_after_its_headers_is_given_up(stream: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    error = ask([STREAM_HEAD if stream else head, HANG], stream=stream).error
    assert isinstance(error, ProviderUnreachable)


def test_a_server_that_is_not_there_is_told() -> None:
    error = ask(chat(), make=lambda url: model("http://127.0.0.1:1")).error
    assert isinstance(error, OutsideError)
    nobody = ask(chat(), make=lambda url: model(url, provider=provider("http://127.0.0.1:1", credential=None))).error
    assert isinstance(nobody, ProviderUnreachable)
    assert "All connection attempts failed" in str(nobody)


@pytest.mark.parametrize("cut", range(1, len(CHAT_STREAM) - 1))
def test_a_chat_stream_that_is_cut_is_a_reply_only_once_it_has_ended(cut: int) -> None:
    asked = ask([*CHAT_STREAM[:cut], CLOSE], stream=True)
    has_ended = cut > 5  # the piece that says why it finished
    if has_ended:
        assert asked.reply is not None
        assert asked.reply.text == "Hello there"
        assert (asked.reply.usage is None) == (cut < 7)
    else:
        assert isinstance(asked.error, ReplyCut | ReplyMalformed)
        assert asked.error.partial == asked.text == "Hello there"[: len(asked.text)]


@pytest.mark.parametrize("cut", range(1, len(message_stream()) - 1))
def test_a_message_stream_that_is_cut_is_a_reply_only_once_it_has_ended(cut: int) -> None:
    asked = ask(
        [*message_stream()[:cut], CLOSE],
        make=lambda url: model(url, name="claude-x", provider=provider(url, ProviderKind.ANTHROPIC)),
        stream=True,
    )
    if cut > 10:
        assert asked.reply is not None
        assert asked.reply.text == "Hello there"
    else:
        assert isinstance(asked.error, ReplyCut | ReplyMalformed), asked


def test_a_stream_cut_inside_a_piece_is_no_reply() -> None:
    whole = b"".join(piece for piece in CHAT_STREAM[:5] if isinstance(piece, bytes))
    head = STREAM_HEAD.replace(b"connection: close", b"content-length: 5000")
    for end in (len(whole) - 3, len(whole) - 40):
        asked = ask([head + whole[len(STREAM_HEAD) : end], CLOSE], stream=True)
        assert isinstance(asked.error, ReplyCut)
        assert asked.text


def test_after_a_cut_the_next_try_says_that_it_begins_anew() -> None:
    asked = ask([*CHAT_STREAM[:4], CLOSE], CHAT_STREAM, stream=True, attempts=2)
    assert asked.reply is not None
    assert "".join(token.text for token in asked.tokens if token.attempt == 2) == asked.reply.text
    assert any(token.attempt == 1 for token in asked.tokens)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b'{"choices": []}', b"<html>", b"\xff\xfe", b'{"choices": [{"message": 7}]}', b""],
)
def test_what_is_no_reply_is_malformed(body: bytes) -> None:
    error = ask(answer(200, body)).error
    assert isinstance(error, ReplyMalformed | ReplyCut), error


def test_a_stream_of_nonsense_is_malformed() -> None:
    error = ask([STREAM_HEAD, *events("{nonsense", "[DONE]"), CLOSE], stream=True).error
    assert isinstance(error, ReplyMalformed | ReplyCut), error


def test_an_empty_reply_is_no_reply() -> None:
    nothing = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}
    asked = ask(chat(choices=[nothing], usage=None))
    assert isinstance(asked.error, ReplyMalformed)


def test_a_redirect_is_not_followed() -> None:
    async def run() -> None:
        async with scripted(chat()) as thief:
            moved = answer(307, b"", location=f"{thief.url}/chat/completions")
            async with scripted(moved) as server, Inference() as inference:
                asked = InferenceRequest(model=model(server.url), messages=HI)
                with pytest.raises(RequestRefused, match="307"):
                    await inference.infer(asked, context=person(server.url))
            assert thief.received == []

    asyncio.run(run())


def test_a_slow_drip_ends_when_its_time_is_up() -> None:
    drip: list[bytes | str] = [STREAM_HEAD, *events({"choices": []}), b": still here\n\n", HANG]
    error = ask(drip, stream=True, budget=RequestBudget(seconds=0.1)).error
    assert isinstance(error, BudgetSpent)
    assert error.acts == "you"


def test_a_wait_that_would_take_too_long_is_not_begun() -> None:
    asked = ask(failure(429, retry_after="60"), attempts=4, budget=RequestBudget(seconds=5))
    assert isinstance(asked.error, RateLimited)
    assert asked.waits == []


def test_a_fallback_answers_when_the_provider_fails() -> None:
    def make(url: str) -> ModelSettings:
        return model(url, situations={}, fallbacks=(model(url, id="other", name="m-2"),))

    asked = ask(failure(500), failure(500), chat(), make=make, attempts=2)
    assert asked.reply is not None
    assert asked.reply.model_id == "other"
    assert [attempt.model for attempt in asked.reply.attempts] == ["m", "m", "other"]
    assert asked.retries == [("provider_failed", "m", True), ("provider_failed", "other", False)]
    assert asked.server.received[-1].body["model"] == "m-2"


def test_a_fallback_is_not_asked_for_what_only_you_can_mend() -> None:
    asked = ask(failure(400), chat(), make=lambda url: model(url, fallbacks=(model(url, id="other"),)))
    assert isinstance(asked.error, RequestRefused)
    assert len(asked.server.received) == 1


def test_cancelling_closes_the_connection() -> None:
    async def run() -> None:
        async with scripted([*CHAT_STREAM[:3], HANG]) as server, Inference() as inference:
            tokens: list[ReplyToken] = []
            patient = model(server.url, provider=provider(server.url, rules=provider("http://127.0.0.1").rules))
            asking = asyncio.create_task(
                inference.infer(
                    InferenceRequest(model=patient, messages=HI), on_token=tokens.append, context=person(server.url)
                )
            )
            await server.hanging.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            async with asyncio.timeout(60):
                await server.left.wait()

    asyncio.run(run())


def test_what_the_listener_raises_is_passed_on_as_it_is() -> None:
    def listener(_: ReplyToken) -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with scripted(CHAT_STREAM) as server, Inference() as inference:
            request = InferenceRequest(model=model(server.url), messages=HI)
            with pytest.raises(ZeroDivisionError):
                await inference.infer(request, on_token=listener, context=person(server.url))

    asyncio.run(run())


def test_a_model_that_one_may_not_use_is_not_asked() -> None:
    async def run() -> None:
        async with scripted(chat()) as server, Inference() as inference:
            fewer = person(server.url).child(rights=rights(["model:other"]))
            with pytest.raises(NotAllowed):
                await inference.infer(InferenceRequest(model=model(server.url), messages=HI), context=fewer)
            assert server.received == []

    asyncio.run(run())


def test_a_fault_of_our_own_is_told_as_ours() -> None:
    error = failure_of(AttributeError("x"), "there")
    assert isinstance(error, InferenceFault)
    assert error.acts == "us"


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_key_that_the_provider_sends_back_is_in_no_error_and_no_log(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = None
    for stream in (False, True):
        told = f"Incorrect API key provided: {CANARY}, or {CANARY[:14]}, or {CANARY[-9:]}"
        asked = ask(failure(status, told), stream=stream)
        assert asked.error is not None
        for text in [*texts_of(asked.error), repr(asked.error), caplog.text]:
            assert CANARY not in text
    assert asked is not None
    assert asked.server.received[0].headers["authorization"].endswith(CANARY)
    assert CANARY[:14] not in str(asked.error)
    assert CANARY[-9:] not in str(asked.error)


class LongPrompts:
    """A price that is higher for a prompt of more than a thousand tokens."""

    def find(self, names: list[str], at: int | None, prompt: int) -> TokenPrice | None:
        return TokenPrice(input=0, output=100 * MILLION if prompt > 1000 else MILLION)


def test_money_is_kept_at_the_price_of_a_prompt_as_long_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "weft.runtime.inference.model_requests.shipped_prices", lambda: PriceTable((LongPrompts(),), None)
    )
    long = (replace(HI[0], content="word " * 1000),)
    assert ask(chat(), budget=RequestBudget(money=1000)).error is None
    assert isinstance(ask(chat(), messages=long, budget=RequestBudget(money=1000)).error, BudgetSpent)


def test_money_that_others_spent_meanwhile_is_known_before_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "weft.runtime.inference.model_requests.shipped_prices", lambda: PriceTable((LongPrompts(),), None)
    )
    spent = iter((0, 1000))

    async def read_spent() -> int:
        return next(spent)

    budget = RequestBudget(money=1000, read_spent=read_spent)
    assert ask(chat(), budget=budget).error is None
    assert isinstance(ask(chat(), budget=budget).error, BudgetSpent)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_end_is_cut_off(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_clients, "MOST_ANSWER_BYTES", 100_000)
    line: list[bytes | str] = [STREAM_HEAD, b"data: " + b"x" * 100_000, HANG]
    endless = line if stream else chat(service_tier="x" * 100_000)
    error = ask(endless, stream=stream, budget=RequestBudget(seconds=30)).error
    assert isinstance(error, ReplyMalformed)
    assert "more than 100000 bytes" in str(error)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_is_not_asked_for_compressed_and_not_unpacked(status: int) -> None:
    packed = zstandard.compress(bytes(1_000_000))
    asked = ask(answer(status, packed, content_encoding="zstd"))
    assert isinstance(asked.error, ReplyMalformed)
    assert "compressed" in str(asked.error)
    assert asked.server.received[0].headers["accept-encoding"] == "identity"
