"""A token that was limited, at routes by which something is sent later, or again: with other rights and keys than its
own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.surfaces.server.site import Site, open_site

WRITING = ("*:read", "turn:*", "session:create", "program:trigger:configure")
LIMITS: list[dict[str, Any]] = [{"allow": WRITING}, {"deny": ["tool:*"]}, {"credentials": ["a"]}]


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


@pytest.mark.parametrize("limits", LIMITS)
def test_a_limited_token_sets_up_no_trigger(site: Site, limits: dict[str, Any]) -> None:
    """It would fire with all rights and keys of whoever the token acts for."""
    given = {"name": "t", "every": "10s", "message": "x", "session": "main"}
    assert site.ask("POST", "/api/v1/triggers", given).status == 201
    token = site.token(**limits)
    for method, path, body in (
        ("POST", "/api/v1/triggers", {**given, "name": "other"}),
        ("PATCH", "/api/v1/triggers/t", {"message": "y"}),
        ("POST", "/api/v1/triggers/t/resume", {}),
    ):
        refused = site.ask(method, path, body, token=token)
        assert (refused.status, refused.json["code"]) == (403, "not_allowed"), path
    assert len(site.ask("GET", "/api/v1/triggers").json["items"]) == 1
    assert site.ask("GET", "/api/v1/triggers/t/firings").json["items"] == []


@pytest.mark.parametrize("limits", [{"allow": WRITING}, {"deny": ["weft:machine"]}, {"credentials": ["a"]}])
@pytest.mark.parametrize("path", ["/api/v1/turns/main/retries", "/api/v1/inbox/01J00000000000000000000000/retries"])
def test_a_limited_token_sends_nothing_again(site: Site, limits: dict[str, Any], path: str) -> None:
    """The folder, the tools and the keys would be those that the first sender named."""
    refused = site.ask("POST", path, {}, token=site.token(**limits))
    assert (refused.status, refused.json["code"]) == (403, "not_allowed")
    assert site.ask("POST", path, {}).status == 404


def test_a_page_elsewhere_does_not_use_up_the_tries_of_the_link(site: Site) -> None:
    for _ in range(40):
        asked = site.ask("GET", "/sign-in/x", token=None, headers={"sec-fetch-mode": "no-cors"})
        assert asked.status == 403
    assert site.ask("GET", "/sign-in/x", token=None).status == 401
