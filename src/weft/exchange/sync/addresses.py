"""Where another ledger lies: a path or a PostgreSQL URL that is opened here, or a program that serves one over its
standard input and output, on this machine or behind ssh."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from weft.exchange.sync.pump import SILENCE_SECONDS, Channel
from weft.kernel.clock import Clock
from weft.kernel.errors import ConnectionCut, InvalidInput, hidden_address
from weft.kernel.typed_names import Site, ensure_plain_path, needs_psycopg, scheme_of, shell_word

COMMAND, SSH = "cmd:", "ssh://"
FORMS = "give a path, postgresql://…, ssh://host/path or cmd:…"
HOME = "~/"
PIPE_BYTES = 65_536
LEAVING_SECONDS = 10.0
"""So long a program may take to end once nobody speaks to it; then it is ended."""


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
        from weft.store.postgres.connection import parse_address
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
    """A program's standard input and output as one stream of bytes. Neither reading nor writing waits longer than
    `silence_seconds` for the program."""

    def __init__(self, words: Sequence[str], silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        try:
            self._process = subprocess.Popen(list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            raise ConnectionCut(
                f"{words[0]}: {error.strerror or error}", "is it installed, and in the path?"
            ) from error

        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def read(self, most: int) -> bytes:
        assert self._process.stdout is not None
        wait_for(self._process.stdout.fileno(), select.POLLIN, self._silence_seconds)
        return self._process.stdout.read(most) or b""

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        descriptor, rest = self._process.stdin.fileno(), memoryview(data)
        while rest:
            wait_for(descriptor, select.POLLOUT, self._silence_seconds)
            rest = rest[os.write(descriptor, rest[:PIPE_BYTES]) :]

    def close(self) -> None:
        """The program ends when nobody speaks to it any longer, or is ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it may have gone before we did
                    pipe.close()
        patience = min(LEAVING_SECONDS, self._silence_seconds)
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()


class Pipes:
    """Two files as one stream of bytes: the standard input and output of a program that serves."""

    def __init__(self, given: IO[bytes], out: IO[bytes], silence_seconds: float = SILENCE_SECONDS) -> None:
        self._read: Callable[[int], bytes | None] = getattr(given, "read1", given.read)  # what is there, not all asked
        self._given, self._out, self.silence_seconds = given, out, silence_seconds

    def read(self, most: int) -> bytes:
        """A read takes all that the file has buffered: what is left lies in the pipe, where it can be awaited."""
        wait_for(self._given.fileno(), select.POLLIN, self.silence_seconds)
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


def wait_for(descriptor: int, event: int, seconds: float) -> None:
    """Until there is something to read, or room to write; TimeoutError after so many seconds."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(seconds * 1000):
        raise TimeoutError(f"nothing in {seconds:g} seconds")


def start(words: Sequence[str], clock: Clock, silence_seconds: float) -> Channel:
    channel = Channel(ProgramStream(words, silence_seconds), clock, silence_seconds)
    try:
        channel.greet()
    except ConnectionCut:
        channel.close()
        raise
    return channel
