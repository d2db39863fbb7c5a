"""Messages over HTTP: written before anything is answered, with the sender's rights, answered as it is preferred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.runtime.speaking import BREAK, CALL, END, Speaker, brokered, said
from tests.surfaces.server.site import Site, open_site
from tests.surfaces.server.streaming import streaming
from weft.aio.ledger import AsyncLedger
from weft.kernel.authority import SENDING
from weft.programs import Programs

WRITING = ("*:read", *SENDING, "session:create")


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


@asynccontextmanager
async def answering(site: Site) -> AsyncIterator[Speaker]:
    """A broker in the process of the application, whose model says what it is told."""
    speaker = Speaker()
    async with brokered(AsyncLedger(site.ledger, site.pool), speaker):
        yield speaker


def test_a_message_is_written_and_its_receipt_is_answered(site: Site) -> None:
    answered = site.ask("POST", "/api/v1/messages", {"text": "hello", "session": "plans"})
    assert answered.status == 202
    receipt = answered.json
    assert (receipt["session"], receipt["state"], receipt["is_new_session"]) == ("plans", "queued", True)
    assert answered.headers["location"] == f"/api/v1/inbox/{receipt['message']}"
    (waiting,) = site.ledger.inbox.list()
    assert (waiting.id, waiting.content[0].text) == (receipt["message"], "hello")  # type: ignore[union-attr]
    shown = site.ask("GET", answered.headers["location"]).json
    assert (shown["state"], shown["sender"]) == ("queued", "local")
    assert [one["id"] for one in site.ask("GET", "/api/v1/inbox").json["items"]] == [waiting.id]


def test_every_field_stands_with_the_message(site: Site, tmp_path: Path) -> None:
    asked = {
        "text": "hello",
        "thinking": "low",
        "model": "m",
        "parameters": {"temperature": 0.5},
        "allow": ["read"],
        "deny": ["shell"],
        "sandbox": "read-only",
        "credentials": ["a", "b"],
        "queue": "collect",
        "priority": 3,
        "workspace": str(tmp_path),
    }
    message = site.ask("POST", "/api/v1/messages", asked).json["message"]
    stored = site.ledger.inbox.get(message)
    assert (stored.session, stored.mode, stored.priority) == ("main", "collect", 3)
    assert stored.context == {"workspace": str(tmp_path)}
    assert stored.overrides == {
        "model": "m",
        "parameters": {"temperature": 0.5, "thinking": "low"},
        "allow": ["read"],
        "deny": ["shell"],
        "sandbox": "read-only",
        "credentials": ["a", "b"],
    }


def test_a_retry_with_the_same_key_writes_nothing_more(site: Site) -> None:
    key = {"idempotency-key": "once"}
    first, again = (site.ask("POST", "/api/v1/messages", {"text": "hello"}, headers=key) for _ in range(2))
    assert (first.status, again.status) == (202, 202)
    assert first.json["message"] == again.json["message"]
    assert first.json["receipt"] == again.json["receipt"]
    assert len(site.ledger.inbox.list()) == 1
    assert site.ask("POST", "/api/v1/messages", {"text": "other"}, headers=key).status == 409
    differing = site.ask("POST", "/api/v1/messages", {"text": "hello", "key": "twice"}, headers=key)
    assert differing.status == 422


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 422),
        ({"text": " "}, 422),
        ({"text": "x", "session": "a", "thread": "b"}, 422),
        ({"text": "x", "smart": True, "agent": "ada"}, 422),
        ({"text": "x", "smart": True}, 409),
        ({"text": "x", "as": "ada"}, 422),
        ({"text": "x", "priority": 5000}, 422),
        ({"text": "x", "parameters": {"other": 1}}, 422),
        ({"text": "x", "parameters": {"temperature": "${SECRET}"}}, 422),
        ({"text": "x", "thread": "nothing"}, 404),
        ({"text": "x", "agent": "nobody"}, 404),
        ({"text": "x", "toolset": "nothing"}, 404),
        ({"text": "x", "attachments": ["0" * 64]}, 422),
    ],
)
def test_a_message_that_cannot_be_taken_is_refused_before_anything_is_written(
    site: Site, asked: dict[str, object], status: int
) -> None:
    newest = site.ledger.newest()
    answered = site.ask("POST", "/api/v1/messages", asked)
    assert (answered.status, answered.headers["content-type"]) == (status, "application/problem+json"), answered.body
    assert site.ledger.newest() == newest


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        (("*:read",), {"text": "x"}),
        (("turn:record", "session:*"), {"text": "x"}),  # no model
        (WRITING, {"text": "x", "workspace": "/"}),
        (WRITING, {"text": "x", "toolset": "hands"}),
        (("*:read", *SENDING), {"text": "x", "session": "new"}),  # session:create
    ],
)
def test_a_token_with_too_few_rights_is_refused_before_anything_is_written(
    site: Site, allowed: tuple[str, ...], asked: dict[str, object]
) -> None:
    Programs(site.ledger).create("toolset", "hands", {"tools": {"allow": ["read"]}})
    newest = site.ledger.newest()
    answered = site.ask("POST", "/api/v1/messages", asked, token=site.token(allow=allowed))
    assert (answered.status, answered.json["code"]) == (403, "not_allowed"), answered.body
    assert site.ledger.newest() == newest


def test_the_rights_of_a_token_stand_with_its_message(site: Site) -> None:
    token = site.token(allow=[*WRITING, "session:record"], deny=["tool:shell"])
    answered = site.ask("POST", "/api/v1/messages", {"text": "x"}, token=token)
    assert answered.status == 202, answered.body
    (layer,) = site.ledger.inbox.get(answered.json["message"]).overrides["rights"]
    assert layer["deny"] == ["tool:shell"]


def test_whoever_cannot_read_a_session_is_told_nothing_of_it(site: Site) -> None:
    site.ledger.record_turn(session="secret", query=["hello"], response="hi")
    hidden = site.ask("POST", "/api/v1/messages", {"text": "hello", "session": "secret"}).json["message"]
    token = site.token(allow=["session:read(open-*)", *SENDING, "session:create"])
    unknown = site.ask("GET", "/api/v1/inbox/01ARZ3NDEKTSV4RRFFQ69G5FAV", token=token)
    for method in ("GET", "DELETE"):
        refused = site.ask(method, f"/api/v1/inbox/{hidden}", token=token)
        assert refused.status == unknown.status == 404
    assert site.ask("GET", "/api/v1/inbox", token=token).json["items"] == []
    assert site.ledger.inbox.get(hidden).state == "queued"


def test_a_page_of_the_inbox_leads_on(site: Site) -> None:
    ids = [site.ask("POST", "/api/v1/messages", {"text": str(n)}).json["message"] for n in range(3)]
    first = site.ask("GET", "/api/v1/inbox?limit=2").json
    rest = site.ask("GET", f"/api/v1/inbox?limit=2&after={first['next']}").json
    assert [one["id"] for one in first["items"] + rest["items"]] == ids
    assert rest["next"] is None
    for wrong in ("state=x", "limit=0", "limit=x", "other=1", "after=1&after=2"):
        assert site.ask("GET", f"/api/v1/inbox?{wrong}").status == 422


def test_a_message_that_waits_is_taken_back(site: Site) -> None:
    message = site.ask("POST", "/api/v1/messages", {"text": "hello"}).json["message"]
    assert site.ask("DELETE", f"/api/v1/inbox/{message}").json["state"] == "cancelled"
    assert site.ledger.inbox.list() == []


def test_whoever_prefers_to_wait_is_answered_the_turn(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            speaker.say(said("Par"), said("is"), END)
            answered = await site.asked(
                "POST", "/api/v1/messages", {"text": "Which city?"}, headers={"prefer": "respond-async, wait=60"}
            )
        assert answered.status == 200, answered.body
        told = answered.json
        assert (told["state"], told["text"], told["finish"]) == ("answered", "Paris", "stop")
        assert site.ledger.turn(told["turn"]).status == "completed"

    site.run(body())


def test_whoever_waited_long_enough_has_the_receipt(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            answered = await site.asked("POST", "/api/v1/messages", {"text": "x"}, headers={"prefer": "wait=1"})
            assert answered.status == 202
            speaker.say(END)

    site.run(body())


def test_what_a_turn_failed_with_is_answered_as_a_problem(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            speaker.say(said("Par"), BREAK)
            answered = await site.asked("POST", "/api/v1/messages", {"text": "x"}, headers={"prefer": "wait=60"})
        assert (answered.status, answered.json["code"]) == (502, "provider_failed"), answered.body

    site.run(body())


def test_an_answer_is_told_as_it_comes_and_ends_with_the_turn(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker, streaming(site, "/api/v1/messages", {"text": "x"}) as client:
            assert (client.status, client.headers["content-type"]) == (200, "text/event-stream")
            first = await client.next()
            assert first is not None
            assert (first.name, first.data["state"]) == ("message", "queued")
            speaker.say(said("I look."), CALL)
            events = await client.until("tool_ended")
            speaker.say(said("Eight"), END)
            events += await client.rest()
        names = [event.name for event in events]
        assert names[0] == "message_added"
        assert names[-3:] == ["answer_ended", "turn_ended", "answer"]
        text = "".join(event.data["text"] for event in events if event.name == "text_added")
        assert text == "I look.Eight"
        assert (events[-1].data["text"], events[-1].data["state"]) == ("Eight", "answered")
        assert all(event.id for event in events[:-1])

    site.run(body())


def test_an_error_ends_the_stream_of_an_answer(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker, streaming(site, "/api/v1/messages", {"text": "x"}) as client:
            speaker.say(said("Par"), BREAK)
            events = await client.rest()
        assert (events[-1].name, events[-1].data["code"]) == ("error", "provider_failed")

    site.run(body())


def test_whoever_asks_again_with_the_key_and_the_last_id_goes_on_without_gap_or_repetition(site: Site) -> None:
    asked, headers = {"text": "x"}, {"idempotency-key": "k"}

    async def body() -> None:
        async with answering(site) as speaker:
            async with streaming(site, "/api/v1/messages", asked, headers=headers) as client:
                speaker.say(said("one "), said("two "))
                events = await client.until("text_added")
                while "".join(event.data["text"] for event in events if event.name == "text_added") != "one two ":
                    events += await client.until("text_added")
                last = client.last_id
            assert last is not None
            speaker.say(said("three"), END)
            resumed = {**headers, "last-event-id": last}
            async with streaming(site, "/api/v1/messages", asked, headers=resumed) as client:
                events += await client.rest()
        assert "".join(event.data["text"] for event in events if event.name == "text_added") == "one two three"
        assert [event.name for event in events].count("message_added") == 1
        assert site.ledger.thread("main").depth == 1

    site.run(body())


def test_a_sender_who_leaves_leaves_the_message_to_be_answered(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            async with streaming(site, "/api/v1/messages", {"text": "x"}) as client:
                first = await client.next()
            assert first is not None
            speaker.say(said("done"), END)
            for _ in range(600):
                if site.ledger.inbox.get(first.data["message"]).state == "answered":
                    break
                await asyncio.sleep(0.1)
            assert site.ledger.inbox.get(first.data["message"]).state == "answered"
        assert len(site.streams) == 0

    site.run(body())


def test_a_running_turn_is_interrupted_and_a_failed_one_retried(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            async with streaming(site, "/api/v1/messages", {"text": "x"}) as client:
                speaker.say(said("Par"))
                await client.until("text_added")
                interrupted = await site.asked("POST", "/api/v1/sessions/main/interrupt")
                events = await client.rest()
            assert interrupted.json["turn"] == site.ledger.session("main").head
            assert events[-1].name == "error"
            speaker.words = asyncio.Queue()
            speaker.say(BREAK)
            failed = await site.asked("POST", "/api/v1/messages", {"text": "y"}, headers={"prefer": "wait=60"})
            assert failed.status == 502
            (turn,) = [turn.id for turn in site.ledger.thread("main").turns if turn.status == "failed"] or [""]
            speaker.say(said("well"), END)
            path = f"/api/v1/turns/{turn or site.ledger.inbox.list(states=['dead'])[0].turn}/retries"
            retried = await site.asked("POST", path, headers={"prefer": "wait=60"})
            assert retried.json["text"] == "well"

    site.run(body())


PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")


def upload(site: Site, name: str, data: bytes, token: str = "") -> str:
    headers = {"content-type": "application/octet-stream"}
    answered = site.ask("POST", f"/api/v1/attachments?name={name}", content=data, headers=headers, token=token)
    assert answered.status == 201, answered.body
    assert answered.json["size"] == len(data)
    return str(answered.json["id"])


def test_attachments_are_uploaded_sent_and_fetched_again_as_they_were(site: Site) -> None:
    ids = [upload(site, "a.png", PNG), upload(site, "ö%2Fnotes.txt", "Grüße\n".encode())]
    message = site.ask("POST", "/api/v1/messages", {"text": "look", "attachments": ids}).json["message"]
    stored = site.ledger.inbox.get(message)
    assert [file.path for file in stored.files] == ["a.png", "ö/notes.txt"]
    assert stored.content[2].text == "File ö/notes.txt:\nGrüße\n"  # type: ignore[union-attr]
    listed = site.ask("GET", f"/api/v1/messages/{message}/attachments").json["items"]
    assert [(one["name"], one["media_type"]) for one in listed] == [
        ("a.png", "image/png"),
        ("ö/notes.txt", "text/plain; charset=utf-8"),
    ]
    image, text = (site.ask("GET", f"/api/v1/messages/{message}/attachments/{number}") for number in (1, 2))
    assert (image.body, image.headers["content-type"]) == (PNG, "image/png")
    assert text.body.decode() == "Grüße\n"
    assert text.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%B6%2Fnotes.txt"
    assert text.headers["x-content-type-options"] == "nosniff"
    assert site.ask("GET", f"/api/v1/messages/{message}/attachments/3").status == 404


@pytest.mark.parametrize(
    ("query", "data", "type", "status"),
    [
        ("name=a", b"\xff\xfe", "application/octet-stream", 422),
        ("name=a", b"x" * (16 * 2**20 + 1), "application/octet-stream", 413),
        ("name=a", b"x", "text/plain", 415),
        ("name=a&other=1", b"x", "application/octet-stream", 422),
        ("name=" + "a" * 256, b"x", "application/octet-stream", 422),
        ("", b"x", "application/octet-stream", 422),
    ],
)
def test_an_attachment_that_cannot_be_taken_is_refused(
    site: Site, query: str, data: bytes, type: str, status: int
) -> None:
    answered = site.ask("POST", f"/api/v1/attachments?{query}", content=data, headers={"content-type": type})
    assert answered.status == status


def test_an_attachment_is_referred_to_by_those_alone_who_put_it_also_at_another_server(site: Site) -> None:
    Programs(site.ledger).create("human", "ada", {})
    theirs = site.token("ada", allow=[*WRITING, "session:*"])
    id = upload(site, "a.txt", b"mine", theirs)
    site.ledger.acting_as("ada")._writer._state.put_contents.clear()  # as if another process had taken it
    asked = {"text": "look", "session": "hers", "attachments": [id]}
    assert site.ask("POST", "/api/v1/messages", asked).status == 422
    sent = site.ask("POST", "/api/v1/messages", asked, token=theirs)
    assert sent.status == 202, sent.body
    message = sent.json["message"]
    path = f"/api/v1/messages/{message}/attachments/1"
    assert site.ask("GET", path, token=theirs).body == b"mine"
    Programs(site.ledger).create("human", "bob", {})
    assert site.ask("GET", path, token=site.token("bob", allow=[*WRITING, "session:*"])).status == 404
