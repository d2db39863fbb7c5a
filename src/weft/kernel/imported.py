"""Names of imported things, the same in every ledger that shares the import secret, whatever came first.

A turn is named by where it hangs, how it was mapped and what its source says; a session by its origin and native id; a
content's salt by its origin and its bytes. The secret keeps strangers from guessing a text from its name.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from weft.kernel.clock import from_digest
from weft.kernel.contents import SALT_BYTES, Prepared, content_ref, readable

TURN_DOMAIN = b"weft.turn.1\n"
SESSION_DOMAIN = b"weft.session.1\n"
SOURCE_DOMAIN = b"weft.source.1\n"
UNDIGESTED = 256
"""An imported content up to this size is found by its reference alone, which its bytes determine."""
REPEATED_CONTENTS = 4096
"""So many short contents are remembered: paths, versions and branches come again with every turn."""


def imported_turn_id(grows_from: str | None, mapping: str, source: str) -> str:
    """The id of a turn: of the event that it grows from, the mapping's name and the digest of its source records."""
    named = "\n".join([grows_from or "", mapping, source])
    return from_digest(sha256(TURN_DOMAIN + named.encode()).digest())


class ImportSecret:
    """Everything that is derived from one ledger's import secret for one origin."""

    def __init__(self, secret: bytes, origin: str) -> None:
        self._secret = self.key = secret
        self._origin = origin.encode() + b"\0"
        self._repeated: dict[bytes, Prepared] = {}

    def salt(self, digest: bytes) -> bytes:
        """The salt of a content with this plain digest."""
        return self._mac(self._origin + digest)[:SALT_BYTES]

    def prepare(self, data: bytes) -> Prepared:
        """A content of this origin. The same bytes are one content in every ledger that shares the secret."""
        if len(data) > UNDIGESTED:
            digest = sha256(data).digest()
            salt = self.salt(digest)
            return Prepared(data, digest, salt, content_ref(salt, data), readable(data))
        known = self._repeated.get(data)
        if known is None:
            salt = self.salt(sha256(data).digest())
            known = Prepared(data, b"", salt, content_ref(salt, data), readable(data))
            if len(self._repeated) >= REPEATED_CONTENTS:
                self._repeated.clear()
            self._repeated[data] = known
        return known

    def reference(self, data: bytes) -> bytes:
        """Of a content of this origin: derived from its bytes, so they need not be here."""
        return content_ref(self.salt(sha256(data).digest()), data)

    def session_id(self, native: str) -> str:
        return from_digest(self._mac(SESSION_DOMAIN + self._origin + native.encode("utf-8", "surrogatepass")))

    def source(self, records: Iterable[bytes]) -> str:
        """The digest of a turn's normalised records; lengths keep neighbours apart."""
        mac = hmac.new(self._secret, SOURCE_DOMAIN + self._origin, sha256)
        for record in records:
            mac.update(b"%d:" % len(record))
            mac.update(record)
        return mac.hexdigest()

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")
