"""The application over an open ledger, asked in this process as uvicorn would ask it, with real tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx2
from msgspec import Struct

import weft
from weft.aio.crossing import Pool
from weft.aio.open_ledger import SharedInference
from weft.kernel.authority import Layer, Principal, PrincipalKind, Rights
from weft.ledger.api import Ledger
from weft.programs.accounts import Accounts
from weft.runtime.egress.context_tokens import RootKey, TokenContent, read, sign
from weft.surfaces.opening import OWNER, context_from_env
from weft.surfaces.server.application import Application, Served
from weft.surfaces.server.callers import Caller, Callers
from weft.surfaces.server.event_streams import EventStreams, event_endpoints
from weft.surfaces.server.guards import HostGuard
from weft.surfaces.server.mcp_endpoint import mcp_endpoints
from weft.surfaces.server.messages import message_endpoints
from weft.surfaces.server.metrics import ServerMetrics, metrics_endpoint
from weft.surfaces.server.sign_in import sign_in_endpoints

T = TypeVar("T")
PORT = 8420
BASE_URL = f"http://127.0.0.1:{PORT}"
KEY = RootKey.new(1)
SOON_MS = 1_000_000


class Site:
    """A served ledger. Its requests are answered one after the other."""

    def __init__(self, ledger: Ledger, mcp_writes: Sequence[str] = ()) -> None:
        self.ledger, self.pool = ledger, Pool(2)
        self.now_ms, self.revoked, self.notes, self.looks = 0, set[str](), list[str](), 0
        self.accounts = Accounts(ledger, lambda: self.now_ms)
        self.served = Served(
            ledger=ledger,
            crossing=self.pool,
            callers=Callers(self, self.accounts, self.pool, lambda: self.now_ms),
            hosts=HostGuard(PORT),
            machine=ledger.machine,  # type: ignore[attr-defined]
            note=self.notes.append,
        )
        self.streams = EventStreams(self.served)
        self.metrics = ServerMetrics(lambda: len(self.streams))
        endpoints = [
            *message_endpoints(self.served, self.streams),
            *event_endpoints(self.served, self.streams),
            *mcp_endpoints(self.served, SharedInference(None), mcp_writes),
            *sign_in_endpoints(self.served, self.accounts),
            metrics_endpoint(self.served, self.metrics),
        ]
        self.application = Application(self.served, endpoints)
        self.application.on_answered.append(self.metrics.count)
        self._runner = asyncio.Runner()

    def verified_token(self, token: str) -> TokenContent:
        return read(token, {KEY.number: KEY.public_bytes}, now_ms=self.now_ms, revoked=self.revoked)

    def withdrawn(self, callers: Sequence[Caller]) -> Iterable[Caller]:
        self.looks += 1
        return [caller for caller in callers if not self.revoked.isdisjoint(caller.ids)]

    def caller(self, token: str) -> Caller:
        return self.run(self.served.callers.caller({"authorization": f"Bearer {token}"}))

    def token(
        self,
        acting: str | None = None,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        credentials: Sequence[str] | None = None,
        expires_ms: int = SOON_MS,
    ) -> str:
        """Of the owner, or of somebody who acts on their behalf; without `allow` with all rights."""
        layers = (Layer(tuple(allow) or ("*",), tuple(deny)),) if allow or deny else ()
        context = context_from_env(OWNER, variable=None, rights=Rights(layers)).child(credentials=credentials)
        if acting is not None:
            context = context.delegate(Principal(PrincipalKind.PROGRAM, acting))
        return sign(context, KEY, expires_ms=expires_ms, begins_with_owner=True)

    def token_of(self, rights: Rights) -> str:
        """Of the owner, with these rights."""
        context = context_from_env(OWNER, variable=None, rights=rights)
        return sign(context, KEY, expires_ms=SOON_MS, begins_with_owner=True)

    def ask(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        token: str | None = "",
        headers: dict[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answered:
        """What is answered; as the owner, unless a token is given, or None for nobody."""
        sent = {} if token is None else {"authorization": f"Bearer {token or self.token()}"}
        return self._runner.run(self._asked(method, path, json, {**sent, **(headers or {})}, content))

    async def _asked(
        self, method: str, path: str, json: Any, headers: dict[str, str], content: bytes | None
    ) -> Answered:
        transport = httpx2.ASGITransport(self.application, raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            response = await client.request(method, path, json=json, headers=headers, content=content)
            return Answered(response.status_code, dict(response.headers), response.content)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it answers, in the event loop of the threads."""
        return self._runner.run(coroutine)

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes = b"") -> Answered:
        """As `ask`, with the path and the query as they are written, and no header but these."""
        return self._runner.run(self._sent(method, url, headers, body))

    async def _sent(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Answered:
        path, _, query = url.removeprefix(BASE_URL).partition("?")
        named = {"host": f"127.0.0.1:{PORT}", **{name.lower(): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", PORT),
        }
        messages: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def sent(message: Any) -> None:
            messages.append(message)

        await self.application(scope, receive, sent)
        began, *parts = messages
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in began["headers"]}
        return Answered(began["status"], headers, b"".join(part.get("body", b"") for part in parts))

    async def asked(
        self, method: str, path: str, json: Any = None, *, token: str = "", headers: dict[str, str] | None = None
    ) -> Answered:
        """As `ask`, from within `run`."""
        sent = {"authorization": f"Bearer {token or self.token()}", **(headers or {})}
        return await self._asked(method, path, json, sent, None)

    def close(self) -> None:
        self._runner.run(self.pool.close(lambda: None))
        self._runner.close()


class Answered(Struct, frozen=True):
    """A response, read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        import msgspec

        return msgspec.json.decode(self.body)


@contextmanager
def open_site(path: str = ":memory:", mcp_writes: Sequence[str] = ()) -> Iterator[Site]:
    with weft.open(path, variable=None) as ledger:
        site = Site(ledger, mcp_writes)
        try:
            yield site
        finally:
            site.close()
