"""People sign in: the owner by a link that counts once, others by the password that they chose when they were invited.
A browser gets a cookie then, which no script can read. Whoever is signed in asks who they are, and signs out.

Passwords are hashed one at a time, since each hash takes 64 MiB; few may wait. Who is mistaken too often waits.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import Response

from weft.programs.accounts import SIGN_IN_PATH
from weft.surfaces.server.application import Served, json_response
from weft.surfaces.server.callers import SECURE_COOKIE, Caller
from weft.surfaces.server.guards import RateLimit, ensure_json, read_body
from weft.surfaces.server.problems import Refusal
from weft.surfaces.server.route_table import ANY_CALLER, BASE, Endpoint, EndpointDetails
from weft.surfaces.wire.forms import form
from weft.verbs.answers import ServedCaller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from weft.programs.accounts import Accounts, SignedIn

T = TypeVar("T")
AFTER_SIGN_IN = f"{BASE}/me"
MOST_SIGN_IN_BYTES = 8 * 1024
MOST_WAITING = 8
"""For a hash: the last one waits about a second."""


class _SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    password: str


class _Acceptance(Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    password: str


def sign_in_endpoints(served: Served, accounts: Accounts) -> list[Endpoint]:
    sign_in = SignIn(served, accounts)
    return [
        Endpoint(method="GET", path=f"{SIGN_IN_PATH}/{{code}}", right=None, handler=sign_in.follow_link),
        Endpoint(method="POST", path=f"{BASE}/sign-in", right=None, handler=sign_in.sign_in),
        Endpoint(method="POST", path=f"{BASE}/invitations", right=None, handler=sign_in.accept),
        Endpoint(
            method="POST",
            path=f"{BASE}/sign-out",
            right=ANY_CALLER,
            handler=sign_in.sign_out,
            details=EndpointDetails(name="sign_out", tag="sign-in", summary="End a cookie.", statuses=(204,)),
        ),
        Endpoint(
            method="GET",
            path=f"{BASE}/me",
            right=ANY_CALLER,
            handler=sign_in.me,
            details=EndpointDetails(
                name="me", tag="sign-in", summary="Show who is asking, by the credential.", answer=ServedCaller
            ),
        ),
    ]


class SignIn:
    """The routes of one server."""

    def __init__(self, served: Served, accounts: Accounts) -> None:
        self._served, self._accounts = served, accounts
        self._by_name = RateLimit(5, per_second=1 / 30)
        self._by_address = RateLimit(20, per_second=1 / 10)
        self._hashing, self._waiting = asyncio.Lock(), 0

    async def follow_link(self, request: Request, _: Caller | None, names: dict[str, str]) -> Response:
        """The owner's link. Browsers that look ahead, and programs that ask for the headers alone, do not use it up."""
        purpose = request.headers.get("sec-purpose", request.headers.get("purpose", ""))
        is_opened = (
            request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        )  # a page elsewhere can name an image
        if request.method == "HEAD" or "prefetch" in purpose or not is_opened:
            raise Refusal(403, "prefetch_refused", "the link is followed by opening it")
        with self._attempt(request):
            code = names["code"]
            signed_in = await self._served.crossing.run(lambda: self._accounts.follow_owner_link(code))
            if signed_in is None and await self._served.crossing.run(lambda: self._accounts.is_invitation(code)):
                hint = f"POST {BASE}/invitations takes the code and the password that you choose"
                raise Refusal(409, "password_missing", "this is an invitation", hint)
            return self._entered(signed_in, "the link was used or has expired", "start `weft serve` again for another")

    async def sign_in(self, request: Request, _: Caller | None, __: dict[str, str]) -> Response:
        given = await _body(request, _SignIn)
        with self._attempt(request, given.name):
            async with self._one_hash():
                signed_in = await self._served.crossing.run(lambda: self._accounts.sign_in(given.name, given.password))
            return self._entered(signed_in, "name or password is wrong", "whoever owns the ledger can invite you again")

    async def accept(self, request: Request, _: Caller | None, __: dict[str, str]) -> Response:
        given = await _body(request, _Acceptance)
        with self._attempt(request):
            async with self._one_hash():
                signed_in = await self._served.crossing.run(lambda: self._accounts.accept(given.code, given.password))
            return self._entered(signed_in, "the invitation was used or has expired", "ask for another one")

    async def sign_out(self, request: Request, caller: Caller | None, _: dict[str, str]) -> Response:
        assert caller is not None
        if caller.credential != "cookie":
            raise Refusal(409, "not_signed_in", "a token is not signed in", "`weft token revoke` ends it")
        await self._served.crossing.run(lambda: self._accounts.sign_out(caller.ids[0]))
        return Response(status_code=204, headers={"set-cookie": self._cookie("", 0)})

    async def me(self, request: Request, caller: Caller | None, _: dict[str, str]) -> Response:
        assert caller is not None
        return json_response(request, _who(caller))

    # --- cookies ------------------------------------------------------------------------------------------------

    def _entered(self, signed_in: SignedIn | None, detail: str, hint: str) -> Response:
        if signed_in is None:
            raise Refusal(401, "sign_in_refused", detail, hint)
        lasts_s = (signed_in.browser.expires_ms - self._served.callers.now_ms()) // 1000
        headers = {"set-cookie": self._cookie(signed_in.cookie, lasts_s), "location": AFTER_SIGN_IN}
        return Response(status_code=303, headers=headers)

    def _cookie(self, value: str, lasts_s: int) -> str:
        name = self._served.callers.cookie_name
        secure = "; Secure" if name == SECURE_COOKIE else ""
        return f"{name}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"

    # --- limits -------------------------------------------------------------------------------------------------

    def _attempt(self, request: Request, name: str | None = None) -> _Attempt:
        limits = [(self._by_address, self._served.hosts.client_address(request))]
        if name is not None:
            limits.append((self._by_name, name))
        return _Attempt(limits)

    @asynccontextmanager
    async def _one_hash(self) -> AsyncIterator[None]:
        if self._waiting >= MOST_WAITING:
            raise Refusal(503, "sign_in_busy", "too many people sign in at once", headers={"retry-after": "2"})
        self._waiting += 1
        try:
            async with self._hashing:
                yield
        finally:
            self._waiting -= 1


class _Attempt:
    """One attempt to sign in. It is counted before it is looked at, so that many at once count as well, and taken back
    where nobody was mistaken."""

    def __init__(self, limits: list[tuple[RateLimit, str]]) -> None:
        self._limits = limits

    def __enter__(self) -> None:
        for limit, key in self._limits:
            limit.take(key)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not (isinstance(error, Refusal) and error.status == 401):
            for limit, key in self._limits:
                limit.give_back(key)


async def _body(request: Request, kind: type[T]) -> T:
    body = await read_body(request, MOST_SIGN_IN_BYTES)
    ensure_json(request, body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, "invalid_input", str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise Refusal(400, "invalid_json", "the body is no JSON") from None


def _who(caller: Caller) -> object:
    return form(
        ServedCaller(
            principal=str(caller.authority.principal),
            on_behalf_of=tuple(map(str, caller.authority.on_behalf_of)),
            rights=caller.authority.rights.layers,
            credential=caller.credential,
            expires_at=caller.expires_ms,
            csrf_token=caller.csrf_token or None,
        )
    )
