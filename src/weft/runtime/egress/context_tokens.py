"""Execution contexts as signed tokens (biscuits) for other processes.

A token is signed with the root key, narrowed by any holder, and read with public keys.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from weft.kernel.authority import (
    EVERYTHING,
    LOCAL,
    LOCAL_NAME,
    LONGEST_CHAIN,
    Authority,
    Principal,
    PrincipalKind,
    Rights,
)
from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.errors import InvalidInput, TokenRefused, Unsupported
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import ExecutionContext

if TYPE_CHECKING:
    from biscuit_auth import Biscuit


# --- What the blocks of a token say.

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


# --- Execution contexts as tokens (biscuits): signed with a root key, narrowed by any holder, read with public keys.

LONGEST_TOKEN_CHARACTERS = 64 * 1024
MOST_BLOCKS = LONGEST_CHAIN
KEY_BYTES = 32
_ID_DIGITS = 32
_SHAPE = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_INSTALL = "install it with `pip install 'weft[tokens]'`"

PublicKeys = Mapping[int, bytes]
"""Keys that tokens are believed by, each with its number. Old ones stay known for as long as their tokens should."""


@dataclass(frozen=True)
class RootKey:
    """A private key that tokens are signed with. It is shown nowhere."""

    number: int
    private_bytes: bytes = field(repr=False)

    @classmethod
    def new(cls, number: int, random_bytes: RandomBytes = system_random) -> RootKey:
        return cls(number, random_bytes(KEY_BYTES))

    def __post_init__(self) -> None:
        if len(self.private_bytes) != KEY_BYTES or not 0 < self.number < 2**31:
            raise InvalidInput("this is no root key for tokens", "make a new one")

    @property
    def public_bytes(self) -> bytes:
        biscuit_auth = _biscuit_library()
        private = biscuit_auth.PrivateKey.from_bytes(self.private_bytes, biscuit_auth.Algorithm.Ed25519)
        return bytes(biscuit_auth.KeyPair.from_private_key(private).public_key.to_bytes())


@dataclass(frozen=True)
class TokenContent:
    """What a token says whose signatures hold. Whether it still counts is asked with `ensure_valid`."""

    context: ExecutionContext
    ledger_authority: Authority
    """The same authority for `Ledger.acting_as`: where its owner began the chain, the ledger knows them as `local`."""
    expires_ms: int
    ids: tuple[str, ...]
    """Of every block, the last is the token's own."""
    key_number: int

    @property
    def id(self) -> str:
        return self.ids[-1]

    def ensure_valid(self, now_ms: int, revoked: Collection[str] = ()) -> None:
        """Raises TokenRefused for one that has expired or was revoked, itself or a token that it was made from."""
        if now_ms >= self.expires_ms:
            raise refusal("it has expired")
        if not self.is_unrevoked(revoked):
            raise refusal("it was revoked")

    def is_unrevoked(self, revoked: Collection[str]) -> bool:
        return not any(block_id in revoked for block_id in self.ids)


def sign(
    context: ExecutionContext,
    key: RootKey,
    *,
    expires_ms: int,
    begins_with_owner: bool = False,
) -> str:
    """A token for this context that counts until `expires_ms`. `begins_with_owner`: the first of its chain is whoever
    owns the key, and is `local` in their ledgers; else a ledger looks everybody in the chain up."""
    record = context.record()
    grant = GrantBlock(
        chain=record.chain,
        rights=record.rights,
        credentials=record.credentials,
        config=record.config,
        expires_ms=expires_ms,
        begins_with_owner=begins_with_owner,
    )
    source = block_source(grant)
    read_block(source, GrantBlock)
    biscuit_auth = _biscuit_library()
    builder = biscuit_auth.BiscuitBuilder(source)
    builder.set_root_key_id(key.number)
    private = biscuit_auth.PrivateKey.from_bytes(key.private_bytes, biscuit_auth.Algorithm.Ed25519)
    return _checked_length(str(builder.build(private).to_base64()))


def attenuate(
    token: str,
    public_keys: PublicKeys,
    *,
    rights: Rights = EVERYTHING,
    principal: Principal | None = None,
    credentials: Iterable[str] | None = None,
    expires_ms: int | None = None,
) -> str:
    """A token that allows what both this one and `rights` allow, for the same principal or for another who acts on
    behalf of everybody in the chain. Made without the root key; the token it is made from still counts."""
    if principal is not None:
        ensure_appendable(principal)
    names = None if credentials is None else tuple(sorted(set(credentials)))
    narrowing = NarrowingBlock(rights=rights, principal=principal, credentials=names, expires_ms=expires_ms)
    biscuit, number = _verified_token(token, public_keys)
    narrower = biscuit.append(_biscuit_library().BlockBuilder(block_source(narrowing)))
    _token_content(narrower, number, Keyring())
    return _checked_length(str(narrower.to_base64()))


def inspect(token: str, public_keys: PublicKeys, keyring: Keyring | None = None) -> TokenContent:
    """What a token says, if it was signed with one of these keys; it may have expired or been revoked."""
    return _token_content(*_verified_token(token, public_keys), keyring or Keyring())


def read(
    token: str,
    public_keys: PublicKeys,
    *,
    now_ms: int,
    revoked: Collection[str] = (),
    keyring: Keyring | None = None,
) -> TokenContent:
    """What a token says that counts now. Raises TokenRefused for any other. `keyring` knows the credentials here."""
    content = inspect(token, public_keys, keyring)
    content.ensure_valid(now_ms, revoked)
    return content


def _token_content(biscuit: Biscuit, key_number: int, keyring: Keyring) -> TokenContent:
    count = biscuit.block_count()
    if count > MOST_BLOCKS:
        raise refusal(f"it has {count} blocks, and {MOST_BLOCKS} are the most")
    if any(biscuit.block_external_key(index) is not None for index in range(count)):
        raise refusal("a block of it was signed by somebody else")
    grant = read_block(biscuit.block_source(0), GrantBlock)
    narrowings = [read_block(biscuit.block_source(index), NarrowingBlock) for index in range(1, count)]
    if len(grant.chain) + sum(block.principal is not None for block in narrowings) > LONGEST_CHAIN:
        raise refusal(f"its chain is longer than {LONGEST_CHAIN}")
    context = _narrowed_context(_granted_context(grant, keyring), narrowings)
    return TokenContent(
        context=context,
        ledger_authority=_ledger_authority(context.authority, grant.begins_with_owner),
        expires_ms=min([grant.expires_ms, *(b.expires_ms for b in narrowings if b.expires_ms is not None)]),
        ids=tuple(sha256(bytes.fromhex(signature)).hexdigest()[:_ID_DIGITS] for signature in biscuit.revocation_ids),
        key_number=key_number,
    )


def _granted_context(grant: GrantBlock, keyring: Keyring) -> ExecutionContext:
    try:
        authority = Authority(grant.chain, grant.rights)
    except InvalidInput as error:
        raise refusal(str(error)) from None
    names = None if grant.credentials is None else frozenset(grant.credentials)
    return ExecutionContext(authority, names, grant.config, keyring)


def _narrowed_context(context: ExecutionContext, narrowings: Iterable[NarrowingBlock]) -> ExecutionContext:
    for block in narrowings:
        if block.principal is None:
            context = context.child(rights=block.rights, credentials=block.credentials)
        else:
            context = context.delegate(block.principal, rights=block.rights, credentials=block.credentials)
    return context


def _ledger_authority(authority: Authority, begins_with_owner: bool) -> Authority:
    if not begins_with_owner:
        return authority
    return Authority((LOCAL.principal, *authority.chain[1:]), authority.rights)


# --- signatures -----------------------------------------------------------------------------------------------------


def _verified_token(token: str, public_keys: PublicKeys) -> tuple[Biscuit, int]:
    """A token whose every signature holds, and the number of its key. One token has one form: what the library would
    write differently is not taken, so that nobody makes a second text of the same token."""
    biscuit_auth = _biscuit_library()
    number = _key_number(token)
    if number not in public_keys:
        raise refusal("no key is known here by which it could have been signed")
    public = biscuit_auth.PublicKey.from_bytes(public_keys[number], biscuit_auth.Algorithm.Ed25519)
    biscuit: Biscuit = _refusing_on_failure(lambda: biscuit_auth.Biscuit.from_base64(token, public))
    if biscuit.to_base64() != token:
        raise refusal("it is written in another form")
    return biscuit, number


def _key_number(token: str) -> int:
    """Which key the token says it was signed with. Nothing is believed yet: the signature is checked with that key."""
    if not isinstance(token, str) or len(token) > LONGEST_TOKEN_CHARACTERS or not _SHAPE.fullmatch(token):
        raise refusal("this is no token")
    number = _refusing_on_failure(lambda: _biscuit_library().UnverifiedBiscuit.from_base64(token).root_key_id())
    if not isinstance(number, int):
        raise refusal("no key is known here by which it could have been signed")
    return number


def _refusing_on_failure(parse: Callable[[], Any]) -> Any:
    """What the library makes of foreign bytes. Its own words are left out: they may quote the token."""
    try:
        return parse()
    except Exception:  # the library raises several classes that have no common one
        raise refusal("its signatures do not hold") from None


def _checked_length(token: str) -> str:
    if len(token) > LONGEST_TOKEN_CHARACTERS:
        raise InvalidInput(
            f"the token would be longer than {LONGEST_TOKEN_CHARACTERS} characters", "give it fewer rights or settings"
        )
    return token


def _biscuit_library() -> Any:
    try:
        import biscuit_auth
    except ImportError as error:
        raise Unsupported(f"tokens need the package biscuit-python ({error})", _INSTALL) from error
    return biscuit_auth
