"""Signing in: links, passwords, cookies, and what a page of somebody else can do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from tests.surfaces.server.site import BASE_URL, Answered, Site, open_site
from weft.programs import Programs
from weft.programs.accounts import BROWSER_MS, LINK_MS
from weft.surfaces.server.application import Application
from weft.surfaces.server.callers import CSRF_HEADER, Caller
from weft.surfaces.server.route_table import PUBLIC_ROUTES, ROUTES, Endpoint, ensure_listed

NO_HEADERS: Mapping[str, str] = {}
PASSWORD = "correct horse battery"


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        site.ledger.record_turn(session="main", query=["hello"], response="hi")
        yield site


class Browser:
    """A browser with the cookie that it was given."""

    def __init__(self, site: Site, entered: Answered) -> None:
        assert entered.status == 303, entered.body
        self._site, self.cookie = site, entered.headers["set-cookie"].partition(";")[0]
        me = self.ask("GET", "/api/v1/me")
        assert me.status == 200, site.notes
        self.csrf_token: str = me.json["csrf_token"]

    def ask(self, method: str, path: str, json: Any = None, headers: Mapping[str, str] = NO_HEADERS) -> Answered:
        sent = {"cookie": self.cookie, "sec-fetch-site": "same-origin", **headers}
        return self._site.ask(method, path, json, token=None, headers=sent)

    def change(self, path: str, json: Any = None, headers: Mapping[str, str] = NO_HEADERS) -> Answered:
        """As our own pages do."""
        return self.ask("POST", path, json, {"origin": BASE_URL, CSRF_HEADER: self.csrf_token, **headers})


def owner(site: Site) -> Browser:
    return Browser(site, site.ask("GET", f"/sign-in/{site.accounts.owner_link().code}", token=None))


def invited(site: Site, name: str = "ann") -> Browser:
    if not any(person.name == name for person in Programs(site.ledger).all("human")):
        Programs(site.ledger).create("human", name, {})
    given = {"code": site.accounts.invite(name).code, "password": PASSWORD}
    return Browser(site, site.ask("POST", "/api/v1/invitations", given, token=None))


def signed_in_as(site: Site, name: str, password: str) -> Answered:
    return site.ask("POST", "/api/v1/sign-in", {"name": name, "password": password}, token=None)


def test_the_owners_link_signs_a_browser_in_once(site: Site) -> None:
    path = f"/sign-in/{site.accounts.owner_link().code}"
    assert site.ask("HEAD", path, token=None).status == 403
    assert site.ask("GET", path, token=None, headers={"sec-purpose": "prefetch"}).status == 403
    entered = site.ask("GET", path, token=None)
    cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={BROWSER_MS // 1000}"} < {*cookie.split("; ")}
    browser = Browser(site, entered)
    me = browser.ask("GET", "/api/v1/me").json
    assert (me["principal"], me["credential"], me["rights"]) == ("system:local", "cookie", [])
    assert browser.ask("GET", "/api/v1/sessions").json["items"][0]["label"] == "main"
    again = site.ask("GET", path, token=None)
    assert (again.status, again.json["code"]) == (401, "sign_in_refused")
    late = site.accounts.owner_link().code
    site.now_ms += LINK_MS
    assert site.ask("GET", f"/sign-in/{late}", token=None).status == 401


def test_an_invited_person_chooses_a_password_and_reads_what_they_may(site: Site) -> None:
    browser = invited(site)
    assert browser.ask("GET", "/api/v1/me").json["principal"].startswith("human:")
    assert browser.ask("GET", "/api/v1/sessions").json["items"] == []
    assert signed_in_as(site, "ann", PASSWORD).status == 303
    assert signed_in_as(site, "ann", PASSWORD + "x").json["code"] == "sign_in_refused"
    told = {(signed_in_as(site, name, "some password").body) for name in ("ann", "nobody")}
    assert len(told) == 1
    code = site.accounts.invite("ann").code
    assert site.ask("GET", f"/sign-in/{code}", token=None).json["code"] == "password_missing"
    short = site.ask("POST", "/api/v1/invitations", {"code": code, "password": "x"}, token=None)
    assert (short.status, short.json["code"]) == (422, "invalid_input")


def test_who_signs_out_is_let_in_no_longer(site: Site) -> None:
    first, second = invited(site), Browser(site, signed_in_as(site, "ann", PASSWORD))
    caller = site.run(site.served.callers.caller({"cookie": first.cookie}, changes=False))
    assert site.run(site.served.callers.still_counts(caller))
    signed_out = first.change("/api/v1/sign-out")
    assert (signed_out.status, "Max-Age=0" in signed_out.headers["set-cookie"]) == (204, True)
    assert first.ask("GET", "/api/v1/me").json["code"] == "cookie_refused"
    assert second.ask("GET", "/api/v1/me").status == 200
    assert site.ask("POST", "/api/v1/sign-out").json["code"] == "not_signed_in"


def test_removal_and_revocation_reach_who_was_let_in(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.surfaces.server.callers.LOOK_SECONDS", 0.0)
    callers = site.served.callers
    person = site.run(callers.caller({"cookie": invited(site).cookie}, changes=False))
    token, on_behalf = site.caller(site.token()), site.caller(site.token("ann"))

    def counting() -> list[bool]:
        return [site.run(callers.still_counts(caller)) for caller in (person, token, on_behalf)]

    assert counting() == [True, True, True]
    site.accounts.revoke(token.ids[0])
    assert counting() == [True, False, True]
    Programs(site.ledger).delete("ann")
    assert counting() == [False, False, False]


def test_a_token_that_was_revoked_in_the_ledger_is_refused_with_all_that_was_made_from_it(site: Site) -> None:
    token = site.token()
    site.accounts.revoke(site.caller(token).ids[0])
    assert site.ask("GET", "/api/v1/sessions", token=token).json["code"] == "token_refused"


# --- T1, T2: pages of other origins.


CHANGES = [route for route in ROUTES if route.method != "GET"]


def test_no_route_changes_anything_by_a_cookie_alone(site: Site) -> None:
    """Every one, with each part of the proof left out or wrong."""
    browser = owner(site)
    proofs: list[dict[str, str]] = [
        {},
        {"origin": BASE_URL},
        {"origin": BASE_URL, CSRF_HEADER: "x"},
        {"origin": BASE_URL, CSRF_HEADER: browser.csrf_token[:-1]},
        {CSRF_HEADER: browser.csrf_token},
        {"origin": "null", CSRF_HEADER: browser.csrf_token},
        {"origin": "http://evil.example", CSRF_HEADER: browser.csrf_token},
        {"origin": "http://127.0.0.1:3000", CSRF_HEADER: browser.csrf_token},
        {"origin": BASE_URL, CSRF_HEADER: browser.csrf_token, "sec-fetch-site": "same-site"},
        {"origin": BASE_URL, CSRF_HEADER: browser.csrf_token, "sec-fetch-site": "cross-site"},
    ]
    before = site.ledger.newest()
    paths = [(route.method, route.full_path.replace("{", "").replace("}", "")) for route in CHANGES]
    for (method, path), proof in product([*paths, ("POST", "/api/v1/sign-out")], proofs):
        answered = browser.ask(method, path, {}, proof)
        assert answered.status == 403, (method, path, proof, answered.body)
    assert site.ledger.newest() == before
    assert browser.change("/api/v1/sessions/main/rename", {"label": "other"}).status == 200


@pytest.mark.parametrize("site_said", ["cross-site", "same-site"])
def test_a_cookie_reads_nothing_for_a_page_of_another_origin(site: Site, site_said: str) -> None:
    assert owner(site).ask("GET", "/api/v1/sessions", headers={"sec-fetch-site": site_said}).status == 403


def test_forms_of_other_pages_are_refused_whoever_sends_them(site: Site) -> None:
    browser = owner(site)
    proof = {"cookie": browser.cookie, "origin": BASE_URL, CSRF_HEADER: browser.csrf_token}
    for kind, path in product(
        ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""),
        ("/api/v1/sessions/main/rename", "/api/v1/sign-in", "/api/v1/invitations"),
    ):
        headers = {**proof, "content-type": kind}
        answered = site.ask("POST", path, token=None, headers=headers, content=b'{"label": "x"}')
        assert answered.status == 415, (kind, path)


def test_no_answer_lets_another_origin_read_it(site: Site) -> None:
    for method, origin in product(("GET", "OPTIONS"), (BASE_URL, "http://evil.example", "null")):
        headers = {"origin": origin, "access-control-request-method": "POST"}
        answered = site.ask(method, "/api/v1/sessions", headers=headers)
        assert not [name for name in answered.headers if name.startswith("access-control-")]
        assert answered.headers["cross-origin-resource-policy"] == "same-origin"
        assert answered.status == (403 if origin != BASE_URL else 200 if method == "GET" else 204)


HOSTS = ["evil.example", "evil.example:8420", "0.0.0.0:8420", "[::1].evil:8420", "127.0.0.1:8420@evil.example", ""]


def test_a_page_that_leads_its_own_name_here_reaches_no_route(site: Site) -> None:
    browser = owner(site)
    endpoints = [(endpoint.method, endpoint.path) for endpoint in site.application.endpoints]
    for (method, path), host in product(endpoints, HOSTS):
        at = path.replace("{", "").replace("}", "")
        assert site.ask(method, at, headers={"host": host, "cookie": browser.cookie}).status == 421, (path, host)
    for method, path in endpoints:
        at = path.replace("{", "").replace("}", "")
        assert site.ask(method, at, headers={"origin": "http://evil.example"}).status == 403, path


# --- T6: one key, every channel.


def test_a_key_is_taken_in_its_own_channel_alone(site: Site) -> None:
    browser, token = owner(site), site.token()
    name, _, value = browser.cookie.partition("=")
    wrong = [
        {"x-api-key": token},
        {"cookie": f"{name}={token}"},
        {"authorization": f"Basic {token}"},
        {"authorization": token},
        {"authorization": f"Bearer {value}"},
        {"x-weft-token": token, CSRF_HEADER: browser.csrf_token},
        {"cookie": f"{browser.cookie}; {browser.cookie}"},
        {"cookie": f"{name}=; {browser.cookie}"},
        {"cookie": browser.cookie, "authorization": "Bearer x"},
        {"cookie": browser.cookie, "authorization": ""},
    ]
    for headers in wrong:
        assert site.ask("GET", "/api/v1/me", token=None, headers=headers).status == 401, headers
    for query in (f"token={token}", f"access_token={token}", f"{name}={value}"):
        assert site.ask("GET", f"/api/v1/me?{query}", token=None).status == 401


def test_a_narrow_token_is_not_widened_by_the_cookie_beside_it(site: Site) -> None:
    browser, narrow = owner(site), site.token(allow=["*:read"])
    headers = {"cookie": browser.cookie, "origin": BASE_URL, CSRF_HEADER: browser.csrf_token}
    answered = site.ask("POST", "/api/v1/sessions/main/rename", {"label": "x"}, token=narrow, headers=headers)
    assert (answered.status, answered.json["code"]) == (403, "not_allowed")


# --- T7: nobody says themselves who they are.


def test_nothing_in_a_request_says_who_asks_but_the_credential(site: Site) -> None:
    Programs(site.ledger).create("human", "ann", {})
    token = site.token("ann", allow=["*:read", "session:rename"])
    who = {"x-forwarded-user": "local", "x-weft-actor": "local", "x-remote-user": "local", "as": "local"}
    assert site.ask("GET", "/api/v1/me", token=token, headers=who).json["principal"] == "program:ann"
    for path in ("/api/v1/sessions?actor=local", "/api/v1/sessions?as=local", "/api/v1/sessions?rights=*"):
        assert site.ask("GET", path, token=token, headers=who).status == 422, path
    for more in (
        {"actor": "local"},
        {"as": "local"},
        {"rights": ["*"]},
        {"permissions": ["*"]},
        {"authority": "local"},
    ):
        sent = {"label": "x", **more}
        assert site.ask("POST", "/api/v1/sessions/main/rename", sent, token=token, headers=who).status == 422, more


# --- T8: no route without a right.


def test_a_route_in_neither_table_is_refused_when_the_server_is_made(site: Site) -> None:
    for endpoint in site.application.endpoints:
        is_public = (endpoint.method, endpoint.path) in PUBLIC_ROUTES
        assert (endpoint.right is None) == is_public
    for right in (None, ""):
        with pytest.raises(AssertionError, match="needs a right"):
            ensure_listed("POST", "/api/v1/anything", right)
    for method, path in PUBLIC_ROUTES:
        with pytest.raises(AssertionError, match="needs a right"):
            ensure_listed(method, path, "session:read")
    assert {(endpoint.method, endpoint.path) for endpoint in site.application.endpoints} >= PUBLIC_ROUTES


def test_nothing_runs_before_the_right_is_checked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every route that needs a right, asked by nobody, and by a token that allows nothing of it."""
    ran: list[str] = []

    def spied(endpoint: Endpoint) -> Endpoint:
        async def handle(request: Any, caller: Caller | None, names: dict[str, str]) -> Any:
            ran.append(endpoint.path)
            return await endpoint.handler(request, caller, names)

        return Endpoint(method=endpoint.method, path=endpoint.path, right=endpoint.right, handler=handle)

    guarded = [endpoint for endpoint in site.application.endpoints if endpoint.right]
    spies = [spied(endpoint) if endpoint.right else endpoint for endpoint in site.application.endpoints]
    monkeypatch.setattr(Application, "_all_endpoints", lambda *_: spies)
    site.application = Application(site.served)
    nothing = site.token(allow=["nothing:read"])
    for endpoint in guarded:
        path = endpoint.path.replace("{", "").replace("}", "")
        assert site.ask(endpoint.method, path, {}, token=None).status == 401
        assert site.ask(endpoint.method, path, {}, token=nothing).status == 403, path
    assert ran == []


# --- Limits.


def test_who_is_mistaken_too_often_waits(site: Site) -> None:
    invited(site)
    for _ in range(5):
        assert signed_in_as(site, "ann", "a wrong password").status == 401
    waiting = signed_in_as(site, "ann", PASSWORD)
    assert (waiting.status, int(waiting.headers["retry-after"]) > 0) == (429, True)


def test_who_is_right_does_not_wait(site: Site) -> None:
    invited(site)
    assert {signed_in_as(site, "ann", PASSWORD).status for _ in range(8)} == {303}


def test_guesses_of_links_from_one_place_are_counted_together(site: Site) -> None:
    statuses = [site.ask("GET", f"/sign-in/{n}", token=None).status for n in range(30)]
    assert statuses.count(429) >= 5
    assert set(statuses) == {401, 429}
