"""The server as a process: it takes its port, answers, runs a broker beside, and ends without losing anything.

SIGTERM ends it in this order: no new connection is taken, streams are told to end, requests that run are answered, and
the broker finishes its turns. Whatever is not done then is another broker's, as after every end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from weft.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from weft.runtime.broker.broker import Broker
    from weft.surfaces.server.application import Application

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8420
END_SECONDS = 10.0
"""So long requests that run are waited for at the end."""
MOST_CONNECTIONS = 4096
UNTAKEN_MS = 30_000
"""Of a client that takes nothing of what was sent for so long, the system ends the connection: what was dropped already
would else wait for it."""


def bound_socket(port: int, host: str = LOOPBACK) -> socket.socket:
    """The port, taken; 0 is any free one. Raises InvalidInput for one that is not to be had."""
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections that are taken have it from the socket that listens
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)
    try:
        taken.bind((host, port))
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidInput(f"port {port} is taken", "choose another one with --port, or 0 for any") from None
        raise InvalidInput(f"port {port} of {host} cannot be taken: {error.strerror}", "choose another one") from None
    return taken


class _Server(uvicorn.Server):
    """Signals are handled here, once for the server and the broker beside it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """One server over an application, and the broker in the same process, if there is one."""

    def __init__(
        self, application: Application, taken: socket.socket, broker: Broker | None, note: Callable[[str], None]
    ) -> None:
        self._taken, self._broker, self._note = taken, broker, note
        self._application = application
        config = uvicorn.Config(
            cast(Any, application),
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(END_SECONDS),
        )
        logging.getLogger("uvicorn.error").addHandler(logging.NullHandler())
        logging.getLogger("uvicorn").propagate = False
        self._server = _Server(config)
        self._is_ending = False
        self._brokering: asyncio.Future[None] | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until a signal ends it. `on_ready` is called once requests are answered."""
        loop = asyncio.get_running_loop()
        self._brokering = None if self._broker is None else asyncio.ensure_future(self._broker.serve())
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._taken]))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        try:
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            if self._server.started:
                on_ready()
            await serving
            if self._brokering is not None:
                with suppress(asyncio.CancelledError):  # a second signal
                    await self._brokering
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._brokering is not None and not self._brokering.done():
                self._brokering.cancel()
                await asyncio.gather(self._brokering, return_exceptions=True)

    def _end(self) -> None:
        """The first signal lets all end that runs; the second one waits for nothing."""
        if self._is_ending:
            self._server.force_exit = True
            if self._brokering is not None:
                self._brokering.cancel()
            return
        self._is_ending = True
        self._server.should_exit = True
        self._application.end_streams()
        if self._broker is not None:
            self._broker.drain()
        self._note("ending: what runs is finished first")
