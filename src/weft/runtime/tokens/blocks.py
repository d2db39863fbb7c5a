"""What the blocks of a token say. The first is signed with the root key; holders append others, which only narrow.

A block is one Datalog fact with one text, the base64 of a JSON record: `weft_grant("…")` in the first block,
`weft_narrowing("…")` in every other. There are no rules and no checks, and nothing is evaluated as Datalog, so a scope
means nothing: rights are compared by Weft's one matcher. A block is read from its printed form, which has to be exactly
that of the record it holds, so a block has one meaning or none. Whatever an attacker appends is either a narrowing or
refuses the token.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from weft.kernel.authority import EVERYTHING, LOCAL_NAME, Principal, PrincipalKind, Rights
from weft.kernel.errors import TokenRefused

GRANT, NARROWING = "weft_grant", "weft_narrowing"
APPENDED_KINDS = (PrincipalKind.AGENT, PrincipalKind.SESSION)
"""Whom a holder may add to the chain. People are named by whoever signs."""
LONGEST_NAME_CHARACTERS = 256
_TEXT = re.compile(r'(weft_grant|weft_narrowing)\("([A-Za-z0-9_-]+)"\);\n')


def refusal(reason: str) -> TokenRefused:
    """Why nobody can act with a token. Says nothing of what is in it."""
    return TokenRefused(f"the token is refused: {reason}")


class GrantBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The context that was signed. `credentials` None: all that the chain was given. `begins_with_owner`: the first of
    the chain is whoever owns the root key, whom their ledgers know as `local`."""

    chain: tuple[Principal, ...]
    rights: Rights
    credentials: tuple[str, ...] | None
    config: dict[str, Any]
    expires_ms: int
    begins_with_owner: bool


class NarrowingBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a holder takes away before the token is handed on, and to whom it is handed. None: as before."""

    rights: Rights = EVERYTHING
    principal: Principal | None = None
    credentials: tuple[str, ...] | None = None
    expires_ms: int | None = None


_B = TypeVar("_B", GrantBlock, NarrowingBlock)
_NAMES: dict[type[Struct], str] = {GrantBlock: GRANT, NarrowingBlock: NARROWING}


def block_source(block: GrantBlock | NarrowingBlock) -> str:
    """A block as Datalog. The text holds no character that Datalog's printer would have to escape."""
    text = urlsafe_b64encode(msgspec.json.encode(block, order="deterministic")).decode().rstrip("=")
    return f'{_NAMES[type(block)]}("{text}");\n'


def read_block(source: str, kind: type[_B]) -> _B:
    """The record of a block, from its printed form. Raises TokenRefused for anything that Weft does not write."""
    match = _TEXT.fullmatch(source)
    if match is None or match[1] != _NAMES[kind]:
        raise refusal("a block of it says something that tokens of Weft do not say")
    try:
        data = urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4))
        block = msgspec.json.decode(data, type=kind)
        is_canonical = block_source(block) == source
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise refusal("a block of it cannot be read") from None
    if not is_canonical:
        raise refusal("a block of it is written in another form")
    if isinstance(block, NarrowingBlock) and block.principal is not None:
        ensure_appendable(block.principal)
    return block


def ensure_appendable(principal: Principal) -> None:
    """Refuse whom no holder of a token may name as acting: a person, or the owner of the ledger."""
    is_named = 0 < len(principal.id) <= LONGEST_NAME_CHARACTERS and principal.id != LOCAL_NAME
    if principal.kind not in APPENDED_KINDS or not is_named:
        raise refusal("a block of it names somebody whom only its owner can name")
