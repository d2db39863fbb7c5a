"""Every way in which an answer ends, in each of the four wire forms, with strict servers: what is recorded of it, and
that the loop of calls and the next message go on."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import weft.aio
from tests.runtime.inference.asking import HI, person, provider
from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.inference.test_recorded_exchanges import KINDS
from tests.runtime.scripted import CHAT, GOOGLE, MESSAGE, RESPONSES, Script, scripted
from weft.kernel.enums import MessageRole
from weft.kernel.errors import NotApplicable
from weft.kernel.events import ModelRequest, ModelResponse
from weft.ledger.model import Message, NewMessage, TextPart, ToolUsePart
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.broker.turn_state import MAX_PAUSES, AskModel, Run, RunRequest, next_steps
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    RequestBudget,
    RetryPolicy,
)
from weft.runtime.replies import Reply
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

Body = dict[str, Any]
FORMS = tuple(Dialect)
STREAMED = tuple(product(FORMS, (False, True)))
NAMES = {
    Dialect.ANTHROPIC: "claude-sonnet-4-5",
    Dialect.OPENAI_CHAT: "gpt-4.1",
    Dialect.OPENAI_RESPONSES: "gpt-5.2",
    Dialect.GOOGLE: "gemini-2.5-flash",
}


class Use(Struct, frozen=True):
    """A call that a model asks for. Its arguments are a text where the model wrote no JSON."""

    id: str
    tool: str
    arguments: Any


def whole_answer(dialect: Dialect, *, text: str = "", thought: str = "", uses: tuple[Use, ...] = (), end: str) -> Body:
    """An answer that ends with this in its wire form: `done`, `calls`, `length` or `refused`."""
    made: Callable[[str, str, tuple[Use, ...], str], Body] = {
        Dialect.ANTHROPIC: anthropic_answer,
        Dialect.OPENAI_CHAT: chat_answer,
        Dialect.OPENAI_RESPONSES: responses_answer,
        Dialect.GOOGLE: google_answer,
    }[dialect]
    return made(text, thought, uses, end)


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"url": "https://example.com"}]}
"""What Anthropic's own tools do within an answer."""


def anthropic_answer(text: str, thought: str, uses: tuple[Use, ...], end: str) -> Body:
    content: list[Body] = []
    if thought:
        content.append({"type": "thinking", "thinking": thought, "signature": "c2lnbmVk"})
    if text:
        content.append({"type": "text", "text": text})
    content += [{"type": "tool_use", "id": use.id, "name": use.tool, "input": use.arguments} for use in uses]
    reason = {"done": "end_turn", "calls": "tool_use", "length": "max_tokens", "refused": "refusal"}.get(end)
    reason = reason or {"paused": "pause_turn"}[end]
    return {**MESSAGE, "content": content, "stop_reason": reason}


def chat_answer(text: str, thought: str, uses: tuple[Use, ...], end: str) -> Body:
    function = [{"name": use.tool, "arguments": as_text(use.arguments)} for use in uses]
    calls = [{"id": use.id, "type": "function", "function": each} for use, each in zip(uses, function, strict=True)]
    message: Body = {"role": "assistant", "content": text or None}
    message |= {"reasoning_content": thought} if thought else {}
    message |= {"tool_calls": calls} if calls else {}
    reason = {"done": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter"}[end]
    return {**CHAT, "choices": [{"index": 0, "finish_reason": reason, "message": message}]}


def responses_answer(text: str, thought: str, uses: tuple[Use, ...], end: str) -> Body:
    output: list[Body] = []
    if thought:
        summary = [{"type": "summary_text", "text": thought}]
        output.append({"type": "reasoning", "id": f"rs_{thought}", "summary": summary, "encrypted_content": "c2VhbGVk"})
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        )
    for use in uses:
        call = {"call_id": use.id, "name": use.tool, "arguments": as_text(use.arguments)}
        output.append({"type": "function_call", "id": f"fc_{use.id}", "status": "completed", **call})
    reason = {"length": "max_output_tokens", "refused": "content_filter"}.get(end)
    status = {"status": "incomplete", "incomplete_details": {"reason": reason}} if reason else {}
    return {**RESPONSES, "output": output, **status}


def google_answer(text: str, thought: str, uses: tuple[Use, ...], end: str) -> Body:
    parts: list[Body] = [{"text": thought, "thought": True}] if thought else []
    parts += [{"text": text}] if text else []
    parts += [{"functionCall": {"id": use.id, "name": use.tool, "args": use.arguments}} for use in uses]
    reason = {"done": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}[end]
    return {
        **GOOGLE,
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}],
    }


def as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def add(a: int, b: int = 1) -> int:
    """The sum of two numbers."""
    return a + b


def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


TOOLS = tools_of(FunctionTool(add), FunctionTool(fail))


class EndingBench:
    """A session of one form's strict server: what was answered is recorded, and nothing that is sent is refused."""

    def __init__(self, dialect: Dialect, ledger: weft.aio.AsyncLedger, inference: Inference, url: str) -> None:
        self.ledger, self.server = ledger, StrictServer(dialect)
        self.inference, self.url, self._dialect = inference, url, dialect

    def model(self, **more: Any) -> ModelSettings:
        kind, api = KINDS[self._dialect]
        there = provider(self.url, kind, id=str(kind), api=api)
        given = {"name": NAMES[self._dialect], "parameters": ModelParameters(max_tokens=2_000), **more}
        return ModelSettings(id="m", provider=there, **given)

    async def send(
        self,
        *answers: Body,
        streamed: bool,
        tools: Mapping[str, Any] = TOOLS,
        model: ModelSettings | None = None,
        budget: RequestBudget | None = None,
    ) -> str:
        """One message, which takes these answers. Returns the turn."""
        self.server.answers = [(200, copy.deepcopy(answer)) for answer in answers]
        question = OutgoingMessage(message="Go on", model=model or self.model(), tools=dict(tools))
        on_token = (lambda _: None) if streamed else None
        acting = person(self.url)
        sent = await send(
            self.ledger, self.inference, "main", question, context=acting, on_token=on_token, budget=budget
        )
        assert self.server.refused == []
        assert self.server.answers == []
        assert (await self.ledger.turn(sent.turn.id)).status == "completed"
        return sent.turn.id

    async def infer(self, request: InferenceRequest) -> Reply:
        return await self.inference.infer(request, context=person(self.url))

    def forget(self) -> None:
        """The next message is answered by a broker that kept nothing."""
        self.ledger.crossing.shared.clear()

    async def finishes(self, turn: str) -> list[str]:
        return [
            str(one.event.finish_reason)
            for one in await self.ledger.events(turn)
            if isinstance(one.event, ModelResponse)
        ]

    async def requests(self, turn: str) -> int:
        return sum(isinstance(one.event, ModelRequest) for one in await self.ledger.events(turn))

    async def results(self, turn: str) -> list[tuple[Any, bool]]:
        """Of each call, in the order of the calls: what it gave, or its error."""
        calls = await self.ledger.tool_calls(turn)
        return [(call.error if call.result is None else call.result, call.error is not None) for call in calls]


def parts_of(messages: list[Message], kind: type[Any]) -> list[Any]:
    return [
        part
        for message in messages
        if isinstance(message.content, tuple)
        for part in message.content
        if isinstance(part, kind)
    ]


def run(path: Path, dialect: Dialect, body: Callable[[EndingBench], Any], attempts: int = 1, **more: Any) -> None:
    async def main() -> None:
        inference = Inference(policy=RetryPolicy(attempts=attempts, first_wait=0.0), **more)
        async with weft.aio.open(path) as ledger, scripted() as http, inference:
            bench = EndingBench(dialect, ledger, inference, http.url)

            def script(asked: Body) -> Script:
                path = http.received[-1].path
                return bench.server.script(asked, is_streamed=bool(asked.get("stream")) or ":stream" in path)

            http.script_of = script
            await body(bench)
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(main())


def done(dialect: Dialect, text: str = "Done") -> Body:
    return whole_answer(dialect, text=text, end="done")


# --- Calls that cannot be run: the model is told why, and goes on.


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
@pytest.mark.parametrize("has_tools", [True, False])
def test_a_call_of_a_tool_that_was_not_offered_gets_an_error_and_the_loop_goes_on(
    path: Path, dialect: Dialect, streamed: bool, has_tools: bool
) -> None:
    async def body(bench: EndingBench) -> None:
        asked = whole_answer(dialect, uses=(Use("call_1", "fly", {"to": "Rome"}),), end="calls")
        tools = TOOLS if has_tools else {}
        turn = await bench.send(asked, done(dialect), streamed=streamed, tools=tools)
        ((words, has_failed),) = await bench.results(turn)
        assert has_failed
        assert "fly" in str(words)
        assert "offered" in str(words)
        await bench.send(done(dialect), streamed=streamed, tools=tools)

    run(path, dialect, body)


MALFORMED = [(form, streamed) for form, streamed in STREAMED if form is not Dialect.GOOGLE]
"""Google's arguments are objects in its own form, and a call that is none is told as an ending."""


@pytest.mark.parametrize(("dialect", "streamed"), MALFORMED)
@pytest.mark.parametrize("written", ['{"a": 1,', "[1, 2]", "three"])
def test_arguments_that_are_no_object_get_an_error_that_the_model_can_mend(
    path: Path, dialect: Dialect, streamed: bool, written: str
) -> None:
    async def body(bench: EndingBench) -> None:
        asked = whole_answer(dialect, uses=(Use("call_1", "add", written),), end="calls")
        mended = whole_answer(dialect, uses=(Use("call_2", "add", {"a": 1, "b": 2}),), end="calls")
        turn = await bench.send(asked, mended, done(dialect), streamed=streamed)
        (wrong, has_failed), (right, is_wrong) = await bench.results(turn)
        assert has_failed
        assert "'add'" in str(wrong)
        assert "object" in str(wrong)
        assert (right, is_wrong) == (3, False)
        (first, _) = parts_of(list(await bench.ledger.messages(turn)), ToolUsePart)
        assert first.input in (written, [1, 2])

    run(path, dialect, body)


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
def test_of_parallel_calls_one_fails_and_the_others_give_their_results(
    path: Path, dialect: Dialect, streamed: bool
) -> None:
    async def body(bench: EndingBench) -> None:
        uses = (Use("call_1", "add", {"a": 1}), Use("call_2", "fail", {"why": "no"}), Use("call_3", "fly", {}))
        asked = whole_answer(dialect, uses=(*uses, Use("call_4", "add", {"a": 5, "b": 5})), end="calls")
        turn = await bench.send(asked, done(dialect), streamed=streamed)
        results = await bench.results(turn)
        assert [has_failed for _, has_failed in results] == [False, True, True, False]
        assert (results[0][0], results[3][0]) == (2, 10)
        assert "no" in str(results[1][0])

    run(path, dialect, body)


# --- Answers that break off.


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
@pytest.mark.parametrize("end", ["length", "refused"])
def test_an_answer_that_breaks_off_inside_its_text_is_kept_as_what_it_is(
    path: Path, dialect: Dialect, streamed: bool, end: str
) -> None:
    async def body(bench: EndingBench) -> None:
        turn = await bench.send(whole_answer(dialect, text="It is a", end=end), streamed=streamed)
        assert await bench.finishes(turn) == [{"length": "length", "refused": "content_filter"}[end]]
        said = [message for message in await bench.ledger.messages(turn) if message.role == "assistant"]
        assert [str(part.text) for part in parts_of(said, TextPart)] == ["It is a"]
        assert await bench.requests(turn) == 1
        await bench.send(done(dialect), streamed=streamed)

    run(path, dialect, body)


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
@pytest.mark.parametrize("end", ["length", "refused"])
def test_the_call_that_an_answer_breaks_off_with_is_not_run(
    path: Path, dialect: Dialect, streamed: bool, end: str
) -> None:
    """Its arguments may be whole or not, or not have begun: nobody can tell by them."""

    async def body(bench: EndingBench) -> None:
        is_text = dialect in (Dialect.OPENAI_CHAT, Dialect.OPENAI_RESPONSES)
        for number, written in enumerate(({"a": 1}, {}, '{"a": 1, "b') if is_text else ({"a": 1}, {})):
            uses = (Use(f"call_{number}1", "add", {"a": 3}), Use(f"call_{number}2", "add", written))
            asked = whole_answer(dialect, text="Both", uses=uses, end=end)
            turn = await bench.send(asked, done(dialect), streamed=streamed)
            (first, is_wrong), (second, has_failed) = await bench.results(turn)
            assert (first, is_wrong, has_failed) == (4, False, True)
            assert "broke off" in str(second)
            assert (await bench.finishes(turn))[-1] == "stop"

    run(path, dialect, body)


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
def test_an_answer_that_breaks_off_inside_its_thinking_is_followed_by_the_next_message(
    path: Path, dialect: Dialect, streamed: bool
) -> None:
    async def body(bench: EndingBench) -> None:
        turn = await bench.send(whole_answer(dialect, thought="Let me see", end="length"), streamed=streamed)
        assert await bench.finishes(turn) == ["length"]
        await bench.send(done(dialect), streamed=streamed)
        await bench.send(done(dialect), streamed=streamed)

    run(path, dialect, body)


@pytest.mark.parametrize(("dialect", "streamed"), STREAMED)
def test_an_empty_answer_that_was_counted_ends_the_turn_and_the_next_message_is_answered(
    path: Path, dialect: Dialect, streamed: bool
) -> None:
    async def body(bench: EndingBench) -> None:
        turn = await bench.send(whole_answer(dialect, end="done"), streamed=streamed)
        assert await bench.finishes(turn) == ["stop"]
        await bench.send(done(dialect), streamed=streamed)

    run(path, dialect, body)


# --- Answers that the provider pauses: Anthropic alone does.


def thinking(bench: EndingBench) -> ModelSettings:
    return bench.model(parameters=ModelParameters(max_tokens=4_000, thinking="low"))


def paused(*blocks: Body, text: str = "Let me see. ") -> Body:
    whole = whole_answer(Dialect.ANTHROPIC, text=text, thought="Hm.", end="paused")
    return {**whole, "content": [*whole["content"], *blocks]}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("pauses", [1, 3])
def test_an_answer_that_was_paused_is_sent_back_and_goes_on(path: Path, streamed: bool, pauses: int) -> None:
    async def body(bench: EndingBench) -> None:
        answers = [paused()] * pauses
        turn = await bench.send(*answers, done(Dialect.ANTHROPIC), streamed=streamed, model=thinking(bench))
        assert await bench.finishes(turn) == ["pause"] * pauses + ["stop"]
        assert await bench.requests(turn) == pauses + 1
        last = bench.server.bodies[-1]["messages"][-1]
        assert last["role"] == "assistant"
        assert [block["type"] for block in last["content"]] == ["thinking", "text"] * pauses
        said = [message for message in await bench.ledger.messages(turn) if message.role == "assistant"]
        assert [str(part.text) for part in parts_of(said, TextPart)] == ["Let me see. "] * pauses + ["Done"]
        await bench.send(paused(), done(Dialect.ANTHROPIC), streamed=streamed)
        assert "thinking" not in str(bench.server.bodies[-1]["messages"][-1])

    run(path, Dialect.ANTHROPIC, body)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_server_searched_before_and_after_a_pause_is_sent_back(path: Path, streamed: bool) -> None:
    async def body(bench: EndingBench) -> None:
        uses = (Use("call_1", "add", {"a": 1}),)
        rest = whole_answer(Dialect.ANTHROPIC, text="So", uses=uses, end="calls")
        rest = {**rest, "content": [FOUND, *rest["content"]]}
        model = thinking(bench)
        await bench.send(paused(SEARCH), rest, done(Dialect.ANTHROPIC), streamed=streamed, model=model)
        second, third = bench.server.bodies[1:3]
        assert second["messages"][-1]["content"][-1] == SEARCH
        kinds = [block["type"] for block in third["messages"][-2]["content"]]
        assert kinds == ["thinking", "text", "server_tool_use", "web_search_tool_result", "text", "tool_use"]
        bench.forget()
        await bench.send(done(Dialect.ANTHROPIC), streamed=streamed, model=model)
        assert [block["type"] for block in bench.server.bodies[-1]["messages"][1]["content"]] == kinds

    run(path, Dialect.ANTHROPIC, body)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_provider_that_never_stops_pausing_ends_the_turn_and_the_next_message_is_answered(
    path: Path, streamed: bool
) -> None:
    async def body(bench: EndingBench) -> None:
        with pytest.raises(NotApplicable, match="paused its answer 11 times in a row"):
            await bench.send(*[paused(SEARCH, text="")] * 20, streamed=streamed, model=thinking(bench))
        assert len(bench.server.bodies) == MAX_PAUSES + 1
        bench.server.served.clear()
        await bench.send(done(Dialect.ANTHROPIC), streamed=streamed)

    run(path, Dialect.ANTHROPIC, body)


def test_a_message_does_not_enter_between_a_paused_answer_and_its_rest() -> None:
    run_of_turn = Run("t")
    run_of_turn.requests = [RunRequest("r", "c", 1, is_answered=True)]
    run_of_turn.steers, run_of_turn.pauses = ("m",), 1
    (step,) = next_steps(run_of_turn, 0)
    assert step == AskModel()
    run_of_turn.pauses, run_of_turn.has_results = 0, True
    (step,) = next_steps(run_of_turn, 0)
    assert step == AskModel(steers=("m",))


@pytest.mark.parametrize("dialect", [form for form in FORMS if form is not Dialect.ANTHROPIC])
def test_no_other_form_goes_on_with_an_answer(path: Path, dialect: Dialect) -> None:
    """The rest of a paused answer is asked for in words, where a fallback in another form has to give it."""

    async def body(bench: EndingBench) -> None:
        said = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("Let me see."),), metadata={"paused": True})
        request = InferenceRequest(model=bench.model(), messages=(*HI, said))
        bench.server.answers = [(200, done(dialect))]
        reply = await bench.infer(request)
        assert bench.server.refused == []
        assert reply.text == "Done"
        assert "Go on." in json.dumps(bench.server.bodies[-1])

    run(path, dialect, body)
