"""Requests over an open ledger: who is let in, what verbs answer, and how errors are told."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest

from tests.surfaces.server.site import BASE_URL, Site, open_site
from weft.surfaces.server.route_table import ROUTES


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


def test_a_page_of_sessions_is_what_the_command_answers_with_the_cursor_beside(site: Site) -> None:
    for name in ("one", "two", "three"):
        site.ledger.record_turn(session=name, query=["hello"], response="hi")
    first = site.ask("GET", "/api/v1/sessions?limit=2").json
    assert [item["label"] for item in first["items"]] == ["three", "two"]
    second = site.ask("GET", f"/api/v1/sessions?limit=2&after={first['next']}").json
    assert [item["label"] for item in second["items"]] == ["one"]
    assert second["next"] is None


def test_nobody_is_let_in_without_a_credential(site: Site) -> None:
    for route in ROUTES:
        path = route.full_path.replace("{", "").replace("}", "")
        answered = site.ask(route.method, path, token=None)
        assert (answered.status, answered.json["code"]) == (401, "credential_missing"), route
        assert answered.headers["www-authenticate"].startswith("Bearer")


def test_a_token_is_taken_in_one_way_alone(site: Site) -> None:
    token = site.token()
    for headers in ({"x-api-key": token}, {"cookie": f"token={token}"}, {"authorization": f"Basic {token}"}):
        assert site.ask("GET", "/api/v1/sessions", token=None, headers=headers).status == 401
    assert site.ask("GET", f"/api/v1/sessions?token={token}", token=None).status == 401


def test_a_token_that_expired_or_was_revoked_counts_no_longer(site: Site) -> None:
    token = site.token(expires_ms=10)
    assert site.ask("GET", "/api/v1/sessions", token=token).status == 200
    site.now_ms = 10
    assert site.ask("GET", "/api/v1/sessions", token=token).json["code"] == "token_refused"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8420"}, 421),
        ({"host": "0.0.0.0:8420"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": BASE_URL}, 200),
        ({"host": "localhost:8420"}, 200),
    ],
)
def test_a_foreign_host_or_origin_is_refused_before_the_credential(
    site: Site, headers: dict[str, str], status: int
) -> None:
    assert site.ask("GET", "/api/v1/sessions", headers=headers).status == status


def test_a_right_is_asked_for_before_anything_is_looked_up(site: Site) -> None:
    reading = site.token(allow=["*:read"])
    answered = site.ask("POST", "/api/v1/sessions/nothing/rename", {"label": "x"}, token=reading)
    assert (answered.status, answered.json["code"]) == (403, "not_allowed")
    assert site.ask("POST", "/api/v1/sessions/nothing/rename", {"label": "x"}).status == 404


def test_a_name_may_hold_a_slash(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    assert site.ask("POST", "/api/v1/sessions/main/rename", {"label": "a/b"}).status == 200
    assert site.ask("GET", "/api/v1/sessions/a%2Fb/reflog").json["items"]


def test_a_retry_with_the_same_key_has_no_further_effect(site: Site) -> None:
    provider = {"name": "p", "kind": "openai", "base_url": "https://provider.example/v1"}
    first, again = (site.ask("POST", "/api/v1/providers", provider, headers={"idempotency-key": "k"}) for _ in range(2))
    assert (first.status, first.json["id"]) == (201, again.json["id"])
    other = site.ask("POST", "/api/v1/providers", {**provider, "name": "q"}, headers={"idempotency-key": "k"})
    assert other.status == 409


def test_what_is_known_already_is_not_sent_again(site: Site) -> None:
    tag = site.ask("GET", "/api/v1/sessions").headers["etag"]
    answered = site.ask("GET", "/api/v1/sessions", headers={"if-none-match": tag})
    assert (answered.status, answered.body) == (304, b"")


@pytest.mark.parametrize(
    ("content", "type", "status"),
    [
        (b"{", "application/json", 400),
        (b" ", "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"label": 1}', "application/json", 422),
        (b'{"other": "x", "label": "y"}', "application/json", 422),
        (b'{"session": "x", "label": "y"}', "application/json", 422),
        (b'{"label": "y"}', "text/plain", 415),
        (b"label=y", "application/x-www-form-urlencoded", 415),
        (b"[" * 100_000, "application/json", 400),
        (b'{"label": "' + b"x" * 2_000_000 + b'"}', "application/json", 413),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused(site: Site, content: bytes, type: str, status: int) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    answered = site.ask("POST", "/api/v1/sessions/main/rename", content=content, headers={"content-type": type})
    assert answered.status == status
    assert answered.headers["content-type"] == "application/problem+json"
    assert site.ledger.session("main").label == "main"


def test_an_unknown_path_or_method_is_told(site: Site) -> None:
    assert site.ask("GET", "/api/v1/nothing").json["code"] == "route_unknown"
    assert site.ask("DELETE", "/api/v1/sessions").headers["allow"] == "GET, HEAD, OPTIONS, POST"


def test_the_description_names_every_route_and_its_right(site: Site) -> None:
    described = site.ask("GET", "/openapi.json", token=None).json
    told = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    beside = [endpoint for endpoint in site.application.endpoints if endpoint.details is not None]
    rights = {(one.method, one.path): one.right for one in beside}
    rights |= {(route.method, route.full_path): route.right for route in ROUTES}
    assert told == rights.keys()
    for (method, path), right in rights.items():
        assert described["paths"][path][method.lower()]["x-right"] == right
    names = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names)) > len(ROUTES)


def test_a_fault_of_the_server_tells_nothing_of_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.verbs import session_verbs

    monkeypatch.setattr(session_verbs.sessions, "function", None)
    answered = site.ask("GET", "/api/v1/sessions")
    assert (answered.status, answered.json["detail"]) == (500, "the server failed; its log says how")
    assert len(site.notes) == 1


def test_a_name_in_a_path_is_one_of_several_that_a_verb_takes(site: Site) -> None:
    for name in ("one", "two"):
        site.ledger.record_turn(session=name, query=["hello"], response="hi")
    assert site.ask("POST", "/api/v1/sessions/one/archive").json["label"] == "one"
    assert [item["label"] for item in site.ask("GET", "/api/v1/sessions").json["items"]] == ["two"]


def test_a_route_does_not_take_a_parameter_by_which_it_would_write(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    assert len(site.ask("GET", "/api/v1/sessions/main/history").json["items"]) == 2
    assert site.ask("GET", "/api/v1/sessions/main/history?write=true").status == 422
    assert "write" not in [p["name"] for p in _described(site, "/sessions/{session}/history")["get"]["parameters"]]


def _described(site: Site, path: str) -> dict[str, Any]:
    described: dict[str, Any] = site.ask("GET", "/openapi.json", token=None).json["paths"][f"/api/v1{path}"]
    return described


def pages(site: Site, path: str, limit: int) -> list[list[Any]]:
    """All of a list, page by page."""
    answered, found = site.ask("GET", f"{path}?limit={limit}").json, []
    while True:
        found.append(answered["items"])
        if answered["next"] is None:
            return found
        answered = site.ask("GET", f"{path}?limit={limit}&after={answered['next']}").json


@pytest.mark.parametrize("path", ["/sessions", "/turns", "/threads/b", "/providers", "/aliases", "/sessions/b/reflog"])
def test_a_list_comes_in_pages_that_are_the_whole(site: Site, path: str) -> None:
    for name in ("a", "b", "c", "d", "e"):
        site.ledger.record_turn(session=name, query=["hello"], response="hi")
        site.ledger.record_turn(session="b", query=["hello"], response="hi")
        site.ledger.labels.add_alias(f"also {name}", name)
        site.ask("POST", "/api/v1/providers", {"name": f"p{name}", "kind": "openai"})
    whole = site.ask("GET", f"/api/v1{path}").json
    assert whole["next"] is None
    assert len(whole["items"]) >= 5
    for limit in (1, 2, len(whole["items"])):
        parts = pages(site, f"/api/v1{path}", limit)
        assert [item for part in parts for item in part] == whole["items"]
        assert {len(part) for part in parts[:-1]} <= {limit}


def test_a_page_goes_on_where_the_one_before_ended_whatever_came_between(site: Site) -> None:
    for name in ("b", "d", "f"):
        site.ask("POST", "/api/v1/providers", {"name": name, "kind": "openai"})
    first = site.ask("GET", "/api/v1/providers?limit=2").json
    names = [item["id"] for item in site.ask("GET", "/api/v1/providers").json["items"]]
    site.ask("POST", "/api/v1/providers", {"name": "a", "kind": "openai"})
    second = site.ask("GET", f"/api/v1/providers?limit=2&after={first['next']}").json
    assert [item["id"] for item in (*first["items"], *second["items"])][:3] == names


def test_a_page_has_no_more_than_so_many_records(site: Site) -> None:
    for query in ("limit=501", "limit=-1", "limit=many", "after=nothing", "after=1.", "limit=1&limit=2"):
        assert site.ask("GET", f"/api/v1/providers?{query}").status == 422, query
    assert site.ask("GET", "/api/v1/providers?limit=0").json == {"items": [], "next": None, "left_out": 0}


def test_a_long_answer_is_compressed_for_who_takes_that(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello " * 500], response="hi")
    path = f"{BASE_URL}/api/v1/threads/main"
    headers = {"authorization": f"Bearer {site.token()}"}
    plain = site.send("GET", path, headers)
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip", "br, gzip;q=0.5", "*"):
        packed = site.send("GET", path, {**headers, "accept-encoding": accepted})
        assert (packed.headers["content-encoding"], packed.headers["content-length"]) == ("gzip", str(len(packed.body)))
        assert gzip.decompress(packed.body) == plain.body
        assert "accept-encoding" in packed.headers["vary"].lower()
        known = {**headers, "accept-encoding": accepted, "if-none-match": packed.headers["etag"]}
        assert site.send("GET", path, known).status == 304
    for accepted in ("", "identity", "br", "gzip;q=0", "*;q=0", "gzip;q=nothing"):
        assert "content-encoding" not in site.send("GET", path, {**headers, "accept-encoding": accepted}).headers
    short = site.send("GET", f"{BASE_URL}/api/v1/providers", {**headers, "accept-encoding": "gzip"})
    assert "content-encoding" not in short.headers
    assert len(plain.body) > 1024 > len(short.body)


def test_head_is_the_same_without_the_body(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    plain = {"accept-encoding": "identity"}
    whole, head = (site.ask(method, "/api/v1/turns/main", headers=plain) for method in ("GET", "HEAD"))
    assert (head.status, head.body, head.headers) == (200, b"", whole.headers)
    assert head.headers["content-length"] == str(len(whole.body))
    assert site.ask("HEAD", "/api/v1/turns/nothing").status == 404
    assert site.ask("HEAD", "/api/v1/turns/main", token=None).status == 401
    assert site.ask("HEAD", "/api/v1/sessions/main/aliases").status == 405


def test_options_tells_the_methods_of_a_path_and_allows_no_other_origin(site: Site) -> None:
    answered = site.ask("OPTIONS", "/api/v1/sessions", token=None)
    assert (answered.status, answered.headers["allow"], answered.body) == (204, "GET, HEAD, OPTIONS, POST", b"")
    assert not [name for name in answered.headers if name.startswith("access-control-")]
    assert site.ask("OPTIONS", "/api/v1/nothing", token=None).status == 404
    assert site.ask("OPTIONS", "/api/v1/sessions", headers={"origin": "http://evil.example"}).status == 403
