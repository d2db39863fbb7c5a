"""Where another ledger lies: a path or a PostgreSQL URL that is opened here, or a program that serves one over its
standard input and output, on this machine or behind ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from weft.exchange.sync.pump import Channel
from weft.kernel.errors import ConnectionCut, InvalidInput
from weft.kernel.hidden_credentials import hidden_address
from weft.kernel.shell_words import shell_word
from weft.kernel.sites import Site, ensure_plain_path, needs_psycopg, scheme_of

COMMAND, SSH = "cmd:", "ssh://"
FORMS = "give a path, postgresql://…, ssh://host/path or cmd:…"
HOME = "~/"


def program_of(address: str) -> list[str] | None:
    """The program that an address starts; None where it names a ledger that is opened here."""
    if address.startswith(COMMAND):
        try:
            words = shlex.split(address.removeprefix(COMMAND))
        except ValueError as error:
            raise InvalidInput(f"{hidden_address(address)!r}: {error}", "write the command as for a shell") from error
        if not words:
            raise InvalidInput(f"{address!r} names no program", "write cmd: and the command that serves the ledger")
        return words
    return _ssh_program(address) if address.startswith(SSH) else None


def without_password(address: str) -> str:
    """The address as it may be kept and shown. Passwords belong into the files of their own programs."""
    site = Site.of(address)
    if site is Site.POSTGRESQL:
        return _postgres_address(address)
    if not site.is_address:
        if not address.startswith(COMMAND) and not os.path.exists(address):
            ensure_plain_path(address)
        return address
    if not address.startswith(SSH):
        raise InvalidInput(f"no ledger is reached by {scheme_of(address)}://", FORMS)
    _ssh_program(address)
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))


def _postgres_address(address: str) -> str:
    try:
        from weft.store.postgres.address import parse_address
    except ImportError as error:
        raise needs_psycopg(error) from error
    return parse_address(address).kept


def _ssh_program(address: str) -> list[str]:
    """`ssh://[user@]host[:port]/path`; `/~/path` is in the home folder there."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"{hidden_address(address)!r} cannot be read", "write ssh://host/path") from None
    host, path = parts.hostname or "", unquote(parts.path)
    if not host or host.startswith("-") or (parts.username or "").startswith("-") or path in ("", "/"):
        raise InvalidInput(f"{hidden_address(address)!r} names no host and path", "write ssh://host/path/of/ledger.db")
    path = path[1:].removeprefix(HOME) if path.startswith(f"/{HOME}") else path
    if path.startswith("-"):
        path = f"./{path}"
    target = f"{parts.username}@{host}" if parts.username else host
    ports = ["-p", str(port)] if port else []
    return ["ssh", *ports, "--", target, f"weft sync-stdio --ledger {shell_word(path)}"]


class ProgramStream:
    """A program's standard input and output as one stream of bytes."""

    def __init__(self, words: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise ConnectionCut(
                f"{words[0]}: {error.strerror or error}", "is it installed, and in the path?"
            ) from error

    def read(self, most: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(most) or b""

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        write_all(self._process.stdin, data)

    def close(self) -> None:
        """The program ends when nobody speaks to it any longer."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it may have gone before we did
                    pipe.close()
        self._process.wait()


class Pipes:
    """Two files as one stream of bytes: the standard input and output of a program that serves."""

    def __init__(self, given: IO[bytes], out: IO[bytes]) -> None:
        self._read: Callable[[int], bytes | None] = getattr(given, "read1", given.read)  # what is there, not all asked
        self._out = out

    def read(self, most: int) -> bytes:
        return self._read(most) or b""

    def write(self, data: bytes) -> None:
        write_all(self._out, data)
        self._out.flush()

    def close(self) -> None:
        """They are the process's own and end with it."""


def write_all(out: IO[bytes], data: bytes) -> None:
    """An unbuffered file may take a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) or 0 :]


def start(words: Sequence[str]) -> Channel:
    channel = Channel(ProgramStream(words))
    try:
        channel.greet()
    except ConnectionCut:
        channel.close()
        raise
    return channel
