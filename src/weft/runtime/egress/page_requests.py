"""One GET request without keys, read up to a number of bytes. Redirects are told, not followed."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from weft.kernel.errors import ProviderUnreachable
from weft.runtime.egress.connection_rules import Rules
from weft.runtime.egress.connections import Connections, DecodingError, TransportError

_HEADERS = {"accept": "text/html,text/*,application/json;q=0.9,*/*;q=0.5", "user-agent": "weft"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchedPage(Struct, frozen=True, kw_only=True):
    """What a server answered; `location` is where a redirect leads, as it stands there."""

    status: int
    content_type: str
    body: bytes
    is_cut: bool
    location: str | None = None


async def fetch_page(url: str, rules: Rules, largest: int, seconds: float) -> FetchedPage:
    """Raises ConnectionForbidden where the rules do not allow it, ProviderUnreachable where nothing comes of it."""
    connections = Connections()
    try:
        return await asyncio.wait_for(_fetched(connections, url, rules, largest), seconds)
    except (TransportError, DecodingError) as error:
        raise ProviderUnreachable(f"{url:.200}: {error}") from None
    except TimeoutError:
        raise ProviderUnreachable(f"{url:.200}: it took longer than {seconds:.0f} s") from None
    finally:
        await connections.aclose()


async def _fetched(connections: Connections, url: str, rules: Rules, largest: int) -> FetchedPage:
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
