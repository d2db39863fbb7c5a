"""A way to a PostgreSQL server that cuts connections exactly at a COMMIT, or at a call that commits by itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from weft.store.postgres.straight_append import CALL_NAME

COMMIT = b"\x00COMMIT\x00"
"""Within a message of either of PostgreSQL's protocols, and alone in its statement."""
CALL = b"\x00" + CALL_NAME + b"\x00"
"""Within the message that gives a prepared statement its values."""
Cut = Literal["unsent", "unanswered", "unheard", "hanging"]
"""Where a connection ends: the server never gets the COMMIT and sees the end; it gets it and nobody waits for what it
says; it has answered and nobody hears it; it neither gets it nor sees that its client is gone."""
CUTS: tuple[Cut, ...] = ("unsent", "unanswered", "unheard", "hanging")


class Proxy:
    """Listens on the loopback and passes everything on to a server's socket, until it is told to cut."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._next_cut: Callable[[], Cut | None] = lambda: None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def address(self, ledger: str) -> str:
        plain = "sslmode=disable&gssencmode=disable"
        return f"postgresql://weft@127.0.0.1:{self.port}/postgres?{plain}&ledger={ledger}"

    def cut(self, choose: Callable[[], Cut | None]) -> None:
        """From now on ask `choose` at each COMMIT whether, and where, to cut."""
        self._next_cut = choose

    def cut_once(self, how: Cut) -> None:
        cuts: list[Cut] = [how]
        self.cut(lambda: cuts.pop() if cuts else None)

    def close(self) -> None:
        self._listener.close()
        for end in list(self._open):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._server / ".s.PGSQL.5432"))
            except OSError:
                server.close()
                client.close()
                continue
            self._open |= {client, server}
            deaf = threading.Event()
            threading.Thread(target=self._pass_back, args=(server, client, deaf), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(client, server, deaf), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        """What follows a COMMIT that is answered unheard still goes to the server: it answers a whole pipeline."""
        while data := _receive(client):
            how = self._choose() if COMMIT in data or CALL in data else None
            if how is not None:
                deaf.set()
            if how in (None, "unheard"):
                if not _send(server, data):
                    break
                continue
            if how == "unanswered":
                _send(server, data)
            _end(client)
            if how != "hanging":
                _end(server)
            return
        _end(server)

    def _pass_back(self, server: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        while (data := _receive(server)) and not deaf.is_set() and _send(client, data):
            pass
        _end(client)
        if deaf.is_set():
            _end(server)

    def _choose(self) -> Cut | None:
        with self._lock:
            how = self._next_cut()
            self.cuts += how is not None
            return how


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> bool:
    try:
        end.sendall(data)
    except OSError:
        return False
    return True


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        end.close()
