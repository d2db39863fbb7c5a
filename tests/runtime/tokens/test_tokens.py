"""An execution context as a token: signed, narrowed without the root key, read, expired, revoked, refused."""

from __future__ import annotations

import asyncio
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import biscuit_auth
import pytest

import weft
from weft.kernel.authority import LOCAL, LONGEST_CHAIN, Principal, PrincipalKind, Rights, rights
from weft.kernel.errors import CredentialWithheld, InvalidInput, NotAllowed, NotFound, TokenRefused, Unsupported
from weft.runtime.egress.context_tokens import (
    GrantBlock,
    NarrowingBlock,
    RootKey,
    TokenContent,
    attenuate,
    block_source,
    inspect,
    read,
    sign,
)
from weft.runtime.egress.credentials import Credential, Keyring
from weft.runtime.egress.execution_context import context_for

PERSON = Principal(PrincipalKind.HUMAN, "ann")
SCOUT, HELPER = Principal(PrincipalKind.AGENT, "scout"), Principal(PrincipalKind.AGENT, "helper")
WORKER = Principal(PrincipalKind.SESSION, "worker")
KEY = RootKey(1, bytes(range(32)))
KEYS = {1: KEY.public_bytes}
HOUR_MS = 3_600_000
TOKEN = sign(context_for(PERSON, rights=rights(["tool:*", "session:*"])), KEY, expires_ms=HOUR_MS)


def content(token: str, now_ms: int = 0, revoked: tuple[str, ...] = ()) -> TokenContent:
    return read(token, KEYS, now_ms=now_ms, revoked=revoked)


def with_block(token: str, source: str) -> str:
    """What an attacker makes who holds the token and appends what they like."""
    biscuit = biscuit_auth.Biscuit.from_base64(token, biscuit_auth.PublicKey(f"ed25519/{KEYS[1].hex()}"))
    return biscuit.append(biscuit_auth.BlockBuilder(source)).to_base64()


def signed(source: str, key: RootKey = KEY) -> str:
    builder = biscuit_auth.BiscuitBuilder(source)
    builder.set_root_key_id(key.number)
    return builder.build(biscuit_auth.PrivateKey(f"ed25519-private/{key.private_bytes.hex()}")).to_base64()


def test_a_token_carries_the_whole_context_and_no_key() -> None:
    secret = "sk-canary-7f3a"
    known = Credential(id="anthropic", origin="https://api.anthropic.com", env="ANTHROPIC_API_KEY")
    keyring = Keyring((known,), {"ANTHROPIC_API_KEY": secret}.get)
    context = context_for(PERSON, keyring=keyring, config={"model": "haiku", "depth": {"most": 3}})
    context = context.delegate(SCOUT, rights=rights(["tool:*"], ["tool:shell(rm *)"]), credentials=["anthropic"])
    token = sign(context, KEY, expires_ms=HOUR_MS)
    read_again = read(token, KEYS, now_ms=0, keyring=keyring)
    assert read_again.context == context
    assert asyncio.run(read_again.context.credential("anthropic", known.origin)).reveal() == secret
    assert read_again.ledger_authority == context.authority
    assert (read_again.expires_ms, read_again.key_number) == (HOUR_MS, 1)
    assert secret not in token
    assert secret.encode() not in urlsafe_b64decode(token + "==")


def test_a_holder_narrows_a_token_without_the_root_key() -> None:
    narrow = attenuate(TOKEN, KEYS, rights=rights(["tool:shell(git *)"], ["tool:shell(git push*)"]), principal=SCOUT)
    narrower = attenuate(narrow, KEYS, rights=rights(["*"]), principal=WORKER, expires_ms=2 * HOUR_MS)
    context = content(narrower).context
    assert context.chain == (PERSON, SCOUT, WORKER)
    assert context.authority.allows("tool:shell", "git status")
    assert not context.authority.allows("tool:shell", "git push")
    assert not context.allows("session:archive")
    assert content(narrower).expires_ms == HOUR_MS
    assert content(attenuate(narrow, KEYS, expires_ms=5)).expires_ms == 5
    assert content(TOKEN).context.allows("session:archive")


def test_credentials_are_only_left_out() -> None:
    token = sign(context_for(PERSON).child(credentials=["a", "b"]), KEY, expires_ms=HOUR_MS)
    narrow = content(attenuate(token, KEYS, credentials=["b", "c"])).context
    assert narrow.credentials == frozenset("b")
    with pytest.raises(CredentialWithheld):
        narrow.ensure_credential("c")
    assert content(attenuate(TOKEN, KEYS, credentials=[])).context.credentials == frozenset()


def test_an_expired_token_is_refused() -> None:
    assert content(TOKEN, HOUR_MS - 1).expires_ms == HOUR_MS
    short = attenuate(TOKEN, KEYS, expires_ms=1000)
    for token, now_ms in ((TOKEN, HOUR_MS), (short, 1000)):
        with pytest.raises(TokenRefused, match="expired"):
            content(token, now_ms)
    assert inspect(short, KEYS).expires_ms == 1000


def test_revoking_a_token_revokes_all_that_were_made_from_it() -> None:
    first, second = attenuate(TOKEN, KEYS, principal=SCOUT), attenuate(TOKEN, KEYS, principal=HELPER)
    below = attenuate(first, KEYS, rights=rights(["tool:*"]))
    revoked = (content(first).id,)
    assert content(first).ids[0] == content(TOKEN).id
    assert len(set(content(below).ids)) == 3
    for token in (first, below):
        with pytest.raises(TokenRefused, match="revoked"):
            content(token, revoked=revoked)
    assert content(TOKEN, revoked=revoked).context.chain == (PERSON,)
    assert content(second, revoked=revoked).context.chain == (PERSON, HELPER)
    with pytest.raises(TokenRefused, match="revoked"):
        content(second, revoked=(content(TOKEN).id,))


def test_tokens_of_an_older_key_are_read_for_as_long_as_it_is_known() -> None:
    newer = RootKey(2, bytes(32))
    token = sign(context_for(SCOUT), newer, expires_ms=HOUR_MS)
    both = {**KEYS, 2: newer.public_bytes}
    assert read(token, both, now_ms=0).key_number == 2
    assert read(TOKEN, both, now_ms=0).key_number == 1
    with pytest.raises(TokenRefused, match="no key is known"):
        read(token, KEYS, now_ms=0)
    with pytest.raises(TokenRefused, match="signatures"):
        read(token, {2: KEYS[1]}, now_ms=0)


def test_a_chain_has_an_end() -> None:
    longest = context_for(PERSON)
    for _ in range(LONGEST_CHAIN - 2):
        longest = longest.delegate(SCOUT)
    token = attenuate(sign(longest, KEY, expires_ms=HOUR_MS), KEYS, principal=HELPER)
    assert len(content(token).context.chain) == LONGEST_CHAIN
    source = block_source(NarrowingBlock(principal=HELPER))
    with pytest.raises(TokenRefused, match="longer than"):
        content(with_block(token, source))
    with pytest.raises(TokenRefused, match="longer than"):
        attenuate(token, KEYS, principal=HELPER)
    many = biscuit_auth.Biscuit.from_base64(TOKEN, biscuit_auth.PublicKey(f"ed25519/{KEYS[1].hex()}"))
    for _ in range(LONGEST_CHAIN):
        many = many.append(biscuit_auth.BlockBuilder(block_source(NarrowingBlock())))
    with pytest.raises(TokenRefused, match="blocks"):
        content(many.to_base64())


@pytest.mark.parametrize(
    "principal",
    [
        PERSON,
        LOCAL.principal,
        Principal(PrincipalKind.AGENT, "local"),
        Principal(PrincipalKind.PROGRAM, "scout"),
        Principal(PrincipalKind.AGENT, ""),
        Principal(PrincipalKind.AGENT, "x" * 300),
    ],
)
def test_a_holder_cannot_act_as_a_person_or_the_owner(principal: Principal) -> None:
    with pytest.raises(TokenRefused, match="only its owner"):
        attenuate(TOKEN, KEYS, principal=principal)
    with pytest.raises(TokenRefused, match="only its owner"):
        content(with_block(TOKEN, block_source(NarrowingBlock(principal=principal))))


GRANT = block_source(
    GrantBlock(chain=(PERSON,), rights=Rights(), credentials=None, config={}, expires_ms=9**15, begins_with_owner=True)
)
NARROWING = block_source(NarrowingBlock(rights=rights(["tool:*"])))


def narrowing_of(json: bytes) -> str:
    return f'weft_narrowing("{urlsafe_b64encode(json).decode().rstrip("=")}");'


FOREIGN_BLOCKS = {
    "the authority's fact": GRANT,
    "the authority's fact beside a narrowing": NARROWING + GRANT,
    "two narrowings": NARROWING + NARROWING.replace('("', '("A'),
    "nothing": "",
    "another fact": 'right("everything");',
    "a narrowing and another fact": NARROWING + 'right("everything");',
    "a rule": "weft_grant($x) <- weft_narrowing($x);",
    "a rule that trusts the authority": "weft_grant($x) <- weft_narrowing($x) trusting authority;",
    "a rule that trusts all before": "weft_narrowing($x) <- weft_grant($x) trusting previous;",
    "a check": "check if true;",
    "a narrowing with a check": NARROWING + 'check all weft_grant($x), $x != "";',
    "a number": "weft_narrowing(1);",
    "bytes": "weft_narrowing(hex:7b7d);",
    "several terms": 'weft_narrowing("e30", "e30");',
    "a set": 'weft_narrowing({"e30"});',
    "no JSON": 'weft_narrowing("AAAA");',
    "no base64": 'weft_narrowing("A");',
    "another form of the same": narrowing_of(b" {}"),
    "an unknown field": narrowing_of(b'{"chain":[]}'),
    "a field of the authority": narrowing_of(b'{"begins_with_owner":true}'),
    "a field twice": narrowing_of(b'{"expires_ms":1,"expires_ms":99}'),
    "a deep list": narrowing_of(b'{"rights":' + b"[" * 9000 + b"]" * 9000 + b"}"),
    "an unknown kind of principal": narrowing_of(b'{"principal":{"kind":"root","id":"x"}}'),
    "text that closes the fact": 'weft_narrowing("e30\\");\\nright(\\"x");',
}


@pytest.mark.parametrize("source", FOREIGN_BLOCKS.values(), ids=FOREIGN_BLOCKS)
def test_a_block_that_is_no_narrowing_refuses_the_whole_token(source: str) -> None:
    token = with_block(TOKEN, source)
    with pytest.raises(TokenRefused):
        content(token)
    with pytest.raises(TokenRefused):
        content(with_block(token, NARROWING))
    with pytest.raises(TokenRefused):
        attenuate(token, KEYS)


@pytest.mark.parametrize("scope", ["trusting previous;", "trusting authority;", f"trusting ed25519/{'ab' * 32};"])
def test_a_scope_before_a_narrowing_means_nothing(scope: str) -> None:
    assert content(with_block(TOKEN, scope + NARROWING)).context == content(with_block(TOKEN, NARROWING)).context
    with pytest.raises(TokenRefused):
        content(with_block(TOKEN, scope + GRANT))


def test_a_block_signed_by_somebody_else_refuses_the_token() -> None:
    biscuit = biscuit_auth.Biscuit.from_base64(TOKEN, biscuit_auth.PublicKey(f"ed25519/{KEYS[1].hex()}"))
    other = biscuit_auth.KeyPair()
    block = biscuit.third_party_request().create_block(other.private_key, biscuit_auth.BlockBuilder(NARROWING))
    with pytest.raises(TokenRefused, match="somebody else"):
        content(biscuit.append_third_party(other.public_key, block).to_base64())


@pytest.mark.parametrize(
    "source", [NARROWING, GRANT + GRANT.replace('("', '("A'), 'right("x");', GRANT + "check if true;"]
)
def test_the_first_block_is_a_grant_and_nothing_else(source: str) -> None:
    with pytest.raises(TokenRefused):
        content(signed(source))
    assert content(signed(GRANT)).ledger_authority == LOCAL


@pytest.mark.parametrize("token", ["", "é", "AAAA", "x" * 100_000, TOKEN + "=", TOKEN + "\n", TOKEN[:-1], f" {TOKEN}"])
def test_what_is_no_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        content(token)
    assert len(token) < 20 or token[:20] not in str(refused.value)


def test_a_token_with_any_byte_changed_is_refused() -> None:
    narrow = attenuate(TOKEN, KEYS, rights=rights(["tool:shell"]), principal=SCOUT)
    data = urlsafe_b64decode(narrow + "=" * (-len(narrow) % 4))
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << index % 8
        with pytest.raises(TokenRefused):
            content(urlsafe_b64encode(changed).decode().rstrip("="))
    for end in range(0, len(data), 7):
        with pytest.raises(TokenRefused):
            content(urlsafe_b64encode(data[:end]).decode().rstrip("="))


def test_the_root_key_is_shown_nowhere() -> None:
    assert KEY.private_bytes.hex() not in f"{KEY!r} {KEY}"
    assert str(KEY.private_bytes) not in repr(KEY)
    assert len(RootKey.new(3).private_bytes) == 32
    with pytest.raises(InvalidInput) as error:
        RootKey(1, b"short-secret")
    assert "short-secret" not in str(error.value)


def test_tokens_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "biscuit_auth", None)
    with pytest.raises(Unsupported, match="biscuit-python"):
        content(TOKEN)


def test_a_ledger_is_read_and_changed_with_what_the_token_leaves(tmp_path: Path) -> None:
    owner = context_for(PERSON).child(rights=rights(["session:*", "turn:*"], ["session:archive"]))
    token = sign(owner, KEY, expires_ms=HOUR_MS, begins_with_owner=True)
    for_scout = attenuate(token, KEYS, principal=SCOUT)
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.programs.create("agent", "scout", {})
        ledger.create_session("main")
        acting = ledger.acting_as(content(token).ledger_authority)
        assert acting.labels.rename("main", "notes").label == "notes"
        with pytest.raises(NotAllowed, match="session:archive"):
            acting.labels.archive("notes")
        for narrower in (for_scout, attenuate(token, KEYS, rights=rights(["session:read(other)"]))):
            with pytest.raises(NotFound):
                ledger.acting_as(content(narrower).ledger_authority).session("notes")
        with pytest.raises(NotFound, match="ann"):
            ledger.acting_as(content(TOKEN).ledger_authority).session("notes")
