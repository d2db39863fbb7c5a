"""The table of routes: each needs a right and goes by a name of its own, and a GET changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from weft.surfaces.server.route_table import ROUTES, Route
from weft.surfaces.server.verb_requests import VerbRequests
from weft.verbs.declaration import OpenMode

READING_MODES = (OpenMode.READING, OpenMode.COUNTING, OpenMode.SEARCHING, OpenMode.GRAPHING)


def route_of(path: str) -> Route:
    """By `GET /sessions`."""
    return next(route for route in ROUTES if f"{route.method} {route.path}" == path)


def test_no_two_routes_are_the_same_operation() -> None:
    names = Counter(route.name for route in ROUTES)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_takes_what_its_verb_does_and_only_one_that_reads_is_a_get(route: Route) -> None:
    parameters = {parameter.name: parameter for parameter in route.verb.parameters}
    assert parameters.keys() >= {*route.path_names, *route.without}
    assert not [name for name in route.without if parameters[name].is_required]
    assert route.right
    if route.method == "GET":
        assert route.verb.opening(_all_given(route)) in READING_MODES, "leave out the parameter by which it writes"


def _all_given(route: Route) -> dict[str, Any]:
    """Every parameter but those by which a verb that writes would read."""
    fields = VerbRequests(route).request_type.__struct_fields__
    given = {name: True for name in fields if name not in route.verb.terms.reads_with}
    return {**given, **dict.fromkeys(route.always, True)}
