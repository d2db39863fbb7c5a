"""The one place where outgoing connections are opened.

A client is made for one URL, and reaches that URL's origin alone: a redirect elsewhere is refused. Keys are put into
requests here, after every library is done with them, so that no library ever holds one. TLS is on, except towards
an address that the configured URL itself names as this machine's or a private one. A name is resolved, every address
checked, and the checked address is the one that is connected to.

The environment is not asked: proxies and certificates are those of the rules, whatever variables say.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache
from typing import Any

import httpcore2
import httpx2
from msgspec import Struct

from weft.kernel.errors import ConnectionForbidden, InvalidInput, ProviderUnreachable
from weft.runtime.egress.connection_rules import Rules, ensure_safe, host_of, may_reach
from weft.runtime.egress.credentials import Secret, origin_of
from weft.runtime.egress.key_traces import KeyTraces

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


class Seen(Struct):
    """What was seen of the last answer."""

    status: int | None = None
    request_id: str | None = None
    fault: str | None = None
    """Why an answer was cut off."""


class Connections:
    """Connections that are kept open between requests, of one event loop."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Rules], _Transport] = {}

    def client(
        self, url: str, keys: Mapping[str, Secret], rules: Rules, *, most_bytes: int | None = None
    ) -> tuple[httpx2.AsyncClient, Seen]:
        """A client for the origin of this URL, which puts these keys into its headers; and what it will have seen.
        An answer of more than `most_bytes` is cut off with a DecodingError, and so is a compressed one then.

        It holds nothing itself and need not be closed; the connections are closed with this object.
        """
        kept = self.kept_client(url, rules, most_bytes=most_bytes)
        return kept.client, kept.lend(keys)

    def kept_client(self, url: str, rules: Rules, *, most_bytes: int | None = None) -> KeptClient:
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

    def __init__(self, origin: str, rules: Rules, inner: _Transport, most_bytes: int | None) -> None:
        self._origin, self._rules, self._inner, self._most_bytes = origin, rules, inner, most_bytes
        self._keys: Mapping[str, Secret] | None = None
        """Of the request that is let through now; None: none is."""
        self._seen = Seen()

    def begin(self, keys: Mapping[str, Secret]) -> Seen:
        self._keys, self._seen = keys, Seen()
        return self._seen

    def end(self) -> None:
        self._keys, self._seen = None, Seen()

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

    def __init__(self, answer: httpx2.Response, most_bytes: int, seen: Seen) -> None:
        self._answer, self._inner, self._most_bytes, self._seen = answer, answer.stream, most_bytes, seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._answer.headers.get("content-encoding", "identity") != "identity":
            raise self._cut("the answer is compressed, though that was not asked for")
        left = self._most_bytes
        assert isinstance(self._inner, httpx2.AsyncByteStream)
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise self._cut(f"the answer has more than {self._most_bytes} bytes")
            yield piece

    def _cut(self, reason: str) -> httpx2.DecodingError:
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

    def lend(self, keys: Mapping[str, Secret]) -> Seen:
        """For one request, which is sent these keys; and what will be seen of its answer."""
        return self._guard.begin(keys)

    def take_back(self) -> None:
        self._guard.end()


class _Transport(httpx2.AsyncHTTPTransport):
    """The usual transport over connections that are checked when they are opened."""

    def __init__(self, origin: str, rules: Rules) -> None:
        context = _tls(rules) if origin.startswith("https:") or rules.ca_file is not None else _no_tls()
        super().__init__(verify=context, trust_env=False)
        # the class takes no backend of its own; what it would have made has opened nothing yet
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, network_backend=_Backend(host_of(origin), rules)
        )


def _tls(rules: Rules) -> ssl.SSLContext:
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

    def __init__(self, host: str, rules: Rules) -> None:
        self._host, self._rules, self._inner = host, rules, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = [address for address in await _resolved(host, port) if may_reach(self._host, address, self._rules)]
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
            raise _unreachable(f"nothing answers on this machine at {host}:{port}: {error}") from None

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise ConnectionForbidden("a model is not asked over a unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def open_stream(host: str, port: int, rules: Rules) -> RawStream:
    """A connection for bytes of somebody else, to an address of this host that was checked. Nothing is sent on it."""
    try:
        return await _Backend(host, rules).connect_tcp(host, port, rules.connect_seconds)
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
        raise ProviderUnreachable(f"{host}:{port} cannot be reached: {error}") from None


async def _resolved(host: str, port: int) -> list[str]:
    """Every address of a name, each once."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == socket.EAI_NONAME:
            raise _unreachable(f"there is no server named {host}") from None
        raise httpcore2.ConnectError(f"the name {host} cannot be resolved: {error.strerror}") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _unreachable(reason: str) -> ProviderUnreachable:
    """A server that is not there, and will not be there in a few seconds either."""
    error = ProviderUnreachable(reason)
    error.lasting = True
    return error
