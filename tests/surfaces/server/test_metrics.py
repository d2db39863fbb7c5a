"""What the server counts, read as Prometheus reads it, and what it logs."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.surfaces.server.site import Site, open_site
from tests.surfaces.shell import Shell, running


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


def figures(site: Site) -> dict[tuple[str, tuple[str, ...]], float]:
    answered = site.ask("GET", "/metrics")
    assert answered.status == 200
    assert answered.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answered.body.decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status(site: Site) -> None:
    site.ask("GET", "/api/v1/sessions")
    site.ask("GET", "/api/v1/sessions", token=None)
    site.ask("GET", "/api/v1/sessions/nothing/reflog")
    site.ask("GET", "/nothing/secret-word")
    site.ask("BREW", "/api/v1/sessions")
    told = figures(site)
    counted = {labels: value for (name, labels), value in told.items() if name == "weft_http_requests_total"}
    assert counted == {
        ("GET", "/api/v1/sessions", "200"): 1,
        ("GET", "/api/v1/sessions", "401"): 1,
        ("GET", "/api/v1/sessions/{session}/reflog", "404"): 1,
        ("GET", "unknown", "404"): 1,
        ("unknown", "unknown", "405"): 1,
    }
    assert told["weft_http_request_seconds_count", ("/api/v1/sessions",)] == 2


def test_messages_that_wait_and_open_streams_are_counted(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    for text in ("one", "two"):
        site.ledger.inbox.admit(text, session="main")
    told = figures(site)
    assert told["weft_messages_waiting", ()] == 2
    assert told["weft_sessions_waiting", ()] == 1
    assert told["weft_http_streams_open", ()] == 0


def test_nothing_that_a_client_writes_or_a_ledger_holds_becomes_a_label(site: Site) -> None:
    site.ledger.record_turn(session="canary-label", query=["canary-text"], response="hi")
    for number in range(40):
        site.ask("GET", f"/canary/{number}")
        site.ask("GET", f"/api/v1/sessions/canary-{number}/reflog", headers={"user-agent": "canary"})
    body = site.ask("GET", "/metrics").body
    assert b"canary" not in body
    assert body.count(b"weft_http_requests_total{") == 2


def test_whoever_may_not_read_the_server_is_refused(site: Site) -> None:
    assert site.ask("GET", "/metrics", token=None).status == 401
    assert site.ask("GET", "/metrics", token=site.token(allow=["session:read(main)"])).status == 403
    assert site.ask("GET", "/metrics", token=site.token(allow=["*:read"])).status == 200


@pytest.mark.slow("starts the server")
def test_requests_are_logged_as_json_without_what_the_client_wrote(weft: Shell, tmp_path: Path) -> None:
    weft("init", "a.db")
    arguments = ("--ledger", "a.db", "serve", "--port", "0", "--no-broker", "--json")
    with running(weft.folder, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = json.loads(server.stdout.readline())["url"]
        urllib.request.urlopen(f"{url}/health?token=canary").read()
        logged = json.loads(server.stderr.readline())
    assert {name: logged[name] for name in ("request", "route", "status")} == {
        "request": "GET", "route": "/health", "status": 200,
    }  # fmt: skip
    assert logged["answered_at"].endswith("Z")
    assert "canary" not in str(logged)
