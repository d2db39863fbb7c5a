"""`weft serve`: the ledger over HTTP, and a broker beside it, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.work.broker_call import BrokerAccess, with_broker
from weft.surfaces.cli.work.send import CAPACITY_TURNS, full_broker
from weft.verbs.answers import LoggedRequest, ServerReady

if TYPE_CHECKING:
    from weft.programs.accounts import Accounts
    from weft.surfaces.server.application import AnsweredRequest, Served
    from weft.surfaces.server.serving import Listening
    from weft.surfaces.server.telemetry import Telemetry

MOST_PORT = 65535


@weft_command("serve")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, MOST_PORT),
    default=8420,
    help="Listen on this port of this machine; 0 is any free one. Default: 8420.",
)
@click.option("--no-broker", is_flag=True, help="Answer requests alone; a broker elsewhere answers messages.")
@click.option(
    "--mcp-writes",
    multiple=True,
    metavar="TOOL,...",
    help="Offer these tools at /mcp, too: fork, send. Without it the tools only read.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Listen on this address, with TLS or behind a stated proxy. Default: 127.0.0.1.",
)
@click.option(
    "--tls-certificate", metavar="FILE", type=click.Path(), help="The certificate by whose names it is reached."
)
@click.option("--tls-key", metavar="FILE", type=click.Path(), help="The key of the certificate.")
@click.option("--behind", metavar="URL", help="A proxy asks, which people reach at this https address.")
def serve_command(
    call: Call,
    port: int,
    no_broker: bool,
    mcp_writes: tuple[str, ...],
    host: str,
    tls_certificate: str | None,
    tls_key: str | None,
    behind: str | None,
) -> None:
    """Serve this ledger over HTTP until stopped.

    It listens on this machine alone, at http://127.0.0.1:8420. Requests need a credential: `weft token create` makes a
    token, and the link that is printed signs your browser in, once and soon. `weft human invite` lets somebody else
    choose a password. /openapi.json describes every route; docs/http.md tells how to use them. At /mcp it is an MCP
    server. Messages are answered in the same process, as `weft broker` does.

    On another address than this machine's own it needs TLS, by --tls-certificate and --tls-key, or a proxy that has it,
    by --behind. It answers for the names in the certificate, or for that of the proxy, and for no others. Only behind a
    proxy are X-Forwarded-For, -Host and -Proto looked at: have the proxy set them anew.

    SIGTERM or Ctrl-C lets it finish what runs; a second one leaves turns to other brokers.

    One line says that it is ready, another one has the link.
    """
    from weft.surfaces.cli.programs.mcp_servers import writing_tools

    call.ensure_owner("serve")
    _ensure_installed()
    tools = writing_tools(mcp_writes, "--mcp-writes")
    from weft.surfaces.server.serving import TlsFiles, listen

    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    tls = None if tls_certificate is None or tls_key is None else TlsFiles(tls_certificate, tls_key)
    listening = listen(port, host, tls, behind)
    try:
        with_broker(call, lambda access: _serve(call, access, listening, tools, has_broker=not no_broker))
    finally:
        listening.taken.close()


def _ensure_installed() -> None:
    from weft.kernel.errors import Unsupported

    try:
        import httptools
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as error:
        raise Unsupported(
            f"serving needs the package {error.name}", "install it with `pip install 'weft[server]'`"
        ) from None
    del httptools, prometheus_client, starlette, uvicorn


async def _serve(
    call: Call, access: BrokerAccess, listening: Listening, tools: tuple[str, ...], *, has_broker: bool
) -> None:
    from weft.aio.open_ledger import SharedInference
    from weft.programs.accounts import LINK_MS, Accounts
    from weft.runtime.spans import tracer
    from weft.surfaces.server.application import Application
    from weft.surfaces.server.event_streams import EventStreams, event_endpoints
    from weft.surfaces.server.mcp_endpoint import mcp_endpoints
    from weft.surfaces.server.messages import message_endpoints
    from weft.surfaces.server.metrics import ServerMetrics, metrics_endpoint
    from weft.surfaces.server.serving import Serving
    from weft.surfaces.server.sign_in import sign_in_endpoints

    accounts = Accounts(access.ledger)
    served = served_ledger(call, access, accounts, listening)
    streams = EventStreams(served)
    inference = SharedInference(os.environ.get)
    broker = await full_broker(call, access, CAPACITY_TURNS) if has_broker else None
    metrics = ServerMetrics(lambda: len(streams), broker)
    endpoints = [
        *message_endpoints(served, streams),
        *event_endpoints(served, streams),
        *mcp_endpoints(served, inference, tools),
        *sign_in_endpoints(served, accounts),
        metrics_endpoint(served, metrics),
    ]
    application = Application(served, endpoints)
    application.on_answered += [metrics.count, *([partial(_log, call)] if call.json else [])]
    telemetry = await served.crossing.run(_opened_telemetry)
    if telemetry is not None:
        application.on_answered.append(telemetry.note_request)
        tracer.set(telemetry)  # of this task, and of the broker that it begins
    link = await served.crossing.run(accounts.owner_link)
    ready = ServerReady(
        ready=True,
        pid=os.getpid(),
        url=listening.url,
        has_broker=has_broker,
        sign_in_url=link.url(listening.url),
        sign_in_expires_at=link.expires_ms,
    )

    def show_ready() -> None:
        minutes = LINK_MS // 60_000
        call.answer(ready, [f"ready: {ready.url}"], [f"sign in: {ready.sign_in_url} (once, within {minutes} minutes)"])
        sys.stdout.flush()

    try:
        await Serving(application, listening, broker, call.note).run(show_ready)
    finally:
        await inference.close()
        if telemetry is not None:
            await asyncio.to_thread(telemetry.close)
    call.note("stopped")


def _opened_telemetry() -> Telemetry | None:
    """What sends traces, where a variable says where to."""
    from weft.surfaces.server.telemetry import ENDPOINT_VARIABLES, Telemetry

    return Telemetry() if any(os.environ.get(name) for name in ENDPOINT_VARIABLES) else None


def _log(call: Call, request: AnsweredRequest) -> None:
    """One line of JSON for each request: its route, and nothing that the client wrote."""
    call.wait_for(
        LoggedRequest(
            request=request.method,
            route=request.route,
            status=request.status,
            answered_at=request.began_ms + round(request.seconds * 1000),
            milliseconds=round(request.seconds * 1000),
        )
    )


def served_ledger(call: Call, access: BrokerAccess, accounts: Accounts, listening: Listening) -> Served:
    """What requests are answered from."""
    from weft.kernel.clock import SystemClock
    from weft.surfaces.cli.credentials import PersonsTokens
    from weft.surfaces.cli.work.sandbox_access import LedgerMachine
    from weft.surfaces.server.application import Served
    from weft.surfaces.server.callers import Callers

    crossing = access.mirror.crossing
    return Served(
        ledger=access.ledger,
        crossing=crossing,
        callers=Callers(PersonsTokens(), accounts, crossing, SystemClock().now_ms, cookie_name=listening.cookie_name),
        hosts=listening.hosts,
        machine=LedgerMachine(access.ledger, call.trust_store),
        note=lambda text: call.note(Span(text, "warn")),
    )
