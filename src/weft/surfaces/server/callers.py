"""Who asks: a principal made from a credential, and from nothing else that a request says.

A token is sent as `Authorization: Bearer …` and in no other way: not in a header of another name, a query or a cookie.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from weft.kernel.authority import MACHINE_RIGHT, Authority
from weft.kernel.errors import TokenRefused
from weft.surfaces.server.problems import Refusal

if TYPE_CHECKING:
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.runtime.ledger_port import Executor

Headers = Mapping[str, str]
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

    @property
    def may_use_machine(self) -> bool:
        """Whether folders and containers of this machine are in reach: for its owner alone, if no token says less."""
        return self.authority.is_local and self.authority.allows(MACHINE_RIGHT)


class CredentialSource(Protocol):
    """What is known of credentials where the server runs. All of it may block."""

    def verified_token(self, token: str) -> TokenContent:
        """What a token says that counts now. Raises TokenRefused for any other."""

    def withdrawn(self, callers: Sequence[Caller]) -> Iterable[Caller]:
        """Those of them whose credential was revoked, or signed with a key that is known no longer."""


class Callers:
    """Knows callers by their credentials, and says whether one that was let in still counts."""

    def __init__(
        self,
        source: CredentialSource,
        crossing: Executor,
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._crossing = source, crossing
        self._now_ms, self._seconds = now_ms, seconds
        self._asked: dict[Caller, float] = {}
        """Callers of whom somebody asks whether they still count, and when they were asked about last."""
        self._withdrawn: dict[Caller, bool] = {}
        self._looked_at = -inf
        self._looking = asyncio.Lock()

    async def caller(self, headers: Headers) -> Caller:
        """Raises Refusal with 401 where there is no credential that counts."""
        return await self._crossing.run(lambda: self._known_caller(headers))

    def _known_caller(self, headers: Headers) -> Caller:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            raise Refusal(401, "credential_missing", "this needs a credential", "send `Authorization: Bearer TOKEN`")
        if kind.lower() != "bearer":
            raise Refusal(401, "token_refused", "credentials are bearer tokens", "`weft token create` makes one")
        try:
            content = self._source.verified_token(token.strip())
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

    async def still_counts(self, caller: Caller) -> bool:
        """Whether a caller who was let in would be let in now. What is answered is at most a second old; however many
        streams ask, the ledger is asked once for all of them."""
        if self._now_ms() >= caller.expires_ms:
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
        withdrawn = await self._crossing.run(lambda: set(self._source.withdrawn(callers)))
        self._withdrawn = {caller: caller in withdrawn for caller in callers}
        self._looked_at = now
