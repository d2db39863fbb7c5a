"""What `weft token` answers."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.authority import Layer


class TokenForm(Struct, frozen=True, kw_only=True):
    """`token create`, `attenuate`, `show`: who acts with a token, on whose behalf, with which rights, and until when.
    `ids` are those of the tokens it was made from, and its own. `token` is the token itself, where it was made and no
    file was named."""

    id: str
    ids: tuple[str, ...]
    state: Literal["valid", "expired", "revoked"]
    chain: tuple[str, ...]
    rights: tuple[Layer, ...]
    credentials: tuple[str, ...] | None
    expires_at: int
    key: int
    token: str | UnsetType = UNSET
    file: str | UnsetType = UNSET


class RevokedToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`token revoke`, `list-revoked`: the id of a token with which nobody acts any more, nor with one made from it."""

    id: str
    revoked_at: int


class RotatedKey(Struct, frozen=True, kw_only=True):
    """`token rotate`: the number of the new root key, and of those whose tokens still count."""

    key: int
    keys: tuple[int, ...]
