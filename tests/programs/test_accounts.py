"""Who signs in to a served ledger: passwords, links that count once, browsers, and revoked credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.programs.conftest import OpenLedger
from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import Ledger, store_of
from weft.programs import Programs
from weft.programs.accounts import BROWSER_MS, INVITATION_MS, KEY_MS, LINK_MS, Accounts, SignedIn

PASSWORD = "correct horse battery"


@pytest.fixture
def accounts(ledger: Ledger) -> Accounts:
    """With a person who was invited by nobody yet."""
    Programs(ledger).create("human", "ann", {})
    return Accounts(ledger)


def pass_time(clock: FixedClock, milliseconds: int) -> None:
    clock.sleep(milliseconds / 1000)


def joined(accounts: Accounts, name: str = "ann", password: str = PASSWORD) -> SignedIn:
    signed_in = accounts.accept(accounts.invite(name).code, password)
    assert signed_in is not None
    return signed_in


def test_the_owners_link_counts_once_and_not_for_long(accounts: Accounts, clock: FixedClock) -> None:
    link = accounts.owner_link()
    assert not accounts.is_invitation(link.code)
    signed_in = accounts.follow_owner_link(link.code)
    assert signed_in is not None
    assert signed_in.browser.authority == LOCAL
    assert accounts.browser(signed_in.cookie) == signed_in.browser
    assert accounts.follow_owner_link(link.code) is None
    late = accounts.owner_link()
    pass_time(clock, LINK_MS)
    assert accounts.follow_owner_link(late.code) is None
    assert accounts.follow_owner_link("") is None


def test_an_invitation_sets_a_password_once(accounts: Accounts, ledger: Ledger, clock: FixedClock) -> None:
    with pytest.raises(NotFound):
        accounts.invite("nobody")
    invitation = accounts.invite("ann")
    assert (invitation.person, accounts.is_invitation(invitation.code)) == ("ann", True)
    assert accounts.follow_owner_link(invitation.code) is None
    with pytest.raises(InvalidInput, match="characters"):
        accounts.accept(invitation.code, "short")
    with pytest.raises(InvalidInput, match="letters"):
        accounts.accept(invitation.code, "\ud800" * 12)
    signed_in = accounts.accept(invitation.code, PASSWORD)
    assert signed_in is not None
    person = Programs(ledger).get("ann").id
    assert signed_in.browser.authority == Authority((Principal(PrincipalKind.HUMAN, person),))
    assert accounts.accept(invitation.code, PASSWORD) is None
    assert accounts.sign_in("ann", PASSWORD) is not None
    for name, password in (
        ("ann", PASSWORD + "."),
        ("ann", ""),
        ("nobody", PASSWORD),
        ("", ""),
        ("ann", "\ud800" * 12),
    ):
        assert accounts.sign_in(name, password) is None
    late = accounts.invite("ann")
    pass_time(clock, INVITATION_MS)
    assert accounts.accept(late.code, PASSWORD) is None


def test_a_new_password_signs_out_whoever_had_the_one_before(accounts: Accounts) -> None:
    before, owner = joined(accounts), accounts.follow_owner_link(accounts.owner_link().code)
    unused = accounts.invite("ann")
    after = joined(accounts, password="another password")
    assert owner is not None
    assert accounts.browser(before.cookie) is None
    assert accounts.accept(unused.code, PASSWORD) is None
    assert [accounts.browser(each.cookie) for each in (after, owner)] == [after.browser, owner.browser]
    assert accounts.sign_in("ann", PASSWORD) is None
    gone = accounts.signed_out_among([each.browser.digest for each in (before, after, owner)])
    assert gone == {before.browser.digest}


def test_a_person_who_was_deleted_is_signed_out(accounts: Accounts, ledger: Ledger) -> None:
    signed_in, invitation = joined(accounts), accounts.invite("ann")
    authority = signed_in.browser.authority
    assert accounts.absent_among([authority, LOCAL]) == frozenset()
    Programs(ledger).delete("ann")
    assert accounts.browser(signed_in.cookie) is None
    assert accounts.sign_in("ann", PASSWORD) is None
    assert accounts.accept(invitation.code, PASSWORD) is None
    assert accounts.signed_out_among([signed_in.browser.digest]) == {signed_in.browser.digest}
    assert accounts.absent_among([authority, LOCAL]) == {authority}


def test_who_signs_out_is_known_no_longer(accounts: Accounts) -> None:
    signed_in = joined(accounts)
    accounts.sign_out(signed_in.browser.digest)
    assert accounts.browser(signed_in.cookie) is None


def test_a_cookie_is_taken_as_it_was_given_alone(accounts: Accounts) -> None:
    cookie = joined(accounts).cookie
    number, _, secret = cookie.partition(".")
    others = (
        secret,
        f"{number}.",
        f"2.{secret}",
        f"-1.{secret}",
        f"99999999999999999999.{secret}",
        cookie + "A",
        "",
        ".",
    )
    assert [accounts.browser(other) for other in others] == [None] * len(others)


def test_keys_of_cookies_are_made_anew_and_old_ones_dropped(
    accounts: Accounts, ledger: Ledger, clock: FixedClock
) -> None:
    first = joined(accounts)
    pass_time(clock, KEY_MS)
    second = accounts.sign_in("ann", PASSWORD)
    assert second is not None
    assert second.browser.key_number == first.browser.key_number + 1
    assert accounts.browser(first.cookie) == first.browser
    pass_time(clock, BROWSER_MS - KEY_MS)
    assert accounts.browser(first.cookie) is None
    pass_time(clock, KEY_MS)
    assert accounts.sign_in("ann", PASSWORD) is not None
    with store_of(ledger).read() as txn:
        numbers = [n for (n,) in txn.sql.fetch_rows("SELECT n FROM cookie_key ORDER BY n")]
    assert numbers == [2, 3]


def test_a_revoked_credential_is_remembered(accounts: Accounts) -> None:
    for _ in range(2):
        accounts.revoke("a" * 32)
    assert accounts.revoked_among(["a" * 32, "b" * 32]) == {"a" * 32}


def test_two_servers_of_one_ledger_agree(ledger: Ledger, accounts: Accounts, open_ledger: OpenLedger) -> None:
    other = Accounts(open_ledger(ledger.path))
    signed_in = joined(accounts)
    assert other.browser(signed_in.cookie) == signed_in.browser
    link = accounts.owner_link()
    assert other.follow_owner_link(link.code) is not None
    assert accounts.follow_owner_link(link.code) is None
    other.revoke("a" * 32)
    assert accounts.revoked_among(["a" * 32])
    other.sign_out(signed_in.browser.digest)
    assert accounts.browser(signed_in.cookie) is None


def test_the_rows_hold_nothing_that_signs_in(disk: Ledger) -> None:
    Programs(disk).create("human", "ann", {})
    accounts = Accounts(disk)
    invitation, cookie = accounts.invite("ann"), joined(accounts).cookie
    rows = []
    with store_of(disk).read() as txn:
        for table in ("account", "sign_in_link", "cookie_key", "browser_session"):
            rows += txn.sql.fetch_rows(f"SELECT * FROM {table}")
    told = repr(rows)
    assert "$argon2id$" in told
    for secret in (PASSWORD, invitation.code, cookie.partition(".")[2]):
        assert secret not in told


def test_a_copy_takes_accounts_and_revocations_over_and_signs_nobody_in(
    disk: Ledger, tmp_path: Path, open_ledger: OpenLedger
) -> None:
    Programs(disk).create("human", "ann", {})
    accounts = Accounts(disk)
    cookie, link = joined(accounts).cookie, accounts.owner_link()
    accounts.revoke("a" * 32)
    weft.copy(disk, tmp_path / "copy.db")
    disk.upkeep.backup(tmp_path / "backup.db")
    for name in ("copy.db", "backup.db"):
        other = Accounts(open_ledger(tmp_path / name))
        assert other.browser(cookie) is None, name
        assert other.follow_owner_link(link.code) is None, name
        assert other.sign_in("ann", PASSWORD) is not None, name
        assert other.revoked_among(["a" * 32]), name
