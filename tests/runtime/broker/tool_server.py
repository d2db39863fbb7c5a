"""A provider that asks for three tools and then answers, and everything that can go wrong with it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.scripted import CLOSE, HANG, STREAM_HEAD, Script, answer, chat, chat_saying, chunk, events, failure
from tests.sizes import sized

CALLS = {"add": {"a": 1, "b": 2}, "note": {"text": "x"}, "look": {"name": "y"}}
RESET = "reset"
"""A step of a script: the connection is reset, not closed."""
REFUSE = "refuse"
"""Nobody listens at the address any longer."""
ALWAYS = 1_000_000
LONG_WORDS = sized(test=40_000, prove=1_000_000)


def use(id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def asking(*uses: dict[str, Any]) -> Script:
    return chat_saying({"content": None, "tool_calls": list(uses)}, "tool_calls")


USES = [use(f"call-{name}", name, arguments) for name, arguments in CALLS.items()]


@dataclass(frozen=True)
class Fault:
    """What a provider does in place of its answer, and what becomes of a turn where it does nothing else."""

    script: Script
    ends: str = "failed"
    passes: bool = False
    """Whether it is worth another try: where the provider is well then, the turn is completed."""


WHOLE = chat()[0]
assert isinstance(WHOLE, bytes)
FAULTS = {
    "refused": Fault([REFUSE], passes=True),
    "closed before an answer": Fault([CLOSE], passes=True),
    "reset before an answer": Fault([RESET], passes=True),
    "closed in the middle of an answer": Fault([WHOLE[:-30], CLOSE], passes=True),
    "reset in the middle of an answer": Fault([WHOLE[:-30], RESET], passes=True),
    "a stream that ends early": Fault([STREAM_HEAD, *events(chunk({"content": "Hel"})), CLOSE], passes=True),
    "a stream that is reset": Fault([STREAM_HEAD, *events(chunk({"content": "Hel"})), RESET], passes=True),
    "silent": Fault([HANG], passes=True),
    "silent in the middle of an answer": Fault([WHOLE[:-30], HANG], passes=True),
    "429": Fault(failure(429), passes=True),
    "429, to be tried at once": Fault(failure(429, retry_after="0"), passes=True),
    "429, to be tried tomorrow": Fault(failure(429, retry_after="86400")),
    "400": Fault(failure(400)),
    "400, too long": Fault(failure(400, "maximum context length is 10 tokens")),
    "401": Fault(failure(401)),
    "403": Fault(failure(403)),
    "404": Fault(failure(404)),
    "413": Fault(failure(413)),
    "500": Fault(failure(500), passes=True),
    "503": Fault(failure(503), passes=True),
    "529": Fault(failure(529), passes=True),
    "a redirection": Fault(answer(307, b"", location="http://127.0.0.1:9/")),
    "no JSON": Fault(answer(200, b"{"), passes=True),
    "no object": Fault(answer(200, b"[]"), passes=True),
    "an empty body": Fault(answer(200, b""), passes=True),
    "no text": Fault(answer(200, b"\xff\xfe"), passes=True),
    "HTML": Fault([b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\n<b"]),
    "another type, with an answer": Fault([WHOLE.replace(b"application/json", b"text/plain")], "completed"),
    "no choices": Fault(chat(choices=[]), passes=True),
    "an empty answer": Fault(chat_saying({"content": ""}, usage=None), passes=True),
    "a very long answer": Fault(chat_saying({"content": "long " * LONG_WORDS}), "completed"),
    "a cut answer": Fault(chat_saying({"content": "Hel"}, "length"), "completed"),
    "a filtered answer": Fault(chat_saying({"content": "I"}, "content_filter"), "completed"),
    "an unknown end": Fault(chat_saying({"content": "Hello"}, "banana"), passes=True),
    "arguments that are no JSON": Fault(asking(use("call-1", "add", "{")), "completed"),
    "arguments that are no object": Fault(asking(use("call-1", "add", "[1]")), "completed"),
    "arguments that do not fit": Fault(asking(use("call-1", "add", {"c": "d"})), "completed"),
    "an unknown tool": Fault(asking(use("call-1", "fly", {})), "completed"),
    "a tool without a name": Fault(asking(use("call-1", "", {})), passes=True),
    "calls of one id": Fault(asking(USES[2], {**USES[1], "id": USES[2]["id"]}), "completed"),
    "a call without an id": Fault(asking(use("", "look", {"name": "a"})), "completed"),
}  # fmt: skip


@dataclass
class ToolServer:
    """Asks for three tools, then answers. Writes down how many results each request brought, of those since the last
    user's message. To requests that bring `stage` of them it does what `fault` says, so many `times`."""

    url: str = ""
    asked: list[int] = field(default_factory=list)
    connections: set[asyncio.Task[Any] | None] = field(default_factory=set)
    fault: Fault | None = None
    stage: int = 0
    times: int = ALWAYS
    _listening: asyncio.Server | None = None

    async def listen(self) -> None:
        port = int(self.url.rsplit(":", 1)[1]) if self.url else 0
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        if self._is_refusing(-1):
            self.refuse()

    def refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()

    async def heal(self) -> None:
        """Nothing goes wrong from now on."""
        self.fault = None
        if self._listening is not None and not self._listening.is_serving():
            await self.listen()

    def _is_refusing(self, results: int) -> bool:
        """Whether nobody listens any longer once a request with so many results is answered."""
        is_last = results == (-1 if self.stage == 0 else 0)
        return self.fault is not None and self.fault.script == [REFUSE] and is_last

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        roles = [message["role"] for message in body["messages"]]
        self.asked.append(roles[::-1].index("user") and roles[-roles[::-1].index("user") :].count("tool"))
        for step in self._script(self.asked[-1]):
            if step == HANG:
                await reader.read(1)  # returns when the client has gone
            if step == RESET:
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            if not isinstance(step, bytes):
                return False
            writer.write(step)
            await writer.drain()
        if self._is_refusing(self.asked[-1]):
            self.refuse()
            return False
        return True

    def _script(self, results: int) -> Script:
        if self.fault is not None and results == self.stage and self.times and self.fault.script != [REFUSE]:
            self.times -= 1
            return self.fault.script
        return chat_saying({"content": "Done"}) if results else asking(*USES)


@asynccontextmanager
async def tool_server(fault: Fault | None = None, stage: int = 0, times: int = ALWAYS) -> AsyncIterator[ToolServer]:
    server = ToolServer(fault=fault, stage=stage, times=times)
    await server.listen()
    try:
        yield server
    finally:
        server.refuse()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
