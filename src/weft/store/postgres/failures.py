"""What psycopg raises, in Weft's words: which failures pass by themselves, and who must act on the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from weft.kernel.advice import Action
from weft.kernel.errors import Damaged, ReadOnlyLedger, StoreError, StoreFailed

PASSING = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # a lock that was not waited for
        "57P01",  # the administrator ended the connection
        "57P02",  # another session crashed
        "57P03",  # starting up or shutting down
        "57P05",  # idle for too long
        "25P03",  # idle for too long inside a transaction
        "53300",  # too many connections
    }
)
_MINTED = {
    "turn_id": "turn.id",
    "session_id_key": "session.id",
    "program_pkey": "program.id",
}
_CORRUPT = ("XX001", "XX002")
GRANT = "grant the user what it needs: CREATE on the database, or everything in the ledger's schema"
_AWAY = "start it, or check the address and the network; Weft connects again by itself"
_HINTS = {
    "28": "check the user, the password and the server's pg_hba.conf",
    "3D": "make the database first: `createdb NAME`",
    "42501": GRANT,
    "53100": "free space on the server's disk, then try again; nothing was acknowledged",
    "53300": "let fewer programs connect at once, or raise max_connections",
}

_AT_CONNECTING = (
    ('FATAL:  database "', "3D"),
    ('FATAL:  role "', "28"),
    ("authentication failed", "28"),
    ("pg_hba.conf", "28"),
    ("too many clients", "53300"),
)
"""A server that refuses a connection gives no code, only words."""


def is_passing(error: BaseException | None) -> bool:
    """It says nothing about the work, only that the moment or the connection was wrong."""
    if not isinstance(error, psycopg.Error):
        return False
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code in PASSING or code.startswith("08")


def violated_rule(error: BaseException | None) -> str | None:
    """The rule of a table that a row breaks; a minted id by its column."""
    if not isinstance(error, psycopg.IntegrityError):
        return None
    name = error.diag.constraint_name or server_message(error)
    return _MINTED.get(name, name)


def server_message(error: psycopg.Error) -> str:
    """The server's words in one line."""
    return error.diag.message_primary or " ".join(str(error).split())


@contextmanager
def translated(path: str) -> Iterator[None]:
    """psycopg's errors become ours; what the caller's own work raises passes through."""
    try:
        yield
    except psycopg.Error as error:
        raise store_error(error, path) from error


def store_error(error: psycopg.Error, path: str) -> StoreError:
    code = error.sqlstate or ""
    if code == "25006":
        return ReadOnlyLedger(path)
    if code in _CORRUPT:
        return Damaged(f"{path}: the database is malformed ({server_message(error)})", Action.COPY_BACKUP)
    if code[:2] == "42" and code not in _HINTS:  # the statements are our own: what they do not find was there once
        return Damaged(f"{path}: the schema is not whole ({server_message(error)})", Action.COPY_BACKUP)
    hint = _HINTS.get(code) or _HINTS.get(code[:2])
    if not code:
        hint = next((_HINTS[kind] for words, kind in _AT_CONNECTING if words in str(error)), None)
    if hint is None and is_passing(error):
        hint = _AWAY if not code or code.startswith(("08", "57")) else "try again"
    return StoreFailed(f"{path}: {server_message(error)}", hint or "")
