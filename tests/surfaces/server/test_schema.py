"""Requests made from the OpenAPI description: no fault of the server, and no answer that it does not describe."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.config import SanitizationConfig
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks
from schemathesis.transport.prepare import prepare_request

from tests.sizes import share, sized
from tests.surfaces.server.site import BASE_URL, Site
from tests.surfaces.server.world import EXAMPLES, known_names, open_world
from weft.surfaces.server.openapi import description
from weft.surfaces.server.route_table import ROUTES, Endpoint, Route
from weft.surfaces.server.verb_requests import VerbRequests

CASES = sized(test=1_500, prove=200_000)
WITHOUT_2XX = {
    "settle": "two ledgers must have moved the session",
    "task_fail": "the task must have been started by whoever has it",
    "agent_stop": "the agent must have a task",
    "room_decline": "somebody must be invited",
    **dict.fromkeys(("approval_show", "approve", "reject"), "a turn must wait for an answer"),
}
"""Operations that nothing here makes succeed, each with the reason; at most a fifth of all."""
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]


@cache
def schema() -> Any:
    loaded = schemathesis.openapi.from_dict(description())
    loaded.config.update(base_url=BASE_URL)
    return loaded


def test_enough_operations_are_to_succeed() -> None:
    assert WITHOUT_2XX.keys() <= {route.name for route in ROUTES}
    assert len(WITHOUT_2XX) <= 0.2 * len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_an_operation_answers_as_it_is_described(route: Route, tmp_path: Path) -> None:
    with open_world(tmp_path) as site:
        operation = Operation(site, route)
        for example in EXAMPLES.get(route.name, [{}]):
            operation.ask_example(example)
        operation.ask_cases(math.ceil(CASES / len(ROUTES)))
        assert operation.succeeded or route.name in WITHOUT_2XX, sorted(operation.refused)
        assert site.notes == []


HOSTILE: list[Any] = [
    *(
        "",
        " ",
        ".",
        "..",
        "/",
        "%",
        "a\0b",
        "\ud800",
        "\u202e",
        "\x1b[31m",
        "é" * 5_000,
        "x" * 100_000,
        "-",
        "*",
        "'--",
    ),
    *("main~", "main~-1", "main~99999999999999999999", "main^{", "main@{0}", "main@{99999999999999999999}", "main@{x}"),
    *("@(", "@(main):", "main:1", "main:9999999999999999999999", "0" * 26, "Z" * 26, "f" * 64, "program:", "turn:x"),
    *(
        '"',
        '"x',
        "(",
        "a OR NOT",
        "2026-13-45",
        "9999-12-31T23:59:59Z",
        "-0d",
        "999999999999d",
        "${HOME}",
        "/etc/passwd",
    ),
    *(
        -1,
        0,
        1,
        2**31,
        2**53,
        2**63,
        2**64,
        10**30,
        1.5,
        1e308,
        True,
        None,
        [],
        [""],
        ["\0"],
        [1],
        {},
        {"": 1},
        {"a..b": 1},
    ),
    *({"a": {"b": "\ud800"}}, {"a\0": "\0"}, {"a": 2**70}, {"x": 1e308}),
]
"""Values that libraries, databases and parsers of names stumble over."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_hostile_value_is_refused_or_taken_and_is_no_fault(route: Route, tmp_path: Path) -> None:
    with open_world(tmp_path) as site:
        operation = Operation(site, route)
        for name in operation.request.__struct_fields__:
            for value in share(HOSTILE, test=8):
                operation.ask_hostile(name, value)
        assert site.notes == []


class Operation:
    """One operation of a served world, asked with examples and with generated cases."""

    def __init__(self, site: Site, route: Route) -> None:
        self.site, self.route = site, route
        self.operation = schema()[route.full_path][route.method]
        self.parameters = {parameter.name: parameter for parameter in route.verb.parameters}
        self.request = VerbRequests(route).request_type
        self.headers = {"authorization": f"Bearer {site.token()}"}
        self.succeeded, self.refused = False, set[str]()

    def known(self, name: str) -> tuple[str, ...]:
        """Names that are there, for a parameter that names something."""
        details = self.parameters[name].details if name in self.parameters else None
        if details is None or details.names is None:
            return ()
        named = details.names
        return known_names(named.of if named.what == "program" else (named.what,))

    def example(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """With a known name for each parameter that is required."""
        values = dict(values)
        for name, parameter in self.parameters.items():
            if name not in values and (parameter.is_required or name in self.route.path_names):
                known = self.known(name)[0]
                values[name] = [known] if parameter.is_repeated and name not in self.route.path_names else known
        return values

    def parted(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those of the path, and the others."""
        names = self.route.path_names
        others = {name: value for name, value in values.items() if name not in names}
        return {name: values[name] for name in names}, others

    def ask_example(self, values: Mapping[str, Any]) -> None:
        path, values = self.parted(self.example(values))
        kinds = {"query": values} if self.route.method == "GET" else {"body": values, "media_type": "application/json"}
        self.send(self.operation.Case(path_parameters=path, **kinds))

    def ask_hostile(self, name: str, value: Any) -> None:
        """An example with one wrong value: as text in a path or a query, as JSON in a body."""
        values = {**self.example(EXAMPLES.get(self.route.name, [{}])[0]), name: value}
        path, others = self.parted(values)
        url = self.route.full_path
        for part, text in path.items():
            url = url.replace(f"{{{part}}}", quote(str(text), safe="", errors="surrogatepass") or "%20")
        headers, body = self.headers, b""
        if self.route.method == "GET":
            url += "?" + urlencode(others, doseq=True, errors="surrogatepass")
        else:
            headers, body = {**headers, "content-type": "application/json"}, json.dumps(others).encode()
        answered = self.site.send(self.route.method, BASE_URL + url, headers, body)
        assert answered.status < 500 or answered.status == 501, (name, value, answered.body)

    def ask_cases(self, number: int) -> None:
        for mode, part in ((GenerationMode.POSITIVE, 0.6), (GenerationMode.NEGATIVE, 0.4)):
            cases = self.operation.as_strategy(generation_mode=mode)

            @settings(max_examples=math.ceil(number * part), database=None, suppress_health_check=list(HealthCheck))
            @given(case=cases, data=st.data())
            def ask(case: Any, data: st.DataObject) -> None:
                self.name_known(case, data)
                self.send(case)

            ask()

    def name_known(self, case: Any, data: st.DataObject) -> None:
        """Most names are of something that is there; a value that is no text stays."""
        given = [values for values in (case.path_parameters, case.query, case.body) if isinstance(values, dict)]
        for values in given:
            for name in [name for name, value in values.items() if isinstance(value, str)]:
                known = self.known(name)
                if known and data.draw(st.integers(0, 9)) > 0:
                    values[name] = data.draw(st.sampled_from(known))

    def send(self, case: Any) -> None:
        request: Any = prepare_request(case, self.headers, config=SanitizationConfig(enabled=False))
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        answered = self.site.send(request.method, request.url, {**request.headers, "accept-encoding": "identity"}, body)
        headers = {name: [value] for name, value in answered.headers.items()}
        response = Response(answered.status, headers, answered.body, request, 0.0, False)
        if 200 <= answered.status < 300:
            self.succeeded = True
        else:
            self.refused.add(answered.body.decode()[:200])
        case.validate_response(response, checks=CHECKS)


class EndpointOperation(Operation):
    """An operation that calls no verb of the table, such as sending a message."""

    def __init__(self, site: Site, endpoint: Endpoint) -> None:
        self.site = site
        described = schemathesis.openapi.from_dict(description(site.application.endpoints))
        described.config.update(base_url=BASE_URL)
        self.operation = described[endpoint.path][endpoint.method]
        self.headers = {"authorization": f"Bearer {site.token()}"}
        self.succeeded, self.refused = False, set[str]()

    def known(self, name: str) -> tuple[str, ...]:
        names = {"session": "session", "message": "message", "rev": "session", "thread": "session", "agent": "agent"}
        return known_names((names[name],)) if name in names else ()


ENDPOINTS = (
    "send",
    "attach",
    "attachments",
    "attachment",
    "inbox",
    "inbox_message",
    "inbox_cancel",
    "inbox_send_again",
    "turn_retry",
    "interrupt",
    "session_events",
    "room_events",
    "ledger_events",
    "me",
    "sign_out",
)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_an_endpoint_beside_the_verbs_answers_as_it_is_described(name: str, tmp_path: Path) -> None:
    with open_world(tmp_path) as site:
        described = {one.details.name: one for one in site.application.endpoints if one.details is not None}
        assert described.keys() == set(ENDPOINTS)
        EndpointOperation(site, described[name]).ask_cases(math.ceil(CASES / len(ROUTES)))
        assert site.notes == []
