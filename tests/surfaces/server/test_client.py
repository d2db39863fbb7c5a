"""The client over a served ledger: verbs by their names, the same records, the same errors, and what is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx2
import msgspec
import pytest

import weft
import weft.client
import weft.verbs
from tests.surfaces.server.site import BASE_URL, Site, open_site
from weft.kernel.errors import (
    HeadMoved,
    InvalidInput,
    KeyTaken,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    StoreError,
    TokenRefused,
    Unsupported,
    WeftError,
)
from weft.surfaces.server.route_table import ROUTES
from weft.verbs.declaration import RequestError

T = TypeVar("T")
Handler = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        site.ledger.record_turn(session="main", query=["hello"], response="hi")
        site.ledger.record_turn(session="main", query=["again"], response="yes")
        yield site


def asked(site: Site, question: Callable[[weft.client.ServedLedger], Awaitable[T]], token: str = "") -> T:
    """What a question to the served ledger answers."""

    async def ask() -> T:
        transport = httpx2.ASGITransport(site.application)
        async with weft.client.connect(BASE_URL, token=token or site.token(), transport=transport) as ledger:
            return await question(ledger)

    return site.run(ask())


def answering(handler: Handler, question: Callable[[weft.client.ServedLedger], Awaitable[T]]) -> T:
    """The same of a server that answers what a function says."""

    async def ask() -> T:
        transport = httpx2.MockTransport(handler)
        async with weft.client.connect(BASE_URL, token="token", transport=transport) as ledger:
            return await question(ledger)

    return asyncio.run(ask())


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.client, "FIRST_PAUSE_SECONDS", 0.0)


READING: list[tuple[str, dict[str, Any]]] = [
    ("sessions", {"limit": 1}),
    ("reflog", {"session": "main"}),
    ("program_list", {}),
    ("program_get", {"name": "main"}),
    ("program_history", {"name": "main"}),
    ("nodes", {"tags": ("urgent",)}),
    ("tag_list", {"node": "session:main"}),
    ("trigger_list", {}),
    ("provider_list", {}),
]


@pytest.mark.parametrize(("name", "arguments"), READING)
def test_a_verb_answers_the_same_record_as_on_an_open_ledger(site: Site, name: str, arguments: dict[str, Any]) -> None:
    weft.verbs.tag_add(site.ledger, "session:main", ("urgent",))
    verb = getattr(weft.verbs, name)
    assert asked(site, lambda ledger: getattr(ledger, name)(**arguments)) == verb(site.ledger, **arguments)


def test_a_room_is_marked_as_read_unless_that_is_not_wanted(site: Site) -> None:
    room = site.ledger.rooms.create("a room").id
    site.ledger.rooms.post(room, "hello")
    for options, newest in (({"keep_unread": True}, site.ledger.newest()), ({}, None)):
        answered: Any = asked(site, lambda ledger, options=options: ledger.room_read(room, **options))  # type: ignore[misc]
        assert [message.text for message in answered.items] == ["hello"]
        assert newest in (None, site.ledger.newest())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sessions", {}),
        ("sessions", {"limit": 3}),
        ("log", {}),
        ("program_list", {}),
        ("alias", {}),
        ("reflog", {"session": "main", "limit": 1}),
    ],
)
def test_a_list_is_read_page_by_page(
    site: Site, name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weft.client, "MOST_PAGE", 2)
    for label in ("b", "c", "d", "e"):
        site.ledger.record_turn(session=label, query=["hello"], response="hi")
        site.ledger.labels.add_alias(f"also {label}", label)
    there: Any = asked(site, lambda ledger: getattr(ledger, name)(**arguments))
    here = getattr(weft.verbs, name)(site.ledger, **arguments)
    assert list(there.items) == list(here.items)
    assert (there.next is None) == (here.next is None)


def test_a_verb_that_changes_something_answers_its_record(site: Site) -> None:
    before = site.ledger.session("main")
    moved = asked(site, lambda ledger: ledger.call(weft.verbs.rename, "main", "a/b"))
    assert (moved.before, moved.session) == (before, site.ledger.session("a/b"))
    assert asked(site, lambda ledger: ledger.fork("a/b~1", "side")).forked.session == site.ledger.session("side")


def test_the_json_of_a_verb_is_that_of_its_form(site: Site) -> None:
    page = asked(site, lambda ledger: ledger.json(weft.verbs.sessions, {"limit": 1}))
    assert [item["label"] for item in page["items"]] == ["main"]
    assert page == site.ask("GET", "/api/v1/sessions?limit=1").json


def test_a_parameter_is_refused_before_anything_is_sent(site: Site) -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise AssertionError("nothing is sent")

    with pytest.raises(InvalidInput):
        answering(refuse, lambda ledger: ledger.sessions(limit="many"))
    with pytest.raises(TypeError):
        answering(refuse, lambda ledger: ledger.sessions(most=1))
    with pytest.raises(RequestError):
        answering(refuse, lambda ledger: ledger.fork("main"))
    with pytest.raises(InvalidInput):
        answering(refuse, lambda ledger: ledger.reflog())
    with pytest.raises(Unsupported):
        answering(refuse, lambda ledger: ledger.session_send("main", "hello"))
    with pytest.raises(Unsupported):
        answering(refuse, lambda ledger: ledger.session_history("main", write=True))
    with pytest.raises(AttributeError):
        answering(refuse, lambda ledger: ledger.no_such_verb())


def test_errors_are_those_of_the_ledger(site: Site) -> None:
    def same(error: WeftError, question: Callable[[Any], Any]) -> None:
        with pytest.raises(type(error)) as local:
            question(site.ledger)
        assert vars(error) == vars(local.value)
        assert (str(error), error.hint, error.action) == (str(local.value), local.value.hint, local.value.action)

    with pytest.raises(NotFound) as missing:
        asked(site, lambda ledger: ledger.rename("nothing", "x"))
    same(missing.value, lambda ledger: weft.verbs.rename(ledger, "nothing", "x"))
    first = site.ledger.resolve("main~1")
    with pytest.raises(HeadMoved) as stale:
        asked(site, lambda ledger: ledger.move("main", "main~1", expect=first))
    same(stale.value, lambda ledger: weft.verbs.move(ledger, "main", "main~1", expect=first))
    with pytest.raises(RequestError) as refused:
        asked(site, lambda ledger: ledger.sessions(origin="nowhere"))
    same(refused.value, lambda ledger: weft.verbs.sessions(ledger, origin="nowhere"))
    assert refused.value.spelled(lambda name: f"--{name}").startswith("--origin: ")


def test_who_may_not_is_refused_and_a_token_that_does_not_count_is_too(site: Site) -> None:
    with pytest.raises(NotAllowed) as refused:
        asked(site, lambda ledger: ledger.rename("main", "x"), token=site.token(allow=["*:read"]))
    assert refused.value.right == "session:rename"
    with pytest.raises(TokenRefused):
        asked(site, lambda ledger: ledger.sessions(), token="no-token")


def test_a_retry_key_goes_as_its_header(site: Site) -> None:
    fields = {"name": "p", "kind": "openai", "base_url": "https://provider.example/v1", "retry_key": "k"}
    for _ in range(2):
        assert asked(site, lambda ledger: ledger.provider_create(**fields)).name == "p"
    with pytest.raises(KeyTaken):
        asked(site, lambda ledger: ledger.provider_create(**{**fields, "name": "q"}))


class Failing:
    """A server that fails some times before it answers."""

    def __init__(self, *failures: int | Exception) -> None:
        self.failures, self.keys = list(failures), list[str | None]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.keys.append(request.headers.get("idempotency-key"))
        if not self.failures:
            return httpx2.Response(200, json={"items": [], "next": None})
        failure = self.failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return httpx2.Response(failure, text="not now")


@pytest.mark.usefixtures("_no_pauses")
def test_what_is_safe_is_sent_again(site: Site) -> None:
    for failure in (503, 429, httpx2.ConnectError("no"), httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("cut")):
        server = Failing(failure, failure)
        assert answering(server, lambda ledger: ledger.json(weft.verbs.sessions, {}))["items"] == []
        assert len(server.keys) == 3
        keyed = Failing(failure)
        answering(keyed, lambda ledger: ledger.json(weft.verbs.session_create, {"label": "x", "retry_key": "k"}))
        assert keyed.keys == ["k", "k"]


@pytest.mark.usefixtures("_no_pauses")
def test_what_may_have_been_done_is_not_sent_again() -> None:
    def rename(ledger: weft.client.ServedLedger) -> Awaitable[Any]:
        return ledger.json(weft.verbs.rename, {"session": "a", "label": "b"})

    for failure in (httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("cut")):
        server = Failing(failure)
        with pytest.raises(OutcomeUnknown):
            answering(server, rename)
        assert len(server.keys) == 1
    server = Failing(503)
    with pytest.raises(StoreError):
        answering(server, rename)
    assert len(server.keys) == 1
    server = Failing(429, httpx2.ConnectError("no"))
    answering(server, rename)
    assert len(server.keys) == 3


@pytest.mark.usefixtures("_no_pauses")
def test_a_server_that_never_answers_is_named() -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:8420 does not answer"):
        answering(Failing(*[httpx2.ConnectError("no")] * 9), lambda ledger: ledger.sessions())


def test_a_token_follows_no_redirect() -> None:
    seen: list[str] = []

    def redirect(request: httpx2.Request) -> httpx2.Response:
        seen.append(str(request.url))
        return httpx2.Response(307, headers={"location": "http://evil.example/"})

    with pytest.raises(StoreError, match="leads elsewhere"):
        answering(redirect, lambda ledger: ledger.sessions())
    assert len(seen) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://ledger.example", "http://10.0.0.1:8420", "ftp://127.0.0.1", "127.0.0.1:8420", "https://a:b@host",
        "https://host/path", "https://host?token=x", "",
    ],
)  # fmt: skip
def test_a_token_is_sent_over_tls_or_to_this_machine(url: str) -> None:
    with pytest.raises(InvalidInput):
        weft.client.connect(url, token="t")
    for fine in ("https://ledger.example", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        assert weft.client.connect(fine, token="t").url == fine


def test_what_an_answer_of_another_version_lacks_leaves_its_json() -> None:
    def older(request: httpx2.Request) -> httpx2.Response:
        body = msgspec.json.encode({"$": "MovedSession", "session": {"$": "Session", "label": "x"}})
        return httpx2.Response(200, content=body, headers={"content-type": "application/vnd.weft.record+json"})

    assert answering(older, lambda ledger: ledger.rename("a", "b"))["session"]["label"] == "x"


def test_every_verb_with_a_route_is_offered() -> None:
    ledger = weft.client.connect(BASE_URL, token="t")
    assert {route.verb_name for route in ROUTES} <= set(dir(ledger))
