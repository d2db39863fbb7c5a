"""Keys, and what signatures say."""

import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exchange.bundles.reading import INDEPENDENT, is_refused, lines_of, resealed, sealed, signer, verified
from tests.ledger.histories import grow
from weft.exchange.bundles import KeyRing, create_bundle, sign_bundle
from weft.exchange.bundles.keys import holds
from weft.exchange.bundles.verification import signature_line
from weft.kernel.errors import InvalidBundle, InvalidKey, StoreError
from weft.ledger.api.ledger import Ledger

SEED = sha256(b"ann").digest()
ODD = ("00", f"{'f' * 64} x", f"{'1' * 64} ../x")


def test_a_private_key_is_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        KeyRing(tmp_path / "deep" / "keys").create("ann", SEED)
    finally:
        os.umask(before)
    key = tmp_path / "deep" / "keys" / "ann.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    os.chmod(key, 0o644)
    with pytest.raises(InvalidKey, match="others may read"):
        KeyRing(key.parent).signer("ann")


def test_a_key_is_made_once_listed_exported_and_deleted(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    assert ring.own() == ring.trusted() == []
    made = ring.create("ann", SEED)
    with pytest.raises(InvalidKey, match="exists already"):
        ring.create("ann", SEED)
    assert ring.own() == [made]
    assert ring.public("ann").line == f"weft-key ed25519 {made.bytes.hex()} ann\n"
    assert ring.delete("ann") is True
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidKey, match="no key named"):
        ring.delete("ann")


def test_a_sealed_key_opens_with_its_passphrase_alone(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    ring.create("ann", SEED, "correct horse")
    assert ring.is_sealed("ann")
    for wrong in (None, "", "battery staple"):
        with pytest.raises(InvalidKey) as refused:
            ring.signer("ann", wrong)
        assert "battery" not in str(refused.value)
        assert SEED.hex() not in str(refused.value)
    opened = ring.signer("ann", "correct horse")
    assert holds(opened.public.bytes, opened.sign(b"x"), b"x")
    assert repr(opened) == "Signer('ann')"


@pytest.mark.parametrize("name", ["", "../ann", "a/b", ".hidden", "a b", "a" * 65, "ann\n", "Ä"])
def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    for use in (KeyRing(tmp_path).public, KeyRing(tmp_path).signer, KeyRing(tmp_path).delete):
        with pytest.raises(InvalidKey):
            use(name)
    with pytest.raises(InvalidKey):
        KeyRing(tmp_path).create(name, SEED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["", "ssh-ed25519 AAAA", *(f"weft-key ed25519 {each}" for each in ODD)])
def test_what_is_no_public_key_is_not_trusted(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidKey):
        KeyRing(tmp_path).trust(line)
    assert list(tmp_path.iterdir()) == []


def test_another_key_of_a_trusted_name_is_refused(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "mine")
    anns, bobs = signer(tmp_path / "theirs", "ann").public, signer(tmp_path / "theirs", "bob").public
    ring.trust(anns.line)
    ring.trust(anns.line)
    with pytest.raises(InvalidKey, match="another key"):
        ring.trust(bobs.line, "ann")
    assert ring.trusted() == [anns]
    assert ring.delete("ann") is False
    assert ring.trusted() == []


def test_a_signed_bundle_says_by_whom(disk: Ledger, tmp_path: Path, target: Path) -> None:
    grow(disk, "main", "one")
    ann, bob = signer(tmp_path / "theirs", "ann"), signer(tmp_path / "theirs", "bob")
    create_bundle(disk, ["main"], target, signers=[ann, bob, ann])
    unknown = verified(target)
    assert {each.key for each in unknown.signatures} == {ann.public.bytes.hex(), bob.public.bytes.hex()}
    assert not any(each.trusted for each in unknown.signatures)
    known = verified(target, [ann.public])
    assert [each.name for each in known.signatures if each.trusted] == ["ann"]


def test_an_unsigned_bundle_says_so(disk: Ledger, target: Path) -> None:
    grow(disk, "main", "one")
    create_bundle(disk, ["main"], target)
    assert "who made it: it is unsigned" in verified(target).does_not_prove


def test_signing_does_not_change_what_a_bundle_is(disk: Ledger, tmp_path: Path) -> None:
    grow(disk, "main", "one")
    ann = signer(tmp_path / "theirs", "ann")
    plain = create_bundle(disk, ["main"], tmp_path / "plain.weft").report
    first = create_bundle(disk, ["main"], tmp_path / "1.weft", signers=[ann]).report
    create_bundle(disk, ["main"], tmp_path / "2.weft", signers=[ann])
    assert plain.digest == first.digest
    assert (tmp_path / "1.weft").read_bytes() == (tmp_path / "2.weft").read_bytes()


def test_others_may_sign_a_bundle_too(disk: Ledger, tmp_path: Path, target: Path) -> None:
    grow(disk, "main", "one")
    ann, bob = signer(tmp_path / "theirs", "ann"), signer(tmp_path / "theirs", "bob")
    create_bundle(disk, ["main"], target, signers=[ann])
    signed = sign_bundle(target, tmp_path / "both.weft", [bob])
    create_bundle(disk, ["main"], tmp_path / "at once.weft", signers=[bob, ann])
    assert (tmp_path / "both.weft").read_bytes() == (tmp_path / "at once.weft").read_bytes()
    assert signed.digest == verified(target).digest
    with pytest.raises(StoreError):
        sign_bundle(target, target, [bob])
    target.write_bytes(target.read_bytes()[:-1])
    with pytest.raises(InvalidBundle):
        sign_bundle(target, tmp_path / "never.weft", [bob])
    assert not (tmp_path / "never.weft").exists()


def test_a_bad_signature_is_refused(disk: Ledger, tmp_path: Path, target: Path) -> None:
    grow(disk, "main", "one")
    ann, bob = signer(tmp_path / "theirs", "ann"), signer(tmp_path / "theirs", "bob")
    create_bundle(disk, ["main"], target, signers=[ann])
    grow(disk, "other", "two")
    create_bundle(disk, ["other"], tmp_path / "other.weft", signers=[ann])
    lines, others = lines_of(target), lines_of(tmp_path / "other.weft")
    forged = [
        others[-1],
        signature_line(bob.public.bytes, bytes.fromhex(lines[-1][-130:-2].decode())),
        signature_line(ann.public.bytes, bytes(64)),
        signature_line(b"\xff" * 32, bytes(64)),
        lines[-1].replace(b'"key"', b'"kay"'),
        lines[-1] + b" ",
        b"{}",
    ]
    for line in forged:
        target.write_bytes(sealed([*lines[:-1], line]))
        assert is_refused(target), line
    target.write_bytes(sealed([*lines, lines[-1]]))
    assert is_refused(target)


def test_a_signature_can_be_taken_away_which_leaves_an_unsigned_bundle(
    disk: Ledger, tmp_path: Path, target: Path
) -> None:
    grow(disk, "main", "one")
    create_bundle(disk, ["main"], target, signers=[signer(tmp_path / "theirs")])
    target.write_bytes(sealed(lines_of(target)[:-1]))
    assert verified(target).signatures == ()
    resealed(target, lambda facts: facts, tmp_path / "same.weft")
    assert verified(tmp_path / "same.weft").signatures == ()


def test_both_verifiers_think_the_same_of_keys_that_are_hardly_any() -> None:
    """Points of small order, with which many messages seem signed."""
    for key in (bytes(32), bytes([1, *bytes(31)]), b"\xec" + b"\xff" * 30 + b"\x7f"):
        for i in range(8):
            for first in (key, bytes(32)):
                signature = first + bytes(32)
                assert holds(key, signature, bytes([i])) == INDEPENDENT.ed25519(key, signature, bytes([i]))


@pytest.mark.slow("checks twenty signatures by plain arithmetic")
@settings(max_examples=10)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=64), st.integers(0, 64 * 8 - 1))
def test_both_verifiers_think_the_same_of_a_signature(seed: bytes, message: bytes, bit: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, good = key.public_key().public_bytes_raw(), key.sign(message)
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    assert holds(public, good, message)
    assert INDEPENDENT.ed25519(public, good, message)
    assert not holds(public, bytes(bad), message)
    assert not INDEPENDENT.ed25519(public, bytes(bad), message)


def test_a_signature_with_a_number_beyond_the_order_is_refused() -> None:
    """The same signature spelled another way: s plus the order of the group."""
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    public, good = key.public_key().public_bytes_raw(), key.sign(b"x")
    order = 2**252 + 27742317777372353535851937790883648493
    other = good[:32] + (int.from_bytes(good[32:], "little") + order).to_bytes(32, "little")
    assert not holds(public, other, b"x")
    assert not INDEPENDENT.ed25519(public, other, b"x")
