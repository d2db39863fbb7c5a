"""Who asks: a principal made from a credential, and from nothing else that a request says.

A token is sent as `Authorization: Bearer …` and in no other way: not in a header of another name, a query or a cookie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from weft.kernel.authority import Authority
from weft.kernel.errors import TokenRefused
from weft.surfaces.server.problems import Refusal

if TYPE_CHECKING:
    from weft.runtime.egress.context_tokens import TokenContent

Headers = Mapping[str, str]
MACHINE_RIGHT = "weft:machine"


class Caller(Struct, frozen=True, kw_only=True):
    """In whose name a request is answered, and until when."""

    authority: Authority
    credential: Literal["token", "cookie"]
    expires_ms: int
    ids: tuple[str, ...]
    """Of the credential, and of what it was made from: with one of them revoked, it counts no longer."""

    @property
    def may_use_machine(self) -> bool:
        """Whether folders and containers of this machine are in reach: for its owner alone, if no token says less."""
        return self.authority.is_local and self.authority.allows(MACHINE_RIGHT)


class Callers:
    """Knows callers by their credentials. `verified` reads a token, and raises TokenRefused for one that does not
    count."""

    def __init__(self, verified: Callable[[str], TokenContent]) -> None:
        self._verified = verified

    def caller(self, headers: Headers) -> Caller:
        """Raises Refusal with 401 where there is no credential that counts."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            raise Refusal(401, "credential_missing", "this needs a credential", "send `Authorization: Bearer TOKEN`")
        if kind.lower() != "bearer":
            raise Refusal(401, "token_refused", "credentials are bearer tokens", "`weft token create` makes one")
        try:
            content = self._verified(token.strip())
        except TokenRefused as refused:
            raise Refusal(401, "token_refused", str(refused), "`weft token create` makes another one") from None
        return Caller(
            authority=content.ledger_authority, credential="token", expires_ms=content.expires_ms, ids=content.ids
        )
