"""Whether somebody listens on a port of this machine. The connection is closed at once, and nothing is sent.

It stands beside the one place that opens connections, which loads an HTTP client first: to learn that nobody is there
needs none.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 0.2


def is_listening(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(CONNECT_SECONDS)
        return connection.connect_ex((LOOPBACK, port)) == 0
