"""The ASGI application: a request is guarded, its caller known, its right checked, and then its route is asked.

Paths are taken apart before they are decoded, so that a name may hold a slash as `%2F`.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct, field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from weft.kernel.clock import SystemClock
from weft.surfaces.server.callers import Caller, Callers
from weft.surfaces.server.guards import (
    HTTPS_HEADERS,
    SECURITY_HEADERS,
    HostGuard,
    RateLimit,
    ensure_json,
    ensure_small_head,
    read_body,
)
from weft.surfaces.server.problems import Refusal, problem_of
from weft.surfaces.server.route_table import (
    ANY_CALLER,
    BASE,
    READING_METHODS,
    RETRY_HEADER,
    ROUTES,
    Endpoint,
    Route,
    ensure_listed,
)
from weft.surfaces.server.verb_requests import VerbRequests
from weft.surfaces.wire.forms import document
from weft.surfaces.wire.records import MEDIA_TYPE as RECORD_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Receive, Scope, Send

    from weft.ledger.api import Ledger
    from weft.runtime.ledger_port import Executor
    from weft.verbs.declaration import Machine

MOST_AT_ONCE, MOST_PER_SECOND = 2000, 1000.0
"""Requests of one credential, and of those that were made from it. Two cores answer fewer: it stops one that asks in a
circle, and no one who works."""
Note = Callable[[str], None]
Handler = Callable[[Request], Awaitable[Response]]


class Served(Struct, frozen=True, kw_only=True):
    """What the application answers from: one open ledger, its threads, and the machine that it works on."""

    ledger: Ledger
    crossing: Executor
    callers: Callers
    hosts: HostGuard
    machine: Machine
    note: Note
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the server is to end: streams end then, and are resumed elsewhere."""


class AnsweredRequest(Struct, frozen=True, kw_only=True):
    """A request that was answered. Its route is a path of the table, or UNKNOWN: nothing that the client wrote."""

    method: str
    route: str
    status: int
    began_ms: int
    seconds: float


SETS_UP_TRIGGERS = ("trigger_create", "trigger_configure", "trigger_resume")
UNKNOWN = "unknown"
CLOCK = SystemClock()
ROUTE = "weft.route"
"""In the scope of a request, once it is known: the path of its route."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Application:
    """Answers requests over one open ledger. `on_answered` hears of each of them."""

    def __init__(self, served: Served, more: Iterable[Endpoint] = ()) -> None:
        self._served = served
        self.on_answered: list[Callable[[AnsweredRequest], None]] = []
        self._headers = {**SECURITY_HEADERS, **(HTTPS_HEADERS if served.hosts.is_secure else {})}
        self._rates = RateLimit(MOST_AT_ONCE, per_second=MOST_PER_SECOND)
        self._paths = PathTree()
        self.endpoints = self._all_endpoints(more)
        for endpoint in self.endpoints:
            ensure_listed(endpoint.method, endpoint.path, endpoint.right)
            self._paths.add(endpoint)

    def _all_endpoints(self, more: Iterable[Endpoint]) -> list[Endpoint]:
        verbs = (_verb_endpoint(self._served, route) for route in ROUTES)
        return [*verbs, *_public(self._served, self.described), *more]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        assert scope["type"] == "http", "uvicorn is told to take nothing else"
        request, began_ms, began = Request(scope, receive), CLOCK.now_ms(), time.monotonic()
        try:
            response = await self._answered(request)
        except ClientDisconnect:
            return
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        if type(response) is Response:  # and no stream
            if is_to_compress(request, response):
                await self._served.crossing.run(lambda: compress(response))
            if request.method == "HEAD":
                response.body = b""  # its length stays in the header
        try:
            await response(scope, receive, send)
        finally:
            answered = AnsweredRequest(
                method=request.method if request.method in METHODS else UNKNOWN,
                route=scope.get(ROUTE, UNKNOWN),
                status=response.status_code,
                began_ms=began_ms,
                seconds=time.monotonic() - began,
            )
            for hear in self.on_answered:
                hear(answered)

    def described(self) -> bytes:
        """The OpenAPI description of all endpoints."""
        from weft.surfaces.server.openapi import description

        return document(description(self.endpoints)).encode()

    def end_streams(self) -> None:
        self._served.ending.set()

    async def _answered(self, request: Request) -> Response:
        try:
            ensure_small_head(request)
            self._served.hosts.check(request)
            if request.method == "OPTIONS":  # whoever asks: what a path takes stands in the description, too
                return Response(status_code=204, headers={"allow": self._paths.allowed(raw_path(request))})
            endpoint, names = self._paths.find(request.method, raw_path(request))
            request.scope[ROUTE] = endpoint.path
            caller = None
            if endpoint.right is not None:
                changes = request.method not in READING_METHODS
                caller = await self._served.callers.caller(request.headers, changes=changes)
                self._rates.take(caller.ids[0])
                if endpoint.right != ANY_CALLER and not caller.authority.rights.may_allow(endpoint.right):
                    raise caller.authority.refusal(endpoint.right)
            return await endpoint.handler(request, caller, names)
        except ClientDisconnect:
            raise
        except Exception as error:  # whatever failed is answered, and told in the log
            response = problem_of(error)
            if response.status_code == 500:
                self._served.note(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
            return response


def raw_path(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return raw.partition(b"?")[0].decode("ascii", "replace")


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


# --- Which endpoint a path means.


class PathTree:
    """Endpoints by the parts of their paths. A name stands for any one part, and a fixed part goes before it."""

    def __init__(self) -> None:
        self._fixed: dict[str, PathTree] = {}
        self._named: PathTree | None = None
        self._endpoints: dict[str, Endpoint] = {}

    def add(self, endpoint: Endpoint) -> None:
        node = self
        for part in endpoint.path.strip("/").split("/"):
            if part.startswith("{"):
                node._named = node = node._named or PathTree()
            else:
                node = node._fixed.setdefault(part, PathTree())
        assert endpoint.method not in node._endpoints, f"{endpoint.method} {endpoint.path} is there twice"
        node._endpoints[endpoint.method] = endpoint

    def allowed(self, path: str) -> str:
        """The methods of a path, as `Allow` has them. Raises Refusal with 404."""
        return self._node(path)[0]._allow

    @property
    def _allow(self) -> str:
        return ", ".join(sorted({*self._endpoints, "OPTIONS", *(["HEAD"] if "GET" in self._endpoints else [])}))

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Raises Refusal with 404 or 405."""
        node, values = self._node(path)
        endpoint = node._endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            headers = {"allow": node._allow}
            raise Refusal(405, "method_refused", f"this route takes {headers['allow']}", headers=headers)
        names = [part[1:-1] for part in endpoint.path.strip("/").split("/") if part.startswith("{")]
        return endpoint, dict(zip(names, values, strict=True))

    def _node(self, path: str) -> tuple[PathTree, list[str]]:
        """What stands at a path, and the names in it."""
        values: list[str] = []
        node: PathTree | None = self
        for part in path.strip("/").split("/"):
            assert node is not None
            fixed = node._fixed.get(part)
            if fixed is None:
                values.append(unquote(part, errors="surrogateescape"))
            node = fixed or node._named
            if node is None:
                break
        if node is None or not node._endpoints:
            raise Refusal(404, "route_unknown", "there is no such route", f"{BASE} has them: see /openapi.json")
        return node, values


# --- Answers, compressed for who takes that.

COMPRESSED_TYPES = ("application/json", "application/problem+json", "text/", RECORD_TYPE)
LEAST_COMPRESSED_BYTES = 1024
"""Less than that fits into one packet anyway."""
GZIP_LEVEL = 5


def is_to_compress(request: Request, response: Response) -> bool:
    kind = response.headers.get("content-type", "")
    if not kind.startswith(COMPRESSED_TYPES) or len(response.body) <= LEAST_COMPRESSED_BYTES:
        return False
    response.headers.add_vary_header("accept-encoding")
    return "content-encoding" not in response.headers and takes_gzip(request.headers.get("accept-encoding", ""))


def takes_gzip(accepted: str) -> bool:
    """By `gzip;q=0.5, *;q=0`. What is named goes before `*`."""
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, details = item.partition(";")
        weight = details.strip().removeprefix("q=") or "1"
        weights[name.strip()] = float(weight) if weight.replace(".", "", 1).isdecimal() else 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def compress(response: Response) -> None:
    """The same document by other bytes, so its tag becomes a weak one."""
    response.body = gzip.compress(response.body, GZIP_LEVEL, mtime=0)
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))
    if tag := response.headers.get("etag"):
        response.headers["etag"] = f"W/{tag.removeprefix('W/')}"


# --- Endpoints of verbs.


def _verb_endpoint(served: Served, route: Route) -> Endpoint:
    requests: list[VerbRequests] = []  # made when it is first asked: a verb's module is loaded then

    async def handle(request: Request, caller: Caller | None, names: dict[str, str]) -> Response:
        assert caller is not None
        if route.verb_name in SETS_UP_TRIGGERS and caller.credentials is not None:
            raise caller.authority.refusal(
                route.right, "set up a trigger, which would fire with other keys", "use a token without --credential"
            )
        if not requests:
            requests.append(VerbRequests(route))
        body = await read_body(request)
        ensure_json(request, body)
        query = request.query_params.multi_items()
        arguments = requests[0].arguments(names, query, body, request.headers.get(RETRY_HEADER))

        is_whole = RECORD_TYPE in request.headers.get("accept", "")

        def answer() -> Any:
            ledger = served.ledger.acting_as(caller.authority)
            machine = served.machine if caller.may_use_machine else None
            return requests[0].answer(ledger, arguments, machine, is_whole=is_whole)

        media_type = RECORD_TYPE if is_whole else JSON_TYPE
        return json_response(request, await served.crossing.run(answer), route.status, media_type=media_type)

    return Endpoint(method=route.method, path=route.full_path, right=route.right, handler=handle)


JSON_TYPE = "application/json"


def json_response(request: Request, value: Any, status: int = 200, *, media_type: str = JSON_TYPE) -> Response:
    """A document; one that the caller has already is not sent again."""
    if value is None:
        return Response(status_code=204)
    text = document(value).encode("utf-8", "surrogatepass")
    headers = {"vary": "accept"}
    if request.method in ("GET", "HEAD"):
        headers |= {"etag": f'"{hashlib.sha256(text).hexdigest()[:32]}"', "cache-control": "private, no-cache"}
        wanted = request.headers.get("if-none-match", "")
        if headers["etag"] in [tag.strip().removeprefix("W/") for tag in wanted.split(",")]:
            return Response(status_code=304, headers=headers)
    return Response(text, status, headers, media_type=media_type)


# --- What anybody may ask.


def _public(served: Served, describe: Callable[[], bytes]) -> list[Endpoint]:
    described: list[bytes] = []

    async def openapi(request: Request, _: Caller | None, __: dict[str, str]) -> Response:
        if not described:
            described.append(await served.crossing.run(describe))
        return Response(described[0], media_type="application/json")

    async def health(request: Request, _: Caller | None, __: dict[str, str]) -> Response:
        return json_response(request, {"status": "ok"})

    async def ready(request: Request, _: Caller | None, __: dict[str, str]) -> Response:
        """Whether the ledger can be read now."""
        await served.crossing.run(served.ledger.newest)
        return json_response(request, {"status": "ready"})

    handlers = {"/openapi.json": openapi, "/health": health, "/ready": ready}
    return [Endpoint(method="GET", path=path, right=None, handler=handler) for path, handler in handlers.items()]
