"""Messages to sessions, answered by a model and recorded step by step, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft
import weft.aio
import weft.aio.objects
from tests.runtime.inference.asking import CANARY, model, person, provider
from tests.runtime.scripted import (
    CHAT_STREAM,
    CLOSE,
    HANG,
    HOLD,
    MESSAGE,
    Script,
    Scripted,
    answer,
    chat,
    chat_saying,
    failure,
    scripted,
)
from weft.kernel.errors import InvalidInput, LeaseLost, ProviderFailed, ReplyCut, SessionBusy
from weft.kernel.events import EventRef, ModelRequest, ModelResponse, RequestInput, Usage
from weft.ledger.broker.run_writer import RunWriter
from weft.ledger.model import ImagePart, Message
from weft.runtime.broker import broker
from weft.runtime.broker.broker import OutgoingMessage, broker_of, invoke_model, send
from weft.runtime.egress.credentials import ConnectionRules
from weft.runtime.egress.execution_context import run_with_context
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    ModelParameters,
    ModelSettings,
    ProviderKind,
    ProviderSettings,
    RetryPolicy,
)
from weft.runtime.replies import ReplyToken, TurnReply

Body = Callable[["SendBench"], Awaitable[None]]


class SendBench:
    """An open ledger, a scripted server, and somebody who sends."""

    def __init__(self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference) -> None:
        self.ledger, self.server, self.inference = ledger, server, inference

    def question(self, text: Any, settings: ModelSettings | None = None, **more: Any) -> OutgoingMessage:
        return OutgoingMessage(message=text, model=settings or model(self.server.url), **more)

    async def send(self, text: Any, session: str = "main", on_token: Any = None, **more: Any) -> TurnReply:
        question = self.question(text, **more)
        context = person(self.server.url)
        return await send(self.ledger, self.inference, session, question, on_token=on_token, context=context)

    async def said(self, turn: str) -> list[tuple[str, str]]:
        return [(message.role, message.text) for message in await self.messages(turn)]

    async def messages(self, turn: str) -> list[Message]:
        return [message async for message in (await self.ledger.thread(turn)).messages]

    def sent(self, number: int = -1) -> list[tuple[str, str]]:
        return [(item["role"], item["content"]) for item in self.server.received[number].body["messages"]]


def run(address: str | Path, body: Body, *scripts: Script, attempts: int = 1, **options: Any) -> None:
    async def main() -> None:
        async def at_once(_: float) -> None:
            return

        inference = Inference(policy=RetryPolicy(attempts=attempts), sleep=at_once)
        async with weft.aio.open(address, **options) as ledger, scripted(*scripts) as server, inference:
            await body(SendBench(ledger, server, inference))
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(main())


def test_a_message_and_its_reply_are_a_turn_with_everything_that_is_known(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        sent = await bench.send("Say hello", system="Be brief", parameters=ModelParameters(temperature=0.5))
        turn = await bench.ledger.turn(sent.turn.id)
        assert (turn.status, turn.model, turn.provider_program) == ("completed", "m-1", "there")
        assert turn.usage == Usage(
            input_tokens=12,
            output_tokens=5,
            cached_input_tokens=8,
            cache_write_tokens=0,
            reasoning_tokens=0,
            total_tokens=25,
        )
        assert await bench.said(sent.turn.id) == [
            ("system", "Be brief"),
            ("user", "Say hello"),
            ("assistant", "Hello there"),
        ]
        assert turn.effective_config["parameters"] == {"temperature": 0.5, "max_tokens": 50}
        assert turn.effective_config["chain"] == ["human:tester"]
        assert (await bench.ledger.session("main")).head == sent.turn.id
        *_, reply = await bench.messages(sent.turn.id)
        assert reply.metadata["request_id"] == "req-7"
        assert reply.metadata["latency_ms"] == sent.reply.latency_ms

    run(address, body, chat())


def test_the_history_is_what_the_ledger_says_the_turn_sees(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        first = await bench.send("one", system="Be brief")
        second = await bench.send("two", system="Be brief")
        assert second.turn.parent_id == first.turn.id
        assert bench.sent() == [
            ("system", "Be brief"),
            ("user", "one"),
            ("assistant", "Hello there"),
            ("user", "two"),
        ]
        assert [role for role, _ in await bench.said(second.turn.id)].count("system") == 1
        await bench.send("three", system="Be long")
        assert bench.sent()[0] == ("system", "Be long")

    run(address, body, chat())


def test_after_a_compaction_the_summary_is_sent_instead_of_what_it_stands_for(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        await bench.send("something long ago")
        await bench.ledger.compactions.record(session="main", summary="They greeted each other.")
        await bench.send("and now?")
        texts = [text for _, text in bench.sent()]
        assert not any("long ago" in text for text in texts)
        assert any("They greeted each other." in text for text in texts)

    run(path, body, chat())


def test_one_message_can_be_answered_by_another_model(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        await bench.send("one")
        other = model(bench.server.url, id="other", name="m-2")
        second = await bench.send("What do you think?", settings=other)
        assert bench.server.received[-1].body["model"] == "m-2"
        assert (await bench.ledger.turn(second.turn.id)).effective_config["model"] == "other"
        assert bench.sent()[:2] == [("user", "one"), ("assistant", "Hello there")]

    run(path, body, chat())


def test_the_context_may_come_with_the_task(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        asked = run_with_context(
            person(bench.server.url), send, bench.ledger, bench.inference, "main", bench.question("hello")
        )
        assert (await asked).reply.text == "Hello there"
        with pytest.raises(InvalidInput, match="nobody acts"):
            await send(bench.ledger, bench.inference, "main", bench.question("hello"))

    run(path, body, chat())


def test_every_attempt_is_an_event_before_it_is_made(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        sent = await bench.send("hello")
        kinds = [type(found.event).__name__ for found in await bench.ledger.events(sent.turn.id)]
        assert [kind for kind in kinds if kind.startswith("Model")] == ["ModelRequest", "ModelRequest", "ModelResponse"]

    run(path, body, failure(500), chat(), attempts=2)


async def requests(bench: SendBench, turn: str) -> list[Any]:
    return [found.event for found in await bench.ledger.events(turn) if isinstance(found.event, ModelRequest)]


def test_what_the_model_was_sent_is_recorded_by_reference(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        turns, sizes = [], []
        for i in range(12):
            sent = await bench.send(f"question {i:02}", system="Be brief")
            turns.append((sent.turn.id, bench.sent()))
            (asked,) = await requests(bench, sent.turn.id)
            assert isinstance(asked.input, RequestInput)
            sizes.append(len(asked.input.then))
        assert sizes == [2, 4, 2, 8, 2, 4, 2, 16, 2, 4, 2, 8]  # the prompt, then an answer and a question each
        for turn, given in turns:
            seen = await bench.ledger.context(turn)
            assert seen.observed
            assert [(message.role, message.text) for message in seen.messages] == given

    run(address, body, chat())


def test_an_attempt_more_names_the_one_before(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        sent = await bench.send("hello")
        found = [one for one in await bench.ledger.events(sent.turn.id) if isinstance(one.event, ModelRequest)]
        first, second = await requests(bench, sent.turn.id)
        assert isinstance(first.input, RequestInput)
        assert first.input.base is None
        assert second.input == RequestInput(base=found[0].id, keep=1, then=())

    run(path, body, failure(500), chat(), attempts=2)


def test_after_a_compaction_the_summary_is_recorded_as_sent(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        await bench.send("long ago", system="Be brief")
        made = await bench.ledger.compactions.record(session="main", summary="They met.")
        sent = await bench.send("and now?", system="Be brief")
        (asked,) = await requests(bench, sent.turn.id)
        assert asked.input.then[1] == made.id
        assert (asked.input.base, asked.input.keep) == (None, 0)  # what was kept, the prompt, is as short told again
        seen = await bench.ledger.context(sent.turn.id)
        assert (seen.observed, [message.text for message in seen.messages]) == (
            True, ["Be brief", "They met.", "and now?"],
        )  # fmt: skip

    run(path, body, chat())


async def _with_calls(bench: SendBench, *, ended: bool) -> None:
    writer = await bench.ledger.begin_turn(session="main")
    await writer.message("look")
    await writer.request("m")
    await writer.response("I look.")
    calls = [await writer.tool_call("read", {"n": n}, id="same") for n in range(2)]
    for n, call in enumerate(calls):
        if ended or n == 0:
            await writer.tool_result(call, f"found {n}")
    await (writer.finish() if ended else writer.interrupt())


def test_calls_that_were_sent_are_recorded_with_their_events(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        await _with_calls(bench, ended=True)
        expected = (await bench.ledger.context(session="main")).messages
        sent = await bench.send("and?")
        (asked,) = await requests(bench, sent.turn.id)
        seen = await bench.ledger.context(sent.turn.id)
        assert seen.observed
        assert seen.messages[:-1] == expected
        assert sum(isinstance(ref, EventRef) for ref in asked.input.then) == 4
        then = await requests(bench, (await bench.send("and then?")).turn.id)
        assert [(one.input.keep, len(one.input.then)) for one in then] == [(len(asked.input.then), 2)]

    run(address, body, chat())


def test_what_no_event_of_its_own_tells_is_not_recorded_as_sent(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        await _with_calls(bench, ended=False)
        sent = await bench.send("and?")
        (asked,) = await requests(bench, sent.turn.id)
        assert asked.input is UNSET  # one call has no result; that it was told as interrupted stands nowhere by itself
        seen = await bench.ledger.context(sent.turn.id)
        assert not seen.observed
        assert "interrupted" in str(seen.messages)

    run(path, body, chat())


def test_a_failure_is_a_failed_turn_and_the_head_stays(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        good = await bench.send("one")
        with pytest.raises(ProviderFailed):
            await bench.send("two")
        assert (await bench.ledger.session("main")).head == good.turn.id
        (failed,) = [turn for turn in await bench.ledger.tree.children(good.turn.id) if turn.status == "failed"]
        assert (failed.error_code, failed.usage) == ("provider_failed", Usage())
        assert "down" in (failed.error or "")
        assert (await bench.send("three")).turn.parent_id == good.turn.id
        assert "two" not in str(bench.sent())

    run(address, body, chat(), failure(500, "down"), chat())


def test_an_answer_that_came_in_pieces_is_kept_whole_and_names_no_stream(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        pieces: list[Any] = []
        sent = await bench.send("hello", on_token=pieces.append)
        assert len(pieces) > 1
        (answer,) = (
            one.event for one in await bench.ledger.events(sent.turn.id) if isinstance(one.event, ModelResponse)
        )
        assert (answer.stream_ref, sent.reply.text) == (UNSET, "Hello there")
        assert "of an answer that came here in pieces `output` is kept" in ModelResponse.about

    run(path, body, CHAT_STREAM)


def test_what_had_come_of_a_cut_reply_is_kept_in_the_failed_turn(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        with pytest.raises(ReplyCut):
            await bench.send("hello", on_token=lambda _: None)
        (turn,) = await bench.ledger.tree.heads()
        assert (turn.status, turn.error_code) == ("failed", "reply_cut")
        assert await bench.said(turn.id) == [("user", "hello"), ("assistant", "Hello ")]
        assert (await bench.ledger.session("main")).head is None

    run(path, body, [*CHAT_STREAM[:4], CLOSE])


def test_cancelling_completes_the_turn_with_what_had_come_and_frees_the_session(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        patient = model(bench.server.url, provider=provider(bench.server.url, rules=ConnectionRules(read_seconds=60)))
        heard = asyncio.Event()

        def listen(token: ReplyToken) -> None:
            if "lo" in token.text:
                heard.set()

        asking = asyncio.create_task(bench.send("hello", on_token=listen, settings=patient))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(60):
            await bench.server.left.wait()
        head = (await bench.ledger.session("main")).head
        assert head is not None
        turn = await bench.ledger.turn(head)
        assert (turn.status, turn.interruption_reason) == ("completed", "canceled")
        assert await bench.said(head) == [("user", "hello"), ("assistant", "Hello ")]
        assert (await bench.send("go on")).turn.parent_id == head

    run(address, body, [*CHAT_STREAM[:4], HANG], chat())


def test_whoever_leaves_when_their_answer_is_there_cuts_no_other_turn_short(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        shared = broker_of(bench.ledger)
        inner, is_answered, may_end = shared.wait_for_answer, asyncio.Event(), asyncio.Event()

        async def answered_late(*arguments: Any) -> Any:
            end = await inner(*arguments)
            is_answered.set()
            await may_end.wait()
            return end

        shared.wait_for_answer = answered_late  # type: ignore[method-assign, assignment]
        leaving = asyncio.ensure_future(bench.send("one"))
        await is_answered.wait()
        shared.wait_for_answer = inner  # type: ignore[method-assign]
        other = asyncio.ensure_future(bench.send("two"))
        while len(bench.server.received) < 2:
            await asyncio.sleep(0.01)
        may_end.set()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        bench.server.released.set()
        assert (await other).reply.text == "Hello there"

    run(path, body, chat(), [HOLD, *chat()])


def test_a_listener_that_fails_fails_the_turn(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        with pytest.raises(ZeroDivisionError):
            await bench.send("hello", on_token=lambda _: 1 // 0)
        (turn,) = await bench.ledger.tree.heads()
        assert (turn.status, turn.error_code) == ("failed", "internal_error")

    run(path, body, CHAT_STREAM)


def test_a_question_that_cannot_be_asked_leaves_no_session_busy(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        for text in ("", {"role": "assistant", "content": "x"}, {"role": "user"}):
            with pytest.raises(InvalidInput):
                await bench.send(text)
        with pytest.raises(InvalidInput):
            await bench.send("hello", situation="cooking")
        assert bench.server.received == []
        assert (await bench.send("hello")).reply.text == "Hello there"

    run(path, body, chat())


def test_a_session_answers_one_at_a_time(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        both = await asyncio.gather(bench.send("one"), bench.send("two"))
        depths = sorted(sent.turn.depth for sent in both)
        assert depths == [1, 2]
        async with await bench.ledger.begin_turn(session="main") as recording:
            with pytest.raises(SessionBusy, match=f"is recording turn {recording.id} "):
                await send(
                    bench.ledger,
                    bench.inference,
                    "main",
                    bench.question("x"),
                    context=person(bench.server.url),
                    wait=0,
                )

    run(path, body, chat())


def test_a_lease_is_renewed_while_a_model_takes_its_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "RENEW_SECONDS", 0.01)
    renew = RunWriter.renew

    async def body(bench: SendBench) -> None:
        often, loop = asyncio.Semaphore(0), asyncio.get_running_loop()

        def counted(run: RunWriter) -> None:
            renew(run)
            loop.call_soon_threadsafe(often.release)

        monkeypatch.setattr(RunWriter, "renew", counted)
        patient = model(bench.server.url, provider=provider(bench.server.url, rules=ConnectionRules(read_seconds=60)))
        asking = asyncio.create_task(bench.send("hello", settings=patient))
        await bench.server.hanging.wait()
        for _ in range(3):
            await often.acquire()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    run(path, body, [HANG])


def test_a_turn_whose_lease_is_lost_is_gone_on_with_and_the_connection_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "RENEW_SECONDS", 0.01)
    lost: list[str] = []
    renew = RunWriter.renew

    async def body(bench: SendBench) -> None:
        def gone(run: RunWriter) -> None:
            if bench.server.hanging.is_set() and not lost:
                lost.append(run.id)
                run.leave()
                raise LeaseLost(run.id)
            renew(run)

        monkeypatch.setattr(RunWriter, "renew", gone)
        patient = model(bench.server.url, provider=provider(bench.server.url, rules=ConnectionRules(read_seconds=60)))
        sent = await bench.send("hello", settings=patient)
        assert (sent.turn.id, sent.reply.text) == (lost[0], "Hello there")
        await bench.server.left.wait()
        assert [request.attempt for request in await requests(bench, sent.turn.id)] == [1, 2]

    run(path, body, [HANG], chat())


def test_a_model_by_itself_is_a_root_turn_in_its_own_session(address: str | Path) -> None:
    async def body(bench: SendBench) -> None:
        context = person(bench.server.url)
        made = [
            await invoke_model(bench.ledger, bench.inference, bench.question(text), context=context) for text in "ab"
        ]
        assert [sent.turn.parent_id for sent in made] == [None, None]
        assert [sent.turn.depth for sent in made] == [1, 1]
        assert (await bench.ledger.session("model:m")).head == made[1].turn.id
        assert bench.sent() == [("user", "b")]
        report = await bench.ledger.usage.report("model")
        assert report.total.total == 50

    run(address, body, chat())


def test_a_model_asked_by_many_at_once_answers_each(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        context = person(bench.server.url)
        asked = [invoke_model(bench.ledger, bench.inference, bench.question(text), context=context) for text in "abcd"]
        made = await asyncio.gather(*asked)
        assert {sent.turn.parent_id for sent in made} == {None}
        assert len({sent.turn.id for sent in made}) == 4

    run(path, body, chat())


def test_calls_that_nobody_offered_get_an_error_each(path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}

    async def body(bench: SendBench) -> None:
        sent = await bench.send("hello")
        calls = await bench.ledger.tool_calls(sent.turn.id)
        assert [(one.call_id, "offered" in str(one.error)) for one in calls] == [("c", True)] * 2
        assert (await bench.ledger.turn(sent.turn.id)).status == "completed"

    run(path, body, chat_saying({"content": "x", "tool_calls": [call, call]}, "tool_calls"), chat())


def test_a_key_is_in_no_file_of_the_ledger(path: Path) -> None:
    async def body(bench: SendBench) -> None:
        await bench.send("hello")
        with pytest.raises(ProviderFailed):
            await bench.send("again")
        assert bench.server.received[-1].headers["authorization"] == f"Bearer {CANARY}"

    run(path, body, chat(), failure(500, f"your key {CANARY} is odd"))
    for file in path.parent.iterdir():
        assert CANARY.encode() not in file.read_bytes(), file


def test_a_thinking_setting_stands_as_sent_where_it_was_sent(path: Path) -> None:
    notes: list[str] = []

    async def body(bench: SendBench) -> None:
        bench.inference._on_note = notes.append
        plain = model(bench.server.url, name="gpt-4o")
        claude = model(
            bench.server.url,
            id="claude",
            name="claude-sonnet-4-5",
            provider=provider(bench.server.url, ProviderKind.ANTHROPIC),
            parameters=ModelParameters(max_tokens=8000),
        )
        for settings in (plain, claude):
            await bench.send("q", settings=settings, parameters=ModelParameters(thinking="high"))
        without, with_it = [turn async for turn in (await bench.ledger.thread("main")).turns]
        assert "thinking" not in str(bench.server.received[0].body)
        assert without.thinking_config is None
        assert "thinking" not in without.effective_config["parameters"]
        assert "thinking" in bench.server.received[1].body
        assert with_it.thinking_config == {"thinking": "high"}
        for turn, is_sent in ((without, False), (with_it, True)):
            (request,) = await requests(bench, turn.id)
            params = b"".join([piece async for piece in bench.ledger.read_content(str(request.params))])
            assert (b"thinking" in params) is is_sent
        assert notes == ["m cannot be told to think so: gpt-4o does not think; leave thinking out"]

    run(path, body, chat(), answer(200, MESSAGE))


def test_a_model_that_takes_no_images_says_so_and_is_sent_text(path: Path) -> None:
    notes: list[str] = []
    picture = {"type": "image_url", "url": "data:image/png;base64,aGVsbG8="}

    async def body(bench: SendBench) -> None:
        bench.inference._on_note = notes.append
        blind = model(bench.server.url, images=False)
        question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
        sent = await bench.send(question, settings=blind)
        assert notes == ["m cannot take images: it is sent a line of text for each of 1"]
        (message,) = bench.server.received[0].body["messages"]
        assert "image_url" not in str(message)
        assert "[an image (image/png), which you cannot see]" in str(message)
        await bench.send("And now?", settings=model(bench.server.url))
        assert "image_url" in str(bench.server.received[1].body["messages"])
        first = await bench.ledger.messages(sent.turn.id)
        assert any(isinstance(part, ImagePart) for part in first[0].content)

    run(path, body, chat())
    embedded = ProviderSettings(id="local", kind=ProviderKind.LOCAL)
    assert not ModelSettings(id="local", name="small", provider=embedded).takes_images
