"""The one place from which models and tools connect to the outside.

Also one GET request without keys, and the proxy for programs without a network of their own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
from msgspec import Struct

from weft.kernel.errors import ConnectionForbidden, InvalidInput, OutsideError, ProviderUnreachable
from weft.kernel.permission_subjects import host_name
from weft.runtime.egress.credentials import (
    ConnectionRules,
    KeyTraces,
    Secret,
    ensure_safe,
    host_of,
    may_reach,
    origin_of,
)

# --- The one place where outgoing connections are opened.

_KEY_HEADERS = (
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "cf-aig-authorization", "proxy-authorization", "cookie",
    "openai-organization", "openai-project",
)  # fmt: skip
"""What may carry a key or an account: taken out of every request, whoever put it there, before ours are put in."""
Client = httpx2.AsyncClient
TransportError, DecodingError = httpx2.TransportError, httpx2.DecodingError
TransportTimeout = httpx2.TimeoutException
STREAM_ERRORS = (httpcore2.NetworkError, httpcore2.TimeoutException)
"""What a raw stream raises when its other end is gone."""
RawStream = httpcore2.AsyncNetworkStream
CertificateError = ssl.SSLCertVerificationError
"""For those who use connections and open none."""
_REQUEST_IDS = ("request-id", "x-request-id", "cf-aig-log-id", "x-goog-request-id")


class SeenAnswer(Struct):
    """What was seen of the last answer."""

    status: int | None = None
    request_id: str | None = None
    fault: str | None = None
    """Why an answer was cut off."""


class Connections:
    """Connections that are kept open between requests, of one event loop."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ConnectionRules], _Transport] = {}

    def client(
        self, url: str, keys: Mapping[str, Secret], rules: ConnectionRules, *, most_bytes: int | None = None
    ) -> tuple[httpx2.AsyncClient, SeenAnswer]:
        """A client for the origin of this URL, which puts these keys into its headers; and what it will have seen.
        An answer of more than `most_bytes` is cut off with a DecodingError, and so is a compressed one then.

        It holds nothing itself and need not be closed; the connections are closed with this object.
        """
        kept = self.kept_client(url, rules, most_bytes=most_bytes)
        return kept.client, kept.lend(keys)

    def kept_client(self, url: str, rules: ConnectionRules, *, most_bytes: int | None = None) -> KeptClient:
        """The same without keys, for whoever uses it for several requests, one at a time."""
        origin = origin_of(url)
        ensure_safe(origin, rules)
        kept = self._kept.get((origin, rules))
        if kept is None:
            kept = self._kept[origin, rules] = _Transport(origin, rules)
        guard = _Guard(origin, rules, kept, most_bytes)
        timeout = httpx2.Timeout(rules.read_seconds, connect=rules.connect_seconds)
        client = httpx2.AsyncClient(transport=guard, trust_env=False, follow_redirects=False, timeout=timeout)
        return KeptClient(client, guard)

    async def aclose(self) -> None:
        kept, self._kept = self._kept, {}
        for transport in kept.values():
            await transport.aclose()


class _Guard(httpx2.AsyncBaseTransport):
    """Stands between a library and the network."""

    def __init__(self, origin: str, rules: ConnectionRules, inner: _Transport, most_bytes: int | None) -> None:
        self._origin, self._rules, self._inner, self._most_bytes = origin, rules, inner, most_bytes
        self._keys: Mapping[str, Secret] | None = None
        """Of the request that is let through now; None: none is."""
        self._seen = SeenAnswer()

    def begin(self, keys: Mapping[str, Secret]) -> SeenAnswer:
        self._keys, self._seen = keys, SeenAnswer()
        return self._seen

    def end(self) -> None:
        self._keys, self._seen = None, SeenAnswer()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        keys, seen = self._keys, self._seen
        if keys is None:
            raise ConnectionForbidden(f"a request for {self._origin} was sent when none was expected")
        asked = origin_of(str(request.url))
        if asked != self._origin:
            raise ConnectionForbidden(f"a request for {self._origin} was sent on to {asked}")
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _KEY_HEADERS]
        headers += [(name, secret.reveal()) for name, secret in keys.items()]
        if self._most_bytes is not None:
            headers = [pair for pair in headers if pair[0].lower() != "accept-encoding"]
            headers.append(("accept-encoding", "identity"))
        rules = self._rules
        sent = httpx2.Request(
            request.method,
            request.url,
            headers=headers,
            stream=request.stream,
            extensions={
                **request.extensions,
                "timeout": {
                    "connect": rules.connect_seconds,
                    "read": rules.read_seconds,
                    "write": rules.read_seconds,
                    "pool": rules.connect_seconds,
                },
            },
        )
        answer = await self._inner.handle_async_request(sent)
        seen.status = answer.status_code
        request_id = next((answer.headers[name] for name in _REQUEST_IDS if name in answer.headers), None)
        seen.request_id = KeyTraces(keys.values()).hidden_in_value(request_id)
        if self._most_bytes is not None:
            answer.stream = _BoundedStream(answer, self._most_bytes, seen)
        return answer


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer, as long as it is not larger than allowed."""

    def __init__(self, answer: httpx2.Response, most_bytes: int, seen: SeenAnswer) -> None:
        self._answer, self._inner, self._most_bytes, self._seen = answer, answer.stream, most_bytes, seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._answer.headers.get("content-encoding", "identity") != "identity":
            raise self._cut_error("the answer is compressed, though that was not asked for")
        left = self._most_bytes
        assert isinstance(self._inner, httpx2.AsyncByteStream)
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise self._cut_error(f"the answer has more than {self._most_bytes} bytes")
            yield piece

    def _cut_error(self, reason: str) -> httpx2.DecodingError:
        self._seen.fault = reason
        return httpx2.DecodingError(reason)

    async def aclose(self) -> None:
        assert isinstance(self._inner, httpx2.AsyncByteStream)
        await self._inner.aclose()


class KeptClient:
    """A client that is used by one request after another, each with its own keys. Between them it holds no key, and
    lets nothing through."""

    def __init__(self, client: httpx2.AsyncClient, guard: _Guard) -> None:
        self.client, self._guard = client, guard

    def lend(self, keys: Mapping[str, Secret]) -> SeenAnswer:
        """For one request, which is sent these keys; and what will be seen of its answer."""
        return self._guard.begin(keys)

    def take_back(self) -> None:
        self._guard.end()


class _Transport(httpx2.AsyncHTTPTransport):
    """The usual transport over connections that are checked when they are opened."""

    def __init__(self, origin: str, rules: ConnectionRules) -> None:
        context = _tls_context(rules) if origin.startswith("https:") or rules.ca_file is not None else _no_tls()
        super().__init__(verify=context, trust_env=False)
        # the class takes no backend of its own; what it would have made has opened nothing yet
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, network_backend=_Backend(host_of(origin), rules)
        )


def _tls_context(rules: ConnectionRules) -> ssl.SSLContext:
    if rules.ca_file is None:
        return _usual_tls()
    context = httpx2.create_ssl_context(trust_env=False)
    try:
        context.load_verify_locations(cafile=rules.ca_file)
    except OSError as error:
        raise InvalidInput(f"certificates {rules.ca_file}: {error.strerror or error}", "name a PEM file") from None
    return context


def _no_tls() -> ssl.SSLContext:
    """For connections without TLS, which want a context all the same: it trusts nobody, and took no time to make."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _usual_tls() -> ssl.SSLContext:
    """Read once: the certificates of all authorities take longer than a request to a near server."""
    return httpx2.create_ssl_context(trust_env=False)


class _Backend(httpcore2.AsyncNetworkBackend):
    """Opens TCP connections, to addresses that were checked."""

    def __init__(self, host: str, rules: ConnectionRules) -> None:
        self._host, self._rules, self._inner = host, rules, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = [
            address for address in await _resolve_addresses(host, port) if may_reach(self._host, address, self._rules)
        ]
        if not addresses:
            raise ConnectionForbidden(
                f"{self._host} leads to a private address",
                "name the address itself in the URL, or allow private addresses for this provider",
            )
        for address in addresses[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):  # another address of the same name may do
                continue
        try:
            return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)
        except httpcore2.ConnectError as error:
            if not ipaddress.ip_address(addresses[-1].partition("%")[0]).is_loopback:
                raise
            raise _unreachable_error(f"nothing answers on this machine at {host}:{port}: {error}") from None

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise ConnectionForbidden("a model is not asked over a unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def open_stream(host: str, port: int, rules: ConnectionRules) -> RawStream:
    """A connection for bytes of somebody else, to an address of this host that was checked. Nothing is sent on it."""
    try:
        return await _Backend(host, rules).connect_tcp(host, port, rules.connect_seconds)
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
        raise ProviderUnreachable(f"{host}:{port} cannot be reached: {error}") from None


async def _resolve_addresses(host: str, port: int) -> list[str]:
    """Every address of a name, each once."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == socket.EAI_NONAME:
            raise _unreachable_error(f"there is no server named {host}") from None
        raise httpcore2.ConnectError(f"the name {host} cannot be resolved: {error.strerror}") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _unreachable_error(reason: str) -> ProviderUnreachable:
    """A server that is not there, and will not be there in a few seconds either."""
    error = ProviderUnreachable(reason)
    error.lasting = True
    return error


# --- One GET request without keys, read up to a number of bytes.

_HEADERS = {"accept": "text/html,text/*,application/json;q=0.9,*/*;q=0.5", "user-agent": "weft"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchedPage(Struct, frozen=True, kw_only=True):
    """What a server answered; `location` is where a redirect leads, as it stands there."""

    status: int
    content_type: str
    body: bytes
    is_cut: bool
    location: str | None = None


async def fetch_page(url: str, rules: ConnectionRules, largest: int, seconds: float) -> FetchedPage:
    """Raises ConnectionForbidden where the rules do not allow it, ProviderUnreachable where nothing comes of it."""
    connections = Connections()
    try:
        return await asyncio.wait_for(_fetch_page(connections, url, rules, largest), seconds)
    except (TransportError, DecodingError) as error:
        raise ProviderUnreachable(f"{url:.200}: {error}") from None
    except TimeoutError:
        raise ProviderUnreachable(f"{url:.200}: it took longer than {seconds:.0f} s") from None
    finally:
        await connections.aclose()


async def _fetch_page(connections: Connections, url: str, rules: ConnectionRules, largest: int) -> FetchedPage:
    client, _ = connections.client(url, {}, rules)
    async with client.stream("GET", url, headers=_HEADERS) as answer:
        location = answer.headers.get("location") if answer.status_code in _REDIRECTS else None
        body = bytearray()
        if location is None:
            async for piece in answer.aiter_bytes():
                body += piece[: largest - len(body) + 1]
                if len(body) > largest:
                    break
        return FetchedPage(
            status=answer.status_code,
            content_type=answer.headers.get("content-type", "")[:200],
            body=bytes(body[:largest]),
            is_cut=len(body) > largest,
            location=location,
        )


# --- A proxy for programs without a network of their own: HTTP CONNECT and plain HTTP, over a unix socket.

PROXY_RULES = ConnectionRules(public_only=True, connect_seconds=10.0, read_seconds=300.0)
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

    def __init__(self, allows: Callable[[str, int], bool], rules: ConnectionRules = PROXY_RULES) -> None:
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
            await self._serve_connection(reader, writer)
        except _Refused as refusal:
            await _answer_refusal(writer, refusal)
        except (OSError, *STREAM_ERRORS, asyncio.CancelledError):  # one of both ends is gone, or this is closed
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = parse_request(await _read_head(reader))
        try:
            stream = await self._connect_upstream(request)
        except _Refused as refusal:
            if len(self.refused) < MOST_REFUSALS:
                self.refused.append(f"{request.host}:{request.port} {refusal.reason}")
            raise
        try:
            if request.head is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                await stream.write(request.head, self._rules.read_seconds)
            await self._relay_both_ways(reader, writer, stream, None if request.head is None else request.body_bytes)
        finally:
            await stream.aclose()

    async def _connect_upstream(self, request: ProxyRequest) -> RawStream:
        if not self._allows(request.host, request.port):
            raise _Refused("403 Forbidden", "this host is not granted")
        try:
            return await open_stream(request.host, request.port, self._rules)
        except ConnectionForbidden:
            raise _Refused("403 Forbidden", "it leads to a private address") from None
        except (OutsideError, OSError):
            raise _Refused("502 Bad Gateway", "it cannot be reached") from None

    async def _relay_both_ways(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: RawStream, body_bytes: int | None
    ) -> None:
        """Both directions, until the server has nothing more. Of a plain request only its body is sent on."""
        sending = asyncio.create_task(self._send_body(reader, stream, body_bytes))
        try:
            while piece := await stream.read(_CHUNK_BYTES, self._rules.read_seconds):
                writer.write(piece)
                await writer.drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_body(self, reader: asyncio.StreamReader, stream: RawStream, body_bytes: int | None) -> None:
        left = body_bytes
        while left is None or left > 0:
            piece = await reader.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not piece:
                return
            await stream.write(piece, self._rules.read_seconds)
            left = None if left is None else left - len(piece)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        raise _Refused("400 Bad Request", "no head of a request") from None


async def _answer_refusal(writer: asyncio.StreamWriter, refusal: _Refused) -> None:
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
        host, port = _endpoint_of(target, None)
        return ProxyRequest(host=host, port=port)
    parts = re.fullmatch(r"http://([^/?#\s\\]*)([/?][^\s#]*)?", target)
    if parts is None:
        raise _Refused("400 Bad Request", "only http:// URLs and CONNECT are served")
    host, port = _endpoint_of(parts[1], 80)
    path = parts[2] or "/"
    headers, body_bytes = _passed_on(lines)
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == 80 else f"{shown}:{port}"
    start = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1\r\nHost: {authority}\r\n"
    sent = start + "".join(f"{name}: {value}\r\n" for name, value in headers) + "Connection: close\r\n\r\n"
    return ProxyRequest(host=host, port=port, head=sent.encode(), body_bytes=body_bytes)


def _endpoint_of(text: str, usual_port: int | None) -> tuple[str, int]:
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
