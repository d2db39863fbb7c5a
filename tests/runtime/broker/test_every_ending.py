"""The table of every ending and every error, by wire form, streamed and not: each cell is played by a strict server, or
says why its form has no such ending. What happens in a cell is looked at closely in the tests of endings, refusals,
budgets and compactions; this page shows that none is missing, and that the session's next message is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.runtime.broker.test_billed_attempts import CuttingServer
from tests.runtime.broker.test_compacting_brokers import TOO_LONG, words_of
from tests.runtime.broker.test_endings import Body, EndingBench, Use, done, run, whole_answer
from tests.runtime.inference.strict_providers import StrictServer, stream_of
from tests.runtime.scripted import CLOSE, GOOGLE, STREAM_HEAD, Script, answer, events
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
from weft.kernel.events import ModelRequest
from weft.runtime.inference.model_requests import Dialect

A, C, R, G = Dialect.ANTHROPIC, Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES, Dialect.GOOGLE


class RefusingServer(StrictServer):
    """Gives these scripts in place of its first answers."""

    def __init__(self, dialect: Dialect, *scripts: Script) -> None:
        super().__init__(dialect)
        self.scripts = list(scripts)

    def script(self, body: Body, *, is_streamed: bool) -> Script:
        if body is None:  # the list of models is asked for
            return answer(404, {})
        whole = super().script(body, is_streamed=is_streamed)
        return self.scripts.pop(0) if self.scripts else whole


class Cell(Struct, frozen=True):
    """One ending in one form."""

    bench: EndingBench
    streamed: bool
    waits: list[float]

    @property
    def dialect(self) -> Dialect:
        return self.bench.server.dialect

    def whole(self, **of_answer: Any) -> Body:
        return whole_answer(self.dialect, **of_answer)

    async def send(self, *answers: Body, **more: Any) -> str:
        return await self.bench.send(*answers, streamed=self.streamed, **more)

    async def ends(self, *answers: Body, finishes: list[str]) -> str:
        """One message takes these answers, which end so."""
        turn = await self.send(*answers)
        assert await self.bench.finishes(turn) == finishes
        return turn

    async def refuses(self, kind: type[OutsideError], words: str, *scripts: Script) -> OutsideError:
        """One message fails with this, in the words of the provider."""
        self.bench.server = RefusingServer(self.dialect, *scripts)
        with pytest.raises(kind) as raised:
            await self.send(*[done(self.dialect)] * len(scripts))
        assert type(raised.value) is kind
        assert words in str(raised.value)
        assert raised.value.hint
        self.bench.server = StrictServer(self.dialect)
        return raised.value

    async def passes(self, *scripts: Script) -> None:
        """One message is answered although its first requests were refused so."""
        self.bench.server = RefusingServer(self.dialect, *scripts)
        turn = await self.send(*[done(self.dialect)] * (len(scripts) + 1))
        events = [one.event for one in await self.bench.ledger.events(turn)]
        attempts = [event.attempt for event in events if isinstance(event, ModelRequest)]
        assert attempts == list(range(1, len(scripts) + 2))
        self.bench.server = StrictServer(self.dialect)


Play = Callable[[Cell], Awaitable[None]]


# --- How answers end.


async def max_tokens_inside_text(cell: Cell) -> None:
    await cell.ends(cell.whole(text="It is a", end="length"), finishes=["length"])


async def max_tokens_inside_arguments(cell: Cell) -> None:
    use = Use("call_1", "add", {} if cell.dialect in (A, G) else '{"a": 1, "b')
    asked = cell.whole(uses=(use,), end="length")
    turn = await cell.ends(asked, done(cell.dialect), finishes=["length", "stop"])
    ((words, has_failed),) = await cell.bench.results(turn)
    assert has_failed
    assert "broke off" in str(words)


async def max_tokens_inside_thinking(cell: Cell) -> None:
    await cell.ends(cell.whole(thought="Let me see", end="length"), finishes=["length"])


async def refusal(cell: Cell) -> None:
    if cell.dialect is A:
        refused = cell.whole(text="I cannot", end="refused")
    elif cell.dialect is C:
        refused = cell.whole(end="done")
        refused["choices"][0]["message"]["refusal"] = "I cannot"
    else:
        refused = cell.whole(text="I cannot", end="done")
        refused["output"][0]["content"] = [{"type": "refusal", "refusal": "I cannot"}]
    await cell.ends(refused, finishes=["content_filter"])


async def content_filter(cell: Cell) -> None:
    await cell.ends(cell.whole(text="It is", end="refused"), finishes=["content_filter"])


async def filter_of_the_prompt(cell: Cell) -> None:
    usage = {"promptTokenCount": 20, "totalTokenCount": 20}
    feedback = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage}
    await cell.ends({**feedback, "modelVersion": GOOGLE["modelVersion"]}, finishes=["content_filter"])


async def pause_turn(cell: Cell) -> None:
    paused = cell.whole(text="Let me see", end="paused")
    turn = await cell.ends(paused, done(cell.dialect), finishes=["pause", "stop"])
    assert await cell.bench.requests(turn) == 2


async def empty_answer(cell: Cell) -> None:
    await cell.ends(cell.whole(end="done"), finishes=["stop"])


async def call_of_a_tool_that_was_not_offered(cell: Cell) -> None:
    asked = cell.whole(uses=(Use("call_1", "fly", {}),), end="calls")
    turn = await cell.send(asked, done(cell.dialect))
    ((words, has_failed),) = await cell.bench.results(turn)
    assert has_failed
    assert "offered" in str(words)


async def malformed_arguments(cell: Cell) -> None:
    if cell.dialect is G:  # its form holds objects alone, and has an ending of its own for calls that are none
        candidate = {"content": {"role": "model", "parts": []}, "finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}
        malformed = {**GOOGLE, "candidates": [candidate]}
        streamed: list[bytes | str] = [STREAM_HEAD, *events(malformed), CLOSE]
        script = streamed if cell.streamed else answer(200, malformed)
        await cell.passes(script)
        await cell.refuses(ReplyMalformed, "ended with MALFORMED_FUNCTION_CALL", script, script)
        return
    asked = cell.whole(uses=(Use("call_1", "add", '{"a": 1,'),), end="calls")
    mended = cell.whole(uses=(Use("call_2", "add", {"a": 1}),), end="calls")
    turn = await cell.send(asked, mended, done(cell.dialect))
    assert [has_failed for _, has_failed in await cell.bench.results(turn)] == [True, False]


async def parallel_calls_with_one_failing(cell: Cell) -> None:
    uses = (Use("call_1", "add", {"a": 1}), Use("call_2", "fail", {"why": "no"}), Use("call_3", "add", {"a": 2}))
    turn = await cell.send(cell.whole(uses=uses, end="calls"), done(cell.dialect))
    assert [has_failed for _, has_failed in await cell.bench.results(turn)] == [False, True, False]


async def context_too_long(cell: Cell) -> None:
    """That it is compacted then, once, is tried beside the compaction of sessions."""
    long = TOO_LONG[cell.dialect]
    await cell.refuses(ContextTooLong, words_of(long).rstrip("."), answer(400, long))


# --- Errors.

ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 409: "api_error", 413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip
GOOGLE_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 529: "UNAVAILABLE",
}  # fmt: skip
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def refused(dialect: Dialect, status: int, words: str, **headers: str) -> Script:
    """As each provider writes it."""
    body: Body = {"error": {"message": words, "type": "an_error", "code": OPENAI_CODES.get(status)}}
    if dialect is A:
        body = {"type": "error", "error": {"type": ANTHROPIC_TYPES[status], "message": words}}
    elif dialect is G:
        body = {"error": {"code": status, "message": words, "status": GOOGLE_STATUSES[status]}}
    return answer(status, body, **headers)


def stands(status: int, kind: type[OutsideError], words: str, more: str = "") -> Play:
    """What only you can mend: it is not tried again, and the error quotes the provider."""

    async def play(cell: Cell) -> None:
        error = await cell.refuses(kind, words, refused(cell.dialect, status, words))
        assert (error.status, error.acts) == (status, "you")
        assert more in str(error)
        assert cell.waits == []

    return play


def is_tried_again(status: int, kind: type[OutsideError]) -> Play:
    """What may pass: as long is waited as the provider says."""

    async def play(cell: Cell) -> None:
        await cell.passes(refused(cell.dialect, status, "later", retry_after="7"))
        assert cell.waits == [7.0]
        tomorrow = refused(cell.dialect, status, "later", retry_after="86400")
        error = await cell.refuses(kind, "later; it wants to be left alone for 86400 s", tomorrow)
        assert (error.status, error.acts, cell.waits) == (status, "the provider", [7.0])

    return play


OVERLOADED: dict[Dialect, Body] = {
    A: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    C: {"error": {"message": "Overloaded", "type": "server_error", "code": "server_is_overloaded"}},
    R: {"type": "error", "code": "server_is_overloaded", "message": "Overloaded"},
    G: {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}},
}


async def overloaded_in_the_middle_of_a_stream(cell: Cell) -> None:
    begun = stream_of(cell.dialect, done(cell.dialect))[:2]
    if cell.dialect is G:
        begun = [{"candidates": [{"content": {"role": "model", "parts": [{"text": "Do"}]}, "index": 0}]}]
    script: list[bytes | str] = [STREAM_HEAD, *events(*begun, OVERLOADED[cell.dialect]), CLOSE]
    await cell.passes(script)
    await cell.refuses(ProviderFailed, "Overloaded", script, script)


async def stream_cut(cell: Cell) -> None:
    server = cell.bench.server = CuttingServer(cell.dialect)
    server.cuts = 1
    turn = await cell.send(*[done(cell.dialect)] * 2)
    told = [one.event for one in await cell.bench.ledger.events(turn)]
    assert sum(isinstance(event, ModelRequest) for event in told) == 2
    server.cuts = 2
    with pytest.raises(ReplyCut):
        await cell.send(*[done(cell.dialect)] * 2)
    cell.bench.server = StrictServer(cell.dialect)


async def body_cut(cell: Cell) -> None:
    (whole,) = answer(200, done(cell.dialect))
    assert isinstance(whole, bytes)
    script: Script = [whole[:-40], CLOSE]
    await cell.passes(script)
    await cell.refuses(ReplyCut, "", script, script)


ENDINGS: dict[str, Play] = {
    "max_tokens inside text": max_tokens_inside_text,
    "max_tokens inside a call's arguments": max_tokens_inside_arguments,
    "max_tokens inside thinking": max_tokens_inside_thinking,
    "refusal": refusal,
    "content filter": content_filter,
    "content filter of the prompt": filter_of_the_prompt,
    "pause_turn": pause_turn,
    "empty answer": empty_answer,
    "context too long": context_too_long,
    "call of a tool that was not offered": call_of_a_tool_that_was_not_offered,
    "malformed arguments": malformed_arguments,
    "parallel calls with one failing": parallel_calls_with_one_failing,
    "400": stands(400, RequestRefused, "roles must alternate"),
    "401": stands(401, CredentialRefused, "invalid key", more="asked with the key 'key'"),
    "403": stands(403, CredentialRefused, "no permission", more="asked with the key 'key'"),
    "404": stands(404, ModelUnknown, "no such model"),
    "408": is_tried_again(408, ProviderFailed),
    "409": is_tried_again(409, ProviderFailed),
    "413": stands(413, RequestRefused, "too many bytes"),
    "429": is_tried_again(429, RateLimited),
    "529": is_tried_again(529, ProviderFailed),
    "overloaded in the middle of a stream": overloaded_in_the_middle_of_a_stream,
    "stream cut": stream_cut,
    "whole answer cut": body_cut,
}
"""With the usage told before the cut and without it: Anthropic and Google tell it, OpenAI does not."""
ONLY_STREAMED = ("overloaded in the middle of a stream", "stream cut")
ONLY_WHOLE = ("whole answer cut",)
NOT_THERE: dict[tuple[str, Dialect], str] = {
    ("refusal", G): "it has no refusals beside its filter",
    ("content filter", A): "its filter ends an answer as a refusal",
    ("content filter of the prompt", A): "its filter ends an answer as a refusal",
    ("content filter of the prompt", C): "it is refused with status 400",
    ("content filter of the prompt", R): "it is refused with status 400",
    ("pause_turn", C): "no answer is paused in this form",
    ("pause_turn", R): "a response that is under way in the background is never asked for",
    ("pause_turn", G): "no answer is paused in this form",
}
"""Cells that no server can play, and why."""


def forms_of_sending(ending: str) -> tuple[bool, ...]:
    """Whether the answer is streamed: not, and so."""
    return (True,) if ending in ONLY_STREAMED else (False,) if ending in ONLY_WHOLE else (False, True)


CELLS = [pair for pair in product(ENDINGS, Dialect) if pair not in NOT_THERE]


@pytest.mark.parametrize(("ending", "dialect"), share(CELLS, test=30))
def test_every_ending_in_every_form(path: Path, ending: str, dialect: Dialect) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.extend([seconds] if seconds else [])

    async def body(bench: EndingBench) -> None:
        for streamed in forms_of_sending(ending):
            waits.clear()
            await ENDINGS[ending](Cell(bench, streamed, waits))
            await bench.send(done(dialect), streamed=streamed)

    run(path, dialect, body, attempts=2, sleep=sleep)


def test_a_cell_that_no_server_can_play_says_why() -> None:
    assert {ending for ending, _ in NOT_THERE} <= set(ENDINGS)
    assert all(NOT_THERE.values())
    assert len(CELLS) + len(NOT_THERE) == len(ENDINGS) * len(Dialect)
