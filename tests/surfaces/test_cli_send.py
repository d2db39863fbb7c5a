"""Every option of weft send, and what becomes of what it left: through the command line, against a scripted server."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.postgres import shared_server
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, chat, chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, running
from tests.surfaces.test_cli_broker import PNG, beside, serve_until_empty, stock, wait_until
from weft.ledger.api import Ledger, Runs
from weft.surfaces.cli.main import run


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def test_a_message_is_answered_in_its_situation_without_what_it_denies(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        assert weft("model", "configure", "fast", "--situation", "coding", "--temperature", "0").code == 0
        options = ("--situation", "coding", "--set", "maxTokens=40", "--deny", "Bash(rm *)", "--deny", "Write")
        sent = weft.json("send", "--session", "talk", "Begin", *options)
        body = server.received[0].body
        assert (body["temperature"], body["max_completion_tokens"]) == (0, 40)
        turn = weft.json("show", sent["turn"])
        assert turn["effective_config"]["situation"] == "coding"
        assert turn["effective_config"]["sources"]["situation"]["layer"] == "message"
        denied = [pattern for pattern in ("Bash(rm *)", "Write") if pattern in str(turn["permissions_granted"])]
        assert denied == ["Bash(rm *)", "Write"]
        refused = weft("send", "--session", "talk", "Begin", "--set", "colour=red")
        assert (refused.code, "colour" in refused.err) == (5, True), refused.err
        assert len(server.received) == 1


def test_a_message_narrows_every_permission_of_its_turn(weft: Shell) -> None:
    limits = (
        "--allow", "read", "--allow", "shell(git *)", "--deny", "shell(git push *)", "--sandbox",
        "read-only+network:example.org", "--credential", "THERE_KEY", "--thinking", "low",
    )  # fmt: skip
    with serving(chat(), chat()) as server:
        stock(weft, server.url, "talk")
        open_network = (
            "--set",
            "permissions.sandbox.network=true",
            "--set",
            'permissions.credentials=["THERE_KEY","two"]',
        )
        assert weft("session", "configure", "talk", *open_network).code == 0
        shown = weft.json("config", "talk", *limits)
        sent = weft.json("send", "--session", "talk", "Begin", *limits)
        own = weft.json("send", "--session", "talk", "Go on")
    assert (shown["files"], shown["hosts"], shown["credentials"]) == ("read-only", ["example.org"], ["THERE_KEY"])
    assert {value["key"]: value["value"] for value in shown["values"]}["thinking"] == "low"
    turn = weft.json("show", sent["turn"])
    granted = turn["permissions_granted"]
    (message,) = [layer for layer in granted["layers"] if layer["layer"] == "message"]
    assert (message["allow"], message["deny"]) == (["read", "shell(git *)"], ["shell(git push *)"])
    assert granted["credentials"] == ["THERE_KEY"]
    assert granted["sandbox"] == {"files": "read-only", "network": True, "hosts": ["example.org"]}
    assert turn["effective_config"]["sources"]["thinking"]["layer"] == "message"
    after = weft.json("show", own["turn"])["permissions_granted"]
    assert (after["credentials"], after["sandbox"]) == (["THERE_KEY", "two"], {"network": True})
    refused = weft("send", "--session", "talk", "Begin", "--sandbox", "none")
    assert (refused.code, "no sandbox" in refused.err) == (5, True), refused.err


def test_a_session_is_made_for_an_agent_that_answers_in_it(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "slow", "--set", "identity.soul=You are Ada.")
        sent = weft.json("send", "--session", "plans", "--agent", "ada", "Begin")
        assert server.received[0].body["messages"][0] == {"role": "system", "content": "You are Ada."}
    assert sent["session"] == "plans"
    assert weft.json("show", sent["turn"])["effective_config"]["chain"] == ["human:tester", "agent:ada"]


def test_a_routing_key_reaches_the_session_of_its_agent(weft: Shell) -> None:
    with serving(chat(), chat(), chat(), chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "bobbot", "--model", "slow", "--set", "identity.soul=You are Bob.")
        sent = weft.json("send", "--session", "persona:bobbot", "Begin")
        assert server.received[0].body["messages"][0] == {"role": "system", "content": "You are Bob."}
        assert (sent["session"], sent["is_new_session"]) == ("bobbot:main", True)
        again = weft.json("send", "--session", "persona:bobbot", "Go on")
        assert (again["session_id"], again["is_new_session"]) == (sent["session_id"], False)
        listed = {session["label"]: session for session in weft.json("sessions")}
        assert listed["bobbot:main"]["routing_key"] == "persona:bobbot"
        refused = weft("send", "--session", "persona:bobot", "Begin")
        assert refused.code != 0
        assert "no agent 'bobot'" in refused.err


@pytest.mark.parametrize("is_postgres", [False, True])
def test_a_session_works_in_the_folder_that_it_is_configured_for_whatever_was_restored_beside(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch, is_postgres: bool
) -> None:
    if is_postgres:
        monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
        assert weft("init").code == 0
    (folder / "site").mkdir()
    (folder / "site" / "page").write_text("one")
    with serving(chat(), chat(), chat()) as server:
        stock(weft, server.url, "talk")
        assert weft("session", "configure", "talk", "--set", f"workspace={folder / 'site'}").code == 0
        weft.json("resource", "add", str(folder / "site"), "--session", "talk")
        taken = weft.json("resource", "snapshot", "site")["id"]
        assert weft("resource", "restore", taken, "--to", str(folder / "copy")).code == 0

        def place(*options: str) -> str:
            turn = weft.json("send", "--session", "talk", "Begin", *options)["turn"]
            return str(weft.json("show", turn)["workspace_path"])

        assert place() == str(folder / "site")
        assert place("--in", str(folder / "copy")) == str(folder / "copy")
        assert weft("session", "configure", "talk", "--set", "workspace=null").code == 0
        assert place() == str(folder / "copy"), "nothing is configured: its own copy"
    assert weft("verify").code == 0


@pytest.mark.parametrize("is_postgres", [False, True])
def test_a_message_to_an_agent_that_works_on_a_task_goes_to_the_session_of_the_task_however_it_is_addressed(
    weft: Shell, monkeypatch: pytest.MonkeyPatch, is_postgres: bool
) -> None:
    if is_postgres:
        monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
    weft("init")
    weft.json("agent", "create", "bobbot", "--prompt", "You are Bob.")
    targets = (("--agent", "bobbot"), ("--session", "persona:bobbot"))

    def reached() -> list[str]:
        return [weft.json("send", *target, "Hello", "--no-wait")["session"] for target in targets]

    assert reached() == ["bobbot:main"] * 2
    weft.json("task", "create", "Write")
    assigned = weft.json("agent", "assign", "bobbot", "task-write")
    task_session = weft.json("program", "get", "bobbot")["config"]["currentSession"]
    assert reached() == [task_session] * 2, assigned
    told = weft("send", "--agent", "bobbot", "Hello", "--no-wait").err
    assert "bobbot works there; `--session bobbot:main` is its main session" in told
    assert weft.json("send", "--session", "bobbot:main", "Hello", "--no-wait")["session"] == "bobbot:main"


def test_a_session_that_was_named_and_not_there_is_said_to_be_made(weft: Shell) -> None:
    with serving(chat(), chat(), chat()) as server:
        stock(weft, server.url, "talk")
        assert "there was no session" not in weft("send", "--session", "talk", "Begin").err
        left = weft("send", "--session", "tlak", "Begin", "--no-wait")
        assert "waits in new session tlak" in left.out
        weft("agent", "create", "ada", "--model", "slow")
        made = weft("send", "--session", "plans", "--agent", "ada", "Begin")
        assert made.code == 0, made.err
        assert "there was no session of that name: made plans" in made.err


@pytest.mark.usefixtures("one_minilm")
def test_a_text_goes_to_the_thread_that_it_belongs_to(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url)
        weft.record("cats drink milk from a saucer", session="cats")
        ship = weft.record("the ship crossed the ocean in a storm", session="ship")
        text = "did the ship cross the stormy ocean in a day"
        assert weft.json("route", "--dry-run", text)["session"] == "ship"
        sent = weft.json("send", "--smart", text, "--model", "fast")
        assert (sent["session"], sent["is_fork"], sent["route"]["smart"]["turn"]) == ("ship", False, ship)
        assert sent["route"]["smart"]["confidence"] >= 0.25
        assert weft.json("show", sent["turn"])["parent_id"] == ship
        weft.record("quite another matter of invoices and taxes", session="ship")
        forked = weft("send", "--smart", "the storm on the ocean, and the ship in it", "--model", "fast")
        assert (forked.code, forked.out) == (0, "Hello there\n")
        assert "confidence" in forked.err
        elsewhere = weft.json("send", "--smart", "--session", "rest", "calibrate a spectrometer", "--model", "fast")
        assert (elsewhere["session"], elsewhere["route"]["smart"]["fallback"]) == ("rest", "rest")
        assert len(server.received) == 3
    assert weft("send", "--smart", "--agent", "ada", "x").code == 2


def test_messages_that_wait_are_collected_interrupt_and_steer(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk", "other")
        for text in ("one", "two"):
            weft.json("send", "--session", "talk", text, "--queue", "collect", "--no-wait")
        for text, mode in (("three", "followup"), ("four", "interrupt")):
            weft.json("send", "--session", "other", text, "--queue", mode, "--no-wait")
        assert [one["mode"] for one in weft.json("inbox")] == ["collect", "collect", "followup", "interrupt"]
        assert serve_until_empty(weft)[0] == 0
        asked = [[item["content"] for item in one.body["messages"]] for one in server.received]
        assert sorted(asked) == [["one", "two"], ["three", "four"]]
        steered = weft.json("send", "--session", "talk", "five", "--queue", "steer")  # no turn runs
        assert (steered["state"], steered["text"]) == ("answered", "Hello there")
        assert weft("send", "x", "--queue", "sometime").code == 2


def test_an_interrupting_message_cuts_the_turn_that_another_process_runs(weft: Shell) -> None:
    ledger_path = str(weft.folder / ".weft" / "ledger.db")
    with serving([HANG], chat()) as server:
        stock(weft, server.url, "talk")

        def interrupt(ledger: Ledger) -> None:
            session = ledger.session("talk").id
            wait_until(ledger, lambda: Runs(ledger).standing(session).open_turn is not None)
            while not server.hanging.is_set():  # the request has arrived, or the next one would hang
                Runs(ledger).wait_for_news(ledger.newest(), 0.05)
            command = (
                "--ledger",
                ledger_path,
                "send",
                "--session",
                "talk",
                "Stop",
                "--queue",
                "interrupt",
                "--no-wait",
            )
            assert run(command) == 0

        with beside(weft, interrupt):
            cut = weft("send", "--session", "talk", "Hello")
        assert "the turn was interrupted" in cut.err
        assert serve_until_empty(weft)[0] == 0
        assert [item["content"] for item in server.received[1].body["messages"]] == ["Hello", "Stop"]
    assert weft.json("show", "talk~1")["interruption_reason"] == "canceled"
    assert weft("verify").code == 0


@pytest.mark.parametrize("how", [(), ("--quiet",), ("--json",)])
def test_a_failed_turn_says_which_command_tries_it_again(weft: Shell, how: tuple[str, ...]) -> None:
    with serving(failure(400, "too hot"), chat()) as server:
        stock(weft, server.url, "talk")
        sent = weft("send", "--session", "talk", "Hello", *how)
        (dead,) = weft.json("inbox", "--dead")
        assert (sent.code, "too hot" in sent.err) == (8, True), sent
        if "--json" in how:
            assert sent.error["again"] == f"weft retry {dead['turn']}"
        else:
            assert sent.err.endswith(f"hint: `weft retry {dead['turn']}` asks again\n")
        logged = weft("log").out
        assert "Error: there: 400: too hot" in logged
        (again,) = [line.split() for line in logged.splitlines() if line.startswith("Again:")]
        assert again[1:3] == ["weft", "retry"]
        assert weft(*again[2:]).out == "Hello there\n"


def test_who_interrupts_is_told_how_to_go_on(weft: Shell) -> None:
    with serving([HANG]) as server:
        stock(weft, server.url, "talk")
        with running(weft.folder, "send", "--session", "talk", "Hello", stderr=subprocess.PIPE) as sender:
            while not server.hanging.is_set():
                time.sleep(0.02)
            sender.send_signal(signal.SIGINT)
            _, err = sender.communicate()
            assert sender.wait() == 130, err
        turn = weft.json("show", "talk")["id"]
        shown = err.decode()
        assert "was cut short" in shown
        for command in (f"weft show {turn}", "weft send --session talk TEXT", "weft undo talk"):
            assert f"`{command}`" in shown, shown


def test_what_was_attached_goes_with_a_message_that_is_sent_again(weft: Shell, tmp_path: Path) -> None:
    notes, picture = weft.folder / "notes.md", weft.folder / "dot.png"
    notes.write_text("remember the milk")
    picture.write_bytes(PNG)
    with serving(failure(400, "too hot"), failure(400, "too cold"), chat_saying({"content": "Seen"})) as server:
        stock(weft, server.url, "talk")
        assert weft("send", "--session", "talk", "Look", "--attach", "notes.md", "--attach", "dot.png").code == 8
        (dead,) = weft.json("inbox", "--dead")
        assert [(file["kind"], file["path"]) for file in dead["files"]] == [
            ("attached", "notes.md"),
            ("attached", "dot.png"),
        ]
        notes.unlink()  # the message has what was in it
        again = weft.json("inbox", "--again", dead["id"])
        assert (again["again"], again["files"], again["state"]) == (dead["id"], dead["files"], "queued")
        assert serve_until_empty(weft)[0] == 0
        (dead,) = weft.json("inbox", "--dead")
        sent = weft.json("retry", dead["turn"])
        assert sent["text"] == "Seen"
        contents = [one.body["messages"][-1]["content"] for one in server.received]
        assert contents[0] == contents[1] == contents[2]
    touches = weft.json("files", "notes.md")
    assert sent["turn"] in [touch["turn_id"] for touch in touches]
    assert {touch["kind"] for touch in touches} == {"attached"}
