"""Execution contexts as tokens (biscuits): signed with a root key, narrowed by any holder, read with public keys.

A token carries the whole chain of principals, the layers of rights, the names of credentials and the settings of a
context; no key of a server. It is signed, not encrypted: whoever holds it can read it. A holder appends blocks without
the root key; each can add an agent or a session to the end of the chain, add layers of rights, leave out credentials
and expire sooner. Nothing that a block says gives more than the blocks before it. Each block has an id; whoever revokes
it revokes every token that contains it.

Nothing here looks at a file or a clock: keys, the time and what was revoked are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft.kernel.authority import EVERYTHING, LOCAL, LONGEST_CHAIN, Authority, Principal, Rights
from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.errors import InvalidInput, Unsupported
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.credentials import Keyring
from weft.runtime.tokens.blocks import GrantBlock, NarrowingBlock, block_source, ensure_appendable, read_block, refusal

if TYPE_CHECKING:
    from biscuit_auth import Biscuit

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
        biscuit_auth = _library()
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
    biscuit_auth = _library()
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
    biscuit, number = _verified(token, public_keys)
    narrower = biscuit.append(_library().BlockBuilder(block_source(narrowing)))
    _content(narrower, number, Keyring())
    return _checked_length(str(narrower.to_base64()))


def inspect(token: str, public_keys: PublicKeys, keyring: Keyring | None = None) -> TokenContent:
    """What a token says, if it was signed with one of these keys; it may have expired or been revoked."""
    return _content(*_verified(token, public_keys), keyring or Keyring())


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


def _content(biscuit: Biscuit, key_number: int, keyring: Keyring) -> TokenContent:
    count = biscuit.block_count()
    if count > MOST_BLOCKS:
        raise refusal(f"it has {count} blocks, and {MOST_BLOCKS} are the most")
    if any(biscuit.block_external_key(index) is not None for index in range(count)):
        raise refusal("a block of it was signed by somebody else")
    grant = read_block(biscuit.block_source(0), GrantBlock)
    narrowings = [read_block(biscuit.block_source(index), NarrowingBlock) for index in range(1, count)]
    if len(grant.chain) + sum(block.principal is not None for block in narrowings) > LONGEST_CHAIN:
        raise refusal(f"its chain is longer than {LONGEST_CHAIN}")
    context = _narrowed(_granted(grant, keyring), narrowings)
    return TokenContent(
        context=context,
        ledger_authority=_ledger_authority(context.authority, grant.begins_with_owner),
        expires_ms=min([grant.expires_ms, *(b.expires_ms for b in narrowings if b.expires_ms is not None)]),
        ids=tuple(sha256(bytes.fromhex(signature)).hexdigest()[:_ID_DIGITS] for signature in biscuit.revocation_ids),
        key_number=key_number,
    )


def _granted(grant: GrantBlock, keyring: Keyring) -> ExecutionContext:
    try:
        authority = Authority(grant.chain, grant.rights)
    except InvalidInput as error:
        raise refusal(str(error)) from None
    names = None if grant.credentials is None else frozenset(grant.credentials)
    return ExecutionContext(authority, names, grant.config, keyring)


def _narrowed(context: ExecutionContext, narrowings: Iterable[NarrowingBlock]) -> ExecutionContext:
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


def _verified(token: str, public_keys: PublicKeys) -> tuple[Biscuit, int]:
    """A token whose every signature holds, and the number of its key. One token has one form: what the library would
    write differently is not taken, so that nobody makes a second text of the same token."""
    biscuit_auth = _library()
    number = _key_number(token)
    if number not in public_keys:
        raise refusal("no key is known here by which it could have been signed")
    public = biscuit_auth.PublicKey.from_bytes(public_keys[number], biscuit_auth.Algorithm.Ed25519)
    biscuit: Biscuit = _refusing(lambda: biscuit_auth.Biscuit.from_base64(token, public))
    if biscuit.to_base64() != token:
        raise refusal("it is written in another form")
    return biscuit, number


def _key_number(token: str) -> int:
    """Which key the token says it was signed with. Nothing is believed yet: the signature is checked with that key."""
    if not isinstance(token, str) or len(token) > LONGEST_TOKEN_CHARACTERS or not _SHAPE.fullmatch(token):
        raise refusal("this is no token")
    number = _refusing(lambda: _library().UnverifiedBiscuit.from_base64(token).root_key_id())
    if not isinstance(number, int):
        raise refusal("no key is known here by which it could have been signed")
    return number


def _refusing(parse: Callable[[], Any]) -> Any:
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


def _library() -> Any:
    try:
        import biscuit_auth
    except ImportError as error:
        raise Unsupported(f"tokens need the package biscuit-python ({error})", _INSTALL) from error
    return biscuit_auth
