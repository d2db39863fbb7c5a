"""What is refused before a request is looked at: foreign hosts and origins, and bodies that are too large, come too
slowly or are of a type that a page elsewhere could send. Every answer carries the headers that browsers obey.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

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


class HostGuard:
    """Lets requests through that were meant for this server. Names that only lead here, as a page's of somebody else by
    its own name server, are no hosts of ours."""

    def __init__(self, port: int, names: Iterable[str] = (), *, scheme: str = "http") -> None:
        hosts = {*LOOPBACK_NAMES, *names}
        self.hosts = frozenset(f"{name}:{port}" for name in hosts) | frozenset(names)
        self.origins = frozenset(f"{scheme}://{host}" for host in self.hosts)

    def check(self, request: Request) -> None:
        """Raises Refusal with 421 or 403."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            raise Refusal(421, "host_unknown", "this server does not answer for that host")
        origins = request.headers.getlist("origin")
        if origins and (len(origins) != 1 or origins[0].lower() not in self.origins):
            raise Refusal(403, "origin_refused", "this server is asked by its own pages and by programs")


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
