"""`weft serve` as a process: its start and end, what stands in its way, and what a `kill -9` of it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

import weft as weft_package
from tests.postgres import shared_server
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import STREAM_HEAD, Script, chunk, events
from tests.sizes import chance, sized
from tests.surfaces.forking import Forked
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.talking import typing
from tests.surfaces.test_cli_broker import stock

PATIENCE_SECONDS = 240.0
SESSIONS, SENDERS, MESSAGES = sized(test=(3, 3, 4), prove=(20, 8, 50))
"""Of each sender."""
KILLS = sized(test=2, prove=30)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


@contextmanager
def served(shell: Shell, *options: str, stderr: int = subprocess.DEVNULL) -> Iterator[tuple[Forked, str]]:
    """A server of the ledger of this folder, and where it is reached. It tells of each request on standard error."""
    with running(
        shell.folder, "--json", "serve", "--port", "0", *options, stdout=subprocess.PIPE, stderr=stderr
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"]
        yield process, ready["url"]


def token_of(shell: Shell) -> dict[str, str]:
    """The header with which the owner asks."""
    made = shell("token", "create", "--allow", "*", "--expires", "1h")
    assert made.code == 0, made.err
    return {"authorization": f"Bearer {made.out.split()[-1]}"}


def test_a_fresh_folder_is_served_until_a_signal(shell: Shell) -> None:
    shell("init")
    headers = token_of(shell)
    with served(shell, stderr=subprocess.PIPE) as (process, url):
        assert httpx2.get(f"{url}/api/v1/sessions").status_code == 401
        answered = httpx2.get(f"{url}/api/v1/sessions", headers=headers)
        assert (answered.status_code, answered.json()["items"]) == (200, [])
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr is not None
        logged = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [one["status"] for one in logged] == [401, 200]


def test_the_link_that_it_prints_signs_a_browser_in_once(shell: Shell) -> None:
    shell("init")
    options = ("--json", "serve", "--port", "0", "--no-broker")
    with running(shell.folder, *options, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with httpx2.Client() as browser:
            assert browser.get(ready["sign_in_url"]).status_code == 303
            me = browser.get(f"{ready['url']}/api/v1/me").json()
            assert (me["principal"], me["credential"]) == ("system:local", "cookie")
            proof = {"x-weft-csrf-token": me["csrf_token"], "origin": ready["url"]}
            assert browser.post(f"{ready['url']}/api/v1/sign-out").status_code == 403
            assert browser.post(f"{ready['url']}/api/v1/sign-out", headers=proof).status_code == 204
            assert browser.get(f"{ready['url']}/api/v1/me").status_code == 401
        assert httpx2.get(ready["sign_in_url"]).status_code == 401


def test_on_a_terminal_it_says_where_it_is_and_ends_with_ctrl_c(shell: Shell) -> None:
    shell("init")
    headers = token_of(shell)
    with typing(shell.folder, "serve", "--port", "0") as person:
        url = re.sub(r".*(http://\S+)\s.*", r"\1", person.wait("ready: ") + person.wait("\n"), flags=re.S)
        assert httpx2.get(f"{url}/api/v1/sessions", headers=headers).status_code == 200
        person.insist("\x03", "stopped")
        assert person.end() == 0


def test_a_port_that_is_taken_is_told_in_a_line(shell: Shell) -> None:
    shell("init")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = shell("serve", "--port", str(port))
    assert (answer.code, answer.out) == (5, "")
    assert f"port {port} is taken" in answer.err.splitlines()[0]
    assert len(answer.err.splitlines()) <= 2


def test_an_extra_that_is_missing_is_told_in_a_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("init")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = shell("serve", "--port", "0")
    assert (answer.code != 0, answer.out) == (True, "")
    assert "weft[server]" in answer.err
    assert len(answer.err.splitlines()) <= 2


def test_a_ledger_of_a_newer_version_is_told_in_a_line_and_not_touched(shell: Shell) -> None:
    shell("init")
    (path,) = shell.folder.rglob("*.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99999")
    connection.close()
    before = path.read_bytes()
    answer = shell("serve", "--port", "0")
    assert (answer.code, answer.out) == (7, "")
    assert len(answer.err.splitlines()) <= 2
    assert path.read_bytes() == before


# --- A server that is killed under load.


def answered_by_echo(body: Any) -> Script:
    """A stream of several pieces, which says what was asked."""
    question = [item["content"] for item in body["messages"] if item["role"] == "user"][-1]
    text = question if isinstance(question, str) else question[0]["text"]
    pieces = [chunk({"content": f"{word} "}, model="m-1") for word in f"re: {text}".split()]
    last = {**chunk({}, model="m-1"), "choices": [], "usage": USAGE}
    return [STREAM_HEAD, *events(*pieces, chunk({}, "stop", model="m-1"), last, "[DONE]"), "close"]


USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


class Servers:
    """Where the servers are now; one of them may be away."""

    def __init__(self, shell: Shell, headers: dict[str, str], count: int) -> None:
        self._shell, self.headers = shell, headers
        self._open = [self._start() for _ in range(count)]
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self._dice = chance("servers", count)

    def _start(self) -> tuple[Any, Forked, str]:
        context = served(self._shell)
        process, url = context.__enter__()
        return context, process, url

    def url(self) -> str:
        return self._dice.choice(self._open)[2]

    def kill_one(self) -> None:
        """With SIGKILL; another one is started in its place."""
        place = self._dice.randrange(len(self._open))
        context, process, _ = self._open[place]
        process.send_signal(signal.SIGKILL)
        process.wait()
        context.__exit__(None, None, None)
        self._open[place] = self._start()

    def close(self) -> None:
        for context, _, _ in self._open:
            context.__exit__(None, None, None)

    def begin(self, work: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(self, *arguments)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def send(servers: Servers, sender: int, acknowledged: dict[str, str]) -> None:
    """Send messages, each again with its key until somebody acknowledges it."""
    for number in range(MESSAGES):
        text = f"message {sender}-{number}"
        asked = {"text": text, "session": f"session-{(sender + number) % SESSIONS}"}
        headers = {**servers.headers, "idempotency-key": text}
        while text not in acknowledged:
            try:
                answered = httpx2.post(f"{servers.url()}/api/v1/messages", json=asked, headers=headers, timeout=30)
            except httpx2.TransportError:
                time.sleep(0.05)
                continue
            assert answered.status_code == 202, answered.text
            acknowledged[text] = answered.json()["message"]


Told = list[tuple[str, str, Any]]
"""Ids, names and data of events."""


def follow(servers: Servers, session: str, told: Told) -> None:
    """Follow a session to the end of the test, at whichever server there is, each time behind the last event."""
    while not servers.is_over.is_set():
        last = {"last-event-id": told[-1][0]} if told else {}
        headers = {**servers.headers, "accept": "text/event-stream", **last}
        url = f"{servers.url()}/api/v1/sessions/{session}/events?after=0"
        try:
            with httpx2.stream("GET", url, headers=headers, timeout=httpx2.Timeout(30, read=1.0)) as response:
                if response.status_code == 404:  # it is made with its first message
                    time.sleep(0.05)
                    continue
                assert response.status_code == 200, response.read()
                take_events(response, told)
        except httpx2.TransportError:  # killed, or nothing came for a second
            time.sleep(0.02)


def take_events(response: httpx2.Response, told: Told) -> None:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "id" in fields:
            told.append((fields["id"], fields["event"], json.loads(fields["data"])))
        fields = {}


def texts_of(told: Told) -> list[str]:
    """The answers as somebody reads them who is told these events."""
    texts, text = list[str](), ""
    for _, name, data in told:
        if name == "attempt_reset":
            text = ""
        elif name == "text_added":
            text += data["text"]
        elif name == "answer_ended":
            texts.append(text)
            text = ""
    return texts


@pytest.mark.slow("runs servers under load, and kills them")
@pytest.mark.parametrize("servers_at_once", [1, 2])
def test_a_killed_server_loses_no_acknowledged_message_and_clients_go_on_without_gap_or_repetition(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, servers_at_once: int
) -> None:
    """One on a file; two with two brokers on one PostgreSQL, which are asked in turn for everything."""
    if servers_at_once == 2:
        address = shared_server().address()
        assert shell("init", address).code == 0
        monkeypatch.setenv("WEFT_LEDGER", address)
    else:
        shell("init")
    with serving() as model:
        model.script_of = answered_by_echo
        stock(shell, f"{model.url}/v1", *(f"session-{number}" for number in range(SESSIONS)))
        servers = Servers(shell, token_of(shell), servers_at_once)
        try:
            acknowledged: dict[str, str] = {}
            followed: dict[str, Told] = {f"session-{number}": [] for number in range(SESSIONS)}
            threads = [servers.begin(follow, session, told) for session, told in followed.items()]
            senders = [servers.begin(send, number, acknowledged) for number in range(SENDERS)]
            for kill in range(KILLS):
                share = (kill + 1) * SENDERS * MESSAGES // (KILLS + 1)
                wait_for(servers, lambda share=share: len(acknowledged) >= share)
                servers.kill_one()
            for thread in senders:
                thread.join()
            place = os.environ.get("WEFT_LEDGER") or str(next(shell.folder.rglob("*.db")))
            with weft_package.open(place) as ledger:
                wait_for(servers, lambda: not ledger.inbox.list())
                newest = {session: str(last_position(servers, session)) for session in followed}
                wait_for(servers, lambda: all(told and told[-1][0] == newest[name] for name, told in followed.items()))
                servers.is_over.set()
                for thread in threads:
                    thread.join()
                assert servers.errors == []
                assert len(acknowledged) == SENDERS * MESSAGES
                assert {ledger.inbox.get(message).state for message in acknowledged.values()} == {"answered"}
                asked = [text for session in followed for text in ledger_texts(ledger, session, "user")]
                assert Counter(asked) == Counter(list(acknowledged))
                for session, told in followed.items():
                    assert texts_of(told) == ledger_texts(ledger, session, "assistant")
                    whole = [event_number(id) for id, name, _ in told if name not in ("text_added", "attempt_reset")]
                    assert whole == event_numbers(servers, session)
        finally:
            servers.is_over.set()
            servers.close()


def wait_for(servers: Servers, is_so: Any) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert servers.errors == []
        assert time.monotonic() < until
        time.sleep(0.05)


def page_of(servers: Servers, session: str, after: str) -> Any:
    url = f"{servers.url()}/api/v1/sessions/{session}/events?limit=1000&after={after}"
    return httpx2.get(url, headers=servers.headers, timeout=60).raise_for_status().json()


def last_position(servers: Servers, session: str) -> str:
    after = "0"
    while (page := page_of(servers, session, after))["items"]:
        after = page["next"]
    return after


def event_number(position: str) -> int:
    """Which event an item tells. Behind it stands how much somebody was told of an answer."""
    return int(position.partition(".")[0])


def event_numbers(servers: Servers, session: str) -> list[int]:
    """Of everything that is recorded of a session, but the text of answers."""
    found, after = list[int](), "0"
    while (page := page_of(servers, session, after))["items"]:
        items = [item for item in page["items"] if item["type"] not in ("text_added", "attempt_reset")]
        found += [event_number(item["position"]) for item in items]
        after = page["next"]
    return found


def ledger_texts(ledger: Any, session: str, role: str) -> list[str]:
    return [message.text for message in ledger.thread(session).messages if message.role == role and message.text]


@pytest.mark.slow("runs two servers on PostgreSQL")
def test_one_key_is_one_message_at_either_of_two_servers(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    address = shared_server().address()
    assert shell("init", address).code == 0
    monkeypatch.setenv("WEFT_LEDGER", address)
    headers = {**token_of(shell), "idempotency-key": "once"}
    with served(shell, "--no-broker") as (_, one), served(shell, "--no-broker") as (_, other):
        ids: list[str] = []

        def post(url: str) -> None:
            answered = httpx2.post(f"{url}/api/v1/messages", json={"text": "x"}, headers=headers, timeout=60)
            ids.append(answered.json()["message"])

        threads = [threading.Thread(target=post, args=(url,)) for url in (one, other) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 8
        assert len(set(ids)) == 1
        data = b"attached"
        binary = {**headers, "content-type": "application/octet-stream"}
        upload = httpx2.post(f"{one}/api/v1/attachments?name=a.txt", content=data, headers=binary, timeout=60).json()
        asked = {"text": "look", "session": "main", "attachments": [upload["id"]], "key": "twice"}
        headers.pop("idempotency-key")
        message = httpx2.post(f"{other}/api/v1/messages", json=asked, headers=headers, timeout=60).json()["message"]
        fetched = httpx2.get(f"{one}/api/v1/messages/{message}/attachments/1", headers=headers, timeout=60)
        assert fetched.content == data
