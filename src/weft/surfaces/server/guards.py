"""What is refused before a request is looked at: foreign hosts and origins, and bodies that are too large, come too
slowly or are of a type that a page elsewhere could send; heads that are too large, and callers who ask too often. Every
answer carries the headers that browsers obey. None of them lets pages of other origins read it: CORS is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from weft.kernel.errors import InvalidInput
from weft.surfaces.server.problems import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_BODY_BYTES = 1024 * 1024
BODY_SECONDS = 30.0
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


HTTPS_HEADERS = {"strict-transport-security": "max-age=31536000"}
MOST_TARGET_BYTES = 16 * 1024
MOST_HEADERS = 100
MOST_HEAD_BYTES = 96 * 1024
"""Of the names and values of all headers: a token has up to 64 KiB."""
FORWARDED = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")


class HostGuard:
    """Lets requests through that were meant for this server. Names that only lead here, as a page's of somebody else by
    its own name server, are no hosts of ours. A name `*.example.com` stands for all hosts one below."""

    def __init__(self, port: int, names: Iterable[str] = (), *, scheme: str = "http") -> None:
        self.scheme, self.is_behind_proxy = scheme, False
        hosts = {*LOOPBACK_NAMES, *names}
        self.hosts = frozenset(f"{name}:{port}" for name in hosts) | frozenset(names)
        self.origins = frozenset(f"{scheme}://{host}" for host in self.hosts)

    @classmethod
    def behind(cls, url: str) -> HostGuard:
        """Of a server that is asked through a proxy, which people reach at this address. Raises InvalidInput."""
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise InvalidInput(f"{url} is no address of a proxy", "give one such as https://weft.example.com")
        guard = cls(0, scheme="https")
        host = parts.netloc.lower().removesuffix(":443")
        guard.is_behind_proxy, guard.hosts = True, frozenset({host, f"{host}:443"} if parts.port is None else {host})
        guard.origins = frozenset({f"https://{host}"})
        return guard

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    def check(self, request: Request) -> None:
        """Raises Refusal with 421 or 403."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not _is_among(hosts[0].lower(), self.hosts):
            raise Refusal(421, "host_unknown", "this server does not answer for that host")
        if self.is_behind_proxy:
            self._check_forwarded(request)
        origins = request.headers.getlist("origin")
        if origins and (len(origins) != 1 or not _is_among(origins[0].lower(), self.origins)):
            raise Refusal(403, "origin_refused", "this server is asked by its own pages and by programs")

    def _check_forwarded(self, request: Request) -> None:
        """What the proxy says of the request that it was asked. No other server of ours looks at it."""
        for name in FORWARDED:
            if len(request.headers.getlist(name)) > 1:
                raise Refusal(421, "host_unknown", f"{name} is there twice", "have the proxy set it, and not add to it")
        host = request.headers.get("x-forwarded-host")
        if host is not None and host.lower() not in self.hosts:
            raise Refusal(421, "host_unknown", "this server does not answer for that host")
        if request.headers.get("x-forwarded-proto", "https").lower() != "https":
            raise Refusal(403, "not_secure", "the proxy was asked without TLS", "have it redirect to https")

    def client_address(self, request: Request) -> str:
        """Who is connected, or whom a stated proxy named last: what stands before it, the client said itself."""
        peer = request.client.host if request.client is not None else ""
        if not self.is_behind_proxy:
            return peer
        return request.headers.get("x-forwarded-for", peer).rpartition(",")[2].strip()


def _is_among(host: str, names: frozenset[str]) -> bool:
    if host in names:
        return True
    scheme, separator, name = host.rpartition("://")
    below = name.partition(".")[2]
    return bool(below) and f"{scheme}{separator}*.{below}" in names


def ensure_small_head(request: Request) -> None:
    """Raises Refusal with 414 or 431."""
    scope = request.scope
    target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if target > MOST_TARGET_BYTES:
        raise Refusal(414, "target_too_long", f"path and query have at most {MOST_TARGET_BYTES:,} bytes")
    headers = request.headers.raw
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_HEAD_BYTES:
        raise Refusal(431, "headers_too_large", f"at most {MOST_HEADERS} headers with {MOST_HEAD_BYTES:,} bytes")


MOST_LIMITED = 10_000
"""So many keys a limit remembers. Of more, those are forgotten that were asked for the longest time ago."""


class RateLimit:
    """How often each of many may do something: `burst` times at once, and from then on `per_second`."""

    def __init__(self, burst: int, *, per_second: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_second, self._seconds = float(burst), per_second, seconds
        self._left: dict[str, tuple[float, float]] = {}
        """By key how many are left, and when that was so."""

    def take(self, key: str) -> None:
        """Raises Refusal with 429, which says after how long there is one again."""
        left = self._left_now(key)
        if left < 1:
            wait = ceil((1 - left) / self._per_second)
            raise Refusal(429, "too_many_requests", f"try again in {wait} seconds", headers={"retry-after": str(wait)})
        self._put(key, left - 1)

    def give_back(self, key: str) -> None:
        self._put(key, min(self._burst, self._left_now(key) + 1))

    def _left_now(self, key: str) -> float:
        left, at = self._left.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._seconds() - at) * self._per_second)

    def _put(self, key: str, left: float) -> None:
        self._left.pop(key, None)
        self._left[key] = (left, self._seconds())
        if len(self._left) > MOST_LIMITED:
            del self._left[next(iter(self._left))]


async def read_body(request: Request, most: int = MOST_BODY_BYTES, seconds: float = BODY_SECONDS) -> bytes:
    """The body as it came. Raises Refusal with 413, 408 or 415."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "encoding_refused", "bodies are sent without a Content-Encoding")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise Refusal(408, "body_too_slow", f"the body took longer than {seconds:.0f} seconds") from None
    return bytes(body)


def _too_large(most: int) -> Refusal:
    return Refusal(413, "content_too_large", f"a body has at most {most:,} bytes", headers={"connection": "close"})


def ensure_json(request: Request, body: bytes) -> None:
    """Raises Refusal with 415: a form of a page elsewhere can be sent without asking, JSON cannot."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise Refusal(415, "media_type_refused", "the body is application/json", "set the Content-Type")
