"""Who asks: a principal made from a credential, and from nothing else that a request says.

A token is sent as `Authorization: Bearer …` and in no other way: not in a header of another name, a query or a cookie.
A browser that is signed in sends its cookie. With it nothing is changed but by our own pages: these know the session's
CSRF token, which no page of another origin can read, and browsers say in `Sec-Fetch-Site` and `Origin` whose page asks.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from weft.kernel.authority import MACHINE_RIGHT, Authority
from weft.kernel.errors import TokenRefused
from weft.surfaces.server.problems import Refusal

if TYPE_CHECKING:
    from weft.programs.accounts import Accounts
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.runtime.ledger_port import Executor

Headers = Mapping[str, str]
CSRF_HEADER = "x-weft-csrf-token"
PLAIN_COOKIE, SECURE_COOKIE = "weft", "__Host-weft"
"""Browsers take a cookie with the second name from nobody but this very host, over TLS."""
OWN_PAGES = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of our own pages, and of an address that was typed."""
LOOK_SECONDS = 0.5
"""So old an answer of `still_counts` may be: with the second after which streams ask, they end in time."""
FORGET_SECONDS = 10.0
"""A caller of whom nobody asked for so long has no stream any more."""


class Caller(Struct, frozen=True, kw_only=True):
    """In whose name a request is answered, and until when."""

    authority: Authority
    credential: Literal["token", "cookie"]
    expires_ms: int
    ids: tuple[str, ...]
    """Of the credential, and of what it was made from: with one of them revoked, it counts no longer."""

    key_number: int
    """Of the key that it was signed with."""
    credentials: frozenset[str] | None = None
    """The names of the keys that its turns may use; None: all that they are given."""
    csrf_token: str = ""
    """Of a browser: what it sends beside its cookie to change something."""

    @property
    def may_use_machine(self) -> bool:
        """Whether folders and containers of this machine are in reach: for its owner alone, if no token says less."""
        return self.authority.is_local and self.authority.allows(MACHINE_RIGHT)


class TokenSource(Protocol):
    """What is known of tokens where the server runs. All of it may block."""

    def verified_token(self, token: str) -> TokenContent:
        """What a token says that counts now. Raises TokenRefused for any other."""

    def withdrawn(self, callers: Sequence[Caller]) -> Iterable[Caller]:
        """Those of them whose token was revoked here, or signed with a key that is known no longer."""


class Callers:
    """Knows callers by their credentials, and says whether one that was let in still counts."""

    def __init__(
        self,
        tokens: TokenSource,
        accounts: Accounts,
        crossing: Executor,
        now_ms: Callable[[], int],
        *,
        cookie_name: str = PLAIN_COOKIE,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._accounts, self._crossing = tokens, accounts, crossing
        self.now_ms, self._seconds = now_ms, seconds
        self.cookie_name = cookie_name
        self._asked: dict[Caller, float] = {}
        """Callers of whom somebody asks whether they still count, and when they were asked about last."""
        self._withdrawn: dict[Caller, bool] = {}
        self._looked_at = -inf
        self._looking = asyncio.Lock()

    async def caller(self, headers: Headers, *, changes: bool = True) -> Caller:
        """Raises Refusal with 401 where there is no credential that counts, and with 403 where a browser may have been
        made to ask by a page of somebody else. `changes`: the request is not only for reading."""
        if "authorization" in headers:  # and where it does not count, no other one is looked for
            return await self._crossing.run(lambda: self._caller_by_token(headers["authorization"]))
        cookie = self._cookie(headers)
        if cookie is None:
            raise Refusal(401, "credential_missing", "this needs a credential", "send `Authorization: Bearer TOKEN`")
        caller = await self._crossing.run(lambda: self._caller_by_cookie(cookie))
        _ensure_own_page(headers, caller, changes=changes)
        return caller

    def _caller_by_token(self, sent: str) -> Caller:
        kind, _, token = sent.partition(" ")
        if kind.lower() != "bearer":
            raise Refusal(401, "token_refused", "credentials are bearer tokens", "`weft token create` makes one")
        try:
            content = self._tokens.verified_token(token.strip())
            content.ensure_valid(self.now_ms(), self._accounts.revoked_among(content.ids))
        except TokenRefused as refused:
            raise Refusal(401, "token_refused", str(refused), "`weft token create` makes another one") from None
        return Caller(
            authority=content.ledger_authority,
            credential="token",
            expires_ms=content.expires_ms,
            ids=content.ids,
            key_number=content.key_number,
            credentials=content.context.credentials,
        )

    def _caller_by_cookie(self, cookie: str) -> Caller:
        browser = self._accounts.browser(cookie)
        if browser is None:
            raise Refusal(401, "cookie_refused", "this browser is not signed in", "sign in again")
        return Caller(
            authority=browser.authority,
            credential="cookie",
            expires_ms=browser.expires_ms,
            ids=(browser.digest,),
            key_number=browser.key_number,
            csrf_token=browser.csrf_token,
        )

    def _cookie(self, headers: Headers) -> str | None:
        """The one cookie of ours. Of two, one was set by somebody else."""
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        values = [value for name, _, value in pairs if name == self.cookie_name]
        if len(values) > 1:
            raise Refusal(401, "cookie_refused", "the cookie is there twice", "delete the cookies of this host")
        return values[0] if values else None

    async def still_counts(self, caller: Caller) -> bool:
        """Whether a caller who was let in would be let in now. What is answered is at most a second old; however many
        streams ask, the ledger is asked once for all of them."""
        if self.now_ms() >= caller.expires_ms:
            return False
        asked_at = self._asked[caller] = self._seconds()
        while not self._is_known(caller, asked_at):
            async with self._looking:
                if not self._is_known(caller, asked_at):
                    await self._look()
        return not self._withdrawn[caller]

    def _is_known(self, caller: Caller, asked_at: float) -> bool:
        """Whether it was looked after the question, or shortly before."""
        is_fresh = self._looked_at >= asked_at or self._seconds() - self._looked_at < LOOK_SECONDS
        return is_fresh and caller in self._withdrawn

    async def _look(self) -> None:
        """Ask for all callers of whom somebody has asked lately. What is known counts from before the asking began."""
        now = self._seconds()
        self._asked = {caller: at for caller, at in self._asked.items() if now - at < FORGET_SECONDS}
        callers = tuple(self._asked)
        withdrawn = await self._crossing.run(lambda: self._withdrawn_among(callers))
        self._withdrawn = {caller: caller in withdrawn for caller in callers}
        self._looked_at = now

    def _withdrawn_among(self, callers: Sequence[Caller]) -> set[Caller]:
        tokens = [caller for caller in callers if caller.credential == "token"]
        revoked = self._accounts.revoked_among([id for caller in tokens for id in caller.ids])
        signed_out = self._accounts.signed_out_among(
            [caller.ids[0] for caller in callers if caller.credential == "cookie"]
        )
        absent = self._accounts.absent_among({caller.authority for caller in callers})
        return {
            *self._tokens.withdrawn(tokens),
            *(caller for caller in callers if caller.authority in absent),
            *(caller for caller in callers if not (revoked | signed_out).isdisjoint(caller.ids)),
        }


def _ensure_own_page(headers: Headers, caller: Caller, *, changes: bool) -> None:
    """Raises Refusal with 403. What `Origin` says was compared with our own before."""
    if headers.get("sec-fetch-site", "none") not in OWN_PAGES:
        raise Refusal(403, "origin_refused", "a cookie is taken from this server's own pages")
    if not changes:
        return
    if "origin" not in headers:
        raise Refusal(403, "origin_refused", "a change by cookie says its Origin", "programs send a token")
    sent = headers.get(CSRF_HEADER, "").encode("utf-8", "replace")
    if not hmac.compare_digest(sent, caller.csrf_token.encode()):
        hint = f"send csrf_token of GET /api/v1/me in {CSRF_HEADER}"
        raise Refusal(403, "csrf_token_missing", "a change by cookie sends the CSRF token of its session", hint)
