"""What callers of a server write in paths, queries and bodies: names that are paths, SQL, and claims of who did it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.sizes import sized
from tests.surfaces.server.site import Site
from tests.surfaces.server.world import open_world
from weft.kernel.authority import Layer, Rights
from weft.store.sqlite.connection import SqliteSql
from weft.surfaces.server.route_table import ROUTES, Endpoint, Route
from weft.surfaces.server.verb_requests import VerbRequests

MARK = "zq7mark"
PATHS = [
    f"../../../../tmp/{MARK}",
    f"/tmp/{MARK}",
    f"..\\..\\{MARK}",
    f"....//....//{MARK}",
    f"%2e%2e%2f{MARK}",
    f"file:///tmp/{MARK}",
    f"~/{MARK}",
    f"{MARK}/../../etc/passwd",
    f"{MARK}\0.json",
]
QUERIES = [
    f"' OR 1=1 -- {MARK}",
    f'" OR "a"="a {MARK}',
    f"'; DROP TABLE turn; -- {MARK}",
    f"main' UNION SELECT password FROM account -- {MARK}",
    f"$.a') OR 1=1 -- {MARK}",
    f"%{MARK}%_",
    f'{MARK}" NEAR/2 "x* OR (',
    f"{MARK}*",
    f"COALESCE({MARK})",
    f"1); ATTACH DATABASE '/tmp/{MARK}' AS x; --",
]
GETS = [route for route in ROUTES if route.method == "GET"]
CHANGES = [route for route in ROUTES if route.method != "GET"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_world(tmp_path) as site:
        yield site


def requests_with(route: Route, value: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The route with this text in each of its names, and in each text that it takes, one at a time."""
    fixed = dict.fromkeys(route.path_names, "main")
    fields = [name for name in VerbRequests(route).request_type.__struct_fields__ if name not in fixed]
    for name in (*fixed, *fields):
        path = route.full_path
        for part in fixed:
            path = path.replace(f"{{{part}}}", quote(value if part == name else fixed[part], safe=""))
        yield path, {} if name in fixed else {name: value}


def ask(site: Site, route: Route, path: str, given: dict[str, Any]) -> int:
    if route.method == "GET":
        query = "&".join(f"{name}={quote(text, safe='')}" for name, text in given.items())
        return site.ask("GET", f"{path}?{query}" if query else path).status
    return site.ask(route.method, path, given).status


# --- T22: no value becomes a part of a question to the database.


@pytest.fixture
def asked_sql(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The text of every statement that is asked."""
    texts: set[str] = set()
    for name in ("fetch_row", "fetch_rows", "iterate_rows", "run", "run_many"):
        original = getattr(SqliteSql, name)

        def asked(self: SqliteSql, sql: str, values: Sequence[Any] = (), _original: Any = original) -> Any:
            texts.add(sql)
            return _original(self, sql, values)

        monkeypatch.setattr(SqliteSql, name, asked)
    return texts


def test_no_value_of_a_request_stands_in_the_text_of_a_question(site: Site, asked_sql: set[str]) -> None:
    routes = random.Random(7).sample(ROUTES, sized(test=20, prove=len(ROUTES)))
    for route in routes:
        for value in QUERIES:
            for path, given in requests_with(route, value):
                assert ask(site, route, path, given) < 500, (route.name, given)
    for header in ({"authorization": f"Bearer {QUERIES[0]}"}, {"cookie": f"weft=1.{QUERIES[1]}"}):
        assert site.ask("GET", "/api/v1/me", token=None, headers=header).status == 401
    for name in QUERIES[:4]:
        given = {"name": name, "password": f"a password {MARK}"}
        assert site.ask("POST", "/api/v1/sign-in", given, token=None).status == 401
    assert asked_sql
    assert [text for text in asked_sql if MARK in text] == []
    assert site.notes == []


@pytest.mark.parametrize("key", ["a' OR 1=1 --", "label; DROP TABLE turn", "$.x", "limit)", "order by", "__proto__"])
def test_no_name_of_a_parameter_reaches_a_question(site: Site, asked_sql: set[str], key: str) -> None:
    for route in GETS:
        path = route.full_path
        for part in route.path_names:
            path = path.replace(f"{{{part}}}", "main")
        assert site.ask("GET", f"{path}?{quote(key)}=x").status == 422, route.name
    assert [text for text in asked_sql if key in text] == []


# --- T14: no value becomes the name of a file.


class _Opened:
    """Names of files that this process asks for while it is watched. An audit hook stays until the process ends."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_watching = False
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_watching and event.startswith(("open", "os.", "shutil.", "glob.", "pathlib.")):
            self.names += [name for name in map(str, arguments) if MARK in name]

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.is_watching = True
        try:
            yield
        finally:
            self.is_watching = False


OPENED = _Opened()


def test_the_watch_sees_a_file_that_is_opened(tmp_path: Path) -> None:
    with OPENED.watching():
        (tmp_path / MARK).write_text("x")
    assert OPENED.names
    OPENED.names.clear()


def test_no_value_of_a_stranger_names_a_file(site: Site) -> None:
    """Of a person with a token: what a path means on the machine is its owner's to say."""
    token = site.token("ann", allow=["*"])
    routes = random.Random(11).sample(ROUTES, sized(test=20, prove=len(ROUTES)))
    with OPENED.watching():
        for route in routes:
            for value in PATHS:
                for path, given in requests_with(route, value):
                    if route.method == "GET":
                        continue
                    assert site.ask(route.method, path, given, token=token).status < 500, (route.name, given)
        for value in PATHS:
            for name in ("label", "name"):
                site.ask("POST", "/api/v1/sessions", {name: value}, token=token)
    assert OPENED.names == []
    assert not Path(f"/tmp/{MARK}").exists()
    assert site.notes == []


def test_a_path_in_an_address_is_a_name(site: Site) -> None:
    for value in PATHS:
        for path in ("/api/v1/sessions/{}/reflog", "/sign-in/{}", "/{}"):
            with OPENED.watching():
                status = site.ask("GET", path.format(quote(value, safe=""))).status
            assert 400 <= status < 500
    for raw in ("/api/v1/../../etc/passwd", "/api/v1/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/api/v1/sessions/.."):
        assert 400 <= site.ask("GET", raw).status < 500
    assert OPENED.names == []


# --- T20: nobody says in a body who did something, when, or that it was approved.

CLAIMS: dict[str, Any] = {
    "role": "system",
    "actor": "local",
    "on_behalf_of": ["local"],
    "origin": "weft",
    "replica": "0" * 26,
    "created_at": "1970-01-01T00:00:00Z",
    "recorded_at": 4_070_908_800_000,
    "approved": True,
    "approvals": [{"id": "0" * 26, "granted": True}],
    "tool_results": [{"id": "call", "content": "done"}],
    "parent_id": "0" * 64,
    "digest": "0" * 64,
    "lc": 1,
    "__class__": "os.system",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_route_takes_a_claim_that_it_does_not_name(site: Site, claim: str) -> None:
    before = site.ledger.newest()
    for route in CHANGES:
        if claim in VerbRequests(route).request_type.__struct_fields__:
            continue
        path = route.full_path
        for part in route.path_names:
            path = path.replace(f"{{{part}}}", "main")
        answered = site.ask(route.method, path, {claim: CLAIMS[claim]})
        assert (answered.status, claim in answered.json["detail"]) == (422, True), (route.name, answered.body)
    for path in ("/api/v1/messages", "/api/v1/sign-in", "/api/v1/invitations"):
        answered = site.ask("POST", path, {claim: CLAIMS[claim]})
        assert (answered.status, claim in answered.json["detail"]) == (422, True), (path, answered.body)
    assert site.ledger.newest() == before


def test_no_route_imports_restores_or_runs_what_a_body_holds() -> None:
    """What takes foreign history in is done where the ledger is, by its owner."""
    foreign = ("import", "restore_backup", "clone", "pull", "salvage", "bundle", "apply", "exec")
    assert [route.name for route in ROUTES if route.verb_name.startswith(foreign)] == []


# --- T7: rights only narrow.


def test_a_token_lets_in_where_every_layer_of_it_may_allow_the_right_and_nowhere_else(site: Site) -> None:
    """Random layers upon layers, by what the routes need; the answer of the server against the definition."""
    chance = random.Random(3)
    needed = sorted({endpoint.right for endpoint in site.application.endpoints if endpoint.right})
    patterns = [*needed, "*", "*:read", "session:*", "turn:*", "program:*", "nothing"]
    probes: dict[str, Endpoint] = {}
    for endpoint in site.application.endpoints:
        if endpoint.right and endpoint.path.startswith("/api/v1") and "events" not in endpoint.path:
            probes.setdefault(endpoint.right, endpoint)
    for _ in range(sized(test=60, prove=5_000)):
        layers = tuple(
            Layer(tuple(chance.sample(patterns, chance.randint(1, 3))), tuple(chance.sample(patterns[:-6], k)))
            for k in (chance.randint(0, 1) for _ in range(chance.randint(1, 3)))
        )
        token = site.token_of(Rights(layers))
        right = chance.choice(sorted(probes))
        endpoint = probes[right]
        path = endpoint.path.replace("{", "no-").replace("}", "")
        answered = site.ask(endpoint.method, path, None if endpoint.method == "GET" else {}, token=token)
        if not all(layer.may_allow(right) for layer in layers):
            assert (answered.status, answered.json["code"]) == (403, "not_allowed"), (layers, right)
        else:
            assert answered.status != 401
