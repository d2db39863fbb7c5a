"""HTTP over the socket of a container engine. Imports the docker library, and is therefore imported where it is used.

The library's own connection leaves its socket open when nobody listens, and it keeps one for each path; these do not.
"""

from __future__ import annotations

import socket
from typing import Any

import requests
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool

_ONE_POOL = "http+docker://localhost"


class EngineConnection(UnixHTTPConnection):  # type: ignore[misc]  # the library says nothing of its types
    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self.unix_socket)
        except OSError:
            connection.close()
            raise
        self.sock = connection


class EngineConnections(UnixHTTPConnectionPool):  # type: ignore[misc]  # the library says nothing of its types
    def _new_conn(self) -> EngineConnection:
        return EngineConnection(self.base_url, self.socket_path, self.timeout)


class EngineTransport(UnixHTTPAdapter):  # type: ignore[misc]  # the library says nothing of its types
    def get_connection(self, url: str, proxies: Any = None) -> EngineConnections:
        with self.pools.lock:
            pool: EngineConnections | None = self.pools.get(_ONE_POOL)
            if pool is None:
                pool = EngineConnections(_ONE_POOL, self.socket_path, self.timeout, self.max_pool_size)
                self.pools[_ONE_POOL] = pool
        return pool


def engine_session(socket_path: str | None, seconds: float) -> requests.Session:
    """A session that reads nothing of the environment; with a path everything goes through that socket."""
    session = requests.Session()
    session.trust_env = False
    session.headers["Accept-Encoding"] = "identity"  # what a call gives is as long as what is read
    if socket_path is not None:
        session.mount("http+docker://", EngineTransport(f"http+unix://{socket_path}", timeout=seconds))
    return session
