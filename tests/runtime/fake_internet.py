"""An internet of few servers: names with addresses, public addresses behind which a local server stands.

The rules see public addresses; only where a connection is opened it goes to the local port. Every address that somebody
tried to connect to is written down.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpcore2
import pytest

REAL_CONNECT = httpcore2.AnyIOBackend.connect_tcp
PUBLIC = "93.184.216.34"


class FakeInternet:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, names: dict[str, list[list[str]]], port: int | None = None
    ) -> None:
        """`names`: for each name its answers, one after the other; the last one stays."""
        self.names, self.port = names, port
        self.connected: list[tuple[str, int]] = []
        internet = self

        async def resolved(host: str, port: int) -> list[str]:
            return await internet.resolve(host)

        async def connect(backend: Any, host: str, port: int, *words: Any, **how: Any) -> Any:
            internet.connected.append((host, port))
            if internet.port is None or host != PUBLIC:
                raise httpcore2.ConnectError("nobody there")
            return await REAL_CONNECT(backend, "127.0.0.1", internet.port, *words, **how)

        monkeypatch.setattr("weft.runtime.egress.connections._resolve_addresses", resolved)
        monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)

    async def resolve(self, host: str) -> list[str]:
        """Numbers as the system reads them; names by the table; other names do not exist."""
        if host in self.names:
            answers = self.names[host]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(host, 80, flags=socket.AI_NUMERICHOST)
        except OSError:
            raise httpcore2.ConnectError("no such name") from None
        return [str(entry[4][0]) for entry in entries]


def near_names() -> dict[str, list[list[str]]]:
    return {
        "public.example": [[PUBLIC]],
        "localhost": [["127.0.0.1", "::1"]],
        "private.example": [["10.0.0.1"]],
        "metadata.example": [["169.254.169.254"]],
        "ip6.example": [["::ffff:127.0.0.1", "fe80::1"]],
        "flipping.example": [[PUBLIC], ["127.0.0.1"]],
        "mixed.example": [["127.0.0.1", PUBLIC]],
    }
