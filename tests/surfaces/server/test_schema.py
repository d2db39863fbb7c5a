"""Requests made from the OpenAPI description: no fault of the server, and no answer that it does not describe."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

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

from tests.sizes import sized
from tests.surfaces.server.site import BASE_URL, Site
from tests.surfaces.server.world import EXAMPLES, known_names, open_world
from weft.surfaces.server.openapi import description
from weft.surfaces.server.route_table import ROUTES, Route

CASES = sized(test=1_500, prove=200_000)
WITHOUT_2XX = {"settle": "two ledgers must have moved the session"}
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
            operation.ask_example(dict(example))
        operation.ask_cases(math.ceil(CASES / len(ROUTES)))
        assert operation.succeeded or route.name in WITHOUT_2XX, sorted(operation.refused)
        assert site.notes == []


class Operation:
    """One operation of a served world, asked with examples and with generated cases."""

    def __init__(self, site: Site, route: Route) -> None:
        self.site, self.route = site, route
        self.operation = schema()[route.full_path][route.method]
        self.parameters = {parameter.name: parameter for parameter in route.verb.parameters}
        self.headers = {"authorization": f"Bearer {site.token()}"}
        self.succeeded, self.refused = False, set[str]()

    def known(self, name: str) -> tuple[str, ...]:
        """Names that are there, for a parameter that names something."""
        details = self.parameters[name].details if name in self.parameters else None
        if details is None or details.names is None:
            return ()
        named = details.names
        return known_names(named.of if named.what == "program" else (named.what,))

    def ask_example(self, values: dict[str, Any]) -> None:
        for name, parameter in self.parameters.items():
            if name not in values and (parameter.is_required or name in self.route.path_names):
                known = self.known(name)[0]
                values[name] = [known] if parameter.is_repeated and name not in self.route.path_names else known
        path = {name: values.pop(name) for name in self.route.path_names}
        kinds = {"query": values} if self.route.method == "GET" else {"body": values, "media_type": "application/json"}
        self.send(self.operation.Case(path_parameters=path, **kinds))

    def ask_cases(self, number: int) -> None:
        for mode, share in ((GenerationMode.POSITIVE, 0.6), (GenerationMode.NEGATIVE, 0.4)):
            cases = self.operation.as_strategy(generation_mode=mode)

            @settings(max_examples=math.ceil(number * share), database=None, suppress_health_check=list(HealthCheck))
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
        answered = self.site.send(request.method, request.url, dict(request.headers), body)
        headers = {name: [value] for name, value in answered.headers.items()}
        response = Response(answered.status, headers, answered.body, request, 0.0, False)
        if 200 <= answered.status < 300:
            self.succeeded = True
        else:
            self.refused.add(answered.body.decode()[:200])
        case.validate_response(response, checks=CHECKS)
