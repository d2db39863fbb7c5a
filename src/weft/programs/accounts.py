"""Who signs in to a ledger that is served, as its local state, so that all servers of one ledger agree: people with a
password, links that count once, browsers that are signed in, and credentials that were revoked.

A cookie is a random text with the number of a key. Under that key its digest names the row of a browser that is signed
in, and another digest of it is what a page sends to prove that it is ours. So a copy of the rows signs nobody in. Keys
are bound to the replica, so a copy of the ledger knows no cookie of the original. They are made anew once a week; one
is dropped when every cookie that it could have made has expired.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from weft.kernel.authority import LOCAL, Authority, Principal, PrincipalKind
from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.errors import InvalidInput, NotFound, Unsupported
from weft.ledger.api import Ledger, store_of
from weft.ledger.read.access import chain_ids
from weft.programs.programs import Programs
from weft.store.port import ReadTxn, WriteTxn
from weft.store.sql import Sql, rows_in

if TYPE_CHECKING:
    from argon2 import PasswordHasher

T = TypeVar("T")
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
LINK_MS = 10 * MINUTE_MS
"""So long the owner's link counts: they are at the terminal where it was printed."""
INVITATION_MS = 3 * DAY_MS
BROWSER_MS = 14 * DAY_MS
KEY_MS = 7 * DAY_MS
REVOKED_MS = 367 * DAY_MS
"""So long a revocation is kept: longer than any token counts."""
FEWEST_CHARACTERS, MOST_CHARACTERS = 10, 1024
"""Of a password. More would only be work for whoever hashes it."""
SECRET_BYTES = 32
SIGN_IN_PATH = "/sign-in"


class SignInLink(Struct, frozen=True, kw_only=True):
    """What a link says that counts once. It is nowhere else."""

    code: str
    expires_ms: int
    person: str | None = None
    """Who is invited, by name; None: it signs the owner in."""

    def url(self, base: str) -> str:
        """At a server that is reached at this address."""
        return f"{base.rstrip('/')}{SIGN_IN_PATH}/{self.code}"


class Browser(Struct, frozen=True, kw_only=True):
    """A browser that is signed in."""

    digest: str
    csrf_token: str
    """What its pages send with every change, beside the cookie."""
    key_number: int
    person: str | None
    """The id of a person; None for the ledger's owner."""
    expires_ms: int

    @property
    def authority(self) -> Authority:
        return LOCAL if self.person is None else Authority((Principal(PrincipalKind.HUMAN, self.person),))


class SignedIn(Struct, frozen=True, kw_only=True):
    """A browser that has just been signed in, and its cookie, which nobody else has."""

    browser: Browser
    cookie: str


class _CookieKey(Struct, frozen=True):
    number: int
    key: bytes

    def digest(self, replica: str, purpose: str, secret: str) -> str:
        return hmac.new(self.key, f"{replica} {purpose} {secret}".encode(), sha256).hexdigest()

    def browser(self, replica: str, secret: str, person: str | None, expires_ms: int) -> Browser:
        return Browser(
            digest=self.digest(replica, "browser", secret),
            csrf_token=self.digest(replica, "csrf", secret),
            key_number=self.number,
            person=person,
            expires_ms=expires_ms,
        )


class Accounts:
    """Those who sign in to one ledger. Every verb may block; what is refused answers None, and says no more."""

    def __init__(
        self, ledger: Ledger, now_ms: Callable[[], int] | None = None, random_bytes: RandomBytes = system_random
    ) -> None:
        self._ledger, self._store, self._random_bytes = ledger, store_of(ledger), random_bytes
        self._now_ms = now_ms or self._store.now_ms

    # --- links that count once ----------------------------------------------------------------------------------

    def owner_link(self) -> SignInLink:
        return self._new_link(None, None, LINK_MS)

    def invite(self, name: str) -> SignInLink:
        """A link by which a person chooses a password. Raises NotFound for one who is not there."""
        person = Programs(self._ledger).get(name, "human")
        return self._new_link(person.id, person.name, INVITATION_MS)

    def _new_link(self, person: str | None, name: str | None, lasts_ms: int) -> SignInLink:
        link = SignInLink(code=self._secret(), expires_ms=self._now_ms() + lasts_ms, person=name)

        def put(txn: WriteTxn) -> None:
            txn.sql.run("DELETE FROM sign_in_link WHERE expires_at <= ?", (self._now_ms(),))
            txn.sql.run(
                "INSERT INTO sign_in_link(digest, program, expires_at) VALUES (?, ?, ?)",
                (self._link_digest(link.code), person, link.expires_ms),
            )

        self._store.write(put)
        return link

    def is_invitation(self, code: str) -> bool:
        """Whether a link is one that a password is chosen by, and still counts."""
        with self._store.read() as txn:
            row = self._link(txn.sql, code)
            return row is not None and row[0] is not None

    def follow_owner_link(self, code: str) -> SignedIn | None:
        """Signs the owner in. The link counts no longer then."""

        def follow(txn: WriteTxn) -> SignedIn | None:
            row = self._link(txn.sql, code)
            if row is None or row[0] is not None:
                return None
            self._drop_link(txn.sql, code)
            return self._sign_in(txn, None)

        return self._store.write(follow)

    def accept(self, code: str, password: str) -> SignedIn | None:
        """Signs in whom an invitation was for, with the password that they chose. Whoever was signed in with the one
        before is signed out."""
        ensure_password(password)
        if not self.is_invitation(code):
            return None
        hashed = self._hasher.hash(password)

        def accepted(txn: WriteTxn) -> SignedIn | None:
            row = self._link(txn.sql, code)
            if row is None or row[0] is None or not _is_person(txn, row[0]):
                return None
            (person,) = row
            for table in ("sign_in_link", "browser_session", "account"):
                txn.sql.run(f"DELETE FROM {table} WHERE program = ?", (person,))
            txn.sql.run(
                "INSERT INTO account(program, password, changed_at) VALUES (?, ?, ?)", (person, hashed, self._now_ms())
            )
            return self._sign_in(txn, person)

        return self._store.write(accepted)

    def _link(self, sql: Sql, code: str) -> tuple[str | None] | None:
        row = sql.fetch_row(
            "SELECT program FROM sign_in_link WHERE digest = ? AND expires_at > ?",
            (self._link_digest(code), self._now_ms()),
        )
        return None if row is None else (row[0],)

    def _drop_link(self, sql: Sql, code: str) -> None:
        sql.run("DELETE FROM sign_in_link WHERE digest = ?", (self._link_digest(code),))

    def _link_digest(self, code: str) -> str:
        return sha256(f"{self._store.replica} link {code}".encode("utf-8", "replace")).hexdigest()

    # --- browsers -----------------------------------------------------------------------------------------------

    def sign_in(self, name: str, password: str) -> SignedIn | None:
        """With a password. Who has no account takes as long as who is mistaken, so nobody learns who has one."""
        person = self._person(name)
        with self._store.read() as txn:
            row = None if person is None else _account(txn.sql, person)
        is_right = self._is_password(self._nobodys_hash if row is None else row, password)
        if person is None or row is None or not is_right:
            return None

        def signed_in(txn: WriteTxn) -> SignedIn | None:
            is_unchanged = _account(txn.sql, person) == row and _is_person(txn, person)
            return self._sign_in(txn, person) if is_unchanged else None

        return self._store.write(signed_in)

    def browser(self, cookie: str) -> Browser | None:
        """Whose cookie it is, if it still counts."""
        number, _, secret = cookie.partition(".")
        if not number.isascii() or not number.isdecimal() or len(number) > 9:
            return None
        with self._store.read() as txn:
            key = _key(txn.sql, int(number))
            if key is None:
                return None
            browser = key.browser(self._store.replica, secret, None, 0)
            row = txn.sql.fetch_row(
                "SELECT program, expires_at FROM browser_session"
                " WHERE digest = ? AND cookie_key = ? AND expires_at > ?",
                (browser.digest, key.number, self._now_ms()),
            )
            if row is None or (row[0] is not None and not _is_account(txn, row[0])):
                return None
            return key.browser(self._store.replica, secret, *row)

    def sign_out(self, browser: str) -> None:
        """By the digest of a browser."""
        self._store.write(lambda txn: txn.sql.run("DELETE FROM browser_session WHERE digest = ?", (browser,)))

    def _sign_in(self, txn: WriteTxn, person: str | None) -> SignedIn:
        now, secret = self._now_ms(), self._secret()
        txn.sql.run("DELETE FROM browser_session WHERE expires_at <= ?", (now,))
        key = self._newest_key(txn.sql, now)
        browser = key.browser(self._store.replica, secret, person, now + BROWSER_MS)
        txn.sql.run(
            "INSERT INTO browser_session(digest, program, cookie_key, expires_at) VALUES (?, ?, ?, ?)",
            (browser.digest, person, key.number, browser.expires_ms),
        )
        return SignedIn(browser=browser, cookie=f"{key.number}.{secret}")

    def _newest_key(self, sql: Sql, now: int) -> _CookieKey:
        newest = sql.fetch_row("SELECT n, key, made_at FROM cookie_key ORDER BY n DESC LIMIT 1")
        if newest is not None and now - newest[2] < KEY_MS:
            return _CookieKey(newest[0], bytes(newest[1]))
        # No cookie of a key is younger than the week in which it was the newest.
        sql.run("DELETE FROM cookie_key WHERE made_at <= ?", (now - KEY_MS - BROWSER_MS,))
        key = _CookieKey(1 if newest is None else newest[0] + 1, self._random_bytes(SECRET_BYTES))
        sql.run("INSERT INTO cookie_key(n, key, made_at) VALUES (?, ?, ?)", (key.number, key.key, now))
        return key

    def _secret(self) -> str:
        return urlsafe_b64encode(self._random_bytes(SECRET_BYTES)).decode().rstrip("=")

    def _person(self, name: str) -> str | None:
        try:
            return Programs(self._ledger).get(name, "human").id
        except (NotFound, InvalidInput):
            return None

    # --- passwords ----------------------------------------------------------------------------------------------

    @cached_property
    def _hasher(self) -> PasswordHasher:
        try:
            from argon2 import PasswordHasher
        except ImportError as error:
            raise Unsupported(
                f"passwords need the package argon2-cffi ({error})", "install it with `pip install 'weft[server]'`"
            ) from None
        return PasswordHasher()  # argon2id, with the costs of RFC 9106 for little memory

    @cached_property
    def _nobodys_hash(self) -> str:
        return self._hasher.hash(self._secret())

    def _is_password(self, hashed: str, password: str) -> bool:
        from argon2.exceptions import Argon2Error, InvalidHashError

        try:
            return len(password) <= MOST_CHARACTERS and self._hasher.verify(hashed, password)
        except (Argon2Error, InvalidHashError, UnicodeEncodeError):
            return False

    # --- credentials that count no longer -----------------------------------------------------------------------

    def revoke(self, credential: str) -> None:
        """From now on a credential counts nowhere, nor what was made from it."""

        def revoked(txn: WriteTxn) -> None:
            now = self._now_ms()
            txn.sql.run("DELETE FROM credential_revoked WHERE revoked_at <= ?", (now - REVOKED_MS,))
            txn.sql.run(
                "INSERT INTO credential_revoked(id, revoked_at) VALUES (?, ?) ON CONFLICT (id) DO NOTHING",
                (credential, now),
            )

        self._store.write(revoked)

    def revoked_among(self, credentials: Iterable[str]) -> frozenset[str]:
        with self._store.read() as txn:
            query = "SELECT id FROM credential_revoked WHERE id IN"
            return frozenset(str(id) for (id,) in rows_in(txn.sql, query, credentials))

    def signed_out_among(self, browsers: Collection[str]) -> frozenset[str]:
        """Of these digests those that name nobody who is signed in."""
        with self._store.read() as txn:
            query = (
                "SELECT digest, program FROM browser_session"
                " WHERE cookie_key IN (SELECT n FROM cookie_key) AND digest IN"
            )
            rows = list(rows_in(txn.sql, query, browsers))
            return frozenset(browsers) - {
                digest for digest, person in rows if person is None or _is_account(txn, person)
            }

    def absent_among(self, authorities: Collection[Authority]) -> frozenset[Authority]:
        """Those in whose chain somebody is that is not there any more."""
        with self._store.read() as txn:
            return frozenset(authority for authority in authorities if not _acts(txn, authority))


def ensure_password(password: str) -> None:
    """Raises InvalidInput for one that is too short or too long."""
    if not FEWEST_CHARACTERS <= len(password) <= MOST_CHARACTERS:
        raise InvalidInput(f"a password has {FEWEST_CHARACTERS} to {MOST_CHARACTERS} characters", "choose another one")
    if any("\ud800" <= letter <= "\udfff" for letter in password):
        raise InvalidInput("the password has letters that no keyboard types", "choose another one")


def _account(sql: Sql, person: str) -> str | None:
    row = sql.fetch_row("SELECT password FROM account WHERE program = ?", (person,))
    return None if row is None else str(row[0])


def _key(sql: Sql, number: int) -> _CookieKey | None:
    row = sql.fetch_row("SELECT n, key FROM cookie_key WHERE n = ?", (number,))
    return None if row is None else _CookieKey(row[0], bytes(row[1]))


def _is_account(txn: ReadTxn, person: str) -> bool:
    return _account(txn.sql, person) is not None and _is_person(txn, person)


def _is_person(txn: ReadTxn | WriteTxn, person: str) -> bool:
    row = txn.sql.fetch_row("SELECT kind FROM program WHERE id = ? AND deleted = 0", (person,))
    return row is not None and row[0] == "human"


def _acts(txn: ReadTxn, authority: Authority) -> bool:
    try:
        chain_ids(txn, authority)
    except NotFound:
        return False
    return True
