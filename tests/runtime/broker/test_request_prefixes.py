"""Consecutive requests extend each other on the wire in each dialect, unless a compaction, a cut or an edit is why."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import weft.aio
from tests.runtime.inference.asking import model, person, provider
from tests.runtime.inference.oracle import without_markers
from tests.runtime.scripted import MESSAGE, Script, Scripted, answer, chat, chat_saying, scripted
from weft.kernel.events import ModelRequest
from weft.ledger.model import ImagePart
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ProviderKind, RetryPolicy
from weft.runtime.tool.tool_contract import FunctionTool, ToolOutput, tools_of

LONG = "x" * 6_000
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


async def looks(where: str) -> dict[str, Any]:
    return {"found": [where, 1, 2.5, None, "naïve \u2028 text"], "at": {"b": 1, "a": [True]}}


async def fails(why: str) -> str:
    raise ValueError(why)


async def reads() -> str:
    return LONG


async def writes_much() -> dict[str, Any]:
    return {"stdout": "y" * 200_000, "rc": 0, "bytes": b"\xff", "size": float("inf")}


async def paints() -> ToolOutput:
    return ToolOutput(result={"path": "dot.png"}, images=(ImagePart(f"data:image/png;base64,{PNG}"),))


def chat_calls(*calls: tuple[str, dict[str, Any]]) -> Script:
    asked = [
        {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    return chat_saying({"content": "Let me see", "tool_calls": asked}, "tool_calls", usage=None)


def anthropic_calls(*calls: tuple[str, dict[str, Any]]) -> Script:
    asked = [{"type": "tool_use", "id": f"call-{name}", "name": name, "input": given} for name, given in calls]
    text = {"type": "text", "text": "Let me see"}
    return answer(200, {**MESSAGE, "content": [text, *asked], "stop_reason": "tool_use"})


DIALECTS = {
    ProviderKind.OPENAI_COMPATIBLE: (chat_calls, chat(usage=None)),
    ProviderKind.ANTHROPIC: (anthropic_calls, answer(200, MESSAGE)),
}


class WireBench:
    """A session that somebody sends messages to, with tools, and what the server received."""

    def __init__(
        self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference, kind: ProviderKind
    ) -> None:
        self.ledger, self.server, self._inference, self._kind = ledger, server, inference, kind
        self.turns: list[str] = []

    async def send(
        self,
        text: str,
        window: int | None = None,
        system: str = "Be brief",
        functions: Sequence[Callable[..., Any]] | None = None,
        name: str = "m-1",
    ) -> None:
        there = provider(self.server.url, self._kind)
        settings = model(self.server.url, name=name, provider=there, context_window=window)
        tools = tools_of(*map(FunctionTool, functions or [looks, fails, reads, writes_much, paints]))
        question = OutgoingMessage(message=text, model=settings, system=system, tools=tools)
        context = person(self.server.url)
        reply = await send(self.ledger, self._inference, "main", question, context=context)
        self.turns.append(reply.turn.id)

    def forget(self) -> None:
        """The next message is answered by a broker that kept nothing."""
        self.ledger.crossing.shared.clear()

    def body(self, number: int) -> Any:
        return without_markers(self.server.received[number].body)

    def is_extended(self, number: int) -> bool:
        """Whether this request begins with all of the one before: prompt, tools, messages."""
        before, now = self.body(number - 1), self.body(number)
        same = all(before.get(key) == now.get(key) for key in ("system", "tools", "model"))
        return same and now["messages"][: len(before["messages"])] == before["messages"]


def run(path: Path, kind: ProviderKind, body: Callable[[WireBench], Awaitable[None]], *scripts: Script) -> None:
    async def main() -> None:
        inference = Inference(policy=RetryPolicy(attempts=1))
        async with weft.aio.open(path) as ledger, scripted(*scripts) as server, inference:
            await body(WireBench(ledger, server, inference, kind))
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(main())


@pytest.mark.parametrize("kind", DIALECTS)
def test_requests_of_turns_with_tools_extend_each_other(path: Path, kind: ProviderKind) -> None:
    calls, says = DIALECTS[kind]
    two = calls(("looks", {"where": "here"}), ("fails", {"why": "it does"}))
    one = calls(("looks", {"where": "there"}))

    async def body(bench: WireBench) -> None:
        await bench.send("first")
        await bench.send("second")
        bench.forget()
        await bench.send("third")
        assert len(bench.server.received) == 8
        assert [number for number in range(1, 8) if not bench.is_extended(number)] == []
        lengths = [len(bench.body(number)["messages"]) for number in range(8)]
        assert lengths == sorted(set(lengths)), "each of them has something new"

    run(path, kind, body, two, one, says, two, says, one, one, says)


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_large_result_is_recorded_whole_and_shown_shortened_and_an_image_as_an_image(
    path: Path, kind: ProviderKind
) -> None:
    calls, says = DIALECTS[kind]

    async def body(bench: WireBench) -> None:
        await bench.send("first")
        await bench.send("second")
        bench.forget()
        await bench.send("third")
        assert [number for number in range(1, 4) if not bench.is_extended(number)] == []
        shown = json.dumps(bench.body(1)["messages"])
        assert "left out; read_result" in shown
        assert 49_000 < shown.count("y") < 51_000
        assert "call-writes_much" in shown.partition("read_result")[2]
        large, image = await bench.ledger.tool_calls(bench.turns[0])
        assert large.result == {"stdout": "y" * 200_000, "rc": 0, "bytes": "\\xff", "size": "inf"}
        assert image.result == {"path": "dot.png", "images": [f"data:image/png;base64,{PNG}"]}
        assert PNG in shown
        assert sent_images(bench.body(1)) == sent_images(bench.body(3)) == 1

    run(path, kind, body, calls(("writes_much", {}), ("paints", {})), says, says, says)


def sent_images(body: Any) -> int:
    """Parts of a request that are images, in either dialect."""
    if isinstance(body, dict):
        return (body.get("type") in ("image", "image_url")) + sum(map(sent_images, body.values()))
    return sum(map(sent_images, body)) if isinstance(body, list) else 0


@pytest.mark.parametrize("kind", DIALECTS)
def test_where_they_do_not_the_record_says_why(path: Path, kind: ProviderKind) -> None:
    calls, says = DIALECTS[kind]
    reading = calls(("reads", {}))

    async def body(bench: WireBench) -> None:
        for text in ("first", "second", "third"):
            await bench.send(text, window=6_000 if kind is ProviderKind.OPENAI_COMPATIBLE else None)
        await bench.send("fourth", system="Be long")
        await bench.ledger.compactions.record(session="main", summary="what was said")
        await bench.send("fifth", system="Be long")
        parted = [number for number in range(1, len(bench.server.received)) if not bench.is_extended(number)]
        cuts = [number for number, is_cut in enumerate(await cut_requests(bench)) if is_cut]
        assert parted == [*cuts[:1], 6, 8]
        assert (await bench.ledger.context(bench.turns[4])).compaction is not None
        edited = [turn for turn in bench.turns if (await bench.ledger.messages(turn))[0].role == "system"]
        assert edited == [bench.turns[0], bench.turns[3]]
        told = [one for turn in bench.turns for one in bench.ledger.sync.listing().prompt_changes(turn)]
        parts = ["message"] * len(cuts[:1]) + ["system", "message"]
        assert [one.part for one in told if one.request in await requests_of(bench, [*cuts[:1], 6, 8])] == parts
        assert (told[-1].message, told[-2].message) == (1, None)

    run(path, kind, body, reading, says, reading, says, reading, says, reading, says, says)


async def requests_of(bench: WireBench, numbers: list[int]) -> list[str]:
    """The events of these requests."""
    events = [one for turn in bench.turns for one in await bench.ledger.events(turn)]
    asked = [one.id for one in events if isinstance(one.event, ModelRequest)]
    return [asked[number] for number in numbers]


def test_a_turn_says_that_its_tools_or_its_model_are_others_than_before(path: Path) -> None:
    kind = ProviderKind.ANTHROPIC
    _, says = DIALECTS[kind]

    async def body(bench: WireBench) -> None:
        for text in ("first", "second"):
            await bench.send(text)
        await bench.send("third", functions=[looks])
        await bench.send("fourth", functions=[looks], name="m-2")
        listing = bench.ledger.sync.listing()
        told = [[one.part for one in listing.prompt_changes(turn)] for turn in bench.turns]
        assert told == [[], [], ["tools"], ["model"]]

    run(path, kind, body, says)


async def cut_requests(bench: WireBench) -> list[bool]:
    """Of every request, in order, whether it was cut."""
    events = [recorded.event for turn in bench.turns for recorded in await bench.ledger.events(turn)]
    params = [event.params for event in events if isinstance(event, ModelRequest)]
    contents = [b"".join([piece async for piece in bench.ledger.read_content(str(ref))]) for ref in params]
    return [b'"cut"' in content for content in contents]
