"""What the server counts, as Prometheus reads it at /metrics: requests, open streams, turns of the broker, and messages
that wait. Labels are routes, methods and statuses alone: nothing that a client writes becomes one, and nothing of the
ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0, generate_latest
from starlette.responses import Response

from weft.ledger.api import Runs
from weft.surfaces.server.application import AnsweredRequest, Served
from weft.surfaces.server.route_table import Endpoint

if TYPE_CHECKING:
    from starlette.requests import Request

    from weft.runtime.broker.broker import Broker
    from weft.surfaces.server.callers import Caller

PATH, RIGHT = "/metrics", "server:read"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the histogram: from a read of a row to a message that is answered."""
MOST_SESSIONS = 1000
"""Sessions whose queues are counted: what is read by a scrape stays small."""


class ServerMetrics:
    """The figures of one server, in a registry of its own."""

    def __init__(self, streams: Callable[[], int], broker: Broker | None = None) -> None:
        self._broker = broker
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("weft_http_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "weft_http_request_seconds",
            "Seconds until a request was answered whole; of a stream, until it ended.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._streams = Gauge("weft_http_streams_open", "Event streams that are open.", registry=self.registry)
        self._streams.set_function(streams)
        self._waiting = Gauge("weft_messages_waiting", "Messages that wait for a broker.", registry=self.registry)
        self._sessions = Gauge("weft_sessions_waiting", "Sessions in which messages wait.", registry=self.registry)
        if broker is not None:
            working = Gauge(
                "weft_broker_sessions_working", "Sessions that the broker works on.", registry=self.registry
            )
            working.set_function(lambda: broker.working)
            turns = Gauge(
                "weft_broker_turns_ended", "Turns that the broker ended since it began.", registry=self.registry
            )
            turns.set_function(lambda: broker.turns_ended)

    def count(self, request: AnsweredRequest) -> None:
        self._requests.labels(request.method, request.route, str(request.status)).inc()
        self._seconds.labels(request.route).observe(request.seconds)

    def text(self, runs: Runs) -> bytes:
        """All figures. It reads the ledger."""
        waiting = runs.waiting(MOST_SESSIONS)
        self._waiting.set(sum(session.amount for session in waiting))
        self._sessions.set(sum(session.amount > 0 for session in waiting))
        return generate_latest(self.registry)


def metrics_endpoint(served: Served, metrics: ServerMetrics) -> Endpoint:
    runs = Runs(served.ledger)

    async def handle(_: Request, __: Caller | None, ___: dict[str, str]) -> Response:
        text = await served.crossing.run(lambda: metrics.text(runs))
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_1_0_0})

    return Endpoint(method="GET", path=PATH, right=RIGHT, handler=handle)
