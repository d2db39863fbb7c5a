"""Messages sent on the command line: admitted, answered by this process or by a broker, interrupted, tried again."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import weft as weft_package
from tests.postgres import shared_server
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import HANG, chat, chat_saying, failure
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, masked, running
from tests.surfaces.test_cli_docs import run_example
from weft.kernel.events import ModelRequest
from weft.ledger.api import Ledger, Runs
from weft.programs import Programs
from weft.surfaces.cli.chat.models import other_models
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.programs.program_call import acting_person

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
PATIENCE_SECONDS = 60.0
PNG = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")


def stock(weft: Shell, url: str, *sessions: str) -> None:
    for line in (
        f"provider create there --type openai-compatible --base-url {url} --key-env THERE_KEY",
        "model create fast --backend m-1 --provider there",
        "model create slow --backend m-2 --provider there",
        *(f"session create {session} --model fast" for session in sessions),
    ):
        assert weft(*line.split()).code == 0


@contextmanager
def beside(weft: Shell, work: Callable[[Ledger], None]) -> Iterator[None]:
    """Do something in another thread, through another opening of the ledger; its failure fails the test."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with weft_package.open(os.environ.get("WEFT_LEDGER") or weft.folder / ".weft" / "ledger.db") as ledger:
                work(ledger)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_SECONDS)
    assert errors == []


def wait_until(ledger: Ledger, is_so: Callable[[], bool]) -> None:
    runs = Runs(ledger)
    seen = 0
    while not is_so():
        assert runs.wait_for_news(seen, PATIENCE_SECONDS), "nothing more is written"
        seen = ledger.newest()


def serve_until_empty(weft: Shell, *options: str) -> tuple[int, str, str]:
    """A broker in this process, which is sent SIGTERM once nothing waits any more. Something must wait, or the signal
    comes before the broker."""
    assert weft("inbox", "-q").out

    def stop(ledger: Ledger) -> None:
        wait_until(ledger, lambda: not ledger.inbox.list())
        os.kill(os.getpid(), signal.SIGTERM)

    with beside(weft, stop):
        return weft("broker", *options)


def test_context_shows_what_the_last_request_was_sent_and_the_next_one_will_be(weft: Shell) -> None:
    def sent(number: int) -> list[tuple[str, str]]:
        return [(item["role"], item["content"]) for item in server.received[number].body["messages"]]

    def shown(*place: str) -> list[tuple[str, str]]:
        return [(one["role"], one["content"][0]["text"]) for one in weft.json("context", *place)["messages"]]

    with serving(chat_saying({"content": "y" * 3_000}, usage=None)) as server:
        stock(weft, server.url)
        for line in (
            "model configure fast --set contextWindow=4000",
            "agent create ada --model fast --prompt Brief.",
            "session create talk --model fast --owner ada",
            "session configure talk --set compaction.automatic=false",
        ):
            assert weft(*line.split()).code == 0, weft(*line.split()).err
        assert shown("--session", "talk") == [("system", "Brief.")]
        turn = ""
        for number in range(6):
            upcoming = shown("--session", "talk")
            turn = weft.json("send", "--session", "talk", f"question {number}")["turn"]
            assert shown(turn) == sent(number)
            if number != 3:  # there the query itself is what does not fit
                assert sent(number) == [*upcoming, ("user", f"question {number}")]
    assert ("user", "question 0") not in sent(5)
    assert "cut to fit" in weft("context", "--session", "talk").out
    assert "cut to fit" in weft("context", turn).out


def test_a_message_is_answered_as_its_options_say(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        sent = weft("send", "--session", "talk", "Hello", "--model", "slow", "--set", "temperature=0.5")
        assert (sent.code, sent.out) == (0, "Hello there\n"), sent.err
        assert (server.received[0].body["model"], server.received[0].body["temperature"]) == ("m-2", 0.5)
        answered = weft.json("send", "--session", "talk", "-", "--key", "k", "--deny", "Bash", stdin="Again")
        assert (answered["text"], answered["state"], answered["session"]) == ("Hello there", "answered", "talk")
        assert server.received[1].body["model"] == "m-1"
        config = weft.json("show", answered["turn"])["effective_config"]
        assert config["sources"]["model"] == {"layer": "session", "source": "talk"}
        repeated = weft.json("send", "--session", "talk", "Again", "--key", "k", "--deny", "Bash")
        assert (repeated["message"], repeated["turn"]) == (answered["message"], answered["turn"])
        forked = weft.json("send", "--thread", "talk~1", "What else?", "--model", "fast")
        assert forked["is_fork"]
        assert weft.json("show", forked["turn"])["depth"] == 2
        assert len(server.received) == 3
    assert weft("inbox").err == "no message waits; `weft inbox --dead` lists those that failed\n"
    assert weft("send", "--session", "talk", "--thread", "talk", "x").code == 2
    assert "is empty" in weft("send", " ").err
    assert "no thread is sure enough" in weft("send", "--smart", "zebra").err
    assert weft("verify").code == 0


@pytest.mark.parametrize("variable", ["", "OPENAI_API_KEY"])
def test_the_embedded_model_answers_unasked_only_in_conversations(weft: Shell, variable: str) -> None:
    with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
        programs, variables = Programs(ledger), {variable: CANARY}.get
        acting = acting_person(Call(), programs)
        find = other_models(programs, variables)
        asked, unasked = find("local", None, acting), find(None, None, acting)
        in_chat = other_models(programs, variables, is_embedded_default=True)(None, None, acting)
    assert asked is not None
    assert asked.model.provider.is_embedded
    assert (None if unasked is None else unasked.model.id) == ("openai" if variable else None)
    assert in_chat is not None
    assert in_chat.model.provider.is_embedded is not bool(variable)


def test_a_message_that_no_model_can_answer_names_the_commands_that_give_it_one(
    weft: Shell,
) -> None:
    """Also after a conversation with the embedded model, and after a name that was mistyped."""
    make = "`weft model create NAME --backend MODEL --provider PROVIDER` makes a model"
    weft.json("agent", "create", "ada")
    weft.record("Hello", session="chat", effective_config={"model": "local", "provider": "local"})
    for target, give in (
        (("--session", "plans"), "`weft session configure plans --model NAME`"),
        (("--session", "chat"), "`weft session configure chat --model NAME`"),
        (("--agent", "ada"), "`weft agent configure ada --model NAME`"),
    ):
        sent = weft("send", *target, "What is the capital of France?")
        assert (sent.code, sent.out) == (4, ""), sent.err
        assert make in sent.err
        assert give in sent.err
    mistyped = weft("agent", "configure", "ada", "--model", "fsat")
    assert mistyped.code != 0
    assert weft("send", "--agent", "ada", "Hello").code == 4
    assert weft("send", "--model", "fsat", "Hello").code == 3
    assert "did you mean local?" in weft("send", "--model", "loca", "Hello").err
    assert weft("agent", "run", "ada", "Say hello").code == 4
    assert [message["state"] for message in weft.json("inbox", "--dead")] == ["dead"] * 7


@pytest.mark.parametrize("kind", ["agent", "session"])
def test_the_model_that_an_agent_or_a_session_names_as_fallback_answers_in_place_of_one_that_fails(
    weft: Shell, kind: str
) -> None:
    with serving(failure(429, "come back tomorrow", retry_after="86400"), chat()) as server:
        stock(weft, server.url, "talk")
        weft.json("agent", "create", "ada", "--model", "fast")
        name, target = ("ada", "--agent") if kind == "agent" else ("talk", "--session")
        unknown = weft(kind, "configure", name, "--set", "fallback=@(gone)")
        assert (unknown.code, "there is no program @(gone)" in unknown.err) == (5, True), unknown.err
        weft.json(kind, "configure", name, "--set", "fallback=@(slow)")
        sent = weft.json("send", target, name, "Hello")
        turn = weft.json("show", sent["turn"])
        assert [one.body["model"] for one in server.received] == ["m-1", "m-2"]
    assert sent["text"] == "Hello there"
    config = turn["effective_config"]
    assert (config["model"], config["fallback"]) == ("fast", "@(slow)")
    assert config["sources"]["fallback"]["source"] == name
    with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
        events = [one.event for one in ledger.events(turn["id"])]
    asked = [(one.model, one.attempt) for one in events if isinstance(one, ModelRequest)]
    assert asked == [("m-1", 1), ("m-2", 2)]
    shown = weft.json("config", sent["session"])
    assert ("fallback", "@(slow)") in [(value["key"], value["value"]) for value in shown["values"]]


def test_files_go_with_a_message(weft: Shell) -> None:
    notes, picture = weft.folder / "notes.md", weft.folder / "dot.png"
    notes.write_text("remember the milk")
    picture.write_bytes(PNG)
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        sent = weft.json("send", "--session", "talk", "Look", "--attach", "notes.md", "--attach", "dot.png")
        text, attached, image = server.received[0].body["messages"][-1]["content"]
    assert (text["text"], attached["text"]) == ("Look", "File notes.md:\nremember the milk")
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    asked = next(one for one in weft.json("show", sent["turn"])["messages"] if one["role"] == "user")
    assert asked["context"]["attachments"] == [{"path": "notes.md"}, {"path": "dot.png"}]
    (touch,) = weft.json("files", "notes.md")
    assert (touch["turn_id"], touch["kind"]) == (sent["turn"], "attached")
    (weft.folder / "other.bin").write_bytes(b"\xff\x00\xfe")
    assert "neither text nor an image" in weft("send", "Look", "--attach", "other.bin").err
    assert "is no file" in weft("send", "Look", "--attach", "missing").err


def test_what_waits_is_listed_cancelled_and_answered_by_a_broker(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        weft.json("agent", "create", "ada", "--model", "slow", "--set", "identity.soul=You are Ada.")
        first = weft.json("send", "--session", "talk", "one", "--no-wait", "--set", "topP=0.5")
        second = weft.json("send", "--session", "talk", "two", "--no-wait", "--priority", "5")
        third = weft("send", "--agent", "ada", "three", "--no-wait")
        assert (first["state"], first["turn"]) == ("queued", None)
        assert third.out.endswith(" waits in new session ada:main\n")
        assert "`weft broker` runs one" in third.err
        lines = [line.split("\t") for line in weft("inbox").out.splitlines()]
        assert [(line[1], line[2], line[-1]) for line in lines] == [
            ("talk", "queued", "two"),
            ("talk", "queued", "one"),
            ("ada:main", "queued", "three"),
        ]
        shown = weft("config", "talk", "--for", first["message"]).out
        assert f"topP\t0.5\tmessage {first['message']}\n" in shown
        assert "was sent to session 'talk'" in weft("config", "ada:main", "--for", first["message"]).err
        assert weft("config", "talk", "--for", first["message"], "--model", "slow").code == 2
        assert weft("inbox", "--cancel", second["message"]).out == f"{second['message']} is cancelled\n"
        assert server.received == []
        code, out, err = serve_until_empty(weft)
        assert (code, out) == (0, f"ready: process {os.getpid()}, 2 sessions to serve\n"), err
        assert err.splitlines()[-1] == "stopped"
        asked = {item.body["model"]: item.body for item in server.received}
    assert asked["m-1"]["top_p"] == 0.5
    assert asked["m-2"]["messages"][0] == {"role": "system", "content": "You are Ada."}
    turn = weft.json("show", "ada:main")
    assert turn["effective_config"]["chain"] == ["human:tester", "agent:ada"]
    assert weft("verify").code == 0


def test_a_dead_message_says_why_and_is_sent_again(weft: Shell) -> None:
    with serving(failure(400, "too hot"), chat()) as server:
        stock(weft, server.url, "talk")
        assert "too hot" in weft("send", "--session", "talk", "Hello").err
        first, error, advice = weft("inbox", "--dead").out.splitlines()
        message = first.split(" ")[0]
        assert "too hot" in error
        assert f"`weft inbox --again {message}` sends it once more; `weft retry " in advice
        again = weft("inbox", "--again", message)
        assert again.out.endswith(" waits in session talk\n")
        assert weft("inbox", "--dead").err == "no message is dead\n"
        assert weft("inbox", "--dead", "--again", message).code == 2
        assert serve_until_empty(weft)[0] == 0
        assert len(server.received) == 2
    assert "Hello there" in weft("read", "talk").out


def test_a_message_that_cannot_be_configured_is_dead_and_stops_nobody(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        weft.json("send", "--session", "talk", "one", "--no-wait", "--situation", "unheard")
        weft.json("send", "--session", "talk", "two", "--no-wait")
        ready = serve_until_empty(weft, "--json", "--capacity", "3")[1]
        assert '"ready":true' in ready
        assert '"capacity":3' in ready
        assert [item.body["messages"][-1]["content"] for item in server.received] == ["two"]
    assert "knows no situation 'unheard'" in weft("inbox", "--dead").out


def test_a_failed_turn_is_retried_with_its_results_or_afresh(weft: Shell) -> None:
    with serving(failure(400, "too hot"), chat(), chat_saying({"content": "Afresh"})) as server:
        stock(weft, server.url, "talk")
        weft("send", "--session", "talk", "Hello")
        (dead,) = weft.json("inbox", "--dead")
        assert weft("retry", dead["turn"]).out == "Hello there\n"
        retried = weft.json("show", "talk")
        assert (retried["parent_id"], retried["status"]) == (dead["turn"], "completed")
        assert [item["content"] for item in server.received[1].body["messages"]] == ["Hello", "Hello"]
        assert weft("inbox", "--dead").out == ""
        assert "not failed" in weft("retry", "talk").err
        call = {"name": "deploy", "id": "c1", "arguments": {"to": "production"}, "result": "done"}
        failed = weft.record("Ship it", session="talk", tool_calls=[call], error="it broke", response=None)
        refused = weft("retry", failed, "--afresh")
        assert refused.code == 4
        assert "1 tool call may run again\nhint: --yes does so without asking" in refused.err
        assert "deploy {'to': 'production'}" in refused.err
        afresh = weft.json("retry", failed, "--afresh", "--yes")
        assert (afresh["text"], afresh["session"]) == ("Afresh", "talk")
        assert weft.json("show", afresh["turn"])["parent_id"] == retried["id"]
    assert weft("verify").code == 0


def test_a_turn_is_interrupted_from_another_process(weft: Shell) -> None:
    with serving([HANG]) as server:
        stock(weft, server.url, "talk")
        assert "no turn runs in session 'talk'" in weft("interrupt", "talk").err
        turns: list[str] = []

        def interrupt(ledger: Ledger) -> None:
            session = ledger.session("talk").id
            wait_until(ledger, lambda: Runs(ledger).standing(session).open_turn is not None)
            turns.append(ledger.inbox.interrupt("talk"))

        with beside(weft, interrupt):
            cut = weft("send", "--session", "talk", "Hello")
        assert "the turn was interrupted" in cut.err
    shown = weft.json("show", turns[0])
    assert (shown["status"], shown["interruption_reason"]) == ("completed", "canceled")
    assert weft("inbox").out == ""


def test_the_answer_that_a_broker_gave_is_read_from_the_ledger(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        sent = weft.json("send", "--session", "talk", "one", "--no-wait", "--key", "k")
        assert serve_until_empty(weft)[0] == 0
        read = weft.json("send", "--session", "talk", "one", "--key", "k")
        assert len(server.received) == 1
    assert (read["message"], read["text"], read["model"]) == (sent["message"], "Hello there", "m-1")


def test_messages_are_answered_in_the_name_of_their_senders(weft: Shell) -> None:
    with serving(chat()) as server:
        stock(weft, server.url)
        weft.json("agent", "create", "ada", "--model", "fast")
        sent = weft("--as", "ada", "send", "--session", "hers", "Hello", "--no-wait", "--model", "fast")
        assert sent.code == 0, sent.err
        assert "run the command broker" in weft("--as", "ada", "broker").err
        assert serve_until_empty(weft)[0] == 0
        assert len(server.received) == 1
    assert weft.json("show", "hers")["effective_config"]["chain"][:2] == ["human:tester", "agent:ada"]


def test_the_examples_of_the_page_do_what_it_says(shell: Shell) -> None:
    times = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}")
    section = PAGE.split("## The way of a message\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        answer = run_example(shell, line)
        assert answer.code == 0, answer.err
        if output:
            assert masked(times.sub("TIME", answer.out)) == masked(times.sub("TIME", output))


def test_a_broker_serves_a_ledger_in_postgresql(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_LEDGER", shared_server().address())
    assert shell("init").code == 0
    with serving(chat()) as server:
        stock(shell, server.url, "talk")
        shell.json("send", "--session", "talk", "Hello", "--no-wait")
        assert serve_until_empty(shell)[0] == 0
        assert len(server.received) == 1
    assert "Hello there" in shell("read", "talk").out


def test_what_a_killed_broker_left_behind_is_gone_on_with(weft: Shell) -> None:
    with serving([HANG], chat()) as server:
        stock(weft, server.url, "talk")
        sent = weft.json("send", "--session", "talk", "Hello", "--no-wait")
        with running(weft.folder, "broker", "--json", stdout=subprocess.PIPE) as broker:
            assert broker.stdout is not None
            assert b'"ready":true' in broker.stdout.readline()
            with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
                wait_until(ledger, lambda: ledger.inbox.get(sent["message"]).turn is not None)
                while not server.received:  # the request is under way
                    Runs(ledger).wait_for_news(ledger.newest(), 0.02)
            broker.kill()
            broker.wait()
        assert serve_until_empty(weft)[0] == 0
        assert [item.body["messages"][-1]["content"] for item in server.received] == ["Hello", "Hello"]
    (turn,) = weft.json("log", "talk")
    assert turn["status"] == "completed"
    assert weft("verify").code == 0


def test_the_rules_of_a_trusted_folder_are_told_and_recorded(weft: Shell) -> None:
    rules = weft.folder / "AGENTS.md"
    rules.write_text("Write tests.")
    with serving(chat()) as server:
        stock(weft, server.url, "talk")
        assert weft("send", "--session", "talk", "one").code == 0
        assert [item["role"] for item in server.received[0].body["messages"]] == ["user"], "not trusted, not read"
        assert weft("trust", ".").code == 0
        assert str(weft.folder) in weft("trust", "--list").out
        shown = weft.json("context", "--session", "talk")["messages"]
        turn = weft.json("send", "--session", "talk", "two")["turn"]
        told = server.received[1].body["messages"][0]
        assert told["role"] == "system"
        assert told["content"].endswith("AGENTS.md:\n\nWrite tests.")
        assert shown[0]["content"][0]["text"] == told["content"]
        turn_shown = weft.json("show", turn)
        assert turn_shown["workspace_path"] == os.path.realpath(weft.folder)
        message = weft.json("context", turn)["messages"][0]
        digest = hashlib.sha256(b"Write tests.").hexdigest()
        assert message["context"]["rules"] == [{"path": "AGENTS.md", "digest": digest}]
        assert weft("chat", "talk", "--model", "fast", stdin="three").code == 0
        before, now = (server.received[number].body["messages"] for number in (1, 2))
        assert now[: len(before)] == before
        rules.unlink()
        os.mkfifo(rules)
        unread = weft("send", "--session", "talk", "four")
        assert unread.code == 0
        assert "'AGENTS.md' is a device, a pipe or a socket" in unread.err
        assert server.received[3].body["messages"][0] == told
        assert weft("trust", ".", "--revoke").code == 0
        assert weft("send", "--session", "talk", "five").code == 0
        assert server.received[4].body["messages"][0]["role"] == "user"
    assert weft("trust", ".", "--list").code == 2
