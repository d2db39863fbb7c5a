"""A proxy for programs without a network of their own: HTTP CONNECT and plain HTTP, over a unix socket.

It stands outside of the sandbox. Each request names a host and a port; only granted ones are connected to, each name is
resolved here, and an address that is no part of the internet is refused, whatever name led to it. A plain request goes
out once, with a Host header that is the host it was granted for; then its connection is closed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.kernel.errors import ConnectionForbidden, InvalidInput, OutsideError
from weft.kernel.permission_subjects import host_name
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.connections import STREAM_ERRORS, RawStream, open_stream

PROXY_RULES = Rules(public_only=True, connect_seconds=10.0, read_seconds=300.0)
MOST_REFUSALS = 100
_LONGEST_HEAD_BYTES = 64 * 1024
_HEAD_SECONDS = 30.0
_CHUNK_BYTES = 64 * 1024
_MOST_CONNECTIONS = 64
_LONGEST_SOCKET_PATH = 100
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00\r\n]*)")
_NOT_PASSED_ON = frozenset(
    "host connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade".split()
)


class _Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class ProxyRequest(Struct, frozen=True, kw_only=True):
    """What a program asks for: a tunnel, or one plain request with the head that is sent on."""

    host: str
    port: int
    head: bytes | None = None
    """None for a tunnel."""
    body_bytes: int = 0


class HostProxy:
    """Serves while it is entered. `socket` is the path that is shown to the sandbox."""

    def __init__(self, allows: Callable[[str, int], bool], rules: Rules = PROXY_RULES) -> None:
        self._allows, self._rules = allows, rules
        self._folder = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.refused: list[str] = []
        """What was asked for and refused, the first hundred."""

    @property
    def socket(self) -> Path:
        return Path(self._folder, "proxy")

    async def __aenter__(self) -> HostProxy:
        self._folder = tempfile.mkdtemp(prefix="weft-proxy-")
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH:
            os.rmdir(self._folder)
            self._folder = tempfile.mkdtemp(prefix="weft-proxy-", dir="/tmp")
        self._server = await asyncio.start_unix_server(self._accept, str(self.socket), limit=_LONGEST_HEAD_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) > _MOST_CONNECTIONS:
                raise _Refused("503 Service Unavailable", "too many connections")
            await self._serve(reader, writer)
        except _Refused as refusal:
            await _answer(writer, refusal)
        except (OSError, *STREAM_ERRORS, asyncio.CancelledError):  # one of both ends is gone, or this is closed
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await _head(reader))
        try:
            stream = await self._connected(request)
        except _Refused as refusal:
            if len(self.refused) < MOST_REFUSALS:
                self.refused.append(f"{request.host}:{request.port} {refusal.reason}")
            raise
        try:
            if request.head is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                await stream.write(request.head, self._rules.read_seconds)
            await self._relay(reader, writer, stream, None if request.head is None else request.body_bytes)
        finally:
            await stream.aclose()

    async def _connected(self, request: ProxyRequest) -> RawStream:
        if not self._allows(request.host, request.port):
            raise _Refused("403 Forbidden", "this host is not granted")
        try:
            return await open_stream(request.host, request.port, self._rules)
        except ConnectionForbidden:
            raise _Refused("403 Forbidden", "it leads to a private address") from None
        except (OutsideError, OSError):
            raise _Refused("502 Bad Gateway", "it cannot be reached") from None

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: RawStream, body_bytes: int | None
    ) -> None:
        """Both directions, until the server has nothing more. Of a plain request only its body is sent on."""
        sending = asyncio.create_task(self._send(reader, stream, body_bytes))
        try:
            while piece := await stream.read(_CHUNK_BYTES, self._rules.read_seconds):
                writer.write(piece)
                await writer.drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, reader: asyncio.StreamReader, stream: RawStream, body_bytes: int | None) -> None:
        left = body_bytes
        while left is None or left > 0:
            piece = await reader.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not piece:
                return
            await stream.write(piece, self._rules.read_seconds)
            left = None if left is None else left - len(piece)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        raise _Refused("400 Bad Request", "no head of a request") from None


async def _answer(writer: asyncio.StreamWriter, refusal: _Refused) -> None:
    body = f"{refusal.reason}\n".encode()
    head = f"HTTP/1.1 {refusal.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        await writer.drain()
    except OSError:  # it did not wait for the answer
        return


def parse_request(head: bytes) -> ProxyRequest:
    """Raises `_Refused` for whatever has more than one reading."""
    try:
        line, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = line.split(" ")
    except ValueError:  # also where it cannot be decoded
        raise _Refused("400 Bad Request", "no request line") from None
    if version not in ("HTTP/1.1", "HTTP/1.0") or not re.fullmatch(r"[A-Z]{1,20}", method) or "\n" in line:
        raise _Refused("400 Bad Request", "no request line")
    if method == "CONNECT":
        host, port = _endpoint(target, None)
        return ProxyRequest(host=host, port=port)
    parts = re.fullmatch(r"http://([^/?#\s\\]*)([/?][^\s#]*)?", target)
    if parts is None:
        raise _Refused("400 Bad Request", "only http:// URLs and CONNECT are served")
    host, port = _endpoint(parts[1], 80)
    path = parts[2] or "/"
    headers, body_bytes = _passed_on(lines)
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == 80 else f"{shown}:{port}"
    start = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1\r\nHost: {authority}\r\n"
    sent = start + "".join(f"{name}: {value}\r\n" for name, value in headers) + "Connection: close\r\n\r\n"
    return ProxyRequest(host=host, port=port, head=sent.encode(), body_bytes=body_bytes)


def _endpoint(text: str, usual_port: int | None) -> tuple[str, int]:
    parts = _AUTHORITY.fullmatch(text)
    if parts is None or (parts[2] is None and usual_port is None):
        raise _Refused("400 Bad Request", "no host and port")
    port = usual_port or 0 if parts[2] is None else int(parts[2])
    try:
        return host_name(parts[1]), port
    except InvalidInput:
        raise _Refused("403 Forbidden", "no usual form of a host") from None


def _passed_on(lines: list[str]) -> tuple[list[tuple[str, str]], int]:
    """The headers that go to the server, and the length of the body behind them."""
    headers: list[tuple[str, str]] = []
    lengths: set[str] = set()
    for line in lines:
        parts = _HEADER.fullmatch(line)
        if parts is None:
            raise _Refused("400 Bad Request", "no header")
        name, value = parts[1], parts[2].strip(" \t")
        if name.lower() == "transfer-encoding":
            raise _Refused("411 Length Required", "a body needs a length")
        if name.lower() == "content-length":
            lengths.add(value.strip())
        if name.lower() not in _NOT_PASSED_ON:
            headers.append((name, value))
    if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", length) for length in lengths):
        raise _Refused("400 Bad Request", "no length of the body")
    return headers, int(lengths.pop()) if lengths else 0
