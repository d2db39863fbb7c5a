"""Traces by OpenTelemetry, in the words of its conventions for generative AI, sent to where OTEL_EXPORTER_OTLP_ENDPOINT
says. The library is loaded then alone. Its own variables say the rest, such as OTEL_EXPORTER_OTLP_HEADERS.

A span has routes, names of models and tools, counts of tokens, ids and codes of errors: no text, no argument, no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from weft.kernel.errors import Unsupported, error_code
from weft.runtime.spans import SpanValue, TracedSpan

if TYPE_CHECKING:
    from weft.surfaces.server.application import AnsweredRequest

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""The conventions that the names of spans and attributes are taken from. They are still changed: others are others."""
FAILED = 500


class _OpenSpan:
    def __init__(self, traced: Any) -> None:
        self._traced = traced

    def set(self, attributes: Mapping[str, SpanValue]) -> None:
        self._traced.set_attributes(dict(attributes))


class Telemetry:
    """Sends spans until it is closed. What cannot be sent is dropped: nobody waits for it."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode
        except ImportError as error:
            hint = "install it with `pip install 'weft[telemetry]'`, or unset OTEL_EXPORTER_OTLP_ENDPOINT"
            raise Unsupported(f"sending traces needs the package {error.name}", hint) from None
        self._kinds: Any = SpanKind
        self._failed: Any = lambda code: Status(StatusCode.ERROR, code)
        resource = Resource.create({SERVICE_NAME: "weft", SERVICE_VERSION: version("weft")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("weft", version("weft"), schema_url=SCHEMA_URL)

    @contextmanager
    def span(self, operation: str, about: str, attributes: Mapping[str, SpanValue]) -> Iterator[TracedSpan]:
        kind = self._kinds.CLIENT if operation == "chat" else self._kinds.INTERNAL
        named = {"gen_ai.operation.name": operation, **attributes}
        with self._tracer.start_as_current_span(
            f"{operation} {about}".rstrip(),
            kind=kind,
            attributes=named,
            record_exception=False,  # its message may hold what was said
            set_status_on_exception=False,
        ) as traced:
            try:
                yield _OpenSpan(traced)
            except Exception as error:  # of whatever kind: it is told by its code, and goes on
                traced.set_attribute("error.type", error_code(error))
                traced.set_status(self._failed(error_code(error)))
                raise

    def note_request(self, request: AnsweredRequest) -> None:
        """A request that was answered, as a span of its own."""
        attributes: dict[str, SpanValue] = {
            "http.request.method": request.method if request.method != "unknown" else "_OTHER",
            "http.route": request.route,
            "http.response.status_code": request.status,
        }
        began_ns = request.began_ms * 1_000_000
        traced = self._tracer.start_span(
            f"{request.method} {request.route}", kind=self._kinds.SERVER, attributes=attributes, start_time=began_ns
        )
        if request.status >= FAILED:
            traced.set_attribute("error.type", str(request.status))
            traced.set_status(self._failed(str(request.status)))
        traced.end(began_ns + int(request.seconds * 1_000_000_000))

    def close(self) -> None:
        """Send what is left. It may block for some seconds."""
        self._provider.shutdown()
