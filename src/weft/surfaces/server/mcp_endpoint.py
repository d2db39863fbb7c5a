"""MCP over streamable HTTP at /mcp: the tools and resources of the ledger, for each request in the name of its token.

Nothing is kept between requests, so any server of the ledger answers any of them. The tools read, and write only where
`weft serve` names the tool and the token may. A request that stays open, as a subscription does, ends with its token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from starlette.responses import Response

from weft.aio.open_ledger import AsyncOpenLedger, SharedInference
from weft.surfaces.server.application import Served
from weft.surfaces.server.guards import MOST_BODY_BYTES
from weft.surfaces.server.route_table import Endpoint

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

    from weft.aio.crossing import Pool
    from weft.surfaces.server.callers import Caller

PATH = "/mcp"
RIGHT = "session:read"
METHODS = ("GET", "POST", "DELETE")
LOOK_SECONDS = 0.5
"""So often it is looked whether the token still counts: an open request ends within a second of its revocation."""


def mcp_endpoints(served: Served, inference: SharedInference, writing: Iterable[str] = ()) -> list[Endpoint]:
    """`writing`: the tools that write, as they were named when the server was configured."""
    tools = tuple(writing)

    async def handle(_: Request, caller: Caller | None, __: dict[str, str]) -> Response:
        assert caller is not None
        await served.crossing.run(_load_protocol)  # it takes a second, once
        return _ProtocolResponse(served, inference, tools, caller)

    return [Endpoint(method=method, path=PATH, right=RIGHT, handler=handle) for method in METHODS]


def _load_protocol() -> None:
    import mcp.server.streamable_http_manager

    import weft.surfaces.mcp.server

    del mcp, weft


class _ProtocolResponse(Response):
    """Leaves the request to the library of the protocol."""

    def __init__(self, served: Served, inference: SharedInference, writing: tuple[str, ...], caller: Caller) -> None:
        from weft.surfaces.mcp.server import LedgerServer, caller_authority

        super().__init__()
        self._served, self._caller = served, caller
        if caller.credentials is not None:  # the tool sends with all keys of whoever the token acts for
            writing = tuple(tool for tool in writing if tool != "send")
        ledger = served.ledger.acting_as(caller_authority(caller.authority, writing, ()))
        mirror = AsyncOpenLedger(ledger, cast("Pool", served.crossing), inference)
        self._answers = LedgerServer(mirror, writing, served.note)
        self._is_begun = self._is_complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._is_begun = True
                given = {name for name, _ in message["headers"]}
                ours = [pair for pair in self.raw_headers if pair[0] not in {*given, b"content-length"}]
                message = {**message, "headers": [*message["headers"], *ours]}
            elif message["type"] == "http.response.body":
                self._is_complete = not message.get("more_body", False)
            await send(message)

        answering = asyncio.ensure_future(self._answer(scope, receive, send_with_headers))
        watching = asyncio.ensure_future(self._until_it_ends())
        changing = asyncio.ensure_future(self._answers.watch.run())
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, watching, changing):
                task.cancel()
            results = await asyncio.gather(answering, watching, changing, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        if not self._is_begun:
            await Response(status_code=503)(scope, receive, send)
        elif not self._is_complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        manager = StreamableHTTPSessionManager(
            self._answers.server, stateless=True, max_request_body_size=MOST_BODY_BYTES
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _until_it_ends(self) -> None:
        """Return once the token counts no longer, or the server ends."""
        while not self._served.ending.is_set() and await self._served.callers.still_counts(self._caller):
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._served.ending.wait()
            except TimeoutError:
                continue
