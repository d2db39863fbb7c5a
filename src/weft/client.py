"""A ledger that somebody else serves, over HTTP: `async with client.connect(url, token=…) as ledger:`.

It has the verbs that have a route, by their names, and they take and answer what they do on an open ledger:
`await ledger.sessions(limit=10)`. Parameters are checked here as the verb checks them, before anything is sent. Errors
are raised as the classes that the ledger raises.

Only what is safe to repeat is sent again by itself: what reads, what carries a retry key, and what was refused before
it was looked at. Where an answer was lost of anything else, OutcomeUnknown says so.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from typing import Any, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Struct

from weft.kernel.errors import (
    Action,
    Advice,
    Conflict,
    InvalidInput,
    LedgerError,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    StoreError,
    TokenRefused,
    Unsupported,
    WeftError,
    hidden_address,
    without_credentials,
)
from weft.surfaces.server.route_table import BASE, MOST_PAGE, RETRY_HEADER, RETRY_PARAMETER, ROUTES, Route, is_paged
from weft.surfaces.wire.hints import phrase
from weft.surfaces.wire.records import MEDIA_TYPE as RECORD_TYPE
from weft.surfaces.wire.records import UnreadableRecord, read
from weft.verbs.declaration import ParameterGroup, Verb, means_nothing

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_SECONDS = 60.0
"""So long an answer is waited for."""
CONNECT_SECONDS = 5.0
ATTEMPTS = 4
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
MOST_ANSWER_BYTES = 256 * 1024 * 1024
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"


def connect(
    url: str,
    *,
    token: str,
    timeout: float = TIMEOUT_SECONDS,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> ServedLedger:
    """The ledger that is served at this address, in the name of whom the token was made for.

    A token goes over TLS, or to this machine alone. `timeout`: so many seconds an answer is waited for. `transport`
    takes the place of connections, for tests."""
    return ServedLedger(checked_url(url), token, timeout, transport)


def checked_url(url: str) -> str:
    """The origin of a server. Raises InvalidInput for anything else, and where a token would be sent in the clear."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        raise InvalidInput(f"{hidden_address(str(url))} is no address of a server", _HOW) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(f"{hidden_address(url)} is no address of a server", _HOW)
    if parsed.userinfo or parsed.query or parsed.fragment or parsed.path not in ("", "/"):
        raise InvalidInput(f"{hidden_address(url)} is more than the address of a server", _HOW)
    if parsed.scheme == "http" and not _is_this_machine(parsed.host):
        raise InvalidInput(f"{parsed.host} is another machine, where a token goes over TLS alone", "use https://")
    return str(parsed).rstrip("/")


_HOW = "write it like http://127.0.0.1:8420 or https://ledger.example"


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# --- Verbs by their names.


def routes(verb_name: str) -> list[Route]:
    """The routes of a verb: one for each way in which it is asked."""
    return [route for route in ROUTES if route.verb_name == verb_name]


def chosen_route(verb: Verb[..., Any], given: Mapping[str, Any]) -> Route:
    """The route that takes these parameters, which names as many of them as it can in its path."""
    named = {name for name, value in given.items() if not means_nothing(value)}
    fitting = [
        route
        for route in routes(verb.__name__)
        if named >= {*route.path_names, *route.always} and not named & {*route.without} - {*route.always}
    ]
    if fitting:
        return max(fitting, key=lambda route: len(route.path_names))
    missing = sorted({name for route in routes(verb.__name__) for name in route.path_names} - named)
    if missing:
        raise InvalidInput(f"a server takes {verb.name} only with {' and '.join(missing)}", "name it")
    raise Unsupported(f"a server does not take {verb.name} with these parameters", "leave some of them out")


class ServedLedger(AbstractAsyncContextManager["ServedLedger"]):
    """A ledger at a server. Its verbs are its methods."""

    def __init__(
        self, url: str, token: str, timeout: float, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self.url, token = url, token.strip()  # a file of a token ends with a line break
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise TokenRefused("the token is none", Action.GET_TOKEN)
        self._headers = {"authorization": f"Bearer {token}"}
        self._timeout, self._transport = timeout, transport
        self._client: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<ledger at {self.url}>"

    async def __aenter__(self) -> ServedLedger:
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx2.Timeout(self._timeout, connect=CONNECT_SECONDS),
            transport=self._transport,
            follow_redirects=False,  # a token is for one server
            trust_env=False,  # as are the proxies of an environment
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def __getattr__(self, name: str) -> Any:
        """A verb that has a route, to be awaited."""
        if name.startswith("__"):
            raise AttributeError(name)
        verb = self.verb(name)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            return await self.call(verb, *args, **kwargs)

        asked.__name__, asked.__doc__ = name, verb.__doc__
        return asked

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(route.verb_name for route in ROUTES)})

    @staticmethod
    def verb(name: str) -> Verb[..., Any]:
        """Raises AttributeError for what is no verb, and Unsupported for a verb that no server offers."""
        import weft.verbs

        if not routes(name) and name in weft.verbs.MODULE_OF:
            raise Unsupported(f"{name} has no route of a server", "open the ledger itself")
        if not routes(name):
            raise AttributeError(f"a served ledger has no verb {name!r}")
        return routes(name)[0].verb

    async def call(self, verb: Verb[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same with the types of the verb: `await ledger.call(weft.verbs.sessions, limit=10)`."""
        answered: R = await self.record(verb, _bound(verb, args, kwargs))
        return answered

    async def record(self, verb: Verb[..., Any], arguments: Mapping[str, Any]) -> Any:
        """What the verb answers for these parameters; as JSON, where this version cannot read the record."""
        status, answered = await self._answer(verb, arguments, RECORD_TYPE)
        if status == 204:
            return None
        try:
            return read(answered, verb.answer_type())
        except UnreadableRecord:
            return answered

    async def json(self, verb: Verb[..., Any], arguments: Mapping[str, Any]) -> Any:
        """The JSON form of it; None, where nothing is told."""
        return (await self._answer(verb, arguments, JSON_TYPE))[1]

    async def _answer(self, verb: Verb[..., Any], arguments: Mapping[str, Any], media_type: str) -> tuple[int, Any]:
        self.verb(verb.__name__)
        given = _checked(verb, arguments)
        route = chosen_route(verb, given)
        given = {name: value for name, value in given.items() if name not in route.without}
        if not is_paged(route):
            return await self._asked(route, given, media_type)
        return await self._pages(route, given, media_type)

    async def _pages(self, route: Route, given: dict[str, Any], media_type: str) -> tuple[int, Any]:
        """All pages of a list, or those that make as many records as were asked for, as one."""
        own = {parameter.name: parameter for parameter in route.verb.parameters}
        wanted = given.pop("limit", own["limit"].default if "limit" in own else None)
        items: list[Any] = []
        while True:
            size = MOST_PAGE if wanted is None else min(wanted - len(items), MOST_PAGE)
            status, page = await self._asked(route, {**given, "limit": size}, media_type)
            items += page["items"]
            if page["next"] is None or (wanted is not None and len(items) >= wanted):
                following = page["next"] if "after" in own else None
                return status, {**page, "items": items, "next": following}
            given = {**given, "after": page["next"]}

    async def _asked(self, route: Route, given: dict[str, Any], media_type: str) -> tuple[int, Any]:
        given = {name: value for name, value in given.items() if name not in route.always}
        path = BASE + _filled(route.path, given)
        headers = {"accept": media_type}
        key = given.pop(RETRY_PARAMETER, None) if route.method != "GET" else None
        if key is not None:
            headers[RETRY_HEADER] = key
        sent: dict[str, Any] = {"headers": headers}
        if route.method == "GET":
            sent["params"] = list(_query(given))
        else:
            sent["content"] = msgspec.json.encode(given)
            headers["content-type"] = JSON_TYPE
        response = await self._sent(route.method, path, sent, is_safe=route.method == "GET" or key is not None)
        if response.status_code == 204:
            return 204, None
        kind = response.headers.get("content-type", "").partition(";")[0]
        if response.status_code >= 300 or kind not in (JSON_TYPE, RECORD_TYPE):
            raise_problem(response)
        return response.status_code, _decoded(response.content)

    async def _sent(self, method: str, path: str, sent: Mapping[str, Any], *, is_safe: bool) -> httpx2.Response:
        """The answer of one of the attempts, whatever it is."""
        if self._client is None:
            raise InvalidInput(f"{self!r} is not connected", "use it as `async with connect(…) as ledger`")
        for attempt in range(1, ATTEMPTS + 1):
            pause = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LONGEST_PAUSE_SECONDS)
            try:
                response = await self._client.request(method, path, **sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # nothing was sent
                if attempt == ATTEMPTS:
                    raise _unreachable(self.url, error) from None
            except httpx2.TransportError as error:
                if not is_safe:
                    lost = f"{self.url} did not answer, and may have done it: {type(error).__name__}"
                    raise OutcomeUnknown(lost, Action.LOOK_BEFORE_RETRY) from None
                if attempt == ATTEMPTS:
                    raise _unreachable(self.url, error) from None
            else:
                is_refused_first = response.status_code == 429
                if attempt == ATTEMPTS or not (is_refused_first or (is_safe and response.status_code == 503)):
                    return response
                pause = max(pause, _retry_after(response))
                if pause > LONGEST_PAUSE_SECONDS:
                    return response
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt answers or raises")


def _unreachable(url: str, error: Exception) -> StoreError:
    said = without_credentials(str(error)) or type(error).__name__
    return StoreError(f"{url} does not answer: {said}", "look whether the server runs there")


def _retry_after(response: httpx2.Response) -> float:
    stated = response.headers.get("retry-after", "")
    return float(stated) if stated.isdecimal() else 0.0


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        import json

        return json.loads(content)  # integers of any size


# --- Parameters.


def _bound(verb: Verb[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by parameter. A group is its record, or its fields by name."""
    names = {parameter.name for parameter in verb.parameters if parameter.group is not None}
    grouped = {name: value for name, value in kwargs.items() if name in names}
    plain = {name: value for name, value in kwargs.items() if name not in names}
    bound = inspect.signature(verb.function).bind_partial(None, *args, **plain)
    arguments = dict(list(bound.arguments.items())[1:])
    for machine in verb.machines:
        if machine in arguments:
            raise InvalidInput(f"{machine} is the server's own", "leave it out")
    for name, value in list(arguments.items()):
        if isinstance(value, ParameterGroup):
            del arguments[name]
            grouped = {**{field: getattr(value, field) for field in value.__struct_fields__}, **grouped}
    return {**arguments, **grouped}


def _checked(verb: Verb[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as JSON has them, without those that say nothing. Raises InvalidInput as the verb does."""
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        plain = msgspec.to_builtins(given)
        request = msgspec.convert(plain, verb.request_type())
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{verb.name}: {error}", Action.CORRECT_VALUE) from None
    verb.check({parameter.name: getattr(request, parameter.name) for parameter in verb.parameters})
    return dict(plain)


def _filled(path: str, given: dict[str, Any]) -> str:
    """The path with its parameters, which are taken out of what else is sent."""
    parts = []
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]
            value = given.pop(name, None)
            values = value if isinstance(value, list | tuple) else [value]
            if len(values) != 1 or not values[0]:
                raise InvalidInput(f"{name}: a server takes one at a time", "name one")
            part = quote(str(values[0]), safe="")
        parts.append(part)
    return "/".join(parts)


def _query(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield name, str(item).lower() if isinstance(item, bool) else str(item)


# --- Errors, raised as the ledger raises them.

_BY_STATUS: Mapping[int, type[LedgerError]] = {401: TokenRefused, 404: NotFound, 403: NotAllowed, 409: Conflict}


def _kinds(kind: type[WeftError] = WeftError) -> Iterator[type[WeftError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


def _kind_of(status: int, code: str) -> type[WeftError]:
    if status == 401:  # the server's own code for a missing one is that of a provider's key
        return TokenRefused
    kinds = {kind.code: kind for kind in _kinds() if "code" in vars(kind)}
    if code in kinds and kinds[code] is not WeftError:
        return kinds[code]
    return _BY_STATUS.get(status, InvalidInput if 400 <= status < 500 else StoreError)


class ServerProblem(Struct, frozen=True):
    """An error as a server tells it."""

    status: int
    detail: str
    code: str
    hint: str = ""
    action: str = ""
    arguments: dict[str, str | int] = {}
    facts: dict[str, Any] = {}


def raise_problem(response: httpx2.Response) -> NoReturn:
    """Raise what the server answered in place of a result."""
    status = response.status_code
    try:
        if response.headers.get("content-type", "").partition(";")[0] != PROBLEM_TYPE:
            raise msgspec.ValidationError
        problem = msgspec.json.decode(response.content, type=ServerProblem)
    except msgspec.DecodeError:
        said = "leads elsewhere, where no token is sent" if 300 <= status < 400 else f"answered {status}"
        raise StoreError(f"the server {said}: it is no ledger that is served", "check its address") from None
    raise error_of(problem)


def error_of(problem: ServerProblem) -> WeftError:
    """The error of a problem, with what its class tells of it."""
    kind = _kind_of(problem.status, problem.code)
    error = kind.__new__(kind, problem.detail)
    Exception.__init__(error, without_credentials(problem.detail))
    error.advice = _advice(problem, kind)
    if kind.__init__ is not WeftError.__init__:
        for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
            fact = problem.facts.get(name, _NOTHING.get(str(parameter.annotation).partition("[")[0]))
            if name not in ("hint", "message"):
                setattr(error, name, tuple(fact) if isinstance(fact, list) else fact)
    return error


def _advice(problem: ServerProblem, kind: type[WeftError]) -> Advice:
    """What to do: the action, and the sentence where it is one for this case alone."""
    action = next((action for action in Action if action == problem.action), kind.usual_action)
    advice = Advice(action, problem.arguments)
    try:
        is_usual = phrase(advice) == problem.hint
    except KeyError:  # of another version, with other arguments
        is_usual = False
    return advice if is_usual else Advice(action, problem.arguments, problem.hint)


_NOTHING: Mapping[str, Any] = {"Sequence": (), "Mapping": {}, "str": "", "int": 0, "bool": False}
"""By type what stands where a server does not say it."""
