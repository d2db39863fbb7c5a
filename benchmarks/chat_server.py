"""A small server that speaks OpenAI's chat completions, in a process of its own: the one model of every measured turn.

The first answer of a turn that offers tools is one call of the tool `add`; once its result is sent, and where there are
no tools, the answer is a text. It is streamed to whoever asks for that. What is sent is not parsed: the role of the
last message is looked up in the bytes, so that the server costs little at any depth. `GET /counts` tells how many
requests it answered and the CPU seconds that it took.
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.workload import RESPONSE_BYTES

HEAD_END = b"\r\n\r\n"
TOOL = "add"
ANSWER = ("the sum is five and every word of this answer is always the same " * 20)[:RESPONSE_BYTES]
TOOL_SPEC: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class ChatServer:
    """What it counted, and how it answers."""

    def __init__(self) -> None:
        self.requests = 0
        self._numbers = count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(HEAD_END)
                body = await reader.readexactly(_content_length(head))
                writer.write(self._respond(head, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _respond(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET"):
            return _response({"requests": self.requests, "cpu": time.process_time()})
        self.requests += 1
        number = next(self._numbers)
        is_answered = last_role(body, b"tool") > last_role(body, b"user") or b'"tools"' not in body
        completion = _answer(number) if is_answered else _tool_call(number)
        is_streamed = b'"stream":true' in body or b'"stream": true' in body
        return _stream(completion) if is_streamed else _response(completion)


def last_role(body: bytes, role: bytes) -> int:
    """Where the last message of this role stands in a request; -1: nowhere."""
    return max(body.rfind(b'"role":"%s"' % role), body.rfind(b'"role": "%s"' % role))


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _tool_call(number: int) -> dict[str, Any]:
    function = {"name": TOOL, "arguments": '{"a": 2, "b": 3}'}
    message = {"content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}
    return _completion(number, message, "tool_calls")


def _answer(number: int) -> dict[str, Any]:
    return _completion(number, {"content": ANSWER}, "stop")


def _completion(number: int, message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "benchmark-model",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 150, "total_tokens": 1050},
    }


def _response(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)


def _stream(completion: dict[str, Any]) -> bytes:
    """A whole answer as a stream of two pieces."""
    (choice,) = completion["choices"]
    piece = {**completion, "object": "chat.completion.chunk"}
    message = {**choice["message"], "tool_calls": _placed(choice["message"].get("tool_calls"))}
    pieces = [
        {**piece, "usage": None, "choices": [{"index": 0, "delta": message, "finish_reason": choice["finish_reason"]}]},
        {**piece, "choices": []},
    ]
    body = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in pieces) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


def _placed(calls: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return None if calls is None else [{"index": place, **call} for place, call in enumerate(calls)]


@contextmanager
def running_server() -> Iterator[str]:
    """Starts the server; gives the URL below which it answers."""
    command = [sys.executable, "-m", "benchmarks.chat_server"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait()


def counts(url: str) -> dict[str, float]:
    """How many requests the server answered until now, and its CPU seconds."""
    with urllib.request.urlopen(f"{url}/counts") as response:
        counted: dict[str, float] = json.load(response)
    return counted


async def main() -> None:
    server = await asyncio.start_server(ChatServer().serve, "127.0.0.1", 0, limit=2**20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
