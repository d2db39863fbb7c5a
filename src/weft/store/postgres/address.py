"""What an address says: `postgresql://user@host:port/database?ledger=NAME` and everything else that libpq takes."""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted

DEFAULT_LEDGER = "weft"
SHOWN = ("host", "port", "dbname", "user", "service")
"""Options that lead to a database and are no secret."""
SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
"""Options that belong into files of their own."""
MAX_NAME_BYTES = 63
_FORM = "postgresql://user@host:port/database?ledger=NAME; in a password / ? # @ % and spaces are written as %XX"
_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


class PostgresAddress(Struct, frozen=True):
    """`conninfo` is for libpq alone: it may hold a password. `shown` and `kept` never do."""

    conninfo: str
    ledger: str
    shown: str
    kept: str
    """All but secrets: leads to the same ledger, by the same way."""

    @property
    def quoted(self) -> str:
        """The schema, as SQL writes it."""
        return f'"{self.ledger}"'

    @property
    def lock(self) -> int:
        """The advisory lock of the ledger's writers; advisory locks belong to a database, so the name is enough."""
        return int.from_bytes(sha256(f"weft.ledger\n{self.ledger}".encode()).digest()[:8], "big", signed=True)

    def claim(self, name: str) -> int:
        """The advisory lock of whoever has claimed this name in the ledger."""
        return int.from_bytes(sha256(f"weft.claim\n{self.ledger}\n{name}".encode()).digest()[:8], "big", signed=True)

    @property
    def listening(self) -> int:
        """The advisory lock that everybody shares who listens for commits."""
        return self.claim("listening")

    @property
    def channel(self) -> str:
        """Where commits are announced."""
        return f"weft_{sha256(self.ledger.encode()).hexdigest()[:32]}"


def parse_address(text: str) -> PostgresAddress:
    if not text.isprintable() or text != text.strip():
        raise InvalidInput("the address holds characters that nobody can see", "write them as %XX")
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidInput("the address cannot be read", _FORM) from None
    if "://" not in text:
        raise InvalidInput("the address cannot be read", _FORM)
    _refuse_loose_ends(parts, options)
    names = [value for key, value in options if key == "ledger"]
    if len(names) > 1:
        raise InvalidInput("the address names several ledgers", "give ledger= once")
    ledger = checked_name(names[0] if names else DEFAULT_LEDGER)
    others = [(key, value) for key, value in options if key != "ledger"]
    user, at, host = parts.netloc.rpartition("@")
    place = user.split(":")[0] + at + host
    shown = [(key, value) for key, value in others if key in SHOWN]
    kept = [(key, value) for key, value in options if key.lower() not in SECRETS]
    return PostgresAddress(
        conninfo=_joined(parts.netloc, parts.path, others),
        ledger=ledger,
        shown=_joined(place, parts.path, [*shown, ("ledger", ledger)]),
        kept=_joined(place, parts.path, kept),
    )


def _refuse_loose_ends(parts: SplitResult, options: list[tuple[str, str]]) -> None:
    """A password in which a sign was not written as %XX ends too early, and the rest of it would be taken for a host,
    a database or an option, and be shown as such. So nothing of such an address is told."""
    user, _, hosts = parts.netloc.rpartition("@")
    ports = (host.rpartition("]")[2].partition(":")[2] for host in hosts.split(","))
    broken = "@" in user or " " in user or _BARE_PERCENT.search(user) is not None or "@" in parts.path or parts.fragment
    strange = any(port and not port.isdigit() for port in ports) or not all(key.isidentifier() for key, _ in options)
    if broken or strange:
        raise InvalidInput("the address cannot be read", _FORM)


def checked_name(name: str) -> str:
    """A schema that nobody needs to escape, and none of PostgreSQL's own."""
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum() and not name[0].isdigit()
    if not plain or len(name) > MAX_NAME_BYTES or name.startswith("pg_") or name == "information_schema":
        raise InvalidInput(
            f"{quoted(name)} cannot name a ledger",
            f"up to {MAX_NAME_BYTES} letters, digits, - and _, beginning with a letter, and not with pg_",
        )
    return name


def _joined(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote, safe="/")
    return f"postgresql://{netloc}{path}{'?' if query else ''}{query}"
