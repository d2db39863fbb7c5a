"""A small real HTTP server that answers by script: whole replies, streams, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HANG, CLOSE, HOLD = "hang", "close", "hold"
"""Steps beside bytes: wait until the client has gone, close the connection, wait until the test goes on."""
Step = bytes | str
Script = Sequence[Step]


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Scripted:
    """What the server was asked, and whether its clients went away while it still wanted to say something."""

    scripts: list[Script]
    url: str = ""
    script_of: Callable[[Any], Script] | None = None
    """Chooses by the body of a request what is answered, in place of the scripts in turn."""
    streams_whole_replies: bool = False
    """Whether a chat completion that a script gives whole is streamed to whoever asks for a stream."""
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    """How many were opened."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test: what was held goes on."""
    loop: asyncio.AbstractEventLoop | None = None

    def release(self) -> None:
        """Sets `released`, from any thread."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.released.set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        except asyncio.CancelledError:  # the test is over
            return
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.received.append(Received(first.split(" ")[1], headers, json.loads(body) if body else None))
        script = self._script()
        if self.streams_whole_replies and self.received[-1].body and self.received[-1].body.get("stream"):
            script = as_stream(script)
        for step in script:
            if step == HANG:
                self.hanging.set()
                await reader.read(1)  # returns when the client has gone
                self.left.set()
                return False
            if step == CLOSE:
                return False
            if step == HOLD:
                await self.released.wait()
                continue
            assert isinstance(step, bytes)
            writer.write(step)
            await writer.drain()
        return True

    def _script(self) -> Script:
        if self.script_of is not None:
            return self.script_of(self.received[-1].body)
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]


@asynccontextmanager
async def scripted(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    made = Scripted(list(scripts), loop=asyncio.get_running_loop())
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield made
    finally:
        server.close()


def answer(status: int, body: Any, **headers: str) -> Script:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n" + data]


def failure(status: int, message: str = "no", **headers: str) -> Script:
    return answer(status, {"error": {"message": message, "type": "error"}}, **headers)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req-7\r\nconnection: close\r\n\r\n"


def events(*datas: Any, names: Sequence[str] = ()) -> list[bytes]:
    found = []
    for i, data in enumerate(datas):
        text = data if isinstance(data, str) else json.dumps(data)
        name = f"event: {names[i]}\n" if names else ""
        found.append(f"{name}data: {text}\n\n".encode())
    return found


def as_stream(script: Script) -> Script:
    """A whole chat completion as a stream of it; any other script as it is."""
    whole = script[0] if len(script) == 1 and isinstance(script[0], bytes) else b""
    head, _, body = whole.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or b'"chat.completion"' not in body:
        return script
    reply = json.loads(body)
    (choice,) = reply["choices"]
    message = choice["message"]
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    named = {"model": reply["model"]}
    last = {**chunk({}, **named), "choices": [], "usage": reply["usage"]}
    pieces = (chunk(delta, **named), chunk({}, choice["finish_reason"], **named), last)
    return [STREAM_HEAD, *events(*pieces, "[DONE]"), CLOSE]


USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "prompt_tokens_details": {"cached_tokens": 8}}
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "m-1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello there"}}],
    "usage": USAGE,
}


def chat(**changed: Any) -> Script:
    return answer(200, {**CHAT, **changed}, x_request_id="req-7")


def chat_saying(message: dict[str, Any], finish: str = "stop", **changed: Any) -> Script:
    return chat(choices=[{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}], **changed)


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


CHAT_STREAM: list[Step] = [
    STREAM_HEAD,
    *events(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo "}),
        chunk({"content": "there"}),
        chunk({}, "stop"),
        {**chunk({}), "choices": [], "usage": USAGE},
        "[DONE]",
    ),
    CLOSE,
]

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hello there"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 12,
        "output_tokens": 5,
        "cache_read_input_tokens": 8,
        "cache_creation_input_tokens": 3,
    },
}
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm. "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "there"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]


def message_stream() -> list[Step]:
    return [STREAM_HEAD, *events(*MESSAGE_EVENTS, names=[str(event["type"]) for event in MESSAGE_EVENTS]), CLOSE]


GOOGLE: dict[str, Any] = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": "Hello there"}]}, "finishReason": "STOP", "index": 0}
    ],
    "usageMetadata": {
        "promptTokenCount": 20,
        "candidatesTokenCount": 5,
        "totalTokenCount": 25,
        "cachedContentTokenCount": 8,
    },
    "modelVersion": "gemini-x",
    "responseId": "r-1",
}
RESPONSES: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "model": "gpt-x",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 25,
    },
}
