"""What kind of place a ledger lies at, read off how it is named."""

from __future__ import annotations

import re
from enum import StrEnum

from weft.kernel.errors import InvalidInput, Unsupported
from weft.kernel.hidden_credentials import hidden_address

IN_MEMORY = ":memory:"
POSTGRESQL_SCHEMES = ("postgresql", "postgres")
_scheme = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_postgresql = re.compile(r"\s*(?:jdbc:)?postgres(?:ql)?(?:\+\w+)?:", re.IGNORECASE)
"""An address of PostgreSQL that is written wrongly: refused as one, and not taken for a file."""


class Site(StrEnum):
    """A file is what has no scheme before it; every other name is an address, of a backend or of nothing we know."""

    FILE = "file"
    MEMORY = "memory"
    POSTGRESQL = "postgresql"
    ELSEWHERE = "elsewhere"

    @classmethod
    def of(cls, name: str) -> Site:
        if name == IN_MEMORY:
            return cls.MEMORY
        found = _scheme.match(name)
        if found is None:
            return cls.POSTGRESQL if _postgresql.match(name) else cls.FILE
        return cls.POSTGRESQL if found[1] in POSTGRESQL_SCHEMES else cls.ELSEWHERE

    @property
    def is_address(self) -> bool:
        """Something to connect to: it means the same from every folder, and there is no file to look at."""
        return self in (Site.POSTGRESQL, Site.ELSEWHERE)


def needs_psycopg(error: ImportError) -> Unsupported:
    """What to install where a ledger on a server is named."""
    return Unsupported(f"a ledger in PostgreSQL needs psycopg ({error})", "install it: `pip install 'weft[postgres]'`")


def ensure_plain_path(path: str) -> None:
    """Refuses the name of a new file that has a password in it: it is an address that was written wrongly."""
    if (shown := hidden_address(path)) != path:
        raise InvalidInput(f"{shown!r} is no file, and no address", "write postgresql://user@host/database")


def scheme_of(address: str) -> str:
    """What stands before ://; nothing behind it, which may hold a password."""
    return address.partition("://")[0]
