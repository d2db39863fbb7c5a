"""Traces of a server, as a small receiver of OTLP gets them: their names, attributes and schema."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import chat, chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_approval_prompts import equip
from weft.surfaces.server.telemetry import SCHEMA_URL

SAID = "canary words that nobody else is told"


class Receiver:
    """Takes spans over OTLP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.bodies.append(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def scopes(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [scope for one in requests for resource in one.resource_spans for scope in resource.scope_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for scope in self.scopes for span in scope.spans]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")
    found = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def served(weft: Shell) -> Iterator[str]:
    """A server with its broker. It has ended, and sent all of its spans, behind this."""
    with running(weft.folder, "serve", "--port", "0", "--json", stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.send_signal(signal.SIGTERM)
        server.wait()


def attributes(span: Any) -> dict[str, Any]:
    """By name; a list of texts as a tuple."""
    found: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = tuple(item.string_value for item in value.values) if kind == "array_value" else value
    return found


def named(receiver: Receiver, name: str) -> Any:
    (span,) = [span for span in receiver.spans if span.name == name]
    return span


@pytest.mark.slow("starts the server")
def test_a_turn_its_requests_and_its_tools_are_spans_of_the_conventions(weft: Shell, receiver: Receiver) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "notes.txt"}'}}
    reading = chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")
    with serving(reading, chat()) as model:
        equip(weft, model.url)
        with served(weft) as url:
            urllib.request.urlopen(f"{url}/health?word={CANARY}").read()
            assert weft("send", "--session", "talk", SAID).code == 0
    assert {scope.schema_url for scope in receiver.scopes} == {SCHEMA_URL}
    turn = named(receiver, "invoke_agent")
    told = attributes(turn)
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"], told["gen_ai.request.model"]) == (
        "invoke_agent",
        "openai",
        "m-1",
    )
    asked = [span for span in receiver.spans if span.name == "chat m-1"]
    assert len(asked) == 2
    for span in asked:
        told = attributes(span)
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.provider.name"] == "openai"
        assert told["gen_ai.request.model"] == "m-1"
        assert told["gen_ai.usage.input_tokens"] > 0
        assert told["gen_ai.usage.output_tokens"] > 0
        assert (span.trace_id, span.parent_span_id) == (turn.trace_id, turn.span_id)
    tool = named(receiver, "execute_tool read")
    told = attributes(tool)
    assert (told["gen_ai.operation.name"], told["gen_ai.tool.name"]) == ("execute_tool", "read")
    assert len(told["gen_ai.tool.call.id"]) == 64
    assert (tool.trace_id, tool.parent_span_id) == (turn.trace_id, turn.span_id)
    request = attributes(named(receiver, "GET /health"))
    assert request == {"http.request.method": "GET", "http.route": "/health", "http.response.status_code": 200}
    sent = b"".join(receiver.bodies)
    assert SAID.encode() not in sent
    assert CANARY.encode() not in sent
    assert b"notes.txt" not in sent


@pytest.mark.slow("starts the server")
def test_a_request_that_fails_is_told_by_its_code_alone(weft: Shell, receiver: Receiver) -> None:
    with serving(failure(400, SAID)) as model:
        equip(weft, model.url)
        with served(weft):
            assert weft("send", "--session", "talk", "hello").code != 0
    told = attributes(named(receiver, "chat m-1"))
    assert told["error.type"] == "request_refused"
    assert attributes(named(receiver, "invoke_agent"))["error.type"] == "request_refused"
    assert SAID.encode() not in b"".join(receiver.bodies)


@pytest.mark.slow("starts a process")
def test_the_library_is_loaded_where_traces_are_sent_alone(weft: Shell) -> None:
    program = (
        "import sys, weft.surfaces.cli.work.serve, weft.surfaces.server.telemetry, weft.runtime.broker.broker;"
        " print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"
