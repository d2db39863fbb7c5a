"""The server as a process: it takes its port, answers, runs a broker beside, and ends without losing anything.

SIGTERM ends it in this order: no new connection is taken, streams are told to end, requests that run are answered, and
the broker finishes its turns. Whatever is not done then is another broker's, as after every end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from weft.kernel.errors import InvalidInput
from weft.surfaces.server.callers import PLAIN_COOKIE, SECURE_COOKIE
from weft.surfaces.server.guards import MOST_HEAD_BYTES, MOST_TARGET_BYTES, HostGuard

if TYPE_CHECKING:
    from weft.runtime.broker.broker import Broker
    from weft.surfaces.server.application import Application

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8420
END_SECONDS = 10.0
"""So long requests that run are waited for at the end."""
MOST_CONNECTIONS = 4096
HEAD_SECONDS = 15.0
"""So long the head of a request may take, from the first byte or from the connection on."""
UNTAKEN_MS = 30_000
"""Of a client that takes nothing of what was sent for so long, the system ends the connection: what was dropped already
would else wait for it."""


OWN_DESCRIPTORS = 512
"""Of the ledger, models and commands, beside those of connections."""


def most_connections() -> int:
    """For how many connections the process may have a descriptor. By default there are fewer than streams: the limit is
    raised as far as the system lets it. Beyond it no connection is taken, not even to refuse it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft - OWN_DESCRIPTORS))
    )


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


class TlsFiles(Struct, frozen=True):
    """A certificate, with those that it was signed with, and its key: two files."""

    certificate: str
    key: str

    def names(self) -> tuple[str, ...]:
        """The hosts that it was made for. Raises InvalidInput for files by which nobody can be served."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            return _names_in(context, self.certificate)
        except OSError as error:  # also what is wrong in a file
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            hint = "name the files in PEM form with --tls-certificate and --tls-key"
            raise InvalidInput(
                f"{self.certificate} and {self.key} are no certificate and its key: {reason}", hint
            ) from None


def _no_password() -> str:
    raise InvalidInput("the key has a password, and nobody is there to type it", "give one without")


def _names_in(context: ssl.SSLContext, certificate: str) -> tuple[str, ...]:
    """The names in a certificate, as a client reads them: one that trusts this very certificate connects in memory."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    names: Any = (client.getpeercert() or {}).get("subjectAltName", ())
    return tuple(_as_host(name) for kind, name in names if kind in ("DNS", "IP Address"))


def _as_host(name: str) -> str:
    """As it stands in a Host header."""
    return f"[{ip_address(name)}]" if ":" in name else name.lower()


class Listening(Struct, frozen=True, kw_only=True):
    """Where a server is reached: a port that is taken, the hosts that it answers for, and what people type."""

    taken: socket.socket
    hosts: HostGuard
    url: str
    tls: TlsFiles | None = None

    @property
    def cookie_name(self) -> str:
        """Browsers keep the cookies of all ports of a host together, so a plain one has the port in its name."""
        return SECURE_COOKIE if self.hosts.is_secure else f"{PLAIN_COOKIE}-{self.taken.getsockname()[1]}"


def listen(port: int, host: str = LOOPBACK, tls: TlsFiles | None = None, behind: str | None = None) -> Listening:
    """Take a port. Raises InvalidInput for one that is not to be had, and for an address that others reach unless TLS,
    or a proxy that has it, keeps what is sent from being read on the way."""
    try:
        address = ip_address(host)
    except ValueError:
        raise InvalidInput(f"{host} is no address", "give one such as 0.0.0.0 or ::1") from None
    if not address.is_loopback and tls is None and behind is None:
        hint = "give --tls-certificate and --tls-key, or --behind with the https address of a proxy"
        raise InvalidInput(f"what is sent to {host} could be read on the way", hint)
    names = () if tls is None else tls.names()
    guard = None if behind is None else HostGuard.behind(behind)
    taken = bound_socket(port, host)
    port = taken.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    if guard is not None:
        return Listening(taken=taken, hosts=guard, url=f"https://{min(guard.hosts, key=len)}", tls=tls)
    scheme = "http" if tls is None else "https"
    own = () if address.is_unspecified else (shown,)
    name = next((name for name in names if not name.startswith("*")), shown)
    hosts = HostGuard(port, (*own, *names), scheme=scheme)
    return Listening(taken=taken, hosts=hosts, url=f"{scheme}://{name}:{port}", tls=tls)


class _Protocol(HttpToolsProtocol):
    """Ends connections whose request does not come: whose head is too large, or takes too long. Nobody has shown a
    credential yet, so nothing of it is kept waiting for."""

    _awaiting_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._awaiting_head and (self.cycle is None or self.cycle.response_complete):
            self._await_head()  # another request on the same connection
        super().data_received(data)
        if self._awaiting_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES + MOST_TARGET_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._awaiting_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._awaiting_head, self._head_bytes = True, 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._refuse, b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Server(uvicorn.Server):
    """Signals are handled here, once for the server and the broker beside it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """One server over an application, and the broker in the same process, if there is one."""

    def __init__(
        self,
        application: Application,
        listening: Listening,
        broker: Broker | None,
        note: Callable[[str], None],
    ) -> None:
        self._taken, self._broker, self._note = listening.taken, broker, note
        tls = listening.tls
        self._application = application
        config = uvicorn.Config(
            cast(Any, application),
            http=_Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=most_connections(),
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
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
