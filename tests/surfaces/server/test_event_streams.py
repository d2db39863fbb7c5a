"""Streams over HTTP: every item once and in order, from any position, at any server, as long as the client may read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.postgres import shared_server
from tests.runtime.speaking import END, said
from tests.surfaces.server.site import Site, open_site
from tests.surfaces.server.streaming import EventClient, TakenEvent, streaming
from tests.surfaces.server.test_messages import answering
from weft.ledger.api import PartialReply, Runs
from weft.programs import Programs
from weft.surfaces.server import event_streams


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


def text_of(events: list[TakenEvent]) -> str:
    return "".join(event.data["text"] for event in events if event.name == "text_added")


async def next_of(client: EventClient) -> TakenEvent:
    event = await client.next()
    assert event is not None
    return event


def test_a_page_tells_what_there_is_and_where_it_goes_on(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["Which city?"], response="Paris")
    whole = site.ask("GET", "/api/v1/sessions/main/events?after=0").json
    assert "turn_ended" in [item["type"] for item in whole["items"]]
    items, after = [], "0"
    while page := site.ask("GET", f"/api/v1/sessions/main/events?after={after}&limit=2").json:
        items += page["items"]
        after = page["next"]
        if len(page["items"]) < 2:
            break
    assert items == whole["items"]
    assert after == whole["next"] == whole["items"][-1]["position"]


@pytest.mark.parametrize("query", ["after=x", "after=99999", "limit=0", "limit=x", "other=1", "after=1&after=2"])
@pytest.mark.parametrize("path", ["/api/v1/sessions/main/events", "/api/v1/events", "/api/v1/rooms/talk/events"])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_question_that_cannot_be_taken_is_refused(site: Site, path: str, query: str, accept: str) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    site.ledger.rooms.create("talk")
    answered = site.ask("GET", f"{path}?{query}", headers={"accept": accept})
    assert (answered.status, answered.headers["content-type"]) == (422, "application/problem+json")


def test_a_session_that_is_not_there_is_no_stream(site: Site) -> None:
    answered = site.ask("GET", "/api/v1/sessions/none/events", headers={"accept": "text/event-stream"})
    assert answered.status == 404


def test_a_session_is_followed_from_any_item_without_gap_or_repetition(site: Site) -> None:
    async def body() -> None:
        async with answering(site) as speaker:
            await site.asked("POST", "/api/v1/messages", {"text": "x"})
            async with streaming(site, "/api/v1/sessions/main/events?after=0") as client:
                speaker.say(said("one "), said("two "), said("three"), END)
                events = await client.until("turn_ended")
            assert text_of(events) == "one two three"
            for place, event in enumerate(events[:-1]):
                assert event.id is not None
                headers = {"last-event-id": event.id}
                async with streaming(site, "/api/v1/sessions/main/events?after=0", headers=headers) as client:
                    rest = await client.until("turn_ended")
                told = [one.id for one in rest if one.name != "text_added"]
                assert told == [one.id for one in events[place + 1 :] if one.name != "text_added"]
                assert text_of(events[: place + 1]) + text_of(rest) == "one two three"

    site.run(body())


def test_many_streams_of_a_process_wait_without_threads(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            clients: list[EventClient] = []
            is_over = asyncio.Event()

            async def follow() -> None:
                async with streaming(site, "/api/v1/sessions/main/events") as client:
                    clients.append(client)
                    assert (await next_of(client)).name == "message_admitted"
                    await is_over.wait()

            tasks = [group.create_task(follow()) for _ in range(100)]
            while len(clients) < 100:
                await asyncio.sleep(0.01)
            assert len(site.streams) == 100
            assert sum(thread.name.startswith(("weft-aio", "asyncio")) for thread in threading.enumerate()) <= 4
            await site.asked("POST", "/api/v1/messages", {"text": "x"})
            is_over.set()
            await asyncio.wait(tasks)
        assert len(site.streams) == 0

    site.run(body())


def test_streams_end_when_the_server_does(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")

    async def body() -> None:
        async with streaming(site, "/api/v1/sessions/main/events") as client:
            site.application.end_streams()
            (event,) = await client.rest()
            assert (event.name, event.data) == ("ended", {"reason": "ending"})
        async with streaming(site, "/api/v1/sessions/main/events") as client:  # one that comes too late
            assert [event.name for event in await client.rest()] == ["ended"]

    site.run(body())


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_stream_ends_when_its_credential_counts_no_longer(site: Site, how: str) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    token, other = site.token(expires_ms=100), site.token()
    (id,) = site.caller(token).ids

    async def body() -> None:
        path = "/api/v1/sessions/main/events"
        async with streaming(site, path, token=token) as client, streaming(site, path, token=other) as staying:
            if how == "revoked":
                site.revoked.add(id)
            else:
                site.now_ms = 100
            started = asyncio.get_running_loop().time()
            (event,) = await client.rest()
            assert event.data == {"reason": "credential"}
            assert asyncio.get_running_loop().time() - started < 10  # a second, on a machine that is not busy
            assert not staying.was_ended

    site.run(body())


def test_whoever_is_removed_from_a_room_is_told_and_sent_nothing_more(site: Site) -> None:
    Programs(site.ledger).create("human", "ada", {})
    room = site.ledger.rooms.create("talk").id
    site.ledger.rooms.invite(room, "ada")
    theirs = site.token("ada")

    async def body() -> None:
        async with streaming(site, f"/api/v1/rooms/{room}/events", token=theirs) as client:
            await asyncio.to_thread(site.ledger.rooms.post, room, "hello")
            (*_, event) = await client.until("room_message")
            assert event.data["message"]["text"] == "hello"
            await asyncio.to_thread(site.ledger.rooms.remove, room, "ada")
            await asyncio.to_thread(site.ledger.rooms.post, room, "they are gone")
            events = await client.rest()
        assert events[-1].name == "room_ended"
        assert "they are gone" not in [str(event.data) for event in events]

    site.ledger.acting_as("ada").rooms.list()
    site.run(body())


def test_a_room_is_followed_from_any_message(site: Site) -> None:
    room = site.ledger.rooms.create("talk").id
    for text in ("one", "two", "three"):
        site.ledger.rooms.post(room, text)

    async def body() -> None:
        async with streaming(site, f"/api/v1/rooms/{room}/events?after=0") as client:
            events = [await next_of(client) for _ in range(4)]
        said_messages = [event for event in events if event.name == "room_message" and event.data["message"]["text"]]
        for place, event in enumerate(said_messages[:-1]):
            headers = {"last-event-id": str(event.id)}
            async with streaming(site, f"/api/v1/rooms/{room}/events", headers=headers) as client:
                following = await next_of(client)
            assert following.id == said_messages[place + 1].id

    site.run(body())


def test_every_event_of_the_ledger_is_told_once_to_whoever_may_read_all_of_it(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    newest = site.ledger.newest()

    async def body() -> None:
        async with streaming(site, "/api/v1/events?after=0") as client:
            events = [await next_of(client) for _ in range(newest)]
            await asyncio.to_thread(site.ledger.create_session, "other")
            more = await next_of(client)
        assert [int(event.id or 0) for event in (*events, more)] == list(range(1, newest + 2))
        assert more.data["event"]["kind"] == "session_created"

    site.run(body())
    page = site.ask("GET", "/api/v1/events?after=0&limit=2").json
    assert [item["n"] for item in page["items"]] == [1, 2]
    limited = site.token(allow=["session:read(main)"])
    assert site.ask("GET", "/api/v1/events", token=limited).status == 403


def test_a_client_that_takes_nothing_is_dropped_and_nothing_is_kept_for_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(event_streams, "MOST_BYTES", 1000)
    for number in range(40):
        site.ledger.record_turn(session="main", query=[f"{number} " + "x" * 500], response="hi")

    async def body() -> None:
        async with streaming(site, "/api/v1/sessions/main/events?after=0") as client:
            client.is_taking.clear()
            while len(site.streams):
                await asyncio.sleep(0.05)
            assert client.sent_bytes < 10_000
            assert not client.was_ended

    site.run(body())


def test_what_says_that_a_connection_is_alive_is_sent_where_nothing_happens(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_SECONDS", 0.0)
    site.ledger.record_turn(session="main", query=["hello"], response="hi")

    async def body() -> None:
        async with streaming(site, "/api/v1/sessions/main/events") as client:
            reading = asyncio.ensure_future(client.next())
            while client.beats < 2:
                await asyncio.sleep(0.05)
            reading.cancel()

    site.run(body())


def test_a_stream_is_gone_when_its_client_is(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")

    async def body() -> None:
        async with streaming(site, "/api/v1/sessions/main/events"):
            assert len(site.streams) == 1
        assert len(site.streams) == 0

    site.run(body())


def test_a_head_request_opens_no_stream(site: Site) -> None:
    site.ledger.record_turn(session="main", query=["hello"], response="hi")
    answered = site.ask("HEAD", "/api/v1/sessions/main/events", headers={"accept": "text/event-stream"})
    assert (answered.status, answered.headers["content-type"]) == (200, "text/event-stream")


@pytest.mark.slow("runs two openings of a ledger in PostgreSQL")
def test_what_one_server_answers_is_told_at_another_within_two_seconds_and_without_a_gap() -> None:
    with shared_server().ledger() as address, open_site(address) as one, weft.open(address) as elsewhere:
        elsewhere.inbox.admit("x", session="main")
        runs, session = Runs(elsewhere), elsewhere.session("main").id
        from tests.ledger.test_inbox import begun
        from weft.ledger.api import FinishedRun, ModelAnswered, ModelAsked
        from weft.ledger.model import NewMessage

        async def body() -> None:
            async with streaming(one, "/api/v1/sessions/main/events?after=0") as client:
                run, _ = await asyncio.to_thread(begun, elsewhere, "main")
                asked = (await asyncio.to_thread(run.record, [ModelAsked(model="m")])).events[-1]
                await client.until("answer_started")
                text = ""
                for piece in ("one ", "two ", "three"):
                    text += piece
                    await asyncio.to_thread(runs.keep_partial, run.id, PartialReply(1, text))
                    async with asyncio.timeout(30):  # two seconds, on a machine that is not busy
                        (event,) = await client.until("text_added")
                    assert event.data["text"] == piece
                said_message = NewMessage(role="assistant", content=text + " four")  # type: ignore[arg-type]
                correlation = asked.event.correlation_id  # type: ignore[attr-defined]
                answer = ModelAnswered(request=asked.id, correlation=correlation, message=said_message)
                await asyncio.to_thread(run.record, [answer, FinishedRun()])
                events = await client.until("turn_ended")
            assert text_of(events) == " four"

        assert session
        one.run(body())


def test_the_ledger_can_be_backed_up_while_streams_are_open(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with open_site(str(path)) as served:
        served.ledger.record_turn(session="main", query=["hello"], response="hi")

        async def body() -> None:
            async with streaming(served, "/api/v1/sessions/main/events"):
                await asyncio.to_thread(served.ledger.upkeep.backup, str(tmp_path / "copy.db"))

        served.run(body())
        with weft.open(tmp_path / "copy.db") as copy:
            assert copy.newest() == served.ledger.newest()
