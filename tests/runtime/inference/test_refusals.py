"""Every error of a provider, in each of the four wire forms, streamed and not: who must act, what is told, and what is
tried again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from tests.runtime.inference.asking import ask, model, provider
from tests.runtime.inference.strict_providers import stream_of
from tests.runtime.inference.test_recorded_exchanges import KINDS, PLAIN
from tests.runtime.scripted import CLOSE, STREAM_HEAD, Script, answer, events
from tests.sizes import share
from weft.kernel.errors import (
    ContextTooLong,
    CredentialRefused,
    ModelUnknown,
    OutsideError,
    ProviderFailed,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
)
from weft.runtime.inference.model_requests import Dialect, ModelSettings

FORMS = tuple(product(Dialect, (False, True)))


def at(dialect: Dialect) -> Callable[[str], ModelSettings]:
    kind, api = KINDS[dialect]
    return lambda url: model(url, name="m-1", provider=provider(url, kind, api=api))


def refusal(dialect: Dialect, status: int, message: str, **headers: str) -> Script:
    """As each provider writes it."""
    if dialect is Dialect.ANTHROPIC:
        body = {"type": "error", "error": {"type": "an_error", "message": message}}
    elif dialect is Dialect.GOOGLE:
        body = {"error": {"code": status, "message": message, "status": "AN_ERROR"}}
    else:
        body = {"error": {"message": message, "type": "an_error", "param": None, "code": None}}
    return answer(status, body, **headers)


def well(dialect: Dialect, *, is_streamed: bool) -> Script:
    whole = PLAIN[dialect]
    return [STREAM_HEAD, *events(*stream_of(dialect, whole)), CLOSE] if is_streamed else answer(200, whole)


STATUSES = [
    (400, RequestRefused, "messages: roles must alternate", False),
    (400, ContextTooLong, "prompt is too long: 210000 tokens > 200000 maximum", False),
    (401, CredentialRefused, "invalid x-api-key", False),
    (403, CredentialRefused, "no permission", False),
    (404, ModelUnknown, "model: m-1", False),
    (408, ProviderFailed, "timed out", True),
    (409, ProviderFailed, "conflict", True),
    (413, RequestRefused, "the body has too many bytes", False),
    (429, RateLimited, "slow down", True),
    (500, ProviderFailed, "oops", True),
    (503, ProviderFailed, "not now", True),
    (529, ProviderFailed, "Overloaded", True),
]


@pytest.mark.parametrize(("refused", "form"), share(list(product(STATUSES, FORMS)), test=32))
def test_a_status_says_who_must_act_in_the_words_of_the_provider(
    refused: tuple[int, type[OutsideError], str, bool], form: tuple[Dialect, bool]
) -> None:
    (status, kind, words, is_tried_again), (dialect, streamed) = refused, form
    scripts = (refusal(dialect, status, words), well(dialect, is_streamed=streamed))
    once = ask(*scripts, make=at(dialect), stream=streamed)
    assert type(once.error) is kind
    assert isinstance(once.error, OutsideError)
    assert once.error.status == status
    assert words in str(once.error)
    assert once.error.hint
    assert ("'key'" in str(once.error)) == (kind is CredentialRefused)
    again = ask(*scripts, make=at(dialect), stream=streamed, attempts=2)
    assert (again.reply is not None) == is_tried_again
    asked_of_model = [received for received in again.server.received if received.body is not None]
    assert len(asked_of_model) == 1 + is_tried_again


@pytest.mark.parametrize(("dialect", "streamed"), FORMS)
@pytest.mark.parametrize("status", [429, 529])
def test_a_provider_is_left_alone_as_long_as_it_wants_and_that_is_shown(
    dialect: Dialect, streamed: bool, status: int
) -> None:
    busy = refusal(dialect, status, "later", retry_after="7")
    asked = ask(busy, well(dialect, is_streamed=streamed), make=at(dialect), stream=streamed, attempts=2)
    assert asked.reply is not None
    assert asked.waits == [7.0]
    tomorrow = refusal(dialect, status, "later", retry_after="86400")
    stands = ask(tomorrow, make=at(dialect), stream=streamed, attempts=4)
    assert (len(stands.server.received), stands.waits) == (1, [])
    assert "left alone for 86400 s" in str(stands.error)


OVERLOADED = {
    Dialect.ANTHROPIC: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    Dialect.OPENAI_CHAT: {"error": {"message": "Overloaded", "type": "server_error", "code": "server_is_overloaded"}},
    Dialect.OPENAI_RESPONSES: {"type": "error", "code": "server_is_overloaded", "message": "Overloaded"},
}


@pytest.mark.parametrize("dialect", OVERLOADED)
def test_a_provider_that_is_overloaded_in_the_middle_of_a_stream_is_asked_again(dialect: Dialect) -> None:
    begun = events(*stream_of(dialect, PLAIN[dialect]))[:2]
    broken: list[bytes | str] = [STREAM_HEAD, *begun, *events(OVERLOADED[dialect]), CLOSE]
    once = ask(broken, make=at(dialect), stream=True)
    assert isinstance(once.error, ProviderFailed)
    assert "Overloaded" in str(once.error)
    again = ask(broken, well(dialect, is_streamed=True), make=at(dialect), stream=True, attempts=2)
    assert again.reply is not None
    assert again.reply.text == "Hello there"
    assert "".join(token.text for token in again.tokens if token.attempt == 2) == "Hello there"


@pytest.mark.parametrize("dialect", [Dialect.ANTHROPIC, Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES])
def test_a_stream_that_is_cut_is_no_answer_wherever_it_is_cut_before_its_end(dialect: Dialect) -> None:
    """With the usage at its beginning (Anthropic) or without any."""
    whole = events(*stream_of(dialect, PLAIN[dialect]))
    last = {Dialect.ANTHROPIC: 2, Dialect.OPENAI_CHAT: 3, Dialect.OPENAI_RESPONSES: 1}[dialect]
    for length in range(1, len(whole) - last + 1):
        asked = ask([STREAM_HEAD, *whole[:length], CLOSE], make=at(dialect), stream=True)
        assert isinstance(asked.error, ReplyCut | ReplyMalformed), (length, asked.reply)
        assert asked.error.partial == asked.text
